//! A ledger of rows in memory, found as the real one finds them, for a policy in its sandbox and for one outside.

use std::collections::HashMap;
use warmhold_plugin as plugin;
use warmhold_sdk::lease as native;

/// When the decisions are made: milliseconds since the epoch.
pub(crate) const NOW: u64 = 1_700_000_000_000;
/// How many keys the workers have among them.
const KEYS: usize = 5;

/// Rows, and the idle workers by key.
pub(crate) struct Rows {
    rows: Vec<plugin::Row>,
    by_id: HashMap<String, usize>,
    idle: HashMap<Key, Vec<usize>>,
}

type Key = (String, String, String, String);

/// A key of one of the workers.
pub(crate) fn key(number: usize) -> plugin::WorkerKey {
    plugin::WorkerKey {
        context: "local".to_owned(),
        image_digest: format!("sha256:{}", "1f".repeat(32)),
        lock_hash: format!("{:064x}", number % KEYS),
        architecture: "amd64".to_owned(),
    }
}

fn as_map_key(key: &plugin::WorkerKey) -> Key {
    (key.context.clone(), key.image_digest.clone(), key.lock_hash.clone(), key.architecture.clone())
}

impl Rows {
    /// Half of them workers, a seventh of which are leased; the others ports and instances.
    pub(crate) fn new(count: usize) -> Self {
        let mut all = Self { rows: Vec::with_capacity(count), by_id: HashMap::new(), idle: HashMap::new() };
        for number in 0..count {
            let (row, idle) = if number.is_multiple_of(2) { worker(number) } else { (plain(number), None) };
            if let Some(key) = idle {
                all.idle.entry(as_map_key(&key)).or_default().push(number);
            }
            all.by_id.insert(row.id.clone(), number);
            all.rows.push(row);
        }
        all
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The row with this id.
    pub(crate) fn find(&self, id: &str) -> Option<&plugin::Row> {
        self.rows.get(*self.by_id.get(id)?)
    }

    fn idle(
        &self,
        key: &Key,
        machine: Option<&str>,
        unexpired_at: u64,
        limit: u32,
    ) -> impl Iterator<Item = &plugin::Row> {
        self.idle
            .get(key)
            .into_iter()
            .flatten()
            .filter_map(|at| self.rows.get(*at))
            .filter(move |row| machine.is_none_or(|machine| machine == row.machine) && !expired(row, unexpired_at))
            .take(limit as usize)
    }

    fn of_kind(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<&plugin::Row> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .filter(|row| row.kind == kind && after.is_none_or(|after| row.id.as_str() > after))
            .collect();
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        rows.truncate(limit as usize);
        rows
    }
}

#[allow(clippy::cast_precision_loss, reason = "ages are far below 2^53 ms")]
fn expired(row: &plugin::Row, at: u64) -> bool {
    at.saturating_sub(row.observed_at) as f64 >= row.ttl_ms
}

fn worker(number: usize) -> (plugin::Row, Option<plugin::WorkerKey>) {
    let key = key(number / 2);
    let leased = number.is_multiple_of(14);
    let mut attrs = serde_json::json!({
        "key": {
            "context": key.context, "imageDigest": key.image_digest,
            "lockHash": key.lock_hash, "architecture": key.architecture,
        },
        "state": if leased { "leased" } else { "idle" },
        "generation": number % 7,
        "idleTtlMs": 1_800_000,
        "podUid": format!("00000000-0000-4000-9000-{number:012}"),
    });
    if leased && let Some(attrs) = attrs.as_object_mut() {
        attrs.insert("leaseId".to_owned(), format!("00000000-0000-4000-a000-{number:012}").into());
        attrs.insert("leaseOwner".to_owned(), "cd".repeat(32).into());
    }
    let name = format!("worker-{number:04}");
    let row = plugin::Row {
        id: format!("pod-worker-lease:{name}"),
        kind: "pod-worker-lease".to_owned(),
        machine: format!("machine-{}", number % 4),
        name,
        owner: "ab".repeat(32),
        endpoint: None,
        attrs: attrs.to_string(),
        observed_at: NOW - 60_000,
        ttl_ms: 1_800_000.0,
    };
    (row, (!leased).then_some(key))
}

fn plain(number: usize) -> plugin::Row {
    plugin::Row {
        id: format!("instance:{number:04}"),
        kind: "instance".to_owned(),
        machine: format!("machine-{}", number % 4),
        name: format!("service-{number}"),
        owner: "ab".repeat(32),
        endpoint: Some(format!("http://127.0.0.1:{}", 10_000 + number)),
        attrs: serde_json::json!({ "version": number, "healthy": true }).to_string(),
        observed_at: NOW - 10_000,
        ttl_ms: 60_000.0,
    }
}

impl plugin::LedgerView for Rows {
    fn get(&self, id: &str) -> Option<plugin::Row> {
        self.find(id).cloned()
    }

    fn idle_workers(
        &self,
        key: &plugin::WorkerKey,
        machine: Option<&str>,
        unexpired_at: u64,
        limit: u32,
    ) -> Vec<plugin::Row> {
        self.idle(&as_map_key(key), machine, unexpired_at, limit).cloned().collect()
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<plugin::Row> {
        self.of_kind(kind, after, limit).into_iter().cloned().collect()
    }
}

impl native::Ledger for Rows {
    fn get(&self, id: &str) -> Option<native::Row> {
        self.find(id).map(to_native)
    }

    fn idle_workers(
        &self,
        key: &native::WorkerKey,
        machine: Option<&str>,
        unexpired_at: u64,
        limit: u32,
    ) -> Vec<native::Row> {
        let key = (key.context.clone(), key.image_digest.clone(), key.lock_hash.clone(), key.architecture.clone());
        self.idle(&key, machine, unexpired_at, limit).map(to_native).collect()
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<native::Row> {
        self.of_kind(kind, after, limit).into_iter().map(to_native).collect()
    }
}

fn to_native(row: &plugin::Row) -> native::Row {
    native::Row {
        id: row.id.clone(),
        kind: row.kind.clone(),
        machine: row.machine.clone(),
        name: row.name.clone(),
        owner: row.owner.clone(),
        endpoint: row.endpoint.clone(),
        attrs: row.attrs.clone(),
        observed_at: row.observed_at,
        ttl_ms: row.ttl_ms,
    }
}
