//! Which user the tests get, and what this process may do.

use rustix::thread::CapabilitySet;

/// Far from the ids that systems and people have.
const DEFAULT_UID: u32 = 64_500;

/// What this process may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Powers {
    /// Become another user, give files to it and end its processes.
    pub(crate) other_user: bool,
    /// Mount, and make namespaces.
    pub(crate) namespaces: bool,
}

impl Powers {
    /// Asks the kernel.
    pub(crate) fn own() -> Self {
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let needed = CapabilitySet::CHOWN | CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
        Self {
            other_user: rustix::process::geteuid().is_root() && held.contains(needed),
            namespaces: held.contains(CapabilitySet::SYS_ADMIN),
        }
    }

    /// The id that tests get: none when they must run as this process's own user.
    pub(crate) fn uid(self, asked: Option<u32>) -> Option<u32> {
        self.other_user.then(|| asked.unwrap_or(DEFAULT_UID))
    }
}
