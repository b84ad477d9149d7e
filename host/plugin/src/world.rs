//! The worlds that a policy can be made for.

use std::fmt;

/// The version of the package `warmhold:policy` that this host speaks.
pub const PACKAGE_VERSION: &str = "0.1.0";

/// What a policy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum World {
    /// Decides every change of the ledger.
    Lease,
    /// Renders pods and judges live ones.
    Manifest,
    /// Drives a replay.
    Replay,
}

impl World {
    /// Every world.
    pub const ALL: [Self; 3] = [Self::Lease, Self::Manifest, Self::Replay];

    /// The slot's name in the configuration and on disk.
    #[must_use]
    pub const fn slot(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Manifest => "manifest",
            Self::Replay => "replay",
        }
    }

    /// The world's name in `wit/policy.wit`.
    #[must_use]
    pub const fn wit_name(self) -> &'static str {
        match self {
            Self::Lease => "lease-policy",
            Self::Manifest => "manifest-policy",
            Self::Replay => "replay-policy",
        }
    }

    /// The world of a slot's name.
    #[must_use]
    pub fn from_slot(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|world| world.slot() == name)
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wit_name())
    }
}
