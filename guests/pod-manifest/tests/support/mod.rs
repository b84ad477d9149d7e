//! A good spec, and what an API server makes of a pod.
#![allow(dead_code, reason = "each test file uses some of it")]

use pod_manifest::WarmPod;
use warmhold_sdk::Recorder;
use warmhold_sdk::manifest::{Difference, ManifestPolicy, PodSpec, WorkerKey};
use warmhold_sdk::serde_json::{Value, json};

/// A spec without faults, with everything that it can have.
pub(crate) fn spec() -> PodSpec {
    PodSpec {
        name: "warm-node-a-lite-0".to_owned(),
        namespace: "warm".to_owned(),
        context: "minik8s".to_owned(),
        worker_id: "w-node-a-1".to_owned(),
        image: "registry.test/worker:1".to_owned(),
        node: Some("node-a".to_owned()),
        cut_sha: "0123456789abcdef0123456789abcdef01234567".to_owned(),
        key: WorkerKey {
            context: "minik8s".to_owned(),
            image_digest: format!("sha256:{}", "a".repeat(64)),
            lock_hash: "b".repeat(64),
            architecture: "amd64".to_owned(),
        },
        memory_limit: Some("2Gi".to_owned()),
        host_probe_url: "http://10.0.0.1:31413/healthz".to_owned(),
        prod_probe_url: "http://core.prod/".to_owned(),
        source_mirror: Some("/srv/mirror".to_owned()),
        source: "project.git".to_owned(),
        install: vec!["npm".to_owned(), "ci".to_owned()],
    }
}

/// What the policy renders with these settings.
pub(crate) fn rendered_with(settings: &str, spec: &PodSpec) -> Result<Value, Vec<String>> {
    WarmPod.render(&Recorder::with_settings(settings), spec)
}

/// What the policy renders without settings.
pub(crate) fn rendered(spec: &PodSpec) -> Value {
    rendered_with("{}", spec).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// What the policy says of a live pod.
pub(crate) fn verify(spec: &PodSpec, live: &Value) -> Result<Vec<Difference>, Vec<Difference>> {
    WarmPod.verify(&Recorder::default(), spec, live)
}

/// A rendered pod as an API server shows it: with its defaults, its quantities and its own metadata.
pub(crate) fn as_a_server_shows_it(rendered: &Value) -> Value {
    let mut pod = rendered.clone();
    let metadata = &mut pod["metadata"];
    metadata["uid"] = json!("21ffe288-94a8-4575-9268-14b08f4e0b4f");
    metadata["resourceVersion"] = json!("266");
    metadata["generation"] = json!(1);
    metadata["creationTimestamp"] = json!("2026-11-30T19:57:49Z");
    let spec = &mut pod["spec"];
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("priority", json!(0)),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("serviceAccount", json!("default")),
        ("serviceAccountName", json!("default")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("tolerations", json!([toleration("not-ready"), toleration("unreachable")])),
    ] {
        spec[key] = value;
    }
    if spec.get("nodeName").is_none() {
        spec["nodeName"] = json!("chosen-by-the-scheduler");
    }
    for kind in ["containers", "initContainers"] {
        for container in spec[kind].as_array_mut().unwrap() {
            container["terminationMessagePath"] = json!("/dev/termination-log");
            container["terminationMessagePolicy"] = json!("File");
            if container.get("resources").is_none() {
                container["resources"] = json!({});
            }
        }
    }
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    pod
}

fn toleration(what: &str) -> Value {
    json!({
        "effect": "NoExecute", "key": format!("node.kubernetes.io/{what}"), "operator": "Exists",
        "tolerationSeconds": 300,
    })
}
