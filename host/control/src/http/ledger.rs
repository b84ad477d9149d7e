//! The way to the ledger: one operation, or a read, and what its refusals look like over HTTP.

use super::checks::not_primary;
use super::exchange::Exchange;
use super::within;
use crate::error::ApiError;
use http::StatusCode;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use warmhold_ledger::{ApplyError, Guard, Kind, Ledger, Operation, ReadError, Refusal, Row, Submission};

/// A decision that was written.
pub(super) struct Written {
    /// The row as it now is; None after a removal.
    pub(super) row: Option<Arc<Row>>,
    pub(super) policy: Arc<str>,
}

impl Written {
    /// The row, where the operation always leaves one.
    pub(super) fn row(&self) -> Result<&Row, ApiError> {
        self.row.as_deref().ok_or_else(|| {
            tracing::error!("the ledger answered no row where one was written");
            ApiError::internal()
        })
    }
}

/// Whether the third look at the primary is wanted, under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guarded {
    /// A worker route: nothing is written unless this machine still is the primary that the request saw.
    Worker,
    /// Anything else.
    No,
}

/// Has one operation decided and written.
pub(super) async fn apply(
    exchange: &mut Exchange,
    operation: Operation,
    guarded: Guarded,
) -> Result<Written, ApiError> {
    let options = &exchange.control.options;
    let submission = Submission {
        operation,
        caller: exchange.caller()?.clone(),
        guard: Guard {
            worker_route: guarded == Guarded::Worker,
            seen_generation: exchange.primary.as_ref().and_then(|view| view.generation),
        },
        deadline: exchange.started + options.limits.write_time,
    };
    match options.ledger.apply(submission).await {
        Ok(applied) => Ok(Written { row: applied.row, policy: applied.policy }),
        Err(error) => {
            if let ApplyError::NotPrimary { view: Some(view) } = &error {
                exchange.shown = Some(view.clone());
            }
            Err(refusal(&exchange.id, &error))
        }
    }
}

/// The second look at the primary, for worker routes: fresh, and still what the request saw at first.
pub(super) async fn fresh_primary(exchange: &mut Exchange) -> Result<(), ApiError> {
    let unmeasured = || {
        ApiError::conflict("primary-unmeasured", "worker routes need a primary document, and none is configured")
            .with_help("start the daemon without --no-primary, or with --primary-lease FILE")
    };
    let seen = exchange.primary.as_ref().ok_or_else(unmeasured)?.generation;
    let source = Arc::clone(&exchange.control.options.primary);
    let fresh = source.fresh().await.ok_or_else(unmeasured)?;
    let same = fresh.known && fresh.held_here && fresh.generation == seen;
    exchange.shown = Some(fresh);
    if same { Ok(()) } else { Err(not_primary(exchange.shown.as_ref())) }
}

/// A machine's token touches only rows of its own machine; a row that isn't there is nobody's.
pub(super) async fn own_machine(exchange: &Exchange, id: &str) -> Result<(), ApiError> {
    let Some(machine) = exchange.caller()?.machine.clone() else { return Ok(()) };
    let reads = &exchange.control.reads;
    let owner = match reads.workers.machine(id) {
        Some(owner) => Some(owner),
        None => row(exchange, id).await?.map(|row| reads.workers.keep(row)),
    };
    match owner {
        Some(owner) if *owner != *machine => Err(machine_scope(&machine)),
        _ => Ok(()),
    }
}

/// 403 `machine-scope`.
pub(super) fn machine_scope(machine: &str) -> ApiError {
    ApiError::forbidden("machine-scope", format!("this token speaks for {machine} alone"))
}

/// One row, read without waiting for writes.
pub(super) async fn row(exchange: &Exchange, id: &str) -> Result<Option<Row>, ApiError> {
    let id = id.to_owned();
    exchange.control.reads.read(move |ledger| ledger.row(&id)).await
}

/// Reads at the same time: more would only wait for each other, and a disk that hangs must not take a thread for each
/// question that is ever asked.
const READS: usize = 64;

/// The ledger as requests read it: on threads that may block, a bounded number of them, for a bounded time.
#[derive(Clone)]
pub(super) struct Reads {
    /// Whose worker it is, where that was read before.
    workers: Arc<Workers>,
    ledger: Ledger,
    turns: Arc<Semaphore>,
    time: Duration,
}

impl Reads {
    pub(super) fn new(ledger: Ledger, time: Duration) -> Self {
        Self { workers: Arc::default(), ledger, turns: Arc::new(Semaphore::new(READS)), time }
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Ledger) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let answer = async {
            // Never closed, so this can't fail.
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
            let ledger = self.ledger.clone();
            let answer = tokio::task::spawn_blocking(move || {
                let answer = read(&ledger);
                drop(turn);
                answer
            });
            match answer.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) => {
                    tracing::error!(%error, "the ledger can't be read");
                    Err(ApiError::unavailable(error.code(), "the ledger can't be read; the daemon's log has the cause"))
                }
                Err(_) => Err(ApiError::unavailable("closing", "the daemon is ending")),
            }
        };
        within(self.time, answer).await
    }
}

/// Workers whose machine is remembered; beyond that it is read anew.
const WORKERS: usize = 65_536;

/// The machines of workers, by the ids of their rows. Such a row is never removed and never another machine's, so that
/// what was read of it once holds.
#[derive(Default)]
struct Workers(RwLock<HashMap<Box<str>, Arc<str>>>);

impl Workers {
    fn machine(&self, id: &str) -> Option<Arc<str>> {
        self.0.read().get(id).cloned()
    }

    /// The row's machine; remembered, when it is a worker's.
    fn keep(&self, row: Row) -> Arc<str> {
        let machine = Arc::from(row.machine);
        if row.kind == Kind::PodWorkerLease {
            let mut known = self.0.write();
            if known.len() >= WORKERS {
                known.clear();
            }
            known.insert(row.id.into(), Arc::clone(&machine));
        }
        machine
    }
}

/// What a client is told of an operation that wasn't made, or may not have been. What only the operator may know (a
/// policy's own words, paths) goes to the log.
fn refusal(request: &str, error: &ApplyError) -> ApiError {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let code = error.code();
    let told = match error {
        ApplyError::Refused(refusal, _) => {
            let (message, help) = explain(*refusal);
            let told = ApiError::new(status, code, message);
            if help.is_empty() { told } else { told.with_help(help) }
        }
        ApplyError::PolicyFailed(_) | ApplyError::PolicyViolation { .. } => {
            tracing::error!(request, code, %error, "the lease policy is at fault; nothing was written");
            ApiError::new(status, code, "the lease policy is at fault; nothing was written")
                .with_help("the daemon's log has the cause; `policy list` shows what serves, `policy rollback lease` returns to the one before")
        }
        ApplyError::Storage(_) | ApplyError::LockLost => {
            tracing::error!(request, code, %error, "the ledger can't be written");
            ApiError::new(status, code, "the ledger can't be written; nothing was")
        }
        ApplyError::Uncertain(_) => {
            tracing::error!(request, code, %error, "nobody knows whether a change is durable");
            ApiError::new(status, code, "the change may or may not have been kept")
                .with_help("read the row before trying again")
        }
        ApplyError::Busy | ApplyError::TooManyWaiting => {
            ApiError::new(status, code, error.to_string()).with_retry_after(1)
        }
        _ => ApiError::new(status, code, error.to_string()),
    };
    match error.policy() {
        Some(policy) => told.with_policy(Arc::clone(policy)),
        None => told,
    }
}

/// A refusal for a person: what it means, and what to do.
fn explain(refusal: Refusal) -> (&'static str, &'static str) {
    match refusal {
        Refusal::NotFound => ("there is no such row", ""),
        Refusal::NotOwner => ("the row belongs to somebody else", "use the token that wrote it"),
        Refusal::Invalid => ("the policy finds the request invalid", ""),
        Refusal::Conflict => ("the row is not in a state for that", ""),
        Refusal::StaleWorkerLease => {
            ("lease and generation aren't the worker's", "the worker went on without you: acquire another one")
        }
        Refusal::NoWarmWorker => {
            ("no idle, unexpired worker has this key", "wait for one, or prepare one for this commit")
        }
        Refusal::WorkerIdUsed => ("this worker id was used already", "an id stands for one pod, ever: take a new one"),
        Refusal::WorkerIdConflict => ("the id belongs to a row of another kind", "take another id"),
        Refusal::LeaseExpired => ("the lease is over", "release the worker, or quarantine it"),
        Refusal::NotLeased => ("the worker isn't leased", ""),
        Refusal::NotSanitizing => ("the worker isn't being sanitized", "release it first"),
        Refusal::AlreadyQuarantined => ("the worker is quarantined already, for good", ""),
        Refusal::NoPort => ("every port of the band is leased or excluded", "release one, or wait"),
        Refusal::PortLeaseRequiresAllocator => ("ports have their own routes", "use /v1/leases/port"),
        Refusal::PodWorkerRequiresAllocator => {
            ("workers have their own routes", "use /v1/workers/pod and /v1/leases/pod-worker")
        }
        Refusal::OverQuota => ("the policy's quota is used up", "try again later"),
        Refusal::NotNow => ("the policy says: not now", "try again later"),
    }
}
