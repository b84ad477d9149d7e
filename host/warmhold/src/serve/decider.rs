//! The lease policy as the ledger's decider: the same values, in the types of both sides.

use std::sync::Arc;
use warmhold_ledger as ledger;
use warmhold_plugin as plugin;

/// Lets the serving lease policy decide.
pub(super) struct LeaseDecider {
    slot: Arc<plugin::LeaseSlot>,
}

impl LeaseDecider {
    pub(super) fn new(slot: Arc<plugin::LeaseSlot>) -> Self {
        Self { slot }
    }
}

impl ledger::Decider for LeaseDecider {
    fn decide(
        &self,
        view: Arc<dyn ledger::View>,
        at: &ledger::Moment,
        caller: &ledger::Caller,
        operation: &ledger::Operation,
    ) -> Result<ledger::Decision, ledger::PolicyFailure> {
        let moment = plugin::Moment { now: at.now, fresh_id: at.fresh_id.clone() };
        match self.slot.decide(Arc::new(SeenLedger(view)), &moment, &who(caller), &request(operation)) {
            Ok(decided) => {
                Ok(ledger::Decision { verdict: decided.verdict.map(change).map_err(refusal), policy: decided.policy })
            }
            Err(fault) => Err(ledger::PolicyFailure {
                code: fault.code().to_owned(),
                message: fault.to_string(),
                policy: fault.tag.into(),
            }),
        }
    }

    fn violated(&self, policy: &str, violation: &str) {
        self.slot.report_violation(policy, violation);
    }
}

/// The ledger's rows for the policy.
struct SeenLedger(Arc<dyn ledger::View>);

impl plugin::LedgerView for SeenLedger {
    fn get(&self, id: &str) -> Option<plugin::Row> {
        self.0.get(id).map(|row| shown(&row))
    }

    fn idle_workers(
        &self,
        key: &plugin::WorkerKey,
        machine: Option<&str>,
        unexpired_at: u64,
        limit: u32,
    ) -> Vec<plugin::Row> {
        let key = ledger::WorkerKey {
            context: key.context.clone(),
            image_digest: key.image_digest.clone(),
            lock_hash: key.lock_hash.clone(),
            architecture: key.architecture.clone(),
        };
        let rows = self.0.idle_workers(&key, machine, unexpired_at, limit as usize);
        rows.iter().map(|row| shown(row)).collect()
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<plugin::Row> {
        let Some(kind) = ledger::Kind::from_name(kind) else { return Vec::new() };
        self.0.page(kind, after, limit as usize).iter().map(|row| shown(row)).collect()
    }
}

fn shown(row: &ledger::Row) -> plugin::Row {
    plugin::Row {
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

fn who(caller: &ledger::Caller) -> plugin::Caller {
    let scope = match caller.scope {
        ledger::Scope::Admin => plugin::Scope::Admin,
        ledger::Scope::Member => plugin::Scope::Member,
        ledger::Scope::Query => plugin::Scope::Query,
        ledger::Scope::Machine => plugin::Scope::Machine,
    };
    plugin::Caller { owner: caller.owner.clone(), scope, machine: caller.machine.clone() }
}

fn key(key: &ledger::WorkerKey) -> plugin::WorkerKey {
    plugin::WorkerKey {
        context: key.context.clone(),
        image_digest: key.image_digest.clone(),
        lock_hash: key.lock_hash.clone(),
        architecture: key.architecture.clone(),
    }
}

fn request(operation: &ledger::Operation) -> plugin::LeaseRequest {
    use ledger::Operation as Op;
    use plugin::LeaseRequest as Ask;
    match operation {
        Op::Register(draft) => Ask::RegisterResource(plugin::RowDraft {
            id: draft.id.clone(),
            kind: draft.kind.as_str().to_owned(),
            machine: draft.machine.clone(),
            name: draft.name.clone(),
            endpoint: draft.endpoint.clone(),
            attrs: draft.attrs.to_string(),
            ttl_ms: draft.ttl_ms,
        }),
        Op::Heartbeat { id, attrs } => {
            Ask::Heartbeat { id: id.clone(), attrs: attrs.as_ref().map(|attrs| attrs.to_string()) }
        }
        Op::Remove { id } => Ask::RemoveResource { id: id.clone() },
        Op::LeasePort(request) => Ask::LeasePort(plugin::PortRequest {
            machine: request.machine.clone(),
            purpose: request.purpose.clone(),
            ttl_ms: request.ttl_ms,
            excluded: request.excluded.clone(),
            first: request.first,
            last: request.last,
        }),
        Op::RenewPort { port, lease_id } => Ask::RenewPort { port: *port, lease_id: lease_id.clone() },
        Op::ReleasePort { port, lease_id } => Ask::ReleasePort { port: *port, lease_id: lease_id.clone() },
        Op::RegisterWorker(draft) => Ask::RegisterWorker(plugin::WorkerDraft {
            worker_id: draft.worker_id.clone(),
            machine: draft.machine.clone(),
            key: key(&draft.key),
            key_json: draft.key_json.to_string(),
            pod_uid: draft.pod_uid.clone(),
            ttl_ms: draft.ttl_ms,
        }),
        Op::AcquireWorker(request) => Ask::AcquireWorker(plugin::WorkerRequest {
            machine: request.machine.clone(),
            key: key(&request.key),
            run_id: request.run_id.clone(),
            attempt_id: request.attempt_id.clone(),
            ttl_ms: request.ttl_ms,
        }),
        Op::Transition(transition) => {
            let asked = plugin::Transition {
                worker_id: transition.worker_id.clone(),
                lease_id: transition.lease_id.clone(),
                generation: transition.generation,
                ttl_ms: transition.ttl_ms,
                reason: transition.reason.clone(),
            };
            match transition.kind {
                ledger::TransitionKind::Renew => Ask::RenewWorker(asked),
                ledger::TransitionKind::Release => Ask::ReleaseWorker(asked),
                ledger::TransitionKind::Sanitize => Ask::SanitizeWorker(asked),
                ledger::TransitionKind::Quarantine => Ask::QuarantineWorker(asked),
            }
        }
    }
}

fn change(change: plugin::Change) -> ledger::Change {
    ledger::Change {
        put: change
            .put
            .into_iter()
            .map(|row| ledger::ProposedRow {
                id: row.id,
                kind: row.kind,
                machine: row.machine,
                name: row.name,
                owner: row.owner,
                endpoint: row.endpoint,
                attrs: row.attrs,
                observed_at: row.observed_at,
                ttl_ms: row.ttl_ms,
            })
            .collect(),
        remove: change.remove,
    }
}

fn refusal(refusal: plugin::Refusal) -> ledger::Refusal {
    use plugin::Refusal as From;
    match refusal {
        From::NotFound => ledger::Refusal::NotFound,
        From::NotOwner => ledger::Refusal::NotOwner,
        From::Invalid => ledger::Refusal::Invalid,
        From::Conflict => ledger::Refusal::Conflict,
        From::StaleWorkerLease => ledger::Refusal::StaleWorkerLease,
        From::NoWarmWorker => ledger::Refusal::NoWarmWorker,
        From::WorkerIdUsed => ledger::Refusal::WorkerIdUsed,
        From::WorkerIdConflict => ledger::Refusal::WorkerIdConflict,
        From::LeaseExpired => ledger::Refusal::LeaseExpired,
        From::NotLeased => ledger::Refusal::NotLeased,
        From::NotSanitizing => ledger::Refusal::NotSanitizing,
        From::AlreadyQuarantined => ledger::Refusal::AlreadyQuarantined,
        From::NoPort => ledger::Refusal::NoPort,
        From::PortLeaseRequiresAllocator => ledger::Refusal::PortLeaseRequiresAllocator,
        From::PodWorkerRequiresAllocator => ledger::Refusal::PodWorkerRequiresAllocator,
        From::OverQuota => ledger::Refusal::OverQuota,
        From::NotNow => ledger::Refusal::NotNow,
    }
}
