//! What a worker's row says in its attributes.

use crate::json;
use crate::row::{Instant, Kind, Row, WorkerKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a worker stands. The set is closed: clients of the original know these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Clean, and nobody's.
    Idle,
    /// Somebody's, until it is released or quarantined; expiry alone frees nothing.
    Leased,
    /// Given back, not yet proven clean.
    Sanitizing,
    /// Out, for good.
    Quarantined,
}

impl WorkerState {
    /// The name that travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Leased => "leased",
            Self::Sanitizing => "sanitizing",
            Self::Quarantined => "quarantined",
        }
    }
}

/// The attributes of a worker's row that have a meaning here. A row may hold more; the fence keeps it as it is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerFacts {
    /// Where it stands.
    pub state: WorkerState,
    /// How often it was leased.
    pub generation: u64,
    /// What it can stand in for.
    pub key: WorkerKey,
    /// For how long it counts when it is idle, milliseconds.
    pub idle_ttl_ms: f64,
    /// The pod that it is, where its machine said so.
    #[serde(default)]
    pub pod_uid: Option<String>,
    /// The lease; kept while sanitizing and quarantined.
    #[serde(default)]
    pub lease_id: Option<String>,
    /// Whose lease it is.
    #[serde(default)]
    pub lease_owner: Option<String>,
    /// The holder's run.
    #[serde(default)]
    pub run_id: Option<String>,
    /// The holder's attempt.
    #[serde(default)]
    pub attempt_id: Option<String>,
    /// The reason of the last transition that gave one.
    #[serde(default)]
    pub reason: Option<String>,
}

impl WorkerFacts {
    /// The facts of a row; none when it isn't a worker's row or isn't one that this version can read.
    #[must_use]
    pub fn of(row: &Row) -> Option<Self> {
        if row.kind != Kind::PodWorkerLease {
            return None;
        }
        serde_json::from_str(&row.attrs).ok()
    }

    /// Whether it can be leased for this key at `now`.
    #[must_use]
    pub fn is_free(&self, row: &Row, key: &WorkerKey, now: Instant) -> bool {
        self.state == WorkerState::Idle && self.key == *key && !row.expired(now)
    }
}

/// The id of a worker's row.
#[must_use]
pub fn worker_row_id(worker_id: &str) -> String {
    format!("{WORKER_PREFIX}{worker_id}")
}

/// A worker's id: `[a-zA-Z0-9][a-zA-Z0-9._-]{0,95}`.
#[must_use]
pub fn is_worker_id(id: &str) -> bool {
    let mut bytes = id.bytes();
    id.len() <= 96
        && bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// The id of a port's row.
#[must_use]
pub fn port_row_id(port: u16) -> String {
    format!("{PORT_PREFIX}{port}")
}

/// How the ids of workers' rows begin.
pub const WORKER_PREFIX: &str = "pod-worker-lease:";
/// How the ids of ports' rows begin.
pub const PORT_PREFIX: &str = "port-lease:";

/// A port's lease id.
pub(crate) fn port_lease_id(row: &Row) -> Option<String> {
    let attrs = json::parse_object(row.attrs.as_ref(), json::Duplicates::Refuse).ok()?;
    attrs.get("leaseId").and_then(Value::as_str).map(str::to_owned)
}
