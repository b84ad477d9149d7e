//! The JSON that travels on the routes that the original doesn't have, and the three services behind them.
//!
//! Field names and shapes are the contract with scripts: the same types are printed by the command line with `--json`.
//! Times are milliseconds since the Unix epoch, lengths of time are milliseconds, digests are SHA-256 in hex.

use crate::error::ApiError;
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use tokio::sync::{mpsc, oneshot};
use warmhold_ledger::Caller;

/// What a caller asks for. Only the form has been looked at: paths, the cut and the deadline are judged by whoever runs
/// the replay, since bad ones are a `fallback` and not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayAsk {
    /// Test files, relative to the repository.
    pub files: Vec<String>,
    /// The commit that the worker must hold (40 hex digits).
    pub cut_sha: String,
    /// The caller's run; made up when absent. Asking again with the same run and attempt answers the same replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The caller's attempt; `1` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
    /// A commit to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_sha: Option<String>,
    /// How long it may take, counted from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Which profile; the default one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Leave it observed until the caller settles it.
    #[serde(default)]
    pub keep: bool,
}

/// Where a replay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the states of the specification, by name")]
pub enum ReplayState {
    Acquiring,
    Leased,
    Executing,
    Observed,
    Finalized,
    Quarantined,
    Fallback,
}

impl ReplayState {
    /// The name that travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquiring => "acquiring",
            Self::Leased => "leased",
            Self::Executing => "executing",
            Self::Observed => "observed",
            Self::Finalized => "finalized",
            Self::Quarantined => "quarantined",
            Self::Fallback => "fallback",
        }
    }
}

/// Whether a result was observed, or the caller must run the tests in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayOutcome {
    /// The worker's verdict was valid.
    Observed,
    /// Nothing is known; `reason` says why.
    Fallback,
}

/// Length and digest of some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamView {
    /// How many.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
}

/// A file that a test left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactView {
    /// What its name ends in.
    pub suffix: String,
    /// How many bytes.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
}

/// What one test file did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileView {
    /// The file.
    pub file: String,
    /// Its exit code; null when it didn't exit by itself.
    pub exit: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it has no exit code of its own: `timeout`, `output-limit`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
    /// Its standard output.
    pub stdout: StreamView,
    /// Its standard error.
    pub stderr: StreamView,
    /// What it left.
    pub artifacts: Vec<ArtifactView>,
}

/// The worker that a replay ran in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayWorker {
    /// Its id.
    pub id: String,
    /// Its machine.
    pub machine: String,
    /// Its tier.
    pub tier: String,
    /// Its slot within the tier.
    pub slot: u32,
    /// Its pod's name.
    pub pod: String,
    /// Its pod's UID.
    pub pod_uid: String,
    /// Its container.
    pub container_id: String,
    /// The lease's generation.
    pub generation: u64,
    /// The last 8 characters of the lease's id.
    pub lease: String,
}

/// How far the tests were kept apart from everything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationView {
    /// `full`: own user and own network proof.
    pub level: IsolationLevel,
    /// What is missing, a sentence each; empty when full.
    pub why: Vec<String>,
}

/// See [`IsolationView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the word that it stands for")]
pub enum IsolationLevel {
    Full,
    Reduced,
}

/// Who decided, each as `NAME@sha256:DIGEST#GENERATION`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayPolicies {
    /// The lease policy.
    pub lease: String,
    /// The manifest policy.
    pub manifest: String,
    /// The replay policy.
    pub replay: String,
}

/// One step of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When.
    pub at: u64,
    /// Into which state.
    pub state: ReplayState,
    /// What there is to say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A replay as callers see it; free of secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayView {
    /// The daemon's name for it.
    pub id: String,
    /// The caller's run.
    pub run_id: String,
    /// The caller's attempt.
    pub attempt_id: String,
    /// The commit.
    pub cut_sha: String,
    /// Where it stands.
    pub state: ReplayState,
    /// How it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ReplayOutcome>,
    /// The stable reason of a fallback or a quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Every file exited 0.
    pub passed: bool,
    /// In the order that was asked for.
    pub files: Vec<FileView>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<ReplayWorker>,
    /// How it was kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationView>,
    /// Who decided.
    pub policies: ReplayPolicies,
    /// What happened, oldest first.
    pub history: Vec<HistoryEntry>,
}

/// Standard output or standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the word that it stands for")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Progress of a running replay: one line of `application/x-ndjson` each, told apart by `event`. The last line is a
/// `result` or an `error`, written by this crate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ReplayEvent {
    /// It came into a state.
    State(HistoryEntry),
    /// A file is done.
    File(FileView),
    /// A test wrote something. Bytes that aren't UTF-8 are shown as U+FFFD; the digests in `file` are of the true bytes.
    Output {
        /// By which file.
        file: String,
        /// Where.
        stream: OutputStream,
        /// What.
        text: String,
    },
}

/// A replay that was started, or one that already runs.
pub struct ReplayRun {
    /// The daemon's name for it.
    pub id: String,
    /// Progress. The sender must never wait for the reader (`try_send`, and drop what doesn't fit): the reader is a
    /// client's connection, may be slow, and may be gone. Everything that counts is in the result.
    pub events: mpsc::Receiver<ReplayEvent>,
    /// The replay once it is observed with `keep`, settled, or fallen back. A dropped sender reads as a daemon that
    /// stops.
    pub result: oneshot::Receiver<Result<ReplayView, ApiError>>,
}

/// What a caller says of an observed replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    /// The result is right; the worker may be cleaned and used again.
    Finalize,
    /// It isn't; the worker must not be used again.
    Quarantine {
        /// Why, at most 120 characters; `mismatch` when empty.
        reason: String,
    },
}

/// Runs replays and remembers them. A client that goes away drops its [`ReplayRun`]; that must not cancel the replay.
#[async_trait]
pub trait Replays: Send + Sync + 'static {
    /// Starts a replay, or joins the one with the same run and attempt.
    ///
    /// # Errors
    /// Nothing was started: too many run already, the run and attempt belong to somebody else, the ledger refuses.
    async fn start(&self, caller: &Caller, ask: ReplayAsk) -> Result<ReplayRun, ApiError>;

    /// Replays, newest first, at most `limit`, older than the one named `before`.
    ///
    /// # Errors
    /// The ledger couldn't be read.
    async fn list(&self, before: Option<&str>, limit: usize) -> Result<Vec<ReplayView>, ApiError>;

    /// One replay; None: there is none of this name.
    ///
    /// # Errors
    /// The ledger couldn't be read.
    async fn get(&self, id: &str) -> Result<Option<ReplayView>, ApiError>;

    /// The verdict of the caller who asked for it.
    ///
    /// # Errors
    /// No such replay (404 `not-found`), somebody else's (403 `not-owner`), not observed (409), or the ledger refuses.
    async fn settle(&self, caller: &Caller, id: &str, verdict: Settle) -> Result<ReplayView, ApiError>;
}

/// Which slots to fill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrepareAsk {
    /// Which profile; the default one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The commit, as git names it; `HEAD` of the profile's source when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// How many workers; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// What became of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The worker's id.
    pub worker_id: String,
    /// Its pod's name.
    pub pod: String,
    /// Its pod's UID; empty when there is no pod.
    pub pod_uid: String,
    /// Whether it can be leased now.
    pub prepared: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A standing worker. What only its own daemon knows is null for a worker of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Its id.
    pub worker_id: String,
    /// Its machine.
    pub machine: String,
    /// Its tier.
    pub tier: Option<String>,
    /// Its slot within the tier.
    pub slot: Option<u32>,
    /// The commit that it holds.
    pub cut_sha: Option<String>,
    /// `idle`, `leased`, `sanitizing` or `quarantined`.
    pub state: String,
    /// How often it was leased.
    pub generation: u64,
    /// Its pod's UID.
    pub pod_uid: Option<String>,
    /// How old its row is.
    pub age_ms: u64,
    /// Whether the row's time to live is over.
    pub expired: bool,
    /// Why it is where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Keeps standing workers.
#[async_trait]
pub trait Workers: Send + Sync + 'static {
    /// Fills slots; answers when each is filled or has failed.
    ///
    /// # Errors
    /// Nothing was tried: unknown profile or commit, no quota left.
    async fn prepare(&self, ask: PrepareAsk) -> Result<Vec<Prepared>, ApiError>;

    /// Every worker in the ledger.
    ///
    /// # Errors
    /// The ledger couldn't be read.
    async fn list(&self) -> Result<Vec<WorkerView>, ApiError>;

    /// Takes a worker's pod away. None: there is no such worker.
    ///
    /// # Errors
    /// It is leased, or not this daemon's.
    async fn remove(&self, id: &str) -> Result<Option<WorkerView>, ApiError>;

    /// Takes a worker out for good, an idle one too. None: there is no such worker.
    ///
    /// # Errors
    /// It is quarantined already, or the ledger can't be written.
    async fn quarantine(&self, id: &str, reason: &str) -> Result<Option<WorkerView>, ApiError>;
}

/// The places for policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the word that it stands for")]
pub enum PolicySlot {
    Lease,
    Manifest,
    Replay,
}

impl PolicySlot {
    /// Every slot.
    pub const ALL: [Self; 3] = [Self::Lease, Self::Manifest, Self::Replay];

    /// The name that travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Manifest => "manifest",
            Self::Replay => "replay",
        }
    }

    /// The slot with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|slot| slot.as_str() == name)
    }
}

impl fmt::Display for PolicySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a loaded policy is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyState {
    /// It decides.
    Serving,
    /// It can be rolled back to.
    Kept,
    /// It failed too often.
    Bad,
}

/// One loaded policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyView {
    /// Where.
    pub slot: PolicySlot,
    /// What it calls itself.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// Counts the loads of this slot.
    pub generation: u64,
    /// What it is good for.
    pub state: PolicyState,
    /// How often it was called.
    pub calls: u64,
    /// How often it failed.
    pub faults: u64,
    /// How it failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_fault: Option<String>,
}

/// Loads policies and says which serve.
#[async_trait]
pub trait Policies: Send + Sync + 'static {
    /// Every slot's generations, serving ones first within their slot.
    ///
    /// # Errors
    /// The state couldn't be read.
    async fn list(&self) -> Result<Vec<PolicyView>, ApiError>;

    /// Checks and serves a component; the one before goes on serving when this fails.
    ///
    /// # Errors
    /// The whole refusal: what was expected, what was found and how to mend it go into the error with [`ApiError::with`], as
    /// `expected`, `found` and `fix`.
    async fn load(&self, slot: PolicySlot, component: Bytes) -> Result<PolicyView, ApiError>;

    /// Serves the last good generation before this one.
    ///
    /// # Errors
    /// There is none.
    async fn rollback(&self, slot: PolicySlot) -> Result<PolicyView, ApiError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_replay_has_the_shape_that_is_documented() {
        let view = ReplayView {
            id: "r".into(),
            run_id: "run".into(),
            attempt_id: "1".into(),
            cut_sha: "c".repeat(40),
            state: ReplayState::Finalized,
            outcome: Some(ReplayOutcome::Observed),
            reason: None,
            detail: None,
            passed: false,
            files: vec![FileView {
                file: "a.sh".into(),
                exit: None,
                signal: Some(9),
                reason: Some("timeout".into()),
                duration_ms: 5,
                stdout: StreamView { bytes: 1, sha256: "s".into() },
                stderr: StreamView::default(),
                artifacts: vec![ArtifactView { suffix: ".xml".into(), bytes: 2, sha256: "t".into() }],
            }],
            worker: None,
            isolation: Some(IsolationView { level: IsolationLevel::Reduced, why: vec!["no root".into()] }),
            policies: ReplayPolicies::default(),
            history: vec![HistoryEntry { at: 1, state: ReplayState::Acquiring, note: None }],
        };
        assert_eq!(
            serde_json::to_value(&view).unwrap(),
            json!({
                "id": "r", "runId": "run", "attemptId": "1", "cutSha": "c".repeat(40), "state": "finalized",
                "outcome": "observed", "passed": false,
                "files": [{"file": "a.sh", "exit": null, "signal": 9, "reason": "timeout", "durationMs": 5,
                    "stdout": {"bytes": 1, "sha256": "s"}, "stderr": {"bytes": 0, "sha256": ""},
                    "artifacts": [{"suffix": ".xml", "bytes": 2, "sha256": "t"}]}],
                "isolation": {"level": "reduced", "why": ["no root"]},
                "policies": {"lease": "", "manifest": "", "replay": ""},
                "history": [{"at": 1, "state": "acquiring"}],
            })
        );
        let again: ReplayView = serde_json::from_value(serde_json::to_value(&view).unwrap()).unwrap();
        assert_eq!(again, view);
    }

    #[test]
    fn events_are_told_apart_by_one_field() {
        let state = ReplayEvent::State(HistoryEntry { at: 3, state: ReplayState::Leased, note: Some("w1".into()) });
        assert_eq!(
            serde_json::to_value(&state).unwrap(),
            json!({"event": "state", "at": 3, "state": "leased", "note": "w1"})
        );
        let output = ReplayEvent::Output { file: "a.sh".into(), stream: OutputStream::Stderr, text: "oops\n".into() };
        assert_eq!(
            serde_json::to_value(&output).unwrap(),
            json!({"event": "output", "file": "a.sh", "stream": "stderr", "text": "oops\n"})
        );
    }

    #[test]
    fn a_misspelt_field_of_a_request_is_named() {
        let error =
            serde_json::from_value::<ReplayAsk>(json!({"files": [], "cutSha": "x", "cutsha": "y"})).unwrap_err();
        assert!(error.to_string().contains("cutsha"), "{error}");
    }
}
