//! Where the daemon is, and which credential it takes.

use crate::error::CliError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How long a client waits for a daemon that has begun and doesn't serve yet.
const START: std::time::Duration = std::time::Duration::from_secs(20);

/// Which of a root's tokens a question needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Workers and policies.
    Admin,
    /// Replays.
    Member,
    /// Questions that change nothing.
    Query,
}

/// `ROOT/control/daemon.json`: the daemon that started last on this root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonFile {
    /// `http://ADDRESS:PORT`.
    pub url: String,
    /// Its process.
    pub pid: i32,
    /// Its version.
    pub version: String,
}

/// An address and the credential for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://ADDRESS:PORT`.
    pub url: String,
    /// 64 hex digits.
    pub token: String,
    /// The root that named the address; none: the command line did.
    pub root: Option<PathBuf>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not reach a log.
        f.debug_struct("Endpoint").field("url", &self.url).field("root", &self.root).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The error for a daemon that doesn't answer there.
    #[must_use]
    pub fn unreachable(&self, why: &str) -> CliError {
        let error = CliError::unreachable("unreachable", format!("no daemon answers at {}: {why}", self.url));
        match &self.root {
            Some(root) => error.with_help(start_help(root)),
            None => error.with_help("check the address of --url, and that the daemon listens there"),
        }
    }
}

fn start_help(root: &Path) -> String {
    format!("start it with `warmhold serve --root {}`", root.display())
}

/// Where the state lies when nobody says: `$XDG_STATE_HOME/warmhold`, else `~/.local/state/warmhold`.
///
/// # Errors
/// Neither variable holds an absolute path.
pub fn default_root() -> Result<PathBuf, CliError> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("warmhold"))
        .ok_or_else(|| {
            CliError::usage("no-root", "neither XDG_STATE_HOME nor HOME says where the state lies")
                .with_help("name the folder with --root or WARMHOLD_ROOT")
        })
}

/// The file that tells where a root's daemon is.
#[must_use]
pub fn daemon_file(root: &Path) -> PathBuf {
    root.join("control").join("daemon.json")
}

/// The file with a root's tokens.
#[must_use]
pub fn tokens_file(root: &Path) -> PathBuf {
    root.join("control").join("tokens.json")
}

/// Finds the daemon: by `--url` with `WARMHOLD_TOKEN`, else by the root's own files.
///
/// # Errors
/// No token, a damaged file (exit 2); no daemon (exit 3).
pub fn locate(root: &Path, url: Option<&str>, role: Role) -> Result<Endpoint, CliError> {
    let given = match std::env::var("WARMHOLD_TOKEN") {
        Ok(token) if !token.is_empty() => Some(checked(token)?),
        _ => None,
    };
    if let Some(url) = url {
        let url = url.trim_end_matches('/');
        if url.starts_with("https://") {
            let help =
                "the daemon speaks plain HTTP on loopback or a private network; use http://, or an encrypted tunnel";
            return Err(CliError::usage("bad-url", format!("`{url}`: this client speaks no TLS")).with_help(help));
        }
        if !crate::config::is_control_url(url) {
            let help = "write scheme, host and port alone, such as http://100.64.0.7:31413";
            return Err(CliError::usage("bad-url", format!("`{url}` is no address of a daemon")).with_help(help));
        }
        let token = given.ok_or_else(|| {
            CliError::usage("no-token", "--url needs a token, and WARMHOLD_TOKEN holds none")
                .with_help("export WARMHOLD_TOKEN, or leave --url out and name the daemon's root with --root")
        })?;
        return Ok(Endpoint { url: url.to_owned(), token, root: None });
    }
    wait_for_start(root);
    let daemon: DaemonFile = read_json(&daemon_file(root), root)?;
    // Its address may be somebody else's by now, who must not be shown a token.
    let alive = rustix::process::Pid::from_raw(daemon.pid)
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
    if !alive {
        return Err(CliError::unreachable(
            "unreachable",
            format!("the daemon of {} (process {}) has ended", root.display(), daemon.pid),
        )
        .with_help(start_help(root)));
    }
    let token = match given {
        Some(token) => token,
        None => {
            let tokens: Tokens = read_json(&tokens_file(root), root)?;
            checked(match role {
                Role::Admin => tokens.admin,
                Role::Member => tokens.member,
                Role::Query => tokens.query,
            })?
        }
    };
    Ok(Endpoint { url: daemon.url, token, root: Some(root.to_owned()) })
}

/// Waits a little for a daemon that is just starting: `warmhold serve &` and the next command are often one paste.
fn wait_for_start(root: &Path) {
    let began = std::time::Instant::now();
    while !daemon_file(root).exists()
        && warmhold_replay::living(root).iter().any(String::is_empty)
        && began.elapsed() < START
    {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[derive(Deserialize)]
struct Tokens {
    admin: String,
    member: String,
    query: String,
}

/// A token goes into a header: anything else in it would be another header.
fn checked(token: String) -> Result<String, CliError> {
    if token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(token);
    }
    Err(CliError::usage("bad-token", "the token is no token: it isn't 64 hex digits")
        .with_help("copy it whole, without spaces, or unset WARMHOLD_TOKEN to use the root's own"))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path, root: &Path) -> Result<T, CliError> {
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            CliError::unreachable("unreachable", format!("no daemon serves {}", root.display()))
                .with_help(start_help(root))
        }
        _ => CliError::usage("unreadable", format!("{}: {error}", path.display()))
            .with_help("run this as the user of the daemon, or use --url with WARMHOLD_TOKEN"),
    })?;
    serde_json::from_str(&text).map_err(|error| {
        CliError::usage("damaged-file", format!("{} is damaged: {error}", path.display()))
            .with_help("stop the daemon, remove that file, and start the daemon again")
    })
}
