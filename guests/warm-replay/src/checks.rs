//! Whether a live pod is the one that was prepared, and fit to be used.

use crate::provenance::target;
use serde_json::Value;
use warmhold_sdk::replay::{Candidate, Difference, Host, WorkerKey, cluster_text};
use warmhold_sdk::{cut, json};

/// Why a worker can't be used: a stable reason and what a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// One of the reasons of a fallback.
    pub reason: &'static str,
    /// For a person.
    pub detail: String,
}

impl Unfit {
    /// A reason and its detail.
    #[must_use]
    pub fn new(reason: &'static str, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// Looks at a candidate's pod before anything runs in it: there, Ready, as rendered, on a node of the key's architecture,
/// and the one that the lease names. The differences that do no harm.
///
/// # Errors
/// The first that isn't so.
pub fn before<H: Host>(host: &H, of: &Candidate, uid: &str) -> Result<Vec<Difference>, Unfit> {
    let unready = |detail: String| Unfit::new("pod-unready", detail);
    let pod = host
        .get_pod(&target(of), &of.spec.name)
        .map_err(|error| unready(format!("pod {}: {}", of.spec.name, cluster_text(&error))))?;
    if !is_ready(&pod) {
        return Err(unready(format!("pod {} isn't running and Ready", of.spec.name)));
    }
    let harmless = same_pod(host, of, uid, &pod)?;
    let node = node_name(&pod).or(of.spec.node.as_deref()).unwrap_or(&of.host);
    let found = host
        .get_node(&of.spec.context, node)
        .map_err(|error| unready(format!("node {node}: {}", cluster_text(&error))))?;
    let architecture = json::at(&found, &["metadata", "labels", "kubernetes.io/arch"]).and_then(Value::as_str);
    if architecture != Some(&of.spec.key.architecture) {
        let found = architecture.unwrap_or("of no known architecture");
        return Err(unready(format!("node {node} is {found}, the key wants {}", of.spec.key.architecture)));
    }
    Ok(harmless)
}

/// Looks again after something ran: a container can be added to a living pod under the same UID.
///
/// # Errors
/// It isn't the same any more, or nobody can tell.
pub fn after<H: Host>(host: &H, of: &Candidate, uid: &str) -> Result<(), Unfit> {
    let pod = host.get_pod(&target(of), &of.spec.name).map_err(|error| {
        Unfit::new("pod-replaced", format!("after the run, pod {}: {}", of.spec.name, cluster_text(&error)))
    })?;
    same_pod(host, of, uid, &pod).map(drop)
}

/// UID and manifest.
fn same_pod<H: Host>(host: &H, of: &Candidate, uid: &str, pod: &Value) -> Result<Vec<Difference>, Unfit> {
    let live = pod_uid(pod).unwrap_or("none");
    if live != uid {
        return Err(Unfit::new("pod-replaced", format!("the pod's UID is {live}, the lease names {uid}")));
    }
    host.verify(&of.spec, pod).map_err(|drift| Unfit::new("pod-replaced", drift_text(&drift)))
}

/// What drifted, in one line.
#[must_use]
pub fn drift_text(drift: &[Difference]) -> String {
    let told = drift.iter().take(5).map(|difference| {
        format!("{}: want {}, got {}", difference.path, cut(&difference.want, 120), cut(&difference.got, 120))
    });
    let rest = drift.len().saturating_sub(5);
    let more = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    format!("the pod differs from its manifest: {}{more}", told.collect::<Vec<_>>().join("; "))
}

/// Running, and its condition Ready is true.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    let conditions = json::at(pod, &["status", "conditions"]).and_then(Value::as_array);
    let is = |condition: &Value, key: &str, text: &str| condition.get(key).and_then(Value::as_str) == Some(text);
    json::at(pod, &["status", "phase"]).and_then(Value::as_str) == Some("Running")
        && conditions
            .into_iter()
            .flatten()
            .any(|condition| is(condition, "type", "Ready") && is(condition, "status", "True"))
}

/// The pod's UID; none when it has none.
#[must_use]
pub fn pod_uid(pod: &Value) -> Option<&str> {
    json::at(pod, &["metadata", "uid"]).and_then(Value::as_str).filter(|uid| !uid.is_empty())
}

fn node_name(pod: &Value) -> Option<&str> {
    json::at(pod, &["spec", "nodeName"]).and_then(Value::as_str)
}

/// Equality of keys; a stored one may hold more fields.
#[must_use]
pub fn key_equals(stored: &Value, key: &WorkerKey) -> bool {
    let same = |field: &str, value: &str| stored.get(field).and_then(Value::as_str) == Some(value);
    same("context", &key.context)
        && same("imageDigest", &key.image_digest)
        && same("lockHash", &key.lock_hash)
        && same("architecture", &key.architecture)
}

/// A worker's id as the control plane takes it: `[a-zA-Z0-9][a-zA-Z0-9._-]{0,95}`.
#[must_use]
pub fn is_worker_id(text: &str) -> bool {
    text.len() <= 96
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}
