//! What the host and the worker in the pod say to each other.
//!
//! One request is one process: the host starts `warmhold-worker run` in the pod, writes one [`Command`] to its standard
//! input (framed with its length and SHA-256, see [`write_command`]), and reads [`Frame`]s from its standard output. The
//! last frame is the [`Verdict`]; anything else at the end of the stream means that nothing is known. Standard input
//! stays open for as long as the host lives: its end tells the worker that nobody waits any more.
//!
//! The host believes a verdict only when lease, generation, nonce and pod UID are those it sent and when every stream
//! has the length and the hash that the verdict gives. An exit status of the carrier proves nothing and isn't looked at.

mod command;
mod frame;
mod name;
mod verdict;

pub use command::{
    Command, CommandError, Isolation, MAX_COMMAND_BYTES, Probes, Rule, WorkerKey, hex, read_command, write_command,
};
pub use frame::{Frame, FrameError, FrameReader, MAX_FRAME_BYTES, MAX_VERDICT_BYTES, Stream, write_frame};
pub use name::{MAX_ARTIFACT_NAME_BYTES, is_artifact_name};
pub use verdict::{
    ArtifactDigest, FileReason, FileResult, IsolationLevel, IsolationReport, Refusal, StreamDigest, Verdict,
};

/// The only version of the protocol that is spoken.
pub const PROTOCOL: u32 = 1;

/// The environment profile that every request names.
pub const ENV_PROFILE: &str = "gate-v1";

/// Environment variables of the worker's container: the pod's identity, as the manifest policy renders it.
pub mod env {
    /// The worker's id; a command for another one is refused.
    pub const WORKER_ID: &str = "WARM_WORKER_ID";
    /// The cut (40 hex digits) that the source tree was made from.
    pub const CUT: &str = "WARM_CUT";
    /// The worker's key as JSON: `{"architecture","context","imageDigest","lockHash"}`.
    pub const KEY: &str = "WARM_KEY";
    /// The source tree, `/workspace/repo` in a pod.
    pub const REPO: &str = "WARM_REPO";
    /// Where requests get their private directories and where the highest generation is kept.
    pub const DATA: &str = "WARM_DATA";
    /// A probe that must answer before the tests run; absent or empty: none.
    pub const HOST_PROBE_URL: &str = "WARM_HOST_PROBE_URL";
    /// A probe that must not answer once the tests may run; absent or empty: none.
    pub const PROD_PROBE_URL: &str = "WARM_PROD_PROBE_URL";
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn key() -> WorkerKey {
        WorkerKey {
            context: "local".to_owned(),
            image_digest: format!("sha256:{}", "a".repeat(64)),
            lock_hash: "b".repeat(64),
            architecture: "amd64".to_owned(),
        }
    }

    pub(crate) fn command() -> Command {
        Command {
            protocol: PROTOCOL,
            lease_id: "lease".to_owned(),
            generation: 3,
            nonce: "nonce".to_owned(),
            pod_uid: "uid".to_owned(),
            worker_id: "worker".to_owned(),
            key: key(),
            run_id: "run".to_owned(),
            attempt_id: "1".to_owned(),
            cut_sha: "c".repeat(40),
            baseline_sha: None,
            env_profile: ENV_PROFILE.to_owned(),
            requested_at: 1,
            deadline_at: 2,
            budget_ms: 1,
            files: vec!["a.sh".to_owned()],
            rules: vec![Rule { pattern: "*".to_owned(), run: vec!["sh".to_owned(), "{file}".to_owned()] }],
            env: [("A".to_owned(), "B".to_owned())].into(),
            stream_limit: 1,
            probes: Probes::default(),
            isolation: Isolation::default(),
        }
    }

    pub(crate) fn verdict() -> Verdict {
        let digest = StreamDigest { bytes: 5, sha256: "d".repeat(64) };
        let file = FileResult {
            file: "a.sh".to_owned(),
            exit: Some(0),
            signal: None,
            reason: None,
            detail: None,
            duration_ms: 1,
            stdout: digest.clone(),
            stderr: digest.clone(),
            artifacts: vec![ArtifactDigest { suffix: "x".to_owned(), digest }],
        };
        Verdict {
            protocol: PROTOCOL,
            lease_id: "lease".to_owned(),
            generation: 3,
            nonce: "nonce".to_owned(),
            pod_uid: "uid".to_owned(),
            worker_id: "worker".to_owned(),
            key: key(),
            cut_sha: "c".repeat(40),
            refused: None,
            files: vec![file],
            isolation: IsolationReport { level: IsolationLevel::Full, why: Vec::new() },
            clean: true,
            unclean: Vec::new(),
            oom_kills: 0,
        }
    }
}
