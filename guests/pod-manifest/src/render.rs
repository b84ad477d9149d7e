//! The manifest of a worker's pod.

use crate::faults::is_in_mirror;
use crate::names::{DATA, MIRROR, PREFIX, PROGRAM, REPO, WORKER_LABEL, WORKSPACE};
use crate::quantity::Quantity;
use crate::settings::Settings;
use serde_json::{Map, Value, json};
use warmhold_sdk::manifest::PodSpec;

/// What a container may use where the spec names no tier.
const DEFAULT_MEMORY: &str = "16Gi";
/// What a container is sure to have.
const REQUEST: &str = "512Mi";

/// The manifest of a spec without faults.
#[must_use]
pub fn manifest(spec: &PodSpec, settings: &Settings) -> Value {
    let mut pod = Map::new();
    pod.insert("restartPolicy".to_owned(), json!("Always"));
    if let Some(node) = &spec.node {
        pod.insert("nodeName".to_owned(), json!(node));
    }
    // Tests get no way to the API server.
    pod.insert("automountServiceAccountToken".to_owned(), json!(false));
    pod.insert("initContainers".to_owned(), json!([source(spec), install(spec)]));
    pod.insert("containers".to_owned(), json!([worker(spec)]));
    pod.insert("volumes".to_owned(), volumes(spec));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec.name,
            "namespace": spec.namespace,
            "labels": labels(spec, settings),
            "annotations": annotations(spec),
        },
        "spec": pod,
    })
}

fn labels(spec: &PodSpec, settings: &Settings) -> Value {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/managed-by".to_owned(), json!("warmhold"));
    labels.insert(WORKER_LABEL.to_owned(), json!(spec.worker_id));
    labels.extend(settings.labels.iter().map(|(key, value)| (key.clone(), json!(value))));
    Value::Object(labels)
}

fn annotations(spec: &PodSpec) -> Value {
    let mut annotations = Map::new();
    let identity = [("worker-id", &spec.worker_id), ("cut", &spec.cut_sha), ("key", &key(spec))];
    let probes = [("host-probe", &spec.host_probe_url), ("prod-probe", &spec.prod_probe_url)];
    for (name, value) in identity.into_iter().chain(probes.into_iter().filter(|(_, probe)| !probe.is_empty())) {
        annotations.insert(format!("{}{name}", PREFIX), json!(value));
    }
    Value::Object(annotations)
}

/// The worker's key as it says it itself; the keys are sorted, so that equal keys are equal texts.
fn key(spec: &PodSpec) -> String {
    let key = &spec.key;
    json!({
        "architecture": key.architecture,
        "context": key.context,
        "imageDigest": key.image_digest,
        "lockHash": key.lock_hash,
    })
    .to_string()
}

/// Fetches the tree at the cut. It alone sees the mirror, and it runs nothing of the tree.
fn source(spec: &PodSpec) -> Value {
    let mut mounts = vec![json!({"name": "workspace", "mountPath": WORKSPACE})];
    if spec.source_mirror.is_some() {
        mounts.push(json!({"name": "source-mirror", "mountPath": MIRROR, "readOnly": true}));
    }
    json!({
        "name": "source",
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [PROGRAM, "fetch", "--source", source_address(spec), "--cut", spec.cut_sha, "--into", REPO],
        "securityContext": unprivileged(),
        "volumeMounts": mounts,
    })
}

/// A path in the mirror as init sees it; an address as it is.
fn source_address(spec: &PodSpec) -> String {
    let in_pod = |rest: &str| if rest.is_empty() { MIRROR.to_owned() } else { format!("{MIRROR}/{rest}") };
    let Some(mirror) = &spec.source_mirror else { return spec.source.clone() };
    // The mirror's path on its node, or anything below it.
    let below = spec.source.strip_prefix(mirror.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match below {
        Some(rest) => in_pod(rest.trim_start_matches('/')),
        None if is_in_mirror(&spec.source) => in_pod(spec.source.trim_start_matches("./")),
        None => spec.source.clone(),
    }
}

/// Installs what the tests need, in the tree.
fn install(spec: &PodSpec) -> Value {
    let command = if spec.install.is_empty() { json!(["true"]) } else { json!(spec.install) };
    json!({
        "name": "install",
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "workingDir": REPO,
        "securityContext": unprivileged(),
        "resources": resources(spec),
        "volumeMounts": [{"name": "workspace", "mountPath": WORKSPACE}],
    })
}

/// Waits; requests arrive by exec. The capabilities are what it takes to give each request a user of its own, and to end
/// and clean what that user left.
fn worker(spec: &PodSpec) -> Value {
    let variables = [
        ("WARM_WORKER_ID", spec.worker_id.as_str()),
        ("WARM_CUT", &spec.cut_sha),
        ("WARM_KEY", &key(spec)),
        ("WARM_REPO", REPO),
        ("WARM_DATA", DATA),
        ("WARM_HOST_PROBE_URL", &spec.host_probe_url),
        ("WARM_PROD_PROBE_URL", &spec.prod_probe_url),
    ]
    // An API server drops an empty value, so it could never be equal again.
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(name, value)| json!({"name": name, "value": value}))
    .collect::<Vec<_>>();
    json!({
        "name": "worker",
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": resources(spec),
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "SETUID", "SETGID", "KILL"]},
        },
        "env": variables,
        "volumeMounts": [
            // Writable on purpose: a request works in the tree, and the worker proves afterwards that it is as it was.
            {"name": "workspace", "mountPath": REPO, "subPath": "repo"},
            {"name": "runtime-data", "mountPath": DATA},
        ],
    })
}

fn unprivileged() -> Value {
    json!({"runAsUser": 0, "allowPrivilegeEscalation": false})
}

fn resources(spec: &PodSpec) -> Value {
    let limit = spec.memory_limit.as_deref().unwrap_or(DEFAULT_MEMORY);
    let milli = |text: &str| Quantity::parse(text).and_then(Quantity::milli);
    // A request above the limit is refused by an API server.
    let small = matches!((milli(limit), milli(REQUEST)), (Some(limit), Some(request)) if limit < request);
    json!({"limits": {"memory": limit}, "requests": {"memory": if small { limit } else { REQUEST }}})
}

fn volumes(spec: &PodSpec) -> Value {
    let mut volumes =
        vec![json!({"name": "workspace", "emptyDir": {}}), json!({"name": "runtime-data", "emptyDir": {}})];
    if let Some(mirror) = &spec.source_mirror {
        volumes.push(json!({"name": "source-mirror", "hostPath": {"path": mirror, "type": "Directory"}}));
    }
    Value::Array(volumes)
}
