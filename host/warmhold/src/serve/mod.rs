//! The daemon: everything wired together.

use crate::cli::ServeArgs;
use crate::config::Config;
use crate::error::CliError;
use std::path::Path;

/// Runs the daemon in the foreground until it is told to end.
///
/// # Errors
/// It could not start, or ended for a fault.
pub(crate) fn run(args: &ServeArgs, root: &Path) -> Result<(), CliError> {
    let config = Config::load_with(root, &args.overrides())?;
    Err(CliError::no("not-built-in", format!("this build has no daemon to serve {}", config.root.display()))
        .with_help("build it from a newer checkout"))
}
