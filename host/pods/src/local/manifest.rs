//! What an API server does to a manifest: check it, and add what wasn't said.

use super::place::check_label;
use super::quantity::canonical;
use crate::PodsError;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The live pod that this manifest makes, without a status.
///
/// # Errors
/// [`PodsError::Failed`] naming what isn't understood: a pod that would run differently from what it says is not made.
pub(crate) fn admit(
    manifest: &Value,
    namespace: &str,
    machine: &str,
    uid: &str,
    now: &str,
) -> Result<Value, PodsError> {
    let mut pod = manifest.as_object().cloned().ok_or_else(|| wrong("a manifest is a JSON object"))?;
    if pod.get("kind").and_then(Value::as_str) != Some("Pod")
        || pod.get("apiVersion").and_then(Value::as_str) != Some("v1")
    {
        return Err(wrong("the manifest isn't a Pod of apiVersion v1"));
    }
    let mut metadata = object(pod.get("metadata"), "metadata")?;
    check_label("pod", text(&metadata, "name")?)?;
    if metadata.get("namespace").is_some_and(|named| named.as_str() != Some(namespace)) {
        return Err(wrong(&format!("the manifest names another namespace than `{namespace}`")));
    }
    for (key, value) in [
        ("namespace", json!(namespace)),
        ("uid", json!(uid)),
        ("creationTimestamp", json!(now)),
        ("generation", json!(1)),
        ("resourceVersion", json!("1")),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    for key in ["deletionTimestamp", "ownerReferences"] {
        if metadata.contains_key(key) {
            return Err(wrong(&format!("metadata.{key} can't be given at creation")));
        }
    }
    let spec = spec(object(pod.get("spec"), "spec")?, machine)?;
    pod.insert("metadata".to_owned(), Value::Object(metadata));
    pod.insert("spec".to_owned(), Value::Object(spec));
    pod.remove("status");
    Ok(Value::Object(pod))
}

fn spec(mut spec: Map<String, Value>, machine: &str) -> Result<Map<String, Value>, PodsError> {
    if let Some(node) = spec.get("nodeName").and_then(Value::as_str)
        && node != machine
    {
        return Err(wrong(&format!("the pod is for the node `{node}`; the only node here is `{machine}`")));
    }
    if spec.contains_key("ephemeralContainers") {
        return Err(wrong("ephemeral containers can't be given at creation"));
    }
    spec.insert("nodeName".to_owned(), json!(machine));
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("priority", json!(0)),
        ("restartPolicy", json!("Always")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("terminationGracePeriodSeconds", json!(30)),
        ("volumes", json!([])),
    ] {
        spec.entry(key).or_insert(value);
    }
    let account = spec.get("serviceAccountName").cloned().unwrap_or_else(|| json!("default"));
    spec.insert("serviceAccount".to_owned(), account.clone());
    spec.insert("serviceAccountName".to_owned(), account);
    tolerations(&mut spec)?;
    let volumes = volumes(&mut spec)?;
    let mut names = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        let Some(value) = spec.get_mut(list) else { continue };
        let containers = value.as_array_mut().ok_or_else(|| wrong(&format!("spec.{list} isn't a list")))?;
        for container in containers {
            let container = container.as_object_mut().ok_or_else(|| wrong(&format!("spec.{list} holds no objects")))?;
            let name = text(container, "name")?.to_owned();
            check_label("container", &name)?;
            if !names.insert(name.clone()) {
                return Err(wrong(&format!("two containers are named `{name}`")));
            }
            admit_container(container, &name, &volumes)?;
        }
    }
    if spec.get("containers").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        return Err(wrong("the pod has no containers"));
    }
    Ok(spec)
}

fn tolerations(spec: &mut Map<String, Value>) -> Result<(), PodsError> {
    let list = spec.entry("tolerations").or_insert_with(|| json!([]));
    let list = list.as_array_mut().ok_or_else(|| wrong("spec.tolerations isn't a list"))?;
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list.iter().any(|given| {
            given.get("key").and_then(Value::as_str).is_none_or(|given| given == key)
                && given.get("effect").and_then(Value::as_str).is_none_or(|effect| effect == "NoExecute")
        });
        if !tolerated {
            list.push(json!({ "effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300 }));
        }
    }
    Ok(())
}

/// The volumes' names.
fn volumes(spec: &mut Map<String, Value>) -> Result<BTreeSet<String>, PodsError> {
    let mut names = BTreeSet::new();
    let list =
        spec.get_mut("volumes").and_then(Value::as_array_mut).ok_or_else(|| wrong("spec.volumes isn't a list"))?;
    for volume in list {
        let volume = volume.as_object_mut().ok_or_else(|| wrong("spec.volumes holds no objects"))?;
        let name = text(volume, "name")?.to_owned();
        check_label("volume", &name)?;
        if let Some(host) = volume.get_mut("hostPath") {
            let host = host.as_object_mut().ok_or_else(|| wrong("a hostPath isn't an object"))?;
            let path = text(host, "path")?;
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(wrong(&format!("the hostPath of the volume `{name}` must be absolute, without `..`")));
            }
            host.entry("type").or_insert_with(|| json!(""));
        } else if volume.get("emptyDir").is_none() {
            return Err(wrong(&format!(
                "the volume `{name}` is neither an emptyDir nor a hostPath: local pods have no others"
            )));
        }
        if !names.insert(name.clone()) {
            return Err(wrong(&format!("two volumes are named `{name}`")));
        }
    }
    Ok(names)
}

fn admit_container(
    container: &mut Map<String, Value>,
    name: &str,
    volumes: &BTreeSet<String>,
) -> Result<(), PodsError> {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    // A tag is after the last `/`; a registry may have a port before it.
    let file = image.rsplit('/').next().unwrap_or_default();
    let pinned = file.contains('@') || file.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    let pull = if pinned { "IfNotPresent" } else { "Always" };
    for (key, value) in [
        ("imagePullPolicy", json!(pull)),
        ("resources", json!({})),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
    ] {
        container.entry(key).or_insert(value);
    }
    resources(container, name)?;
    if strings(container.get("command")).is_none_or(|command| command.is_empty()) {
        return Err(wrong(&format!(
            "the container `{name}` needs a command: local pods have no image to take one from"
        )));
    }
    if container.contains_key("args") && strings(container.get("args")).is_none() {
        return Err(wrong(&format!("the args of the container `{name}` aren't a list of strings")));
    }
    if container.contains_key("envFrom") {
        return Err(wrong(&format!("the container `{name}` has envFrom: local pods have nothing to take it from")));
    }
    for entry in container.get("env").and_then(Value::as_array).into_iter().flatten() {
        let plain = entry.get("valueFrom").is_none()
            && entry.get("value").is_none_or(|value| value.as_str().is_some_and(|value| !value.contains('\0')))
            && entry
                .get("name")
                .and_then(Value::as_str)
                .is_some_and(|name| !name.is_empty() && !name.contains(['=', '\0']));
        if !plain {
            return Err(wrong(&format!(
                "the container `{name}` has an environment variable without a plain name and value"
            )));
        }
    }
    for mount in container.get("volumeMounts").and_then(Value::as_array).into_iter().flatten() {
        let field = |key: &str| mount.get(key).and_then(Value::as_str).unwrap_or_default();
        if !volumes.contains(field("name")) {
            return Err(wrong(&format!(
                "the container `{name}` mounts a volume `{}` that the pod hasn't",
                field("name")
            )));
        }
        if !field("mountPath").starts_with('/') || field("mountPath").split('/').any(|part| part == "..") {
            return Err(wrong(&format!("a mountPath of the container `{name}` must be absolute, without `..`")));
        }
        if field("subPath").starts_with('/') || field("subPath").split('/').any(|part| part == "..") {
            return Err(wrong(&format!("a subPath of the container `{name}` must be relative, without `..`")));
        }
    }
    Ok(())
}

/// Writes quantities as they are stored, and requests what is limited and not requested.
fn resources(container: &mut Map<String, Value>, name: &str) -> Result<(), PodsError> {
    let resources = container.get_mut("resources").and_then(Value::as_object_mut);
    let resources = resources.ok_or_else(|| wrong(&format!("the resources of `{name}` aren't an object")))?;
    for kind in ["limits", "requests"] {
        for value in resources.get_mut(kind).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            match value {
                Value::String(quantity) => *quantity = canonical(quantity),
                Value::Number(number) => *value = json!(canonical(&number.to_string())),
                _ => return Err(wrong(&format!("a quantity of the container `{name}` is neither text nor a number"))),
            }
        }
    }
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    if !limits.is_empty() {
        let requests = resources.entry("requests").or_insert_with(|| json!({}));
        let requests = requests.as_object_mut().ok_or_else(|| wrong("requests aren't an object"))?;
        for (key, value) in limits {
            requests.entry(key).or_insert(value);
        }
    }
    Ok(())
}

/// A list of strings; none when it is anything else.
pub(crate) fn strings(value: Option<&Value>) -> Option<Vec<String>> {
    value?.as_array()?.iter().map(|item| item.as_str().filter(|text| !text.contains('\0')).map(str::to_owned)).collect()
}

fn object(value: Option<&Value>, what: &str) -> Result<Map<String, Value>, PodsError> {
    value.and_then(Value::as_object).cloned().ok_or_else(|| wrong(&format!("the manifest's {what} isn't an object")))
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, PodsError> {
    object
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| wrong(&format!("the manifest has no text `{key}` where one is needed")))
}

fn wrong(what: &str) -> PodsError {
    PodsError::Failed(what.to_owned())
}
