//! When the disk fails.

use super::gate::{Gate, Part, asked, together};
use super::support::*;
use crate::ledger::open_store;
use crate::store::faults::Faults;
use crate::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn faulty(case: &Case) -> (Ledger, Arc<Gate>, Faults) {
    let gate = Arc::new(Gate::default());
    let options = Options { decider: gate.clone(), group_time: Duration::from_secs(60), ..case.options() };
    let store = open_store(&case.path(), options.tombstones).unwrap();
    let faults = store.faults.clone();
    (Ledger::start(store, &case.path(), options).unwrap(), gate, faults)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_failed_leaves_everybody_uncertain_and_nothing_wrong_in_memory() {
    for durable in [false, true] {
        let case = Case::new();
        let (ledger, gate, faults) = faulty(&case);
        ledger.done(worker(worker_draft("w1"), machine("m1"))).await;
        let whole = ledger.stats().read_whole;
        if durable { &faults.after } else { &faults.before }.store(1, Ordering::SeqCst);
        let rest = vec![
            asked(plain(instance("i"))),
            // Refused only because of the acquire before it: no more certain than that one.
            asked(worker(acquire("b"), member())),
            Part::Record("r", Expect::Absent),
        ];
        let codes = together(&ledger, &gate, worker(acquire("a"), member()), rest).await;
        assert_eq!(codes, ["uncertain"; 4]);
        assert_eq!((ledger.stats().uncertain, ledger.stats().failing), (4, true));
        // Read anew: memory is what the file says, whichever it is.
        let row = ledger.row(&worker_row_id("w1")).unwrap().unwrap();
        assert_eq!(WorkerFacts::of(&row).unwrap().generation, u64::from(durable));
        assert_eq!(ledger.row("i").unwrap().is_some(), durable);
        let next = ledger.apply(worker(acquire("c"), member())).await;
        assert_eq!(next.is_err(), durable);
        assert_eq!(ledger.stats().read_whole, whole + 1);
        ledger.put_record("k", "r", Expect::Any, serde_json::json!(2)).await.unwrap();
        assert!(!ledger.stats().failing, "and then it works again");
        assert!(ledger.free_space().unwrap() > 0);
        ledger.close().await;
        let ledger = case.open();
        let row = ledger.row(&worker_row_id("w1")).unwrap().unwrap();
        assert_eq!(WorkerFacts::of(&row).unwrap().generation, 1);
        ledger.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_fail_again_and_again_lose_nothing_that_was_acknowledged() {
    let case = Case::new();
    let (ledger, _, faults) = faulty(&case);
    let mut kept = Vec::new();
    for n in 0..60 {
        match n % 4 {
            1 => faults.before.store(1, Ordering::SeqCst),
            3 => faults.after.store(1, Ordering::SeqCst),
            _ => {}
        }
        let id = format!("i{n}");
        match ledger.apply(plain(instance(&id))).await {
            Ok(_) => kept.push(id),
            Err(error) => assert_eq!(error.code(), "uncertain"),
        }
    }
    assert_eq!(kept.len(), 30);
    ledger.close().await;
    let ledger = case.open();
    for id in kept {
        assert!(ledger.row(&id).unwrap().is_some(), "{id}");
    }
    ledger.close().await;
}

/// A small file system in memory; unmounted at the end.
struct Small(PathBuf);

impl Small {
    /// None where this user may not mount.
    fn mount(at: &Path, size: &str) -> Option<Self> {
        let options = format!("size={size},mode=700");
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "warmhold-test"]).arg(at).output().ok()?;
        done.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: a connection may be closing still.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_and_nothing_acknowledged_is_lost() {
    let case = Case::new();
    let Some(small) = Small::mount(case.folder.path(), "2m") else {
        eprintln!("not tested: this user may not mount a file system");
        return;
    };
    let filler = case.folder.path().join("filler");
    let ledger = case.open();
    fs::write(&filler, vec![0; 600_000]).unwrap();
    let big = format!("{{\"big\":\"{}\"}}", "x".repeat(20_000));
    let mut kept = Vec::new();
    let mut failed = Vec::new();
    for n in 0..200 {
        let id = format!("i{n}");
        let Operation::Register(draft) = instance(&id) else { panic!() };
        match ledger.apply(plain(Operation::Register(RowDraft { attrs: big.as_str().into(), ..draft }))).await {
            Ok(_) => kept.push(id),
            Err(error) => failed.push(error.code()),
        }
        if failed.len() == 20 {
            break;
        }
    }
    assert!(!kept.is_empty() && failed.len() == 20, "{} kept, failed: {failed:?}", kept.len());
    assert!(failed.iter().all(|code| ["uncertain", "ledger-failed"].contains(code)), "{failed:?}");
    // Reads go on, and so do writes once there is room again.
    assert!(ledger.row(&kept[0]).unwrap().is_some());
    fs::remove_file(&filler).unwrap();
    ledger.done(plain(instance("after"))).await;
    kept.push("after".to_owned());
    ledger.close().await;
    let ledger = case.open();
    for id in &kept {
        assert!(ledger.row(id).unwrap().is_some(), "{id} was acknowledged");
    }
    ledger.close().await;
    drop(small);
}
