//! Runs a replay policy natively against a host that is a script: no cluster, no daemon.
//!
//! Every call is written down in [`FakeHost::journal`], and answered by the next answer of its [`Script`]; where there is
//! none, as if all were well. A lease that is dropped without a verdict is written down too: the real host quarantines
//! its worker.

use super::{
    Candidate, ClusterError, ControlError, Difference, Host, Lease, PodSpec, ReplayInput, Reply, StreamDigest, Target,
    TransportError, WorkerKey,
};
use crate::{Environment, Level, Recorder};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// The UID of the pod that a [`FakeHost`] shows.
pub const POD_UID: &str = "21ffe288-94a8-4575-9268-14b08f4e0b4f";

/// Answers in the order in which they are given.
#[derive(Debug)]
pub struct Script<T>(RefCell<VecDeque<T>>);

impl<T> Default for Script<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T> Script<T> {
    /// The answer to the next call that has none yet.
    pub fn push(&self, answer: T) {
        self.0.borrow_mut().push_back(answer);
    }

    fn next(&self) -> Option<T> {
        self.0.borrow_mut().pop_front()
    }
}

/// A host that is a script.
#[derive(Debug, Default)]
pub struct FakeHost {
    /// Settings, and what was logged.
    pub environment: Recorder,
    /// What the next calls are answered.
    pub script: Rc<Scripts>,
    clock: Cell<u64>,
    /// How much later it is after each look at the clock.
    pub tick: Cell<u64>,
}

/// One script for each call.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "each is the call that it answers")]
pub struct Scripts {
    pub acquire: Script<Result<Leased, ControlError>>,
    pub worker_rows: Script<Result<Value, ControlError>>,
    pub register: Script<Result<Value, ControlError>>,
    pub release: Script<Result<(), ControlError>>,
    pub sanitize: Script<Result<(), ControlError>>,
    pub quarantine: Script<Result<(), ControlError>>,
    pub context_known: Script<Result<(), ClusterError>>,
    pub get_pod: Script<Result<Value, ClusterError>>,
    pub list_pods: Script<Result<Vec<Value>, ClusterError>>,
    pub get_node: Script<Result<Value, ClusterError>>,
    pub create_pod: Script<Result<Value, ClusterError>>,
    pub wait_ready: Script<Result<(), ClusterError>>,
    pub annotate: Script<Result<(), ClusterError>>,
    pub exec: Script<Result<Reply, TransportError>>,
    pub render: Script<Result<Value, Vec<String>>>,
    pub verify: Script<Result<Vec<Difference>, Vec<Difference>>>,
    journal: RefCell<Vec<String>>,
}

impl Scripts {
    fn note(&self, line: String) {
        self.journal.borrow_mut().push(line);
    }
}

/// What a lease says of itself.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "see the functions of Lease")]
pub struct Leased {
    pub id: String,
    pub worker: String,
    pub generation: u64,
    pub run_id: String,
    pub attempt_id: String,
    pub pod_uid: Option<String>,
    pub key: WorkerKey,
}

/// A lease of a [`FakeHost`].
#[derive(Debug)]
pub struct FakeLease {
    /// What it says of itself.
    pub facts: Leased,
    script: Rc<Scripts>,
    settled: Cell<bool>,
}

impl Drop for FakeLease {
    fn drop(&mut self) {
        if !self.settled.get() {
            self.script.note(format!("DROPPED {}", self.facts.worker));
        }
    }
}

impl FakeLease {
    /// Takes the lease as the host does with one that was handed back: its end is no drop.
    pub fn hand_back(&self) {
        self.settled.set(true);
    }

    fn settle(&self, what: String, answer: Option<Result<(), ControlError>>) -> Result<(), ControlError> {
        self.script.note(what);
        let answer = answer.unwrap_or(Ok(()));
        self.settled.set(self.settled.get() || answer.is_ok());
        answer
    }
}

impl Lease for FakeLease {
    fn id(&self) -> String {
        self.facts.id.clone()
    }

    fn worker(&self) -> String {
        self.facts.worker.clone()
    }

    fn generation(&self) -> u64 {
        self.facts.generation
    }

    fn run_id(&self) -> String {
        self.facts.run_id.clone()
    }

    fn attempt_id(&self) -> String {
        self.facts.attempt_id.clone()
    }

    fn pod_uid(&self) -> Option<String> {
        self.facts.pod_uid.clone()
    }

    fn key(&self) -> WorkerKey {
        self.facts.key.clone()
    }

    fn renew(&self, ttl_ms: u64) -> Result<(), ControlError> {
        self.script.note(format!("renew {ttl_ms}"));
        Ok(())
    }

    fn release(&self) -> Result<(), ControlError> {
        self.settle("release".to_owned(), self.script.release.next())
    }

    fn sanitize(&self) -> Result<(), ControlError> {
        self.settle("sanitize".to_owned(), self.script.sanitize.next())
    }

    fn quarantine(&self, reason: &str) -> Result<(), ControlError> {
        self.settle(format!("quarantine {reason}"), self.script.quarantine.next())
    }
}

impl FakeHost {
    /// At this time, with these settings.
    #[must_use]
    pub fn new(now: u64, settings: &str) -> Self {
        Self { environment: Recorder::with_settings(settings), clock: Cell::new(now), ..Self::default() }
    }

    /// Every call so far, in order.
    #[must_use]
    pub fn journal(&self) -> Vec<String> {
        self.script.journal.borrow().clone()
    }

    /// A lease of this worker, as [`Host::acquire`] gives one.
    #[must_use]
    pub fn lease(&self, facts: Leased) -> FakeLease {
        FakeLease { facts, script: Rc::clone(&self.script), settled: Cell::new(false) }
    }
}

impl Environment for FakeHost {
    fn settings(&self) -> String {
        self.environment.settings()
    }

    fn log(&self, level: Level, message: &str, fields: &[(&str, &str)]) {
        self.environment.log(level, message, fields);
    }
}

impl Host for FakeHost {
    type Lease = FakeLease;

    fn now(&self) -> u64 {
        let now = self.clock.get();
        self.clock.set(now + self.tick.get());
        now
    }

    fn acquire(
        &self,
        machine: &str,
        key: &WorkerKey,
        run_id: &str,
        attempt_id: &str,
        ttl_ms: u64,
    ) -> Result<FakeLease, ControlError> {
        self.script.note(format!("acquire {machine} {ttl_ms}"));
        let facts = self.script.acquire.next().unwrap_or_else(|| {
            Ok(Leased {
                id: "0a1b2c3d-0000-4000-8000-0123456789ab".to_owned(),
                worker: "w1".to_owned(),
                generation: 3,
                run_id: run_id.to_owned(),
                attempt_id: attempt_id.to_owned(),
                pod_uid: Some(POD_UID.to_owned()),
                key: key.clone(),
            })
        })?;
        Ok(self.lease(facts))
    }

    fn worker_rows(&self, machine: &str, worker_id: &str) -> Result<Value, ControlError> {
        self.script.note(format!("worker-rows {machine} {worker_id}"));
        self.script.worker_rows.next().unwrap_or_else(|| Ok(json!([])))
    }

    fn register(
        &self,
        machine: &str,
        worker_id: &str,
        pod_uid: &str,
        key: &WorkerKey,
        ttl_ms: u64,
    ) -> Result<Value, ControlError> {
        self.script.note(format!("register {machine} {worker_id} {pod_uid} {ttl_ms}"));
        self.script
            .register
            .next()
            .unwrap_or_else(|| Ok(idle_row(machine, worker_id, pod_uid, key, ttl_ms, self.clock.get())))
    }

    fn context_known(&self, context: &str) -> Result<(), ClusterError> {
        self.script.note(format!("context-known {context}"));
        self.script.context_known.next().unwrap_or(Ok(()))
    }

    fn get_pod(&self, _: &Target, name: &str) -> Result<Value, ClusterError> {
        self.script.note(format!("get-pod {name}"));
        self.script.get_pod.next().unwrap_or_else(|| Ok(ready_pod(name, POD_UID)))
    }

    fn list_pods(&self, at: &Target) -> Result<Vec<Value>, ClusterError> {
        self.script.note(format!("list-pods {}", at.namespace));
        self.script.list_pods.next().unwrap_or_else(|| Ok(Vec::new()))
    }

    fn get_node(&self, _: &str, name: &str) -> Result<Value, ClusterError> {
        self.script.note(format!("get-node {name}"));
        self.script
            .get_node
            .next()
            .unwrap_or_else(|| Ok(json!({"metadata": {"name": name, "labels": {"kubernetes.io/arch": "amd64"}}})))
    }

    fn create_pod(&self, _: &Target, manifest: &Value) -> Result<Value, ClusterError> {
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        self.script.note(format!("create-pod {name}"));
        self.script.create_pod.next().unwrap_or_else(|| Ok(ready_pod(name, POD_UID)))
    }

    fn wait_ready(&self, _: &Target, name: &str, seconds: u32) -> Result<(), ClusterError> {
        self.script.note(format!("wait-ready {name} {seconds}"));
        self.script.wait_ready.next().unwrap_or(Ok(()))
    }

    fn annotate(&self, _: &FakeLease, _: &Target, pod: &str, annotations: &Value) -> Result<(), ClusterError> {
        let state = annotations.get("warmhold.dev/state").and_then(Value::as_str).unwrap_or_default();
        self.script.note(format!("annotate {pod} {state}"));
        self.script.annotate.next().unwrap_or(Ok(()))
    }

    fn exec(
        &self,
        _: &FakeLease,
        _: &Target,
        pod: &str,
        command: &Value,
        deadline: u64,
    ) -> Result<Reply, TransportError> {
        self.script.note(format!("exec {pod} {deadline} {command}"));
        self.script.exec.next().unwrap_or_else(|| Ok(reply(&passing_verdict(command))))
    }

    fn render(&self, spec: &PodSpec) -> Result<Value, Vec<String>> {
        self.script.note(format!("render {}", spec.name));
        self.script.render.next().unwrap_or_else(|| Ok(json!({"metadata": {"name": spec.name}})))
    }

    fn verify(&self, spec: &PodSpec, _: &Value) -> Result<Vec<Difference>, Vec<Difference>> {
        self.script.note(format!("verify {}", spec.name));
        self.script.verify.next().unwrap_or_else(|| Ok(Vec::new()))
    }
}

/// A pod that runs and is Ready.
#[must_use]
pub fn ready_pod(name: &str, uid: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": uid},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// A registered worker as the control plane shows it.
#[must_use]
pub fn idle_row(
    machine: &str,
    worker_id: &str,
    pod_uid: &str,
    key: &WorkerKey,
    ttl_ms: u64,
    observed_at: u64,
) -> Value {
    json!({
        "id": format!("pod-worker-lease:{worker_id}"), "kind": "pod-worker-lease", "machine": machine,
        "name": worker_id, "observedAt": observed_at, "ttlMs": ttl_ms,
        "attrs": {
            "key": {
                "context": key.context, "imageDigest": key.image_digest,
                "lockHash": key.lock_hash, "architecture": key.architecture,
            },
            "state": "idle", "generation": 0, "podUid": pod_uid, "idleTtlMs": ttl_ms,
        },
    })
}

/// What a worker answers to a command when every file passes.
#[must_use]
pub fn passing_verdict(command: &Value) -> Value {
    let field = |name: &str| command.get(name).cloned().unwrap_or_default();
    let files = field("files");
    let digest = json!({"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"});
    let results: Value = files
        .as_array()
        .into_iter()
        .flatten()
        .map(|file| json!({"file": file, "exit": 0, "durationMs": 12, "stdout": digest, "stderr": digest, "artifacts": []}))
        .collect();
    json!({
        "protocol": 1, "workerId": field("workerId"), "key": field("key"), "cutSha": field("cutSha"),
        "files": results, "isolation": {"level": "full", "why": []}, "clean": true, "oomKills": 0,
    })
}

/// A reply with this verdict and no output.
#[must_use]
pub fn reply(verdict: &Value) -> Reply {
    let none = || StreamDigest {
        bytes: 0,
        sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
    };
    Reply { verdict: verdict.to_string(), out: none(), err: none(), artifacts: Vec::new() }
}

/// The worker with this id, as the configuration knows it.
#[must_use]
pub fn candidate(worker_id: &str) -> Candidate {
    Candidate {
        host: "m1".to_owned(),
        tier: "lite".to_owned(),
        spec: PodSpec {
            name: format!("warm-m1-lite-{worker_id}"),
            namespace: "warm".to_owned(),
            context: "minik8s".to_owned(),
            worker_id: worker_id.to_owned(),
            image: "registry.test/worker:1".to_owned(),
            node: Some("node-a".to_owned()),
            cut_sha: "c".repeat(40),
            key: WorkerKey {
                context: "minik8s".to_owned(),
                image_digest: format!("sha256:{}", "a".repeat(64)),
                lock_hash: "b".repeat(64),
                architecture: "amd64".to_owned(),
            },
            memory_limit: Some("2Gi".to_owned()),
            host_probe_url: String::new(),
            prod_probe_url: String::new(),
            source_mirror: None,
            source: "https://git.test/project.git".to_owned(),
            install: Vec::new(),
        },
    }
}

/// A request for two files at the cut of [`candidate`], which has a minute left at `now`.
#[must_use]
pub fn input(now: u64) -> ReplayInput {
    ReplayInput {
        protocol: 1,
        run_id: "run-1".to_owned(),
        attempt_id: "1".to_owned(),
        cut_sha: "c".repeat(40),
        baseline_sha: None,
        env_profile: "gate-v1".to_owned(),
        deadline_at: now + 60_000,
        files: vec!["tests/a.sh".to_owned(), "tests/b.py".to_owned()],
    }
}
