//! Completions and manual pages, made from the command line itself.

use super::output::print;
use crate::cli::Cli;
use crate::error::{CliError, Exit};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;

pub(super) fn completions(shell: Shell) -> Result<Exit, CliError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "warmhold", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Done)
}

pub(super) fn man(into: Option<&Path>) -> Result<Exit, CliError> {
    match into {
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text)?;
            print(&String::from_utf8_lossy(&text))?;
        }
        Some(folder) => clap_mangen::generate_to(Cli::command(), folder).map_err(|error| {
            CliError::usage("unwritable", format!("{}: {error}", folder.display()))
                .with_help("name a folder that exists and can be written")
        })?,
    }
    Ok(Exit::Done)
}
