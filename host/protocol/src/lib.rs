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
mod verdict;

pub use command::{
    Command, CommandError, Isolation, MAX_COMMAND_BYTES, Probes, Rule, WorkerKey, read_command, write_command,
};
pub use frame::{Frame, FrameError, FrameReader, MAX_FRAME_BYTES, Stream, write_frame};
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
