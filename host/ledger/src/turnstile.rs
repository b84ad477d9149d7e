//! The turn that every writer takes before it asks SQLite for the write lock.
//!
//! SQLite's own busy handler polls, and beside one busy writer another process starves in it. The kernel's queue for
//! `flock` is fair: who holds the turn is the only one who polls, and gives it on as soon as the write lock is held.
//! Nothing rests on it but fairness: without the file, SQLite's lock still keeps writers apart.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// A file of its own beside the ledger: SQLite's files are opened by nobody but SQLite.
pub(crate) struct Turnstile(OwnedFd);

/// The turn together with the turnstile; held until it is dropped.
pub(crate) struct Held(Turnstile);

impl Drop for Held {
    fn drop(&mut self) {
        // Can't fail for a descriptor that is open and holds the lock.
        let _ = flock(&self.0.0, FlockOperation::Unlock);
    }
}

/// Held until it is dropped.
pub(crate) struct Turn<'a>(&'a OwnedFd);

impl Turnstile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self(open(path, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// Waits for the turn, however long it takes: those who wait for the result have deadlines of their own.
    pub(crate) fn take(&self) -> io::Result<Turn<'_>> {
        loop {
            match flock(&self.0, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Turn(&self.0)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the turn at most this long; none when it didn't come. Not fair: for the start alone.
    pub(crate) fn take_within(&self, wait: Duration) -> io::Result<Option<Turn<'_>>> {
        Ok(self.lock_within(wait)?.then_some(Turn(&self.0)))
    }

    /// As [`Turnstile::take_within`], for who keeps the turn longer than a function's call.
    pub(crate) fn hold(self, wait: Duration) -> io::Result<Option<Held>> {
        Ok(self.lock_within(wait)?.then_some(Held(self)))
    }

    fn lock_within(&self, wait: Duration) -> io::Result<bool> {
        let end = Instant::now() + wait;
        loop {
            match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                Err(Errno::WOULDBLOCK) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Can't fail for a descriptor that is open and holds the lock.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}
