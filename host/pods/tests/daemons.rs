//! Several daemons on one folder of pods, and daemons that are killed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::{WORKER, World, manifest, processes_naming};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use warmhold_pods::Backend;

/// A daemon of its own that creates one pod.
struct Daemon {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Daemon {
    fn start(world: &World, manifest: &Value) -> Self {
        let mut child = Command::new(WORKER)
            .arg("daemon")
            .arg(world.folder.path().join("pods"))
            .arg(world.folder.path().join("users"))
            .arg(manifest.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_pod_outlives_its_daemon_and_is_found_again() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, &manifest("warm-a"));
    let created = daemon.line();
    let uid = created.strip_prefix("created ").unwrap().to_owned();
    assert_eq!(daemon.line(), "ready");
    let before = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    daemon.kill();
    let after = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(after, before, "the same container, no restart");
    assert_eq!(after["metadata"]["uid"], uid.as_str());
    world.run(&after, "good").await.unwrap();
    // Not our child: how it ended is nobody's knowledge, that it ended is.
    let pid = world.local("warm-a")["processes"]["worker"]["pid"].as_i64().unwrap();
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let restarted = loop {
        let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
        if pod != before {
            break pod;
        }
        assert!(Instant::now() < end);
    };
    assert_eq!(restarted["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(
        restarted["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"],
        "ContainerStatusUnknown"
    );
    world.backend.delete_pod(&world.at, "warm-a", &uid).await.unwrap();
}

#[tokio::test]
async fn a_creation_that_was_cut_off_is_never_ready() {
    let world = World::new();
    let mut manifest = manifest("warm-a");
    manifest["spec"]["initContainers"][1]["env"] = json!([{ "name": "MARK", "value": "/workspace/x" }]);
    manifest["spec"]["initContainers"][1]["command"] = json!([WORKER, "child"]);
    let mut daemon = Daemon::start(&world, &manifest);
    assert!(daemon.line().starts_with("created "));
    let end = Instant::now() + Duration::from_secs(30);
    while processes_naming(world.folder.path(), &["child"]).is_empty() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    // While its maker lives, another daemon leaves it alone.
    let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(processes_naming(world.folder.path(), &["child"]).len(), 1);
    daemon.kill();
    let error = world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(60)).await.unwrap_err();
    assert_eq!(error.code(), "failed");
    assert!(error.to_string().contains("interrupted"), "{error}");
    assert_eq!(processes_naming(world.folder.path(), &["child"]), Vec::<i32>::new());
    let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(world.run(&pod, "good").await.unwrap_err().code(), "failed");
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    world.ready("warm-a").await;
}

#[tokio::test]
async fn a_daemon_killed_at_any_moment_leaves_nothing_that_cant_be_dealt_with() {
    for delay in [0, 1, 3, 6, 10, 20, 40, 80] {
        let world = World::new();
        let mut daemon = Daemon::start(&world, &manifest("warm-a"));
        if delay > 3 {
            assert!(daemon.line().starts_with("created "));
        }
        std::thread::sleep(Duration::from_millis(delay));
        daemon.kill();
        match world.backend.get_pod(&world.at, "warm-a").await {
            Err(error) => assert_eq!(error.code(), "not-found", "after {delay} ms: {error}"),
            Ok(pod) => {
                let ready = world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(30)).await;
                if let Err(error) = ready {
                    assert_eq!(error.code(), "failed", "after {delay} ms: {error}");
                } else {
                    world.run(&pod, "good").await.unwrap();
                }
                world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
            }
        }
        let left = processes_naming(world.folder.path(), &["infinity", "child", "run"]);
        assert_eq!(left, Vec::<i32>::new(), "after {delay} ms");
        world.ready("warm-a").await;
    }
}

#[tokio::test]
async fn of_two_daemons_that_create_one_name_one_wins() {
    for _ in 0..5 {
        let world = World::new();
        let mut daemons: Vec<Daemon> = (0..3).map(|_| Daemon::start(&world, &manifest("warm-a"))).collect();
        let own = world.backend.create_pod(&world.at, &manifest("warm-a")).await;
        let mut answers: Vec<String> = daemons.iter_mut().map(Daemon::line).collect();
        answers.push(match &own {
            Ok(pod) => format!("created {}", pod["metadata"]["uid"].as_str().unwrap()),
            Err(error) => error.code().to_owned(),
        });
        let winners: Vec<&String> = answers.iter().filter(|answer| answer.starts_with("created ")).collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| *answer == "conflict").count(), 3, "{answers:?}");
        world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(60)).await.unwrap();
        let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
        assert_eq!(*winners[0], format!("created {}", pod["metadata"]["uid"].as_str().unwrap()));
    }
}

#[tokio::test]
async fn a_deletion_that_was_cut_off_is_finished_by_whoever_looks() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let directory = world.backend.directory("warm", "warm-a").unwrap();
    let mut local = world.local("warm-a");
    let pid = local["processes"]["worker"]["pid"].as_i64().unwrap();
    local["deleting"] = json!(true);
    std::fs::write(directory.join("local.json"), local.to_string()).unwrap();
    // An older one got further: its directory has its last name already.
    let gone = directory.with_file_name(".gone-warm-z-1");
    std::fs::create_dir_all(gone.join("volumes/x")).unwrap();
    assert_eq!(world.backend.list_pods(&world.at).await.unwrap(), Vec::<Value>::new());
    assert!(!directory.exists() && !gone.exists());
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z"), "{stat}");
    if let Some(group) = local["group"]["path"].as_str() {
        assert!(!std::path::Path::new(group).exists());
    }
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap_err().code(), "not-found");
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_directory_without_a_pod_is_no_pod_and_blocks_nobody() {
    let world = World::new();
    world.ready("warm-b").await;
    let directory = world.backend.directory("warm", "warm-a").unwrap();
    std::fs::create_dir_all(directory.join("volumes/workspace")).unwrap();
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap_err().code(), "not-found");
    assert!(!directory.exists());
    std::fs::create_dir_all(directory.join("volumes/workspace")).unwrap();
    world.ready("warm-a").await;
}

#[tokio::test]
async fn a_request_ends_with_its_daemon_and_the_next_one_finds_the_pod_free() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    // What a killed daemon leaves when its worker ignores the end of its standard input: processes in the request's
    // group, and nobody who holds the request's lock.
    let Some(group) = world.local("warm-a")["group"]["path"].as_str().map(str::to_owned) else {
        println!("skipped: no control groups here");
        return;
    };
    let group = std::path::Path::new(&group).join("worker/request-old");
    std::fs::create_dir(&group).unwrap();
    let mut left = Command::new("sleep").arg("600").spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), left.id().to_string()).unwrap();
    world.run(&pod, "good").await.unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while left.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it still runs");
    }
    assert!(!group.exists());
}
