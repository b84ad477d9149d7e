//! What an API server adds to a pod by itself.

use serde_json::{Value, json};

/// Metadata that is the server's own.
pub(super) const METADATA: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
];

/// What a field of a pod's spec is when nothing was asked for; none: the server adds no such field.
pub(super) fn of_pod(key: &str) -> Option<Value> {
    Some(match key {
        "dnsPolicy" => json!("ClusterFirst"),
        "serviceAccount" | "serviceAccountName" => json!("default"),
        "schedulerName" => json!("default-scheduler"),
        "terminationGracePeriodSeconds" => json!(30),
        "enableServiceLinks" => json!(true),
        "priority" => json!(0),
        "preemptionPolicy" => json!("PreemptLowerPriority"),
        "securityContext" => json!({}),
        "restartPolicy" => json!("Always"),
        _ => return None,
    })
}

/// The same for a container.
pub(super) fn of_container(key: &str) -> Option<Value> {
    Some(match key {
        "terminationMessagePath" => json!("/dev/termination-log"),
        "terminationMessagePolicy" => json!("File"),
        "resources" => json!({}),
        _ => return None,
    })
}

/// Tolerations without the two that every pod gets.
pub(super) fn without_default_tolerations(tolerations: &Value) -> Value {
    let default =
        |key: &str| json!({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300});
    let defaults = [default("node.kubernetes.io/not-ready"), default("node.kubernetes.io/unreachable")];
    match tolerations.as_array() {
        Some(items) => items.iter().filter(|item| !defaults.contains(item)).cloned().collect(),
        None => tolerations.clone(),
    }
}
