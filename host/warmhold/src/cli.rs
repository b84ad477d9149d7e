//! The command line: what can be typed. What it does is in `commands`.

mod files;

use crate::config::{Overrides, Primary, parse_duration};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;

pub use files::{LedgerCommand, PrimaryArgs, PrimaryChangeArgs, PrimaryCommand};

/// Keeps warm test workers, leases them under a fence, and replays test files in them.
#[derive(Debug, Parser)]
#[command(
    name = "warmhold",
    version,
    after_help = "Example:\n  warmhold serve &\n  warmhold worker prepare\n  warmhold replay tests/test_parser.py\n\nExit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; 3 the daemon can't be reached."
)]
pub struct Cli {
    /// What is the same for every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The folder with the daemon's state [default: $XDG_STATE_HOME/warmhold]
    #[arg(long, value_name = "DIR", env = "WARMHOLD_ROOT", hide_env_values = true, global = true)]
    pub root: Option<PathBuf>,
    /// The daemon's address instead of the root's own; the token is then in WARMHOLD_TOKEN
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon in the foreground
    Serve(ServeArgs),
    /// Run test files in a warm worker, at a commit
    Replay(ReplayArgs),
    /// Replays that wait for their verdict, and past ones
    #[command(subcommand)]
    Replays(ReplaysCommand),
    /// Standing workers
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Policies that the daemon decides with
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Tokens of machines, in the root's own files
    #[command(subcommand)]
    Token(TokenCommand),
    /// The document that says which machine may write
    #[command(subcommand)]
    Primary(PrimaryCommand),
    /// The ledger's file: out, in, checked and copied
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Check configuration, root, tools and kernel; one line each with its fix
    #[command(
        after_help = "Example:\n  warmhold doctor\n  warmhold doctor --json | jq '.[] | select(.status == \"fail\")'"
    )]
    Doctor(JsonArgs),
    /// Print the completions of a shell
    #[command(
        after_help = "Example:\n  warmhold completions bash > ~/.local/share/bash-completion/completions/warmhold"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = "Example:\n  warmhold man | man -l -\n  warmhold man --into /usr/share/man/man1")]
    Man {
        /// Write a page for each command into this folder
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
    },
}

/// `--json` alone.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `serve`.
#[derive(Clone, Debug, Default, Args)]
#[command(
    after_help = "Example:\n  warmhold serve --root /var/lib/warmhold --listen 127.0.0.1:0\n\nSIGTERM drains and exits 0; SIGHUP reads policies and their settings again; anything else needs a new start."
)]
pub struct ServeArgs {
    /// Where to listen: 127.0.0.1, [::1] or 100.64.0.0/10; port 0 is any free one [default: 127.0.0.1:31413]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// This machine's name [default: as kept in the root, else the host's name made fit]
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// The configuration [default: ROOT/warmhold.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The primary document, which is only read [default: the root's own]
    #[arg(long, value_name = "FILE", conflicts_with = "no_primary")]
    pub primary_lease: Option<PathBuf>,
    /// Refuse writes while the primary isn't known
    #[arg(long, requires = "primary_lease")]
    pub require_primary: bool,
    /// No primary document: worker routes answer primary-unmeasured
    #[arg(long)]
    pub no_primary: bool,
}

impl ServeArgs {
    /// What these arguments say instead of the file. Paths are as seen from where the command was typed.
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        let here = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Overrides {
            file: self.config.as_ref().map(here),
            listen: self.listen.clone(),
            machine: self.machine.clone(),
            primary: match &self.primary_lease {
                Some(file) => Some(Primary::File(here(file))),
                None => self.no_primary.then_some(Primary::None),
            },
            require_primary: self.require_primary,
        }
    }
}

/// `replay`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Example:\n  warmhold replay tests/test_parser.py tests/smoke.sh\n  warmhold replay --cut v1.2.0 --deadline 5m --keep tests/smoke.sh\n\nThe files run as of the commit, not as they lie in the work tree. Exit 0: all passed; 1: one failed, or no result."
)]
pub struct ReplayArgs {
    /// The commit, as git names it [default: HEAD of the current folder]
    #[arg(long, value_name = "SHA")]
    pub cut: Option<String>,
    /// The run's id; asking again with the same one answers the same replay [default: a fresh one]
    #[arg(long, value_name = "ID")]
    pub run: Option<String>,
    /// The attempt at that run
    #[arg(long, value_name = "ID", default_value = "1")]
    pub attempt: String,
    /// A commit to compare with, for tests that want one
    #[arg(long, value_name = "SHA")]
    pub baseline: Option<String>,
    /// The profile [default: the daemon's own choice]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// How long it may take
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = deadline)]
    pub deadline: Duration,
    /// Leave it observed for `replays finalize` or `replays quarantine`
    #[arg(long)]
    pub keep: bool,
    /// Print the replay as JSON when it has ended
    #[arg(long)]
    pub json: bool,
    /// The test files
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

fn deadline(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("a deadline of nothing has passed already; write one such as `120s`".to_owned()),
        duration if duration > Duration::from_secs(86_400) => Err("no replay takes longer than a day".to_owned()),
        duration => Ok(duration),
    }
}

/// `replays …`.
#[derive(Debug, Subcommand)]
pub enum ReplaysCommand {
    /// List replays, newest first
    #[command(after_help = "Example:\n  warmhold replays list --limit 5")]
    List {
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one replay with its history
    #[command(after_help = "Example:\n  warmhold replays show 0f8c2a61-6d0e-4a55-9a53-0b0f6f3a5a11 --json")]
    Show {
        /// The replay's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say that an observed result is right: its worker is cleaned and used again
    #[command(after_help = "Example:\n  warmhold replays finalize 0f8c2a61-6d0e-4a55-9a53-0b0f6f3a5a11")]
    Finalize {
        /// The replay's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say that an observed result is wrong: its worker is never used again
    #[command(
        after_help = "Example:\n  warmhold replays quarantine 0f8c2a61-6d0e-4a55-9a53-0b0f6f3a5a11 --reason 'differs from the one-shot run'"
    )]
    Quarantine {
        /// The replay's id
        id: String,
        /// Why, at most 120 characters
        #[arg(long, value_name = "TEXT", default_value = "mismatch")]
        reason: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `worker …`.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// See to it that so many workers stand for a commit, in the place of those that are used up or idle for another one
    #[command(
        after_help = "Example:\n  warmhold worker prepare --count 2\n  warmhold worker prepare --cut v1.2.0 --profile local"
    )]
    Prepare {
        /// The profile [default: the daemon's own choice]
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// The commit, as the profile's repository names it [default: HEAD]
        #[arg(long, value_name = "SHA")]
        cut: Option<String>,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=999))]
        count: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List workers
    #[command(after_help = "Example:\n  warmhold worker list\n  warmhold worker list --json | jq -r '.[].workerId'")]
    List(JsonArgs),
    /// Show one worker
    #[command(after_help = "Example:\n  warmhold worker show build-07-lite-1-3f9a")]
    Show {
        /// The worker's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a worker out for good, an idle one too
    #[command(after_help = "Example:\n  warmhold worker quarantine build-07-lite-1-3f9a --reason 'looks odd'")]
    Quarantine {
        /// The worker's id
        id: String,
        /// Why, at most 120 characters
        #[arg(long, value_name = "TEXT", default_value = "operator")]
        reason: String,
        /// Say what would be done as things stand, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a worker's pod away
    #[command(after_help = "Example:\n  warmhold worker remove build-07-lite-1-3f9a")]
    Remove {
        /// The worker's id
        id: String,
        /// Say what would be done as things stand, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The places for policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Slot {
    /// Who gets which worker
    Lease,
    /// How a pod looks
    Manifest,
    /// How a replay is driven
    Replay,
}

impl Slot {
    /// The name that travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Manifest => "manifest",
            Self::Replay => "replay",
        }
    }
}

/// `policy …`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check a component as a load would, without a daemon
    #[command(after_help = "Example:\n  warmhold policy check most-recent.wasm --settings settings.json")]
    Check {
        /// The component
        file: PathBuf,
        /// The slot that it is for [default: as its exports tell]
        #[arg(long)]
        slot: Option<Slot>,
        /// Its settings, a JSON object [default: an empty one]
        #[arg(long, value_name = "FILE")]
        settings: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Put a component into a slot; what is running finishes on the old one
    #[command(after_help = "Example:\n  warmhold policy load lease most-recent.wasm")]
    Load {
        /// The slot
        slot: Slot,
        /// The component
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List what serves and what can be rolled back to
    #[command(after_help = "Example:\n  warmhold policy list --json | jq '.[] | select(.state == \"serving\")'")]
    List(JsonArgs),
    /// Go back to the last good policy of a slot
    #[command(after_help = "Example:\n  warmhold policy rollback lease")]
    Rollback {
        /// The slot
        slot: Slot,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `token …`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Print a new token for a machine, once; the one it had is worthless at once
    #[command(after_help = "Example:\n  (umask 077; warmhold token issue build-07 > build-07.token)")]
    Issue {
        /// The machine's name
        machine: String,
    },
    /// Take a machine's token away
    #[command(after_help = "Example:\n  warmhold token revoke build-07")]
    Revoke {
        /// The machine's name
        machine: String,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the machines that have a token
    #[command(after_help = "Example:\n  warmhold token list --json | jq -r '.[].machine'")]
    List(JsonArgs),
}
