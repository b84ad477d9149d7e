//! The standard behaviour, operation by operation. A policy that overrides a method can still call what is here.

mod ports;
mod registry;
mod workers;

pub use ports::{lease_port, release_port, renew_port};
pub use registry::{heartbeat, register_resource, remove_resource};
pub use workers::{State, acquire, register_worker, state, transition};

use super::{Change, Row};
use serde_json::{Map, Value};

/// The kind of a leased port's row; its id is this, a colon and the port.
pub const PORT_KIND: &str = "port-lease";
/// The kind of a worker's row; its id is this, a colon and the worker's id.
pub const WORKER_KIND: &str = "pod-worker-lease";

/// The id of a port's row.
#[must_use]
pub fn port_row_id(port: u16) -> String {
    format!("{PORT_KIND}:{port}")
}

/// The id of a worker's row.
#[must_use]
pub fn worker_row_id(worker_id: &str) -> String {
    format!("{WORKER_KIND}:{worker_id}")
}

/// A change that writes one row.
#[must_use]
pub fn put(row: Row) -> Change {
    Change { put: vec![row], remove: Vec::new() }
}

/// A change that removes one row.
#[must_use]
pub fn remove(id: String) -> Change {
    Change { put: Vec::new(), remove: vec![id] }
}

/// Attributes as text. An object of texts and numbers always has one.
fn attrs_text(attrs: Map<String, Value>) -> String {
    Value::Object(attrs).to_string()
}

/// Whether an id is of a kind: what was registered under `KIND:…` belongs to that kind's own routes.
fn has_kind(id: &str, kind: &str) -> bool {
    id.strip_prefix(kind).is_some_and(|rest| rest.starts_with(':'))
}
