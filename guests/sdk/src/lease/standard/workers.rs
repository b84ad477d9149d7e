//! Warm workers: idle → leased → sanitizing → idle, and quarantined from anywhere in between.

use super::{WORKER_KIND, attrs_text, put, worker_row_id};
use crate::json;
use crate::lease::{Call, Refusal, Row, Transition, TransitionKind, Verdict, WorkerDraft, WorkerRequest};
use crate::time::{DAY_MS, expired};
use serde_json::{Map, Value};

/// The fields that a lease adds and that a clean worker has no longer.
const LEASE_FIELDS: [&str; 5] = ["leaseId", "leaseOwner", "runId", "attemptId", "reason"];

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Clean, may be leased.
    Idle,
    /// Somebody holds it.
    Leased,
    /// Given back, not yet known to be clean.
    Sanitizing,
    /// Never used again.
    Quarantined,
}

impl State {
    /// As it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Leased => "leased",
            Self::Sanitizing => "sanitizing",
            Self::Quarantined => "quarantined",
        }
    }
}

/// The state that a worker's attributes hold; none when they hold no known one.
#[must_use]
pub fn state(attrs: &Map<String, Value>) -> Option<State> {
    let name = json::text(attrs, "state")?;
    [State::Idle, State::Leased, State::Sanitizing, State::Quarantined].into_iter().find(|state| state.as_str() == name)
}

/// Registers a worker: idle, generation 0. Its id is used once, ever, since an expired or removed pod proves nothing
/// about the next one under its name.
///
/// # Errors
/// `worker-id-conflict` when the id is a row of another kind, `not-owner` when somebody else registered it, else
/// `worker-id-used`; `invalid` for a key that is no object or a time to live out of bounds.
#[allow(clippy::cast_precision_loss, reason = "bounded by a day")]
pub fn register_worker(call: &Call<'_>, draft: &WorkerDraft) -> Verdict {
    let id = worker_row_id(&draft.worker_id);
    if let Some(row) = call.ledger.get(&id) {
        return Err(match row {
            row if row.kind != WORKER_KIND => Refusal::WorkerIdConflict,
            row if row.owner != call.who.owner => Refusal::NotOwner,
            _ => Refusal::WorkerIdUsed,
        });
    }
    let key = json::object(&draft.key_json).ok_or(Refusal::Invalid)?;
    if !ttl_in_bounds(draft.ttl_ms) {
        return Err(Refusal::Invalid);
    }
    let mut attrs = Map::new();
    attrs.insert("key".to_owned(), Value::Object(key));
    set_state(&mut attrs, State::Idle);
    attrs.insert("generation".to_owned(), Value::from(0));
    attrs.insert("idleTtlMs".to_owned(), Value::from(draft.ttl_ms));
    if let Some(uid) = &draft.pod_uid {
        attrs.insert("podUid".to_owned(), Value::from(uid.as_str()));
    }
    Ok(put(Row {
        id,
        kind: WORKER_KIND.to_owned(),
        machine: draft.machine.clone(),
        name: draft.worker_id.clone(),
        owner: call.who.owner.clone(),
        endpoint: None,
        attrs: attrs_text(attrs),
        observed_at: call.at.now,
        ttl_ms: draft.ttl_ms as f64,
    }))
}

/// Leases this idle worker: generation + 1 and a fresh lease.
///
/// # Errors
/// `invalid` for a time to live out of bounds, `conflict` when the row isn't an idle worker's.
#[allow(clippy::cast_precision_loss, reason = "bounded by a day")]
pub fn acquire(call: &Call<'_>, request: &WorkerRequest, mut row: Row) -> Verdict {
    if !ttl_in_bounds(request.ttl_ms) {
        return Err(Refusal::Invalid);
    }
    let mut attrs = json::object(&row.attrs).ok_or(Refusal::Conflict)?;
    let generation = attrs.get("generation").and_then(json::whole).ok_or(Refusal::Conflict)?;
    if state(&attrs) != Some(State::Idle) {
        return Err(Refusal::Conflict);
    }
    set_state(&mut attrs, State::Leased);
    attrs.insert("generation".to_owned(), Value::from(generation.saturating_add(1)));
    attrs.insert("leaseId".to_owned(), Value::from(call.at.fresh_id.as_str()));
    attrs.insert("leaseOwner".to_owned(), Value::from(call.who.owner.as_str()));
    attrs.insert("runId".to_owned(), Value::from(request.run_id.as_str()));
    attrs.insert("attemptId".to_owned(), Value::from(request.attempt_id.as_str()));
    row.attrs = attrs_text(attrs);
    row.observed_at = call.at.now;
    row.ttl_ms = request.ttl_ms as f64;
    Ok(put(row))
}

/// Moves a leased worker on.
///
/// # Errors
/// The first of: `not-found`; `stale-worker-lease` when lease or generation aren't the row's (an idle worker has no
/// lease); `not-owner` (renew and release are the holder's, sanitize is the registering machine's, quarantine either's);
/// then the state's: `lease-expired`, `not-leased`, `not-sanitizing`, `already-quarantined`. `invalid` for a time to live
/// out of bounds.
#[allow(clippy::cast_precision_loss, reason = "bounded by a day")]
pub fn transition(call: &Call<'_>, kind: TransitionKind, request: &Transition) -> Verdict {
    let found = call.ledger.get(&worker_row_id(&request.worker_id)).filter(|row| row.kind == WORKER_KIND);
    let mut row = found.ok_or(Refusal::NotFound)?;
    // Attributes that are no object hold no lease that could be equal.
    let mut attrs = json::object(&row.attrs).unwrap_or_default();

    let generation = attrs.get("generation").and_then(json::whole);
    let same_lease = !request.lease_id.is_empty() && json::text(&attrs, "leaseId") == Some(&request.lease_id);
    if !same_lease || generation != Some(request.generation) {
        return Err(Refusal::StaleWorkerLease);
    }

    let registered_it = row.owner == call.who.owner;
    let holds_it = json::text(&attrs, "leaseOwner") == Some(&call.who.owner);
    let allowed = match kind {
        TransitionKind::Renew | TransitionKind::Release => holds_it,
        TransitionKind::Sanitize => registered_it,
        TransitionKind::Quarantine => holds_it || registered_it,
    };
    if !allowed {
        return Err(Refusal::NotOwner);
    }

    let next = match (kind, state(&attrs)) {
        (TransitionKind::Renew, Some(State::Leased)) if !expired(&row, call.at.now) => State::Leased,
        (TransitionKind::Renew, _) => return Err(Refusal::LeaseExpired),
        // An expired lease can still be given back: that is how its worker comes to be cleaned.
        (TransitionKind::Release, Some(State::Leased)) => State::Sanitizing,
        (TransitionKind::Release, _) => return Err(Refusal::NotLeased),
        (TransitionKind::Sanitize, Some(State::Sanitizing)) => State::Idle,
        (TransitionKind::Sanitize, _) => return Err(Refusal::NotSanitizing),
        (TransitionKind::Quarantine, Some(State::Quarantined)) => return Err(Refusal::AlreadyQuarantined),
        (TransitionKind::Quarantine, _) => State::Quarantined,
    };
    if request.ttl_ms.is_some_and(|ttl| !ttl_in_bounds(ttl)) {
        return Err(Refusal::Invalid);
    }

    set_state(&mut attrs, next);
    if next == State::Idle {
        // `shift_remove` keeps the order of what stays.
        LEASE_FIELDS.iter().for_each(|field| drop(attrs.shift_remove(*field)));
        row.ttl_ms = attrs.get("idleTtlMs").and_then(Value::as_f64).unwrap_or(row.ttl_ms);
    } else {
        if let Some(reason) = &request.reason {
            attrs.insert("reason".to_owned(), Value::from(reason.as_str()));
        }
        row.ttl_ms = request.ttl_ms.map_or(row.ttl_ms, |ttl| ttl as f64);
    }
    row.attrs = attrs_text(attrs);
    row.observed_at = call.at.now;
    Ok(put(row))
}

fn set_state(attrs: &mut Map<String, Value>, state: State) {
    attrs.insert("state".to_owned(), Value::from(state.as_str()));
}

fn ttl_in_bounds(ttl_ms: u64) -> bool {
    (1..=DAY_MS).contains(&ttl_ms)
}
