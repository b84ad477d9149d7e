//! The rows in memory, as the writer's transaction sees them.

use crate::operation::View;
use crate::row::{Instant, Kind, Row, WorkerKey};
use crate::worker::{WorkerFacts, WorkerState};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// All rows, by id, by kind, and the idle workers by key. Belongs to the writer's thread.
#[derive(Default)]
pub(crate) struct Mirror {
    rows: HashMap<Arc<str>, Entry>,
    kinds: HashMap<Kind, BTreeMap<Arc<str>, Arc<Row>>>,
    /// In order of registration.
    idle: HashMap<WorkerKey, BTreeMap<u64, Arc<Row>>>,
}

struct Entry {
    row: Arc<Row>,
    position: u64,
    /// Under which key it is among the idle ones.
    idle: Option<WorkerKey>,
}

impl Mirror {
    /// The row and where it stands in the order of registration.
    pub(crate) fn entry(&self, id: &str) -> Option<(&Arc<Row>, u64)> {
        self.rows.get(id).map(|entry| (&entry.row, entry.position))
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn put(&mut self, row: Arc<Row>, position: u64) {
        self.remove(&row.id);
        let id: Arc<str> = Arc::from(row.id.as_str());
        let idle = WorkerFacts::of(&row).filter(|facts| facts.state == WorkerState::Idle).map(|facts| facts.key);
        if let Some(key) = &idle {
            self.idle.entry(key.clone()).or_default().insert(position, Arc::clone(&row));
        }
        self.kinds.entry(row.kind).or_default().insert(Arc::clone(&id), Arc::clone(&row));
        self.rows.insert(id, Entry { row, position, idle });
    }

    pub(crate) fn remove(&mut self, id: &str) {
        let Some(entry) = self.rows.remove(id) else { return };
        if let Some(rows) = self.kinds.get_mut(&entry.row.kind) {
            rows.remove(id);
        }
        if let Some(key) = entry.idle
            && let Some(workers) = self.idle.get_mut(&key)
        {
            workers.remove(&entry.position);
            // Keys come and go with every commit that is tested; what nobody has any more is not kept.
            if workers.is_empty() {
                self.idle.remove(&key);
            }
        }
    }
}

impl View for Mirror {
    fn get(&self, id: &str) -> Option<Arc<Row>> {
        self.rows.get(id).map(|entry| Arc::clone(&entry.row))
    }

    fn idle_workers(
        &self,
        key: &WorkerKey,
        machine: Option<&str>,
        unexpired_at: Instant,
        limit: usize,
    ) -> Vec<Arc<Row>> {
        let workers = self.idle.get(key).into_iter().flat_map(BTreeMap::values);
        workers
            .filter(|row| machine.is_none_or(|machine| row.machine == machine) && !row.expired(unexpired_at))
            .take(limit)
            .cloned()
            .collect()
    }

    fn page(&self, kind: Kind, after: Option<&str>, limit: usize) -> Vec<Arc<Row>> {
        let Some(rows) = self.kinds.get(&kind) else { return Vec::new() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        rows.range::<str, _>((from, Bound::Unbounded)).take(limit).map(|(_, row)| Arc::clone(row)).collect()
    }
}
