//! Local pods from creation to deletion, with real processes and directories.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::{World, manifest};
use serde_json::{Value, json};
use std::time::Duration;
use warmhold_pods::{Backend, CarrierExit, Changes, MetadataPatch, Progress, Target};

/// What somebody does to a pod.
type Change = fn(&mut Value);

#[tokio::test]
async fn a_pod_is_created_seen_and_used() {
    let world = World::new();
    let created = world.backend.create_pod(&world.at, &manifest("warm-a")).await.unwrap();
    assert_eq!(created["status"]["phase"], "Pending");
    world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(60)).await.unwrap();
    let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(pod["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert!(pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().starts_with("local://"));
    for init in pod["status"]["initContainerStatuses"].as_array().unwrap() {
        assert_eq!(init["state"]["terminated"]["exitCode"], 0, "{init}");
    }
    let mut request = world.request(&pod, "good");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = std::sync::Arc::clone(&seen);
    request.progress = Some(std::sync::Arc::new(move |progress: Progress<'_>| match progress {
        Progress::Began { file } => told.lock().unwrap().push(format!("{file}")),
        Progress::Output { file, bytes, .. } => {
            told.lock().unwrap().push(format!("{file}: {}", String::from_utf8_lossy(bytes)));
        }
    }));
    let reply = world.backend.exec(request).await.unwrap();
    assert!(reply.verdict.clean, "{:?}", reply.verdict.unclean);
    assert_eq!(reply.exit, Some(CarrierExit::Code(0)));
    assert_eq!(reply.files.len(), 2);
    assert_eq!(reply.files[1].file, "dir/b.py");
    assert_eq!(std::fs::read_to_string(&reply.files[1].stdout.path).unwrap(), "ran dir/b.py\n");
    assert_eq!(std::fs::read_to_string(&reply.files[1].stderr.path).unwrap(), "");
    assert_eq!(reply.files[0].artifacts[0].suffix, "out/report.txt");
    assert_eq!(std::fs::read_to_string(&reply.files[0].artifacts[0].received.path).unwrap(), "report");
    assert_eq!(std::fs::read_to_string(&reply.files[0].artifacts[1].received.path).unwrap(), "");
    assert_eq!(seen.lock().unwrap().concat(), "00: ran a0: .sh\n11: ran dir1: /b.py\n");
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap_err().code(), "not-found");
}

#[tokio::test]
async fn the_live_pod_is_the_manifest_with_an_api_servers_additions() {
    let world = World::new();
    let mut given = manifest("warm-a");
    given["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "256Mi", "cpu": "1000m" } });
    given["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("1024Mi");
    let pod = world.made(&given).await;
    let mut want = given.clone();
    let spec = want["spec"].as_object_mut().unwrap();
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("enableServiceLinks", json!(true)),
        ("nodeName", json!("node-a")),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("priority", json!(0)),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("serviceAccount", json!("default")),
        ("serviceAccountName", json!("default")),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        assert_eq!(spec.insert(key.to_owned(), value), None, "{key} is an addition");
    }
    spec.insert(
        "tolerations".to_owned(),
        json!([
            { "effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300 },
            { "effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300 },
        ]),
    );
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().unwrap() {
            container["terminationMessagePath"] = json!("/dev/termination-log");
            container["terminationMessagePolicy"] = json!("File");
            if list == "initContainers" {
                container["resources"] = json!({});
            }
        }
    }
    want["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "memory": "1Gi", "cpu": "1" }, "requests": { "memory": "1Gi", "cpu": "1" } });
    assert_eq!(pod["spec"], want["spec"]);
    for (key, value) in given["metadata"].as_object().unwrap() {
        assert_eq!(&pod["metadata"][key], value);
    }
    assert_eq!(pod["metadata"]["uid"].as_str().unwrap().len(), 36);
    for condition in pod["status"]["conditions"].as_array().unwrap() {
        assert_eq!(condition["status"], "True", "{condition}");
    }
}

#[tokio::test]
async fn what_would_run_differently_is_not_made() {
    let world = World::new();
    let cases: [(&str, Change); 14] = [
        ("no name", |pod| drop(pod["metadata"].as_object_mut().unwrap().remove("name"))),
        ("a path as name", |pod| pod["metadata"]["name"] = json!("../../etc")),
        ("a dot", |pod| pod["metadata"]["name"] = json!(".locks")),
        ("another namespace", |pod| pod["metadata"]["namespace"] = json!("other")),
        ("another node", |pod| pod["spec"]["nodeName"] = json!("node-b")),
        ("no containers", |pod| pod["spec"]["containers"] = json!([])),
        ("no command", |pod| drop(pod["spec"]["containers"][0].as_object_mut().unwrap().remove("command"))),
        ("a secret", |pod| pod["spec"]["volumes"][0] = json!({ "name": "workspace", "secret": { "secretName": "x" } })),
        ("no such host path", |pod| {
            pod["spec"]["volumes"][0] =
                json!({ "name": "workspace", "hostPath": { "path": "/no/such", "type": "Directory" } });
        }),
        ("a mount out of its volume", |pod| {
            pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = json!("../../x")
        }),
        ("an unknown volume", |pod| pod["spec"]["containers"][0]["volumeMounts"][0]["name"] = json!("x")),
        ("a variable from elsewhere", |pod| {
            pod["spec"]["containers"][0]["env"][0] = json!({ "name": "X", "valueFrom": { "fieldRef": {} } });
        }),
        ("two of one name", |pod| pod["spec"]["initContainers"][0]["name"] = json!("worker")),
        ("an owner", |pod| pod["metadata"]["ownerReferences"] = json!([{}])),
    ];
    for (what, change) in cases {
        let mut manifest = manifest("warm-a");
        change(&mut manifest);
        let error = world.backend.create_pod(&world.at, &manifest).await.unwrap_err();
        assert_eq!(error.code(), "failed", "{what}: {error}");
        assert!(!world.backend.directory("warm", "warm-a").unwrap().exists(), "{what}");
    }
    for odd in [json!(null), json!([]), json!({}), json!({ "metadata": { "name": "x" } })] {
        assert_eq!(world.backend.create_pod(&world.at, &odd).await.unwrap_err().code(), "failed");
    }
    assert_eq!(world.backend.list_pods(&world.at).await.unwrap(), Vec::<Value>::new());
    world.ready("warm-a").await;
}

#[tokio::test]
async fn contexts_names_and_nodes() {
    let world = World::new();
    world.backend.context_known("local").await.unwrap();
    assert_eq!(world.backend.context_known("k3d-x").await.unwrap_err().code(), "unknown-context");
    let elsewhere = Target { context: "k3d-x".to_owned(), namespace: "warm".to_owned() };
    assert_eq!(world.backend.get_pod(&elsewhere, "a").await.unwrap_err().code(), "unknown-context");
    assert_eq!(world.backend.list_pods(&elsewhere).await.unwrap_err().code(), "unknown-context");
    assert_eq!(world.backend.get_pod(&world.at, "a").await.unwrap_err().code(), "not-found");
    assert_eq!(world.backend.get_pod(&world.at, "../warm").await.unwrap_err().code(), "failed");
    let outside = Target { context: "local".to_owned(), namespace: "../..".to_owned() };
    assert_eq!(world.backend.list_pods(&outside).await.unwrap_err().code(), "failed");
    let node = world.backend.get_node("local", "node-a").await.unwrap();
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/arch"], architecture);
    assert_eq!(world.backend.get_node("local", "node-b").await.unwrap_err().code(), "not-found");
}

#[tokio::test]
async fn a_taken_name_is_a_conflict_and_deletion_needs_the_uid() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    assert_eq!(world.backend.create_pod(&world.at, &manifest("warm-a")).await.unwrap_err().code(), "conflict");
    assert_eq!(world.backend.delete_pod(&world.at, "warm-a", "another").await.unwrap_err().code(), "conflict");
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), pod);
    let process = container(&world, "warm-a");
    world.backend.delete_pod(&world.at, "warm-a", uid).await.unwrap();
    assert!(!alive(process));
    world.backend.delete_pod(&world.at, "warm-a", uid).await.unwrap();
    let again = world.ready("warm-a").await;
    assert_ne!(again["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(world.backend.delete_pod(&world.at, "warm-a", uid).await.unwrap_err().code(), "conflict");
    let names: Vec<_> = std::fs::read_dir(world.folder.path().join("pods/warm")).unwrap().flatten().collect();
    assert_eq!(names.len(), 2, "the pod and the locks: {names:?}");
}

#[tokio::test]
async fn metadata_is_patched_while_the_uid_is_right() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let annotations =
        MetadataPatch::changes(&json!({ "warmhold.dev/state": "leased", "warmhold.dev/run": "r" })).unwrap();
    let patch = MetadataPatch { expected_uid: uid, labels: Changes::new(), annotations };
    let after = world.backend.patch_metadata(&world.at, "warm-a", &patch).await.unwrap();
    assert_eq!(after["metadata"]["annotations"]["warmhold.dev/state"], "leased");
    assert_eq!(after["metadata"]["annotations"]["warmhold.dev/worker-id"], "w-1");
    assert!(version(&after) > version(&pod));
    assert_eq!(after["spec"], pod["spec"]);
    let same = world.backend.patch_metadata(&world.at, "warm-a", &patch).await.unwrap();
    assert_eq!(same, after, "nothing changed, so no new version");
    let removal = MetadataPatch {
        annotations: MetadataPatch::changes(&json!({ "warmhold.dev/run": null, "never": null })).unwrap(),
        labels: MetadataPatch::changes(&json!({ "team": "x" })).unwrap(),
        ..patch.clone()
    };
    let after = world.backend.patch_metadata(&world.at, "warm-a", &removal).await.unwrap();
    assert_eq!(after["metadata"]["annotations"].get("warmhold.dev/run"), None);
    assert_eq!(after["metadata"]["labels"]["team"], "x");
    let stale = MetadataPatch { expected_uid: "another".to_owned(), ..removal };
    assert_eq!(world.backend.patch_metadata(&world.at, "warm-a", &stale).await.unwrap_err().code(), "conflict");
    assert_eq!(world.backend.patch_metadata(&world.at, "warm-b", &stale).await.unwrap_err().code(), "not-found");
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), after);
    assert_eq!(MetadataPatch::changes(&json!({ "a": 1 })).unwrap_err().code(), "failed");
}

#[tokio::test]
async fn many_patches_at_once_lose_nothing() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let other = warmhold_pods::local::LocalBackend::open(common::options(world.folder.path())).unwrap();
    let mut tasks = Vec::new();
    for number in 0..40 {
        let backend = if number % 2 == 0 { world.backend.clone() } else { other.clone() };
        let (at, uid) = (world.at.clone(), uid.clone());
        tasks.push(tokio::spawn(async move {
            let annotations = Changes::from([(format!("n/{number}"), Some("x".to_owned()))]);
            let patch = MetadataPatch { expected_uid: uid, annotations, ..MetadataPatch::default() };
            backend.patch_metadata(&at, "warm-a", &patch).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let after = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(after["metadata"]["annotations"].as_object().unwrap().len(), 41);
    assert_eq!(version(&after), version(&pod) + 40);
}

#[tokio::test]
async fn a_container_that_died_comes_back_as_another_one() {
    let world = World::new();
    let before = world.ready("warm-a").await;
    let old = container(&world, "warm-a");
    kill(old);
    let after = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    let (was, is) = (&before["status"]["containerStatuses"][0], &after["status"]["containerStatuses"][0]);
    assert_eq!(is["restartCount"], 1);
    assert_ne!(is["containerID"], was["containerID"]);
    assert_eq!(is["lastState"]["terminated"]["exitCode"], 137);
    assert_eq!(is["lastState"]["terminated"]["containerID"], was["containerID"]);
    assert_eq!(is["ready"], true);
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(before["spec"], after["spec"]);
    assert!(alive(container(&world, "warm-a")));
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), after, "once is enough");
    // The list looks as closely.
    kill(container(&world, "warm-a"));
    let listed = world.backend.list_pods(&world.at).await.unwrap();
    assert_eq!(listed[0]["status"]["containerStatuses"][0]["restartCount"], 2);
}

#[tokio::test]
async fn a_reboot_is_a_restart_with_another_user() {
    let world = World::new();
    let before = world.ready("warm-a").await;
    let old = container(&world, "warm-a");
    let path = world.backend.directory("warm", "warm-a").unwrap().join("local.json");
    let mut local = world.local("warm-a");
    local["boot"] = json!("another");
    local["processes"]["worker"]["boot"] = json!("another");
    std::fs::write(path, local.to_string()).unwrap();
    let after = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_ne!(
        after["status"]["containerStatuses"][0]["containerID"],
        before["status"]["containerStatuses"][0]["containerID"]
    );
    assert_ne!(container(&world, "warm-a"), old);
    if rustix::process::geteuid().is_root() {
        let uid = world.backend.request_uid(&world.at, "warm-a").await.unwrap();
        assert_ne!(Some(u64::from(uid)), local["requestUid"].as_u64(), "the old one is still written down");
    }
}

#[tokio::test]
async fn a_container_that_cant_start_is_never_ready() {
    let world = World::new();
    let mut manifest = manifest("warm-a");
    manifest["spec"]["containers"][0]["command"] = json!(["no-such-program"]);
    world.backend.create_pod(&world.at, &manifest).await.unwrap();
    let error = world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.code(), "timed-out");
    assert!(error.to_string().contains("starting the container `worker`"), "{error}");
    let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "it never ran");
}

#[tokio::test]
async fn an_init_step_that_fails_says_why() {
    let world = World::new();
    let mut manifest = manifest("warm-a");
    manifest["spec"]["initContainers"][1]["command"] =
        json!(["sh", "-c", "pwd; yes noise | head -c 3000000; echo broken pipe dream >&2; exit 5"]);
    world.backend.create_pod(&world.at, &manifest).await.unwrap();
    let error = world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(60)).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.code(), "failed");
    assert!(text.contains("`install` exited with 5") && text.contains("broken pipe dream"), "{text}");
    assert!(text.len() < 4000, "{}", text.len());
    let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    let statuses = &pod["status"]["initContainerStatuses"];
    assert_eq!(statuses[0]["state"]["terminated"]["exitCode"], 0);
    assert_eq!(statuses[1]["state"]["terminated"]["exitCode"], 5);
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    let log = world.backend.directory("warm", "warm-a").unwrap().join("logs/install.log");
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.len(), 1024 * 1024);
    let repo = world.backend.directory("warm", "warm-a").unwrap().join("volumes/workspace/repo");
    assert!(log.starts_with(&format!("{}\n", repo.display())), "it runs where the manifest says");
    // It stays so until it is removed.
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), pod);
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
}

#[tokio::test]
async fn an_init_step_has_an_end_and_leaves_nothing_running() {
    let world = World::with(|options| options.init_limit = Duration::from_millis(500));
    let mut slow = manifest("warm-a");
    slow["spec"]["initContainers"][0]["command"] = json!(["sh", "-c", "echo begun; sleep 600 & sleep 600"]);
    world.backend.create_pod(&world.at, &slow).await.unwrap();
    let error = world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(60)).await.unwrap_err();
    assert!(error.to_string().contains("didn't end within 0.5 s"), "{error}");
    assert!(error.to_string().contains("begun"), "{error}");
    // One that ends in time and leaves something behind.
    let mut leaving = manifest("warm-b");
    leaving["spec"]["initContainers"][0]["env"] = json!([{ "name": "MARK", "value": "/workspace/x" }]);
    leaving["spec"]["initContainers"][0]["command"] =
        json!(["sh", "-c", "setsid \"$0\" child >/dev/null 2>&1 & sleep 0.1", common::WORKER]);
    world.made(&leaving).await;
    assert_eq!(world.strays(), Vec::<i32>::new());
}

#[tokio::test]
async fn a_pod_removed_while_it_is_made_gives_way_to_a_new_one() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let mut slow = manifest("warm-a");
        slow["spec"]["initContainers"][0]["env"] = json!([{ "name": "MARK", "value": "/workspace/x" }]);
        slow["spec"]["initContainers"][0]["command"] = json!([common::WORKER, "child"]);
        for _ in 0..5 {
            let pod = world.backend.create_pod(&world.at, &slow).await.unwrap();
            while world.strays().is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            world.backend.delete_pod(&world.at, "warm-a", uid).await.unwrap();
            assert_eq!(world.strays(), Vec::<i32>::new());
            let again = world.ready("warm-a").await;
            // The first one's maker has noticed by now, and has done the second one no harm.
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), again);
            world.backend.delete_pod(&world.at, "warm-a", again["metadata"]["uid"].as_str().unwrap()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn hands_in_the_directory_are_seen() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let process = container(&world, "warm-a");
    let changes: [(&str, Change); 5] = [
        ("an ephemeral container", |pod| pod["spec"]["ephemeralContainers"] = json!([{ "name": "dbg" }])),
        ("another image", |pod| pod["spec"]["containers"][0]["image"] = json!("registry.test/other:1")),
        ("a condition", |pod| pod["status"]["conditions"][2]["status"] = json!("False")),
        ("an owner", |pod| pod["metadata"]["ownerReferences"] = json!([{ "name": "x" }])),
        ("a deletion", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-30T19:57:49Z")),
    ];
    for (what, change) in changes {
        world.edit("warm-a", change);
        let mut want = pod.clone();
        change(&mut want);
        assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), want, "{what}");
        world.edit("warm-a", |live| *live = pod.clone());
    }
    world.edit("warm-a", |pod| pod["metadata"]["uid"] = json!("another"));
    assert_eq!(world.run(&pod, "good").await.unwrap_err().code(), "wrong-pod");
    let mut other = pod.clone();
    other["metadata"]["uid"] = json!("another");
    assert_eq!(world.run(&other, "good").await.unwrap_err().code(), "wrong-pod", "a changed UID opens no door");
    // A pod that is shown as going isn't brought back to life.
    world.edit("warm-a", |live| {
        *live = pod.clone();
        live["metadata"]["deletionTimestamp"] = json!("2026-11-30T19:57:49Z");
    });
    kill(process);
    let seen = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(seen["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(world.run(&pod, "good").await.unwrap_err().code(), "failed");
}

#[tokio::test]
async fn a_damaged_pod_holds_its_name_and_can_be_removed() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    std::fs::write(world.pod_file("warm-a"), "{ not json").unwrap();
    let error = world.backend.get_pod(&world.at, "warm-a").await.unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    let listed = world.backend.list_pods(&world.at).await.unwrap();
    assert_eq!(listed[0]["metadata"]["name"], "warm-a");
    assert_eq!(listed[0]["status"]["phase"], "Unknown");
    assert!(world.backend.create_pod(&world.at, &manifest("warm-a")).await.is_err());
    let process = container(&world, "warm-a");
    assert!(world.backend.delete_pod(&world.at, "warm-a", "another").await.is_err());
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    assert!(!alive(process));
    world.ready("warm-a").await;
}

#[tokio::test]
async fn each_pod_has_a_user_of_its_own_on_the_whole_machine() {
    if !rustix::process::geteuid().is_root() {
        let world = World::new();
        world.ready("warm-a").await;
        assert_eq!(world.backend.request_uid(&world.at, "warm-a").await, None);
        println!("skipped: only root gives out users");
        return;
    }
    let first = 2_000_000;
    let world = World::with(|options| options.first_user = first);
    let users = world.folder.path().join("users");
    let other = World::with(|options| (options.first_user, options.users) = (first, users));
    let mut seen = std::collections::BTreeSet::new();
    for (world, name) in [(&world, "warm-a"), (&world, "warm-b"), (&other, "warm-a")] {
        world.ready(name).await;
        assert!(seen.insert(world.backend.request_uid(&world.at, name).await.unwrap()));
    }
    assert!(seen.first().unwrap() >= &first);
    let first = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    let uid = world.backend.request_uid(&world.at, "warm-a").await.unwrap();
    world.backend.delete_pod(&world.at, "warm-a", first["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    assert_eq!(world.backend.request_uid(&world.at, "warm-a").await, None);
    other.ready("warm-c").await;
    assert_eq!(other.backend.request_uid(&other.at, "warm-c").await, Some(uid), "it is free again");
}

#[tokio::test]
async fn tests_of_another_user_can_cross_the_folders_but_read_no_state() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    world.ready("warm-a").await;
    let directory = world.backend.directory("warm", "warm-a").unwrap();
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (cross, volume) = if rustix::process::geteuid().is_root() { (0o711, 0o755) } else { (0o700, 0o700) };
    assert_eq!(mode(directory.join("../..")), cross);
    assert_eq!(mode(directory.clone()), cross);
    assert_eq!(mode(directory.join("volumes")), cross);
    assert_eq!(mode(directory.join("volumes/workspace")), volume);
    assert_eq!(mode(directory.join("pod.json")), 0o600);
    assert_eq!(mode(directory.join("local.json")), 0o600);
    assert_eq!(mode(directory.join("logs")), 0o700);
}

#[tokio::test]
async fn a_full_disk_makes_no_half_pod_and_keeps_no_pod_alive() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting a small file system needs root");
        return;
    }
    let disk = tempfile::Builder::new().prefix("warmhold-pods-disk-").tempdir().unwrap();
    rustix::mount::mount("tmpfs", disk.path(), "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=256k"))
        .unwrap();
    let world = World::with(|options| options.root = disk.path().join("pods"));
    let pod = world.ready("warm-a").await;
    let filler = disk.path().join("filler");
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);
    let error = world.backend.create_pod(&world.at, &manifest("warm-b")).await.unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let patch = MetadataPatch {
        expected_uid: uid.to_owned(),
        annotations: Changes::from([("a".to_owned(), Some("x".repeat(100)))]),
        ..MetadataPatch::default()
    };
    assert!(world.backend.patch_metadata(&world.at, "warm-a", &patch).await.is_err());
    assert_eq!(world.backend.list_pods(&world.at).await.unwrap(), vec![pod.clone()], "nothing half, nothing lost");
    let process = container(&world, "warm-a");
    world.backend.delete_pod(&world.at, "warm-a", uid).await.unwrap();
    assert!(!alive(process));
    assert_eq!(world.backend.list_pods(&world.at).await.unwrap(), Vec::<Value>::new());
    std::fs::remove_file(filler).unwrap();
    world.ready("warm-b").await;
    drop(world);
    rustix::mount::unmount(disk.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[tokio::test]
async fn deletion_takes_mounts_and_closed_directories_along() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let data = world.backend.directory("warm", "warm-a").unwrap().join("volumes/runtime-data");
    std::fs::create_dir_all(data.join("closed/in ner")).unwrap();
    if rustix::process::geteuid().is_root() {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", data.join("closed/in ner"), "tmpfs", flags, None).unwrap();
        std::fs::write(data.join("closed/in ner/file"), "x").unwrap();
    }
    std::fs::set_permissions(data.join("closed"), std::fs::Permissions::from_mode(0o000)).unwrap();
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&world.folder.path().display().to_string()), "{mounts}");
    assert_eq!(std::fs::read_dir(world.folder.path().join("pods/warm")).unwrap().count(), 1, "the locks");
}

fn container(world: &World, name: &str) -> i32 {
    i32::try_from(world.local(name)["processes"]["worker"]["pid"].as_i64().unwrap()).unwrap()
}

fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Kills it and waits until it is dead (nobody but the backend takes its status).
fn kill(pid: i32) {
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    while alive(pid) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn version(pod: &Value) -> u64 {
    pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
