//! Policies as sandboxed WebAssembly components.
//!
//! # Contract
//! A [`PolicyEngine`] runs policies; a [`Slot`] is the place of one policy ([`LeaseSlot`], [`ManifestSlot`],
//! [`ReplaySlot`]) and points to the [`Generation`] that serves. Every call has a fresh instance with [`Limits`] of its
//! own, sees only the host functions of its [`World`], and answers with a tag that names exactly what decided. Loading
//! is done off the serving path; a swap is one pointer store. Lease and manifest policies are called synchronously,
//! replay policies asynchronously.
//!
//! This crate knows no ledger, no pods and no HTTP: the ledger's rows come through [`LedgerView`], everything that a
//! replay does through [`ReplayHost`]. It judges no verdict either; who applies one reports what broke the rules
//! ([`Slot::report_violation`]).
//!
//! # Failure modes
//! - A call that fails is a [`PolicyFault`] with the first [`Cause`] and the guest's own words. The instance is gone;
//!   the next call has another, so a trap poisons nobody.
//! - A share of the pool that is full refuses at once ([`Cause::PoolFull`]): a world that waits (replays) can't starve
//!   one that is waited for (decisions).
//! - Faults in a row of one exported function bring the last good generation back, in the end the built-in one.
//! - A load through one process reaches the others on the same root by [`Slot::refresh`].
//! - A load that is refused is a [`LoadError`] with what was expected, what was found, and what mends it.
//! - A damaged or stale entry of the cache of compiled code is a miss, and so is a cache that can't be used.
//! - After a replay call, whatever became of it, [`LeaseRegistry::unsettled`] names the leases that nobody settled.
//!
//! # Rejected
//! - An instance that is kept between calls is faster by the price of making one (about 15 µs), and leaks state from one
//!   caller to the next; and after a trap it can't be entered again.
//! - Fuel is deterministic, but costs a quarter of a small call, and a budget in instructions means nothing to the
//!   person who sets it. Epochs cost less, and the meter makes them count the guest's time and not the host's.
//! - The engine's own cache of compiled code is many times slower to hit, and its entries can't be checked by content.
//! - A second engine for asynchronous calls would double tickers, pools and compiled code.
//! - The ready-made WASI enters a runtime for each write of a synchronous guest, which panics on a runtime's thread.

mod bindings;
mod cache;
mod call;
mod engine;
mod fault;
mod files;
mod generation;
mod lease;
mod limits;
mod link;
mod load;
mod logbook;
mod manifest;
mod meter;
mod replay;
mod shape;
mod slot;
mod store;
mod ticker;
mod wasi;
mod world;

pub use engine::{EngineError, EngineOptions, PolicyEngine};
pub use fault::{Cause, PolicyFault};
pub use generation::{Generation, Origin};
pub use lease::{
    Caller, Change, Decided, EmptyLedger, LeaseKind, LeaseProgram, LeaseRequest, LeaseSlot, LedgerView, Moment,
    PortRequest, Refusal, Row, RowDraft, Scope, Transition, Verdict, WorkerDraft, WorkerKey, WorkerRequest,
};
pub use limits::{LOG_LINE_BYTES, Limits, VIEW_ROWS};
pub use load::{About, Checked, LoadError, check, world_of};
pub use manifest::{Answered, Candidate, Comparison, Difference, ManifestKind, ManifestProgram, ManifestSlot, PodSpec};
pub use replay::{
    Artifact, CallEnd, ClusterError, ControlError, Fallback, LeaseFacts, LeaseHandle, LeaseRegistry, ReplayHost,
    ReplayInput, ReplayKind, ReplayOutcome, ReplayProgram, ReplaySlot, Reply, Settlement, StreamDigest, Target,
    TransportError,
};
pub use slot::{GenerationStatus, Kind, RollbackError, Slot, SlotOptions, Status};
pub use store::Standing;
pub use world::{PACKAGE_VERSION, World};
