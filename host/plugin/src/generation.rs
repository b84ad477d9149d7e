//! One loaded policy: what it is, and how it has done.

use crate::fault::PolicyFault;
use crate::limits::Limits;
use crate::world::World;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a call needs to know of its policy.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `NAME@sha256:DIGEST#GENERATION`.
    pub(crate) tag: Arc<str>,
    /// The settings as JSON text.
    pub(crate) settings: Arc<str>,
}

/// Where a policy came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled into the daemon.
    BuiltIn,
    /// Loaded while it ran, or before a restart.
    Loaded,
}

/// A loaded policy. Nothing of it ever changes but its counts; `P` is its compiled program.
#[derive(Debug)]
pub struct Generation<P> {
    /// SHA-256 of the component, hex.
    pub digest: Arc<str>,
    /// The name that it gives itself.
    pub name: Arc<str>,
    /// The version that it gives itself.
    pub version: Arc<str>,
    /// What it says of itself in a line.
    pub summary: Arc<str>,
    /// What it is for.
    pub world: World,
    /// Its number in this slot; never used again, not even after a restart.
    pub number: u64,
    /// Its settings, JSON text of an object.
    pub settings: Arc<str>,
    /// What each of its calls may use.
    pub limits: Limits,
    /// Where it came from.
    pub origin: Origin,
    pub(crate) identity: Identity,
    pub(crate) program: P,
    pub(crate) record: Record,
}

impl<P> Generation<P> {
    /// `NAME@sha256:DIGEST#GENERATION`: names exactly what decided.
    #[must_use]
    pub fn tag(&self) -> &Arc<str> {
        &self.identity.tag
    }
}

/// The tag of a generation.
pub(crate) fn tag(name: &str, digest: &str, number: u64) -> Arc<str> {
    format!("{name}@sha256:{digest}#{number}").into()
}

/// How a generation has done.
#[derive(Debug, Default)]
pub(crate) struct Record {
    calls: AtomicU64,
    faults: AtomicU64,
    streak: Mutex<Streak>,
}

/// Faults in a row. A call that ends well counts as a success only when the next one begins: until then the host may
/// still report that what it answered broke the fence, and a policy that answers every request with a violation would
/// otherwise be a policy without a fault.
#[derive(Debug, Default)]
struct Streak {
    faults: u32,
    /// The last call ended well, and nobody has complained yet.
    provisional: bool,
    first: Option<String>,
}

impl Record {
    pub(crate) fn begin(&self) {
        self.calls.fetch_add(1, Relaxed);
        let mut streak = self.streak.lock();
        if std::mem::take(&mut streak.provisional) {
            streak.faults = 0;
        }
    }

    pub(crate) fn succeeded(&self) {
        self.streak.lock().provisional = true;
    }

    /// Counts a fault of a call; answers how many there were in a row.
    pub(crate) fn faulted(&self, what: &str) -> u32 {
        self.count(what, |streak| {
            if std::mem::take(&mut streak.provisional) {
                streak.faults = 0;
            }
        })
    }

    /// Counts what the host found wrong with an answer; answers how many faults there were in a row.
    pub(crate) fn violated(&self, what: &str) -> u32 {
        self.count(what, |streak| streak.provisional = false)
    }

    fn count(&self, what: &str, before: impl FnOnce(&mut Streak)) -> u32 {
        self.faults.fetch_add(1, Relaxed);
        let mut streak = self.streak.lock();
        before(&mut streak);
        streak.faults = streak.faults.saturating_add(1);
        streak.first.get_or_insert_with(|| what.to_owned());
        streak.faults
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    pub(crate) fn first_fault(&self) -> Option<String> {
        self.streak.lock().first.clone()
    }
}

/// Words for a fault in a status: the cause and what the guest said, without the tag that is shown beside it.
pub(crate) fn describe(fault: &PolicyFault) -> String {
    match &fault.message {
        Some(message) => format!("{} in {}: {}; it said: {message}", fault.code(), fault.function, fault.cause),
        None => format!("{} in {}: {}", fault.code(), fault.function, fault.cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_a_row_are_counted_and_a_success_ends_the_row() {
        let record = Record::default();
        for expected in [1, 2] {
            record.begin();
            assert_eq!(record.faulted("a"), expected);
        }
        record.begin();
        record.succeeded();
        record.begin();
        assert_eq!(record.faulted("b"), 1);
        assert_eq!(record.first_fault().as_deref(), Some("a"));
        assert_eq!((record.calls(), record.faults()), (4, 3));
    }

    #[test]
    fn answers_that_break_the_fence_are_faults_in_a_row() {
        let record = Record::default();
        for expected in 1..=3 {
            record.begin();
            record.succeeded();
            assert_eq!(record.violated("forged"), expected);
        }
    }

    #[test]
    fn a_trap_and_a_violation_count_together() {
        let record = Record::default();
        record.begin();
        record.faulted("trap");
        record.begin();
        record.succeeded();
        assert_eq!(record.violated("forged"), 2);
        record.begin();
        record.succeeded();
        record.begin();
        record.succeeded();
        assert_eq!(record.violated("forged"), 1);
    }
}
