//! Ports of a band, one lease each.

use super::{PORT_KIND, attrs_text, port_row_id, put, remove};
use crate::json;
use crate::lease::{Call, PortRequest, Refusal, Row, Verdict};
use crate::time::{DAY_MS, expired};
use serde_json::{Map, Value};

/// Leases the lowest port of the band that isn't excluded and has no unexpired lease. An expired lease is replaced,
/// whoever held it: its id is worth nothing from then on.
///
/// # Errors
/// `no-port` when none is left, `invalid` for a time to live that is no number above zero.
#[allow(clippy::cast_precision_loss, reason = "a day in milliseconds is far below 2^53")]
pub fn lease_port(call: &Call<'_>, request: &PortRequest) -> Verdict {
    if !request.ttl_ms.is_finite() || request.ttl_ms <= 0.0 {
        return Err(Refusal::Invalid);
    }
    let free = |port: &u16| {
        !request.excluded.contains(port)
            && call.ledger.get(&port_row_id(*port)).is_none_or(|row| expired(&row, call.at.now))
    };
    let port = (request.first..=request.last).find(free).ok_or(Refusal::NoPort)?;
    let mut attrs = Map::new();
    attrs.insert("port".to_owned(), Value::from(port));
    attrs.insert("purpose".to_owned(), Value::from(request.purpose.as_str()));
    attrs.insert("leaseId".to_owned(), Value::from(call.at.fresh_id.as_str()));
    Ok(put(Row {
        id: port_row_id(port),
        kind: PORT_KIND.to_owned(),
        machine: request.machine.clone(),
        name: request.purpose.clone(),
        owner: call.who.owner.clone(),
        endpoint: None,
        attrs: attrs_text(attrs),
        observed_at: call.at.now,
        ttl_ms: request.ttl_ms.min(DAY_MS as f64),
    }))
}

/// Makes a port's lease young again, an expired one too: as long as its row holds this lease, nobody else has it.
///
/// # Errors
/// `not-found`; `not-owner` for another caller or another lease.
pub fn renew_port(call: &Call<'_>, port: u16, lease_id: &str) -> Verdict {
    let mut row = held(call, port, lease_id)?;
    row.observed_at = call.at.now;
    Ok(put(row))
}

/// Gives a port back.
///
/// # Errors
/// As [`renew_port`].
pub fn release_port(call: &Call<'_>, port: u16, lease_id: &str) -> Verdict {
    held(call, port, lease_id).map(|row| remove(row.id))
}

fn held(call: &Call<'_>, port: u16, lease_id: &str) -> Result<Row, Refusal> {
    let row = call.ledger.get(&port_row_id(port)).filter(|row| row.kind == PORT_KIND).ok_or(Refusal::NotFound)?;
    let attrs = json::object(&row.attrs).unwrap_or_default();
    if row.owner != call.who.owner || lease_id.is_empty() || json::text(&attrs, "leaseId") != Some(lease_id) {
        return Err(Refusal::NotOwner);
    }
    Ok(row)
}
