//! The one engine of the process, its pool of instances, and each world's share of it.
//!
//! One engine serves synchronous and asynchronous calls alike: which one a store is decides itself at the call. Two
//! engines would mean two tickers, two pools and twice the compiled code.

use crate::cache::Cache;
use crate::fault::Cause;
use crate::lease::LeaseHost;
use crate::manifest::ManifestHost;
use crate::replay::ReplayCall;
use crate::ticker::{Running, Ticker};
use crate::{World, call::Host, link};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Places for lease decisions. The ledger's writer asks one after the other; the rest is for evaluating recorded
/// decisions and for two daemons' worth of tests in one process.
const LEASE_PLACES: u32 = 16;
/// Places for rendering and verifying: short, from any thread, so about as many as threads could want.
const MANIFEST_PLACES: u32 = 32;
/// Places for replays. They last for minutes, so this is how many replays a daemon can drive at once.
const REPLAY_PLACES: u32 = 64;
/// Places for the questions of a load (identify, check-settings, self-test), so that a load works under full traffic.
const LOAD_PLACES: u32 = 8;
/// All places: every share can be full at once, so no world can starve another.
const PLACES: u32 = LEASE_PLACES + MANIFEST_PLACES + REPLAY_PLACES + LOAD_PLACES;

/// The largest component in parts is a Python one with 38 core instances. A pool of the engine's own default (1,000)
/// would hold 26 of those; instances cost nothing until they are made, so every place may be a Python one.
const CORE_INSTANCES_A_PLACE: u32 = 40;
/// Most components have one memory; an adapter or a second language brings another. A slot costs address space only.
const MEMORIES_A_PLACE: u32 = 2;
/// The same libraries that make a Python component many instances share one table, but bring a few of their own.
const TABLES_A_PLACE: u32 = 8;
/// Elements that a pooled table has room for: StarlingMonkey has about 15,000 functions in its table.
const TABLE_ELEMENTS: usize = 40_000;
/// Tables and memories that one core module may define.
const PARTS_A_MODULE: u32 = 4;
/// The memory of one slot, which no configured limit can exceed. The reservation behind it is 4 GiB of address space, so
/// that the compiler can leave bounds checks out.
const SLOT_MEMORY: usize = 1 << 30;
/// What a slot keeps resident between calls, reset by writing rather than by giving pages back: a lease policy touches
/// about 200 KiB. More made no difference where it was measured, and idle memory is this times the warm slots.
const KEEP_MEMORY: usize = 256 * 1024;
/// The same for tables: 1,024 elements.
const KEEP_TABLE: usize = 8 * 1024;
/// Slots that stay warm without a call: a handful for each of three policies.
const WARM_SLOTS: u32 = 16;
/// The guest's own stack. A Python guest recurses deeper than a Rust one; half a mebibyte carries 1,000 Python frames.
const GUEST_STACK: usize = 512 * 1024;
/// A fiber's stack: the guest's, and what the host's functions need on top of it (serialising, a runtime's frames).
const FIBER_STACK: usize = 2 * 1024 * 1024;

/// How an engine is made.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Where compiled code is kept; `None`, or a folder that can't be used, compiles anew each time.
    pub cache_dir: Option<PathBuf>,
}

/// No engine could be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine refused its configuration, or the system refused the pool's address space.
    #[error("the policy engine can't start: {0}; if memory is limited (ulimit -v), lift the limit")]
    Engine(String),
    /// No thread could be started.
    #[error("the policy engine's clock can't start: {0}")]
    Ticker(std::io::Error),
}

impl EngineError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Engine(_) => "policy-engine",
            Self::Ticker(_) => "policy-ticker",
        }
    }
}

/// Runs policies. Cheap to clone; one a process.
#[derive(Clone)]
pub struct PolicyEngine {
    inner: Arc<Inner>,
}

/// What an engine is made of. Not to be named outside of this crate.
pub struct Inner {
    pub(crate) engine: Engine,
    pub(crate) lease: Linker<Host<LeaseHost>>,
    pub(crate) manifest: Linker<Host<ManifestHost>>,
    pub(crate) replay: Linker<Host<ReplayCall>>,
    pub(crate) cache: Option<Cache>,
    ticker: Ticker,
    shares: [Share; 3],
    load: Share,
    /// Compiling takes all cores for a moment: one at a time.
    pub(crate) compiling: parking_lot::Mutex<()>,
    pagemap_scan: Result<(), &'static str>,
}

impl std::fmt::Debug for PolicyEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyEngine").field("pagemap_scan", &self.inner.pagemap_scan).finish_non_exhaustive()
    }
}

impl PolicyEngine {
    /// Makes an engine and starts its ticker. Takes about a millisecond.
    ///
    /// # Errors
    /// When the system gives no address space or no thread.
    pub fn new(options: &EngineOptions) -> Result<Self, EngineError> {
        let pagemap_scan = pagemap_scan();
        if let Err(reason) = pagemap_scan {
            tracing::info!(reason, "memory of policies is reset without PAGEMAP_SCAN: a call costs some 35 µs more");
        }
        let engine_error = |error: wasmtime::Error| EngineError::Engine(format!("{error:#}"));
        let engine = Engine::new(&config(pagemap_scan.is_ok())).map_err(engine_error)?;
        let cache = match &options.cache_dir {
            None => None,
            // Without a cache everything is slower, and nothing else: no reason not to start.
            Some(path) => Cache::open(path, &engine)
                .inspect_err(|error| {
                    tracing::warn!(path = %path.display(), %error, "the cache of compiled policies can't be used: policies are compiled at each start; make it a folder of the daemon's user");
                })
                .ok(),
        };
        let inner = Inner {
            lease: link::lease(&engine).map_err(engine_error)?,
            manifest: link::manifest(&engine).map_err(engine_error)?,
            replay: link::replay(&engine).map_err(engine_error)?,
            cache,
            ticker: Ticker::start(&engine).map_err(EngineError::Ticker)?,
            shares: [Share::new(LEASE_PLACES), Share::new(MANIFEST_PLACES), Share::new(REPLAY_PLACES)],
            load: Share::new(LOAD_PLACES),
            compiling: parking_lot::Mutex::new(()),
            pagemap_scan,
            engine,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How many calls of a world can run at once. One more is refused, not queued.
    #[must_use]
    pub fn places(&self, world: World) -> u32 {
        self.inner.share(world).places
    }

    /// Whether memory is reset with the kernel's `PAGEMAP_SCAN`, or why not.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn pagemap_scan(&self) -> Result<(), &'static str> {
        self.inner.pagemap_scan
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Inner {
    fn share(&self, world: World) -> &Share {
        let [lease, manifest, replay] = &self.shares;
        match world {
            World::Lease => lease,
            World::Manifest => manifest,
            World::Replay => replay,
        }
    }

    /// A place for one call, with the epoch moving while it is held.
    pub(crate) fn enter(&self, world: World) -> Result<Place<'_>, Cause> {
        self.take(self.share(world), world)
    }

    /// The same for a question of a load.
    pub(crate) fn enter_load(&self, world: World) -> Result<Place<'_>, Cause> {
        self.take(&self.load, world)
    }

    fn take<'a>(&'a self, share: &'a Share, world: World) -> Result<Place<'a>, Cause> {
        let taken =
            share.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < share.places).then_some(n + 1));
        match taken {
            Ok(_) => Ok(Place { share, _running: self.ticker.running() }),
            Err(_) => Err(Cause::PoolFull { world, places: share.places }),
        }
    }
}

/// The places of one world.
#[derive(Debug)]
struct Share {
    places: u32,
    in_use: AtomicU32,
}

impl Share {
    const fn new(places: u32) -> Self {
        Self { places, in_use: AtomicU32::new(0) }
    }
}

/// One place in the pool, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    share: &'a Share,
    _running: Running<'a>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.share.in_use.fetch_sub(1, Ordering::AcqRel);
    }
}

fn config(pagemap_scan: bool) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(PLACES)
        .total_core_instances(PLACES * CORE_INSTANCES_A_PLACE)
        .total_memories(PLACES * MEMORIES_A_PLACE)
        .total_tables(PLACES * TABLES_A_PLACE)
        // Only asynchronous calls have fibers: replays, and loads of replay policies.
        .total_stacks(REPLAY_PLACES + LOAD_PLACES)
        .max_tables_per_module(PARTS_A_MODULE)
        .max_memories_per_module(PARTS_A_MODULE)
        .table_elements(TABLE_ELEMENTS)
        .max_memory_size(SLOT_MEMORY)
        .linear_memory_keep_resident(KEEP_MEMORY)
        .table_keep_resident(KEEP_TABLE)
        .max_unused_warm_slots(WARM_SLOTS)
        .pagemap_scan(if pagemap_scan { Enabled::Yes } else { Enabled::No });

    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .wasm_component_model(true)
        // Nothing here uses component-model async, and its bookkeeping quadruples a call.
        .concurrency_support(false)
        // Fuel costs a quarter of a small call, epochs a sixth; and time is what a caller waits for.
        .epoch_interruption(true)
        .max_wasm_stack(GUEST_STACK)
        .async_stack_size(FIBER_STACK)
        // A trap's backtrace costs more than the call; the guest's own words are kept instead.
        .wasm_backtrace_max_frames(None);
    config
}

/// Whether `PAGEMAP_SCAN` can be used: the kernel must have it (Linux 6.7), and there must be no swap, since an open
/// report says that it may miss dirty pages that were swapped out, and then one caller would see another's memory.
fn pagemap_scan() -> Result<(), &'static str> {
    if !PoolingAllocationConfig::is_pagemap_scan_available() {
        return Err("the kernel has no PAGEMAP_SCAN (Linux 6.7 and newer have it)");
    }
    match std::fs::read_to_string("/proc/swaps") {
        Ok(swaps) => without_swap(&swaps),
        Err(_) => Err("/proc/swaps can't be read, so the machine may have swap"),
    }
}

/// `/proc/swaps` has one heading, then a line for each swap area.
fn without_swap(swaps: &str) -> Result<(), &'static str> {
    if swaps.lines().filter(|line| !line.trim().is_empty()).count() > 1 {
        return Err("the machine has swap, and PAGEMAP_SCAN may miss pages that were swapped out");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_turns_pagemap_scan_off() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(without_swap(heading).is_ok());
        assert!(without_swap("").is_ok());
        assert!(without_swap(&format!("{heading}/dev/sda2 partition 8388604 0 -2\n")).is_err());
    }

    #[test]
    fn a_full_share_refuses_and_leaves_the_others_alone() {
        let engine = PolicyEngine::new(&EngineOptions::default()).unwrap();
        let inner = engine.inner();
        let held: Vec<_> = (0..REPLAY_PLACES).map(|_| inner.enter(World::Replay).unwrap()).collect();
        assert_eq!(
            inner.enter(World::Replay).unwrap_err(),
            Cause::PoolFull { world: World::Replay, places: REPLAY_PLACES }
        );
        drop(inner.enter(World::Lease).unwrap());
        drop(inner.enter_load(World::Replay).unwrap());
        drop(held);
        drop(inner.enter(World::Replay).unwrap());
    }
}
