//! Tests that make new processes faster than anybody can list them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::{WORKER, World, manifest};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;
use warmhold_pods::{Backend, ExecError, ExecReply, ExecRequest};

/// How a pod is held together.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// By all that the machine has.
    Groups,
    /// By a group that can't stand still.
    Slow,
    /// By its user alone.
    User,
}

/// A pod whose requests make a mob.
struct Site {
    /// One mob at a time: each leaves thousands of dead processes to this machine's init.
    _turn: tokio::sync::MutexGuard<'static, ()>,
    world: World,
    pod: Value,
    uid: Option<u32>,
}

impl Site {
    /// Runs a mob in the pod; one that doesn't end by itself gets a short deadline.
    async fn outcome(&self, mode: &str, uid: Option<u32>) -> Result<ExecReply, ExecError> {
        // The dead of the mob before may still hold most numbers that processes can have; then nobody can be started.
        let end = Instant::now() + Duration::from_secs(60);
        while std::fs::read_dir("/proc").unwrap().count() > 5000 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut request = self.request(mode, uid);
        if mode == "mob" {
            request.deadline = Instant::now() + Duration::from_secs(3);
        }
        self.world.backend.exec(request).await
    }

    /// None where the machine has no such hold.
    async fn new(hold: Hold) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root has users and groups to give");
            return None;
        }
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let turn = TURN.lock().await;
        let world = World::with(|options| options.control_groups = !matches!(hold, Hold::User));
        let pod = world.ready("warm-a").await;
        let mut local = world.local("warm-a");
        match (hold, local["group"].as_object_mut()) {
            (Hold::Groups | Hold::Slow, None) => {
                println!("skipped: no control groups here");
                return None;
            }
            (Hold::Slow, Some(group)) => {
                // Nothing is left behind: an empty group of the others can simply be removed.
                for path in group.remove("also").unwrap_or_default().as_array().into_iter().flatten() {
                    leave(Path::new(path.as_str().unwrap()), group["path"].as_str().unwrap());
                }
                let path = world.backend.directory("warm", "warm-a").unwrap().join("local.json");
                std::fs::write(path, local.to_string()).unwrap();
            }
            _ => {}
        }
        let uid = world.backend.request_uid(&world.at, "warm-a").await;
        Some(Self { _turn: turn, world, pod, uid })
    }

    fn request(&self, mode: &str, uid: Option<u32>) -> ExecRequest {
        let mut request = self.world.request(&self.pod, mode);
        request.command.isolation.uid = uid;
        request
    }

    fn beats(&self) -> u64 {
        beats(&self.world)
    }

    /// The groups of requests that are there.
    fn request_groups(&self) -> Vec<PathBuf> {
        let group = self.world.local("warm-a")["group"].clone();
        let also = group["also"].as_array().cloned().unwrap_or_default();
        let paths = also.iter().chain([&group["path"]]).filter_map(Value::as_str);
        let entries = paths.flat_map(|path| std::fs::read_dir(Path::new(path).join("worker")).into_iter().flatten());
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    fn registered(&self) -> bool {
        self.world.folder.path().join("users").join(self.uid.unwrap().to_string()).exists()
    }
}

fn beats(world: &World) -> u64 {
    let path = world.backend.directory("warm", "warm-a").unwrap().join("volumes/runtime-data/beats");
    std::fs::metadata(path).map(|found| found.len()).unwrap_or_default()
}

/// Moves what is in one hierarchy's group to its parent and removes the group.
fn leave(path: &Path, primary: &str) {
    let processes = std::fs::read_to_string(Path::new(primary).join("worker/cgroup.procs")).unwrap();
    for process in processes.lines() {
        std::fs::write(path.parent().unwrap().join("cgroup.procs"), process).unwrap();
    }
    for entry in std::fs::read_dir(path).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        std::fs::remove_dir(entry.path()).unwrap();
    }
    std::fs::remove_dir(path).unwrap();
}

/// Everything that runs as this user, zombies apart.
fn of_user(uid: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        if status.contains(&format!("Uid:\t{uid}\t")) && !status.contains("State:\tZ") {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

/// No process of the user is left. One that leaves its group is still listed for as long as its end takes.
async fn gone(what: &str, uid: u32) {
    let end = Instant::now() + Duration::from_secs(5);
    while !of_user(uid).is_empty() {
        assert!(Instant::now() < end, "{what}: these are left: {:?}", of_user(uid));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whoever still ran would beat a thousand times in this time.
async fn assert_still(what: &str, beats: impl Fn() -> u64) {
    let before = beats();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(beats(), before, "{what}: it still runs");
}

#[tokio::test]
async fn a_mob_ends_with_its_request() {
    for hold in [Hold::Groups, Hold::Slow, Hold::User] {
        let Some(site) = Site::new(hold).await else { continue };
        // Without a freezer root's own mob can't be ended at once, only outrun; tests don't run as root.
        let users = if matches!(hold, Hold::Groups) { vec![site.uid, None] } else { vec![site.uid] };
        for (mode, uid) in
            ["mob", "mob-die", "mob-stray"].into_iter().flat_map(|mode| users.iter().map(move |uid| (mode, *uid)))
        {
            let what = format!("{hold:?}, {mode}, {uid:?}");
            let before = site.beats();
            let mut outcome = site.outcome(mode, uid).await;
            // A busy machine can take all of a short deadline before the first process of the mob runs, and the dead of the
            // one before can leave no room for it.
            for _ in 0..10 {
                if site.beats() > before {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
                outcome = site.outcome(mode, uid).await;
            }
            match (mode, outcome) {
                // Where the mob takes all the places for processes, its own parent can fail before the deadline.
                ("mob", outcome) => {
                    let error = outcome.unwrap_err();
                    assert!(matches!(error.code(), "timed-out" | "no-verdict" | "killed"), "{what}: {error}");
                }
                ("mob-die", outcome) => {
                    let error = outcome.unwrap_err();
                    assert_eq!(error.code(), "killed", "{what}: {error}");
                    assert!(error.to_string().contains("were killed"), "{what}: {error}");
                }
                (_, outcome) => {
                    let verdict = outcome.unwrap().verdict;
                    assert!(!verdict.clean && verdict.unclean[0].contains("were killed"), "{what}: {verdict:?}");
                }
            }
            assert!(site.beats() > before, "{what}: it ran");
            assert_still(&what, || site.beats()).await;
            gone(&what, site.uid.unwrap()).await;
            assert_eq!(site.request_groups(), Vec::<PathBuf>::new(), "{what}");
            assert!(site.world.run(&site.pod, "good").await.unwrap().verdict.clean, "{what}");
        }
        assert_eq!(site.world.backend.get_pod(&site.world.at, "warm-a").await.unwrap(), site.pod, "{hold:?}");
    }
}

#[tokio::test]
async fn a_mob_ends_with_its_pod() {
    for hold in [Hold::Groups, Hold::Slow, Hold::User] {
        let Some(site) = Site::new(hold).await else { continue };
        // The file is kept: its directory goes with the pod.
        let data = site.world.backend.directory("warm", "warm-a").unwrap().join("volumes/runtime-data");
        let (backend, request) = (site.world.backend.clone(), site.request("mob", site.uid));
        let task = tokio::spawn(async move { backend.exec(request).await });
        let end = Instant::now() + Duration::from_secs(30);
        while site.beats() < 1000 {
            assert!(Instant::now() < end, "{hold:?}: it never ran");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let file = std::fs::File::open(data.join("beats")).unwrap();
        let group = site.world.local("warm-a")["group"].clone();
        site.world
            .backend
            .delete_pod(&site.world.at, "warm-a", site.pod["metadata"]["uid"].as_str().unwrap())
            .await
            .unwrap();
        gone(&format!("{hold:?}"), site.uid.unwrap()).await;
        assert_still(&format!("{hold:?}"), || file.metadata().unwrap().len()).await;
        assert!(!site.registered(), "{hold:?}");
        let also = group["also"].as_array().cloned().unwrap_or_default();
        for path in also.iter().chain([&group["path"]]).filter_map(Value::as_str) {
            assert!(!Path::new(path).exists(), "{hold:?}: {path}");
        }
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.code(), "killed", "{hold:?}: {error}");
    }
}

#[tokio::test]
async fn a_mob_ends_with_the_init_step_that_left_it() {
    let Some(site) = Site::new(Hold::Groups).await else { return };
    let world = &site.world;
    let mut manifest = manifest("warm-b");
    manifest["spec"]["initContainers"][1]["command"] = json!([WORKER, "mob", "/workspace/repo"]);
    world.made(&manifest).await;
    let beats = world.backend.directory("warm", "warm-b").unwrap().join("volumes/workspace/repo/beats");
    assert!(std::fs::metadata(&beats).unwrap().len() > 0);
    assert_still("after the step", || std::fs::metadata(&beats).unwrap().len()).await;
}

#[tokio::test]
async fn what_doesnt_end_keeps_its_pods_user() {
    let Some(site) = Site::new(Hold::Groups).await else { return };
    let Some(ice) = Ice::new() else { return };
    let (uid, at) = (site.uid.unwrap(), &site.world.at);
    let pod_uid = site.pod["metadata"]["uid"].as_str().unwrap();
    let group = site.world.local("warm-a")["group"]["path"].as_str().unwrap().to_owned();
    let mut frozen = {
        use std::os::unix::process::CommandExt;
        std::process::Command::new("sleep").arg("60").uid(uid).gid(uid).spawn().unwrap()
    };
    std::fs::write(Path::new(&group).join("worker/cgroup.procs"), frozen.id().to_string()).unwrap();
    ice.freeze(frozen.id());
    for _ in 0..2 {
        let error = site.world.backend.delete_pod(at, "warm-a", pod_uid).await.unwrap_err();
        assert_eq!(error.code(), "timed-out", "{error}");
        assert!(error.to_string().contains("half removed") && error.to_string().contains("(sleep)"), "{error}");
        assert!(site.registered());
        assert_eq!(site.world.backend.request_uid(at, "warm-a").await, Some(uid));
    }
    drop(ice);
    assert_eq!(site.world.backend.list_pods(at).await.unwrap(), Vec::<Value>::new(), "the next look finishes it");
    assert!(frozen.try_wait().unwrap().is_some());
    assert!(!site.registered() && !Path::new(&group).exists());
}

/// A group of the test's own in which nothing dies. Only version 1 has that.
struct Ice(PathBuf);

impl Ice {
    fn new() -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/freezer/warmhold-pods-test-{}", std::process::id()));
        if std::fs::create_dir(&path).is_err() || !path.join("freezer.state").exists() {
            println!("skipped: no freezer of version 1 here");
            let _ = std::fs::remove_dir(&path);
            return None;
        }
        Some(Self(path))
    }

    fn freeze(&self, process: u32) {
        std::fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
        std::fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
        while !std::fs::read_to_string(self.0.join("freezer.state")).unwrap().starts_with("FROZEN") {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        let end = std::time::Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
