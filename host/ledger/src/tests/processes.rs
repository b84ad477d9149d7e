//! More than one process on one ledger, with real ones.

use super::gate::{Gate, gated};
use super::support::*;
use crate::*;
use rusqlite::Connection;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// This test's program again, as another process that does `task`.
struct Other {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(task: &str, path: &Path) -> Self {
        Self::start_under(&[], task, path)
    }

    /// Under a program that starts the one that it is given.
    fn start_under(outer: &[&str], task: &str, path: &Path) -> Self {
        let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        let argv: Vec<&str> = outer.iter().copied().chain([program.as_str()]).collect();
        let mut process = Command::new(argv[0])
            .args(&argv[1..])
            .args(["--exact", "tests::processes::other_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("LEDGER_TASK", task)
            .env("LEDGER_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next thing that it says; the test harness's own lines are passed over.
    fn said(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            // The harness writes the test's name without a line's end.
            if let Some((_, said)) = line.split_once("> ") {
                return Some(said.to_owned());
            }
        }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn say(text: &str) {
    println!("> {text}");
    std::io::stdout().flush().unwrap();
}

/// What [`Other`] runs.
#[test]
#[ignore = "only as the other process of the tests beside it"]
fn other_process() {
    let (Ok(task), Ok(path)) = (std::env::var("LEDGER_TASK"), std::env::var("LEDGER_PATH")) else { return };
    let path = PathBuf::from(path);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Inside the test's own folder: this process may be killed before it can tidy up.
        let folder = path.parent().and_then(Path::parent).unwrap();
        let case = Case::at(tempfile::tempdir_in(folder).unwrap());
        let options =
            Options { clock: Options::new(case.policy.clone(), case.primary.clone()).clock, ..case.options() };
        match task.as_str() {
            "cycle" => {
                let ledger = Ledger::open(&path, options).unwrap();
                cycle(&ledger, 4, 40, say).await;
                assert_eq!(*case.policy.violations.lock(), Vec::<String>::new());
                ledger.close().await;
                say("done");
            }
            "write" => {
                let ledger = Ledger::open(&path, options).unwrap();
                let (end, ended) = channel();
                std::thread::spawn(move || {
                    let _ = std::io::stdin().read_line(&mut String::new());
                    let _ = end.send(());
                });
                let mut tasks = tokio::task::JoinSet::new();
                for n in 0..16 {
                    let ledger = ledger.clone();
                    tasks.spawn(async move {
                        loop {
                            ledger.done(plain(instance(&format!("busy{n}")))).await;
                        }
                    });
                }
                say("writing");
                while ended.try_recv().is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                say(&ledger.stats().writes.to_string());
            }
            "count" => {
                let ledger = Ledger::open(&path, options).unwrap();
                for n in 0.. {
                    ledger.done(plain(instance(&format!("c{n}")))).await;
                    ledger.put_record("count", "last", Expect::Any, n.into()).await.unwrap();
                    say(&n.to_string());
                }
            }
            "insist" => {
                let ledger = Ledger::open(&path, options).unwrap();
                for n in 0..60 {
                    match ledger.apply(plain(instance(&format!("c{n}")))).await {
                        Ok(_) => say(&n.to_string()),
                        Err(error) => say(error.code()),
                    }
                }
                ledger.close().await;
            }
            "hold" => {
                let gate = Arc::new(Gate::default());
                let ledger = Ledger::open(&path, Options { decider: gate.clone(), ..options }).unwrap();
                let held = gate.arm();
                let writing = tokio::spawn(async move { ledger.done(plain(instance("held"))).await });
                held.entered();
                say("holding");
                writing.await.unwrap();
            }
            other => panic!("{other}?"),
        }
    });
}

/// Takes, releases and cleans workers, and says each lease.
async fn cycle(ledger: &Ledger, tasks: usize, rounds: usize, say: impl Fn(&str) + Send + Sync + Clone + 'static) {
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (ledger, say) = (ledger.clone(), say.clone());
        running.spawn(async move {
            let mut round = 0;
            while round < rounds {
                let leased = match ledger.apply(worker(acquire(&format!("t{task}")), member())).await {
                    Ok(applied) => applied.row.unwrap(),
                    // All are the others': that is no failure.
                    Err(error) if error.code() == "no-warm-worker" => continue,
                    Err(error) => panic!("{error}"),
                };
                say(&format!("{} {}", leased.name, WorkerFacts::of(&leased).unwrap().generation));
                let released = ledger.done(worker(transition(TransitionKind::Release, &leased), member())).await;
                ledger.done(worker(transition(TransitionKind::Sanitize, &released), machine("m1"))).await;
                round += 1;
            }
        });
    }
    running.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_lease_nothing_twice_and_neither_starves() {
    let case = Case::new();
    // Real time: the two processes must agree about it.
    let clock = Options::new(case.policy.clone(), case.primary.clone()).clock;
    let ledger = Ledger::open(&case.path(), Options { clock, ..case.options() }).unwrap();
    for n in 0..3 {
        ledger.done(worker(worker_draft(&format!("w{n}")), machine("m1"))).await;
    }
    let mut others = [Other::start("cycle", &case.path()), Other::start("cycle", &case.path())];
    let (lease, leases) = channel();
    cycle(&ledger, 4, 40, move |text| lease.send(text.to_owned()).unwrap()).await;
    let mut seen: Vec<String> = leases.into_iter().collect();
    for other in &mut others {
        let mut last = String::new();
        while let Some(line) = other.said() {
            seen.push(std::mem::replace(&mut last, line));
        }
        assert_eq!(last, "done");
        assert!(other.process.wait().unwrap().success());
    }
    seen.retain(|lease| !lease.is_empty());
    assert_eq!(seen.len(), 3 * 4 * 40);
    let distinct: HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "a generation of a worker was leased twice");
    let rows = ledger.rows(&RowFilter::default(), None, 10).unwrap().rows;
    let generations: u64 = rows.iter().map(|row| WorkerFacts::of(row).unwrap().generation).sum();
    assert_eq!(generations, 3 * 4 * 40, "a lease was lost");
    // What the others wrote came in changes; everything was read only at the start.
    let stats = ledger.stats();
    assert!(stats.read_changes > 0 && stats.read_whole == 1, "{stats:?}");
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_gets_its_turn_beside_a_busy_one() {
    let case = Case::new();
    let ledger = case.open();
    let mut busy = Other::start("write", &case.path());
    assert_eq!(busy.said().as_deref(), Some("writing"));
    for n in 0..50 {
        let submission =
            Submission { deadline: Instant::now() + Duration::from_secs(5), ..plain(instance(&format!("i{n}"))) };
        ledger.apply(submission).await.unwrap();
    }
    drop(busy.process.stdin.take());
    let written: u64 = busy.said().unwrap().parse().unwrap();
    assert!(written > 0);
    busy.process.wait().unwrap();
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_the_lock_delays_and_who_dies_with_it_doesnt() {
    let case = Case::new();
    let ledger = case.open();
    ledger.done(plain(instance("i"))).await;
    let mut other = Other::start("hold", &case.path());
    assert_eq!(other.said().as_deref(), Some("holding"));
    let short = || Submission { deadline: Instant::now() + Duration::from_millis(100), ..plain(beat("i", "{}")) };
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let (ledger, submission) = (ledger.clone(), short());
            tokio::spawn(async move { ledger.refusal(submission).await })
        })
        .collect();
    for wait in waits {
        assert_eq!(wait.await.unwrap(), "ledger-busy");
    }
    assert!(ledger.row("i").unwrap().is_some(), "reads don't wait for it");
    let patient = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.done(plain(beat("i", "{\"late\":1}"))).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!patient.is_finished());
    other.kill();
    patient.await.unwrap();
    assert_eq!(ledger.row("held").unwrap(), None);
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_outlives_a_kill() {
    let case = Case::new();
    for round in 0..3 {
        let mut other = Other::start("count", &case.path());
        let mut last = 0;
        while last < 20 + round * 7 {
            last = other.said().unwrap().parse().unwrap();
        }
        other.kill();
        let ledger = case.open();
        for n in 0..=last {
            assert!(ledger.row(&format!("c{n}")).unwrap().is_some(), "{n} of {last}");
        }
        let record = ledger.get_record("count", "last").unwrap().unwrap();
        assert!(record.body.as_u64().unwrap() >= last, "{record:?}");
        ledger.close().await;
    }
}

#[tokio::test]
async fn a_sync_that_fails_for_real_is_uncertain() {
    let strace =
        ["strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=3+7"];
    let works = Command::new("strace").args(["-o", "/dev/null", "-e", "inject=fdatasync:error=EIO", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: there is no strace here that may make a sync fail");
        return;
    }
    let case = Case::new();
    // Made beforehand: the process under test then syncs for its writes alone.
    case.open().close().await;
    let mut other = Other::start_under(&strace, "insist", &case.path());
    let (mut kept, mut uncertain) = (Vec::new(), 0);
    while let Some(said) = other.said() {
        match said.parse::<u32>() {
            Ok(n) => kept.push(n),
            Err(_) => {
                assert_eq!(said, "uncertain");
                uncertain += 1;
            }
        }
    }
    assert!(other.process.wait().unwrap().success());
    assert!(uncertain >= 3 && kept.len() >= 30 && kept.len() + uncertain == 60, "{uncertain} uncertain, kept {kept:?}");
    let ledger = case.open();
    for n in kept {
        assert!(ledger.row(&format!("c{n}")).unwrap().is_some(), "{n} was acknowledged");
    }
    ledger.close().await;
}

#[tokio::test]
async fn a_foreign_lock_on_the_file_is_waited_for_and_given_up_in_time() {
    let case = Case::new();
    let ledger = case.open();
    // As the sqlite3 shell would: without the turnstile.
    let shell = Connection::open(case.path()).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    let short = Submission { deadline: Instant::now() + Duration::from_millis(50), ..plain(instance("a")) };
    assert_eq!(ledger.refusal(short).await, "ledger-busy");
    let patient = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.done(plain(instance("b"))).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    shell.execute_batch("ROLLBACK").unwrap();
    patient.await.unwrap();
    assert_eq!(ledger.row("a").unwrap(), None);
    drop(shell);
    ledger.close().await;
}

#[tokio::test]
async fn two_that_alternate_read_only_what_changed() {
    let case = Case::new();
    let one = case.open();
    let two = case.open();
    for n in 0..10 {
        one.done(plain(instance(&format!("i{n}")))).await;
        // Each sees at once what the other did.
        two.done(plain(beat(&format!("i{n}"), "{\"two\":1}"))).await;
        let row = one.done(plain(beat(&format!("i{n}"), "{\"one\":1}"))).await;
        assert_eq!(row.attrs.as_ref(), r#"{"load":1,"two":1,"one":1}"#);
    }
    two.apply(plain(Operation::Remove { id: "i3".into() })).await.unwrap();
    assert_eq!(one.refusal(plain(beat("i3", "{}"))).await, "not-found");
    // Removed and registered again by another owner, in between.
    two.apply(plain(Operation::Remove { id: "i4".into() })).await.unwrap();
    two.done(Submission { caller: machine("m2"), ..plain(instance("i4")) }).await;
    assert_eq!(one.refusal(plain(beat("i4", "{}"))).await, "not-owner");
    // A group that wrote nothing has given out no numbers.
    one.put_record("k", "r", Expect::Seq(1), 1.into()).await.unwrap_err();
    two.done(plain(instance("late"))).await;
    one.done(plain(beat("late", "{}"))).await;
    for ledger in [&one, &two] {
        let stats = ledger.stats();
        assert!(stats.read_whole == 1 && stats.read_changes >= 10, "{stats:?}");
    }
    // Nobody else wrote: memory holds.
    let stats = one.stats();
    one.done(plain(beat("late", "{}"))).await;
    one.done(plain(beat("late", "{}"))).await;
    assert_eq!((one.stats().read_whole, one.stats().read_changes), (stats.read_whole, stats.read_changes));
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn who_was_away_longer_than_removals_are_remembered_reads_everything() {
    let case = Case::new();
    let one = case.open();
    let two = Ledger::open(&case.path(), Options { tombstones: 8, ..case.options() }).unwrap();
    one.done(plain(instance("gone"))).await;
    one.done(plain(instance("stays"))).await;
    two.apply(plain(Operation::Remove { id: "gone".into() })).await.unwrap();
    for _ in 0..40 {
        two.done(plain(beat("stays", "{}"))).await;
    }
    let left: i64 = Connection::open(case.path())
        .unwrap()
        .query_row("SELECT count(*) FROM tombstone", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
    assert_eq!(one.refusal(plain(beat("gone", "{}"))).await, "not-found");
    assert_eq!(one.stats().read_whole, 2);
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_one_ledger_leaves_the_other_ones_locks_alone() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    ledger.done(plain(instance("i"))).await;
    let held = gate.arm();
    let writing = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.done(plain(beat("i", "{\"a\":1}"))).await }
    });
    held.entered();
    // Reads, and a look at the file by the means that this crate has, come and go in the meantime.
    for _ in 0..20 {
        crate::schema::inspect(&case.path()).unwrap();
        drop(crate::schema::open_reader(&case.path()).unwrap());
        ledger.row("i").unwrap();
    }
    // Another process still finds the lock held.
    let mut other = Other::start("write", &case.path());
    let writing_other = std::thread::spawn(move || {
        let said = other.said();
        (other, said)
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!writing_other.is_finished(), "the write lock was lost");
    held.go();
    writing.await.unwrap();
    let (other, said) = writing_other.join().unwrap();
    assert_eq!(said.as_deref(), Some("writing"));
    other.kill();
    assert_eq!(ledger.row("i").unwrap().unwrap().attrs.as_ref(), r#"{"load":1,"a":1}"#);
    ledger.close().await;
}
