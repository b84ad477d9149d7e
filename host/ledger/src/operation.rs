//! What can be asked of the ledger, who decides it, and what comes back.

use crate::row::{Instant, Kind, Row, WorkerKey};
use std::sync::Arc;

/// Which kind of token was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The operator.
    Admin,
    /// A caller that leases.
    Member,
    /// Reads only.
    Query,
    /// A machine's own token.
    Machine,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// SHA-256 (hex) of the token, or of `machine:NAME` for a machine's token.
    pub owner: String,
    /// See [`Scope`].
    pub scope: Scope,
    /// Set for a machine's token alone.
    pub machine: Option<String>,
}

/// The time and the fresh id of one decision; taken under the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The host's clock.
    pub now: Instant,
    /// A UUID that no other decision gets.
    pub fresh_id: String,
}

/// A row as a client wants it. `attrs` is canonical JSON text of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct RowDraft {
    /// The row's id.
    pub id: String,
    /// Its kind.
    pub kind: Kind,
    /// Its machine.
    pub machine: String,
    /// Its name.
    pub name: String,
    /// Its endpoint.
    pub endpoint: Option<String>,
    /// Its attributes.
    pub attrs: Arc<str>,
    /// Its time to live.
    pub ttl_ms: f64,
}

/// One port of a band for a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct PortRequest {
    /// For which machine.
    pub machine: String,
    /// What for.
    pub purpose: String,
    /// Already clipped to 24 h by the host.
    pub ttl_ms: f64,
    /// Ports that the caller knows to be taken.
    pub excluded: Vec<u16>,
    /// First port of the band.
    pub first: u16,
    /// Last port of the band.
    pub last: u16,
}

/// A worker that a machine brings.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerDraft {
    /// `[a-zA-Z0-9][a-zA-Z0-9._-]{0,95}`, used once, ever.
    pub worker_id: String,
    /// Its machine.
    pub machine: String,
    /// Its key.
    pub key: WorkerKey,
    /// The key as it was sent, with whatever else it holds (canonical JSON object).
    pub key_json: Arc<str>,
    /// The pod that it is.
    pub pod_uid: Option<String>,
    /// How long it counts as idle, 1 to 86,400,000.
    pub ttl_ms: u64,
}

/// A worker that a member wants.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRequest {
    /// Only of this machine.
    pub machine: Option<String>,
    /// With this key.
    pub key: WorkerKey,
    /// The caller's run.
    pub run_id: String,
    /// The caller's attempt.
    pub attempt_id: String,
    /// The lease's time to live, 1 to 86,400,000.
    pub ttl_ms: u64,
}

/// What happens to a leased worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// A transition with its fence: lease and generation must both be the row's.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Which.
    pub kind: TransitionKind,
    /// The worker.
    pub worker_id: String,
    /// The lease.
    pub lease_id: String,
    /// The lease's generation.
    pub generation: u64,
    /// A new time to live, 1 to 86,400,000.
    pub ttl_ms: Option<u64>,
    /// Why.
    pub reason: Option<String>,
}

/// Everything that a policy decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Insert or replace one's own row.
    Register(RowDraft),
    /// Refresh one's own row; `attrs` are merged (canonical JSON object).
    Heartbeat {
        /// The row.
        id: String,
        /// What to merge.
        attrs: Option<Arc<str>>,
    },
    /// Remove one's own row.
    Remove {
        /// The row.
        id: String,
    },
    /// Lease the lowest free port.
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
    AcquireWorker(WorkerRequest),
    /// Move a leased worker on.
    Transition(Transition),
}

/// Rows as a policy wants them written: text that nobody has looked at yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ProposedRow {
    /// As in [`Row`].
    pub id: String,
    /// As in [`Row`], unchecked.
    pub kind: String,
    /// As in [`Row`].
    pub machine: String,
    /// As in [`Row`].
    pub name: String,
    /// As in [`Row`], unchecked.
    pub owner: String,
    /// As in [`Row`].
    pub endpoint: Option<String>,
    /// Unparsed.
    pub attrs: String,
    /// Unchecked.
    pub observed_at: Instant,
    /// Unchecked.
    pub ttl_ms: f64,
}

/// What a policy wants written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Rows to insert or replace.
    pub put: Vec<ProposedRow>,
    /// Ids to remove.
    pub remove: Vec<String>,
}

/// Why a policy turned a request down. Nothing else about the ledger can leave in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the code that it stands for")]
pub enum Refusal {
    NotFound,
    NotOwner,
    Invalid,
    Conflict,
    StaleWorkerLease,
    NoWarmWorker,
    WorkerIdUsed,
    WorkerIdConflict,
    LeaseExpired,
    NotLeased,
    NotSanitizing,
    AlreadyQuarantined,
    NoPort,
    PortLeaseRequiresAllocator,
    PodWorkerRequiresAllocator,
    OverQuota,
    NotNow,
}

impl Refusal {
    /// Every one.
    pub const ALL: [Self; 17] = [
        Self::NotFound,
        Self::NotOwner,
        Self::Invalid,
        Self::Conflict,
        Self::StaleWorkerLease,
        Self::NoWarmWorker,
        Self::WorkerIdUsed,
        Self::WorkerIdConflict,
        Self::LeaseExpired,
        Self::NotLeased,
        Self::NotSanitizing,
        Self::AlreadyQuarantined,
        Self::NoPort,
        Self::PortLeaseRequiresAllocator,
        Self::PodWorkerRequiresAllocator,
        Self::OverQuota,
        Self::NotNow,
    ];

    /// The stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::NotOwner => "not-owner",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::StaleWorkerLease => "stale-worker-lease",
            Self::NoWarmWorker => "no-warm-worker",
            Self::WorkerIdUsed => "worker-id-used",
            Self::WorkerIdConflict => "worker-id-conflict",
            Self::LeaseExpired => "lease-expired",
            Self::NotLeased => "not-leased",
            Self::NotSanitizing => "not-sanitizing",
            Self::AlreadyQuarantined => "already-quarantined",
            Self::NoPort => "no-port",
            Self::PortLeaseRequiresAllocator => "port-lease-requires-allocator",
            Self::PodWorkerRequiresAllocator => "pod-worker-requires-allocator",
            Self::OverQuota => "over-quota",
            Self::NotNow => "not-now",
        }
    }

    /// The HTTP status that clients of the original know.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::NotOwner | Self::PortLeaseRequiresAllocator | Self::PodWorkerRequiresAllocator => 403,
            Self::Invalid => 400,
            Self::NotNow => 503,
            Self::OverQuota => 429,
            _ => 409,
        }
    }
}

/// The ledger as it stands inside the transaction that asks. Answers from memory; `page` and `idle_workers` are capped
/// by the caller.
pub trait View: Send + Sync + 'static {
    /// The row with this id.
    fn get(&self, id: &str) -> Option<Arc<Row>>;
    /// Idle workers with this key that aren't expired at `unexpired_at`, in ledger order (registration).
    fn idle_workers(
        &self,
        key: &WorkerKey,
        machine: Option<&str>,
        unexpired_at: Instant,
        limit: usize,
    ) -> Vec<Arc<Row>>;
    /// Rows of one kind in id order after `after`.
    fn page(&self, kind: Kind, after: Option<&str>, limit: usize) -> Vec<Arc<Row>>;
}

/// A policy's answer and who gave it: `NAME@sha256:DIGEST#GENERATION`.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What to write, or why not.
    pub verdict: Result<Change, Refusal>,
    /// The policy that decided.
    pub policy: Arc<str>,
}

/// The policy gave no answer (trap, deadline, exhausted limit).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct PolicyFailure {
    /// A stable code: `trap`, `deadline`, `memory`, ….
    pub code: String,
    /// For the log: the first cause and the guest's own message.
    pub message: String,
    /// The policy that failed.
    pub policy: Arc<str>,
}

/// Decides. Called on the writer's thread, inside its transaction, one call after the other.
///
/// The view must not be kept: a clone that outlives the call makes the ledger read all rows anew.
pub trait Decider: Send + Sync + 'static {
    /// Decides one operation.
    ///
    /// # Errors
    /// The policy gave no answer; nothing is written.
    fn decide(
        &self,
        view: Arc<dyn View>,
        at: &Moment,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Decision, PolicyFailure>;

    /// The fence turned the change of this policy down: nothing was written, and it counts against the policy.
    fn violated(&self, policy: &str, violation: &str);
}

/// What is known of the primary at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryView {
    /// The holder, when known.
    pub holder: Option<String>,
    /// Its generation, when known.
    pub generation: Option<u64>,
    /// Whether this machine may write.
    pub held_here: bool,
    /// Whether the document was there and could be read.
    pub known: bool,
}

/// Reads the primary document, freshly, on the writer's thread.
pub trait Primary: Send + Sync + 'static {
    /// Reads it now. None: no primary is configured.
    fn read(&self) -> Option<PrimaryView>;
    /// Whether it is still what the last [`Primary::read`] of this thread saw (a stat is enough).
    fn unchanged(&self) -> bool;
}

/// What a request of a worker route must find when the lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Whether the primary is to be read again under the lock.
    pub worker_route: bool,
    /// The primary's generation that the request saw; another one by now refuses it. None: any.
    pub seen_generation: Option<u64>,
}

/// Which worker the host's own quarantine means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meant {
    /// Whatever it does.
    Any,
    /// Only if nobody has leased it.
    Idle,
    /// Only under this lease.
    Lease(String),
}

/// One request for a change.
#[derive(Clone, Debug)]
pub struct Submission {
    /// What is asked.
    pub operation: Operation,
    /// By whom.
    pub caller: Caller,
    /// See [`Guard`].
    pub guard: Guard,
    /// Until when it may wait for the lock.
    pub deadline: std::time::Instant,
}

/// A change that is durable.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The row that was written; none after a removal.
    pub row: Option<Arc<Row>>,
    /// The policy that decided; `host` for the host's own quarantine.
    pub policy: Arc<str>,
    /// The primary as it was read under the lock, for worker routes.
    pub primary: Option<PrimaryView>,
}

/// No primary is configured.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrimary;

impl Primary for NoPrimary {
    fn read(&self) -> Option<PrimaryView> {
        None
    }

    fn unchanged(&self) -> bool {
        true
    }
}
