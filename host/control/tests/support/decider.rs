//! The standard lease policy, called natively.

use std::sync::Arc;
use warmhold_control::api::PolicySlot;
use warmhold_ledger as host;
use warmhold_sdk::lease::{self as guest, LeasePolicy};
use warmhold_sdk::{Environment, Identity, Level, Policy, types};

/// Named in every answer that it decides.
pub const TAG: &str = "native@sha256:0000000000000000000000000000000000000000000000000000000000000000#1";

#[derive(Default)]
struct Standard;

impl Policy for Standard {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity("native", "0", PolicySlot::Lease.as_str())
    }
}

impl LeasePolicy for Standard {}

impl Environment for Standard {
    fn settings(&self) -> String {
        "{}".to_owned()
    }

    fn log(&self, _: Level, message: &str, _: &[(&str, &str)]) {
        eprintln!("policy: {message}");
    }
}

/// Decides as the built-in policy does.
pub struct Native;

impl host::Decider for Native {
    fn decide(
        &self,
        view: Arc<dyn host::View>,
        at: &host::Moment,
        caller: &host::Caller,
        operation: &host::Operation,
    ) -> Result<host::Decision, host::PolicyFailure> {
        let view = Rows(view);
        let at = guest::Moment { now: at.now, fresh_id: at.fresh_id.clone() };
        let who = types::Caller {
            owner: caller.owner.clone(),
            scope: match caller.scope {
                host::Scope::Admin => types::Scope::Admin,
                host::Scope::Member => types::Scope::Member,
                host::Scope::Query => types::Scope::Query,
                host::Scope::Machine => types::Scope::Machine,
            },
            machine: caller.machine.clone(),
        };
        let call = guest::Call { ledger: &view, at: &at, who: &who, environment: &Standard };
        let verdict = guest::decide(&Standard, &call, &asked(operation));
        Ok(host::Decision { verdict: verdict.map(change).map_err(refusal), policy: TAG.into() })
    }

    fn violated(&self, policy: &str, violation: &str) {
        panic!("{policy} broke a rule: {violation}");
    }
}

struct Rows(Arc<dyn host::View>);

impl guest::Ledger for Rows {
    fn get(&self, id: &str) -> Option<types::Row> {
        self.0.get(id).map(|row| shown(&row))
    }

    fn idle_workers(
        &self,
        key: &types::WorkerKey,
        machine: Option<&str>,
        unexpired_at: u64,
        limit: u32,
    ) -> Vec<types::Row> {
        let key = host::WorkerKey {
            context: key.context.clone(),
            image_digest: key.image_digest.clone(),
            lock_hash: key.lock_hash.clone(),
            architecture: key.architecture.clone(),
        };
        self.0.idle_workers(&key, machine, unexpired_at, limit as usize).iter().map(|row| shown(row)).collect()
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<types::Row> {
        let Some(kind) = host::Kind::from_name(kind) else { return Vec::new() };
        self.0.page(kind, after, limit as usize).iter().map(|row| shown(row)).collect()
    }
}

fn shown(row: &host::Row) -> types::Row {
    types::Row {
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

fn key(key: &host::WorkerKey) -> types::WorkerKey {
    types::WorkerKey {
        context: key.context.clone(),
        image_digest: key.image_digest.clone(),
        lock_hash: key.lock_hash.clone(),
        architecture: key.architecture.clone(),
    }
}

fn asked(operation: &host::Operation) -> guest::Operation {
    match operation.clone() {
        host::Operation::Register(draft) => guest::Operation::Register(guest::RowDraft {
            id: draft.id,
            kind: draft.kind.as_str().to_owned(),
            machine: draft.machine,
            name: draft.name,
            endpoint: draft.endpoint,
            attrs: draft.attrs.to_string(),
            ttl_ms: draft.ttl_ms,
        }),
        host::Operation::Heartbeat { id, attrs } => {
            guest::Operation::Heartbeat { id, attrs: attrs.map(|attrs| attrs.to_string()) }
        }
        host::Operation::Remove { id } => guest::Operation::Remove { id },
        host::Operation::LeasePort(request) => guest::Operation::LeasePort(guest::PortRequest {
            machine: request.machine,
            purpose: request.purpose,
            ttl_ms: request.ttl_ms,
            excluded: request.excluded,
            first: request.first,
            last: request.last,
        }),
        host::Operation::RenewPort { port, lease_id } => guest::Operation::RenewPort { port, lease_id },
        host::Operation::ReleasePort { port, lease_id } => guest::Operation::ReleasePort { port, lease_id },
        host::Operation::RegisterWorker(draft) => guest::Operation::RegisterWorker(guest::WorkerDraft {
            worker_id: draft.worker_id,
            machine: draft.machine,
            key: key(&draft.key),
            key_json: draft.key_json.to_string(),
            pod_uid: draft.pod_uid,
            ttl_ms: draft.ttl_ms,
        }),
        host::Operation::AcquireWorker(request) => guest::Operation::Acquire(guest::WorkerRequest {
            machine: request.machine,
            key: key(&request.key),
            run_id: request.run_id,
            attempt_id: request.attempt_id,
            ttl_ms: request.ttl_ms,
        }),
        host::Operation::Transition(transition) => guest::Operation::Transition(
            match transition.kind {
                host::TransitionKind::Renew => guest::TransitionKind::Renew,
                host::TransitionKind::Release => guest::TransitionKind::Release,
                host::TransitionKind::Sanitize => guest::TransitionKind::Sanitize,
                host::TransitionKind::Quarantine => guest::TransitionKind::Quarantine,
            },
            guest::Transition {
                worker_id: transition.worker_id,
                lease_id: transition.lease_id,
                generation: transition.generation,
                ttl_ms: transition.ttl_ms,
                reason: transition.reason,
            },
        ),
    }
}

fn change(change: guest::Change) -> host::Change {
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

fn refusal(refusal: types::Refusal) -> host::Refusal {
    match refusal {
        types::Refusal::NotFound => host::Refusal::NotFound,
        types::Refusal::NotOwner => host::Refusal::NotOwner,
        types::Refusal::Invalid => host::Refusal::Invalid,
        types::Refusal::Conflict => host::Refusal::Conflict,
        types::Refusal::StaleWorkerLease => host::Refusal::StaleWorkerLease,
        types::Refusal::NoWarmWorker => host::Refusal::NoWarmWorker,
        types::Refusal::WorkerIdUsed => host::Refusal::WorkerIdUsed,
        types::Refusal::WorkerIdConflict => host::Refusal::WorkerIdConflict,
        types::Refusal::LeaseExpired => host::Refusal::LeaseExpired,
        types::Refusal::NotLeased => host::Refusal::NotLeased,
        types::Refusal::NotSanitizing => host::Refusal::NotSanitizing,
        types::Refusal::AlreadyQuarantined => host::Refusal::AlreadyQuarantined,
        types::Refusal::NoPort => host::Refusal::NoPort,
        types::Refusal::PortLeaseRequiresAllocator => host::Refusal::PortLeaseRequiresAllocator,
        types::Refusal::PodWorkerRequiresAllocator => host::Refusal::PodWorkerRequiresAllocator,
        types::Refusal::OverQuota => host::Refusal::OverQuota,
        types::Refusal::NotNow => host::Refusal::NotNow,
    }
}
