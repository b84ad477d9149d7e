//! What the worker says at the end, and what the host believes.

use crate::WorkerKey;
use serde::{Deserialize, Serialize};

/// Length and hash of a stream or an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDigest {
    /// Bytes.
    pub bytes: u64,
    /// SHA-256, 64 hex digits.
    pub sha256: String,
}

/// A file that a test left in its artifact directory (`$WARM_ARTIFACTS`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactDigest {
    /// Its path under the artifact directory.
    pub suffix: String,
    /// Length and hash of the bytes that were sent.
    #[serde(flatten)]
    pub digest: StreamDigest,
}

/// Why a file has no ordinary exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileReason {
    /// The deadline came while it ran.
    Timeout,
    /// One of its streams passed the limit; it was ended.
    OutputLimit,
    /// No rule of the profile matches its path.
    NoRule,
    /// The file doesn't exist in the tree at this cut.
    Missing,
    /// Its program couldn't be started.
    NotStarted,
    /// An earlier file used up the deadline.
    NotRun,
    /// The kernel ended it for want of memory.
    OutOfMemory,
}

/// One test file's outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileResult {
    /// The path as it was asked for.
    pub file: String,
    /// The exit code; none when a signal or a reason ended it.
    pub exit: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// See [`FileReason`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FileReason>,
    /// What a person should know about the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Wall time.
    pub duration_ms: u64,
    /// Standard output as it was sent.
    pub stdout: StreamDigest,
    /// Standard error as it was sent.
    pub stderr: StreamDigest,
    /// What it left, in path order.
    pub artifacts: Vec<ArtifactDigest>,
}

/// Whether the tests were kept apart as far as this design can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationLevel {
    /// A user of their own and a network proven closed.
    Full,
    /// Something is missing; the report says what.
    Reduced,
}

/// See [`IsolationLevel`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationReport {
    /// Full or reduced.
    pub level: IsolationLevel,
    /// One sentence for each thing that is missing.
    pub why: Vec<String>,
}

/// Why the worker ran nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A stable code, in the order in which they are looked for: `wrong-protocol`, `wrong-worker`, `wrong-key`,
    /// `wrong-cut`, `wrong-env-profile`, `busy`, `stale-generation`, `deadline-passed`, `bad-file`, `bad-rule`,
    /// `bad-env`, `bad-isolation`, `unclean` (an earlier request left something), `host-probe-failed`,
    /// `prod-probe-answered`; and `io` at any point.
    pub code: String,
    /// For a person.
    pub message: String,
}

/// The last record of a request. Nothing else that comes out of a pod is believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// The command's.
    pub lease_id: String,
    /// The command's.
    pub generation: u64,
    /// The command's.
    pub nonce: String,
    /// The command's.
    pub pod_uid: String,
    /// The worker's own.
    pub worker_id: String,
    /// The worker's own.
    pub key: WorkerKey,
    /// The worker's own: the cut that its tree was made from.
    pub cut_sha: String,
    /// Set when nothing ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// In the order of the command; empty when refused.
    pub files: Vec<FileResult>,
    /// See [`IsolationReport`].
    pub isolation: IsolationReport,
    /// No process of the request is left, its directories are gone and the base tree is as it was.
    pub clean: bool,
    /// What isn't clean, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unclean: Vec<String>,
    /// The container's own kernel told of memory kills during the request.
    #[serde(default)]
    pub oom_kills: u64,
}

impl Verdict {
    /// Whether every file ran and exited 0.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.refused.is_none()
            && !self.files.is_empty()
            && self.files.iter().all(|file| file.exit == Some(0) && file.signal.is_none() && file.reason.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::verdict;

    #[test]
    fn only_a_verdict_of_files_that_all_exited_0_has_passed() {
        assert!(verdict().passed());
        let changes: [fn(&mut Verdict); 6] = [
            |verdict| verdict.files.clear(),
            |verdict| verdict.refused = Some(Refusal { code: "io".to_owned(), message: String::new() }),
            |verdict| verdict.files[0].exit = Some(1),
            |verdict| verdict.files[0].exit = None,
            |verdict| verdict.files[0].signal = Some(9),
            |verdict| verdict.files[0].reason = Some(FileReason::Timeout),
        ];
        for change in changes {
            let mut changed = verdict();
            change(&mut changed);
            assert!(!changed.passed(), "{changed:?}");
        }
    }

    #[test]
    fn the_words_of_the_record_are_contract() {
        let mut verdict = verdict();
        verdict.files[0].reason = Some(FileReason::OutputLimit);
        let text = serde_json::to_value(&verdict).unwrap();
        assert_eq!(text["files"][0]["reason"], "output-limit");
        let artifact = serde_json::json!({"suffix": "x", "bytes": 5, "sha256": "d".repeat(64)});
        assert_eq!(text["files"][0]["artifacts"][0], artifact);
        assert_eq!(text["isolation"], serde_json::json!({"level": "full", "why": []}));
        assert_eq!(text["podUid"], "uid");
        assert_eq!(serde_json::from_value::<Verdict>(text).unwrap(), verdict);
    }
}
