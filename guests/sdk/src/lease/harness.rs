//! Runs a lease policy natively against a ledger in memory: no WebAssembly, no daemon.
//!
//! ```
//! use warmhold_sdk::lease::harness::{Harness, member};
//! use warmhold_sdk::lease::{Operation, Refusal, WorkerRequest, LeasePolicy};
//! use warmhold_sdk::{Identity, Policy};
//!
//! #[derive(Default)]
//! struct Mine;
//! impl Policy for Mine {
//!     fn identity(&self) -> Identity {
//!         warmhold_sdk::identity("mine", "0.1.0", "an example")
//!     }
//! }
//! impl LeasePolicy for Mine {}
//!
//! let mut harness = Harness::new(Mine);
//! let worker = harness.idle_worker("w1", "m1").unwrap();
//! let leased = harness.ask(&member("ann"), &Operation::Acquire(harness.request("run-1"))).unwrap();
//! assert_eq!(leased.unwrap().id, worker.id);
//! ```

mod fence;
mod memory;

pub use fence::violation;
pub use memory::MemoryLedger;

use super::{Call, LeasePolicy, Moment, Operation, Refusal, Row, WorkerDraft, WorkerRequest, decide, standard};
use crate::Recorder;
use crate::types::{Caller, Scope, WorkerKey};

/// Why nothing was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The policy refused: the caller gets this.
    Refused(Refusal),
    /// The policy wants what the host's fence refuses: the caller would get 503, and it would count against the policy.
    Violation(String),
}

/// A policy, a ledger and a clock that stands still until a test moves it.
#[derive(Debug)]
pub struct Harness<P> {
    /// The policy.
    pub policy: P,
    /// The rows.
    pub ledger: MemoryLedger,
    /// What the next decision takes for now.
    pub now: u64,
    /// Settings, and what was logged.
    pub environment: Recorder,
    decisions: u64,
}

/// A member with an owner of its own.
#[must_use]
pub fn member(name: &str) -> Caller {
    Caller { owner: format!("owner-of-{name}"), scope: Scope::Member, machine: None }
}

/// A machine's own token.
#[must_use]
pub fn machine(name: &str) -> Caller {
    Caller { owner: format!("owner-of-machine-{name}"), scope: Scope::Machine, machine: Some(name.to_owned()) }
}

/// The key of every worker that the harness registers by itself.
#[must_use]
pub fn key() -> WorkerKey {
    WorkerKey {
        context: "local".to_owned(),
        image_digest: format!("sha256:{}", "a".repeat(64)),
        lock_hash: "b".repeat(64),
        architecture: "amd64".to_owned(),
    }
}

/// A key as JSON text, as a client sends it.
#[must_use]
pub fn key_json(key: &WorkerKey) -> String {
    serde_json::json!({
        "context": key.context, "imageDigest": key.image_digest,
        "lockHash": key.lock_hash, "architecture": key.architecture,
    })
    .to_string()
}

impl<P: LeasePolicy> Harness<P> {
    /// An empty ledger, some time after the epoch.
    #[must_use]
    pub fn new(policy: P) -> Self {
        Self {
            policy,
            ledger: MemoryLedger::default(),
            now: 1_000_000_000,
            environment: Recorder::default(),
            decisions: 0,
        }
    }

    /// Asks the policy, checks its answer as the host would, and writes it. Some: the row that was written; none: one was
    /// removed.
    ///
    /// # Errors
    /// See [`Failure`]; nothing is written.
    pub fn ask(&mut self, who: &Caller, operation: &Operation) -> Result<Option<Row>, Failure> {
        self.decisions += 1;
        let at = Moment { now: self.now, fresh_id: format!("00000000-0000-4000-8000-{:012}", self.decisions) };
        let call = Call { ledger: &self.ledger, at: &at, who, environment: &self.environment };
        let change = decide(&self.policy, &call, operation).map_err(Failure::Refused)?;
        if let Some(violation) = violation(&call, operation, &change) {
            return Err(Failure::Violation(violation));
        }
        change.remove.iter().for_each(|id| self.ledger.remove(id));
        let written = change.put.into_iter().next();
        if let Some(row) = &written {
            self.ledger.put(row.clone());
        }
        Ok(written)
    }

    /// Registers a worker with [`key`] and a time to live of a minute, past the policy. None when the
    /// id is used.
    pub fn idle_worker(&mut self, worker_id: &str, machine_name: &str) -> Option<Row> {
        let draft = WorkerDraft {
            worker_id: worker_id.to_owned(),
            machine: machine_name.to_owned(),
            key: key(),
            key_json: key_json(&key()),
            pod_uid: Some(format!("uid-of-{worker_id}")),
            ttl_ms: 60_000,
        };
        let at = Moment { now: self.now, fresh_id: String::new() };
        let who = machine(machine_name);
        let call = Call { ledger: &self.ledger, at: &at, who: &who, environment: &self.environment };
        let change = standard::register_worker(&call, &draft);
        let row = change.ok().and_then(|change| change.put.into_iter().next());
        if let Some(row) = &row {
            self.ledger.put(row.clone());
        }
        row
    }

    /// A request for a worker with [`key`], for a minute.
    #[must_use]
    pub fn request(&self, run_id: &str) -> WorkerRequest {
        WorkerRequest {
            machine: None,
            key: key(),
            run_id: run_id.to_owned(),
            attempt_id: "1".to_owned(),
            ttl_ms: 60_000,
        }
    }
}
