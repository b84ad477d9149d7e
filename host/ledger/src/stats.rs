//! Figures of the ledger's work since it was opened.

use crate::store::Refresh;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Is told, on the writer's thread, how long its steps took. Each call delays everybody who waits: it counts, and never
/// blocks, asks the system or panics.
pub trait Observer: Send + Sync {
    /// A request waited so long in the queue before its turn came.
    fn waited(&self, queue: Duration);

    /// The policy took so long over one request, whatever came of it.
    fn decided(&self, took: Duration);

    /// A commit of so many changes took so long, whether or not it succeeded.
    fn committed(&self, took: Duration, changes: u64);
}

/// Nobody listens.
pub(crate) struct Unobserved;

impl Observer for Unobserved {
    fn waited(&self, _: Duration) {}
    fn decided(&self, _: Duration) {}
    fn committed(&self, _: Duration, _: u64) {}
}

/// A moment's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits; each one costs one sync.
    pub commits: u64,
    /// Changes in them.
    pub writes: u64,
    /// Requests that were answered without a change, because nothing was to be changed.
    pub unchanged: u64,
    /// Most changes in one commit.
    pub largest_commit: u64,
    /// Requests whose commit failed.
    pub uncertain: u64,
    /// The last thing that was to be written wasn't, for a fault of the file or the disk.
    pub failing: bool,
    /// How often all rows were read.
    pub read_whole: u64,
    /// How often what another process had changed was read.
    pub read_changes: u64,
    /// Rows in memory.
    pub rows: u64,
    /// Writes that wait now.
    pub waiting: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    writes: AtomicU64,
    unchanged: AtomicU64,
    largest: AtomicU64,
    uncertain: AtomicU64,
    whole: AtomicU64,
    changes: AtomicU64,
    rows: AtomicU64,
    failing: AtomicBool,
}

impl Counters {
    pub(crate) fn refreshed(&self, refresh: Refresh) {
        match refresh {
            Refresh::Held => 0,
            Refresh::Changed => self.changes.fetch_add(1, Ordering::Relaxed),
            Refresh::Whole => self.whole.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn committed(&self, writes: u64, answers: usize, rows: usize) {
        if writes > 0 {
            self.failing.store(false, Ordering::Relaxed);
            self.commits.fetch_add(1, Ordering::Relaxed);
            self.writes.fetch_add(writes, Ordering::Relaxed);
            self.largest.fetch_max(writes, Ordering::Relaxed);
        }
        self.unchanged.fetch_add((answers as u64).saturating_sub(writes), Ordering::Relaxed);
        self.rows.store(rows as u64, Ordering::Relaxed);
    }

    /// Something couldn't be written.
    pub(crate) fn failed(&self) {
        self.failing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn uncertain(&self, answers: usize) {
        self.failed();
        self.uncertain.fetch_add(answers as u64, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self, waiting: usize) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: of(&self.commits),
            writes: of(&self.writes),
            unchanged: of(&self.unchanged),
            largest_commit: of(&self.largest),
            uncertain: of(&self.uncertain),
            failing: self.failing.load(Ordering::Relaxed),
            read_whole: of(&self.whole),
            read_changes: of(&self.changes),
            rows: of(&self.rows),
            waiting: waiting as u64,
        }
    }
}
