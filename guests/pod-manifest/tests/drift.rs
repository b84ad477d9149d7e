//! Our own pod, and everything that can be done to it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::{as_a_server_shows_it, rendered, spec, verify};
use warmhold_sdk::manifest::Difference;
use warmhold_sdk::serde_json::{Value, json};

fn live() -> Value {
    as_a_server_shows_it(&rendered(&spec()))
}

fn change(pointer: &str, value: Value) -> Value {
    let mut pod = live();
    set(&mut pod, pointer, value);
    pod
}

/// Sets what lies at a JSON pointer; the last part may be new, and `-` appends.
fn set(pod: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let parent = pod.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
    match (parent, last) {
        (Value::Array(items), "-") => items.push(value),
        (Value::Array(items), index) => items[index.parse::<usize>().unwrap()] = value,
        (parent, key) => parent[key.replace("~1", "/")] = value,
    }
}

fn take(pointer: &str) -> Value {
    let mut pod = live();
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match pod.pointer_mut(parent).unwrap() {
        Value::Array(items) => drop(items.remove(last.parse().unwrap())),
        parent => {
            let key = last.replace("~1", "/");
            parent.as_object_mut().unwrap().shift_remove(&key).unwrap_or_else(|| panic!("{pointer}"));
        }
    }
    pod
}

fn paths(differences: &[Difference]) -> Vec<&str> {
    differences.iter().map(|difference| difference.path.as_str()).collect()
}

fn assert_drift(live: &Value, path: &str) {
    let found = verify(&spec(), live).expect_err(path);
    assert_eq!(paths(&found), [path]);
}

#[test]
fn what_a_server_adds_is_nothing() {
    assert_eq!(verify(&spec(), &rendered(&spec())), Ok(vec![]));
    assert_eq!(verify(&spec(), &live()), Ok(vec![]));
    // Every optional part absent.
    let mut bare = spec();
    (bare.node, bare.memory_limit, bare.source_mirror) = (None, None, None);
    bare.source = "https://git.test/project.git".to_owned();
    (bare.host_probe_url, bare.prod_probe_url) = (String::new(), String::new());
    bare.install.clear();
    assert_eq!(verify(&bare, &as_a_server_shows_it(&rendered(&bare))), Ok(vec![]));
}

#[test]
fn quantities_are_compared_by_value() {
    for (pointer, same, other) in [
        ("/spec/containers/0/resources/limits/memory", "2048Mi", "2049Mi"),
        ("/spec/containers/0/resources/requests/memory", "0.5Gi", "0.5G"),
        ("/spec/initContainers/1/resources/limits/memory", "2147483648", "2147483647"),
    ] {
        assert_eq!(verify(&spec(), &change(pointer, json!(same))), Ok(vec![]), "{pointer}");
        let path = format!("${}", pointer.replace("/0", "[0]").replace("/1", "[1]").replace('/', "."));
        assert_drift(&change(pointer, json!(other)), &path);
        assert_drift(&change(pointer, json!("much")), &path);
    }
    let cpu = "/spec/containers/0/resources/requests/cpu";
    assert_drift(&change(cpu, json!("1")), "$.spec.containers[0].resources.requests.cpu");
}

/// Whatever was rendered and is gone or different is drift, at its own path: every leaf of the manifest, one by one.
#[test]
fn every_leaf_of_the_manifest_counts() {
    fn leaves(value: &Value, pointer: String, found: &mut Vec<String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    leaves(value, format!("{pointer}/{}", key.replace('/', "~1")), found);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (n, value) in items.iter().enumerate() {
                    leaves(value, format!("{pointer}/{n}"), found);
                }
            }
            _ => found.push(pointer),
        }
    }
    let manifest = rendered(&spec());
    let mut found = Vec::new();
    leaves(&manifest, String::new(), &mut found);
    assert!(found.len() > 80, "{}", found.len());
    for pointer in found {
        assert!(verify(&spec(), &change(&pointer, json!("other"))).is_err(), "{pointer} was changed");
        assert!(verify(&spec(), &change(&pointer, json!({"x": 1}))).is_err(), "{pointer} became an object");
        // The items of a list have neither.
        let may_be_absent = ["/apiVersion", "/kind"].contains(&pointer.as_str());
        if !may_be_absent {
            assert!(verify(&spec(), &take(&pointer)).is_err(), "{pointer} was removed");
        }
    }
}

#[test]
fn anything_more_in_the_spec_is_drift() {
    for (pointer, value, path) in [
        ("/spec/hostNetwork", json!(true), "$.spec.hostNetwork"),
        ("/spec/hostPID", json!(true), "$.spec.hostPID"),
        ("/spec/shareProcessNamespace", json!(true), "$.spec.shareProcessNamespace"),
        ("/spec/dnsPolicy", json!("None"), "$.spec.dnsPolicy"),
        ("/spec/serviceAccountName", json!("admin"), "$.spec.serviceAccountName"),
        ("/spec/priority", json!(1), "$.spec.priority"),
        ("/spec/terminationGracePeriodSeconds", json!(0), "$.spec.terminationGracePeriodSeconds"),
        ("/spec/securityContext", json!({"fsGroup": 1}), "$.spec.securityContext"),
        ("/spec/runtimeClassName", json!("other"), "$.spec.runtimeClassName"),
        ("/spec/somethingNew", json!({}), "$.spec.somethingNew"),
        ("/spec/tolerations/-", json!({"operator": "Exists"}), "$.spec.tolerations"),
        ("/spec/tolerations/0/tolerationSeconds", json!(301), "$.spec.tolerations"),
        ("/spec/volumes/-", json!({"name": "more", "emptyDir": {}}), "$.spec.volumes[3]"),
        ("/spec/volumes/0/emptyDir", json!({"medium": "Memory"}), "$.spec.volumes[0].emptyDir.medium"),
        ("/spec/containers/-", json!({"name": "sidecar"}), "$.spec.containers[1]"),
        ("/spec/initContainers/-", json!({"name": "more"}), "$.spec.initContainers[2]"),
        ("/spec/ephemeralContainers", json!([{"name": "debugger"}]), "$.spec.ephemeralContainers"),
        ("/spec/containers/0/args", json!(["more"]), "$.spec.containers[0].args"),
        ("/spec/containers/0/command/-", json!("more"), "$.spec.containers[0].command[2]"),
        ("/spec/containers/0/stdin", json!(true), "$.spec.containers[0].stdin"),
        ("/spec/containers/0/tty", json!(true), "$.spec.containers[0].tty"),
        ("/spec/containers/0/workingDir", json!("/"), "$.spec.containers[0].workingDir"),
        ("/spec/containers/0/envFrom", json!([{"secretRef": {"name": "s"}}]), "$.spec.containers[0].envFrom"),
        ("/spec/containers/0/ports", json!([{"containerPort": 1}]), "$.spec.containers[0].ports"),
        ("/spec/containers/0/lifecycle", json!({"postStart": {}}), "$.spec.containers[0].lifecycle"),
        ("/spec/containers/0/livenessProbe", json!({"exec": {}}), "$.spec.containers[0].livenessProbe"),
        ("/spec/containers/0/resizePolicy", json!([{"resourceName": "cpu"}]), "$.spec.containers[0].resizePolicy"),
        ("/spec/containers/0/restartPolicy", json!("Never"), "$.spec.containers[0].restartPolicy"),
        ("/spec/containers/0/volumeDevices", json!([{"name": "d"}]), "$.spec.containers[0].volumeDevices"),
        ("/spec/containers/0/terminationMessagePath", json!("/x"), "$.spec.containers[0].terminationMessagePath"),
        ("/spec/containers/0/imagePullPolicy", json!("Always"), "$.spec.containers[0].imagePullPolicy"),
        ("/spec/containers/0/env/-", json!({"name": "LD_PRELOAD", "value": "/x"}), "$.spec.containers[0].env[7]"),
        ("/spec/containers/0/volumeMounts/-", json!({"name": "workspace"}), "$.spec.containers[0].volumeMounts[2]"),
        (
            "/spec/containers/0/securityContext/privileged",
            json!(true),
            "$.spec.containers[0].securityContext.privileged",
        ),
        (
            "/spec/containers/0/securityContext/capabilities/add/-",
            json!("SYS_ADMIN"),
            "$.spec.containers[0].securityContext.capabilities.add[4]",
        ),
        ("/spec/initContainers/0/resources/limits", json!({"memory": "1Gi"}), "$.spec.initContainers[0].resources"),
        ("/spec/containers/0/resources/claims", json!([{"name": "gpu"}]), "$.spec.containers[0].resources.claims"),
    ] {
        assert_drift(&change(pointer, value), path);
    }
}

#[test]
fn another_order_of_init_containers_or_variables_is_drift() {
    for pointer in ["/spec/initContainers", "/spec/containers/0/env"] {
        let mut pod = live();
        pod.pointer_mut(pointer).unwrap().as_array_mut().unwrap().swap(0, 1);
        let path = format!("${}", pointer.replace("/0", "[0]").replace('/', "."));
        assert_drift(&pod, &path);
    }
}

#[test]
fn an_injected_container_in_front_is_told_once() {
    let mut pod = live();
    pod["spec"]["containers"].as_array_mut().unwrap().insert(0, json!({"name": "proxy", "image": "proxy:1"}));
    assert_drift(&pod, "$.spec.containers[0]");
}

#[test]
fn metadata_of_others_is_told_and_does_no_harm() {
    let mut pod = live();
    set(&mut pod, "/metadata/labels/team", json!("a"));
    set(&mut pod, "/metadata/annotations/example.test~1note", json!("b"));
    set(&mut pod, "/metadata/finalizers", json!(["x/y"]));
    set(&mut pod, "/metadata/managedFields", json!([{"manager": "kubectl"}]));
    set(&mut pod, "/metadata/ownerReferences", json!([]));
    let found = verify(&spec(), &pod).unwrap();
    assert_eq!(
        paths(&found),
        ["$.metadata.labels.team", "$.metadata.annotations[\"example.test/note\"]", "$.metadata.finalizers"]
    );
    assert_eq!((found[0].want.as_str(), found[0].got.as_str()), ("null", "\"a\""));
}

#[test]
fn provenance_comes_and_goes() {
    let mut pod = live();
    for name in ["state", "run", "attempt", "lease", "requested-at"] {
        set(&mut pod, &format!("/metadata/annotations/warmhold.dev~1{name}"), json!("x"));
    }
    assert_eq!(verify(&spec(), &pod), Ok(vec![]));
    // Ours, but none of those.
    set(&mut pod, "/metadata/annotations/warmhold.dev~1other", json!("x"));
    assert_eq!(paths(&verify(&spec(), &pod).unwrap()), ["$.metadata.annotations[\"warmhold.dev/other\"]"]);
}

#[test]
fn a_pod_that_goes_away_or_belongs_to_another_object_is_drift() {
    assert_drift(&change("/metadata/deletionTimestamp", json!("2026-11-30T20:00:00Z")), "$.metadata.deletionTimestamp");
    assert_drift(&change("/metadata/ownerReferences", json!([{"uid": "x"}])), "$.metadata.ownerReferences");
    assert_drift(&change("/metadata/name", json!("other")), "$.metadata.name");
    assert_drift(&change("/metadata/namespace", json!("other")), "$.metadata.namespace");
    assert_drift(&change("/spec/nodeName", json!("node-b")), "$.spec.nodeName");
}

#[test]
fn what_is_no_pod_is_drift_and_never_a_panic() {
    for live in
        [json!(null), json!([]), json!("pod"), json!({}), json!({"spec": []}), json!({"spec": {"containers": {}}})]
    {
        assert!(verify(&spec(), &live).is_err(), "{live}");
    }
    let mut pod = live();
    pod["spec"]["containers"] = json!([null, 7, {"name": "worker"}, {"name": "worker"}]);
    assert!(verify(&spec(), &pod).is_err());
}

#[test]
fn a_pod_that_differs_everywhere_is_told_in_bounds() {
    let mut pod = live();
    let many: Value = (0..10_000).map(|n| json!({"name": format!("v{n}"), "emptyDir": {}})).collect();
    pod["spec"]["volumes"] = many;
    pod["spec"]["x"] = json!("y".repeat(1 << 20));
    for n in 0..1000 {
        pod["metadata"]["labels"][format!("l{n}")] = json!("x");
    }
    let found = verify(&spec(), &pod).unwrap_err();
    let bytes: usize = found.iter().map(|d| d.path.len() + d.want.len() + d.got.len()).sum();
    assert!(found.len() <= 65 && bytes < 200_000, "{} differences, {bytes} bytes", found.len());
    assert!(found.last().unwrap().got.contains("differences more"));
    for difference in &found {
        for side in [&difference.want, &difference.got] {
            assert!(warmhold_sdk::serde_json::from_str::<Value>(side).is_ok(), "{side}");
        }
    }
}

#[test]
fn a_faulty_spec_equals_nothing() {
    let mut faulty = spec();
    faulty.cut_sha = "short".to_owned();
    let found = verify(&faulty, &live()).unwrap_err();
    assert_eq!(found.len(), 1);
    assert!(found[0].want.contains("cut-sha"), "{}", found[0].want);
}
