//! A standing worker: made where there is none, found where there is, and never taken from somebody else.

use crate::Settings;
use crate::checks::{drift_text, is_ready, key_equals, pod_uid};
use crate::provenance::target;
use serde_json::Value;
use warmhold_sdk::json;
use warmhold_sdk::replay::{Candidate, ClusterError, Host, cluster_text, control_text};

/// The context whose pods are processes of this machine: there is no node to choose.
const LOCAL: &str = "local";

/// Makes or finds the worker: its pod's UID. A pod that isn't exactly ours is left alone, and so is one that nobody
/// registered: whoever has access to the namespace could have made it.
///
/// # Errors
/// Why there is no worker, for a person.
pub fn prepare<H: Host>(host: &H, of: &Candidate) -> Result<String, String> {
    let (spec, at) = (&of.spec, target(of));
    if spec.node.is_none() && spec.context != LOCAL {
        return Err("the spec names no node: a standing worker stays where its source is".to_owned());
    }
    let settings = Settings::of(host);
    let manifest = host.render(spec).map_err(|faults| format!("the spec can't be rendered: {}", faults.join("; ")))?;
    let matches = |pod: &Value| host.verify(spec, pod).map(drop).map_err(|drift| drift_text(&drift));
    let uid_of =
        |pod: &Value| pod_uid(pod).map(str::to_owned).ok_or("the cluster shows a pod without a UID".to_owned());

    let pods =
        host.list_pods(&at).map_err(|error| format!("the namespace can't be listed: {}", cluster_text(&error)))?;
    let mut ours = pods.iter().filter(|pod| is_named(pod, of));
    let found = ours.next();
    if ours.next().is_some() {
        return Err(format!("more than one pod is named {} or says it is worker {}", spec.name, spec.worker_id));
    }
    let uid = match found {
        Some(pod) => {
            matches(pod).map_err(|drift| format!("pod {} is there, and isn't ours: {drift}", spec.name))?;
            uid_of(pod)?
        }
        None => {
            // A row without its pod: the id was used, and is never used again.
            if !rows(host, of)?.is_empty() {
                return Err(format!("worker {} is in the ledger, but its pod is gone", spec.worker_id));
            }
            let pod = host.create_pod(&at, &manifest).map_err(|error| match error {
                ClusterError::Conflict => format!("somebody else just made pod {}", spec.name),
                error => format!("pod {} can't be created: {}", spec.name, cluster_text(&error)),
            })?;
            matches(&pod).map_err(|drift| format!("pod {} was created otherwise than asked: {drift}", spec.name))?;
            uid_of(&pod)?
        }
    };

    host.wait_ready(&at, &spec.name, settings.ready_wait_seconds)
        .map_err(|error| format!("pod {} isn't Ready: {}", spec.name, cluster_text(&error)))?;
    let ready =
        host.get_pod(&at, &spec.name).map_err(|error| format!("pod {}: {}", spec.name, cluster_text(&error)))?;
    if uid_of(&ready)? != uid {
        return Err(format!("pod {} was replaced while it started", spec.name));
    }
    if !is_ready(&ready) {
        return Err(format!("pod {} isn't running and Ready", spec.name));
    }
    matches(&ready)?;

    // Read again: another registration may have come in between.
    match (rows(host, of)?.as_slice(), found) {
        ([], Some(_)) => Err(format!("pod {} is there, but nobody registered it", spec.name)),
        ([], None) => register(host, of, &uid, settings).map(|()| uid),
        ([row], Some(_)) => match disagreement(row, of, &uid, settings, host.now()) {
            None => Ok(uid),
            Some(what) => Err(format!("worker {} is in the ledger with another {what}", spec.worker_id)),
        },
        ([_], None) => Err(format!("worker {} was registered by somebody else meanwhile", spec.worker_id)),
        _ => Err(format!("the ledger has more than one row for worker {}", spec.worker_id)),
    }
}

/// Whether a pod has our name, or says that it is our worker.
fn is_named(pod: &Value, of: &Candidate) -> bool {
    let text = |path: &[&str]| json::at(pod, path).and_then(Value::as_str);
    text(&["metadata", "name"]) == Some(&of.spec.name)
        || text(&["metadata", "annotations", "warmhold.dev/worker-id"]) == Some(&of.spec.worker_id)
}

fn rows<H: Host>(host: &H, of: &Candidate) -> Result<Vec<Value>, String> {
    match host.worker_rows(&of.host, &of.spec.worker_id) {
        Ok(Value::Array(rows)) => Ok(rows),
        Ok(_) => Err("the ledger can't be read: its answer is no list".to_owned()),
        Err(error) => Err(format!("the ledger can't be read: {}", control_text(&error))),
    }
}

/// The first field in which a row isn't this worker's, or none.
fn disagreement(row: &Value, of: &Candidate, uid: &str, settings: Settings, now: u64) -> Option<&'static str> {
    let text = |key: &str| row.get(key).and_then(Value::as_str);
    let attr = |key: &str| json::at(row, &["attrs", key]);
    let whole = |value: Option<&Value>| value.and_then(json::whole);
    let state = attr("state").and_then(Value::as_str);
    let ttl = if state == Some("leased") { settings.lease_ttl_ms } else { settings.idle_ttl_ms };
    let observed_at = whole(row.get("observedAt"));
    let checks = [
        ("kind", text("kind") == Some("pod-worker-lease")),
        ("machine", text("machine") == Some(&of.host)),
        ("name", text("name") == Some(&of.spec.worker_id)),
        ("state than idle or leased", matches!(state, Some("idle" | "leased"))),
        ("pod", attr("podUid").and_then(Value::as_str) == Some(uid)),
        ("time to live", whole(row.get("ttlMs")) == Some(ttl)),
        ("idle time", whole(attr("idleTtlMs")) == Some(settings.idle_ttl_ms)),
        ("key", attr("key").is_some_and(|key| key_equals(key, &of.spec.key))),
        ("time: it is observed in the future", observed_at.is_some_and(|at| at <= now)),
        ("time: it is expired", observed_at.is_some_and(|at| now.saturating_sub(at) < ttl)),
    ];
    checks.into_iter().find_map(|(what, holds)| (!holds).then_some(what))
}

fn register<H: Host>(host: &H, of: &Candidate, uid: &str, settings: Settings) -> Result<(), String> {
    let spec = &of.spec;
    let row = host
        .register(&of.host, &spec.worker_id, uid, &spec.key, settings.idle_ttl_ms)
        .map_err(|error| format!("worker {} can't be registered: {}", spec.worker_id, control_text(&error)))?;
    let attr = |key: &str| json::at(&row, &["attrs", key]);
    let stored = row.get("name").and_then(Value::as_str) == Some(&spec.worker_id)
        && attr("state").and_then(Value::as_str) == Some("idle")
        && attr("podUid").and_then(Value::as_str) == Some(uid)
        && attr("key").is_some_and(|key| key_equals(key, &spec.key));
    if stored { Ok(()) } else { Err(format!("worker {} was registered otherwise than asked", spec.worker_id)) }
}
