//! What is wrong with a configuration, all of it at once.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: `profile.local.tiers.lite.quota`; empty for the whole file.
    pub key: String,
    /// The line of the file, from 1; none where the key isn't written there (a default, an option of the command line).
    pub line: Option<usize>,
    /// What is wrong with it.
    pub what: String,
    /// What to do.
    pub help: String,
}

/// Every fault of a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFaults {
    /// The file that was read.
    pub file: PathBuf,
    /// At least one.
    pub faults: Vec<Fault>,
}

impl ConfigFaults {
    /// The stable code of this error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "bad-configuration"
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.key, self.what) }
    }
}

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.faults.len() {
            1 => write!(f, "{} has a fault", self.file.display())?,
            count => write!(f, "{} has {count} faults", self.file.display())?,
        }
        for fault in &self.faults {
            match fault.line {
                Some(line) => write!(f, "\n  line {line}: {fault}")?,
                None => write!(f, "\n  {fault}")?,
            }
            write!(f, "\n    {}", fault.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigFaults {}
