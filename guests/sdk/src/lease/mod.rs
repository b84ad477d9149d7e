//! Lease policies: who gets which worker, and every other change of the ledger.
//!
//! [`LeasePolicy`] has one method for each operation, and each does what `standard` does until it is overridden. A policy
//! that only chooses workers differently overrides [`LeasePolicy::pick_worker`].
//!
//! # What the host refuses whatever a policy says
//! An operation may put exactly the row that it names; id, kind, name, machine, key, pod UID and owner never change; the
//! generation rises by one at acquire and nowhere else; the lease id is the call's fresh id; `observed-at` is now; worker
//! rows are never removed. Anything else is a violation: nothing is written, and it counts against the policy.
//! [`harness::Harness`] checks the same on a policy that runs natively.

#[doc(hidden)]
pub mod component;
pub mod harness;
mod operation;
pub mod standard;

pub use crate::types::{Caller, Refusal, Row, Scope, WorkerKey};
pub use operation::{Operation, TransitionKind, decide};
pub use warmhold_bindings_lease::exports::warmhold::policy::leases::{
    Change, Moment, PortRequest, RowDraft, Transition, WorkerDraft, WorkerRequest,
};

use crate::{Environment, Policy};

/// What the host is to write, or why not.
pub type Verdict = Result<Change, Refusal>;

/// The ledger as it stands inside the transaction that asks. Reads only.
pub trait Ledger {
    /// The row with this id.
    fn get(&self, id: &str) -> Option<Row>;
    /// Idle workers with this key that aren't expired at `unexpired_at`, in the order in which they were registered, at
    /// most `limit`; the host has a limit of its own.
    fn idle_workers(&self, key: &WorkerKey, machine: Option<&str>, unexpired_at: u64, limit: u32) -> Vec<Row>;
    /// Rows of one kind in id order after `after`, at most `limit`; the host has a limit of its own.
    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<Row>;
}

/// Everything that one decision may know.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The ledger inside the transaction.
    pub ledger: &'a dyn Ledger,
    /// The time, taken under the lock, and an id that no other decision gets.
    pub at: &'a Moment,
    /// Who asks.
    pub who: &'a Caller,
    /// Settings and log.
    pub environment: &'a dyn Environment,
}

impl Call<'_> {
    /// The idle workers that would do for this request, in the order in which they were registered.
    #[must_use]
    pub fn idle_workers(&self, request: &WorkerRequest, limit: u32) -> Vec<Row> {
        self.ledger.idle_workers(&request.key, request.machine.as_deref(), self.at.now, limit)
    }
}

/// A lease policy. Every method does the standard thing until it is overridden.
pub trait LeasePolicy: Policy {
    /// Which idle worker a request gets; none: `no-warm-worker`. As it stands: the one that was registered first.
    fn pick_worker(&self, call: &Call<'_>, request: &WorkerRequest) -> Option<Row> {
        call.idle_workers(request, 1).into_iter().next()
    }

    /// Inserts or replaces the caller's own row.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn register_resource(&self, call: &Call<'_>, draft: &RowDraft) -> Verdict {
        standard::register_resource(call, draft)
    }

    /// Refreshes the caller's own row and merges `attrs` (JSON text of an object) into it.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn heartbeat(&self, call: &Call<'_>, id: &str, attrs: Option<&str>) -> Verdict {
        standard::heartbeat(call, id, attrs)
    }

    /// Removes the caller's own row.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn remove_resource(&self, call: &Call<'_>, id: &str) -> Verdict {
        standard::remove_resource(call, id)
    }

    /// Leases a port of the band.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn lease_port(&self, call: &Call<'_>, request: &PortRequest) -> Verdict {
        standard::lease_port(call, request)
    }

    /// Renews a port's lease.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn renew_port(&self, call: &Call<'_>, port: u16, lease_id: &str) -> Verdict {
        standard::renew_port(call, port, lease_id)
    }

    /// Gives a port back.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn release_port(&self, call: &Call<'_>, port: u16, lease_id: &str) -> Verdict {
        standard::release_port(call, port, lease_id)
    }

    /// Registers a worker.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn register_worker(&self, call: &Call<'_>, draft: &WorkerDraft) -> Verdict {
        standard::register_worker(call, draft)
    }

    /// Leases the worker that [`LeasePolicy::pick_worker`] picks.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn acquire_worker(&self, call: &Call<'_>, request: &WorkerRequest) -> Verdict {
        let row = self.pick_worker(call, request).ok_or(Refusal::NoWarmWorker)?;
        standard::acquire(call, request, row)
    }

    /// Moves a leased worker on: renew, release, sanitize or quarantine.
    ///
    /// # Errors
    /// The refusal that the caller gets.
    fn transition(&self, call: &Call<'_>, kind: TransitionKind, request: &Transition) -> Verdict {
        standard::transition(call, kind, request)
    }
}
