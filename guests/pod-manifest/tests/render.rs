//! What is rendered, and what isn't.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::{rendered, rendered_with, spec};
use warmhold_sdk::manifest::PodSpec;
use warmhold_sdk::serde_json::{Value, json};

fn command(pod: &Value, init: usize) -> Vec<&str> {
    pod["spec"]["initContainers"][init]["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect()
}

fn env(pod: &Value) -> Vec<(&str, &str)> {
    let items = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    items.iter().map(|item| (item["name"].as_str().unwrap(), item["value"].as_str().unwrap())).collect()
}

#[test]
fn the_whole_pod() {
    let pod = rendered(&spec());
    assert_eq!((&pod["apiVersion"], &pod["kind"]), (&json!("v1"), &json!("Pod")));
    let key = format!(
        r#"{{"architecture":"amd64","context":"minik8s","imageDigest":"sha256:{}","lockHash":"{}"}}"#,
        "a".repeat(64),
        "b".repeat(64)
    );
    assert_eq!(
        pod["metadata"],
        json!({
            "name": "warm-node-a-lite-0",
            "namespace": "warm",
            "labels": {"app.kubernetes.io/managed-by": "warmhold", "warmhold.dev/worker": "w-node-a-1"},
            "annotations": {
                "warmhold.dev/worker-id": "w-node-a-1",
                "warmhold.dev/cut": "0123456789abcdef0123456789abcdef01234567",
                "warmhold.dev/key": key,
                "warmhold.dev/host-probe": "http://10.0.0.1:31413/healthz",
                "warmhold.dev/prod-probe": "http://core.prod/",
            },
        })
    );
    assert_eq!((&pod["spec"]["nodeName"], &pod["spec"]["restartPolicy"]), (&json!("node-a"), &json!("Always")));
    assert_eq!(pod["spec"]["automountServiceAccountToken"], json!(false));
    assert_eq!(
        command(&pod, 0),
        [
            "warmhold-worker",
            "fetch",
            "--source",
            "/source-mirror/project.git",
            "--cut",
            "0123456789abcdef0123456789abcdef01234567",
            "--into",
            "/workspace/repo"
        ]
    );
    assert_eq!(command(&pod, 1), ["npm", "ci"]);
    assert_eq!(
        env(&pod),
        [
            ("WARM_WORKER_ID", "w-node-a-1"),
            ("WARM_CUT", "0123456789abcdef0123456789abcdef01234567"),
            ("WARM_KEY", key.as_str()),
            ("WARM_REPO", "/workspace/repo"),
            ("WARM_DATA", "/workspace/data"),
            ("WARM_HOST_PROBE_URL", "http://10.0.0.1:31413/healthz"),
            ("WARM_PROD_PROBE_URL", "http://core.prod/"),
        ]
    );
    let memory = json!({"limits": {"memory": "2Gi"}, "requests": {"memory": "512Mi"}});
    let (source, install) = (&pod["spec"]["initContainers"][0], &pod["spec"]["initContainers"][1]);
    let worker = &pod["spec"]["containers"][0];
    assert_eq!((&install["resources"], &worker["resources"]), (&memory, &memory));
    assert!(source.get("resources").is_none());
    assert_eq!(install["workingDir"], "/workspace/repo");
    assert_eq!(worker["command"], json!(["sleep", "infinity"]));
    for container in [source, install, worker] {
        assert_eq!(container["image"], "registry.test/worker:1");
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["securityContext"]["runAsUser"], 0);
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    }
    assert_eq!(
        worker["securityContext"]["capabilities"],
        json!({"drop": ["ALL"], "add": ["CHOWN", "SETUID", "SETGID", "KILL"]})
    );
    assert_eq!(
        source["volumeMounts"],
        json!([
            {"name": "workspace", "mountPath": "/workspace"},
            {"name": "source-mirror", "mountPath": "/source-mirror", "readOnly": true},
        ])
    );
    assert_eq!(install["volumeMounts"], json!([{"name": "workspace", "mountPath": "/workspace"}]));
    assert_eq!(
        worker["volumeMounts"],
        json!([
            {"name": "workspace", "mountPath": "/workspace/repo", "subPath": "repo"},
            {"name": "runtime-data", "mountPath": "/workspace/data"},
        ])
    );
    assert_eq!(
        pod["spec"]["volumes"],
        json!([
            {"name": "workspace", "emptyDir": {}},
            {"name": "runtime-data", "emptyDir": {}},
            {"name": "source-mirror", "hostPath": {"path": "/srv/mirror", "type": "Directory"}},
        ])
    );
}

#[test]
fn without_what_can_be_left_out() {
    let bare = PodSpec {
        node: None,
        memory_limit: None,
        host_probe_url: String::new(),
        prod_probe_url: String::new(),
        source_mirror: None,
        source: "/home/me/project".to_owned(),
        install: Vec::new(),
        ..spec()
    };
    let pod = rendered(&bare);
    assert!(pod["spec"].get("nodeName").is_none());
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "16Gi");
    assert_eq!(command(&pod, 0)[3], "/home/me/project");
    assert_eq!(command(&pod, 1), ["true"]);
    assert_eq!(env(&pod).len(), 5, "an API server drops an empty value");
    assert_eq!(pod["metadata"]["annotations"].as_object().unwrap().len(), 3);
    assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 2);
    assert_eq!(pod["spec"]["initContainers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
}

#[test]
fn a_source_in_the_mirror_is_named_as_init_sees_it() {
    for (source, seen) in [
        ("project.git", "/source-mirror/project.git"),
        ("./a/b", "/source-mirror/a/b"),
        ("/srv/mirror", "/source-mirror"),
        ("/srv/mirror/a", "/source-mirror/a"),
        ("/srv/mirrors/a", "/srv/mirrors/a"),
        ("/source-mirror/a", "/source-mirror/a"),
        ("https://git.test/a.git", "https://git.test/a.git"),
        ("git@git.test:a.git", "git@git.test:a.git"),
    ] {
        let pod = rendered(&PodSpec { source: source.to_owned(), ..spec() });
        assert_eq!(command(&pod, 0)[3], seen);
    }
}

#[test]
fn settings_change_what_is_allowed_and_added() {
    let settings = r#"{"memory-limits":["4Gi"],"labels":{"example.test/team":"a"}}"#;
    let faults = rendered_with(settings, &spec()).unwrap_err();
    assert_eq!(faults, ["memory-limit: must be one of 4Gi, or none"]);
    let pod = rendered_with(settings, &PodSpec { memory_limit: Some("4096Mi".into()), ..spec() }).unwrap();
    assert_eq!(pod["metadata"]["labels"]["example.test/team"], "a");
    assert!(rendered_with("{\"x\":1}", &spec()).unwrap_err()[0].starts_with("x: "));
}

#[test]
fn a_request_is_never_above_its_limit() {
    for (limit, request) in [("256Mi", "256Mi"), ("536870911", "536870911"), ("0.5Gi", "512Mi"), ("1Ti", "512Mi")] {
        let pod = rendered(&PodSpec { memory_limit: Some(limit.into()), ..spec() });
        let resources = json!({"limits": {"memory": limit}, "requests": {"memory": request}});
        assert_eq!(pod["spec"]["containers"][0]["resources"], resources);
    }
}

#[test]
fn a_local_pod_runs_on_a_machine() {
    let mut local = PodSpec { node: Some("My_Laptop.local".into()), ..spec() };
    assert_eq!(rendered_with("{}", &local).unwrap_err().len(), 1);
    (local.context, local.key.context) = ("local".into(), "local".into());
    assert_eq!(rendered(&local)["spec"]["nodeName"], "My_Laptop.local");
    local.node = Some("-x".into());
    assert!(rendered_with("{}", &local).unwrap_err()[0].starts_with("node: "));
}

/// Each fault alone: a value and the field that must be named.
#[test]
fn each_fault_is_found() {
    type Change = fn(&mut PodSpec, &str);
    let text = |value: &str| value.to_owned();
    let long = "a".repeat(64);
    let table: Vec<(&str, Change, Vec<String>)> = vec![
        (
            "name",
            |s, v| s.name = v.into(),
            vec![text(""), text("A"), text("a.b"), text("-a"), text("a-"), text("a b"), long.clone()],
        ),
        ("namespace", |s, v| s.namespace = v.into(), vec![text(""), text("Warm"), text("a_b")]),
        (
            "worker-id",
            |s, v| s.worker_id = v.into(),
            vec![text(""), text("-a"), text("a."), text("a/b"), text("ü"), long.clone()],
        ),
        ("image", |s, v| s.image = v.into(), vec![text(""), text("a b"), text("a\n")]),
        ("node", |s, v| s.node = Some(v.into()), vec![text(""), text("Node"), text("a..b"), text("a b")]),
        (
            "cut-sha",
            |s, v| s.cut_sha = v.into(),
            vec![text(""), text("0123"), "g".repeat(40), "A".repeat(40), "a".repeat(41)],
        ),
        (
            "key.image-digest",
            |s, v| s.key.image_digest = v.into(),
            vec![text(""), "a".repeat(64), format!("sha256:{}", "a".repeat(63)), format!("sha256:{}", "A".repeat(64))],
        ),
        ("key.lock-hash", |s, v| s.key.lock_hash = v.into(), vec![text(""), text(" ")]),
        ("key.architecture", |s, v| s.key.architecture = v.into(), vec![text(""), text(" ")]),
        ("key.context", |s, v| s.key.context = v.into(), vec![text("other")]),
        (
            "memory-limit",
            |s, v| s.memory_limit = Some(v.into()),
            vec![text(""), text("0"), text("2 Gi"), text("-2Gi"), text("2gi")],
        ),
        (
            "host-probe-url",
            |s, v| s.host_probe_url = v.into(),
            vec![
                text("https://a/"),
                text("http://a"),
                text("http:///x"),
                text("http://a:0/"),
                text("http://a:65536/"),
                text("http://a:b/"),
                text("http://a:+1/"),
                text("http://u@a/"),
                text("http://a/#f"),
                text("http://a/ b"),
                text("http://300.1.1.1/"),
                text("http://1.2.3/"),
                text("http://[::1/"),
                text("http://[::g]/"),
                text("http://a b/"),
                text("ftp://a/"),
            ],
        ),
        ("prod-probe-url", |s, v| s.prod_probe_url = v.into(), vec![text("http://a"), text("x")]),
        (
            "source-mirror",
            |s, v| s.source_mirror = Some(v.into()),
            vec![
                text(""),
                text("a"),
                text("/"),
                text("/a/"),
                text("/a//b"),
                text("/a/./b"),
                text("/a/../b"),
                text("/a\nb"),
            ],
        ),
        (
            "source",
            |s, v| s.source = v.into(),
            vec![text(""), text(" "), text("a\nb"), text("--upload-pack=x"), text("../a"), text("a/../b")],
        ),
        ("install", |s, v| s.install = vec!["npm".into(), v.into()], vec![text(""), text("a\0b")]),
    ];
    for (field, change, values) in table {
        for value in values {
            let mut spec = spec();
            change(&mut spec, &value);
            let faults = rendered_with("{}", &spec).expect_err(&format!("{field} = {value:?}"));
            let named: Vec<&str> = faults.iter().map(|fault| fault.split_once(": ").unwrap().0).collect();
            assert!(named.iter().all(|name| *name == field), "{field} = {value:?}: {faults:?}");
        }
    }
}

#[test]
fn good_values_at_the_edge() {
    type Change = fn(&mut PodSpec, &str);
    let table: Vec<(Change, Vec<String>)> = vec![
        (|s, v| s.name = v.into(), vec!["a".into(), "0-9".into(), "a".repeat(63)]),
        (|s, v| s.worker_id = v.into(), vec!["W.1_x-y".into(), "a".repeat(63)]),
        (|s, v| s.node = Some(v.into()), vec!["a.b-c.d".into()]),
        (
            |s, v| s.memory_limit = Some(v.into()),
            vec!["16Gi".into(), "2048Mi".into(), "17179869184".into(), "1".into()],
        ),
        (
            |s, v| s.host_probe_url = v.into(),
            vec![
                "http://a/".into(),
                "http://a.b:1/x?y=1&z".into(),
                "http://127.0.0.1:65535/".into(),
                "http://[::1]:80/p".into(),
                "http://[fe80::1]/".into(),
            ],
        ),
        (|s, v| s.source = v.into(), vec!["/home/me/my project".into(), "/a/../b".into(), "ssh://git@a/b c".into()]),
        (|s, v| s.source_mirror = Some(v.into()), vec!["/a".into(), "/a b/ü.d".into()]),
    ];
    for (change, values) in table {
        for value in values {
            let mut spec = spec();
            change(&mut spec, &value);
            rendered_with("{}", &spec).unwrap_or_else(|faults| panic!("{value}: {faults:?}"));
        }
    }
}

#[test]
fn every_fault_is_told_at_once() {
    let nothing = PodSpec {
        name: String::new(),
        namespace: String::new(),
        context: String::new(),
        worker_id: String::new(),
        image: String::new(),
        node: None,
        cut_sha: String::new(),
        key: warmhold_sdk::manifest::WorkerKey {
            context: String::new(),
            image_digest: String::new(),
            lock_hash: String::new(),
            architecture: String::new(),
        },
        memory_limit: Some(String::new()),
        host_probe_url: "x".to_owned(),
        prod_probe_url: "x".to_owned(),
        source_mirror: Some("x".to_owned()),
        source: String::new(),
        install: vec![String::new()],
    };
    let faults = rendered_with("{}", &nothing).unwrap_err();
    let mut named: Vec<&str> = faults.iter().map(|fault| fault.split_once(": ").unwrap().0).collect();
    named.dedup();
    assert_eq!(
        named,
        [
            "name",
            "namespace",
            "context",
            "worker-id",
            "image",
            "cut-sha",
            "key.context",
            "key.image-digest",
            "key.lock-hash",
            "key.architecture",
            "memory-limit",
            "host-probe-url",
            "prod-probe-url",
            "source-mirror",
            "source",
            "install"
        ]
    );
}

#[test]
fn a_relative_source_needs_a_mirror() {
    let faults = rendered_with("{}", &PodSpec { source_mirror: None, ..spec() }).unwrap_err();
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("source: a relative path"), "{faults:?}");
}
