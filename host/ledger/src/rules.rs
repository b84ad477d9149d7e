//! What every row in the file must be, whoever wrote it.
//!
//! The fence judges changes and takes the rows before them as they are. So a row that came another way (an import, a
//! restored file, a shell) is judged here by what each sequence of the fence's changes leaves.

use crate::fence::{Bounds, MAX_GENERATION};
use crate::row::{Kind, Row};
use crate::worker::{PORT_PREFIX, WORKER_PREFIX, WorkerFacts, WorkerState, is_worker_id, port_row_id, worker_row_id};
use serde_json::{Map, Value};
use std::fmt;

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {what}")]
pub struct RowFault {
    /// The field; `attrs.NAME` for an attribute.
    pub field: String,
    /// What is wrong with it, as the rest of a sentence.
    pub what: String,
}

pub(crate) fn fault(field: &str, what: impl fmt::Display) -> RowFault {
    RowFault { field: field.to_owned(), what: what.to_string() }
}

/// The attributes that a lease has brought, all at once or none.
const LEASE: [&str; 4] = ["leaseId", "leaseOwner", "runId", "attemptId"];

/// Judges one row by itself. `attrs` is what the row's text says.
///
/// # Errors
/// The first thing that no change of the fence can have left.
pub(crate) fn check(row: &Row, attrs: &Map<String, Value>, bounds: &Bounds) -> Result<(), RowFault> {
    for (field, text) in [("id", &row.id), ("machine", &row.machine), ("name", &row.name)] {
        if is_blank(text) {
            return Err(fault(field, "is blank"));
        }
    }
    if !is_owner(&row.owner) {
        return Err(fault("owner", "isn't 64 hex digits, so nobody could own the row"));
    }
    if !row.ttl_ms.is_finite() || row.ttl_ms < 0.0 {
        return Err(fault("ttlMs", "isn't a number of 0 or more"));
    }
    match row.kind {
        Kind::PortLease => port(row, attrs, bounds)?,
        Kind::PodWorkerLease => worker(row, attrs, bounds)?,
        kind => {
            if row.id.starts_with(PORT_PREFIX) || row.id.starts_with(WORKER_PREFIX) {
                return Err(fault(
                    "id",
                    format_args!("is one of a port or a worker, and the kind is {}", kind.as_str()),
                ));
            }
        }
    }
    // The host's own quarantine adds a reason, whatever the size.
    let free = row.kind == Kind::PodWorkerLease && attrs.get("state").and_then(Value::as_str) == Some("quarantined");
    if !free && row.attrs.len() > bounds.attrs_bytes {
        return Err(fault("attrs", format_args!("take {} bytes, above {}", row.attrs.len(), bounds.attrs_bytes)));
    }
    Ok(())
}

fn port(row: &Row, attrs: &Map<String, Value>, bounds: &Bounds) -> Result<(), RowFault> {
    let port: Option<u16> = row.id.strip_prefix(PORT_PREFIX).and_then(|port| port.parse().ok());
    let port = port.filter(|port| port_row_id(*port) == row.id);
    let port = port.ok_or_else(|| fault("id", format_args!("isn't {PORT_PREFIX}PORT, as a port's must be")))?;
    no_endpoint(row)?;
    if row.ttl_ms <= 0.0 || row.ttl_ms > bounds.port_ttl_ms {
        return Err(fault("ttlMs", format_args!("isn't above 0 and at most {}", bounds.port_ttl_ms)));
    }
    if attrs.get("port").and_then(Value::as_u64) != Some(u64::from(port)) {
        return Err(fault("attrs.port", format_args!("isn't {port}, as the id says")));
    }
    if attrs.get("purpose").and_then(Value::as_str) != Some(row.name.as_str()) {
        return Err(fault("attrs.purpose", "isn't the row's name"));
    }
    text(attrs, "leaseId")
}

fn worker(row: &Row, attrs: &Map<String, Value>, bounds: &Bounds) -> Result<(), RowFault> {
    if !is_worker_id(&row.name) || worker_row_id(&row.name) != row.id {
        return Err(fault("id", format_args!("isn't {WORKER_PREFIX}NAME, as a worker's must be")));
    }
    no_endpoint(row)?;
    if !whole_within(row.ttl_ms, bounds.worker_ttl_ms) {
        return Err(fault("ttlMs", format_args!("isn't a whole number from 1 to {}", bounds.worker_ttl_ms)));
    }
    let state = attrs.get("state").and_then(Value::as_str).unwrap_or_default();
    let known = [WorkerState::Idle, WorkerState::Leased, WorkerState::Sanitizing, WorkerState::Quarantined];
    if known.iter().all(|known| known.as_str() != state) {
        return Err(fault("attrs.state", "is none of idle, leased, sanitizing and quarantined"));
    }
    let key = attrs.get("key").and_then(Value::as_object).ok_or_else(|| fault("attrs.key", "isn't an object"))?;
    for name in ["context", "imageDigest", "lockHash", "architecture"] {
        text(key, name).map_err(|error| fault(&format!("attrs.key.{name}"), error.what))?;
    }
    let Some(facts) = WorkerFacts::of(row) else {
        return Err(fault("attrs", "aren't those of a worker: a field has the wrong type"));
    };
    if facts.generation > MAX_GENERATION {
        return Err(fault("attrs.generation", "is higher than a number can be told apart"));
    }
    if !whole_within(facts.idle_ttl_ms, bounds.worker_ttl_ms) {
        return Err(fault("attrs.idleTtlMs", format_args!("isn't a whole number from 1 to {}", bounds.worker_ttl_ms)));
    }
    if attrs.contains_key("podUid") {
        text(attrs, "podUid")?;
    }
    let leased = LEASE.iter().any(|name| attrs.contains_key(*name));
    match facts.state {
        WorkerState::Idle => {
            if let Some(name) = LEASE.iter().chain(["reason"].iter()).find(|name| attrs.contains_key(**name)) {
                return Err(fault(&format!("attrs.{name}"), "is left of a lease, and the worker is idle"));
            }
        }
        WorkerState::Leased | WorkerState::Sanitizing => lease(attrs, &facts)?,
        WorkerState::Quarantined if leased => lease(attrs, &facts)?,
        WorkerState::Quarantined => {}
    }
    Ok(())
}

/// Each lease has raised the generation, and named itself whole.
fn lease(attrs: &Map<String, Value>, facts: &WorkerFacts) -> Result<(), RowFault> {
    for name in LEASE {
        text(attrs, name)?;
    }
    if facts.generation == 0 {
        return Err(fault("attrs.generation", "is 0, and the worker was leased"));
    }
    if !facts.lease_owner.as_deref().is_some_and(is_owner) {
        return Err(fault("attrs.leaseOwner", "isn't 64 hex digits, so nobody could hold the lease"));
    }
    Ok(())
}

fn no_endpoint(row: &Row) -> Result<(), RowFault> {
    if row.endpoint.is_some() { Err(fault("endpoint", "isn't a port's or a worker's to have")) } else { Ok(()) }
}

fn text(attrs: &Map<String, Value>, name: &str) -> Result<(), RowFault> {
    let field = format!("attrs.{name}");
    match attrs.get(name) {
        None => Err(fault(&field, "is missing")),
        Some(Value::String(text)) if !is_blank(text) => Ok(()),
        Some(_) => Err(fault(&field, "isn't a text that says something")),
    }
}

/// White space alone, as ECMAScript's `trim` knows it: U+FEFF counts, U+0085 doesn't.
#[must_use]
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c == '\u{feff}' || (c.is_whitespace() && c != '\u{85}'))
}

fn is_owner(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn whole_within(number: f64, most: u64) -> bool {
    number.fract() == 0.0 && (1.0..=most as f64).contains(&number)
}
