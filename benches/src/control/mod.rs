//! The control plane under load: cycles of acquire, release and sanitize over HTTP, beside what they are measured by.
//!
//! All servers of one run stand at once, each in a process of its own with a ledger that was filled before, and take
//! turns: only one of them works at a time, and what else the machine does hits all alike.

mod beside;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
mod load;
mod native;
mod plan;
mod process;
mod seed;
mod server;
mod wire;

pub(crate) use beside::{READS, read};
pub(crate) use load::{LOAD, run as load};
pub(crate) use plan::{Plan, USAGE};
pub(crate) use server::{SERVE, run as serve};

use crate::disk::Disk;
use crate::measure::{Times, note, shown, table, target};
use anyhow::{Context as _, Result};
use load::{Job, Outcome};
use plan::Also;
use server::{Running, Who};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Before each measurement.
const WARM: Duration = Duration::from_millis(300);
/// The rows of what is compared with others.
const COMPARED: usize = 10_000;
/// The rows of what must not get slower or larger with them.
const MANY: usize = 100_000;
/// Each of them is durable before it is answered.
const STEPS: f64 = 3.0;
/// Durable writes of the bare disk, before the servers take turns.
const SYNCS: usize = 100;

/// Prints the table.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut disk = Disk::open(folder.path())?;
    let field = Field::set_up(folder.path(), plan)?;
    let mut results = Results::default();
    let mut synced = Times::default();
    for round in 1..=plan.rounds {
        for &clients in &plan.clients {
            for _ in 0..SYNCS {
                synced.add(disk.write()?);
            }
            eprintln!("round {round} of {}: {clients} clients", plan.rounds);
            for (ledger, server) in field.for_clients(plan, clients) {
                let outcome = measure(server, clients, plan.time)
                    .with_context(|| format!("{} with {clients} clients and {ledger} rows", server.who.name()))?;
                results.add(clients, ledger, server.who, outcome);
            }
        }
    }
    show(plan, &results, synced.median());
    note(&format!(
        "fdatasync of a 4 KiB page on this disk: {} (p99 {})",
        shown(synced.median()),
        shown(synced.percentile(99))
    ));
    targets(plan, &results);
    if plan.also.contains(&Also::One) {
        beside::one_client(&results, COMPARED, synced.median())?;
    }
    if plan.also.contains(&Also::Reads) {
        beside::reads(&field, COMPARED)?;
    }
    if plan.also.contains(&Also::List) {
        beside::list(&field, MANY)?;
    }
    field.stop()
}

fn measure(server: &Running, clients: usize, time: Duration) -> Result<Outcome> {
    load::in_process(
        server.load(),
        &Job {
            address: server.address,
            member: server.access.member.clone(),
            machine: server.access.machine.clone(),
            clients,
            warm: WARM,
            measure: time,
            server: server.pid(),
            rising: server.who != Who::Constant,
        },
    )
}

/// The servers of a run, by how many rows they have; a constant has none.
struct Field {
    servers: Vec<(usize, Running)>,
}

impl Field {
    fn set_up(folder: &Path, plan: &Plan) -> Result<Self> {
        let mut servers = Vec::new();
        for rows in plan.ledgers() {
            eprintln!("filling ledgers with {rows} rows");
            servers.push((rows, Running::start(Who::Ours, folder, rows)?));
            for who in [Who::Native, Who::Etcd] {
                // Of etcd, which takes its time to be filled, one figure for each number of clients is enough.
                if plan.against.contains(&who) && (who == Who::Native || !plan.whole || rows == COMPARED) {
                    servers.push((rows, Running::start(who, folder, rows)?));
                }
            }
        }
        if plan.against.contains(&Who::Constant) {
            servers.push((0, Running::start(Who::Constant, folder, 0)?));
        }
        Ok(Self { servers })
    }

    /// Those that so many clients are to work with, smallest ledger first.
    fn for_clients<'a>(&'a self, plan: &Plan, clients: usize) -> impl Iterator<Item = (usize, &'a Running)> {
        let ledgers: Vec<usize> = plan.rows.iter().map(|rows| Plan::ledger(*rows, clients)).collect();
        self.servers
            .iter()
            .filter(move |(rows, server)| server.who == Who::Constant || ledgers.contains(rows))
            .map(|(rows, server)| (*rows, server))
    }

    /// The server with so many rows; a constant has none.
    fn server(&self, who: Who, rows: usize) -> Option<&Running> {
        let wanted =
            |(there, server): &&(usize, Running)| server.who == who && (who == Who::Constant || *there == rows);
        self.servers.iter().find(wanted).map(|(_, server)| server)
    }

    fn stop(self) -> Result<()> {
        self.servers.into_iter().try_for_each(|(_, server)| server.stop())
    }
}

/// All rounds' outcomes of one cell: clients, rows, server.
#[derive(Default)]
struct Results(BTreeMap<(usize, usize, Who), Vec<Outcome>>);

/// Medians over the rounds of one cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    rate: f64,
    p50: Duration,
    p99: Duration,
    server: Duration,
    load: Duration,
}

impl Results {
    fn add(&mut self, clients: usize, rows: usize, who: Who, outcome: Outcome) {
        self.0.entry((clients, rows, who)).or_default().push(outcome);
    }

    fn cell(&self, clients: usize, rows: usize, who: Who) -> Option<Cell> {
        // A constant is the same whatever the rows.
        let rows = if who == Who::Constant { 0 } else { rows };
        let outcomes = self.0.get(&(clients, rows, who))?;
        let time = |of: fn(&Outcome) -> Duration| {
            let mut times = Times::default();
            outcomes.iter().for_each(|outcome| times.add(of(outcome)));
            times.median()
        };
        let mut rates: Vec<f64> = outcomes.iter().map(Outcome::rate).collect();
        rates.sort_by(f64::total_cmp);
        Some(Cell {
            rate: rates.get((rates.len() - 1) / 2).copied()?,
            p50: time(|outcome| outcome.p50),
            p99: time(|outcome| outcome.p99),
            server: time(Outcome::server_each),
            load: time(Outcome::load_each),
        })
    }
}

#[allow(clippy::cast_precision_loss, reason = "at most 256 clients")]
fn show(plan: &Plan, results: &Results, sync: Duration) {
    let mut rows = Vec::new();
    for &clients in &plan.clients {
        for &count in &plan.rows {
            let ledger = Plan::ledger(count, clients);
            let Some(ours) = results.cell(clients, ledger, Who::Ours) else { continue };
            let other = |who| results.cell(clients, ledger, who).map(|cell| cell.rate);
            let synced = clients as f64 / (STEPS * sync.as_secs_f64());
            let limit = other(Who::Constant).map(|constant| constant.min(synced));
            rows.push(vec![
                clients.to_string(),
                ledger.to_string(),
                format!("{:.0}", ours.rate),
                shown(ours.p50),
                shown(ours.p99),
                shown(ours.server),
                shown(ours.load),
                of(ours.rate, limit),
                of(ours.rate, other(Who::Native)),
                of(ours.rate, other(Who::Etcd)),
            ]);
        }
    }
    let seconds = plan.time.as_secs_f64();
    table(
        &format!("control: acquire, release, sanitize; medians of {} rounds of {seconds} s", plan.rounds),
        &["clients", "rows", "cycles/s", "p50", "p99", "server CPU", "load CPU", ": limit", ": native", ": etcd"],
        &rows,
    );
    others(results);
    note("CPU is processor time a cycle; server and load generator share the processors");
    note("limit: the smaller of clients / (3 fdatasync) and the constant's cycles/s");
    note("each client has a key and a worker of its own, so there are as many rows as clients at least");
}

/// What ours is compared with, in figures of its own.
fn others(results: &Results) {
    let mut rows = Vec::new();
    for (clients, ledger, who) in results.0.keys().filter(|(_, _, who)| *who != Who::Ours) {
        let Some(cell) = results.cell(*clients, *ledger, *who) else { continue };
        rows.push((
            who,
            vec![
                who.name().to_owned(),
                clients.to_string(),
                if *who == Who::Constant { String::new() } else { ledger.to_string() },
                format!("{:.0}", cell.rate),
                shown(cell.p50),
                shown(cell.p99),
                shown(cell.server),
                shown(cell.load),
            ],
        ));
    }
    rows.sort_by_key(|(who, _)| **who);
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    if !rows.is_empty() {
        table(
            "control: beside it",
            &["", "clients", "rows", "cycles/s", "p50", "p99", "server CPU", "load CPU"],
            &rows,
        );
    }
}

fn of(this: f64, other: Option<f64>) -> String {
    other.map_or_else(|| "-".to_owned(), |other| format!("{:.2}", this / other))
}

/// A sentence for each target whose figures were measured.
fn targets(plan: &Plan, results: &Results) {
    let rate = |clients, rows, who| results.cell(clients, Plan::ledger(rows, clients), who).map(|cell| cell.rate);
    for clients in [64, 256] {
        let ours = rate(clients, COMPARED, Who::Ours);
        if let (Some(ours), Some(etcd)) = (ours, rate(clients, COMPARED, Who::Etcd)) {
            let times = ours / etcd;
            target(&format!("{clients} clients, 10000 rows: at least 5 times etcd ({times:.1})"), times >= 5.0);
        }
        if let (Some(ours), Some(native)) = (ours, rate(clients, COMPARED, Who::Native)) {
            let part = ours / native;
            target(
                &format!("{clients} clients, 10000 rows: at least 75 % of native ({:.0} %)", part * 100.0),
                part >= 0.75,
            );
        }
    }
    for &clients in &plan.clients {
        if let (Some(few), Some(many)) = (rate(clients, 100, Who::Ours), rate(clients, MANY, Who::Ours)) {
            let part = many / few;
            target(
                &format!("{clients} clients: 100000 rows do at least 0.9 of 100 rows' cycles ({part:.2})"),
                part >= 0.9,
            );
        }
    }
}
