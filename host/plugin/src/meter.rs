//! Guest time and the wall clock of one call, counted apart.
//!
//! A plain epoch deadline counts everything, also the time that a replay policy waits for a pod. So an epoch that is
//! reached only *asks* the meter. Guest time is the thread's processor time while the guest runs: an overloaded machine
//! that doesn't get round to the guest costs the policy nothing. What the guest may not exceed whatever it waits for is
//! the wall clock.
//!
//! The kernel counts as a thread's time also what a hypervisor took from the whole machine, 10 ms at once and more. So a
//! guest is over its time only when it still runs a tick after that was noticed: one that was merely stopped is done by
//! then.

use crate::fault::Cause;
use crate::limits::Limits;
use crate::ticker::TICK;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use wasmtime::{Store, UpdateDeadline};

/// A guest on a runtime's thread gives it back this often, in ticks: long enough that a fiber's switch is nothing, short
/// enough that other tasks of the thread don't feel it.
const SLICE: u64 = 5;

/// Measures one call. Shared between the store (whose callback asks) and the future that polls it (which knows when a
/// thread takes it up and lets go of it). Only one thread at a time runs a store, so plain loads and stores do.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Guest time of stretches that are over, in nanoseconds.
    spent: AtomicU64,
    /// The thread's processor time when the present stretch began.
    mark: AtomicU64,
    /// Whether the guest runs (or is about to, when its thread is back); false while the host does something for it.
    in_guest: AtomicBool,
    /// The guest time at which it was first seen to be over its limit, in nanoseconds; 0 while it wasn't.
    noticed: AtomicU64,
    started: Instant,
    guest_ms: u32,
    wall_ms: u32,
}

/// The processor time of this thread, in nanoseconds.
fn thread_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

impl Meter {
    /// Starts to count on this thread.
    pub(crate) fn start(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            spent: AtomicU64::new(0),
            mark: AtomicU64::new(thread_time()),
            in_guest: AtomicBool::new(true),
            noticed: AtomicU64::new(0),
            started: Instant::now(),
            guest_ms: limits.guest_ms.get(),
            wall_ms: limits.wall_ms.get(),
        })
    }

    /// A thread takes the call up.
    pub(crate) fn resume(&self) {
        if self.in_guest.load(Relaxed) {
            self.mark.store(thread_time(), Relaxed);
        }
    }

    /// The thread lets go of it.
    pub(crate) fn pause(&self) {
        if self.in_guest.load(Relaxed) {
            self.settle();
        }
    }

    /// The guest calls the host.
    pub(crate) fn leave_guest(&self) {
        self.settle();
        self.in_guest.store(false, Relaxed);
    }

    /// The host answers; maybe on another thread.
    pub(crate) fn enter_guest(&self) {
        self.mark.store(thread_time(), Relaxed);
        self.in_guest.store(true, Relaxed);
    }

    fn settle(&self) {
        let now = thread_time();
        let stretch = now.saturating_sub(self.mark.swap(now, Relaxed));
        self.spent.store(self.spent.load(Relaxed).saturating_add(stretch), Relaxed);
    }

    /// Guest time so far.
    pub(crate) fn guest_time(&self) -> Duration {
        if self.in_guest.load(Relaxed) {
            self.settle();
        }
        Duration::from_nanos(self.spent.load(Relaxed))
    }

    /// The ticks that are left until a limit could be reached, or the limit that is.
    fn left(&self) -> Result<u64, Cause> {
        let spent = self.guest_time();
        let guest = Duration::from_millis(self.guest_ms.into()).saturating_sub(spent);
        if guest.is_zero() && self.runs_on(spent) {
            return Err(Cause::Deadline { limit_ms: self.guest_ms });
        }
        let wall = Duration::from_millis(self.wall_ms.into()).saturating_sub(self.started.elapsed());
        if wall.is_zero() {
            return Err(Cause::WallClock { limit_ms: self.wall_ms });
        }
        let ticks = guest.min(wall).as_nanos().div_ceil(TICK.as_nanos());
        Ok(u64::try_from(ticks).unwrap_or(u64::MAX).max(1))
    }

    /// Whether a guest that is over its time has run on since that was noticed.
    fn runs_on(&self, spent: Duration) -> bool {
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        match self.noticed.load(Relaxed) {
            0 => {
                self.noticed.store(spent.max(1), Relaxed);
                false
            }
            noticed => u128::from(spent.saturating_sub(noticed)) >= TICK.as_nanos() / 2,
        }
    }

    /// Arms a store, before anything of its guest runs. A store that isn't armed traps at once, and one that was armed
    /// for an earlier call has that call's deadline: so each call's store is armed, here.
    pub(crate) fn arm<T: 'static>(self: &Arc<Self>, store: &mut Store<T>, mode: Mode) {
        let first = u64::from(self.guest_ms.min(self.wall_ms));
        store.set_epoch_deadline(match mode {
            Mode::Sync => first,
            Mode::Async => first.min(SLICE),
        });
        let meter = Arc::clone(self);
        store.epoch_deadline_callback(move |_| {
            let left = meter.left().map_err(Cause::trap)?;
            Ok(match mode {
                Mode::Sync => UpdateDeadline::Continue(left),
                // The runtime's own yield lets its timers and sockets have their turn; a task that merely wakes itself
                // is polled dozens of times before that.
                Mode::Async => UpdateDeadline::YieldCustom(left.min(SLICE), Box::pin(tokio::task::yield_now())),
            })
        });
    }
}

/// How a store is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On the caller's thread until it is done.
    Sync,
    /// On a fiber that gives its thread back between slices.
    Async,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use std::num::NonZeroU32;

    fn limits(guest: u32, wall: u32) -> Limits {
        Limits {
            guest_ms: NonZeroU32::new(guest).unwrap(),
            wall_ms: NonZeroU32::new(wall).unwrap(),
            ..Limits::of(World::Lease)
        }
    }

    fn burn(time: Duration) {
        let start = thread_time();
        while thread_time() - start < u64::try_from(time.as_nanos()).unwrap() {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn sleeping_is_not_guest_time() {
        let meter = Meter::start(&limits(20, 60_000));
        std::thread::sleep(Duration::from_millis(50));
        assert!(meter.left().is_ok());
        burn(Duration::from_millis(25));
        assert_eq!(meter.left(), Ok(1), "it may have been stopped, and be done in a moment");
        burn(TICK);
        assert_eq!(meter.left(), Err(Cause::Deadline { limit_ms: 20 }));
    }

    #[test]
    fn time_that_was_taken_from_the_machine_ends_no_guest() {
        let meter = Meter::start(&limits(20, 60_000));
        // As the kernel counts it, that is all the thread's.
        burn(Duration::from_millis(30));
        assert_eq!(meter.left(), Ok(1));
        // Stopped again, without having run in between.
        assert_eq!(meter.left(), Ok(1));
        burn(TICK);
        assert!(meter.left().is_err(), "it does run");
    }

    #[test]
    fn the_hosts_work_is_not_guest_time() {
        let meter = Meter::start(&limits(20, 60_000));
        meter.leave_guest();
        burn(Duration::from_millis(40));
        meter.enter_guest();
        assert!(meter.left().is_ok());
    }

    #[test]
    fn time_of_several_stretches_adds_up() {
        let meter = Meter::start(&limits(30, 60_000));
        for _ in 0..4 {
            meter.resume();
            burn(Duration::from_millis(10));
            meter.pause();
            burn(Duration::from_millis(10));
        }
        assert!(meter.guest_time() >= Duration::from_millis(40));
        assert_eq!(meter.left(), Ok(1));
        burn(TICK);
        assert!(meter.left().is_err());
    }

    #[test]
    fn the_wall_clock_counts_everything() {
        let meter = Meter::start(&limits(10_000, 20));
        std::thread::sleep(Duration::from_millis(25));
        assert_eq!(meter.left(), Err(Cause::WallClock { limit_ms: 20 }));
    }
}
