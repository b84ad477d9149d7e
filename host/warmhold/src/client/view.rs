//! What people are shown of the daemon's answers. Scripts get the answers themselves (`--json`); here a field that a
//! newer or older daemon doesn't have is left empty.

use serde::Deserialize;

/// A replay, see the specification's object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Replay {
    pub id: String,
    pub run_id: String,
    pub attempt_id: String,
    pub cut_sha: String,
    pub state: String,
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub detail: Option<String>,
    pub passed: bool,
    pub files: Vec<File>,
    pub worker: Option<ReplayWorker>,
    pub isolation: Option<Isolation>,
    pub policies: Policies,
    pub history: Vec<Step>,
}

/// One file of a replay.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct File {
    pub file: String,
    pub exit: Option<i64>,
    pub signal: Option<i64>,
    pub reason: Option<String>,
    pub detail: Option<String>,
    pub duration_ms: u64,
}

impl File {
    /// Whether it ran and exited 0.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.exit == Some(0) && self.signal.is_none() && self.reason.is_none()
    }

    /// How it ended: `exit 1`, `signal 9`, `timeout`.
    #[must_use]
    pub fn ending(&self) -> String {
        match (&self.reason, self.signal, self.exit) {
            (Some(reason), ..) => crate::term::harmless(reason),
            (None, Some(signal), _) => format!("signal {signal}"),
            (None, None, Some(exit)) => format!("exit {exit}"),
            (None, None, None) => "no exit code".to_owned(),
        }
    }
}

/// The worker of a replay.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct ReplayWorker {
    pub id: String,
    pub machine: String,
    pub tier: String,
    pub slot: u64,
    pub pod: String,
    pub pod_uid: String,
    pub container_id: String,
    pub generation: u64,
    pub lease: String,
}

/// How far the tests were kept apart.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Isolation {
    pub level: String,
    pub why: Vec<String>,
}

/// The policies that decided.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Policies {
    pub lease: String,
    pub manifest: String,
    pub replay: String,
}

/// One step of a replay's history.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Step {
    pub at: u64,
    pub state: String,
    pub note: Option<String>,
}

/// A standing worker.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Worker {
    pub worker_id: String,
    pub machine: String,
    pub tier: Option<String>,
    pub slot: Option<u64>,
    pub cut_sha: Option<String>,
    pub state: String,
    pub generation: u64,
    pub pod_uid: Option<String>,
    pub age_ms: u64,
    pub expired: bool,
    pub reason: Option<String>,
}

/// What became of one slot that was to be prepared.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Prepared {
    pub worker_id: String,
    pub pod: String,
    pub pod_uid: String,
    pub prepared: bool,
    pub reason: Option<String>,
}

/// A generation of a policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are those of the documented object")]
pub struct Policy {
    pub slot: String,
    pub name: String,
    pub version: String,
    pub digest: String,
    pub generation: u64,
    pub state: String,
    pub calls: u64,
    pub faults: u64,
    pub first_fault: Option<String>,
}
