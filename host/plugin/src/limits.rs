//! What one call of a policy may use, and the limiter that holds it to that.
//!
//! Every field is non-zero by its type: a limit of nothing would be a policy that can't run, and a limit that is absent
//! would be one that nobody set. A limit is of one *call*: each call has a fresh instance, so nothing adds up.

use crate::fault::Cause;
use crate::world::World;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;
use wasmtime::ResourceLimiter;

/// The longest line that a policy may write through `log`; the rest is cut. Units: bytes.
pub const LOG_LINE_BYTES: usize = 1024;
/// How many rows one answer of `ledger-view` may have, whatever the policy asks for.
pub const VIEW_ROWS: u32 = 1000;

const MIB: usize = 1024 * 1024;

/// The limits of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Bytes of all linear memories of the call together.
    pub memory: NonZeroUsize,
    /// How many linear memories.
    pub memories: NonZeroUsize,
    /// How many tables.
    pub tables: NonZeroUsize,
    /// Elements of all tables together.
    pub table_elements: NonZeroUsize,
    /// How many core instances (a Rust guest has 1 to 4, a Python one 38).
    pub instances: NonZeroUsize,
    /// How many handles (leases, streams) may be alive at once.
    pub handles: NonZeroUsize,
    /// Milliseconds of processor time of the guest. Waiting for the host is not counted.
    pub guest_ms: NonZeroU32,
    /// Milliseconds by the wall clock from the call's start to its end, host calls included.
    pub wall_ms: NonZeroU32,
    /// Bytes that go between guest and host in either direction.
    pub host_bytes: NonZeroUsize,
    /// How many calls of the host's functions.
    pub host_calls: NonZeroU32,
    /// How many lines are kept of what the guest writes; more are counted.
    pub log_lines: NonZeroU32,
    /// Bytes of the component itself.
    pub component: NonZeroUsize,
}

/// `NonZero` of a constant; a zero becomes one rather than a panic.
const fn size(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

const fn count(n: u32) -> NonZeroU32 {
    match NonZeroU32::new(n) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    }
}

impl Limits {
    /// Common to every world: the shape of a component, which doesn't depend on what it decides.
    const BASE: Self = Self {
        memory: size(16 * MIB),
        // An adapter or a second module may bring its own; more is unusual.
        memories: size(4),
        // A Python component has one table for each of its libraries.
        tables: size(48),
        table_elements: size(40_000),
        // componentize-py makes 38.
        instances: size(48),
        handles: size(256),
        guest_ms: count(25),
        wall_ms: count(1000),
        host_bytes: size(4 * MIB),
        host_calls: count(10_000),
        log_lines: count(64),
        // StarlingMonkey is 12 MB and Python 18 MB, so this leaves room for a library.
        component: size(64 * MIB),
    };

    /// The limits of a world where the configuration says nothing else.
    #[must_use]
    pub const fn of(world: World) -> Self {
        match world {
            // Decides inside the ledger's transaction, one after the other: others wait while it thinks. A built-in
            // decision takes 0.02 ms, a Python one 1 ms. Far more is allowed, since what a hypervisor takes from the machine is
            // counted as the guest's time too, and the first calls after a start bring memory in; one that loops costs
            // this three times, and then its place. The wall is for a machine that doesn't get round to it.
            World::Lease => Self::BASE,
            // Renders and compares documents of some 100 KB; nobody holds a lock meanwhile.
            World::Manifest => Self { memory: size(32 * MIB), guest_ms: count(50), wall_ms: count(5000), ..Self::BASE },
            // Waits for pods: minutes by the wall (prepare may wait 900 s for a pod, and has calls before and after),
            // but little thinking. Its host calls bring pods and artifacts' digests, not artifacts.
            World::Replay => Self {
                memory: size(32 * MIB),
                guest_ms: count(2000),
                wall_ms: count(1_200_000),
                host_bytes: size(64 * MIB),
                host_calls: count(2000),
                log_lines: count(256),
                ..Self::BASE
            },
        }
    }

    /// The same limits for the questions of a load (`identify`, `check-settings`, the self-test): ten times the guest
    /// time, as settings may be long, nobody waits in a transaction, and a first call warms code and memory.
    #[must_use]
    pub fn for_load(self) -> Self {
        Self { guest_ms: self.guest_ms.saturating_mul(count(10)), wall_ms: self.wall_ms.min(count(10_000)), ..self }
    }

    /// Guest time as a duration.
    #[must_use]
    pub fn guest(&self) -> Duration {
        Duration::from_millis(self.guest_ms.get().into())
    }

    /// Wall clock as a duration.
    #[must_use]
    pub fn wall(&self) -> Duration {
        Duration::from_millis(self.wall_ms.get().into())
    }
}

/// Holds memory and tables of one store to its [`Limits`].
///
/// A growth that is refused doesn't end the call (`memory.grow` answers -1, and a runtime with a collector may go on);
/// it is remembered, so that the trap that mostly follows is told as what it was.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    memory: usize,
    elements: usize,
    refused: Option<Cause>,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { limits: *limits, memory: 0, elements: 0, refused: None }
    }

    /// The first growth that was refused.
    pub(crate) fn refused(&self) -> Option<&Cause> {
        self.refused.as_ref()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory.saturating_sub(current).saturating_add(desired);
        if total > self.limits.memory.get() {
            self.refused
                .get_or_insert(Cause::Memory { wanted: total as u64, allowed: self.limits.memory.get() as u64 });
            return Ok(false);
        }
        self.memory = total;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.elements.saturating_sub(current).saturating_add(desired);
        if total > self.limits.table_elements.get() {
            self.refused
                .get_or_insert(Cause::Table { wanted: total as u64, allowed: self.limits.table_elements.get() as u64 });
            return Ok(false);
        }
        self.elements = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.limits.instances.get()
    }

    fn tables(&self) -> usize {
        self.limits.tables.get()
    }

    fn memories(&self) -> usize {
        self.limits.memories.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { memory: size(1000), table_elements: size(10), ..Limits::of(World::Lease) }
    }

    #[test]
    fn memories_are_counted_together() {
        let mut limiter = Limiter::new(&limits());
        assert!(limiter.memory_growing(0, 600, None).unwrap());
        assert!(!limiter.memory_growing(0, 600, None).unwrap(), "a second memory has only what the first left");
        assert!(limiter.memory_growing(0, 400, None).unwrap());
        assert!(!limiter.memory_growing(400, 401, None).unwrap());
        assert_eq!(limiter.refused(), Some(&Cause::Memory { wanted: 1200, allowed: 1000 }), "the first one is kept");
    }

    #[test]
    fn a_refused_growth_is_not_counted() {
        let mut limiter = Limiter::new(&limits());
        assert!(!limiter.memory_growing(0, usize::MAX, None).unwrap());
        assert!(limiter.memory_growing(0, 1000, None).unwrap());
    }

    #[test]
    fn table_elements_are_counted_together() {
        let mut limiter = Limiter::new(&limits());
        assert!(limiter.table_growing(0, 10, None).unwrap());
        assert!(!limiter.table_growing(0, 1, None).unwrap());
        assert_eq!(limiter.refused(), Some(&Cause::Table { wanted: 11, allowed: 10 }));
    }

    #[test]
    fn a_load_has_more_time_but_no_more_of_anything_else() {
        for world in World::ALL {
            let (call, load) = (Limits::of(world), Limits::of(world).for_load());
            assert!(load.guest() > call.guest());
            assert!(load.wall() <= Duration::from_secs(10));
            assert_eq!(Limits { guest_ms: call.guest_ms, wall_ms: call.wall_ms, ..load }, call);
        }
    }
}
