//! The three services as a test wants them: in memory, and driven by the test.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};
use warmhold_control::ApiError;
use warmhold_control::api::{
    FileView, HistoryEntry, OutputStream, Policies, PolicySlot, PolicyState, PolicyView, PrepareAsk, Prepared,
    ReplayAsk, ReplayEvent, ReplayOutcome, ReplayPolicies, ReplayRun, ReplayState, ReplayView, Replays, Settle,
    StreamView, WorkerView, Workers,
};
use warmhold_ledger::Caller;

/// Named in every answer about a replay.
pub const TAG: &str = "warm@sha256:1111111111111111111111111111111111111111111111111111111111111111#1";

/// Replays that "run" each file for as long as the test lets them.
#[derive(Default)]
pub struct MemoryReplays {
    pub replays: Mutex<BTreeMap<String, (String, ReplayView)>>,
    /// The senders of events outlive their replays here: a reader must not wait for them.
    pub senders: Mutex<Vec<mpsc::Sender<ReplayEvent>>>,
    /// Replays whose caller let them run to their end.
    pub ended: Arc<Mutex<Vec<String>>>,
    /// Held closed by a test that wants a replay to take long.
    pub gate: Arc<tokio::sync::RwLock<()>>,
}

fn file(name: &str) -> FileView {
    FileView {
        file: name.to_owned(),
        exit: Some(0),
        signal: None,
        reason: None,
        detail: None,
        duration_ms: 1,
        stdout: StreamView::default(),
        stderr: StreamView::default(),
        artifacts: Vec::new(),
    }
}

fn replay(id: &str, ask: &ReplayAsk) -> ReplayView {
    ReplayView {
        id: id.to_owned(),
        run_id: ask.run_id.clone().unwrap_or_else(|| "made-up".to_owned()),
        attempt_id: ask.attempt_id.clone().unwrap_or_else(|| "1".to_owned()),
        cut_sha: ask.cut_sha.clone(),
        state: ReplayState::Observed,
        outcome: Some(ReplayOutcome::Observed),
        reason: None,
        detail: None,
        passed: true,
        files: ask.files.iter().map(|name| file(name)).collect(),
        worker: None,
        isolation: None,
        policies: ReplayPolicies { replay: TAG.to_owned(), ..ReplayPolicies::default() },
        history: Vec::new(),
    }
}

#[async_trait]
impl Replays for MemoryReplays {
    async fn start(&self, caller: &Caller, ask: ReplayAsk) -> Result<ReplayRun, ApiError> {
        if ask.profile.as_deref() == Some("unknown") {
            return Err(
                ApiError::bad_request("unknown-profile", "there is no such profile").with("known", vec!["local"])
            );
        }
        let id = format!("replay-{}", self.replays.lock().len() + 1);
        let view = replay(&id, &ask);
        self.replays.lock().insert(id.clone(), (caller.owner.clone(), view.clone()));
        let (events, receiver) = mpsc::channel(64);
        self.senders.lock().push(events.clone());
        let (result, answer) = oneshot::channel();
        let (gate, ended, name) = (Arc::clone(&self.gate), Arc::clone(&self.ended), id.clone());
        tokio::spawn(async move {
            let state = HistoryEntry { at: 1, state: ReplayState::Leased, note: None };
            let _ = events.try_send(ReplayEvent::State(state));
            let _open = gate.read().await;
            for name in &ask.files {
                let text = format!("{name} says hello\n");
                let _ = events.try_send(ReplayEvent::Output { file: name.clone(), stream: OutputStream::Stdout, text });
                let _ = events.try_send(ReplayEvent::File(file(name)));
            }
            ended.lock().push(name);
            let failed = ask.profile.as_deref() == Some("broken");
            let _ = result.send(if failed { Err(ApiError::internal()) } else { Ok(view) });
        });
        Ok(ReplayRun { id, events: receiver, result: answer })
    }

    async fn list(&self, before: Option<&str>, limit: usize) -> Result<Vec<ReplayView>, ApiError> {
        let replays = self.replays.lock();
        let views = replays.values().rev().map(|(_, view)| view.clone());
        Ok(views.filter(|view| before.is_none_or(|before| view.id.as_str() < before)).take(limit).collect())
    }

    async fn get(&self, id: &str) -> Result<Option<ReplayView>, ApiError> {
        Ok(self.replays.lock().get(id).map(|(_, view)| view.clone()))
    }

    async fn settle(&self, caller: &Caller, id: &str, verdict: Settle) -> Result<ReplayView, ApiError> {
        let mut replays = self.replays.lock();
        let (owner, view) = replays.get_mut(id).ok_or_else(|| ApiError::not_found("no such replay"))?;
        if *owner != caller.owner {
            return Err(ApiError::forbidden("not-owner", "another caller's replay"));
        }
        match verdict {
            Settle::Finalize => view.state = ReplayState::Finalized,
            Settle::Quarantine { reason } => {
                view.state = ReplayState::Quarantined;
                view.reason = Some(reason);
            }
        }
        Ok(view.clone())
    }
}

/// Workers by name.
#[derive(Default)]
pub struct MemoryWorkers {
    pub workers: Mutex<Vec<WorkerView>>,
    /// Held closed by a test that wants everything about workers to take long.
    pub gate: Arc<tokio::sync::RwLock<()>>,
    /// What was begun.
    pub begun: AtomicUsize,
}

impl MemoryWorkers {
    async fn pass(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.read().await;
    }
}

#[async_trait]
impl Workers for MemoryWorkers {
    async fn prepare(&self, ask: PrepareAsk) -> Result<Vec<Prepared>, ApiError> {
        let mut workers = self.workers.lock();
        let first = workers.len();
        for slot in 0..ask.count.unwrap_or(1) {
            workers.push(WorkerView {
                worker_id: format!("w{}", first + slot as usize),
                machine: "m1".to_owned(),
                tier: Some("lite".to_owned()),
                slot: Some(slot),
                cut_sha: ask.cut.clone(),
                state: "idle".to_owned(),
                generation: 0,
                pod_uid: Some("uid".to_owned()),
                age_ms: 0,
                expired: false,
                reason: None,
            });
        }
        Ok(workers
            .iter()
            .skip(first)
            .map(|worker| Prepared {
                worker_id: worker.worker_id.clone(),
                pod: "warm-m1-lite-0".to_owned(),
                pod_uid: "uid".to_owned(),
                prepared: true,
                reason: None,
            })
            .collect())
    }

    async fn list(&self) -> Result<Vec<WorkerView>, ApiError> {
        self.pass().await;
        Ok(self.workers.lock().clone())
    }

    async fn remove(&self, id: &str) -> Result<Option<WorkerView>, ApiError> {
        self.pass().await;
        let mut workers = self.workers.lock();
        let at = workers.iter().position(|worker| worker.worker_id == id);
        Ok(at.map(|at| workers.remove(at)))
    }

    async fn quarantine(&self, id: &str, reason: &str) -> Result<Option<WorkerView>, ApiError> {
        self.pass().await;
        let mut workers = self.workers.lock();
        Ok(workers.iter_mut().find(|worker| worker.worker_id == id).map(|worker| {
            worker.state = "quarantined".to_owned();
            worker.reason = Some(reason.to_owned());
            worker.clone()
        }))
    }
}

/// Policies by the length of their bytes.
#[derive(Default)]
pub struct MemoryPolicies {
    pub loaded: Mutex<Vec<(PolicySlot, usize)>>,
    pub missing: Mutex<Option<PolicySlot>>,
}

impl MemoryPolicies {
    fn view(slot: PolicySlot, generation: u64) -> PolicyView {
        PolicyView {
            slot,
            name: format!("{slot}-policy"),
            version: "1".to_owned(),
            digest: "0".repeat(64),
            generation,
            state: PolicyState::Serving,
            calls: 0,
            faults: 0,
            first_fault: None,
        }
    }
}

#[async_trait]
impl Policies for MemoryPolicies {
    async fn list(&self) -> Result<Vec<PolicyView>, ApiError> {
        let missing = *self.missing.lock();
        Ok(PolicySlot::ALL.into_iter().filter(|slot| Some(*slot) != missing).map(|slot| Self::view(slot, 1)).collect())
    }

    async fn load(&self, slot: PolicySlot, component: Bytes) -> Result<PolicyView, ApiError> {
        if !component.starts_with(b"\0asm") {
            let unprocessable = http::StatusCode::UNPROCESSABLE_ENTITY;
            return Err(ApiError::new(unprocessable, "policy-not-wasm", "that is no component")
                .with("expected", "a component")
                .with("found", "something else")
                .with("fix", "build it with cargo build --target wasm32-wasip2"));
        }
        let mut loaded = self.loaded.lock();
        loaded.push((slot, component.len()));
        Ok(Self::view(slot, loaded.len() as u64 + 1))
    }

    async fn rollback(&self, slot: PolicySlot) -> Result<PolicyView, ApiError> {
        if self.loaded.lock().is_empty() {
            return Err(ApiError::conflict("nothing-to-roll-back", "there is no generation before this one"));
        }
        Ok(Self::view(slot, 1))
    }
}
