//! Replay policies: they drive one replay, asynchronously, through leases that the host spends for them.
//!
//! A guest holds a lease as a handle of a table that is the host's; the handle says *which* lease is meant and gives no
//! right by itself. Whatever the guest does with its handles (drops, leaks, traps, never returns), the caller learns
//! which leases nobody settled: from [`CallEnd::unsettled`], or, when it dropped the call's future, from the
//! [`LeaseRegistry`] that it gave to the call. The engine's destructors are not relied on: none runs after a trap, for a
//! leaked handle or in a cancelled future.

mod host;
mod imports;
mod registry;
mod run;

pub use crate::bindings::replay::exports::warmhold::policy::replay::{Fallback, ReplayInput};
pub use crate::bindings::replay::warmhold::policy::cluster::{ClusterError, Target};
pub use crate::bindings::replay::warmhold::policy::control::ControlError;
pub use crate::bindings::replay::warmhold::policy::transport::{Artifact, Reply, StreamDigest, TransportError};
pub use host::{LeaseFacts, ReplayHost, Settlement};
pub use registry::{LeaseHandle, LeaseRegistry};
pub use run::{CallEnd, ReplayKind, ReplayOutcome, ReplayProgram, ReplaySlot};

#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub use host::HeldLease;
pub(crate) use imports::ReplayCall;
