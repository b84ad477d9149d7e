//! Which leases a call was given, and which of them are settled.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Names a lease between the plugin and the host of a replay. The host numbers them; a number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseHandle(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Given to the guest; somebody must see to it.
    Open,
    /// Given its end (sanitized, quarantined, released for good), or handed back to the caller still fenced.
    Settled,
}

/// The leases of one call. The caller keeps its own `Arc` of it, so that it can tell what is unsettled even when the
/// call's future was dropped.
#[derive(Debug, Default)]
pub struct LeaseRegistry {
    leases: Mutex<BTreeMap<LeaseHandle, State>>,
}

impl LeaseRegistry {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The guest gets it.
    pub(crate) fn give(&self, handle: LeaseHandle) {
        self.leases.lock().insert(handle, State::Open);
    }

    /// It has its end.
    pub(crate) fn settle(&self, handle: LeaseHandle) {
        self.leases.lock().insert(handle, State::Settled);
    }

    /// The leases that the guest was given and nobody settled, in the order of their numbers. Each must be quarantined.
    #[must_use]
    pub fn unsettled(&self) -> Vec<LeaseHandle> {
        let leases = self.leases.lock();
        leases.iter().filter(|(_, state)| **state == State::Open).map(|(handle, _)| *handle).collect()
    }

    /// Every lease that the guest was ever given.
    #[must_use]
    pub fn given(&self) -> Vec<LeaseHandle> {
        self.leases.lock().keys().copied().collect()
    }
}
