//! The daemon and its command line.

pub mod cli;
pub mod client;
mod commands;
pub mod config;
pub mod error;
mod serve;
pub mod term;

use clap::Parser as _;
use error::{CliError, Exit};
use std::process::ExitCode;

/// Runs the command line of this process to its end.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match cli::Cli::try_parse() {
        Ok(cli) => commands::run(&cli),
        Err(error) => usage(&error),
    };
    let exit = outcome.unwrap_or_else(|error| {
        error.report(term::Paint::stderr());
        error.exit
    });
    ExitCode::from(exit.code())
}

/// The parser's own words, in the form of every other error. Help and version are no errors.
fn usage(error: &clap::Error) -> Result<Exit, CliError> {
    use clap::error::ErrorKind;
    if !error.use_stderr() {
        // A reader that has gone away has read enough.
        let _ = error.print();
        return Ok(Exit::Done);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return Ok(Exit::Usage);
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let (message, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let line = |prefix: &str| rest.lines().find_map(|line| line.trim().strip_prefix(prefix)).map(str::trim);
    let usage = line("Usage:").unwrap_or("warmhold <COMMAND>");
    let help = match line("tip:") {
        Some(tip) => format!("{tip}; usage: {usage}"),
        None => format!("usage: {usage}"),
    };
    Err(CliError::usage("usage", message.trim_end()).with_help(help))
}
