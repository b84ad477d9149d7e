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
    /// monotonic clock from arrival, so that a wrong wall clock can't stretch it. The worker keeps a tenth of it, 3 s at
    /// most, for cleaning and for the verdict: a test that is too slow then fails without costing the worker.
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
    /// Standard input failed.
    #[error("standard input: {0}")]
    Io(#[from] io::Error),
    /// Standard input ended before the command did.
    #[error("standard input ended before the command was whole")]
    Truncated,
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
    if line.is_empty() {
        return Err(CommandError::Truncated);
    }
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
    // Grows with what arrives: a header alone must not cost the memory of a command.
    let mut body = Vec::new();
    from.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(CommandError::Truncated);
    }
    let got = hex(&Sha256::digest(&body));
    if got != want {
        return Err(CommandError::Damaged { want: want.to_owned(), got });
    }
    Ok(serde_json::from_slice(&body)?)
}

/// Lower-case hex, as every hash of this protocol is written.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::command;
    use proptest::prelude::*;

    fn framed(command: &Command) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_command(&mut bytes, command).unwrap();
        bytes
    }

    #[test]
    fn a_command_comes_back_and_what_follows_is_left_alone() {
        let mut bytes = framed(&command());
        bytes.extend(b"later");
        let mut from = &bytes[..];
        assert_eq!(read_command(&mut from).unwrap(), command());
        assert_eq!(from, b"later");
    }

    #[test]
    fn a_command_cut_anywhere_is_never_a_command() {
        let bytes = framed(&command());
        for end in 0..bytes.len() {
            let error = read_command(&bytes[..end]).unwrap_err();
            assert!(matches!(error, CommandError::Truncated | CommandError::Header(_)), "{end}: {error}");
        }
    }

    #[test]
    fn a_flipped_bit_is_damage() {
        let bytes = framed(&command());
        let begin = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for at in begin..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            assert!(matches!(read_command(&bytes[..]), Err(CommandError::Damaged { .. })), "{at}");
        }
    }

    #[test]
    fn hostile_headers_are_refused_without_reading_on() {
        let endless = std::io::repeat(b'x');
        assert!(matches!(read_command(io::BufReader::new(endless)), Err(CommandError::Header(_))));
        for header in
            ["warmhold/2 1 x\n", "warmhold/1\n", "warmhold/1 -1 x\n", "warmhold/1 1 x y\n", "warmhold/1  1 x\n", "\n"]
        {
            assert!(matches!(read_command(header.as_bytes()), Err(CommandError::Header(_))), "{header:?}");
        }
        for length in ["4194305", "18446744073709551615"] {
            let header = format!("warmhold/1 {length} x\n");
            assert!(matches!(read_command(header.as_bytes()), Err(CommandError::TooLarge(_))), "{length}");
        }
        assert!(matches!(read_command(&b"warmhold/1 18446744073709551616 x\n"[..]), Err(CommandError::Header(_))));
    }

    #[test]
    fn well_framed_rubbish_is_no_command() {
        for body in ["", "null", "{}", "[]", "{\"protocol\":1}", "\u{0}"] {
            let text = format!("warmhold/1 {} {}\n{body}", body.len(), hex(&Sha256::digest(body)));
            assert!(matches!(read_command(text.as_bytes()), Err(CommandError::Json(_))), "{body:?}");
        }
    }

    #[test]
    fn a_member_that_nobody_knows_or_one_twice_is_refused() {
        let text = serde_json::to_string(&command()).unwrap();
        for more in ["{\"surprise\":1,", "{\"nonce\":\"other\","] {
            let text = text.replacen('{', more, 1);
            assert!(serde_json::from_str::<Command>(&text).is_err(), "{more}");
        }
    }

    #[test]
    fn a_command_above_the_limit_is_not_written() {
        let mut large = command();
        large.files = vec!["x".repeat(MAX_COMMAND_BYTES)];
        let mut bytes = Vec::new();
        assert_eq!(write_command(&mut bytes, &large).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(bytes.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read_command(&bytes[..]).is_err());
        }

        #[test]
        fn any_texts_come_back(files in proptest::collection::vec(".{0,30}", 0..5), nonce in ".{0,30}", generation in any::<u64>()) {
            let command = Command { files, nonce, generation, ..command() };
            prop_assert_eq!(read_command(&framed(&command)[..]).unwrap(), command);
        }
    }
}
