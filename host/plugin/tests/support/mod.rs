//! What the tests of this crate share: policies that are written here, and the ones that `./x build` makes.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod guest;

use std::num::NonZeroU32;
use std::path::PathBuf;
use warmhold_plugin::*;

/// A component that `./x build` made.
pub fn built(name: &str) -> Vec<u8> {
    let path = policies().join(format!("{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run `./x build` first", path.display()))
}

fn policies() -> PathBuf {
    // The test program is TARGET/PROFILE/deps/NAME.
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    target.join("policies")
}

pub fn engine() -> PolicyEngine {
    PolicyEngine::new(&EngineOptions::default()).unwrap()
}

pub fn options(dir: &std::path::Path, world: World, built_in: Vec<u8>) -> SlotOptions {
    SlotOptions {
        dir: dir.join("policies").join(world.slot()),
        built_in: built_in.into(),
        settings: "{}".to_owned(),
        limits: Limits::of(world),
        faults_to_roll_back: NonZeroU32::new(3).unwrap(),
    }
}

pub fn moment(n: u64) -> Moment {
    Moment { now: 1_700_000_000_000 + n, fresh_id: format!("00000000-0000-4000-8000-{n:012}") }
}

pub fn member() -> Caller {
    Caller { owner: "ab".repeat(32), scope: Scope::Member, machine: None }
}

pub fn key() -> WorkerKey {
    WorkerKey {
        context: "local".to_owned(),
        image_digest: format!("sha256:{}", "1".repeat(64)),
        lock_hash: "2".repeat(64),
        architecture: "amd64".to_owned(),
    }
}

pub fn acquire() -> LeaseRequest {
    LeaseRequest::AcquireWorker(WorkerRequest {
        machine: None,
        key: key(),
        run_id: "run".to_owned(),
        attempt_id: "attempt".to_owned(),
        ttl_ms: 60_000,
    })
}

/// A ledger of idle workers.
pub struct Workers(pub Vec<Row>);

impl Workers {
    pub fn idle(count: usize) -> Self {
        Self((0..count).map(idle_worker).collect())
    }
}

pub fn idle_worker(n: usize) -> Row {
    let key = key();
    let attrs = format!(
        "{{\"key\":{{\"context\":\"{}\",\"imageDigest\":\"{}\",\"lockHash\":\"{}\",\"architecture\":\"{}\"}},\"state\":\"idle\",\"generation\":0,\"idleTtlMs\":3600000}}",
        key.context, key.image_digest, key.lock_hash, key.architecture
    );
    Row {
        id: format!("pod-worker:w{n}"),
        kind: "pod-worker-lease".to_owned(),
        machine: "m".to_owned(),
        name: format!("w{n}"),
        owner: "cd".repeat(32),
        endpoint: None,
        attrs,
        observed_at: 1_700_000_000_000,
        ttl_ms: 3_600_000.0,
    }
}

impl LedgerView for Workers {
    fn get(&self, id: &str) -> Option<Row> {
        self.0.iter().find(|row| row.id == id).cloned()
    }

    fn idle_workers(&self, _: &WorkerKey, _: Option<&str>, _: u64, limit: u32) -> Vec<Row> {
        self.0.iter().take(limit as usize).cloned().collect()
    }

    fn page(&self, _: &str, after: Option<&str>, limit: u32) -> Vec<Row> {
        self.0
            .iter()
            .filter(|row| after.is_none_or(|after| row.id.as_str() > after))
            .take(limit as usize)
            .cloned()
            .collect()
    }
}
