//! Rows that callers write themselves.

use super::{PORT_KIND, WORKER_KIND, attrs_text, has_kind, put, remove};
use crate::json;
use crate::lease::{Call, Refusal, Row, RowDraft, Verdict};

/// Inserts a row, or replaces the caller's own: whatever it holds but its id may change.
///
/// # Errors
/// `port-lease-requires-allocator` and `pod-worker-requires-allocator` for the kinds with routes of their own, by kind or
/// by id; `not-owner` when somebody else registered the id; `invalid` for attributes that are no object.
pub fn register_resource(call: &Call<'_>, draft: &RowDraft) -> Verdict {
    own_route(&draft.kind, &draft.id)?;
    if call.ledger.get(&draft.id).is_some_and(|row| row.owner != call.who.owner) {
        return Err(Refusal::NotOwner);
    }
    if json::object(&draft.attrs).is_none() {
        return Err(Refusal::Invalid);
    }
    Ok(put(Row {
        id: draft.id.clone(),
        kind: draft.kind.clone(),
        machine: draft.machine.clone(),
        name: draft.name.clone(),
        owner: call.who.owner.clone(),
        endpoint: draft.endpoint.clone(),
        attrs: draft.attrs.clone(),
        observed_at: call.at.now,
        ttl_ms: draft.ttl_ms,
    }))
}

/// Makes the caller's own row young again. Attributes are merged key by key, not deeply; a key keeps its place.
///
/// # Errors
/// As [`register_resource`], and `not-found`.
pub fn heartbeat(call: &Call<'_>, id: &str, attrs: Option<&str>) -> Verdict {
    let mut row = own_row(call, id)?;
    if let Some(attrs) = attrs {
        let mut merged = json::object(&row.attrs).ok_or(Refusal::Invalid)?;
        merged.extend(json::object(attrs).ok_or(Refusal::Invalid)?);
        row.attrs = attrs_text(merged);
    }
    row.observed_at = call.at.now;
    Ok(put(row))
}

/// Removes the caller's own row.
///
/// # Errors
/// As [`heartbeat`].
pub fn remove_resource(call: &Call<'_>, id: &str) -> Verdict {
    own_row(call, id).map(|row| remove(row.id))
}

fn own_row(call: &Call<'_>, id: &str) -> Result<Row, Refusal> {
    // An id of a kind with routes of its own is refused whether there is such a row or not.
    own_route("", id)?;
    let row = call.ledger.get(id).ok_or(Refusal::NotFound)?;
    own_route(&row.kind, id)?;
    if row.owner != call.who.owner {
        return Err(Refusal::NotOwner);
    }
    Ok(row)
}

fn own_route(kind: &str, id: &str) -> Result<(), Refusal> {
    if kind == PORT_KIND || has_kind(id, PORT_KIND) {
        return Err(Refusal::PortLeaseRequiresAllocator);
    }
    if kind == WORKER_KIND || has_kind(id, WORKER_KIND) {
        return Err(Refusal::PodWorkerRequiresAllocator);
    }
    Ok(())
}
