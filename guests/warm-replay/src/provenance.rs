//! Annotations that tell who looks at a pod what it is being used for.

use serde_json::{Value, json};
use warmhold_sdk::replay::{Candidate, ClusterError, Host, Lease, Target};
use warmhold_sdk::time::rfc3339;

/// Where a candidate's pod is.
#[must_use]
pub fn target(of: &Candidate) -> Target {
    Target { context: of.spec.context.clone(), namespace: of.spec.namespace.clone() }
}

/// A lease's id as it may be shown: whoever can see the pod is no holder.
#[must_use]
pub fn short(lease_id: &str) -> &str {
    let from = lease_id.char_indices().rev().nth(7).map_or(0, |(at, _)| at);
    lease_id.get(from..).unwrap_or_default()
}

/// Leased: for whom, since when.
///
/// # Errors
/// The cluster's answer.
pub fn mark_leased<H: Host>(host: &H, held: &H::Lease, of: &Candidate, requested_at: u64) -> Result<(), ClusterError> {
    annotate(
        host,
        held,
        of,
        &json!({
            "warmhold.dev/state": "leased",
            "warmhold.dev/run": held.run_id(),
            "warmhold.dev/attempt": held.attempt_id(),
            "warmhold.dev/lease": short(&held.id()),
            "warmhold.dev/requested-at": rfc3339(requested_at),
        }),
    )
}

/// Idle: nothing of the lease stays.
///
/// # Errors
/// The cluster's answer.
pub fn mark_idle<H: Host>(host: &H, held: &H::Lease, of: &Candidate) -> Result<(), ClusterError> {
    annotate(
        host,
        held,
        of,
        &json!({
            "warmhold.dev/state": "idle",
            "warmhold.dev/run": null,
            "warmhold.dev/attempt": null,
            "warmhold.dev/lease": null,
            "warmhold.dev/requested-at": null,
        }),
    )
}

/// Quarantined: the rest stays, for who wants to know why.
///
/// # Errors
/// The cluster's answer.
pub fn mark_quarantined<H: Host>(host: &H, held: &H::Lease, of: &Candidate) -> Result<(), ClusterError> {
    annotate(host, held, of, &json!({"warmhold.dev/state": "quarantined"}))
}

fn annotate<H: Host>(host: &H, held: &H::Lease, of: &Candidate, annotations: &Value) -> Result<(), ClusterError> {
    host.annotate(held, &target(of), &of.spec.name, annotations)
}
