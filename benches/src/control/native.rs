//! The lease decision without a component: the built-in policy's own code, called on the writer's thread.
//!
//! It fills the ledgers of this bench and decides in the server that ours is compared with.

use lease_policy::Standard;
use std::sync::Arc;
use warmhold_ledger as host;
use warmhold_sdk::lease as guest;
use warmhold_sdk::{Environment, Level};

/// As long as the name of a policy that is loaded, for it travels in each answer.
const TAG: &str = "lease-policy@sha256:0000000000000000000000000000000000000000000000000000000000000000#1";

/// Decides as the built-in policy does.
pub(super) struct Native {
    tag: Arc<str>,
}

impl Default for Native {
    fn default() -> Self {
        Self { tag: TAG.into() }
    }
}

impl host::Decider for Native {
    fn decide(
        &self,
        view: Arc<dyn host::View>,
        at: &host::Moment,
        caller: &host::Caller,
        operation: &host::Operation,
    ) -> Result<host::Decision, host::PolicyFailure> {
        let failed =
            |message: String| host::PolicyFailure { code: "trap".to_owned(), message, policy: Arc::clone(&self.tag) };
        let asked = asked(operation).ok_or_else(|| failed("the bench asks for nothing of the kind".to_owned()))?;
        let at = guest::Moment { now: at.now, fresh_id: at.fresh_id.clone() };
        let (view, who) = (Rows(view), who(caller));
        let call = guest::Call { ledger: &view, at: &at, who: &who, environment: &Quiet };
        match guest::decide(&Standard, &call, &asked) {
            Ok(change) => Ok(host::Decision { verdict: Ok(written(change)), policy: Arc::clone(&self.tag) }),
            // A bench in which somebody is refused measures something else than it says.
            Err(refusal) => Err(failed(format!("it refuses: {refusal:?}"))),
        }
    }

    fn violated(&self, policy: &str, violation: &str) {
        eprintln!("bench: {policy}: {violation}");
    }
}

/// A policy without settings whose log nobody reads.
struct Quiet;

impl Environment for Quiet {
    fn settings(&self) -> String {
        "{}".to_owned()
    }

    fn log(&self, _: Level, _: &str, _: &[(&str, &str)]) {}
}

struct Rows(Arc<dyn host::View>);

impl guest::Ledger for Rows {
    fn get(&self, id: &str) -> Option<guest::Row> {
        self.0.get(id).map(|row| shown(&row))
    }

    fn idle_workers(
        &self,
        key: &guest::WorkerKey,
        machine: Option<&str>,
        unexpired_at: u64,
        limit: u32,
    ) -> Vec<guest::Row> {
        let key = host::WorkerKey {
            context: key.context.clone(),
            image_digest: key.image_digest.clone(),
            lock_hash: key.lock_hash.clone(),
            architecture: key.architecture.clone(),
        };
        self.0.idle_workers(&key, machine, unexpired_at, limit as usize).iter().map(|row| shown(row)).collect()
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<guest::Row> {
        let Some(kind) = host::Kind::from_name(kind) else { return Vec::new() };
        self.0.page(kind, after, limit as usize).iter().map(|row| shown(row)).collect()
    }
}

fn shown(row: &host::Row) -> guest::Row {
    guest::Row {
        id: row.id.clone(),
        kind: row.kind.as_str().to_owned(),
        machine: row.machine.clone(),
        name: row.name.clone(),
        owner: row.owner.clone(),
        endpoint: row.endpoint.clone(),
        attrs: row.attrs.to_string(),
        observed_at: row.observed_at,
        ttl_ms: row.ttl_ms,
    }
}

fn who(caller: &host::Caller) -> guest::Caller {
    guest::Caller {
        owner: caller.owner.clone(),
        scope: match caller.scope {
            host::Scope::Admin => guest::Scope::Admin,
            host::Scope::Member => guest::Scope::Member,
            host::Scope::Query => guest::Scope::Query,
            host::Scope::Machine => guest::Scope::Machine,
        },
        machine: caller.machine.clone(),
    }
}

fn key(key: &host::WorkerKey) -> guest::WorkerKey {
    guest::WorkerKey {
        context: key.context.clone(),
        image_digest: key.image_digest.clone(),
        lock_hash: key.lock_hash.clone(),
        architecture: key.architecture.clone(),
    }
}

/// The operation in the policy's types; none for what this bench never asks.
fn asked(operation: &host::Operation) -> Option<guest::Operation> {
    Some(match operation {
        host::Operation::Register(draft) => guest::Operation::Register(guest::RowDraft {
            id: draft.id.clone(),
            kind: draft.kind.as_str().to_owned(),
            machine: draft.machine.clone(),
            name: draft.name.clone(),
            endpoint: draft.endpoint.clone(),
            attrs: draft.attrs.to_string(),
            ttl_ms: draft.ttl_ms,
        }),
        host::Operation::RegisterWorker(draft) => guest::Operation::RegisterWorker(guest::WorkerDraft {
            worker_id: draft.worker_id.clone(),
            machine: draft.machine.clone(),
            key: key(&draft.key),
            key_json: draft.key_json.to_string(),
            pod_uid: draft.pod_uid.clone(),
            ttl_ms: draft.ttl_ms,
        }),
        host::Operation::AcquireWorker(request) => guest::Operation::Acquire(guest::WorkerRequest {
            machine: request.machine.clone(),
            key: key(&request.key),
            run_id: request.run_id.clone(),
            attempt_id: request.attempt_id.clone(),
            ttl_ms: request.ttl_ms,
        }),
        host::Operation::Transition(transition) => {
            let kind = match transition.kind {
                host::TransitionKind::Renew => guest::TransitionKind::Renew,
                host::TransitionKind::Release => guest::TransitionKind::Release,
                host::TransitionKind::Sanitize => guest::TransitionKind::Sanitize,
                host::TransitionKind::Quarantine => guest::TransitionKind::Quarantine,
            };
            guest::Operation::Transition(
                kind,
                guest::Transition {
                    worker_id: transition.worker_id.clone(),
                    lease_id: transition.lease_id.clone(),
                    generation: transition.generation,
                    ttl_ms: transition.ttl_ms,
                    reason: transition.reason.clone(),
                },
            )
        }
        _ => return None,
    })
}

fn written(change: guest::Change) -> host::Change {
    let put = change.put.into_iter().map(|row| host::ProposedRow {
        id: row.id,
        kind: row.kind,
        machine: row.machine,
        name: row.name,
        owner: row.owner,
        endpoint: row.endpoint,
        attrs: row.attrs,
        observed_at: row.observed_at,
        ttl_ms: row.ttl_ms,
    });
    host::Change { put: put.collect(), remove: change.remove }
}
