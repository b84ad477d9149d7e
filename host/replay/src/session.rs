//! One call of a replay policy, as the host sees it: which pods and leases it may touch, and what became of them.
//!
//! Each method is one thing that the policy may ask for. The policy names a lease by a handle and a pod by its name; the
//! host looks both up in what it knows itself, so that a policy can't reach anything that wasn't given to it.

use crate::checks::{self, PodFault};
use crate::lease::{Lease, LeaseFacts, Proof, Stage};
use crate::live::{Leases, Live, now_ms};
use crate::profile::Profile;
use crate::record::{LeaseRecord, WorkerRecord};
use crate::services::Services;
use crate::standing::{Facts, Preparation};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use warmhold_control::api::ReplayState;
use warmhold_ledger::{
    Applied, ApplyError, Caller, Guard, Kind, Operation, Refusal, Row, RowFilter, Submission, Transition,
    TransitionKind, WorkerDraft, WorkerRequest,
};
use warmhold_plugin::Answered;
use warmhold_pods::{Backend, MetadataPatch, PodsError, Target};
use warmhold_protocol::WorkerKey;

/// A call to the control plane; the ledger's own time for a write is the same.
pub(crate) const CONTROL_LIMIT: Duration = Duration::from_secs(15);
/// Leases that one policy call may hold: one is usual, a policy that shards wants a few.
const MAX_LEASES: usize = 16;
/// What is under this prefix belongs to the host and its policies.
const OWN_PREFIX: &str = "warmhold.dev/";

/// Why the control plane said no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlError {
    /// With its status and stable code.
    Refused(u16, String),
    /// It gave no answer.
    Unreachable(String),
}

impl ControlError {
    fn refused(status: u16, code: impl Into<String>) -> Self {
        Self::Refused(status, code.into())
    }
}

impl std::fmt::Display for ControlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(status, code) => write!(f, "{status} {code}"),
            Self::Unreachable(why) => write!(f, "unreachable: {why}"),
        }
    }
}

impl From<ApplyError> for ControlError {
    fn from(error: ApplyError) -> Self {
        match error.status() {
            status @ 400..500 => Self::refused(status, error.code()),
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

/// What a call is for.
pub(crate) enum Purpose {
    /// Driving or settling a replay.
    Replay(Arc<Live>),
    /// Filling a slot.
    Prepare(Arc<Preparation>),
}

/// See the module.
pub(crate) struct Session {
    pub(crate) services: Arc<Services>,
    pub(crate) caller: Caller,
    pub(crate) profile: Arc<Profile>,
    pub(crate) backend: Arc<dyn Backend>,
    /// The workers that the policy was told of.
    pub(crate) workers: Vec<WorkerRecord>,
    pub(crate) purpose: Purpose,
}

impl Session {
    fn leases(&self) -> Option<&Leases> {
        match &self.purpose {
            Purpose::Replay(live) => Some(&live.leases),
            Purpose::Prepare(_) => None,
        }
    }

    /// The lease behind a handle of this call.
    pub(crate) fn lease(&self, handle: u64) -> Option<Arc<Lease>> {
        self.leases()?.get(handle)
    }

    fn held(&self, handle: u64) -> Result<Arc<Lease>, ControlError> {
        self.lease(handle).ok_or_else(|| ControlError::refused(409, "no-such-lease"))
    }

    pub(crate) async fn apply(&self, caller: &Caller, operation: Operation) -> Result<Applied, ApplyError> {
        let guard = Guard { worker_route: true, seen_generation: None };
        let deadline = Instant::now() + CONTROL_LIMIT;
        self.services.ledger.apply(Submission { operation, caller: caller.clone(), guard, deadline }).await
    }

    /// Keeps what a failure means in more words than the interface has.
    pub(crate) fn note(&self, what: String) {
        match &self.purpose {
            Purpose::Replay(live) => live.note(what),
            Purpose::Prepare(preparation) => preparation.note(what),
        }
    }

    // --- control ---

    /// Leases a worker.
    pub(crate) async fn acquire(
        &self,
        machine: &str,
        key: WorkerKey,
        run_id: String,
        attempt_id: String,
        ttl_ms: u64,
    ) -> Result<u64, ControlError> {
        let Purpose::Replay(live) = &self.purpose else { return Err(ControlError::refused(403, "no-lease-here")) };
        {
            let record = live.record();
            if record.run_id != run_id || record.attempt_id != attempt_id {
                return Err(ControlError::refused(403, "another-run"));
            }
            if live.leases.len() >= MAX_LEASES {
                return Err(ControlError::refused(429, "too-many-leases"));
            }
        }
        let ttl = Duration::from_millis(ttl_ms).min(self.profile.ttl).max(Duration::from_millis(1));
        // Counted from before the write: the host's end is never later than the ledger's.
        let taken = Instant::now();
        let requested_at = now_ms();
        let request = WorkerRequest {
            machine: Some(machine.to_owned()),
            key: to_ledger_key(&key),
            run_id: run_id.clone(),
            attempt_id: attempt_id.clone(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        };
        let applied = match self.apply(&self.caller, Operation::AcquireWorker(request)).await {
            Ok(applied) => applied,
            Err(error) => {
                match &error {
                    ApplyError::Uncertain(_) => live.uncertain.store(true, Ordering::Release),
                    ApplyError::Refused(Refusal::NoWarmWorker, _) => live.note(self.why_no_worker(&key).await),
                    _ => {}
                }
                return Err(error.into());
            }
        };
        let row = applied.row.ok_or_else(|| ControlError::Unreachable("the ledger answered no row".to_owned()))?;
        let attrs: Value = serde_json::from_str(&row.attrs)
            .map_err(|error| ControlError::Unreachable(format!("a row of the ledger can't be read: {error}")))?;
        let text = |name: &str| attrs.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(lease_id), Some(generation)) = (text("leaseId"), attrs.get("generation").and_then(whole)) else {
            return Err(ControlError::Unreachable("a leased row has no lease".to_owned()));
        };
        let facts = LeaseFacts {
            lease_id,
            worker_id: row.name.clone(),
            machine: row.machine.clone(),
            generation,
            run_id,
            attempt_id,
            pod_uid: text("podUid"),
            key,
            policy: applied.policy.to_string(),
            requested_at,
        };
        let worker = self.workers.iter().find(|worker| worker.worker_id == facts.worker_id);
        live.change(|record| {
            record.policies.lease = Some(facts.policy.clone());
            record.lease = Some(LeaseRecord {
                lease_id: facts.lease_id.clone(),
                worker_id: facts.worker_id.clone(),
                generation: facts.generation,
                pod_uid: facts.pod_uid.clone(),
                machine: facts.machine.clone(),
                container_id: worker.and_then(|worker| worker.container_id.clone()),
                place: worker.map(WorkerRecord::place),
            });
        });
        live.enter(ReplayState::Leased, now_ms().saturating_add(ttl_ms), Some(facts.worker_id.clone()));
        Ok(live.leases.add(Lease::new(facts, ttl, taken)))
    }

    /// What the workers with a key are doing, for a person who can't get one.
    async fn why_no_worker(&self, key: &WorkerKey) -> String {
        let ids: Vec<&str> = self
            .workers
            .iter()
            .filter(|worker| worker.spec.key == *key)
            .map(|worker| worker.worker_id.as_str())
            .collect();
        let Ok(rows) = self.services.worker_rows(Some(self.services.machine.clone())).await else {
            return String::new();
        };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for row in rows.iter().filter(|row| ids.contains(&row.name.as_str())) {
            let state = Facts::of(row).state;
            let state = if state == "idle" && row.expired(now_ms()) { "expired".to_owned() } else { state };
            *counts.entry(state).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        format!("the workers of this cut: {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") })
    }

    async fn transition(
        &self,
        lease: &Lease,
        caller: &Caller,
        kind: TransitionKind,
        ttl_ms: Option<u64>,
    ) -> Result<(), ControlError> {
        let transition = Transition {
            kind,
            worker_id: lease.facts.worker_id.clone(),
            lease_id: lease.facts.lease_id.clone(),
            generation: lease.facts.generation,
            ttl_ms,
            reason: None,
        };
        self.apply(caller, Operation::Transition(transition)).await?;
        Ok(())
    }

    /// Renews a lease.
    pub(crate) async fn renew(&self, handle: u64, ttl_ms: u64) -> Result<(), ControlError> {
        let lease = self.held(handle)?;
        let mut state = lease.inner.lock().await;
        let now = Instant::now();
        state.may_spend(now).map_err(|_| ControlError::refused(409, "lease-expired"))?;
        let ttl = Duration::from_millis(ttl_ms).min(self.profile.ttl).max(Duration::from_millis(1));
        let ttl_ms = u64::try_from(ttl.as_millis()).ok();
        self.transition(&lease, &self.caller, TransitionKind::Renew, ttl_ms).await?;
        state.ends = now + ttl;
        Ok(())
    }

    /// Gives a worker back to be cleaned.
    pub(crate) async fn release(&self, handle: u64) -> Result<(), ControlError> {
        let lease = self.held(handle)?;
        let mut state = lease.inner.lock().await;
        if state.stage != Stage::Fenced {
            return Err(ControlError::refused(409, "not-leased"));
        }
        self.transition(&lease, &self.caller, TransitionKind::Release, None).await?;
        state.stage = Stage::Released;
        Ok(())
    }

    /// Lets a worker serve again, if it is proven clean.
    pub(crate) async fn sanitize(&self, handle: u64) -> Result<(), ControlError> {
        let lease = self.held(handle)?;
        let mut state = lease.inner.lock().await;
        if let Err(why) = state.may_sanitize() {
            tracing::warn!(worker = %lease.facts.worker_id, %why, "a policy wanted to sanitize this worker");
            return Err(ControlError::refused(409, "not-proven-clean"));
        }
        if state.proof == Proof::Clean {
            let checked = match self.worker(&lease.facts.worker_id) {
                Some(worker) => self.check(worker, lease.facts.pod_uid.as_deref()).await.map(drop),
                None => Err(PodFault::Replaced("the worker isn't one of this call's".to_owned())),
            };
            if let Err(fault) = checked {
                state.proof = Proof::Dirty(fault.message().to_owned());
                return Err(ControlError::refused(409, fault.reason()));
            }
        }
        if lease.facts.machine != self.services.machine {
            return Err(ControlError::refused(403, "another-machine"));
        }
        self.transition(&lease, &self.services.machine_caller, TransitionKind::Sanitize, None).await?;
        state.stage = Stage::Sanitized;
        state.journal.end("sanitized", None);
        Ok(())
    }

    /// Takes a worker out for good. No policy is asked, and it is tried again until it holds.
    pub(crate) async fn quarantine(&self, handle: u64, reason: &str) -> Result<(), ControlError> {
        let lease = self.held(handle)?;
        self.services.quarantine_lease(&lease, reason).await
    }

    /// The rows of a worker as the control plane shows them.
    pub(crate) async fn worker_rows(&self, machine: &str, worker_id: &str) -> Result<Value, ControlError> {
        let filter = RowFilter {
            kind: Some(Kind::PodWorkerLease),
            machine: Some(machine.to_owned()),
            name: Some(worker_id.to_owned()),
        };
        let ledger = self.services.ledger.clone();
        let rows = tokio::task::spawn_blocking(move || ledger.rows(&filter, None, 16))
            .await
            .map_err(|error| ControlError::Unreachable(error.to_string()))?
            .map_err(|error| ControlError::Unreachable(error.to_string()))?;
        Ok(rows.rows.iter().map(shown).collect())
    }

    /// Registers the worker whose pod this call made.
    pub(crate) async fn register(
        &self,
        machine: &str,
        worker_id: &str,
        pod_uid: &str,
        key: &WorkerKey,
        ttl_ms: u64,
    ) -> Result<Value, ControlError> {
        let Purpose::Prepare(preparation) = &self.purpose else {
            return Err(ControlError::refused(403, "no-preparation"));
        };
        let record = preparation.record();
        if machine != record.machine || worker_id != record.worker_id || *key != record.spec.key {
            return Err(ControlError::refused(403, "another-worker"));
        }
        if record.pod_uid.as_deref() != Some(pod_uid) {
            return Err(ControlError::refused(403, "not-this-calls-pod"));
        }
        let pod = self
            .backend
            .get_pod(&preparation.target(), &record.spec.name)
            .await
            .map_err(|error| ControlError::Unreachable(error.to_string()))?;
        let Some(container) = checks::container(&pod) else { return Err(ControlError::refused(409, "pod-unready")) };
        preparation.saw_container(container);
        self.judge(&preparation.record(), None, &pod).await.map_err(|fault| {
            tracing::warn!(worker = %worker_id, fault = fault.message(), "a new pod isn't what was rendered");
            ControlError::refused(409, fault.reason())
        })?;
        // Before the row: whoever leases this worker must find its container's identity.
        self.services.save_worker(&preparation.record()).await?;
        // What a team configures counts, not a policy's default: an idle worker that expires early is a lost one.
        tracing::debug!(asked = ttl_ms, "the profile's idle time is registered");
        let idle_ttl = u64::try_from(self.profile.idle_ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 86_400_000);
        let draft = WorkerDraft {
            worker_id: worker_id.to_owned(),
            machine: machine.to_owned(),
            key: to_ledger_key(key),
            key_json: key_json(key).to_string().into(),
            pod_uid: Some(pod_uid.to_owned()),
            ttl_ms: idle_ttl,
        };
        let applied = self.apply(&self.services.machine_caller, Operation::RegisterWorker(draft)).await?;
        preparation.registered();
        applied
            .row
            .as_deref()
            .map(shown)
            .ok_or_else(|| ControlError::Unreachable("the ledger answered no row".to_owned()))
    }

    // --- pods ---

    fn worker(&self, worker_id: &str) -> Option<&WorkerRecord> {
        self.workers.iter().find(|worker| worker.worker_id == worker_id)
    }

    /// Whether this call may use a verb there: where its own profile's pods are, as far as the configuration grants it.
    pub(crate) fn granted(&self, at: &Target, verb: &str) -> Result<(), PodsError> {
        if at.context != self.profile.context || at.namespace != self.profile.namespace {
            return Err(PodsError::Denied(format!(
                "profile {} is for context {} and namespace {}, not {} and {}",
                self.profile.name, self.profile.context, self.profile.namespace, at.context, at.namespace
            )));
        }
        if !(self.services.grants)(at, verb) {
            return Err(PodsError::Denied(format!(
                "[grants.replay] doesn't grant {verb} in context {} and namespace {}",
                at.context, at.namespace
            )));
        }
        Ok(())
    }

    /// Creates the pod of the slot that is being filled.
    pub(crate) async fn create_pod(&self, at: &Target, manifest: &Value) -> Result<Value, PodsError> {
        self.granted(at, "create-pod")?;
        let Purpose::Prepare(preparation) = &self.purpose else {
            return Err(PodsError::Denied("only a preparation creates pods".to_owned()));
        };
        let record = preparation.record();
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str);
        if name != Some(record.spec.name.as_str()) || record.pod_uid.is_some() {
            return Err(PodsError::Denied(format!("this call makes the pod {}, once", record.spec.name)));
        }
        let pod = self.backend.create_pod(at, manifest).await?;
        let uid = checks::uid(&pod).ok_or_else(|| PodsError::Failed("the new pod has no UID".to_owned()))?;
        preparation.made(uid);
        // The pod is there whatever comes next: who answers for it must be durable before anybody builds on it.
        self.services
            .save_worker(&preparation.record())
            .await
            .map_err(|error| PodsError::Failed(format!("the new pod can't be recorded: {error}")))?;
        Ok(pod)
    }

    /// Changes own labels and annotations of the pod that a lease names.
    pub(crate) async fn patch_metadata(
        &self,
        handle: u64,
        at: &Target,
        pod: &str,
        labels: &Value,
        annotations: &Value,
    ) -> Result<(), PodsError> {
        self.granted(at, "patch-metadata")?;
        let lease = self.lease(handle).ok_or_else(|| PodsError::Denied("there is no such lease".to_owned()))?;
        let expected_uid = self.leased_pod(&lease, pod).map_err(PodsError::Denied)?;
        let patch = MetadataPatch {
            expected_uid,
            labels: MetadataPatch::changes(labels)?,
            annotations: MetadataPatch::changes(annotations)?,
        };
        if let Some(key) = patch.labels.keys().chain(patch.annotations.keys()).find(|key| !key.starts_with(OWN_PREFIX))
        {
            return Err(PodsError::Denied(format!("`{key}` isn't under {OWN_PREFIX}")));
        }
        self.backend.patch_metadata(at, pod, &patch).await?;
        lease.inner.lock().await.journal.start(lease.facts.pod_uid.as_deref());
        Ok(())
    }

    /// The UID that a lease names, if the pod is the one of the leased worker.
    pub(crate) fn leased_pod(&self, lease: &Lease, pod: &str) -> Result<String, String> {
        let uid = lease.facts.pod_uid.clone().ok_or("the leased worker has no pod")?;
        let worker = self
            .worker(&lease.facts.worker_id)
            .ok_or_else(|| format!("worker {} isn't one of this call's", lease.facts.worker_id))?;
        if worker.spec.name != pod {
            return Err(format!("the lease names pod {}, not {pod}", worker.spec.name));
        }
        Ok(uid)
    }

    /// Reads a worker's pod and compares it with what was prepared; answers the pod.
    pub(crate) async fn check(&self, worker: &WorkerRecord, leased_uid: Option<&str>) -> Result<Value, PodFault> {
        let at = Target { context: worker.spec.context.clone(), namespace: worker.spec.namespace.clone() };
        let pod = match self.backend.get_pod(&at, &worker.spec.name).await {
            Ok(pod) => pod,
            Err(PodsError::NotFound(what)) => return Err(PodFault::Replaced(format!("{what} doesn't exist any more"))),
            Err(error) => return Err(PodFault::Unready(error.to_string())),
        };
        self.judge(worker, leased_uid, &pod).await?;
        Ok(pod)
    }

    async fn judge(&self, worker: &WorkerRecord, leased_uid: Option<&str>, pod: &Value) -> Result<(), PodFault> {
        checks::identity(worker, leased_uid, pod)?;
        match self.services.manifest.verify(worker.spec.to_wit(), pod.to_string()).await {
            Ok(Answered { answer: Ok(_), policy }) => {
                if let Purpose::Replay(live) = &self.purpose {
                    live.change(|record| record.policies.manifest = Some(policy.to_string()));
                }
                Ok(())
            }
            Ok(Answered { answer: Err(drift), .. }) => {
                let shown: Vec<String> = drift
                    .iter()
                    .take(5)
                    .map(|difference| format!("{}: want {}, got {}", difference.path, difference.want, difference.got))
                    .collect();
                Err(PodFault::Drift(format!("pod {} isn't as rendered: {}", worker.spec.name, shown.join("; "))))
            }
            Err(fault) => Err(PodFault::Drift(format!("the manifest policy gave no answer: {fault}"))),
        }
    }
}

/// A whole number, in whichever way JSON shows it.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
    value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..9e15).contains(n)).map(|n| n as u64))
}

/// The ledger's type for the same four values.
pub(crate) fn to_ledger_key(key: &WorkerKey) -> warmhold_ledger::WorkerKey {
    warmhold_ledger::WorkerKey {
        context: key.context.clone(),
        image_digest: key.image_digest.clone(),
        lock_hash: key.lock_hash.clone(),
        architecture: key.architecture.clone(),
    }
}

/// A key as it is stored.
pub(crate) fn key_json(key: &WorkerKey) -> Value {
    json!({
        "context": key.context, "imageDigest": key.image_digest, "lockHash": key.lock_hash,
        "architecture": key.architecture,
    })
}

/// A worker's row as policies see it: without the lease, which is a credential.
fn shown(row: &Row) -> Value {
    let attrs: Value = serde_json::from_str(&row.attrs).unwrap_or_default();
    let visible: serde_json::Map<String, Value> = ["key", "state", "generation", "podUid", "idleTtlMs"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), attrs.get(name)?.clone())))
        .collect();
    let now = now_ms();
    json!({
        "id": row.id, "kind": row.kind.as_str(), "machine": row.machine, "name": row.name, "owner": row.owner,
        "attrs": visible, "observedAt": row.observed_at, "ttlMs": row.ttl_ms, "ageMs": row.age_ms(now),
        "expired": row.expired(now),
    })
}
