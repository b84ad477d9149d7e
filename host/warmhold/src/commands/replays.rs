//! `replays`: what waits for a verdict, and what was.

use super::connect;
use super::output::{print, print_json, view};
use super::replay::file_line;
use crate::cli::{Global, ReplaysCommand};
use crate::client::{ASK, Role, segment, view};
use crate::error::{CliError, Exit};
use crate::term::{Paint, harmless, moment, table};
use serde_json::{Value, json};

pub(super) fn run(global: &Global, command: &ReplaysCommand) -> Result<Exit, CliError> {
    match command {
        ReplaysCommand::List { limit, json } => {
            let answer = connect(global, Role::Query)?.get(&format!("/v1/replays?limit={limit}"))?;
            let listed = items(&answer, "replays");
            if *json {
                print_json(&listed)?;
            } else {
                print(&list(&view::<Vec<view::Replay>>(&listed)?))?;
            }
        }
        ReplaysCommand::Show { id, json } => {
            let answer = connect(global, Role::Query)?.get(&format!("/v1/replays/{}", segment(id)))?;
            if *json {
                print_json(&answer)?;
            } else {
                print(&show(&view(&answer)?, Paint::stdout()))?;
            }
        }
        ReplaysCommand::Finalize { id, json } => settle(global, id, "finalize", &json!({}), *json)?,
        ReplaysCommand::Quarantine { id, reason, json } => {
            settle(global, id, "quarantine", &json!({ "reason": reason }), *json)?;
        }
    }
    Ok(Exit::Done)
}

/// The list of an answer: the answer itself, or the field that holds it.
pub(super) fn items(answer: &Value, field: &str) -> Value {
    answer.get(field).unwrap_or(answer).clone()
}

fn settle(global: &Global, id: &str, verdict: &str, body: &Value, json: bool) -> Result<(), CliError> {
    let client = connect(global, Role::Member)?;
    let answer = client.post(&format!("/v1/replays/{}/{verdict}", segment(id)), body, ASK)?;
    if json {
        return print_json(&answer);
    }
    let replay: view::Replay = view(&answer)?;
    let worker = replay.worker.map(|worker| format!(", worker {}", harmless(&worker.id))).unwrap_or_default();
    print(&format!("{}: {}{worker}\n", harmless(&replay.id), harmless(&replay.state)))
}

fn list(replays: &[view::Replay]) -> String {
    if replays.is_empty() {
        return "no replays yet; ask for one with `warmhold replay FILE`\n".to_owned();
    }
    let mut rows = vec![["ID", "STATE", "RESULT", "FILES", "CUT", "STARTED"].map(str::to_owned).to_vec()];
    for replay in replays {
        rows.push(vec![
            harmless(&replay.id),
            harmless(&replay.state),
            result(replay),
            replay.files.len().to_string(),
            harmless(&replay.cut_sha).chars().take(10).collect(),
            replay.history.first().map(|step| moment(step.at)).unwrap_or_default(),
        ]);
    }
    table(&rows)
}

fn result(replay: &view::Replay) -> String {
    match replay.outcome.as_deref() {
        Some("observed") if replay.passed => "passed".to_owned(),
        Some("observed") => "failed".to_owned(),
        _ => replay.reason.as_deref().map_or_else(|| "-".to_owned(), harmless),
    }
}

fn show(replay: &view::Replay, paint: Paint) -> String {
    let mut text = String::new();
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            text.push_str(&format!("{name:<11}{}\n", harmless(value)));
        }
    };
    fact("replay", &replay.id);
    fact("run", &format!("{}, attempt {}", replay.run_id, replay.attempt_id));
    fact("cut", &replay.cut_sha);
    fact("state", &replay.state);
    fact("result", &result(replay));
    fact("detail", replay.detail.as_deref().unwrap_or_default());
    if let Some(worker) = &replay.worker {
        fact("worker", &format!("{}, generation {}, lease …{}", worker.id, worker.generation, worker.lease));
        fact(
            "pod",
            &format!("{} {} ({} slot {} of {})", worker.pod, worker.pod_uid, worker.tier, worker.slot, worker.machine),
        );
        fact("container", &worker.container_id);
    }
    if let Some(isolation) = &replay.isolation {
        let why = if isolation.why.is_empty() { String::new() } else { format!(": {}", isolation.why.join("; ")) };
        fact("isolation", &format!("{}{why}", isolation.level));
    }
    for (name, policy) in [
        ("lease by", &replay.policies.lease),
        ("manifest by", &replay.policies.manifest),
        ("replay by", &replay.policies.replay),
    ] {
        fact(&format!("{name} "), policy);
    }
    if !replay.files.is_empty() {
        text.push_str("\nfiles\n");
        replay.files.iter().for_each(|file| text.push_str(&format!("  {}", file_line(file, paint))));
    }
    if !replay.history.is_empty() {
        text.push_str("\nhistory\n");
        for step in &replay.history {
            let note = step.note.as_deref().map(|note| format!("  {}", harmless(note))).unwrap_or_default();
            let line = format!("  {}  {:<11}{note}", moment(step.at), harmless(&step.state));
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}
