//! What each command does.

mod doctor;
mod ledger;
mod output;
mod packaging;
mod policy;
mod policy_check;
mod primary;
mod replay;
mod replays;
mod repository;
mod token;
mod worker;

use crate::cli::{Cli, Command, Global};
use crate::client::{Client, Role, default_root, locate};
use crate::error::{CliError, Exit};
use std::path::PathBuf;

pub(crate) fn run(cli: &Cli) -> Result<Exit, CliError> {
    let global = &cli.global;
    match &cli.command {
        Command::Serve(args) => crate::serve::run(args, &root(global)?).map(|()| Exit::Done),
        Command::Replay(args) => replay::run(global, args),
        Command::Replays(command) => replays::run(global, command),
        Command::Worker(command) => worker::run(global, command),
        Command::Policy(command) => policy::run(global, command),
        Command::Token(command) => token::run(global, command),
        Command::Primary(command) => primary::run(global, command),
        Command::Ledger(command) => ledger::run(global, command),
        Command::Doctor(args) => doctor::run(global, args.json),
        Command::Completions { shell } => packaging::completions(*shell),
        Command::Man { into } => packaging::man(into.as_deref()),
    }
}

/// The root that is meant, absolute.
fn root(global: &Global) -> Result<PathBuf, CliError> {
    let root = match &global.root {
        Some(root) => root.clone(),
        None => default_root()?,
    };
    std::path::absolute(&root).map_err(|error| {
        CliError::usage("bad-root", format!("{}: {error}", root.display())).with_help("name a folder with --root")
    })
}

/// Turns `--url` away where a command works on the root's own files.
fn only_here(global: &Global, what: &str) -> Result<(), CliError> {
    if global.url.is_none() {
        return Ok(());
    }
    Err(CliError::usage("no-url-here", format!("{what} where the daemon's root is, not over HTTP"))
        .with_help("run this on that machine, with --root"))
}

/// A daemon that answers, with the token for this.
fn connect(global: &Global, role: Role) -> Result<Client, CliError> {
    let client = Client::new(locate(&root(global)?, global.url.as_deref(), role)?);
    client.check_alive()?;
    Ok(client)
}
