//! What is in the ledgers before anybody measures.
//!
//! Each client has a key of its own, as each commit that is tested has one, and up to [`SPARE`] idle workers with it. The
//! other rows are workers of other keys and instances, half and half: what a control plane holds beside the work in hand.

use super::native::Native;
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use warmhold_control::{MachineName, MachineTokens, Tokens};
use warmhold_ledger::{
    Guard, Kind, Ledger, NoPrimary, Operation, Options, RowDraft, Submission, WorkerDraft, WorkerKey,
};

/// The machine that brings the workers.
pub(super) const MACHINE: &str = "bench";
/// The most clients that work at once, each with a key of its own.
pub(super) const CLIENTS: usize = 256;
/// Workers of each client's key, where there are rows enough.
const SPARE: usize = 4;
/// Workers of each other key.
const OF_A_KEY: usize = 16;
/// Fits every bench, and is the most that a worker may have.
const TTL_MS: u64 = 86_400_000;
/// Writes that wait at once while a ledger is filled; they share commits.
const AT_ONCE: usize = 2048;
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of a client's workers; numbers from [`CLIENTS`] on are of nobody.
pub(super) fn key(number: usize) -> WorkerKey {
    WorkerKey {
        context: "local".to_owned(),
        image_digest: format!("sha256:{}", "1f".repeat(32)),
        lock_hash: format!("{number:064x}"),
        architecture: "amd64".to_owned(),
    }
}

/// The same as JSON text.
pub(super) fn key_json(number: usize) -> String {
    let WorkerKey { context, image_digest, lock_hash, architecture } = key(number);
    format!(
        "{{\"context\":\"{context}\",\"imageDigest\":\"{image_digest}\",\"lockHash\":\"{lock_hash}\",\
         \"architecture\":\"{architecture}\"}}"
    )
}

/// A worker's row as the control plane shows it; empty: no lease.
pub(super) fn row_json(number: usize, state: &str, generation: u64, lease: &str) -> String {
    let lease = match lease {
        "" => String::new(),
        id => format!(
            ",\"leaseId\":\"{id}\",\"leaseOwner\":\"{}\",\"runId\":\"run-0\",\"attemptId\":\"1\"",
            "cd".repeat(32)
        ),
    };
    format!(
        "{{\"id\":\"pod-worker-lease:worker-{number:06}\",\"kind\":\"pod-worker-lease\",\"machine\":\"{MACHINE}\",\
         \"name\":\"worker-{number:06}\",\"owner\":\"{}\",\"attrs\":{{\"key\":{},\"state\":\"{state}\",\
         \"generation\":{generation},\"idleTtlMs\":{TTL_MS},\"podUid\":\"{}\"{lease}}},\
         \"observedAt\":1700000000000,\"ttlMs\":60000}}",
        "ab".repeat(32),
        key_json(number % CLIENTS),
        pod(number),
    )
}

fn pod(number: usize) -> String {
    format!("00000000-0000-4000-9000-{number:012}")
}

/// The names of the instances in a ledger of so many rows.
pub(super) fn instances(rows: usize) -> impl Iterator<Item = String> {
    (first_other(rows)..rows).filter(|number| !number.is_multiple_of(2)).map(instance)
}

fn instance(number: usize) -> String {
    format!("service-{number}")
}

/// Where the workers of the clients' keys end.
fn first_other(rows: usize) -> usize {
    let clients = rows.min(CLIENTS);
    clients * (rows / (2 * clients).max(1)).clamp(1, SPARE)
}

/// The tokens of a root.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    pub(super) member: String,
    pub(super) machine: String,
    pub(super) query: String,
}

/// Makes a root with tokens.
pub(super) fn root(root: &Path) -> Result<Access> {
    Tokens::open(root)?;
    let machine = MachineTokens::of(root).issue(&MachineName::parse(MACHINE)?)?;
    let path = root.join("control").join("tokens.json");
    let tokens: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let token = |name: &str| -> Result<String> {
        let token = tokens.get(name).and_then(serde_json::Value::as_str);
        Ok(token.with_context(|| format!("{} has no {name} token", path.display()))?.to_owned())
    };
    Ok(Access { member: token("member")?, machine, query: token("query")? })
}

/// Fills a new ledger with so many rows.
pub(super) fn ledger(path: &Path, rows: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let ledger = Ledger::open(path, Options::new(Arc::new(Native::default()), Arc::new(NoPrimary)))?;
        let mut waiting = JoinSet::new();
        for operation in operations(rows) {
            if waiting.len() >= AT_ONCE
                && let Some(done) = waiting.join_next().await
            {
                done??;
            }
            let ledger = ledger.clone();
            let submission = Submission {
                operation,
                caller: Tokens::machine(&MachineName::parse(MACHINE)?),
                guard: Guard::default(),
                deadline: Instant::now() + PATIENCE,
            };
            waiting.spawn(async move { ledger.apply(submission).await.map(|_| ()) });
        }
        while let Some(done) = waiting.join_next().await {
            done??;
        }
        let there = ledger.stats().rows;
        ensure!(there == rows as u64, "{rows} rows were written, {there} are there");
        ledger.close().await;
        Ok(())
    })
}

fn operations(rows: usize) -> impl Iterator<Item = Operation> {
    let (clients, own) = (rows.min(CLIENTS), first_other(rows));
    (0..rows).map(move |number| {
        if number < own {
            worker(number, number % clients)
        } else if number.is_multiple_of(2) {
            worker(number, CLIENTS + number / (2 * OF_A_KEY))
        } else {
            plain(number)
        }
    })
}

fn worker(number: usize, of: usize) -> Operation {
    Operation::RegisterWorker(WorkerDraft {
        worker_id: format!("worker-{number:06}"),
        machine: MACHINE.to_owned(),
        key: key(of),
        key_json: key_json(of).into(),
        pod_uid: Some(pod(number)),
        ttl_ms: TTL_MS,
    })
}

#[allow(clippy::cast_precision_loss, reason = "a day in milliseconds")]
fn plain(number: usize) -> Operation {
    Operation::Register(RowDraft {
        id: format!("instance:{number:06}"),
        kind: Kind::Instance,
        machine: MACHINE.to_owned(),
        name: instance(number),
        endpoint: Some(format!("http://127.0.0.1:{}", 1024 + number % 60_000)),
        attrs: format!("{{\"version\":{number},\"healthy\":true}}").into(),
        ttl_ms: TTL_MS as f64,
    })
}
