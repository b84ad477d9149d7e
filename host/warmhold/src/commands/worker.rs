//! `worker`: standing workers.

use super::connect;
use super::output::{print, print_json, view};
use super::replays::items;
use crate::cli::{Global, WorkerCommand};
use crate::client::{ASK, Client, Role, segment, view};
use crate::error::{CliError, Exit};
use crate::term::{harmless, span, table};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A pod may take so long to become ready, and its place is retired first.
const PREPARE: Duration = Duration::from_secs(2 * 3600);

pub(super) fn run(global: &Global, command: &WorkerCommand) -> Result<Exit, CliError> {
    match command {
        WorkerCommand::Prepare { profile, cut, count, json } => {
            let mut ask = Map::new();
            ask.insert("count".into(), json!(count));
            for (name, value) in [("profile", profile), ("cut", cut)] {
                if let Some(value) = value {
                    ask.insert(name.into(), json!(value));
                }
            }
            let answer = connect(global, Role::Admin)?.post("/v1/workers/prepare", &Value::Object(ask), PREPARE)?;
            let answer = items(&answer, "workers");
            let prepared: Vec<view::Prepared> = view(&answer)?;
            if *json {
                print_json(&answer)?;
            } else {
                print(&prepared.iter().map(prepared_line).collect::<String>())?;
            }
            // None at all is no worker either.
            let all = !prepared.is_empty() && prepared.iter().all(|worker| worker.prepared);
            return Ok(if all { Exit::Done } else { Exit::No });
        }
        WorkerCommand::List(args) => {
            let workers = list(&connect(global, Role::Query)?)?;
            if args.json {
                print_json(&workers)?;
            } else {
                print(&rows(&view::<Vec<view::Worker>>(&workers)?))?;
            }
        }
        WorkerCommand::Show { id, json } => {
            let worker = find(global, id)?;
            if *json {
                print_json(&worker)?;
            } else {
                print(&show(&view(&worker)?))?;
            }
        }
        WorkerCommand::Quarantine { id, dry_run: true, json, .. } => rehearse(global, id, "quarantine", *json)?,
        WorkerCommand::Remove { id, dry_run: true, json } => rehearse(global, id, "remove", *json)?,
        WorkerCommand::Quarantine { id, reason, json, .. } => {
            change(global, id, "quarantine", &json!({ "reason": reason }), *json)?;
        }
        WorkerCommand::Remove { id, json, .. } => change(global, id, "remove", &json!({}), *json)?,
    }
    Ok(Exit::Done)
}

fn list(client: &Client) -> Result<Value, CliError> {
    Ok(items(&client.get("/v1/workers")?, "workers"))
}

/// One worker of the list.
fn find(global: &Global, id: &str) -> Result<Value, CliError> {
    let workers = list(&connect(global, Role::Query)?)?;
    let found = workers.as_array().into_iter().flatten().find(|worker| worker.get("workerId") == Some(&json!(id)));
    found.cloned().ok_or_else(|| {
        CliError::no("not-found", format!("there is no worker `{id}`")).with_help("warmhold worker list shows them all")
    })
}

/// What a change would come to as the worker stands, by the daemon's own rules; it is only looked at.
fn rehearse(global: &Global, id: &str, what: &str, json: bool) -> Result<(), CliError> {
    let answer = find(global, id)?;
    let worker: view::Worker = view(&answer)?;
    let (id, state) = (harmless(&worker.worker_id), worker.state.as_str());
    match (what, state) {
        ("quarantine", "quarantined") => {
            return Err(CliError::no("already-quarantined", format!("worker {id} is quarantined already")));
        }
        ("remove", _) if worker.tier.is_none() => {
            return Err(CliError::no("another-machine", format!("worker {id} isn't one of this daemon's")));
        }
        ("remove", "leased" | "sanitizing") => {
            return Err(CliError::no("worker-in-use", format!("worker {id} is {state}"))
                .with_help(format!("wait for its replay, or take it out first: warmhold worker quarantine {id}")));
        }
        _ => {}
    }
    if json {
        return print_json(&json!({ "dryRun": true, "would": what, "worker": answer }));
    }
    print(&format!("would {what} {id}, which is {}; nothing was changed\n", harmless(state)))
}

fn change(global: &Global, id: &str, what: &str, body: &Value, json: bool) -> Result<(), CliError> {
    let answer = connect(global, Role::Admin)?.post(&format!("/v1/workers/{}/{what}", segment(id)), body, ASK)?;
    if json {
        return print_json(&answer);
    }
    let worker: view::Worker = view(&answer)?;
    let done = if what == "remove" { "removed" } else { "quarantined" };
    print(&format!("{}: {done}\n", harmless(&worker.worker_id)))
}

fn prepared_line(worker: &view::Prepared) -> String {
    let name = if worker.worker_id.is_empty() { harmless(&worker.pod) } else { harmless(&worker.worker_id) };
    if worker.prepared {
        format!("{name}: ready in pod {} ({})\n", harmless(&worker.pod), harmless(&worker.pod_uid))
    } else {
        format!(
            "{name}: not prepared: {}\n",
            worker.reason.as_deref().map_or_else(|| "no reason given".to_owned(), harmless)
        )
    }
}

fn state(worker: &view::Worker) -> String {
    if worker.expired { format!("{} (expired)", harmless(&worker.state)) } else { harmless(&worker.state) }
}

fn rows(workers: &[view::Worker]) -> String {
    if workers.is_empty() {
        return "no workers yet; prepare one with `warmhold worker prepare`\n".to_owned();
    }
    let mut rows =
        vec![["WORKER", "STATE", "GENERATION", "MACHINE", "TIER", "CUT", "AGE", "REASON"].map(str::to_owned).to_vec()];
    for worker in workers {
        let tier = match (&worker.tier, worker.slot) {
            (Some(tier), Some(slot)) => format!("{} {slot}", harmless(tier)),
            (Some(tier), None) => harmless(tier),
            (None, _) => "-".to_owned(),
        };
        rows.push(vec![
            harmless(&worker.worker_id),
            state(worker),
            worker.generation.to_string(),
            harmless(&worker.machine),
            tier,
            worker.cut_sha.as_deref().map_or_else(|| "-".to_owned(), |cut| harmless(cut).chars().take(10).collect()),
            span(worker.age_ms),
            worker.reason.as_deref().map(harmless).unwrap_or_default(),
        ]);
    }
    table(&rows)
}

fn show(worker: &view::Worker) -> String {
    let text = |value: &Option<String>| value.as_deref().map_or_else(|| "-".to_owned(), harmless);
    let facts = [
        ("worker", harmless(&worker.worker_id)),
        ("state", state(worker)),
        ("reason", worker.reason.as_deref().map(harmless).unwrap_or_default()),
        ("generation", worker.generation.to_string()),
        ("machine", harmless(&worker.machine)),
        ("tier", text(&worker.tier)),
        ("slot", worker.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string())),
        ("cut", text(&worker.cut_sha)),
        ("pod UID", text(&worker.pod_uid)),
        ("age", span(worker.age_ms)),
    ];
    facts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name:<11}{value}\n"))
        .collect()
}
