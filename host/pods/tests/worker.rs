//! The real worker in local pods: sources fetched from git, a shell test run, and the worker stopped or killed under it.
//!
//! The worker is another crate's program: `cargo build -p warmhold-worker` puts it where these tests look for it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::{WORKER, World, key, manifest};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::time::Instant;
use warmhold_pods::{Backend, ExecRequest};
use warmhold_protocol::{FileReason, Rule};

/// A pod of the real worker.
struct Real {
    world: World,
    pod: Value,
    cut: String,
    generation: u64,
}

impl Real {
    async fn new() -> Option<Self> {
        let worker = Path::new(WORKER).with_file_name("warmhold-worker");
        if !worker.exists() {
            println!("skipped: {} isn't built (cargo build -p warmhold-worker)", worker.display());
            return None;
        }
        let world = World::with(|options| options.worker = worker);
        open(world.folder.path());
        let source = world.folder.path().join("source");
        let cut = repository(&source);
        let mut manifest = manifest("warm-a");
        manifest["spec"]["initContainers"][0]["command"] = json!([
            "warmhold-worker",
            "fetch",
            "--source",
            "/source-mirror",
            "--cut",
            cut,
            "--into",
            "/workspace/repo"
        ]);
        manifest["spec"]["initContainers"][0]["volumeMounts"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "source-mirror", "mountPath": "/source-mirror", "readOnly": true }));
        manifest["spec"]["volumes"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "source-mirror", "hostPath": { "path": source, "type": "Directory" } }));
        let env = manifest["spec"]["containers"][0]["env"].as_array_mut().unwrap();
        env.push(json!({ "name": "WARM_CUT", "value": cut }));
        env.push(json!({ "name": "WARM_KEY", "value": serde_json::to_string(&key()).unwrap() }));
        let pod = world.made(&manifest).await;
        Some(Self { world, pod, cut, generation: 0 })
    }

    async fn request(&mut self, files: &[&str]) -> ExecRequest {
        self.generation += 1;
        let mut request = self.world.request(&self.pod, "");
        request.argv = vec!["warmhold-worker".to_owned(), "run".to_owned()];
        let command = &mut request.command;
        command.generation = self.generation;
        command.cut_sha.clone_from(&self.cut);
        command.files = files.iter().map(|file| (*file).to_owned()).collect();
        command.rules = vec![
            Rule { pattern: "*.sh".to_owned(), run: vec!["sh".to_owned(), "{file}".to_owned()] },
            Rule { pattern: "*.py".to_owned(), run: vec!["python3".to_owned(), "{file}".to_owned()] },
        ];
        command.isolation.uid = self.world.backend.request_uid(&self.world.at, "warm-a").await;
        // The worker wants a moment that it can look at.
        command.deadline_at = now() + 60_000;
        request
    }

    /// Everything of the pod but its container.
    fn running(&self) -> Vec<String> {
        let directory = self.world.backend.directory("warm", "warm-a").unwrap().display().to_string();
        let uid = self.world.local("warm-a")["requestUid"].as_u64();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| {
                String::from_utf8_lossy(&std::fs::read(entry.path().join(name)).unwrap_or_default()).into_owned()
            };
            let status = read("status");
            let of_user = uid.is_some_and(|uid| status.contains(&format!("Uid:\t{uid}\t")));
            let zombie = status.contains("State:\tZ");
            let command = read("cmdline").replace('\0', " ");
            if !zombie && (of_user || read("environ").contains(&directory)) && !command.starts_with("sleep infinity") {
                found.push(command);
            }
        }
        found
    }
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// The pod's user has to cross the folders above it.
fn open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).unwrap();
}

fn repository(at: &PathBuf) -> String {
    std::fs::create_dir_all(at.join("tests")).unwrap();
    std::fs::write(at.join("tests/good.sh"), "echo here: $(basename \"$PWD\")\nid -u\n").unwrap();
    std::fs::write(at.join("tests/bad.sh"), "echo no >&2\nexit 3\n").unwrap();
    std::fs::write(at.join("tests/slow.sh"), "echo begun\nsh -c 'sleep 600; :' &\nsetsid sleep 600 &\nsleep 600\n")
        .unwrap();
    std::fs::write(at.join("tests/hungry.py"), "x = bytearray(700 << 20)\nprint(len(x))\n").unwrap();
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"])
            .args(arguments)
            .current_dir(at)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "tests"]);
    git(&["rev-parse", "HEAD"])
}

#[tokio::test]
async fn a_shell_test_runs_again_and_again() {
    let Some(mut real) = Real::new().await else { return };
    for _ in 0..3 {
        let request = real.request(&["tests/good.sh", "tests/bad.sh"]).await;
        let uid = request.command.isolation.uid;
        let reply = real.world.backend.exec(request).await.unwrap();
        assert_eq!(reply.verdict.refused, None);
        assert!(reply.verdict.clean, "{:?}", reply.verdict.unclean);
        let said = std::fs::read_to_string(&reply.files[0].stdout.path).unwrap();
        assert!(said.starts_with("here: "), "{said}");
        if let Some(uid) = uid {
            assert!(said.ends_with(&format!("\n{uid}\n")), "{said}");
        }
        assert_eq!(reply.verdict.files[0].exit, Some(0));
        assert_eq!(reply.verdict.files[1].exit, Some(3));
        assert_eq!(std::fs::read_to_string(&reply.files[1].stderr.path).unwrap(), "no\n");
        assert_eq!(real.running(), Vec::<String>::new());
    }
    let mut stale = real.request(&["tests/good.sh"]).await;
    stale.command.generation = 1;
    let reply = real.world.backend.exec(stale).await.unwrap();
    assert_eq!(reply.verdict.refused.unwrap().code, "stale-generation");
    let pod = real.world.backend.get_pod(&real.world.at, "warm-a").await.unwrap();
    assert_eq!(pod, real.pod);
}

#[tokio::test]
async fn the_workers_own_deadline_leaves_a_verdict() {
    let Some(mut real) = Real::new().await else { return };
    let mut request = real.request(&["tests/slow.sh", "tests/good.sh"]).await;
    request.command.budget_ms = 1500;
    let reply = real.world.backend.exec(request).await.unwrap();
    assert_eq!(reply.verdict.files[0].reason, Some(FileReason::Timeout));
    assert!(reply.verdict.clean, "{:?}", reply.verdict.unclean);
    assert_eq!(real.running(), Vec::<String>::new());
}

#[tokio::test]
async fn a_test_that_wants_too_much_memory_is_the_only_victim() {
    let Some(mut real) = Real::new().await else { return };
    let request = real.request(&["tests/hungry.py", "tests/good.sh"]).await;
    let reply = real.world.backend.exec(request).await.unwrap();
    let grouped = real.world.local("warm-a")["group"].is_object();
    let hungry = &reply.verdict.files[0];
    if grouped {
        assert_eq!(hungry.reason, Some(FileReason::OutOfMemory), "{hungry:?}");
        assert_eq!(reply.verdict.oom_kills, 1);
    } else {
        assert_eq!(hungry.exit, Some(1), "python says MemoryError: {hungry:?}");
    }
    assert_eq!(reply.verdict.files[1].exit, Some(0));
    assert!(reply.verdict.clean, "{:?}", reply.verdict.unclean);
    assert_eq!(real.world.backend.get_pod(&real.world.at, "warm-a").await.unwrap(), real.pod);
}

#[tokio::test]
async fn a_worker_that_is_stopped_or_killed_takes_its_tests_along() {
    for signal in [rustix::process::Signal::STOP, rustix::process::Signal::KILL] {
        let Some(mut real) = Real::new().await else { return };
        let mut request = real.request(&["tests/slow.sh"]).await;
        request.deadline = Instant::now() + Duration::from_secs(8);
        let backend = real.world.backend.clone();
        let task = tokio::spawn(async move { backend.exec(request).await });
        // The test's own sleeps are the last to come.
        let end = Instant::now() + Duration::from_secs(7);
        while real.running().iter().filter(|command| command.starts_with("sleep 600")).count() < 3 {
            assert!(Instant::now() < end, "{:?}", real.running());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let worker = worker(&real);
        rustix::process::kill_process(rustix::process::Pid::from_raw(worker).unwrap(), signal).unwrap();
        let error = task.await.unwrap().unwrap_err();
        let want = if signal == rustix::process::Signal::STOP { "timed-out" } else { "killed" };
        assert_eq!(error.code(), want, "{error}");
        assert_eq!(real.running(), Vec::<String>::new(), "{error}");
    }
}

/// The worker is the one that leads a session and whose first argument is `run`.
fn worker(real: &Real) -> i32 {
    let directory = real.world.backend.directory("warm", "warm-a").unwrap().display().to_string();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().into_string().unwrap().parse::<i32>() else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let session = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(3)?.parse::<i32>().ok());
        if command.ends_with("warmhold-worker run ")
            && session == Some(pid)
            && String::from_utf8_lossy(&read("environ")).contains(&directory)
        {
            return pid;
        }
    }
    panic!("no worker: {:?}", real.running())
}
