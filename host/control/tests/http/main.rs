//! The control plane as its clients meet it: a real server on loopback, a real ledger on disk, raw requests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends at once where something isn't as it must be; the lint's own exception knows test functions only"
)]

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod describe;
mod forms;
mod gaps;
mod gone;
mod limits;
mod lists;
mod logs;
mod order;
mod primary;
mod ready;
mod services;
mod tokens;
mod unread;

use serde_json::{Value, json};
use support::client::{Ask, Reply, ask};
use support::{Document, Running, Setup};

/// A key that a worker may have.
fn key() -> Value {
    json!({"context": "local", "imageDigest": "sha256:i", "lockHash": "l", "architecture": "amd64"})
}

/// A row that may be registered.
fn record(id: &str) -> Value {
    json!({"id": id, "kind": "instance", "machine": "m1", "name": "svc", "attrs": {"load": 1}, "ttlMs": 30_000})
}

/// A server with its own primary document, on a root that lives as long as it.
async fn serving() -> (tempfile::TempDir, Running) {
    with(Setup { document: Document::Own, ..Setup::default() }).await
}

async fn with(setup: Setup) -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&folder.path().join("root"), setup).await;
    (folder, running)
}

async fn post(running: &Running, token: &str, path: &str, body: Value) -> Reply {
    ask(running.address, "POST", path).with(token).json(&body).send().await
}

/// The figures by name and labels.
async fn figures(running: &Running) -> std::collections::BTreeMap<String, f64> {
    let reply = ask(running.address, "GET", "/metrics").send().await;
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(reply.body).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Registers an idle worker of m1.
async fn idle_worker(running: &Running, machine_token: &str, id: &str) -> Reply {
    let body = json!({"workerId": id, "machine": "m1", "key": key(), "ttlMs": 60_000, "podUid": "uid-1"});
    post(running, machine_token, "/v1/workers/pod", body).await
}

async fn acquire(running: &Running) -> Reply {
    let body = json!({"key": key(), "runId": "r", "attemptId": "1", "ttlMs": 60_000});
    post(running, &running.token("member"), "/v1/leases/pod-worker", body).await
}
