//! Every operation as one value, so that a test can make, store and repeat it.

use super::{Call, LeasePolicy, PortRequest, RowDraft, Transition, Verdict, WorkerDraft, WorkerRequest};

/// What happens to a leased worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionKind {
    /// leased → leased.
    Renew,
    /// leased → sanitizing.
    Release,
    /// sanitizing → idle.
    Sanitize,
    /// leased or sanitizing → quarantined.
    Quarantine,
}

impl TransitionKind {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Renew, Self::Release, Self::Sanitize, Self::Quarantine];
}

/// One call of a lease policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Insert or replace one's own row.
    Register(RowDraft),
    /// Refresh one's own row.
    Heartbeat {
        /// The row.
        id: String,
        /// What to merge: JSON text of an object.
        attrs: Option<String>,
    },
    /// Remove one's own row.
    Remove {
        /// The row.
        id: String,
    },
    /// Lease a port.
    LeasePort(PortRequest),
    /// Renew a port's lease.
    RenewPort {
        /// The port.
        port: u16,
        /// Its lease.
        lease_id: String,
    },
    /// Give a port back.
    ReleasePort {
        /// The port.
        port: u16,
        /// Its lease.
        lease_id: String,
    },
    /// Register a worker.
    RegisterWorker(WorkerDraft),
    /// Lease a worker.
    Acquire(WorkerRequest),
    /// Move a leased worker on.
    Transition(TransitionKind, Transition),
}

/// Asks a policy.
///
/// # Errors
/// The policy's refusal.
pub fn decide(policy: &impl LeasePolicy, call: &Call<'_>, operation: &Operation) -> Verdict {
    match operation {
        Operation::Register(draft) => policy.register_resource(call, draft),
        Operation::Heartbeat { id, attrs } => policy.heartbeat(call, id, attrs.as_deref()),
        Operation::Remove { id } => policy.remove_resource(call, id),
        Operation::LeasePort(request) => policy.lease_port(call, request),
        Operation::RenewPort { port, lease_id } => policy.renew_port(call, *port, lease_id),
        Operation::ReleasePort { port, lease_id } => policy.release_port(call, *port, lease_id),
        Operation::RegisterWorker(draft) => policy.register_worker(call, draft),
        Operation::Acquire(request) => policy.acquire_worker(call, request),
        Operation::Transition(kind, request) => policy.transition(call, *kind, request),
    }
}
