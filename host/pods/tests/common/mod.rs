//! A pods root that leaves nothing behind, and what the tests put into it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::expect_used,
    missing_docs,
    unreachable_pub
)]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use warmhold_pods::local::{LocalBackend, Options};
use warmhold_pods::{Backend, ExecError, ExecReply, ExecRequest, Limits, Target};
use warmhold_protocol::{Command, ENV_PROFILE, Isolation, PROTOCOL, Probes, WorkerKey};

pub const WORKER: &str = env!("CARGO_BIN_EXE_warmhold-pods-fixture");

pub struct World {
    pub folder: TempDir,
    pub backend: LocalBackend,
    pub at: Target,
}

pub fn options(folder: &Path) -> Options {
    let mut options = Options::new(folder.join("pods"), "node-a".to_owned(), WORKER.into());
    // Far from a real daemon's and from other tests': what belongs to a user is killed with its pod.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    options.first_user = 300_000 + std::process::id() % 1000 * 1000 + number * 10;
    options.users = folder.join("users");
    options
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::Builder::new().prefix("warmhold-pods-").tempdir().unwrap();
        let mut options = options(folder.path());
        change(&mut options);
        let backend = LocalBackend::open(options).unwrap();
        Self { folder, backend, at: Target { context: "local".to_owned(), namespace: "warm".to_owned() } }
    }

    pub fn pod_file(&self, name: &str) -> PathBuf {
        self.backend.directory("warm", name).unwrap().join("pod.json")
    }

    pub fn local(&self, name: &str) -> Value {
        let path = self.backend.directory("warm", name).unwrap().join("local.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let path = self.pod_file(name);
        let mut pod: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut pod);
        std::fs::write(path, pod.to_string()).unwrap();
    }

    /// A pod that is ready.
    pub async fn ready(&self, name: &str) -> Value {
        self.made(&manifest(name)).await
    }

    pub async fn made(&self, manifest: &Value) -> Value {
        let name = manifest["metadata"]["name"].as_str().unwrap();
        self.backend.create_pod(&self.at, manifest).await.unwrap();
        self.backend.wait_ready(&self.at, name, Duration::from_secs(60)).await.unwrap();
        self.backend.get_pod(&self.at, name).await.unwrap()
    }

    pub fn request(&self, pod: &Value, mode: &str) -> ExecRequest {
        let sink = self.folder.path().join(format!("sink-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&sink).unwrap();
        ExecRequest {
            target: self.at.clone(),
            pod: pod["metadata"]["name"].as_str().unwrap().to_owned(),
            container: "worker".to_owned(),
            argv: vec!["warmhold-worker".to_owned(), "run".to_owned(), mode.to_owned()],
            command: command(pod["metadata"]["uid"].as_str().unwrap()),
            deadline: Instant::now() + Duration::from_secs(60),
            sink,
            limits: Limits::default(),
            progress: None,
        }
    }

    pub async fn run(&self, pod: &Value, mode: &str) -> Result<ExecReply, ExecError> {
        self.backend.exec(self.request(pod, mode)).await
    }

    pub fn shared(&self) -> Arc<LocalBackend> {
        Arc::new(self.backend.clone())
    }

    /// Processes of the fixture whose environment names this root: strays of a request.
    pub fn strays(&self) -> Vec<i32> {
        processes_naming(self.folder.path(), &["child", "run"])
    }
}

/// Processes (no zombies) whose environment names the folder and whose first argument is one of these.
pub fn processes_naming(folder: &Path, first: &[&str]) -> Vec<i32> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().into_string().unwrap().parse::<i32>() else { continue };
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let second = cmdline.split(|byte| *byte == 0).nth(1).map(|a| String::from_utf8_lossy(a).into_owned());
        if String::from_utf8_lossy(&environ).contains(&folder)
            && second.is_some_and(|second| first.contains(&second.as_str()))
        {
            found.push(pid);
        }
    }
    found
}

impl Drop for World {
    fn drop(&mut self) {
        // Ends what a failed test left: a runtime of its own, since the test's may be going away.
        let (backend, at) = (self.backend.clone(), self.at.clone());
        let clean = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let at_fault = backend.list_pods(&at).await.unwrap_or_default();
                for pod in at_fault {
                    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    let directory = backend.directory("warm", &name).unwrap();
                    let local = std::fs::read(directory.join("local.json")).unwrap_or_default();
                    let local: Value = serde_json::from_slice(&local).unwrap_or_default();
                    let uid = local["podUid"].as_str().unwrap_or_default().to_owned();
                    // Whatever a test wrote into it.
                    let _ =
                        std::fs::write(directory.join("pod.json"), json!({ "metadata": { "uid": uid } }).to_string());
                    backend.delete_pod(&at, &name, &uid).await.unwrap();
                }
            });
        });
        let outcome = clean.join();
        if !std::thread::panicking() {
            outcome.unwrap();
        }
    }
}

pub fn key() -> WorkerKey {
    WorkerKey {
        context: "local".to_owned(),
        image_digest: "sha256:aa".to_owned(),
        lock_hash: "bb".to_owned(),
        architecture: "amd64".to_owned(),
    }
}

pub fn command(pod_uid: &str) -> Command {
    Command {
        protocol: PROTOCOL,
        lease_id: "lease-1".to_owned(),
        generation: 3,
        nonce: uuid::Uuid::new_v4().to_string(),
        pod_uid: pod_uid.to_owned(),
        worker_id: "w-1".to_owned(),
        key: key(),
        run_id: "run".to_owned(),
        attempt_id: "1".to_owned(),
        cut_sha: "0".repeat(40),
        baseline_sha: None,
        env_profile: ENV_PROFILE.to_owned(),
        requested_at: 0,
        deadline_at: u64::MAX,
        budget_ms: 60_000,
        files: vec!["a.sh".to_owned(), "dir/b.py".to_owned()],
        rules: Vec::new(),
        env: std::collections::BTreeMap::new(),
        stream_limit: 64 * 1024 * 1024,
        probes: Probes::default(),
        isolation: Isolation::default(),
    }
}

/// A pod in the shape of a worker's.
pub fn manifest(name: &str) -> Value {
    let init = |name: &str, command: Value| {
        json!({
            "name": name, "image": "registry.test/worker:1", "imagePullPolicy": "IfNotPresent",
            "command": command,
            "volumeMounts": [{ "name": "workspace", "mountPath": "/workspace" }],
        })
    };
    let mut install = init("install", json!(["true"]));
    install["workingDir"] = json!("/workspace/repo");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "warm",
            "labels": { "app.kubernetes.io/managed-by": "warmhold", "warmhold.dev/worker": "w-1" },
            "annotations": { "warmhold.dev/worker-id": "w-1" },
        },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Always",
            "initContainers": [
                init("source", json!(["sh", "-c", "mkdir -p \"$0\" && echo source > \"$0/a\"", "/workspace/repo"])),
                install,
            ],
            "containers": [{
                "name": "worker", "image": "registry.test/worker:1", "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "infinity"],
                "resources": { "limits": { "memory": "256Mi" }, "requests": { "memory": "64Mi" } },
                "env": [
                    { "name": "WARM_WORKER_ID", "value": "w-1" },
                    { "name": "WARM_REPO", "value": "/workspace/repo" },
                    { "name": "WARM_DATA", "value": "/workspace/data" },
                    { "name": "OTHER", "value": "/workspace/database" },
                ],
                "volumeMounts": [
                    { "name": "workspace", "mountPath": "/workspace/repo", "subPath": "repo" },
                    { "name": "runtime-data", "mountPath": "/workspace/data" },
                ],
            }],
            "volumes": [
                { "name": "workspace", "emptyDir": {} },
                { "name": "runtime-data", "emptyDir": {} },
            ],
        },
    })
}
