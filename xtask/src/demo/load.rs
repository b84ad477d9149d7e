//! Clients that keep asking for decisions, to see that none is lost.

use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use warmhold_tests::{Daemon, Site};

/// What the clients saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Requests that were decided.
    pub(crate) requests: u64,
    /// The policies that decided, `NAME#GENERATION`.
    pub(crate) policies: BTreeSet<String>,
    /// Answers that weren't as they should be.
    pub(crate) failed: Vec<String>,
}

/// Running clients.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Seen>>>,
}

impl Load {
    /// Starts clients, each of which leases and releases ports.
    pub(crate) fn start(site: &Site, daemon: &Daemon, clients: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let token = site.token("member")?;
        let clients = (0..clients)
            .map(|number| {
                let (stop, token, url) = (Arc::clone(&stop), token.clone(), daemon.url.clone());
                std::thread::spawn(move || client(&stop, &url, &token, number))
            })
            .collect();
        Ok(Self { stop, clients })
    }

    /// Ends them, and answers what they saw.
    pub(crate) fn stop(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Seen::default();
        for client in self.clients {
            let seen = client.join().map_err(|_| anyhow::anyhow!("a client failed"))??;
            all.requests += seen.requests;
            all.policies.extend(seen.policies);
            all.failed.extend(seen.failed);
        }
        Ok(all)
    }
}

fn client(stop: &AtomicBool, url: &str, token: &str, number: usize) -> Result<Seen> {
    let client = warmhold_tests::Client::new(url, token);
    let mut seen = Seen::default();
    let mut note = |answer: &warmhold_tests::Answer, want: u16| {
        seen.requests += 1;
        if answer.status != want {
            seen.failed.push(format!("{}: {}", answer.status, answer.text));
        }
        match answer.header("x-warmhold-policy").and_then(name_and_generation) {
            Some(policy) => drop(seen.policies.insert(policy)),
            None => seen.failed.push(format!("no policy is named: {}", answer.text)),
        }
    };
    while !stop.load(Ordering::Relaxed) {
        let body = json!({ "machine": "demo", "purpose": format!("client {number}"), "ttlMs": 60_000 });
        let leased = client.request("POST", "/v1/leases/port", Some(&body), &[])?;
        note(&leased, 200);
        let (Some(port), Some(lease)) = (
            leased.json.get("port").and_then(Value::as_u64),
            leased.json.pointer("/lease/attrs/leaseId").and_then(Value::as_str),
        ) else {
            continue;
        };
        let released =
            client.request("DELETE", &format!("/v1/leases/port/{port}"), None, &[("x-port-lease-id", lease)])?;
        note(&released, 204);
    }
    Ok(seen)
}

/// `most-recent@sha256:…#3` without the digest.
fn name_and_generation(tag: &str) -> Option<String> {
    let (name, rest) = tag.split_once("@sha256:")?;
    Some(format!("{name}#{}", rest.split_once('#')?.1))
}
