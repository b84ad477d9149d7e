//! A pod's status as a kubelet reports it.

use super::container::list;
use super::process;
use super::time::now;
use serde_json::{Map, Value, json};

/// A fresh container id.
pub(crate) fn container_id() -> String {
    format!("local://{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

/// The status of a pod that was just created: scheduled, nothing has run.
pub(crate) fn pending(pod: &Value) -> Value {
    let at = now();
    let waiting = |spec: &Value| {
        let mut status = common(spec);
        status.insert("ready".to_owned(), json!(false));
        status.insert("started".to_owned(), json!(false));
        status.insert("state".to_owned(), json!({ "waiting": { "reason": "PodInitializing" } }));
        Value::Object(status)
    };
    json!({
        "conditions": [
            condition("PodReadyToStartContainers", true, &at),
            condition("Initialized", false, &at),
            condition("Ready", false, &at),
            condition("ContainersReady", false, &at),
            condition("PodScheduled", true, &at),
        ],
        "containerStatuses": list(pod, "containers").map(waiting).collect::<Vec<_>>(),
        "hostIP": "127.0.0.1",
        "hostIPs": [{ "ip": "127.0.0.1" }],
        "initContainerStatuses": list(pod, "initContainers").map(waiting).collect::<Vec<_>>(),
        "observedGeneration": 1,
        "phase": "Pending",
        "podIP": "127.0.0.1",
        "podIPs": [{ "ip": "127.0.0.1" }],
        "qosClass": "Burstable",
        "startTime": at,
    })
}

fn common(spec: &Value) -> Map<String, Value> {
    let field = |key: &str| spec.get(key).cloned().unwrap_or(Value::Null);
    let mut status = Map::new();
    status.insert("image".to_owned(), field("image"));
    status.insert("imageID".to_owned(), json!(image_id(spec)));
    status.insert("lastState".to_owned(), json!({}));
    status.insert("name".to_owned(), field("name"));
    status.insert("resources".to_owned(), field("resources"));
    status.insert("restartCount".to_owned(), json!(0));
    status.insert("volumeMounts".to_owned(), spec.get("volumeMounts").cloned().unwrap_or_else(|| json!([])));
    status
}

/// There is no image: what its reference says of its digest.
fn image_id(spec: &Value) -> String {
    let image = spec.get("image").and_then(Value::as_str).unwrap_or_default();
    image.rsplit_once('@').map_or(image, |(_, digest)| digest).to_owned()
}

fn condition(kind: &str, holds: bool, at: &str) -> Value {
    json!({
        "lastProbeTime": null,
        "lastTransitionTime": at,
        "observedGeneration": 1,
        "status": if holds { "True" } else { "False" },
        "type": kind,
    })
}

/// Sets a condition; the time moves only when it changes.
pub(crate) fn set_condition(pod: &mut Value, kind: &str, holds: bool) {
    let want = if holds { "True" } else { "False" };
    let conditions = pod.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let found = conditions.into_iter().flatten().find(|one| one.get("type").and_then(Value::as_str) == Some(kind));
    if let Some(found) = found.and_then(Value::as_object_mut)
        && found.get("status").and_then(Value::as_str) != Some(want)
    {
        found.insert("status".to_owned(), json!(want));
        found.insert("lastTransitionTime".to_owned(), json!(now()));
    }
}

/// Whether a condition is "True".
pub(crate) fn has_condition(pod: &Value, kind: &str) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| {
        one.get("type").and_then(Value::as_str) == Some(kind)
            && one.get("status").and_then(Value::as_str) == Some("True")
    })
}

/// Sets `status.phase`, and why, for a person.
pub(crate) fn set_phase(pod: &mut Value, phase: &str, reason: Option<(&str, &str)>) {
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else { return };
    status.insert("phase".to_owned(), json!(phase));
    if let Some((reason, message)) = reason {
        status.insert("reason".to_owned(), json!(reason));
        status.insert("message".to_owned(), json!(message));
    }
}

/// The status of one container; `which` is `containerStatuses` or `initContainerStatuses`.
pub(crate) fn container<'a>(pod: &'a mut Value, which: &str, name: &str) -> Option<&'a mut Map<String, Value>> {
    let list = pod.get_mut("status")?.get_mut(which)?.as_array_mut()?;
    list.iter_mut().find(|one| one.get("name").and_then(Value::as_str) == Some(name))?.as_object_mut()
}

/// It runs, under this id.
pub(crate) fn running(status: &mut Map<String, Value>, id: &str, init: bool) {
    status.insert("containerID".to_owned(), json!(id));
    status.insert("ready".to_owned(), json!(!init));
    status.insert("started".to_owned(), json!(true));
    status.insert("state".to_owned(), json!({ "running": { "startedAt": now() } }));
}

/// It can't run, for a reason and with a message.
pub(crate) fn waiting(status: &mut Map<String, Value>, reason: &str, message: &str) {
    status.insert("ready".to_owned(), json!(false));
    status.insert("started".to_owned(), json!(false));
    status.insert("state".to_owned(), json!({ "waiting": { "reason": reason, "message": message } }));
}

/// It ended. `message` is empty where there is nothing to say.
pub(crate) fn terminated(status: &mut Map<String, Value>, exit: Exit, message: &str, init: bool) {
    let started = status.get("state").and_then(|state| state.pointer("/running/startedAt")).cloned();
    let mut ended = Map::new();
    ended.insert("containerID".to_owned(), status.get("containerID").cloned().unwrap_or(Value::Null));
    ended.insert("exitCode".to_owned(), json!(exit.code()));
    ended.insert("finishedAt".to_owned(), json!(now()));
    if !message.is_empty() {
        ended.insert("message".to_owned(), json!(message));
    }
    ended.insert("reason".to_owned(), json!(exit.reason()));
    ended.insert("startedAt".to_owned(), started.unwrap_or_else(|| json!(now())));
    status.insert("ready".to_owned(), json!(init && exit == Exit::Code(0)));
    status.insert("started".to_owned(), json!(false));
    status.insert("state".to_owned(), json!({ "terminated": ended }));
}

/// How a process ended, as far as anybody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was another daemon's child, or of another boot.
    Unknown,
}

impl Exit {
    fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Unknown => 137,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Code(0) => "Completed",
            Self::Code(_) | Self::Signal(_) => "Error",
            Self::Unknown => "ContainerStatusUnknown",
        }
    }
}

impl From<std::process::ExitStatus> for Exit {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

/// Raises the resource version.
pub(crate) fn touch(pod: &mut Value) {
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        let version = metadata.get("resourceVersion").and_then(Value::as_str).and_then(|text| text.parse::<u64>().ok());
        metadata.insert("resourceVersion".to_owned(), json!(version.unwrap_or(0).saturating_add(1).to_string()));
    }
}

/// This machine as a node.
pub(crate) fn node(machine: &str) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "labels": {
                "kubernetes.io/arch": architecture,
                "kubernetes.io/hostname": machine,
                "kubernetes.io/os": "linux",
            },
            "name": machine,
            "uid": process::boot_id(),
        },
        "spec": {},
        "status": {
            "addresses": [
                { "address": "127.0.0.1", "type": "InternalIP" },
                { "address": machine, "type": "Hostname" },
            ],
            "conditions": [{ "status": "True", "type": "Ready", "reason": "KubeletReady" }],
            "nodeInfo": { "architecture": architecture, "bootID": process::boot_id(), "operatingSystem": "linux" },
        },
    })
}
