//! Replays: what is asked, what is answered, and who runs them.

use crate::error::ApiError;
use async_trait::async_trait;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use warmhold_ledger::Caller;

/// What a caller asks for. Only the form has been looked at: paths, the cut and the deadline are judged by whoever runs
/// the replay, since bad ones are a `fallback` and not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"files": ["tests/words.sh"], "cutSha": "0123456789abcdef0123456789abcdef01234567"}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayAsk {
    /// Test files, relative to the repository.
    pub files: Vec<String>,
    /// The commit that the worker must hold (40 hex digits).
    pub cut_sha: String,
    /// The caller's run; made up when absent. Asking again with the same run and attempt answers the same replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = run)]
    pub run_id: Option<String>,
    /// The caller's attempt; `1` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = attempt)]
    pub attempt_id: Option<String>,
    /// A commit to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_sha: Option<String>,
    /// How long it may take, counted from now. More than the profile allows is what it allows.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "milliseconds")]
    #[schema(schema_with = any_whole)]
    pub deadline_ms: Option<u64>,
    /// Which profile; the default one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Leave it observed until the caller settles it.
    #[serde(default)]
    pub keep: bool,
}

/// A whole number, however large: numbers are doubles on their way here, and any that is beyond every limit means so.
fn milliseconds<'de, D: Deserializer<'de>>(given: D) -> Result<Option<u64>, D::Error> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: whole, and not below 0")]
    match Option::<f64>::deserialize(given)? {
        None => Ok(None),
        Some(number) if number >= 0.0 && number.fract() == 0.0 => Ok(Some(number as u64)),
        Some(number) => Err(D::Error::custom(format!("deadlineMs must be a whole number of 0 or more, not {number}"))),
    }
}

fn run() -> ObjectBuilder {
    name("The caller's run; made up when absent. Asking again with the same run and attempt answers the same replay.")
}

fn attempt() -> ObjectBuilder {
    name("The caller's attempt; `1` when absent.")
}

/// What whoever runs the replay takes as the name of a run or an attempt: something beside white space, and no NUL.
fn name(description: &str) -> ObjectBuilder {
    const PATTERN: &str = r"^[^\u0000]*[^\u0000\u0009-\u000D\u0020\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000][^\u0000]*$";
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .pattern(Some(PATTERN))
        .max_length(Some(200))
        .description(Some(description))
}

/// What [`milliseconds`] takes.
fn any_whole() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Integer, Type::Null]))
        .minimum(Some(0))
        .description(Some("How long it may take, counted from now. More than the profile allows is what it allows."))
}

/// Where a replay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReplayOutcome {
    /// The worker's verdict was valid.
    Observed,
    /// Nothing is known; `reason` says why.
    Fallback,
}

/// Length and digest of some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamView {
    /// How many.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
}

/// A file that a test left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// What its name ends in.
    pub suffix: String,
    /// How many bytes.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
}

/// What one test file did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileView {
    /// The file.
    pub file: String,
    /// Its exit code; null when it didn't exit by itself.
    #[schema(required = true)]
    pub exit: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub signal: Option<i32>,
    /// Why it has no exit code of its own: `timeout`, `output-limit`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// More about the reason, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub detail: Option<String>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IsolationView {
    /// `full`: own user and own network proof.
    pub level: IsolationLevel,
    /// What is missing, a sentence each; empty when full.
    pub why: Vec<String>,
}

/// See [`IsolationView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the word that it stands for")]
pub enum IsolationLevel {
    Full,
    Reduced,
}

/// Who decided, each as `NAME@sha256:DIGEST#GENERATION`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayPolicies {
    /// The lease policy.
    pub lease: String,
    /// The manifest policy.
    pub manifest: String,
    /// The replay policy.
    pub replay: String,
}

/// One step of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryEntry {
    /// When.
    pub at: u64,
    /// Into which state.
    pub state: ReplayState,
    /// What there is to say about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// A replay as callers see it; free of secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    #[schema(nullable = false)]
    pub outcome: Option<ReplayOutcome>,
    /// The stable reason of a fallback or a quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// The reason for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub detail: Option<String>,
    /// Every file exited 0.
    pub passed: bool,
    /// In the order that was asked for.
    pub files: Vec<FileView>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub worker: Option<ReplayWorker>,
    /// How it was kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub isolation: Option<IsolationView>,
    /// Who decided.
    pub policies: ReplayPolicies,
    /// What happened, oldest first.
    pub history: Vec<HistoryEntry>,
}

/// Standard output or standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the word that it stands for")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Progress of a running replay: one line of `application/x-ndjson` each, told apart by `event`. The last line is a
/// `result` or an `error`, written by this crate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
                detail: None,
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
