//! How a command ends when it doesn't end well.

use crate::term::Paint;
use std::fmt;

/// The exit codes that scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, and the answer is yes.
    Done,
    /// The answer is no: a replay fell back or its tests failed, a check found faults, a load was refused.
    No,
    /// Wrong usage or configuration.
    Usage,
    /// The daemon can't be reached.
    Unreachable,
}

impl Exit {
    /// 0, 1, 2 or 3.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
        }
    }
}

/// An error that a person reads: `error[CODE]: what happened`, then what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// Stable, for scripts.
    pub code: String,
    /// What happened.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// How the process ends.
    pub exit: Exit,
}

impl CliError {
    /// Wrong usage or configuration: exit 2.
    pub fn usage(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: None, exit: Exit::Usage }
    }

    /// The answer is no: exit 1.
    pub fn no(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: None, exit: Exit::No }
    }

    /// No daemon: exit 3.
    pub fn unreachable(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: None, exit: Exit::Unreachable }
    }

    /// With what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Writes it to standard error.
    pub fn report(&self, paint: Paint) {
        eprintln!("{} {}", paint.red(&format!("error[{}]:", self.code)), self.message);
        if let Some(help) = &self.help {
            eprintln!("{} {help}", paint.cyan("help:"));
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.message)
    }
}

impl std::error::Error for CliError {}

impl From<crate::config::ConfigFaults> for CliError {
    fn from(faults: crate::config::ConfigFaults) -> Self {
        Self::usage(faults.code(), faults.to_string()).with_help("correct the file; `warmhold doctor` checks it again")
    }
}

impl From<std::io::Error> for CliError {
    /// For writes to standard output alone: everything else says which file it is about.
    fn from(error: std::io::Error) -> Self {
        Self::no("io", format!("standard output: {error}"))
    }
}
