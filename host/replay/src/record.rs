//! What is durable of a replay and of a prepared worker: JSON documents in the ledger's file.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use warmhold_control::api::{HistoryEntry, ReplayState};
use warmhold_protocol::{FileResult, IsolationReport, WorkerKey};

/// Whether nothing happens to a replay in this state any more. Every other state has an owner (a daemon's instance)
/// and a deadline.
#[must_use]
pub(crate) fn is_final(state: ReplayState) -> bool {
    matches!(state, ReplayState::Finalized | ReplayState::Quarantined | ReplayState::Fallback)
}

/// The lease under which a replay ran. The whole lease id stays in the record: views show its last 8 characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseRecord {
    /// The lease's id.
    pub lease_id: String,
    /// The worker's id.
    pub worker_id: String,
    /// The lease's generation.
    pub generation: u64,
    /// The pod that it names.
    pub pod_uid: Option<String>,
    /// The machine that registered the worker.
    pub machine: String,
    /// The container as it was before the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Tier, slot and pod, where the worker is one of this machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// Which slot a worker fills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The tier's name.
    pub tier: String,
    /// From 1.
    pub slot: u32,
    /// The pod's name.
    pub pod: String,
}

/// The policies that decided a replay, as `NAME@sha256:DIGEST#GENERATION`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyTags {
    /// Who chose the worker.
    pub lease: Option<String>,
    /// Who judged the pod.
    pub manifest: Option<String>,
    /// Who drove the replay.
    pub replay: Option<String>,
}

/// A replay, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplayRecord {
    /// Made of owner, run and attempt: asking for the same again finds the same.
    pub id: String,
    /// Owner (hash) of the member who asked.
    pub owner: String,
    /// The daemon that drives it.
    pub instance: String,
    /// The profile's name.
    pub profile: String,
    /// The caller's run.
    pub run_id: String,
    /// The caller's attempt.
    pub attempt_id: String,
    /// 40 hex digits.
    pub cut_sha: String,
    /// A commit to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_sha: Option<String>,
    /// What was asked for.
    pub files: Vec<String>,
    /// The caller wants to give the verdict.
    pub keep: bool,
    /// Milliseconds since the epoch.
    pub deadline_at: u64,
    /// See [`ReplayState`].
    pub state: ReplayState,
    /// When the state's own time is over, milliseconds since the epoch; for people: nobody acts on another's clock.
    pub state_until: u64,
    /// Why it fell back or was quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// A verdict came in that the host believes.
    pub observed: bool,
    /// Every file that was asked for exited 0.
    pub passed: bool,
    /// Each file's result, from verdicts that the host believes.
    pub results: Vec<FileResult>,
    /// What the policy says of it, redacted by the view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRecord>,
    /// How the tests were kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationReport>,
    /// Who decided.
    pub policies: PolicyTags,
    /// What happened, in order.
    pub history: Vec<HistoryEntry>,
}

/// The kind under which replays are kept.
pub(crate) const REPLAYS: &str = "replay";
/// The kind under which prepared workers are kept.
pub(crate) const WORKERS: &str = "worker";
/// The kind under which workers are remembered whose pod is gone: their rows stay in the ledger for good.
pub(crate) const RETIRED: &str = "worker-retired";
/// The kind under which pods that may never be used again are kept, by context, namespace, name and UID.
pub(crate) const MARKS: &str = "pod-mark";

/// Where a prepared worker stands with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkerState {
    /// Its pod is being made; the instance in the record answers for it.
    Preparing,
    /// Registered.
    Standing,
    /// Its pod is gone, or was never made.
    Retired,
}

/// What a pod is to look like: the shape of the manifest policy's `pod-spec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSpec {
    /// The pod's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its context.
    pub context: String,
    /// Fresh for every preparation.
    pub worker_id: String,
    /// The image's reference.
    pub image: String,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// 40 hex digits.
    pub cut_sha: String,
    /// See [`WorkerKey`].
    pub key: WorkerKey,
    /// A quantity.
    pub memory_limit: Option<String>,
    /// See the profile.
    pub host_probe_url: String,
    /// See the profile.
    pub prod_probe_url: String,
    /// See the profile.
    pub source_mirror: Option<String>,
    /// Where init fetches the cut from.
    pub source: String,
    /// What installs it.
    pub install: Vec<String>,
}

/// A prepared worker, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkerRecord {
    /// The worker's id, used once, ever.
    pub worker_id: String,
    /// The profile's name.
    pub profile: String,
    /// The machine that it stands on.
    pub machine: String,
    /// The tier's name.
    pub tier: String,
    /// From 1.
    pub slot: u32,
    /// As it was when the pod was made: a later configuration doesn't turn a living pod into drift.
    pub spec: PodSpec,
    /// See [`WorkerState`].
    pub state: WorkerState,
    /// The daemon that prepares it.
    pub instance: String,
    /// The pod's UID, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The container when it was registered: another one has lost the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Restarts when it was registered.
    #[serde(default)]
    pub restart_count: u64,
    /// Milliseconds since the epoch.
    pub created_at: u64,
}

impl WorkerRecord {
    /// Its place.
    #[must_use]
    pub(crate) fn place(&self) -> Place {
        Place { tier: self.tier.clone(), slot: self.slot, pod: self.spec.name.clone() }
    }
}
