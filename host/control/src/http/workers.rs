//! Warm workers: the leases that clients of the original know, and the standing workers of this daemon.

use super::answer::Answer;
use super::body::{read_object, read_typed};
use super::exchange::Exchange;
use super::fields::{is_worker_id, optional_text, text, whole, worker_key, worker_ttl};
use super::ledger::{Guarded, apply, fresh_primary, machine_scope, own_machine};
use super::rows;
use super::values::{Given, LeaseGeneration, Text, WorkerId, WorkerTtl};
use super::{Control, undivided, within};
use crate::api::PrepareAsk;
use crate::error::ApiError;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;
use warmhold_ledger::{Operation, Scope, Transition, TransitionKind, WorkerDraft, WorkerRequest};

/// The most characters of a reason that are kept.
pub(super) const REASON_CHARACTERS: usize = 120;

fn invalid(message: &str) -> ApiError {
    ApiError::bad_request("invalid-pod-worker-lease", message)
}

fn invalid_key() -> ApiError {
    ApiError::bad_request(
        "invalid-worker-key",
        "key must hold context, imageDigest, lockHash and architecture, texts that aren't blank",
    )
}

const TTL: &str = "ttlMs must be a whole number from 1 to 86400000";

/// What a worker can stand in for. Two keys are equal when the four texts are; what else it holds is kept and shown.
#[derive(ToSchema)]
#[schema(example = json!({"context": "lab", "imageDigest": "sha256:1f", "lockHash": "9c", "architecture": "amd64"}))]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct WorkerKey {
    /// The cluster's context, or another name for where the pod is.
    context: Text,
    /// The image's digest.
    image_digest: Text,
    /// What its sources and their installed dependencies are equal by.
    lock_hash: Text,
    /// The processor's architecture.
    architecture: Text,
}

/// The body of `POST /v1/workers/pod`. Other fields are ignored.
#[derive(ToSchema)]
#[schema(example = json!({"workerId": "w-1", "machine": "build-07", "podUid": "uid-1", "key": {"context": "lab", "imageDigest": "sha256:1f", "lockHash": "9c", "architecture": "amd64"}, "ttlMs": 600000}))]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct RegisterWorker {
    /// Used once, ever.
    worker_id: WorkerId,
    /// The token's own machine.
    machine: Text,
    /// What it can stand in for.
    key: WorkerKey,
    /// For how long it counts when it is idle.
    ttl_ms: WorkerTtl,
    /// The pod that it is.
    #[schema(nullable = false)]
    pod_uid: Option<Text>,
}

/// The body of `POST /v1/leases/pod-worker`. Other fields are ignored.
#[derive(ToSchema)]
#[schema(example = json!({"key": {"context": "lab", "imageDigest": "sha256:1f", "lockHash": "9c", "architecture": "amd64"}, "runId": "run-1", "attemptId": "1", "ttlMs": 60000}))]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct AcquireWorker {
    /// What the worker must stand in for.
    key: WorkerKey,
    /// The caller's run.
    run_id: Text,
    /// The caller's attempt.
    attempt_id: Text,
    /// How long the lease lasts.
    ttl_ms: WorkerTtl,
    /// Only a worker of this machine.
    #[schema(nullable = false)]
    machine: Option<Text>,
}

/// The body of renew, release, sanitize and quarantine: the lease, as acquiring answered it. Other fields are ignored.
#[derive(ToSchema)]
#[schema(example = json!({"leaseId": "7a31…", "generation": 1}))]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct HeldLease {
    /// `attrs.leaseId` of the row.
    lease_id: Given,
    /// `attrs.generation` of the row.
    generation: LeaseGeneration,
    /// How long the row counts from now; as before when absent. Sanitizing restores `idleTtlMs` whatever this says.
    #[schema(nullable = false)]
    ttl_ms: Option<WorkerTtl>,
    /// Kept in the row; sanitizing clears it.
    #[schema(nullable = false)]
    reason: Option<Text>,
}

/// `POST /v1/workers/pod`.
pub(super) async fn register(exchange: &mut Exchange) -> Result<Answer, ApiError> {
    let Some(own) = exchange.caller()?.machine.clone() else {
        return Err(ApiError::forbidden("worker-host-required", "only a machine's token registers workers")
            .with_help("issue one with `token issue MACHINE`"));
    };
    let fields = read_object(exchange, "invalid-pod-worker-lease").await?;
    let worker_id = fields.get("workerId").and_then(Value::as_str).filter(|id| is_worker_id(id)).ok_or_else(|| {
        invalid("workerId must be a letter or digit, then at most 95 of letters, digits, '.', '_', '-'")
    })?;
    let machine = text(&fields, "machine").ok_or_else(|| invalid("machine must be a text that isn't blank"))?;
    let ttl_ms = worker_ttl(&fields).ok_or_else(|| invalid(TTL))?;
    let pod_uid = optional_text(&fields, "podUid").ok_or_else(|| invalid("podUid must be a text that isn't blank"))?;
    if machine != own {
        return Err(machine_scope(&own));
    }
    fresh_primary(exchange).await?;
    let (key, key_json) = worker_key(&fields).ok_or_else(invalid_key)?;
    let draft = WorkerDraft {
        worker_id: worker_id.to_owned(),
        machine: machine.to_owned(),
        key,
        key_json,
        pod_uid: pod_uid.map(str::to_owned),
        ttl_ms,
    };
    answer(exchange, Operation::RegisterWorker(draft)).await
}

/// `POST /v1/leases/pod-worker`.
pub(super) async fn acquire(exchange: &mut Exchange) -> Result<Answer, ApiError> {
    if exchange.caller()?.scope != Scope::Member {
        return Err(ApiError::forbidden("worker-consumer-required", "only the member token leases workers"));
    }
    let fields = read_object(exchange, "invalid-pod-worker-lease").await?;
    let machine =
        optional_text(&fields, "machine").ok_or_else(|| invalid("machine must be a text that isn't blank"))?;
    let run_id = text(&fields, "runId").ok_or_else(|| invalid("runId must be a text that isn't blank"))?;
    let attempt_id = text(&fields, "attemptId").ok_or_else(|| invalid("attemptId must be a text that isn't blank"))?;
    let ttl_ms = worker_ttl(&fields).ok_or_else(|| invalid(TTL))?;
    fresh_primary(exchange).await?;
    let (key, _) = worker_key(&fields).ok_or_else(invalid_key)?;
    let request = WorkerRequest {
        machine: machine.map(str::to_owned),
        key,
        run_id: run_id.to_owned(),
        attempt_id: attempt_id.to_owned(),
        ttl_ms,
    };
    answer(exchange, Operation::AcquireWorker(request)).await
}

/// `POST /v1/leases/pod-worker/{workerId}/{renew|release|sanitize|quarantine}`.
pub(super) async fn transition(exchange: &mut Exchange, raw: &str, kind: TransitionKind) -> Result<Answer, ApiError> {
    let worker_id = worker(exchange, raw)?;
    let scope = exchange.caller()?.scope;
    match kind {
        TransitionKind::Sanitize if scope != Scope::Machine => {
            return Err(ApiError::forbidden("worker-scope", "only the machine that registered a worker sanitizes it"));
        }
        TransitionKind::Renew | TransitionKind::Release if scope != Scope::Member => {
            return Err(ApiError::forbidden(
                "worker-scope",
                "only the member that leases a worker renews or releases it",
            ));
        }
        _ => {}
    }
    let fields = read_object(exchange, "invalid-pod-worker-lease").await?;
    let transition = fenced(&fields, kind, worker_id)?;
    own_machine(exchange, &format!("pod-worker-lease:{}", transition.worker_id)).await?;
    fresh_primary(exchange).await?;
    answer(exchange, Operation::Transition(transition)).await
}

fn fenced(fields: &Map<String, Value>, kind: TransitionKind, worker_id: String) -> Result<Transition, ApiError> {
    let lease_id = fields
        .get("leaseId")
        .and_then(Value::as_str)
        .filter(|lease| !lease.is_empty())
        .ok_or_else(|| invalid("leaseId must be a text that isn't empty"))?;
    let generation = fields
        .get("generation")
        .and_then(|generation| whole(generation, 1, u64::MAX))
        .ok_or_else(|| invalid("generation must be a whole number of 1 or more"))?;
    let ttl_ms = match fields.get("ttlMs") {
        None => None,
        Some(_) => Some(worker_ttl(fields).ok_or_else(|| invalid(TTL))?),
    };
    let reason = optional_text(fields, "reason").ok_or_else(|| invalid("reason must be a text that isn't blank"))?;
    Ok(Transition {
        kind,
        worker_id,
        lease_id: lease_id.to_owned(),
        generation,
        ttl_ms,
        reason: reason.map(str::to_owned),
    })
}

async fn answer(exchange: &mut Exchange, operation: Operation) -> Result<Answer, ApiError> {
    let written = apply(exchange, operation, Guarded::Worker).await?;
    Ok(Answer::json_text(rows::stored(written.row()?)).decided_by(written.policy))
}

/// The worker's id in the path.
fn worker(exchange: &Exchange, raw: &str) -> Result<String, ApiError> {
    let id = exchange.segment(raw, "invalid-worker-id")?;
    if is_worker_id(&id) {
        Ok(id)
    } else {
        Err(ApiError::bad_request(
            "invalid-worker-id",
            "a worker's id is a letter or digit, then at most 95 of letters, digits, '.', '_', '-'",
        ))
    }
}

/// `POST /v1/workers/prepare`.
pub(super) async fn prepare(exchange: &mut Exchange) -> Result<Answer, ApiError> {
    let ask: PrepareAsk = read_typed(exchange, "invalid-prepare").await?;
    let workers = Arc::clone(&exchange.control.options.workers);
    Answer::json(&undivided("prepare workers", async move { workers.prepare(ask).await }).await?)
}

/// `GET /v1/workers`.
pub(super) async fn list(exchange: &Exchange) -> Result<Answer, ApiError> {
    let Control { options, .. } = &*exchange.control;
    Answer::json(&within(options.limits.read_time, options.workers.list()).await?)
}

/// `POST /v1/workers/{id}/remove`.
pub(super) async fn remove(exchange: &Exchange, raw: &str) -> Result<Answer, ApiError> {
    let id = worker(exchange, raw)?;
    let (workers, of) = (Arc::clone(&exchange.control.options.workers), id.clone());
    match undivided("remove a worker", async move { workers.remove(&of).await }).await? {
        Some(worker) => Answer::json(&worker),
        None => Err(no_worker(&id)),
    }
}

/// Why a worker is taken out.
#[derive(Default, Deserialize, ToSchema)]
#[schema(example = json!({"reason": "looks odd"}))]
#[serde(deny_unknown_fields)]
pub(super) struct TakeOut {
    /// At most 120 characters of it are kept; `operator` when blank.
    #[serde(default)]
    reason: String,
}

/// `POST /v1/workers/{id}/quarantine`.
pub(super) async fn quarantine(exchange: &mut Exchange, raw: &str) -> Result<Answer, ApiError> {
    let id = worker(exchange, raw)?;
    let TakeOut { reason } = read_typed(exchange, "invalid-quarantine").await?;
    let reason = cut(&reason, "operator");
    let (workers, of) = (Arc::clone(&exchange.control.options.workers), id.clone());
    match undivided("quarantine a worker", async move { workers.quarantine(&of, &reason).await }).await? {
        Some(worker) => Answer::json(&worker),
        None => Err(no_worker(&id)),
    }
}

fn no_worker(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no worker {id}")).with_help("`worker list` shows those that there are")
}

/// A reason, cut to its length; another text where it is blank.
pub(super) fn cut(reason: &str, blank: &str) -> String {
    let reason = reason.trim();
    if reason.is_empty() { blank.to_owned() } else { reason.chars().take(REASON_CHARACTERS).collect() }
}
