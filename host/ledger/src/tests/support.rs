//! What the tests share.

use crate::tests::policy::Reference;
use crate::*;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A primary that does as it is told.
pub(crate) struct Told {
    pub(crate) view: Mutex<Option<PrimaryView>>,
    /// How often it still says that nothing changed; below zero: always.
    pub(crate) steady: Mutex<i64>,
    pub(crate) reads: AtomicU64,
}

impl Primary for Told {
    fn read(&self) -> Option<PrimaryView> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.view.lock().clone()
    }

    fn unchanged(&self) -> bool {
        let mut steady = self.steady.lock();
        *steady -= i64::from(*steady > 0);
        *steady != 0
    }
}

pub(crate) fn primary(holder: &str, generation: u64) -> PrimaryView {
    PrimaryView {
        holder: Some(holder.to_owned()),
        generation: Some(generation),
        held_here: holder == "m1",
        known: true,
    }
}

/// A folder of its own, and a ledger in it.
pub(crate) struct Case {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) primary: Arc<Told>,
    pub(crate) policy: Arc<Reference>,
    pub(crate) now: Arc<AtomicU64>,
}

impl Case {
    pub(crate) fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    pub(crate) fn at(folder: tempfile::TempDir) -> Self {
        let told = Told { view: Mutex::new(Some(primary("m1", 7))), steady: Mutex::new(-1), reads: AtomicU64::new(0) };
        let now = Arc::new(AtomicU64::new(1_000_000));
        Self { folder, primary: Arc::new(told), policy: Arc::new(Reference::default()), now }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("control/ledger.sqlite3")
    }

    pub(crate) fn options(&self) -> Options {
        let now = Arc::clone(&self.now);
        let mut options = Options::new(self.policy.clone(), self.primary.clone());
        options.clock = Arc::new(move || now.load(Ordering::SeqCst));
        options
    }

    pub(crate) fn open(&self) -> Ledger {
        Ledger::open(&self.path(), self.options()).unwrap()
    }

    pub(crate) fn open_with(&self, decider: Arc<dyn Decider>) -> Ledger {
        Ledger::open(&self.path(), Options { decider, ..self.options() }).unwrap()
    }

    pub(crate) fn sleep(&self, ms: u64) {
        self.now.fetch_add(ms, Ordering::SeqCst);
    }
}

pub(crate) fn member() -> Caller {
    Caller { owner: "owner-of-member".to_owned(), scope: Scope::Member, machine: None }
}

pub(crate) fn machine(name: &str) -> Caller {
    Caller { owner: format!("owner-of-{name}"), scope: Scope::Machine, machine: Some(name.to_owned()) }
}

pub(crate) fn key() -> WorkerKey {
    WorkerKey {
        context: "local".to_owned(),
        image_digest: "sha256:a".to_owned(),
        lock_hash: "b".to_owned(),
        architecture: "amd64".to_owned(),
    }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub(crate) fn plain(operation: Operation) -> Submission {
    Submission { operation, caller: member(), guard: Guard::default(), deadline: soon() }
}

pub(crate) fn worker(operation: Operation, caller: Caller) -> Submission {
    Submission { operation, caller, guard: Guard { worker_route: true, seen_generation: Some(7) }, deadline: soon() }
}

pub(crate) fn instance(id: &str) -> Operation {
    Operation::Register(RowDraft {
        id: id.to_owned(),
        kind: Kind::Instance,
        machine: "local".to_owned(),
        name: "svc".to_owned(),
        endpoint: Some("http://127.0.0.1:31415".to_owned()),
        attrs: r#"{"load":1}"#.into(),
        ttl_ms: 30_000.0,
    })
}

pub(crate) fn beat(id: &str, attrs: &str) -> Operation {
    Operation::Heartbeat { id: id.to_owned(), attrs: Some(attrs.into()) }
}

pub(crate) fn worker_draft(id: &str) -> Operation {
    let key_json = serde_json::json!({"context": "local", "imageDigest": "sha256:a", "lockHash": "b", "architecture": "amd64", "extra": 1});
    Operation::RegisterWorker(WorkerDraft {
        worker_id: id.to_owned(),
        machine: "m1".to_owned(),
        key: key(),
        key_json: json::to_text(&key_json).into(),
        pod_uid: Some(format!("uid-{id}")),
        ttl_ms: 60_000,
    })
}

pub(crate) fn acquire(run: &str) -> Operation {
    Operation::AcquireWorker(WorkerRequest {
        machine: None,
        key: key(),
        run_id: run.to_owned(),
        attempt_id: "1".to_owned(),
        ttl_ms: 5_000,
    })
}

pub(crate) fn transition(kind: TransitionKind, row: &Row) -> Operation {
    let facts = WorkerFacts::of(row).unwrap();
    Operation::Transition(Transition {
        kind,
        worker_id: row.name.clone(),
        lease_id: facts.lease_id.unwrap_or_default(),
        generation: facts.generation,
        ttl_ms: None,
        reason: None,
    })
}

pub(crate) fn port(machine: &str) -> Operation {
    Operation::LeasePort(PortRequest {
        machine: machine.to_owned(),
        purpose: "test-svc".to_owned(),
        ttl_ms: 30_000.0,
        excluded: vec![],
        first: 31_450,
        last: 31_499,
    })
}

impl Ledger {
    pub(crate) async fn done(&self, submission: Submission) -> Arc<Row> {
        self.apply(submission).await.unwrap().row.unwrap()
    }

    pub(crate) async fn refusal(&self, submission: Submission) -> &'static str {
        self.apply(submission).await.unwrap_err().code()
    }
}

/// All bytes of a ledger's files but the shared memory, which holds nothing that lasts.
pub(crate) fn bytes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_str().unwrap().ends_with("-shm"))
        .map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}
