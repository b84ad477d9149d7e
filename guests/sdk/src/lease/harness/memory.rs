//! A ledger in memory.

use crate::json;
use crate::lease::standard::{State, WORKER_KIND, state};
use crate::lease::{Ledger, Row, WorkerKey};
use crate::time::expired;

/// Rows in the order in which they were registered.
#[derive(Clone, Debug, Default)]
pub struct MemoryLedger {
    rows: Vec<Row>,
}

impl MemoryLedger {
    /// All rows.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Inserts a row, or replaces the one with its id in its place.
    pub fn put(&mut self, row: Row) {
        match self.rows.iter_mut().find(|old| old.id == row.id) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
    }

    /// Removes a row, if there is one.
    pub fn remove(&mut self, id: &str) {
        self.rows.retain(|row| row.id != id);
    }
}

impl Ledger for MemoryLedger {
    fn get(&self, id: &str) -> Option<Row> {
        self.rows.iter().find(|row| row.id == id).cloned()
    }

    fn idle_workers(&self, key: &WorkerKey, machine: Option<&str>, unexpired_at: u64, limit: u32) -> Vec<Row> {
        let fits = |row: &&Row| {
            row.kind == WORKER_KIND
                && machine.is_none_or(|machine| machine == row.machine)
                && is_idle(row, key, unexpired_at)
        };
        self.rows.iter().filter(fits).take(limit as usize).cloned().collect()
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .rows
            .iter()
            .filter(|row| row.kind == kind && after.is_none_or(|after| row.id.as_str() > after))
            .cloned()
            .collect();
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        rows.truncate(limit as usize);
        rows
    }
}

/// Whether a row is an idle, unexpired worker with this key. Further fields of a stored key don't count.
pub(super) fn is_idle(row: &Row, key: &WorkerKey, now: u64) -> bool {
    let attrs = json::object(&row.attrs).unwrap_or_default();
    let stored = attrs.get("key").and_then(|key| key.as_object());
    let same = |field: &str, value: &str| stored.is_some_and(|stored| json::text(stored, field) == Some(value));
    state(&attrs) == Some(State::Idle)
        && !expired(row, now)
        && same("context", &key.context)
        && same("imageDigest", &key.image_digest)
        && same("lockHash", &key.lock_hash)
        && same("architecture", &key.architecture)
}
