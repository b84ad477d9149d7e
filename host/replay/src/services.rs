//! What every replay and every preparation of this daemon shares.

use crate::instance::Instance;
use crate::judge::Judge;
use crate::lease::{Lease, Proof, Stage};
use crate::live::{Live, Running, now_ms};
use crate::profile::Profile;
use crate::record::{MARKS, REPLAYS, RETIRED, ReplayRecord, WORKERS, WorkerRecord, WorkerState, is_final};
use crate::session::{CONTROL_LIMIT, ControlError};
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_util::task::TaskTracker;
use warmhold_ledger::{
    ApplyError, Caller, Expect, Guard, Kind, Ledger, Meant, Operation, ReadError, Refusal, Row, RowFilter, Submission,
    Transition, TransitionKind,
};
use warmhold_plugin::ReplaySlot;
use warmhold_pods::{Backend, Target};

/// Results of this many replays are kept; older ones' streams and artifacts are removed.
const KEPT_RESULTS: usize = 200;
/// Records of this many replays that are over are kept; asking for an older one again runs it again.
const KEPT_RECORDS: usize = 1000;
/// Records are looked through after so many replays.
const PRUNE_EVERY: u32 = 50;
/// Between two tries of a quarantine that must happen.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether a verb may be used in a place.
pub type Grants = Box<dyn Fn(&Target, &str) -> bool + Send + Sync>;

/// Why this machine may not write workers now, if so: a stable code.
pub type MayWrite = Box<dyn Fn() -> BoxFuture<'static, Result<(), &'static str>> + Send + Sync>;

/// See the module.
pub struct Services {
    /// The daemon's folder.
    pub root: PathBuf,
    /// This machine's name.
    pub machine: String,
    /// This daemon's life.
    pub instance: Instance,
    /// The ledger.
    pub ledger: Ledger,
    /// The policy that judges pods.
    pub manifest: Judge,
    /// The policy that drives replays.
    pub replay: Arc<ReplaySlot>,
    /// Where each profile's pods live, by the profile's name.
    pub backends: BTreeMap<String, Arc<dyn Backend>>,
    /// The profiles, by name.
    pub profiles: BTreeMap<String, Arc<Profile>>,
    /// The profile of who names none.
    pub default_profile: String,
    /// What the configuration grants the replay policy.
    pub grants: Grants,
    /// Asked before a pod is made: one that can't be registered couldn't be removed either.
    pub may_write: MayWrite,
    /// This machine as a caller: registers and sanitizes.
    pub machine_caller: Caller,
    /// The replays that this daemon has in hand.
    pub running: Running,
    /// Replays since records were looked through.
    pub since_pruned: AtomicU32,
    /// What still runs in the background; awaited when the daemon stops.
    pub tasks: TaskTracker,
}

impl Services {
    /// A profile and where its pods live.
    #[must_use]
    pub fn profile(&self, name: Option<&str>) -> Option<(Arc<Profile>, Arc<dyn Backend>)> {
        let name = name.unwrap_or(&self.default_profile);
        Some((Arc::clone(self.profiles.get(name)?), Arc::clone(self.backends.get(name)?)))
    }

    /// Reads in the ledger away from the threads that serve.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Ledger) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, String> {
        let ledger = self.ledger.clone();
        tokio::task::spawn_blocking(move || read(&ledger))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    }

    /// All records of a kind that can be read.
    pub(crate) async fn records<T: DeserializeOwned + Send + 'static>(
        &self,
        kind: &'static str,
    ) -> Result<Vec<T>, String> {
        self.read(move |ledger| {
            let mut all = Vec::new();
            let mut after: Option<String> = None;
            loop {
                let page = ledger.list_records(kind, after.as_deref(), 500)?;
                let Some(last) = page.last() else { return Ok(all) };
                after = Some(last.id.clone());
                for record in page {
                    match serde_json::from_value(record.body) {
                        Ok(value) => all.push(value),
                        Err(error) => tracing::error!(kind, id = %record.id, %error, "a record can't be read"),
                    }
                }
            }
        })
        .await
    }

    /// Writes a worker's record.
    pub(crate) async fn save_worker(&self, record: &WorkerRecord) -> Result<(), ApplyError> {
        let body = serde_json::to_value(record).unwrap_or_default();
        self.ledger.put_record(WORKERS, &record.worker_id, Expect::Any, body).await.map(drop)
    }

    /// Puts a worker's record away: its pod is gone. What is looked through for each replay stays as short as there are
    /// workers.
    pub(crate) async fn retire_worker(&self, record: &WorkerRecord) -> Result<(), String> {
        let retired = WorkerRecord { state: WorkerState::Retired, ..record.clone() };
        let body = serde_json::to_value(&retired).unwrap_or_default();
        let id = &record.worker_id;
        // In this order: a death in between leaves a record too many, never one too few.
        self.ledger.put_record(RETIRED, id, Expect::Any, body).await.map_err(|error| error.to_string())?;
        self.ledger.remove_record(WORKERS, id, Expect::Any).await.map_err(|error| error.to_string())
    }

    /// Writes a replay's record.
    pub(crate) async fn save_replay(&self, live: &Live) -> Result<(), ApplyError> {
        let body = serde_json::to_value(live.record()).unwrap_or_default();
        self.ledger.put_record(REPLAYS, &live.id, Expect::Any, body).await.map(drop)
    }

    /// Writes a replay's record without waiting: the ledger takes writes in order, so a later one is never lost to it.
    /// Nothing depends on it: a dead daemon's leases are found by run and attempt.
    pub(crate) fn save_replay_later(self: &Arc<Self>, live: &Arc<Live>) {
        let body = serde_json::to_value(live.record()).unwrap_or_default();
        let (services, id) = (Arc::clone(self), live.id.clone());
        // Polled once here, so that it is queued before anything that this task writes later.
        let mut write = Box::pin(async move { services.ledger.put_record(REPLAYS, &id, Expect::Any, body).await });
        if futures::FutureExt::now_or_never(&mut write).is_none() {
            self.tasks.spawn(async move {
                if let Err(error) = write.await {
                    tracing::warn!(%error, "a replay's state wasn't written");
                }
            });
        }
    }

    /// Whether a pod may never be used again. What can't be read counts as marked.
    pub(crate) async fn is_marked(&self, worker: &WorkerRecord) -> bool {
        let id = mark_id(worker);
        match self.read(move |ledger| ledger.get_record(MARKS, &id)).await {
            Ok(mark) => mark.is_some(),
            Err(error) => {
                tracing::error!(%error, worker = %worker.worker_id, "whether this pod is marked can't be read");
                true
            }
        }
    }

    /// Marks a pod, so that it is never used again whatever the ledger's row says.
    pub(crate) async fn mark(&self, worker: &WorkerRecord, why: &str) {
        let body = serde_json::json!({ "worker": worker.worker_id, "why": why, "at": now_ms() });
        if let Err(error) = self.ledger.put_record(MARKS, &mark_id(worker), Expect::Any, body).await {
            tracing::warn!(%error, worker = %worker.worker_id, "this pod wasn't marked");
        }
    }

    /// Takes the worker of a lease out for good.
    pub(crate) async fn quarantine_lease(&self, lease: &Lease, reason: &str) -> Result<(), ControlError> {
        let mut state = lease.inner.lock().await;
        match state.stage {
            Stage::Quarantined => return Ok(()),
            Stage::Sanitized => return Err(ControlError::Refused(409, "not-leased".to_owned())),
            Stage::Fenced | Stage::Released => {}
        }
        let meant = Meant::Lease(lease.facts.lease_id.clone());
        match self.quarantine_worker(&lease.facts.worker_id, reason, meant).await {
            Ok(()) => state.stage = Stage::Quarantined,
            // The row has left this lease: a sanitizing whose answer was lost was written after all.
            Err(ControlError::Refused(409, code)) if code == Refusal::Conflict.code() => {
                state.stage = Stage::Sanitized;
                state.journal.end("sanitized", None);
                return Err(ControlError::Refused(409, code));
            }
            Err(error) => return Err(error),
        }
        if state.proof == Proof::Unknown {
            state.proof = Proof::Dirty(reason.to_owned());
        }
        state.journal.end("quarantined", Some(reason));
        Ok(())
    }

    /// Takes a worker out for good; one that is out already is out.
    pub(crate) async fn quarantine_worker(
        &self,
        worker_id: &str,
        reason: &str,
        meant: Meant,
    ) -> Result<(), ControlError> {
        match self.ledger.quarantine_if(worker_id, &short(reason), meant).await {
            Ok(_) | Err(ApplyError::Refused(Refusal::AlreadyQuarantined, _)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets a worker serve again in which nothing ran under this lease.
    pub(crate) async fn sanitize_unused(&self, lease: &Lease) -> Result<(), ControlError> {
        let mut state = lease.inner.lock().await;
        if state.stage != Stage::Released || state.proof != Proof::NothingRan {
            return Err(ControlError::Refused(409, "not-proven-clean".to_owned()));
        }
        let transition = Transition {
            kind: TransitionKind::Sanitize,
            worker_id: lease.facts.worker_id.clone(),
            lease_id: lease.facts.lease_id.clone(),
            generation: lease.facts.generation,
            ttl_ms: None,
            reason: None,
        };
        let submission = Submission {
            operation: Operation::Transition(transition),
            caller: self.machine_caller.clone(),
            guard: Guard { worker_route: true, seen_generation: None },
            deadline: std::time::Instant::now() + CONTROL_LIMIT,
        };
        self.ledger.apply(submission).await?;
        state.stage = Stage::Sanitized;
        state.journal.end("sanitized", Some("nothing ran"));
        Ok(())
    }

    /// Settles a lease that nobody will settle any more, and tries until it holds: the first try is awaited, so that a
    /// caller usually finds it done.
    pub(crate) async fn settle_left_lease(self: &Arc<Self>, lease: &Arc<Lease>, reason: &str) {
        if lease.inner.lock().await.stage.settled() || self.quarantine_lease(lease, reason).await.is_ok() {
            return;
        }
        let (services, lease, reason) = (Arc::clone(self), Arc::clone(lease), reason.to_owned());
        self.tasks.spawn(async move {
            while let Err(error) = services.quarantine_lease(&lease, &reason).await {
                if let ControlError::Refused(..) = error {
                    tracing::error!(worker = %lease.facts.worker_id, %error, "a left lease can't be quarantined");
                    return;
                }
                tracing::warn!(worker = %lease.facts.worker_id, %error, "a left lease isn't quarantined yet");
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    /// This machine's workers in the ledger.
    pub(crate) async fn worker_rows(&self, machine: Option<String>) -> Result<Vec<Row>, String> {
        self.read(move |ledger| {
            let filter = RowFilter { kind: Some(Kind::PodWorkerLease), machine, name: None };
            let mut all = Vec::new();
            let mut after = None;
            loop {
                let page = ledger.rows(&filter, after, 1000)?;
                all.extend(page.rows);
                match page.next {
                    Some(next) => after = Some(next),
                    None => return Ok(all),
                }
            }
        })
        .await
    }

    /// The private folder of a replay's streams and artifacts.
    pub(crate) fn result_folder(&self, id: &str) -> io::Result<PathBuf> {
        let folder = self.results().join(id);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(folder)
    }

    fn results(&self) -> PathBuf {
        self.root.join("replays")
    }

    /// Removes the oldest results and the oldest records of replays that are over, beyond what is kept.
    pub(crate) async fn prune(self: &Arc<Self>) -> Result<(), String> {
        let services = Arc::clone(self);
        let pruned = tokio::task::spawn_blocking(move || services.prune_results()).await;
        match pruned.map_err(|error| error.to_string())? {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
            _ => {}
        }
        // Reading all of them costs more than one too many: not after each replay.
        if self.since_pruned.fetch_add(1, Ordering::Relaxed) % PRUNE_EVERY != PRUNE_EVERY - 1 {
            return Ok(());
        }
        let mut over: Vec<ReplayRecord> = self.records(REPLAYS).await?;
        over.retain(|replay| is_final(replay.state));
        over.sort_by_key(|replay| replay.history.last().map_or(0, |entry| entry.at));
        let surplus = over.len().saturating_sub(KEPT_RECORDS);
        for replay in over.iter().take(surplus) {
            self.ledger.remove_record(REPLAYS, &replay.id, Expect::Any).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn prune_results(&self) -> io::Result<()> {
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(self.results())? {
            let entry = entry?;
            folders.push((entry.metadata()?.modified()?, entry.path()));
        }
        folders.sort();
        let surplus = folders.len().saturating_sub(KEPT_RESULTS);
        folders.iter().take(surplus).try_for_each(|(_, path)| std::fs::remove_dir_all(path))
    }
}

/// At most 120 characters, and never nothing.
pub(crate) fn short(reason: &str) -> String {
    let reason = reason.trim();
    if reason.is_empty() { "mismatch".to_owned() } else { reason.chars().take(120).collect() }
}

/// A pod, by what no two pods share.
fn mark_id(worker: &WorkerRecord) -> String {
    let spec = &worker.spec;
    let uid = worker.pod_uid.as_deref().unwrap_or_default();
    let parts = [spec.context.as_str(), &spec.namespace, &spec.name, uid].join("\0");
    crate::key::hex(&Sha256::digest(parts.as_bytes()))
}
