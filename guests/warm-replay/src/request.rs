//! One replay.

use crate::checks::{self, Unfit, is_worker_id};
use crate::provenance::{mark_leased, target};
use crate::settle::quarantine;
use crate::{Settings, evidence, input};
use serde_json::{Map, Value, json};
use warmhold_sdk::Level;
use warmhold_sdk::replay::{
    Candidate, Difference, Fallback, Host, Lease, Outcome, ReplayInput, Reply, TransportError, WorkerKey, cluster_text,
    control_text, transport_text,
};

/// Drives one replay: everything that can be known without a lease is judged before one is taken, and every failure after
/// it ends in quarantine.
pub fn request<H: Host>(host: &H, asked: &ReplayInput, candidates: &[Candidate]) -> Outcome<H::Lease> {
    let faults = input::faults(asked, host.now());
    if !faults.is_empty() {
        return Outcome::fallback("no-candidate", faults.join("; "));
    }
    let Some(first) = candidates.iter().find(|candidate| candidate.spec.cut_sha == asked.cut_sha) else {
        return Outcome::fallback("no-candidate", format!("no worker is configured for the cut {}", asked.cut_sha));
    };
    // A pool's inner context can be absent here: kubectl says so without contacting anything.
    if is_pool_context(&first.spec.context)
        && let Err(error) = host.context_known(&first.spec.context)
    {
        return Outcome::fallback("context-unavailable", cluster_text(&error));
    }
    let settings = Settings::of(host);
    let key = &first.spec.key;
    let held = match host.acquire(&first.host, key, &asked.run_id, &asked.attempt_id, settings.lease_ttl_ms) {
        Ok(held) => held,
        Err(error) => return Outcome::fallback("lease-unavailable", control_text(&error)),
    };
    match resolve(&held, first, candidates) {
        Ok((of, uid)) => leased(host, asked, held, of, &uid, settings),
        Err(why) => give_back(host, &held, why),
    }
}

fn is_pool_context(context: &str) -> bool {
    let in_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    context.strip_prefix("k3d-").is_some_and(|name| !name.is_empty() && name.chars().all(in_name))
}

/// Which of our candidates was leased: a lease is taken by machine and key, not by worker.
fn resolve<'a, L: Lease>(
    held: &L,
    first: &Candidate,
    candidates: &'a [Candidate],
) -> Result<(&'a Candidate, String), String> {
    let worker = held.worker();
    if !is_worker_id(&worker) || held.id().is_empty() || held.generation() < 1 {
        return Err("the control plane's lease has no valid worker, id or generation".to_owned());
    }
    let Some(uid) = held.pod_uid().filter(|uid| !uid.is_empty()) else {
        return Err(format!("worker {worker} was registered without a pod"));
    };
    candidates
        .iter()
        .find(|of| {
            of.host == first.host
                && of.spec.worker_id == worker
                && of.spec.cut_sha == first.spec.cut_sha
                && of.spec.key == first.spec.key
        })
        .map(|of| (of, uid))
        .ok_or_else(|| format!("worker {worker} is none of ours; it was given back"))
}

/// A worker that isn't ours was never touched: its owner can clean it and have it back.
fn give_back<H: Host>(host: &H, held: &H::Lease, why: String) -> Outcome<H::Lease> {
    host.log(Level::Warn, "leased a worker that can't be used", &[("worker", &held.worker()), ("why", &why)]);
    if let Err(error) = held.release() {
        let why = format!("{why}; and it can't be released: {}", control_text(&error));
        return match held.quarantine("release-unavailable") {
            Ok(()) => Outcome::fallback("lease-unavailable", why),
            Err(error) => Outcome::Failed(format!("{why}; nor quarantined: {}", control_text(&error))),
        };
    }
    Outcome::fallback("lease-unavailable", why)
}

fn leased<H: Host>(
    host: &H,
    asked: &ReplayInput,
    held: H::Lease,
    of: &Candidate,
    uid: &str,
    settings: Settings,
) -> Outcome<H::Lease> {
    if held.key() != of.spec.key {
        let why = Unfit::new("lease-unavailable", "the worker's row has another key than its configuration");
        return end(host, &held, of, "candidate-identity-mismatch", why);
    }
    let requested_at = host.now();
    if let Err(error) = mark_leased(host, &held, of, requested_at) {
        let why = Unfit::new("lease-unavailable", format!("the pod can't be marked: {}", cluster_text(&error)));
        return end(host, &held, of, "provenance-unavailable", why);
    }
    match run(host, asked, &held, of, uid, requested_at, settings) {
        Ok((reply, verdict, harmless)) => {
            let evidence = evidence::of(&reply, &verdict, of, &held, &harmless);
            Outcome::Observed { held, evidence }
        }
        Err(why) => end(host, &held, of, why.reason, why),
    }
}

/// Out of use, and the caller is told why.
fn end<H: Host>(host: &H, held: &H::Lease, of: &Candidate, stored: &str, why: Unfit) -> Outcome<H::Lease> {
    match quarantine(host, held, of, stored) {
        Ok(()) => Outcome::Fallback(Fallback {
            reason: why.reason.to_owned(),
            detail: Some(why.detail),
            evidence: Some(
                json!({"worker": {"id": of.spec.worker_id, "pod": of.spec.name, "quarantined": stored}}).to_string(),
            ),
        }),
        Err(error) => Outcome::Failed(format!("{}: {}; {error}", why.reason, why.detail)),
    }
}

fn run<H: Host>(
    host: &H,
    asked: &ReplayInput,
    held: &H::Lease,
    of: &Candidate,
    uid: &str,
    requested_at: u64,
    settings: Settings,
) -> Result<(Reply, Value, Vec<Difference>), Unfit> {
    let deadline = asked.deadline_at.min(host.now().saturating_add(settings.transport_limit_ms));
    let harmless = checks::before(host, of, uid)?;
    // Looking takes time too.
    if host.now() >= deadline {
        return Err(Unfit::new("exec-failed", "nothing is left to the deadline"));
    }
    let command = command(asked, of, requested_at);
    let reply =
        host.exec(held, &target(of), &of.spec.name, &command, deadline).map_err(|error| transport_failure(&error))?;
    checks::after(host, of, uid)?;
    let verdict: Value = serde_json::from_str(&reply.verdict)
        .map_err(|error| Unfit::new("invalid-result", format!("the worker's verdict is no JSON: {error}")))?;
    evidence::check(&verdict, asked, of)?;
    Ok((reply, verdict, harmless))
}

fn transport_failure(error: &TransportError) -> Unfit {
    let reason = match error {
        TransportError::NoVerdict(_) | TransportError::Truncated(_) | TransportError::TooLarge => "invalid-result",
        TransportError::WrongPod(_) => "pod-replaced",
        TransportError::Quarantined => "worker-quarantined",
        TransportError::Killed(_) | TransportError::TimedOut | TransportError::Failed(_) => "exec-failed",
    };
    Unfit::new(reason, transport_text(error))
}

/// What the policy says of the command; the host adds lease, generation, nonce, pod UID, rules, variables and limits.
fn command(asked: &ReplayInput, of: &Candidate, requested_at: u64) -> Value {
    let mut command = Map::new();
    command.insert("protocol".to_owned(), json!(asked.protocol));
    command.insert("runId".to_owned(), json!(asked.run_id));
    command.insert("attemptId".to_owned(), json!(asked.attempt_id));
    command.insert("cutSha".to_owned(), json!(asked.cut_sha));
    if let Some(baseline) = &asked.baseline_sha {
        command.insert("baselineSha".to_owned(), json!(baseline));
    }
    command.insert("envProfile".to_owned(), json!(asked.env_profile));
    command.insert("deadlineAt".to_owned(), json!(asked.deadline_at));
    command.insert("requestedAt".to_owned(), json!(requested_at));
    command.insert("files".to_owned(), json!(asked.files));
    command.insert("key".to_owned(), key(&of.spec.key));
    command.insert("workerId".to_owned(), json!(of.spec.worker_id));
    Value::Object(command)
}

fn key(key: &WorkerKey) -> Value {
    json!({
        "context": key.context,
        "imageDigest": key.image_digest,
        "lockHash": key.lock_hash,
        "architecture": key.architecture,
    })
}
