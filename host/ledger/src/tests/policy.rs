//! A lease policy that does what the specification says, written without a look at the fence.

use crate::{
    Caller, Change, Decider, Decision, Kind, Moment, Operation, PolicyFailure, ProposedRow, Refusal, Row,
    TransitionKind, View,
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Follows the specification to the letter, and remembers the violations that it was told of.
#[derive(Default)]
pub(crate) struct Reference {
    pub(crate) violations: Mutex<Vec<String>>,
}

impl Decider for Reference {
    fn decide(
        &self,
        view: Arc<dyn View>,
        at: &Moment,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Decision, PolicyFailure> {
        Ok(Decision { verdict: verdict(view.as_ref(), at, caller, operation), policy: "reference".into() })
    }

    fn violated(&self, policy: &str, violation: &str) {
        self.violations.lock().push(format!("{policy}: {violation}"));
    }
}

pub(crate) fn attrs(row: &Row) -> Map<String, Value> {
    serde_json::from_str(&row.attrs).unwrap()
}

pub(crate) fn proposed(row: &Row, attrs: &Map<String, Value>) -> ProposedRow {
    ProposedRow {
        id: row.id.clone(),
        kind: row.kind.as_str().to_owned(),
        machine: row.machine.clone(),
        name: row.name.clone(),
        owner: row.owner.clone(),
        endpoint: row.endpoint.clone(),
        attrs: serde_json::to_string(attrs).unwrap(),
        observed_at: row.observed_at,
        ttl_ms: row.ttl_ms,
    }
}

fn put(row: ProposedRow) -> Result<Change, Refusal> {
    Ok(Change { put: vec![row], remove: vec![] })
}

fn removal(id: &str) -> Result<Change, Refusal> {
    Ok(Change { put: vec![], remove: vec![id.to_owned()] })
}

fn map(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

pub(crate) fn verdict(view: &dyn View, at: &Moment, caller: &Caller, operation: &Operation) -> Result<Change, Refusal> {
    decided(view, at, caller, operation, true)
}

/// What a policy would want written that knows how, and cares for no rule: only what has no row fails.
pub(crate) fn lawless(view: &dyn View, at: &Moment, caller: &Caller, operation: &Operation) -> Option<Change> {
    decided(view, at, caller, operation, false).ok()
}

fn decided(
    view: &dyn View,
    at: &Moment,
    caller: &Caller,
    operation: &Operation,
    lawful: bool,
) -> Result<Change, Refusal> {
    let forbid = |when: bool, refusal| if lawful && when { Err(refusal) } else { Ok(()) };
    let own = |id: &str| {
        forbid(id.starts_with("port-lease:"), Refusal::PortLeaseRequiresAllocator)?;
        forbid(id.starts_with("pod-worker-lease:"), Refusal::PodWorkerRequiresAllocator)?;
        let row = view.get(id).ok_or(Refusal::NotFound)?;
        forbid(row.owner != caller.owner, Refusal::NotOwner)?;
        Ok(row)
    };
    let port_row = |port: u16, lease: &str| {
        let row = view.get(&format!("port-lease:{port}")).ok_or(Refusal::NotFound)?;
        let fenced = !lease.is_empty() && attrs(&row)["leaseId"] == lease;
        forbid(row.owner != caller.owner || !fenced, Refusal::NotOwner)?;
        Ok(row)
    };
    match operation {
        Operation::Register(draft) => {
            let port = draft.id.starts_with("port-lease:") || draft.kind == Kind::PortLease;
            forbid(port, Refusal::PortLeaseRequiresAllocator)?;
            let worker = draft.id.starts_with("pod-worker-lease:") || draft.kind == Kind::PodWorkerLease;
            forbid(worker, Refusal::PodWorkerRequiresAllocator)?;
            if let Some(row) = view.get(&draft.id) {
                forbid(row.owner != caller.owner, Refusal::NotOwner)?;
            }
            forbid(!(draft.ttl_ms.is_finite() && draft.ttl_ms >= 0.0), Refusal::Invalid)?;
            put(ProposedRow {
                id: draft.id.clone(),
                kind: draft.kind.as_str().to_owned(),
                machine: draft.machine.clone(),
                name: draft.name.clone(),
                owner: caller.owner.clone(),
                endpoint: draft.endpoint.clone(),
                attrs: draft.attrs.to_string(),
                observed_at: at.now,
                ttl_ms: draft.ttl_ms,
            })
        }
        Operation::Heartbeat { id, attrs: merge } => {
            let row = own(id)?;
            let mut merged = attrs(&row);
            if let Some(merge) = merge {
                merged.extend(serde_json::from_str::<Map<String, Value>>(merge).unwrap());
            }
            put(ProposedRow { observed_at: at.now, ..proposed(&row, &merged) })
        }
        Operation::Remove { id } => removal(&own(id)?.id),
        Operation::LeasePort(request) => {
            let free = |port: &u16| {
                !lawful
                    || !request.excluded.contains(port)
                        && view.get(&format!("port-lease:{port}")).is_none_or(|row| row.expired(at.now))
            };
            let port = (request.first..=request.last).find(free).ok_or(Refusal::NoPort)?;
            put(ProposedRow {
                id: format!("port-lease:{port}"),
                kind: "port-lease".to_owned(),
                machine: request.machine.clone(),
                name: request.purpose.clone(),
                owner: caller.owner.clone(),
                endpoint: None,
                attrs: json!({"port": port, "purpose": request.purpose, "leaseId": at.fresh_id}).to_string(),
                observed_at: at.now,
                ttl_ms: request.ttl_ms,
            })
        }
        Operation::RenewPort { port, lease_id } => {
            let row = port_row(*port, lease_id)?;
            put(ProposedRow { observed_at: at.now, ..proposed(&row, &attrs(&row)) })
        }
        Operation::ReleasePort { port, lease_id } => removal(&port_row(*port, lease_id)?.id),
        Operation::RegisterWorker(draft) => {
            let id = format!("pod-worker-lease:{}", draft.worker_id);
            if let Some(row) = view.get(&id) {
                forbid(row.owner != caller.owner, Refusal::NotOwner)?;
                forbid(true, Refusal::WorkerIdUsed)?;
            }
            let key: Value = serde_json::from_str(&draft.key_json).unwrap();
            let mut new = map(&json!({"key": key, "state": "idle", "generation": 0, "idleTtlMs": draft.ttl_ms}));
            if let Some(uid) = &draft.pod_uid {
                new.insert("podUid".to_owned(), json!(uid));
            }
            put(ProposedRow {
                id,
                kind: "pod-worker-lease".to_owned(),
                machine: draft.machine.clone(),
                name: draft.worker_id.clone(),
                owner: caller.owner.clone(),
                endpoint: None,
                attrs: serde_json::to_string(&new).unwrap(),
                observed_at: at.now,
                ttl_ms: draft.ttl_ms as f64,
            })
        }
        Operation::AcquireWorker(request) => {
            let found = if lawful {
                view.idle_workers(&request.key, request.machine.as_deref(), at.now, 1)
            } else {
                view.page(Kind::PodWorkerLease, None, 1)
            };
            let row = found.first().ok_or(Refusal::NoWarmWorker)?;
            let mut new = attrs(row);
            let generation = new["generation"].as_u64().unwrap() + 1;
            new.extend(map(&json!({"state": "leased", "generation": generation, "leaseId": at.fresh_id,
                "leaseOwner": caller.owner, "runId": request.run_id, "attemptId": request.attempt_id})));
            put(ProposedRow { observed_at: at.now, ttl_ms: request.ttl_ms as f64, ..proposed(row, &new) })
        }
        Operation::Transition(asked) => {
            let row = view.get(&format!("pod-worker-lease:{}", asked.worker_id)).ok_or(Refusal::NotFound)?;
            let mut new = attrs(&row);
            let text = |name: &str| new.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let fenced = text("leaseId") == asked.lease_id && new["generation"] == asked.generation;
            forbid(asked.lease_id.is_empty() || !fenced, Refusal::StaleWorkerLease)?;
            let holder = text("leaseOwner") == caller.owner;
            let registrar = row.owner == caller.owner;
            let state = text("state");
            let allowed = match asked.kind {
                TransitionKind::Renew | TransitionKind::Release => holder,
                TransitionKind::Sanitize => registrar,
                TransitionKind::Quarantine => holder || registrar,
            };
            forbid(!allowed, Refusal::NotOwner)?;
            let (impossible, refusal, to) = match asked.kind {
                TransitionKind::Renew => (state != "leased" || row.expired(at.now), Refusal::LeaseExpired, "leased"),
                TransitionKind::Release => (state != "leased", Refusal::NotLeased, "sanitizing"),
                TransitionKind::Sanitize => (state != "sanitizing", Refusal::NotSanitizing, "idle"),
                TransitionKind::Quarantine => (state == "quarantined", Refusal::AlreadyQuarantined, "quarantined"),
            };
            forbid(impossible, refusal)?;
            new.insert("state".to_owned(), json!(to));
            let mut ttl_ms = asked.ttl_ms.map_or(row.ttl_ms, |ttl| ttl as f64);
            if to == "idle" {
                new.retain(|name, _| {
                    !["leaseId", "leaseOwner", "runId", "attemptId", "reason"].contains(&name.as_str())
                });
                ttl_ms = new["idleTtlMs"].as_f64().unwrap();
            } else if let Some(reason) = &asked.reason {
                new.insert("reason".to_owned(), json!(reason));
            }
            put(ProposedRow { observed_at: at.now, ttl_ms, ..proposed(&row, &new) })
        }
    }
}
