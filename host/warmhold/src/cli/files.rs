//! Commands that work on the root's own files: the primary document and the ledger.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Which document, and for which machine.
#[derive(Clone, Debug, Args)]
pub struct PrimaryArgs {
    /// The document [default: the one that the root's daemon is configured with]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The machine that acts [default: the root's own]
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A change of the document.
#[derive(Clone, Debug, Args)]
pub struct PrimaryChangeArgs {
    /// What and for whom.
    #[command(flatten)]
    pub of: PrimaryArgs,
    /// Say what would be written, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `primary …`.
#[derive(Debug, Subcommand)]
pub enum PrimaryCommand {
    /// Show what the document says, or why it says nothing
    #[command(
        after_help = "Example:\n  warmhold primary show\n  warmhold primary show --file /srv/shared/primary.json --json\n\nExit 0: it is there, or there is none and it may be claimed; 1: it can't be measured, so nobody may touch it."
    )]
    Show(PrimaryArgs),
    /// Take a document that is absent: this machine holds it
    #[command(
        after_help = "Example:\n  warmhold primary claim --file /srv/shared/primary.json\n\nRefused when anything is there, even something that nobody understands."
    )]
    Claim(PrimaryChangeArgs),
    /// Name another machine as holder; from then on it may write, and this one may not
    #[command(
        after_help = "Example:\n  warmhold primary hand-off --to build-08\n\nThe other machine ends it with `accept`; either takes it back with `revert`."
    )]
    HandOff {
        /// The machine that is to hold: a-z, 0-9 and '-', at most 32
        #[arg(long, value_name = "HOLDER")]
        to: String,
        /// The rest.
        #[command(flatten)]
        change: PrimaryChangeArgs,
    },
    /// End a hand-off to this machine
    #[command(after_help = "Example:\n  warmhold primary accept --file /srv/shared/primary.json")]
    Accept(PrimaryChangeArgs),
    /// End a hand-off the other way: who held before holds again
    #[command(after_help = "Example:\n  warmhold primary revert")]
    Revert(PrimaryChangeArgs),
}

/// `ledger …`.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Write all rows as one JSON list, the original's `ledger.json`
    #[command(
        after_help = "Example:\n  warmhold ledger export ledger.json\n  warmhold ledger export | jq length\n\nThe rows are those of one moment, in order of registration, whole: lease ids too, so a file is made with mode 0600. Daemons may go on meanwhile. Tokens, the primary document and records of replays aren't in it."
    )]
    Export {
        /// The file; `-` for standard output
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
        /// Say as JSON what was written to the file
        #[arg(long)]
        json: bool,
    },
    /// Put the rows of a `ledger.json` into a ledger that has none: all of them, or nothing
    #[command(
        after_help = "Example:\n  warmhold ledger import ledger.json --dry-run\n  warmhold ledger import ledger.json\n\nEnd whoever writes the other ledger first: a worker that is in two ledgers could be leased twice."
    )]
    Import {
        /// The file; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Check every row, and import nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Look whether the ledger is whole, and whether every row is one that its rules leave
    #[command(
        after_help = "Example:\n  warmhold ledger check\n  warmhold ledger check backup.sqlite3 --json | jq '.parts[] | select(.faults != [])'\n\nExit 0: nothing is wrong; 1: something is. Daemons may go on meanwhile; nothing is changed."
    )]
    Check {
        /// The ledger's file, such as a backup [default: the root's own]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy the ledger to a file, as of one moment, while daemons go on
    #[command(
        after_help = "Example:\n  warmhold ledger backup /var/backups/warmhold-$(date +%F).sqlite3\n\nThe copy is a ledger itself (mode 0600), there whole or not at all. Never copy the files of a running daemon by hand."
    )]
    Backup {
        /// The file to make
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Replace a file that is there; never a ledger that is in use
        #[arg(long)]
        force: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
