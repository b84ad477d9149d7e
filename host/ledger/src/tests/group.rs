//! One writer, many who wait: what they share and what they don't.

use super::gate::{Gate, Part, asked, gated, together, wait_for_waiting};
use super::policy::{Reference, verdict};
use super::support::*;
use crate::*;
use parking_lot::Mutex;
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn part(operation: Operation) -> Part {
    asked(plain(operation))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_wait_share_one_commit() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    let before = ledger.stats().commits;
    let rest = (1..64).map(|n| part(instance(&format!("i{n}")))).collect();
    let codes = together(&ledger, &gate, plain(instance("i0")), rest).await;
    assert!(codes.iter().all(|code| code == "ok"), "{codes:?}");
    let stats = ledger.stats();
    assert_eq!((stats.commits - before, stats.writes, stats.largest_commit, stats.rows), (1, 64, 64, 64));
    // In order of arrival.
    let rows = ledger.rows(&RowFilter::default(), None, 100).unwrap().rows;
    assert_eq!(
        rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>(),
        (0..64).map(|n| format!("i{n}")).collect::<Vec<_>>()
    );
    // Alone, each pays for itself; who is refused pays nothing.
    ledger.done(plain(instance("alone"))).await;
    ledger.refusal(plain(Operation::Remove { id: "nobody".into() })).await;
    let after = ledger.stats();
    assert_eq!((after.commits, after.unchanged), (stats.commits + 1, 1));
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_closed_in_time() {
    struct Slow(Reference);
    impl Decider for Slow {
        fn decide(
            &self,
            view: Arc<dyn View>,
            at: &Moment,
            who: &Caller,
            what: &Operation,
        ) -> Result<Decision, PolicyFailure> {
            std::thread::sleep(Duration::from_millis(5));
            self.0.decide(view, at, who, what)
        }
        fn violated(&self, _: &str, _: &str) {}
    }
    let case = Case::new();
    let ledger = case.open_with(Arc::new(Slow(Reference::default())));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let ledger = ledger.clone();
        tasks.spawn(async move { ledger.done(plain(instance(&format!("i{n}")))).await });
    }
    assert_eq!(tasks.join_all().await.len(), 12);
    let stats = ledger.stats();
    assert!(stats.writes == 12 && stats.largest_commit <= 2, "{stats:?}");
    ledger.close().await;
}

/// Triggers stand in for whatever may go wrong inside SQLite.
fn trigger(case: &Case, sql: &str) {
    Connection::open(case.path()).unwrap().execute_batch(sql).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fails_harms_nobody() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    ledger.done(plain(instance("stuck"))).await;
    trigger(&case, "CREATE TRIGGER a BEFORE INSERT ON row WHEN NEW.id = 'bad' BEGIN SELECT RAISE(ABORT, 'told'); END;");
    // The second statement of a removal: the first one must not stay.
    trigger(
        &case,
        "CREATE TRIGGER b BEFORE INSERT ON tombstone WHEN NEW.id = 'stuck' BEGIN SELECT RAISE(ABORT, 'told'); END;",
    );
    let rest = vec![
        part(instance("bad")),
        part(Operation::Remove { id: "stuck".into() }),
        part(beat("stuck", "{\"after\":1}")),
        part(instance("b")),
        Part::Record("r", Expect::Seq(9)),
        Part::Record("r", Expect::Absent),
    ];
    let codes = together(&ledger, &gate, plain(instance("a")), rest).await;
    assert_eq!(codes, ["ok", "ledger-failed", "ledger-failed", "ok", "ok", "record-conflict", "ok"]);
    assert_eq!(ledger.row("bad").unwrap(), None);
    assert_eq!(ledger.row("stuck").unwrap().unwrap().attrs.as_ref(), r#"{"load":1,"after":1}"#);
    assert!(ledger.row("a").unwrap().is_some() && ledger.row("b").unwrap().is_some());
    // Memory agrees with the file.
    assert_eq!(ledger.refusal(plain(beat("bad", "{}"))).await, "not-found");
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_lost_writes_nothing_at_all() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    ledger.done(plain(instance("before"))).await;
    trigger(
        &case,
        "CREATE TRIGGER a BEFORE INSERT ON row WHEN NEW.id = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'told'); END;",
    );
    let codes = together(&ledger, &gate, plain(instance("a")), vec![part(instance("bad"))]).await;
    assert_eq!(codes, ["ledger-failed", "ledger-failed"]);
    assert_eq!(ledger.row("a").unwrap(), None);
    assert_eq!(ledger.refusal(plain(beat("a", "{}"))).await, "not-found");
    ledger.done(plain(beat("before", "{}"))).await;
    ledger.done(plain(instance("a"))).await;
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_is_told_so_and_nothing_of_it_is_written() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    let held = gate.arm();
    let first = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.done(plain(instance("first"))).await }
    });
    held.entered();
    let short = Submission { deadline: Instant::now() + Duration::from_millis(30), ..plain(instance("short")) };
    assert_eq!(ledger.refusal(short).await, "ledger-busy");
    let past = Submission { deadline: Instant::now(), ..plain(instance("past")) };
    assert_eq!(ledger.refusal(past).await, "ledger-busy");
    assert_eq!(ledger.stats().waiting, 0);
    held.go();
    first.await.unwrap();
    ledger.done(plain(instance("last"))).await;
    let ids: Vec<_> =
        ledger.rows(&RowFilter::default(), None, 10).unwrap().rows.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["first", "last"]);
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writer_has_it_means_that_it_is_waited_for() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    let deadline = Instant::now() + Duration::from_secs(1);
    let held = gate.arm();
    let taken = tokio::spawn({
        let ledger = ledger.clone();
        let submission = Submission { deadline, ..plain(instance("taken")) };
        async move { ledger.apply(submission).await }
    });
    held.entered();
    tokio::time::sleep_until((deadline + Duration::from_millis(50)).into()).await;
    assert!(!taken.is_finished());
    held.go();
    assert!(taken.await.unwrap().is_ok());
    // A caller that goes away takes nothing back.
    let held = gate.arm();
    let gone = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.done(plain(instance("gone"))).await }
    });
    held.entered();
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    held.go();
    ledger.done(plain(beat("gone", "{}"))).await;
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_and_a_closed_one_refuse() {
    let case = Case::new();
    let gate = Arc::new(super::gate::Gate::default());
    let ledger = Ledger::open(&case.path(), Options { decider: gate.clone(), queue: 2, ..case.options() }).unwrap();
    let held = gate.arm();
    let go = |id: &str| {
        let (ledger, submission) = (ledger.clone(), plain(instance(id)));
        tokio::spawn(async move { ledger.apply(submission).await.map(|_| ()).map_err(|error| error.code()) })
    };
    let mut tasks = vec![go("a")];
    held.entered();
    for n in 1..=2 {
        tasks.push(go(&format!("w{n}")));
        wait_for_waiting(&ledger, n).await;
    }
    assert_eq!(go("too-many").await.unwrap(), Err("too-many-waiting"));
    let close = tokio::spawn(ledger.clone().close());
    while go("late").await.unwrap() != Err("closing") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    held.go();
    close.await.unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(()));
    }
    let ledger = case.open();
    assert_eq!(ledger.rows(&RowFilter::default(), None, 10).unwrap().rows.len(), 3);
    ledger.close().await;
}

/// Misbehaves in the way that the operation's id names.
#[derive(Default)]
struct Bad {
    inner: Reference,
    kept: Mutex<Vec<Arc<dyn View>>>,
}

impl Decider for Bad {
    fn decide(
        &self,
        view: Arc<dyn View>,
        at: &Moment,
        who: &Caller,
        what: &Operation,
    ) -> Result<Decision, PolicyFailure> {
        let name = match what {
            Operation::Register(draft) => draft.id.as_str(),
            _ => "",
        };
        let policy: Arc<str> = "bad".into();
        match name {
            "panic" => panic!("told to"),
            "fail" => return Err(PolicyFailure { code: "trap".into(), message: "unreachable".into(), policy }),
            "keep" => self.kept.lock().push(Arc::clone(&view)),
            "forge" => {
                let mut verdict = verdict(view.as_ref(), at, who, what);
                verdict.as_mut().unwrap().put[0].owner = "forged".to_owned();
                return Ok(Decision { verdict, policy });
            }
            _ => {}
        }
        self.inner.decide(view, at, who, what)
    }

    fn violated(&self, policy: &str, violation: &str) {
        self.inner.violated(policy, violation);
        panic!("told to");
    }
}

#[tokio::test]
async fn a_decider_that_misbehaves_costs_its_own_request() {
    let case = Case::new();
    let bad = Arc::new(Bad::default());
    let ledger = case.open_with(bad.clone());
    let error = ledger.apply(plain(instance("panic"))).await.unwrap_err();
    assert_eq!(error.code(), "policy-failed");
    assert!(error.to_string().contains("told to"), "{error}");
    let error = ledger.apply(plain(instance("fail"))).await.unwrap_err();
    assert_eq!((error.code(), error.status(), error.policy().map(AsRef::as_ref)), ("policy-failed", 503, Some("bad")));
    let error = ledger.apply(plain(instance("forge"))).await.unwrap_err();
    assert_eq!((error.code(), error.status()), ("policy-violation", 503));
    assert_eq!(*bad.inner.violations.lock(), ["bad: owner must be \"owner-of-member\"; the policy wrote \"forged\""]);
    assert_eq!(ledger.rows(&RowFilter::default(), None, 10).unwrap().rows, []);
    // A view that is kept stays what it was, and the ledger goes on without it.
    let whole = ledger.stats().read_whole;
    ledger.done(plain(instance("keep"))).await;
    ledger.done(plain(instance("next"))).await;
    assert_eq!(ledger.stats().read_whole, whole + 1);
    assert!(bad.kept.lock()[0].get("keep").is_none());
    ledger.done(plain(beat("keep", "{}"))).await;
    ledger.close().await;
}

#[tokio::test]
async fn a_row_that_would_be_too_large_is_not_the_policys_fault() {
    let case = Case::new();
    let bounds = Bounds { attrs_bytes: 64, ..Bounds::default() };
    let ledger = Ledger::open(&case.path(), Options { bounds, ..case.options() }).unwrap();
    ledger.done(plain(instance("i"))).await;
    ledger.done(plain(beat("i", &format!("{{\"a\":\"{}\"}}", "x".repeat(30))))).await;
    let error = ledger.apply(plain(beat("i", &format!("{{\"b\":\"{}\"}}", "x".repeat(30))))).await.unwrap_err();
    assert_eq!((error.code(), error.status()), ("too-large", 413));
    assert_eq!(*case.policy.violations.lock(), Vec::<String>::new());
    ledger.close().await;
}

#[tokio::test]
async fn worker_routes_need_this_machine_to_be_primary() {
    let case = Case::new();
    let ledger = case.open();
    let ask = |id: &str| ledger.refusal(worker(worker_draft(id), machine("m1")));
    for (view, code) in [
        (None, "primary-unmeasured"),
        (Some(PrimaryView { known: false, ..primary("m1", 7) }), "not-primary"),
        (Some(primary("m2", 7)), "not-primary"),
        (Some(primary("m1", 8)), "not-primary"),
    ] {
        *case.primary.view.lock() = view.clone();
        assert_eq!(ask("w1").await, code, "{view:?}");
    }
    // No generation was seen: any will do.
    let any = Submission {
        guard: Guard { worker_route: true, seen_generation: None },
        ..worker(worker_draft("w1"), machine("m1"))
    };
    let applied = ledger.apply(any).await.unwrap();
    assert_eq!(applied.primary, Some(primary("m1", 8)));
    // Nothing else asks.
    let reads = case.primary.reads.load(Ordering::SeqCst);
    *case.primary.view.lock() = None;
    ledger.done(plain(instance("i"))).await;
    ledger.quarantine("w1", "x").await.unwrap();
    assert_eq!(case.primary.reads.load(Ordering::SeqCst), reads);
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_changes_under_the_lock_takes_the_worker_routes_with_it() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    ledger.done(worker(worker_draft("w1"), machine("m1"))).await;
    ledger.done(worker(worker_draft("w2"), machine("m1"))).await;
    let reads = case.primary.reads.load(Ordering::SeqCst);
    *case.primary.steady.lock() = 0;
    let rest = vec![
        asked(worker(acquire("a"), member())),
        part(instance("i")),
        // Was held by the acquire before, had that been kept.
        Part::Quarantine("w1"),
        asked(worker(worker_draft("w1"), machine("m1"))),
        Part::Record("r", Expect::Absent),
    ];
    let codes = together(&ledger, &gate, worker(worker_draft("w3"), machine("m1")), rest).await;
    assert_eq!(codes, ["not-primary", "not-primary", "ok", "ok", "not-primary", "ok"]);
    assert_eq!(case.primary.reads.load(Ordering::SeqCst), reads + 1, "one fresh read for the group");
    assert_eq!(ledger.row(&worker_row_id("w3")).unwrap(), None);
    let out = WorkerFacts::of(&ledger.row(&worker_row_id("w1")).unwrap().unwrap()).unwrap();
    assert_eq!((out.state, out.generation, out.lease_id), (WorkerState::Quarantined, 0, None));
    assert!(ledger.row("i").unwrap().is_some() && ledger.get_record("k", "r").unwrap().is_some());
    *case.primary.steady.lock() = -1;
    let leased = ledger.done(worker(acquire("b"), member())).await;
    assert_eq!((leased.name.as_str(), WorkerFacts::of(&leased).unwrap().generation), ("w2", 1));
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_moved_away_is_not_written() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    ledger.done(worker(worker_draft("w1"), machine("m1"))).await;
    let aside = case.folder.path().join("aside");
    std::fs::rename(case.path(), &aside).unwrap();
    let codes =
        together(&ledger, &gate, worker(acquire("a"), member()), vec![part(instance("i")), Part::Quarantine("w1")])
            .await;
    assert_eq!(codes, ["not-primary", "ledger-lock-lost", "ledger-lock-lost"]);
    std::fs::write(case.path(), b"").unwrap();
    assert_eq!(ledger.refusal(plain(instance("i"))).await, "ledger-lock-lost");
    std::fs::rename(&aside, case.path()).unwrap();
    ledger.done(plain(instance("i"))).await;
    let leased = ledger.done(worker(acquire("a"), member())).await;
    assert_eq!(WorkerFacts::of(&leased).unwrap().generation, 1);
    ledger.close().await;
}

#[tokio::test]
async fn a_fault_of_the_hosts_own_costs_one_group_and_not_the_writer() {
    struct Panics;
    impl Primary for Panics {
        fn read(&self) -> Option<PrimaryView> {
            panic!("told to")
        }
        fn unchanged(&self) -> bool {
            true
        }
    }
    let case = Case::new();
    let ledger = Ledger::open(&case.path(), Options { primary: Arc::new(Panics), ..case.options() }).unwrap();
    ledger.done(plain(instance("before"))).await;
    assert_eq!(ledger.refusal(worker(worker_draft("w1"), machine("m1"))).await, "uncertain");
    ledger.done(plain(beat("before", "{}"))).await;
    ledger.done(plain(instance("after"))).await;
    assert_eq!(ledger.row(&worker_row_id("w1")).unwrap(), None);
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_hangs_is_not_waited_for_without_end() {
    let case = Case::new();
    let gate = Arc::new(Gate::default());
    let options = Options { decider: gate.clone(), wait: Duration::from_millis(50), ..case.options() };
    let ledger = Ledger::open(&case.path(), options).unwrap();
    let held = gate.arm();
    let submission = Submission { deadline: Instant::now() + Duration::from_millis(50), ..plain(instance("i1")) };
    let told = ledger.apply(submission).await.unwrap_err();
    assert_eq!(told.code(), "uncertain");
    held.entered();
    held.go();
    // And it was indeed made, in the end.
    while ledger.row("i1").unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ledger.close().await;
}

#[derive(Default)]
struct Watching {
    waited: AtomicU64,
    decided: AtomicU64,
    committed: Mutex<Vec<u64>>,
}

impl Observer for Watching {
    fn waited(&self, _: Duration) {
        self.waited.fetch_add(1, Ordering::SeqCst);
    }

    fn decided(&self, _: Duration) {
        self.decided.fetch_add(1, Ordering::SeqCst);
    }

    fn committed(&self, _: Duration, changes: u64) {
        self.committed.lock().push(changes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_is_told_of_every_step() {
    let case = Case::new();
    let watching = Arc::new(Watching::default());
    let ledger = Ledger::open(&case.path(), Options { observer: watching.clone(), ..case.options() }).unwrap();
    ledger.done(plain(instance("one"))).await;
    ledger.refusal(plain(Operation::Remove { id: "nobody".into() })).await;
    ledger.put_record("note", "n", Expect::Absent, serde_json::json!({})).await.unwrap();
    ledger.close().await;
    // The host's own records are asked of no policy, and a refusal alone needs no commit.
    assert_eq!((watching.waited.load(Ordering::SeqCst), watching.decided.load(Ordering::SeqCst)), (3, 2));
    assert_eq!(*watching.committed.lock(), [1, 1]);
}
