//! Policies that mean harm, and what the host does about each.

use super::{refill, show, text};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use warmhold_tests::{Daemon, Site};

/// A lease policy, and the code that its caller gets (or `load` where it isn't even loaded).
const LEASE: [&str; 6] =
    ["endless-loop", "memory-bomb", "forged-owner", "generation-kept", "lease-quarantined", "log-flood"];
const REPLAY: [&str; 3] = ["sanitize-unclean", "other-pod", "keep-lease"];

/// Offers each of them and shows what comes of it.
pub(super) fn withstand(site: &Site, daemon: &Daemon, passing: &[String]) -> Result<()> {
    // One that is out of use, for the policy that would lease it all the same.
    let workers = site.workers()?;
    let out = workers.last().map(|worker| text(worker, "workerId")).context("no worker")?;
    let ran = site.run(&["worker", "quarantine", out])?;
    ensure!(ran.code == 0, "worker quarantine: {}", ran.stderr);
    for name in LEASE {
        let before = rows(site, daemon)?;
        let what = match load(site, daemon, "lease", name)? {
            Err(refusal) => format!("refused at load: {refusal}"),
            Ok(()) => {
                // Three faults in a row bring the last good policy back by themselves.
                let answers = (0..3).map(|_| acquire(site, daemon)).collect::<Result<Vec<_>>>()?;
                ensure!(
                    answers.iter().all(|(status, _)| *status == 503),
                    "{name}: a hostile decision was carried out: {answers:?}"
                );
                let (status, code) = answers.first().context("no answer")?;
                let by_itself = serving(site, "lease")? != name;
                back_to(site, "lease", "lease-policy")?;
                let gone = if by_itself { "after three it is out of its place" } else { "rolled back" };
                format!("loaded; its decisions: {status} {code}; {gone}")
            }
        };
        ensure!(rows(site, daemon)? == before, "{name} changed the ledger");
        show::say(&format!("{name:<18} {what}; the ledger is as it was"));
    }
    for name in REPLAY {
        refill(site)?;
        let what = match load(site, daemon, "replay", name)? {
            Err(refusal) => format!("refused at load: {refusal}"),
            Ok(()) => {
                let file = passing.first().context("no file")?;
                let replay = site.run(&["replay", "--json", file])?.json()?;
                back_to(site, "replay", "warm-replay")?;
                format!("loaded; the replay ended {} ({})", text(&replay, "state"), text(&replay, "reason"))
            }
        };
        let dirty = site.workers()?.iter().filter(|worker| text(worker, "state") == "leased").count();
        ensure!(dirty == 0, "{name} left a worker leased");
        show::say(&format!("{name:<18} {what}; no worker is left leased"));
    }
    show::say(&format!("serving again: {}, {}", serving(site, "lease")?, serving(site, "replay")?));
    refill(site)
}

/// The name of what serves in a slot.
fn serving(site: &Site, slot: &str) -> Result<String> {
    let policies = site.run(&["policy", "list", "--json"])?.json()?;
    let serving = policies
        .as_array()
        .into_iter()
        .flatten()
        .find(|policy| text(policy, "state") == "serving" && text(policy, "slot") == slot)
        .with_context(|| format!("nothing serves in {slot}"))?;
    Ok(text(serving, "name").to_owned())
}

/// Rolls back until a policy serves: each step goes to the one before.
fn back_to(site: &Site, slot: &str, name: &str) -> Result<()> {
    for _ in 0..20 {
        if serving(site, slot)? == name {
            return Ok(());
        }
        let ran = site.run(&["policy", "rollback", slot])?;
        ensure!(ran.code == 0, "rollback: {}", ran.stderr);
    }
    anyhow::bail!("{name} doesn't serve again")
}

/// Offers a policy; its refusal in a line, if it is refused.
fn load(site: &Site, daemon: &Daemon, slot: &str, name: &str) -> Result<Result<(), String>> {
    let component = std::fs::read(site.programs.policy(name)?)?;
    let answer = site.send(daemon, "admin", "POST", &format!("/v1/policies/{slot}"), component)?;
    if answer.status == 200 {
        return Ok(Ok(()));
    }
    let message = text(&answer.json, "message").lines().next().unwrap_or_default().to_owned();
    ensure!(answer.status < 500, "{name}: the load failed: {}", answer.text);
    Ok(Err(format!("{} ({message})", answer.error())))
}

/// Asks for a worker as a caller would; status and code.
fn acquire(site: &Site, daemon: &Daemon) -> Result<(u16, String)> {
    let workers = site.ask(daemon, "query", "GET", "/v1/resources?kind=pod-worker-lease", None)?.json;
    let key = workers.pointer("/resources/0/attrs/key").cloned().unwrap_or(Value::Null);
    let body = json!({ "key": key, "runId": "hostile", "attemptId": "1", "ttlMs": 60_000 });
    let answer = site.ask(daemon, "member", "POST", "/v1/leases/pod-worker", Some(&body))?;
    Ok((answer.status, answer.error().to_owned()))
}

/// The ledger's rows without what changes by itself.
fn rows(site: &Site, daemon: &Daemon) -> Result<Value> {
    let mut rows = site.ask(daemon, "query", "GET", "/v1/resources", None)?.json;
    for row in rows.get_mut("resources").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(row) = row.as_object_mut() {
            row.remove("ageMs");
            row.remove("expired");
        }
    }
    Ok(rows)
}
