//! The one message from host to worker.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

/// A command may name many files, but it is not a place for data.
pub const MAX_COMMAND_BYTES: usize = 4 * 1024 * 1024;

/// Four values; two workers are interchangeable when all are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerKey {
    /// The cluster context; `local` for local pods.
    pub context: String,
    /// `sha256:` and 64 hex digits of the image, or of the worker binary for local pods.
    pub image_digest: String,
    /// SHA-256 over the cut, the install argv and the lock files.
    pub lock_hash: String,
    /// `amd64` or `arm64`, as registries name it.
    pub architecture: String,
}

/// How files whose path matches a glob are run. An argv, never a shell string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A glob over the file's path relative to the tree; `*` doesn't stop at `/`, so `*.sh` matches at any depth.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The argv; `{file}` inside an argument stands for the file's path.
    pub run: Vec<String>,
}

/// Addresses that prove where the tests run. Both are `http://IP:PORT/path`: a static binary resolves no names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probes {
    /// Must answer before isolation; overrides the pod's own environment when set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Must not answer under isolation; overrides the pod's own environment when set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prod: Option<String>,
}

/// What the host asks the worker to do to keep the tests apart. The verdict says what was really done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Isolation {
    /// The user (and group) id that the tests get where the worker is root; none: the worker's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Make a network namespace with nothing but loopback where the worker may (local pods). In a cluster the pod's
    /// network policy does that, and the probes prove it.
    #[serde(default)]
    pub private_network: bool,
    /// Directories that the tests must not see (the daemon's state), hidden with Landlock where the worker isn't root.
    #[serde(default)]
    pub hide: Vec<String>,
}

/// One request, complete: the worker needs nothing else and keeps nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Command {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// The lease under which this runs.
    pub lease_id: String,
    /// The lease's generation: must be above the highest that this worker has seen.
    pub generation: u64,
    /// Fresh for every command, only ever on the worker's standard input; the verdict repeats it.
    pub nonce: String,
    /// The pod that the lease names.
    pub pod_uid: String,
    /// The worker that the lease names.
    pub worker_id: String,
    /// Its key.
    pub key: WorkerKey,
    /// The caller's run.
    pub run_id: String,
    /// The caller's attempt at that run.
    pub attempt_id: String,
    /// The commit whose files are run, 40 hex digits.
    pub cut_sha: String,
    /// A commit to compare with, for tests that want one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_sha: Option<String>,
    /// [`crate::ENV_PROFILE`].
    pub env_profile: String,
    /// When the lease was taken, milliseconds since the epoch, the host's clock.
    pub requested_at: u64,
    /// Milliseconds since the epoch on the host's clock; refused when it has passed.
    pub deadline_at: u64,
    /// What was left to the deadline when the command was sent, in milliseconds: measured on the worker's own
    /// monotonic clock from arrival, so that a wrong wall clock can't stretch it.
    pub budget_ms: u64,
    /// The test files, relative to the tree, distinct, in the order in which they run.
    pub files: Vec<String>,
    /// How each file is run; the first rule that matches wins.
    pub rules: Vec<Rule>,
    /// The profile's fixed variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The most bytes of one file's standard output or standard error; beyond, the file fails with `output-limit`.
    pub stream_limit: u64,
    /// See [`Probes`].
    #[serde(default)]
    pub probes: Probes,
    /// See [`Isolation`].
    #[serde(default)]
    pub isolation: Isolation,
}

/// Why a command couldn't be read. The worker answers all of them with exit status 2 and a line on standard error:
/// without a command there is no nonce to sign a verdict with.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Standard input ended or failed.
    #[error("standard input: {0}")]
    Io(#[from] io::Error),
    /// The first line isn't `warmhold/1 LENGTH SHA256`.
    #[error("the first line is no header of a command: {0}")]
    Header(String),
    /// More bytes than [`MAX_COMMAND_BYTES`].
    #[error("a command of {0} bytes is too large (the limit is {MAX_COMMAND_BYTES})")]
    TooLarge(usize),
    /// The bytes are not those that were sent: nothing may run.
    #[error("the command is damaged: its SHA-256 is {got}, the header says {want}")]
    Damaged {
        /// The hash that the header gives.
        want: String,
        /// The hash of what arrived.
        got: String,
    },
    /// Not a command.
    #[error("not a command: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes the header line and the command, and flushes.
///
/// # Errors
/// What the writer answers; a command above [`MAX_COMMAND_BYTES`] is `InvalidInput`.
pub fn write_command(mut to: impl Write, command: &Command) -> io::Result<()> {
    let body = serde_json::to_vec(command)?;
    if body.len() > MAX_COMMAND_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, CommandError::TooLarge(body.len())));
    }
    writeln!(to, "warmhold/1 {} {}", body.len(), hex(&Sha256::digest(&body)))?;
    to.write_all(&body)?;
    to.flush()
}

/// Reads one command and checks its bytes before it looks at them.
///
/// # Errors
/// See [`CommandError`].
pub fn read_command(mut from: impl BufRead) -> Result<Command, CommandError> {
    let mut line = Vec::new();
    // Bounded: a peer that never sends a newline must not fill the memory.
    from.by_ref().take(256).read_until(b'\n', &mut line)?;
    let line = String::from_utf8_lossy(&line);
    let header = || CommandError::Header(line.trim_end().chars().take(100).collect());
    let mut parts = line.trim_end().split(' ');
    let (Some("warmhold/1"), Some(length), Some(want), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(header());
    };
    let length: usize = length.parse().map_err(|_| header())?;
    if length > MAX_COMMAND_BYTES {
        return Err(CommandError::TooLarge(length));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let got = hex(&Sha256::digest(&body));
    if got != want {
        return Err(CommandError::Damaged { want: want.to_owned(), got });
    }
    Ok(serde_json::from_slice(&body)?)
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
