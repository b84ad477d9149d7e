//! Durable writes: one client that waits for each, and 64 that share a sync.

use crate::disk::Disk;
use crate::measure::{Times, note, shown, table, target};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use warmhold_ledger::{
    Caller, Change, Decider, Decision, Guard, Kind, Ledger, Moment, NoPrimary, Operation, Options, PolicyFailure,
    ProposedRow, RowDraft, Scope, Stats, Submission, View,
};

/// The hidden part that is run under strace.
pub(crate) const COUNTED: &str = "commit-counted";
const CLIENTS: usize = 64;
/// One client and many take turns, so that what else the disk does hits both.
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(2);
/// Long enough to see that the count of syncs is the count of commits.
const SHORT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints the table.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("control").join("ledger.sqlite3");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut disk = Disk::open(folder.path())?;
    let (mut one, mut many) = (Load::default(), Load::default());
    let mut synced = Times::default();
    let mut last = vec![0; CLIENTS];
    let ledger = open(&path)?;
    for _ in 0..ROUNDS {
        for _ in 0..100 {
            synced.add(disk.write()?);
        }
        for (load, clients) in [(&mut one, 1), (&mut many, CLIENTS)] {
            let before = ledger.stats();
            let began = Instant::now();
            runtime.block_on(write(&ledger, clients, ROUND, &mut last))?;
            load.add(began.elapsed(), before, ledger.stats());
        }
    }
    runtime.block_on(ledger.close());
    durable(&path, &last)?;
    let row = |what: String, load: &Load| {
        vec![
            what,
            format!("{:.0}", load.per_second()),
            format!("{:.1}", load.per_commit()),
            format!("{:.2}", load.per_second() * synced.median().as_secs_f64()),
        ]
    };
    table(
        &format!("commit: durable writes, {ROUNDS} rounds of {} s each", ROUND.as_secs()),
        &["", "writes/s", "writes a sync", "writes in one fdatasync's time"],
        &[row("1 client".to_owned(), &one), row(format!("{CLIENTS} clients"), &many)],
    );
    note(&format!(
        "fdatasync of a 4 KiB page on this disk: {} (p99 {})",
        shown(synced.median()),
        shown(synced.percentile(99))
    ));
    let times = many.per_second() / one.per_second();
    note(&format!("{CLIENTS} clients : 1 client = {times:.1}"));
    cross_check(folder.path())?;
    target("at least 16 writes a sync", many.per_commit() >= 16.0);
    target("at least 6 times the writes of one client", times >= 6.0);
    Ok(())
}

/// What was written in how much time, over all rounds.
#[derive(Default)]
struct Load {
    time: Duration,
    writes: u64,
    commits: u64,
}

#[allow(clippy::cast_precision_loss, reason = "counts of a few seconds")]
impl Load {
    fn add(&mut self, time: Duration, before: Stats, after: Stats) {
        self.time += time;
        self.writes += after.writes - before.writes;
        self.commits += after.commits - before.commits;
    }

    fn per_second(&self) -> f64 {
        self.writes as f64 / self.time.as_secs_f64()
    }

    fn per_commit(&self) -> f64 {
        self.writes as f64 / self.commits as f64
    }
}

fn open(path: &Path) -> Result<Ledger> {
    Ok(Ledger::open(path, Options::new(Arc::new(AsAsked), Arc::new(NoPrimary)))?)
}

/// So many clients, each with a row of its own, each waiting for a write before it begins the next. `last` keeps what
/// each was told to be durable.
async fn write(ledger: &Ledger, clients: usize, time: Duration, last: &mut [u64]) -> Result<()> {
    let end = Instant::now() + time;
    let tasks: Vec<_> = last
        .iter()
        .take(clients)
        .copied()
        .enumerate()
        .map(|(client, mut number)| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                while Instant::now() < end {
                    number += 1;
                    ledger.apply(submission(client, number)).await?;
                }
                Ok::<u64, warmhold_ledger::ApplyError>(number)
            })
        })
        .collect();
    for (task, last) in tasks.into_iter().zip(last) {
        *last = task.await??;
    }
    Ok(())
}

fn row_id(client: usize) -> String {
    format!("instance:{client}")
}

fn submission(client: usize, number: u64) -> Submission {
    Submission {
        operation: Operation::Register(RowDraft {
            id: row_id(client),
            kind: Kind::Instance,
            machine: "bench".to_owned(),
            name: format!("client-{client}"),
            endpoint: None,
            attrs: attrs(number).into(),
            ttl_ms: 60_000.0,
        }),
        caller: Caller { owner: "ab".repeat(32), scope: Scope::Member, machine: None },
        guard: Guard::default(),
        deadline: Instant::now() + PATIENCE,
    }
}

fn attrs(number: u64) -> String {
    format!("{{\"number\":{number}}}")
}

/// Everything that was acknowledged is in the file.
fn durable(path: &Path, last: &[u64]) -> Result<()> {
    let ledger = open(path)?;
    for (client, number) in last.iter().enumerate() {
        let row = ledger.row(&row_id(client))?.with_context(|| format!("the row of client {client} is gone"))?;
        ensure!(*row.attrs == *attrs(*number), "client {client} wrote {number}, the file has {}", row.attrs);
    }
    Ok(())
}

/// Grants what is asked, without a sandbox: what remains is the ledger's own time.
struct AsAsked;

impl Decider for AsAsked {
    fn decide(
        &self,
        _view: Arc<dyn View>,
        at: &Moment,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Decision, PolicyFailure> {
        let policy: Arc<str> = "as-asked".into();
        let Operation::Register(draft) = operation else {
            return Err(PolicyFailure {
                code: "trap".to_owned(),
                message: "only rows are registered here".to_owned(),
                policy,
            });
        };
        let put = ProposedRow {
            id: draft.id.clone(),
            kind: draft.kind.as_str().to_owned(),
            machine: draft.machine.clone(),
            name: draft.name.clone(),
            owner: caller.owner.clone(),
            endpoint: draft.endpoint.clone(),
            attrs: draft.attrs.to_string(),
            observed_at: at.now,
            ttl_ms: draft.ttl_ms,
        };
        Ok(Decision { verdict: Ok(Change { put: vec![put], remove: Vec::new() }), policy })
    }

    fn violated(&self, policy: &str, violation: &str) {
        eprintln!("bench: {policy}: {violation}");
    }
}

/// The hidden part: many clients for a short time; prints what the ledger counted.
pub(crate) fn counted(folder: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ledger = open(&folder.join("counted").join("ledger.sqlite3"))?;
    runtime.block_on(write(&ledger, CLIENTS, SHORT, &mut vec![0; CLIENTS]))?;
    let stats = ledger.stats();
    runtime.block_on(ledger.close());
    println!("{} {}", stats.writes, stats.commits);
    Ok(())
}

/// The ledger's own count of commits, beside the kernel's of syncs.
fn cross_check(folder: &Path) -> Result<()> {
    let trace = folder.join("strace");
    let run = Command::new("strace")
        .args(["--follow-forks", "--seccomp-bpf", "--summary-only", "--trace=fdatasync,fsync", "--output"])
        .arg(&trace)
        .arg(std::env::current_exe()?)
        .arg(COUNTED)
        .arg(folder)
        .stderr(Stdio::piped())
        .output();
    let output = match run {
        Ok(output) if output.status.success() => output,
        // No strace, or no right to trace: a check less, and no fault of the ledger's.
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            note(&format!("syncs weren't counted: {}", why.lines().next().unwrap_or("strace failed")));
            return Ok(());
        }
        Err(error) => {
            note(&format!("syncs weren't counted: strace: {error}"));
            return Ok(());
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let (writes, commits) = said.trim().split_once(' ').with_context(|| format!("it said {said:?}"))?;
    let summary = std::fs::read_to_string(&trace)?;
    // % time, seconds, µs a call, calls, perhaps errors, name.
    let calls = |name: &str| -> u64 {
        let line = summary.lines().find(|line| line.split_whitespace().last() == Some(name));
        line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(0)
    };
    note(&format!(
        "counted by strace in a short run: {writes} writes, {commits} commits, {} fdatasync, {} fsync",
        calls("fdatasync"),
        calls("fsync")
    ));
    ensure!(
        calls("fdatasync") + calls("fsync") >= commits.parse::<u64>()?,
        "there were fewer syncs than commits: something that was acknowledged may not be durable"
    );
    Ok(())
}
