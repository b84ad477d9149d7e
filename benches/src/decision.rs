//! A lease decision in a fresh instance, beside the same decision without a sandbox and beside the instance alone.

use crate::measure::{Times, note, ratio, shown, table, target};
use crate::rows::{NOW, Rows, key};
use anyhow::{Context as _, Result, bail, ensure};
use lease_policy::Standard;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use warmhold_plugin::{
    Caller, EngineOptions, LeaseRequest, LeaseSlot, LedgerView, Limits, Moment, PolicyEngine, Scope, SlotOptions,
    WorkerRequest, World,
};
use warmhold_sdk::Recorder;
use warmhold_sdk::lease::{self as native, LeasePolicy as _};
use warmhold_tests::Programs;

const CALLS: usize = 10_000;
const ROWS: usize = 1000;
/// The three ways take turns after so many calls: what else the machine does then hits all alike, and each still runs
/// with warm caches.
const TURN: usize = 100;

/// What one acquire takes, for who needs no more than that: the median of so many.
pub(crate) fn acquire(calls: usize) -> Result<Duration> {
    let folder = tempfile::tempdir()?;
    let (bench, _) = Bench::open(folder.path())?;
    let mut times = Times::default();
    // The first ones find nothing in the caches.
    for number in 0..calls + TURN {
        let ask = Ask::new(number);
        let began = Instant::now();
        let verdict = bench.in_sandbox(&ask)?;
        if number >= TURN {
            times.add(began.elapsed());
        }
        ensure!(verdict.is_ok(), "request {number} was refused: {verdict:?}");
    }
    Ok(times.median())
}

/// Prints the table.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bench, engine) = Bench::open(folder.path())?;
    ensure!(bench.rows.len() == ROWS, "the ledger has {} rows", bench.rows.len());
    for number in 0..TURN {
        bench.compare(number)?;
    }
    let (mut sandboxed, mut processor) = (Times::default(), Times::default());
    let (mut natively, mut bare) = (Times::default(), Times::default());
    for turn in 0..CALLS / TURN {
        let numbers = turn * TURN..(turn + 1) * TURN;
        for number in numbers.clone() {
            let ask = Ask::new(number);
            let (began, cpu) = (Instant::now(), thread_time());
            let verdict = bench.in_sandbox(&ask)?;
            processor.add(thread_time().saturating_sub(cpu));
            sandboxed.add(began.elapsed());
            ensure!(verdict.is_ok(), "request {number} was refused: {verdict:?}");
        }
        for number in numbers.clone() {
            let ask = NativeAsk::new(number);
            let began = Instant::now();
            let verdict = bench.natively(&ask);
            natively.add(began.elapsed());
            ensure!(verdict.is_ok(), "request {number} was refused natively: {verdict:?}");
        }
        for _ in numbers {
            let began = Instant::now();
            bench.slot.instantiate()?;
            bare.add(began.elapsed());
        }
    }
    let row = |what: &str, times: &Times| {
        let of = ratio(times.median(), natively.median());
        vec![what.to_owned(), shown(times.median()), shown(times.percentile(99)), format!("{of:.1}")]
    };
    table(
        &format!("decision: {CALLS} acquires, {ROWS} rows"),
        &["", "p50", "p99", "p50 : native"],
        &[
            row("in a fresh instance", &sandboxed),
            row("  of this thread's processor time", &processor),
            row("the instance alone, made and dropped", &bare),
            row("the same decision called natively", &natively),
        ],
    );
    if let Err(reason) = engine.pagemap_scan() {
        note(&format!("without PAGEMAP_SCAN: {reason}"));
    }
    target("p50 under 50 µs", sandboxed.median() < Duration::from_micros(50));
    target("p99 under 250 µs", sandboxed.percentile(99) < Duration::from_micros(250));
    Ok(())
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// One request, for the policy in the sandbox.
struct Ask {
    at: Moment,
    who: Caller,
    request: LeaseRequest,
}

impl Ask {
    fn new(number: usize) -> Self {
        Self {
            at: Moment { now: NOW, fresh_id: fresh_id(number) },
            who: Caller { owner: "ef".repeat(32), scope: Scope::Member, machine: None },
            request: LeaseRequest::AcquireWorker(WorkerRequest {
                machine: None,
                key: key(number),
                run_id: format!("run-{number}"),
                attempt_id: "1".to_owned(),
                ttl_ms: 60_000,
            }),
        }
    }
}

/// The same request in the types of the sdk.
struct NativeAsk {
    at: native::Moment,
    who: native::Caller,
    request: native::WorkerRequest,
}

impl NativeAsk {
    fn new(number: usize) -> Self {
        let key = key(number);
        Self {
            at: native::Moment { now: NOW, fresh_id: fresh_id(number) },
            who: native::Caller { owner: "ef".repeat(32), scope: native::Scope::Member, machine: None },
            request: native::WorkerRequest {
                machine: None,
                key: native::WorkerKey {
                    context: key.context,
                    image_digest: key.image_digest,
                    lock_hash: key.lock_hash,
                    architecture: key.architecture,
                },
                run_id: format!("run-{number}"),
                attempt_id: "1".to_owned(),
                ttl_ms: 60_000,
            },
        }
    }
}

fn fresh_id(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

struct Bench {
    slot: LeaseSlot,
    rows: Arc<Rows>,
    environment: Recorder,
}

impl Bench {
    fn open(folder: &Path) -> Result<(Self, PolicyEngine)> {
        let engine = PolicyEngine::new(&EngineOptions { cache_dir: Some(folder.join("cache")) })?;
        let slot = LeaseSlot::open(
            &engine,
            SlotOptions {
                dir: folder.join("lease"),
                built_in: std::fs::read(Programs::of("release")?.policy("lease-policy")?)?.into(),
                settings: "{}".to_owned(),
                limits: Limits::of(World::Lease),
                faults_to_roll_back: NonZeroU32::MIN,
            },
        )?;
        Ok((Self { slot, rows: Arc::new(Rows::new(ROWS)), environment: Recorder::default() }, engine))
    }

    fn in_sandbox(&self, ask: &Ask) -> Result<warmhold_plugin::Verdict> {
        let view = Arc::clone(&self.rows) as Arc<dyn LedgerView>;
        Ok(self.slot.decide(view, &ask.at, &ask.who, &ask.request)?.verdict)
    }

    fn natively(&self, ask: &NativeAsk) -> native::Verdict {
        let call = native::Call { ledger: &*self.rows, at: &ask.at, who: &ask.who, environment: &self.environment };
        Standard.acquire_worker(&call, &ask.request)
    }

    /// Both decide alike, and as the rows say.
    fn compare(&self, number: usize) -> Result<()> {
        let sandboxed = self.in_sandbox(&Ask::new(number))?;
        let (Ok(change), Ok(natively)) = (sandboxed, self.natively(&NativeAsk::new(number))) else {
            bail!("request {number} was refused");
        };
        let ([row], [same]) = (change.put.as_slice(), natively.put.as_slice()) else {
            bail!("request {number} doesn't write one row");
        };
        ensure!(
            row.id == same.id && row.attrs == same.attrs && row.observed_at == same.observed_at,
            "the sandbox decided {row:?}, natively it is {same:?}"
        );
        let before = self.rows.find(&row.id).context("a row that isn't there was leased")?;
        let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text);
        let (before, after) = (parsed(&before.attrs)?, parsed(&row.attrs)?);
        let number_of = |attrs: &serde_json::Value| attrs.get("generation").and_then(serde_json::Value::as_u64);
        ensure!(
            number_of(&after) == number_of(&before).map(|generation| generation + 1)
                && after.get("leaseId").and_then(serde_json::Value::as_str) == Some(&fresh_id(number)),
            "{before} became {after}"
        );
        Ok(())
    }
}
