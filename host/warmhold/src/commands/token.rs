//! `token`: machine tokens. These work on the root's own files, whether a daemon runs or not.

use super::output::{print, print_json};
use crate::cli::{Global, TokenCommand};
use crate::error::{CliError, Exit};
use crate::term::{moment, table};
use serde_json::json;
use warmhold_control::{MachineName, MachineTokens, TokensError};

pub(super) fn run(global: &Global, command: &TokenCommand) -> Result<Exit, CliError> {
    super::only_here(global, "tokens are issued")?;
    let tokens = MachineTokens::of(&super::root(global)?);
    match command {
        TokenCommand::Issue { machine } => {
            let token = tokens.issue(&name(machine)?).map_err(|error| failed(&error))?;
            // Alone, so that it can be caught in a variable or a file.
            print(&format!("{token}\n"))?;
        }
        TokenCommand::Revoke { machine, dry_run } => {
            let name = name(machine)?;
            let had = if *dry_run {
                tokens.list().map_err(|error| failed(&error))?.iter().any(|token| token.machine == name)
            } else {
                tokens.revoke(&name).map_err(|error| failed(&error))?
            };
            if !had {
                return Err(CliError::no("not-found", format!("`{machine}` has no token"))
                    .with_help("warmhold token list shows the machines that have one"));
            }
            if *dry_run {
                print(&format!("would take away the token of {machine}; nothing was changed\n"))?;
            }
        }
        TokenCommand::List(args) => {
            let issued = tokens.list().map_err(|error| failed(&error))?;
            if args.json {
                print_json(&json!(issued))?;
            } else if issued.is_empty() {
                print("no machine has a token; issue one with `warmhold token issue MACHINE`\n")?;
            } else {
                let mut rows = vec![vec!["MACHINE".to_owned(), "ISSUED".to_owned()]];
                rows.extend(issued.iter().map(|token| vec![token.machine.to_string(), moment(token.issued_at)]));
                print(&table(&rows))?;
            }
        }
    }
    Ok(Exit::Done)
}

fn name(machine: &str) -> Result<MachineName, CliError> {
    MachineName::parse(machine).map_err(|error| {
        CliError::usage(error.code(), error.to_string())
            .with_help("a host's short name is a good one, such as build-07")
    })
}

fn failed(error: &TokensError) -> CliError {
    let (code, help) = (error.code(), error.help());
    CliError::usage(code, error.to_string()).with_help(help)
}
