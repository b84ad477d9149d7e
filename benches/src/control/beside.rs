//! What is measured beside the cycles: a lone client, reads while others write, and a long list.

use super::load::{self, job, report};
use super::process::{forget_peak, memory, peak_memory};
use super::seed;
use super::server::{Running, Who};
use super::wire::{Scanner, get};
use super::{Field, Results};
use crate::decision;
use crate::measure::{Times, mebibytes, note, ratio, shown, table, target};
use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use warmhold_tests::Client;

/// The hidden part that reads.
pub(crate) const READS: &str = "control-reads";
const WRITERS: usize = 64;
const READ: Duration = Duration::from_secs(3);
/// Between two reads: a reader that never rests would be one more client.
const PAUSE: Duration = Duration::from_millis(2);
/// Makes sure that the writers are at it before the first read, and still are after the last.
const LEAD: Duration = Duration::from_millis(500);
const DECISIONS: usize = 2000;
const MIB: u64 = 1 << 20;
/// What a list may add to the peak: buffers of a connection and a few pages of rows, far less than the list.
const LIST: u64 = 8 * MIB;

/// A lone client's write, beside the least that it can cost: one sync, one answer, one decision.
pub(super) fn one_client(results: &Results, rows: usize, sync: Duration) -> Result<()> {
    let (Some(ours), Some(constant)) = (results.cell(1, rows, Who::Ours), results.cell(1, rows, Who::Constant)) else {
        return Ok(());
    };
    let decision = decision::acquire(DECISIONS)?;
    // A cycle is three of them.
    let (write, answer) = (ours.p50 / 3, constant.p50 / 3);
    let least = sync + answer + decision;
    table(
        &format!("control: a write of a lone client, {rows} rows"),
        &["", "p50", "of the sum"],
        &[
            ("a write", write),
            ("fdatasync, a constant's answer and a decision", least),
            ("  fdatasync", sync),
            ("  a constant's answer", answer),
            ("  a decision", decision),
        ]
        .map(|(what, time)| vec![what.to_owned(), shown(time), format!("{:.2}", ratio(time, least))]),
    );
    let times = ratio(write, least);
    target(&format!("one client: a write under 1.2 times what it must cost ({times:.2})"), times < 1.2);
    Ok(())
}

/// What a reader does.
#[derive(Debug, Serialize, Deserialize)]
struct Reading {
    address: SocketAddr,
    token: String,
    /// Each is asked for in turn, and must be named in its answer.
    names: Vec<String>,
    /// Whether it must; a constant says the same always.
    named: bool,
    lead: Duration,
    time: Duration,
}

/// How long reads took.
#[derive(Debug, Serialize, Deserialize)]
struct Reads {
    count: usize,
    p50: Duration,
    p99: Duration,
}

/// A reader of small lists, with and without writers beside it, of ours and of a constant.
pub(super) fn reads(field: &Field, rows: usize) -> Result<()> {
    let mut lines = Vec::new();
    let mut grown = Vec::new();
    for who in [Who::Ours, Who::Constant] {
        let Some(server) = field.server(who, rows) else { continue };
        let reading = Reading {
            address: server.address,
            token: server.access.query.clone(),
            names: seed::instances(rows).take(100).collect(),
            named: who == Who::Ours,
            lead: LEAD,
            time: READ,
        };
        let alone: Reads = load::in_process(READS, &reading)?;
        let beside = std::thread::scope(|scope| {
            let writers = scope.spawn(|| super::measure(server, WRITERS, READ + LEAD * 2));
            let reads: Result<Reads> = load::in_process(READS, &reading);
            match writers.join() {
                Ok(written) => written.and(reads),
                Err(_) => bail!("the thread of the writers failed"),
            }
        })?;
        for (what, reads) in [("nobody writes", &alone), ("64 clients write", &beside)] {
            lines.push(vec![
                format!("{}: {what}", who.name()),
                reads.count.to_string(),
                shown(reads.p50),
                shown(reads.p99),
            ]);
        }
        grown.push((who, ratio(beside.p99, alone.p99)));
    }
    table(
        &format!("control: one reader of GET /v1/resources?kind=instance&name=NAME, {rows} rows"),
        &["", "reads", "p50", "p99"],
        &lines,
    );
    for (who, times) in grown {
        match who {
            Who::Ours => {
                target(
                    &format!("64 clients write: p99 of reads under twice the p99 without ({times:.1})"),
                    times < 2.0,
                );
            }
            // What waiting for a processor costs, whatever the server does.
            _ => note(&format!("the constant's own, with a constant for writes too: {times:.1}")),
        }
    }
    Ok(())
}

/// The hidden part: a job on standard input, its outcome on standard output.
pub(crate) fn read() -> Result<()> {
    let reading: Reading = job()?;
    let scanner = Scanner::default();
    let mut stream = TcpStream::connect(reading.address)?;
    stream.set_nodelay(true)?;
    let mut input = vec![0; 64 << 10];
    let mut times = Times::default();
    let began = Instant::now() + reading.lead;
    for name in reading.names.iter().cycle() {
        let at = Instant::now();
        if at >= began + reading.time {
            break;
        }
        stream.write_all(&get(&format!("/v1/resources?kind=instance&name={name}"), &reading.token))?;
        let mut filled = 0;
        let answer = loop {
            let count = stream.read(input.get_mut(filled..).context("an answer is too long")?)?;
            ensure!(count > 0, "the server closed the connection");
            filled += count;
            if let Some(answer) = scanner.answer(input.get(..filled).unwrap_or_default())? {
                break answer;
            }
        };
        let took = at.elapsed();
        let body = String::from_utf8_lossy(answer.body);
        let right = !reading.named || body.contains(&format!("\"name\":\"{name}\""));
        ensure!(answer.status == 200 && right, "{} {body}", answer.status);
        if at >= began {
            times.add(took);
        }
        std::thread::sleep(PAUSE);
    }
    report(&Reads { count: times.count(), p50: times.percentile(50), p99: times.percentile(99) })
}

/// All rows in one list, and what that adds to the server's memory.
pub(super) fn list(field: &Field, rows: usize) -> Result<()> {
    let Some(server) = field.server(Who::Ours, rows) else { return Ok(()) };
    let client = Client::new(&format!("http://{}", server.address), &server.access.query);
    // Whatever the first list needs once is there before.
    ask(&client, "/v1/resources?kind=machine", 0)?;
    let (before, peak, bytes, took) = one_list(server, &client, rows)?;
    let more = peak.saturating_sub(before);
    table(
        &format!("control: one list of {rows} rows"),
        &["", "took", "resident before", "at the peak", "more"],
        &[vec![mebibytes(bytes), shown(took), mebibytes(before), mebibytes(peak), mebibytes(more)]],
    );
    target(&format!("a list adds less than {} to the peak", mebibytes(LIST)), more < LIST);
    Ok(())
}

fn one_list(server: &Running, client: &Client, rows: usize) -> Result<(u64, u64, u64, Duration)> {
    forget_peak(server.pid())?;
    let before = memory(server.pid())?;
    let began = Instant::now();
    let bytes = ask(client, "/v1/resources", rows)?;
    let took = began.elapsed();
    Ok((before, peak_memory(server.pid())?, bytes, took))
}

/// Bytes of a list, which must have so many rows.
fn ask(client: &Client, path: &str, rows: usize) -> Result<u64> {
    let answer = client.request("GET", path, None, &[])?;
    let there = memchr::memmem::find_iter(answer.text.as_bytes(), b"\"observedAt\":").count();
    ensure!(answer.status == 200 && there == rows, "{}: {there} of {rows} rows", answer.status);
    Ok(answer.text.len() as u64)
}
