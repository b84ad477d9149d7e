//! One loaded policy: what it is, and how it has done.

use crate::fault::PolicyFault;
use crate::limits::Limits;
use crate::world::World;
use parking_lot::Mutex;
use std::collections::BTreeMap;
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
    row: Mutex<Row>,
}

/// Faults in a row, by exported function: a policy that fails every call of one function is not saved by the calls of
/// another that go well.
#[derive(Debug, Default)]
struct Row {
    streaks: BTreeMap<&'static str, Streak>,
    /// The function that ended well last.
    last: Option<&'static str>,
    first: Option<String>,
}

/// Faults in a row of one function. A call that ends well counts as a success only when the function's next one begins:
/// until then the host may still report that what it answered broke the fence, and a policy that answers every request
/// with a violation would otherwise be a policy without a fault.
#[derive(Debug, Default)]
struct Streak {
    faults: u32,
    /// The last call ended well, and nobody has complained yet.
    provisional: bool,
}

impl Streak {
    /// Nobody complained about the last call, if it ended well.
    fn settle(&mut self) {
        if std::mem::take(&mut self.provisional) {
            self.faults = 0;
        }
    }
}

impl Record {
    pub(crate) fn begin(&self, function: &'static str) {
        self.calls.fetch_add(1, Relaxed);
        if let Some(streak) = self.row.lock().streaks.get_mut(function) {
            streak.settle();
        }
    }

    pub(crate) fn succeeded(&self, function: &'static str) {
        let mut row = self.row.lock();
        row.last = Some(function);
        row.streaks.entry(function).or_default().provisional = true;
    }

    /// Counts a fault of a call; answers how many there were in a row in this function.
    pub(crate) fn faulted(&self, function: &'static str, what: &str) -> u32 {
        self.faults.fetch_add(1, Relaxed);
        let mut row = self.row.lock();
        row.streaks.entry(function).or_default().settle();
        row.count(function, what)
    }

    /// Counts what the host found wrong with the answer that ended well last; answers how many faults there were in a
    /// row in the function that gave it.
    pub(crate) fn violated(&self, what: &str) -> u32 {
        self.faults.fetch_add(1, Relaxed);
        let mut row = self.row.lock();
        let function = row.last.unwrap_or_default();
        row.streaks.entry(function).or_default().provisional = false;
        row.count(function, what)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    pub(crate) fn first_fault(&self) -> Option<String> {
        self.row.lock().first.clone()
    }
}

impl Row {
    fn count(&mut self, function: &'static str, what: &str) -> u32 {
        self.first.get_or_insert_with(|| what.to_owned());
        let streak = self.streaks.entry(function).or_default();
        streak.faults = streak.faults.saturating_add(1);
        streak.faults
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
            record.begin("f");
            assert_eq!(record.faulted("f", "a"), expected);
        }
        record.begin("f");
        record.succeeded("f");
        record.begin("f");
        assert_eq!(record.faulted("f", "b"), 1);
        assert_eq!(record.first_fault().as_deref(), Some("a"));
        assert_eq!((record.calls(), record.faults()), (4, 3));
    }

    #[test]
    fn answers_that_break_the_fence_are_faults_in_a_row() {
        let record = Record::default();
        for expected in 1..=3 {
            record.begin("f");
            record.succeeded("f");
            assert_eq!(record.violated("forged"), expected);
        }
    }

    #[test]
    fn a_trap_and_a_violation_count_together() {
        let record = Record::default();
        record.begin("f");
        record.faulted("f", "trap");
        record.begin("f");
        record.succeeded("f");
        assert_eq!(record.violated("forged"), 2);
        record.begin("f");
        record.succeeded("f");
        record.begin("f");
        record.succeeded("f");
        assert_eq!(record.violated("forged"), 1);
    }

    #[test]
    fn a_function_that_always_fails_is_not_saved_by_another_that_works() {
        let record = Record::default();
        for expected in 1..=3 {
            record.begin("acquire");
            assert_eq!(record.faulted("acquire", "trap"), expected);
            record.begin("heartbeat");
            record.succeeded("heartbeat");
        }
        record.begin("release");
        assert_eq!(record.faulted("release", "trap"), 1, "each function has a row of its own");
    }

    #[test]
    fn a_violation_counts_for_the_function_that_answered() {
        let record = Record::default();
        for expected in 1..=3 {
            record.begin("heartbeat");
            record.succeeded("heartbeat");
            record.begin("acquire");
            record.succeeded("acquire");
            assert_eq!(record.violated("forged"), expected);
        }
        record.begin("heartbeat");
        assert_eq!(record.faulted("heartbeat", "trap"), 1);
    }
}
