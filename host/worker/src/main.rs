//! Runs tests in the pod and proves what it did.
//!
//! `run` is one request: a command on standard input, frames on standard output, a verdict as the last of them. The
//! module [`run`] tells the order of events; each other module has one subject. `jail` is this same program started
//! again as a small helper, so that becoming another user happens in a process of its own and needs no code between
//! fork and exec.

mod artifacts;
mod beside;
mod check;
mod clean;
mod confine;
mod data;
mod execute;
mod fetch;
mod helper;
mod identity;
mod jail;
mod keyrings;
mod memory;
mod network;
mod output;
mod processes;
mod remove;
mod run;
mod sandbox;
mod shared;
mod snapshot;
mod sys;
mod tree;
mod user;
mod watch;

use std::process::ExitCode;

const HELP: &str = "\
Runs tests in a warm pod and proves what it did.

Usage: warmhold-worker <COMMAND>

Commands:
  run                                          one request: the command on standard input, frames on standard output;
                                               the pod's identity comes from WARM_WORKER_ID, WARM_CUT, WARM_KEY,
                                               WARM_REPO and WARM_DATA
  fetch --source PATH|URL --cut SHA --into DIR clones a git repository at one commit
  --version                                    prints the version
  --help                                       prints this

Exit status: 0 a verdict was sent (or the tree is there), 1 fetch failed, 2 wrong usage, identity or command,
3 the host went away.

Example:
  warmhold-worker fetch --source /srv/project --cut 0123456789abcdef0123456789abcdef01234567 --into /workspace/repo
";

/// Wrong usage, identity or command.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next();
    match command.as_deref().and_then(|command| command.to_str()) {
        Some("run") => match arguments.next() {
            None => run::run(),
            Some(extra) => usage(&format!("run takes no arguments, got {}", extra.to_string_lossy())),
        },
        Some("jail") => jail::jail(),
        Some("fetch") => match fetch::Request::parse(arguments) {
            Ok(request) => fetch::fetch(&request),
            Err(message) => usage(&message),
        },
        Some("--version" | "-V") => {
            println!("warmhold-worker {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some("--help" | "-h" | "help") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Some(other) => usage(&format!("there is no command {other}")),
        None => usage("a command is missing"),
    }
}

fn usage(message: &str) -> ExitCode {
    report("usage", message, "see warmhold-worker --help");
    ExitCode::from(USAGE)
}

/// Errors go to standard error in one form.
fn report(code: &str, message: &str, help: &str) {
    eprintln!("error[{code}]: {message}");
    if !help.is_empty() {
        eprintln!("help: {help}");
    }
}
