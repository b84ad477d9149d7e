//! Where the daemon's log goes: standard error; text on a terminal, JSON lines otherwise.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// Starts logging. `WARMHOLD_LOG` filters as `RUST_LOG` does elsewhere; without it, everything from `info` on.
pub(super) fn start() {
    let asked = std::env::var_os("WARMHOLD_LOG").map(|text| EnvFilter::try_new(text.to_string_lossy()));
    let (filter, fault) = match asked {
        None => (EnvFilter::new("info"), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(fault)) => (EnvFilter::new("info"), Some(fault)),
    };
    let logger = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start in one process (a test) keeps the first.
    let _ = if std::io::stderr().is_terminal() {
        logger.with_ansi(std::env::var_os("NO_COLOR").is_none()).compact().try_init()
    } else {
        logger.json().flatten_event(true).try_init()
    };
    if let Some(fault) = fault {
        tracing::warn!(%fault, "WARMHOLD_LOG isn't a filter, so everything from info on is logged");
    }
}
