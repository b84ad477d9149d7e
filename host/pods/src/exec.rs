//! One command in a pod: what is asked and what comes back.

use crate::Target;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::Instant;
use warmhold_protocol::{Command, Stream, StreamDigest, Verdict};

/// How much a worker may send. All in bytes where not said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One stream of one file. The worker itself ends a file at the command's `stream_limit`; this is for one that
    /// doesn't, and so has a margin.
    pub stream: u64,
    /// One artifact.
    pub artifact: u64,
    /// Artifacts of the whole command, their number.
    pub artifacts: usize,
    /// Everything on the wire.
    pub total: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self { stream: 65 * MIB, artifact: 65 * MIB, artifacts: 4096, total: 1024 * MIB }
    }
}

/// What happened while a command runs, for people who wait. Borrowed from the stream: take what you need, quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The file with this index began.
    Began {
        /// Index into the command's files.
        file: u32,
    },
    /// Bytes of a stream arrived. They are not proven yet: only the reply is.
    Output {
        /// Index into the command's files.
        file: u32,
        /// Which stream.
        stream: Stream,
        /// What arrived.
        bytes: &'a [u8],
        /// Bytes of this stream so far, these included.
        so_far: u64,
    },
}

/// Is told of progress; must not block.
pub type ProgressSink = Arc<dyn Fn(Progress<'_>) + Send + Sync>;

/// One command for one pod.
#[derive(Clone)]
pub struct ExecRequest {
    /// Where the pod is.
    pub target: Target,
    /// Its name. Its UID is the command's `pod_uid`.
    pub pod: String,
    /// The container in it.
    pub container: String,
    /// What is started there, `["warmhold-worker", "run"]`.
    pub argv: Vec<String>,
    /// Goes onto its standard input.
    pub command: Command,
    /// When everything of it is killed.
    pub deadline: Instant,
    /// An existing private directory of the caller's, where streams and artifacts are written. It stays the caller's,
    /// with whatever was written, whether the call succeeds or not.
    pub sink: PathBuf,
    /// See [`Limits`].
    pub limits: Limits,
    /// See [`Progress`].
    pub progress: Option<ProgressSink>,
}

impl fmt::Debug for ExecRequest {
    /// Without the command: its nonce is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecRequest")
            .field("target", &self.target)
            .field("pod", &self.pod)
            .field("container", &self.container)
            .field("argv", &self.argv)
            .field("sink", &self.sink)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Bytes that arrived, written to a file and hashed here; equal to what the verdict says of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The file in the sink.
    pub path: PathBuf,
    /// Length and hash, computed from what arrived.
    pub digest: StreamDigest,
}

/// An artifact that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its path under the test's artifact directory: relative, without `.` and `..`.
    pub suffix: String,
    /// Its bytes. The file's name in the sink is a number, not the suffix: tests choose suffixes.
    pub received: Received,
}

/// What arrived of one test file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedFile {
    /// The path as the command names it.
    pub file: String,
    /// Standard output.
    pub stdout: Received,
    /// Standard error.
    pub stderr: Received,
    /// In the verdict's order.
    pub artifacts: Vec<Artifact>,
}

/// How the carrier of the command ended. It proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierExit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A proven answer.
#[derive(Clone, Debug)]
pub struct ExecReply {
    /// For this command, this lease and this pod; every length and hash in it was computed again from what arrived.
    /// Where processes of the request were still found after the worker's end, `clean` is set to false here and
    /// `unclean` says so.
    pub verdict: Verdict,
    /// One for each file of the command, in its order; empty when the worker refused.
    pub files: Vec<ReceivedFile>,
    /// For information only.
    pub exit: Option<CarrierExit>,
}
