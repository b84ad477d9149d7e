//! What the host's fence would say, so that an author hears it before the host says it. The host's own is the one that
//! counts; this one knows only the call, and doesn't look at what else may have changed.

use super::memory::is_idle;
use crate::json;
use crate::lease::standard::{State, WORKER_KIND, port_row_id, state, worker_row_id};
use crate::lease::{Call, Change, Operation, Row, TransitionKind};
use serde_json::{Map, Value};

/// The first thing that a change must not do; none: the host would write it.
#[must_use]
pub fn violation(call: &Call<'_>, operation: &Operation, change: &Change) -> Option<String> {
    check(call, operation, change).err()
}

fn check(call: &Call<'_>, operation: &Operation, change: &Change) -> Result<(), String> {
    let named = match operation {
        Operation::Remove { id } => return removes(change, id),
        Operation::ReleasePort { port, .. } => return removes(change, &port_row_id(*port)),
        Operation::Register(draft) => Some(draft.id.clone()),
        Operation::Heartbeat { id, .. } => Some(id.clone()),
        Operation::RenewPort { port, .. } => Some(port_row_id(*port)),
        Operation::RegisterWorker(draft) => Some(worker_row_id(&draft.worker_id)),
        Operation::Transition(_, request) => Some(worker_row_id(&request.worker_id)),
        Operation::LeasePort(_) | Operation::Acquire(_) => None,
    };
    let ([row], []) = (change.put.as_slice(), change.remove.as_slice()) else {
        return Err("the operation puts exactly one row and removes none".to_owned());
    };
    ensure(named.is_none_or(|id| id == row.id), "the row isn't the one that the operation names")?;
    ensure(row.observed_at == call.at.now, "observed-at isn't the call's now")?;
    ensure(row.ttl_ms.is_finite() && row.ttl_ms >= 0.0, "the time to live isn't a finite number")?;
    let attrs = json::object(&row.attrs).ok_or("the attributes are no JSON object")?;
    ensure(!json::repeats_a_key(&row.attrs), "the attributes name a key twice")?;

    let before = call.ledger.get(&row.id);
    // Only an expired port's row may go over to another caller.
    let owner = match (&before, operation) {
        (Some(before), operation) if !matches!(operation, Operation::LeasePort(_)) => &before.owner,
        _ => &call.who.owner,
    };
    ensure(row.owner == *owner, "the owner isn't the caller, or the row's owner changed")?;
    if row.kind == WORKER_KIND || before.as_ref().is_some_and(|row| row.kind == WORKER_KIND) {
        return worker(call, operation, before.as_ref(), row, &attrs);
    }
    match operation {
        Operation::LeasePort(request) => ensure(
            (request.first..=request.last).any(|port| port_row_id(port) == row.id)
                && json::text(&attrs, "leaseId") == Some(&call.at.fresh_id),
            "a leased port is one of the band, under the fresh id",
        ),
        Operation::Acquire(_) => Err("what was acquired is no worker".to_owned()),
        _ => Ok(()),
    }
}

fn worker(
    call: &Call<'_>,
    operation: &Operation,
    before: Option<&Row>,
    row: &Row,
    attrs: &Map<String, Value>,
) -> Result<(), String> {
    let generation = attrs.get("generation").and_then(json::whole);
    let Some(before) = before else {
        return ensure(
            matches!(operation, Operation::RegisterWorker(_))
                && state(attrs) == Some(State::Idle)
                && generation == Some(0),
            "a new worker is registered, idle and at generation 0",
        );
    };
    let old = json::object(&before.attrs).unwrap_or_default();
    ensure(
        row.kind == before.kind && row.machine == before.machine && row.name == before.name,
        "a worker stays who it is",
    )?;
    ensure(
        attrs.get("key") == old.get("key") && attrs.get("podUid") == old.get("podUid"),
        "a worker's key or pod changed",
    )?;
    let old_generation = old.get("generation").and_then(json::whole);
    let (from, to) = match operation {
        Operation::Acquire(request) => {
            let wanted = is_idle(before, &request.key, call.at.now)
                && request.machine.as_ref().is_none_or(|machine| *machine == before.machine);
            ensure(wanted, "only an idle, unexpired worker with the request's key and machine may be leased")?;
            ensure(json::text(attrs, "leaseId") == Some(&call.at.fresh_id), "the lease id isn't the call's fresh id")?;
            ensure(
                generation.is_some() && generation == old_generation.map(|g| g + 1),
                "acquiring raises the generation by one",
            )?;
            return ensure(state(attrs) == Some(State::Leased), "an acquired worker is leased");
        }
        Operation::Transition(TransitionKind::Renew, _) => (&[State::Leased][..], State::Leased),
        Operation::Transition(TransitionKind::Release, _) => (&[State::Leased][..], State::Sanitizing),
        Operation::Transition(TransitionKind::Sanitize, _) => (&[State::Sanitizing][..], State::Idle),
        Operation::Transition(TransitionKind::Quarantine, _) => {
            (&[State::Leased, State::Sanitizing][..], State::Quarantined)
        }
        _ => return Err("this operation touches no worker".to_owned()),
    };
    ensure(generation == old_generation, "only acquiring changes the generation")?;
    let kept = to == State::Idle || attrs.get("leaseId") == old.get("leaseId");
    ensure(kept, "the lease changed under its holder")?;
    let moves = state(&old).is_some_and(|old| from.contains(&old)) && state(attrs) == Some(to);
    ensure(moves, "that isn't a transition of a worker")
}

fn removes(change: &Change, id: &str) -> Result<(), String> {
    let right = change.put.is_empty() && matches!(change.remove.as_slice(), [only] if only == id);
    ensure(right, "the operation removes exactly the row that it names")
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}
