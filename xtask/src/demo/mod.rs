//! The whole job, shown and checked: whatever isn't as told ends the demo with an error.

mod hostile;
mod load;
mod show;

use anyhow::{Context as _, Result, ensure};
use load::Load;
use serde_json::{Value, json};
use show::{step, table};
use std::path::Path;
use std::time::{Duration, Instant};
use warmhold_tests::{Daemon, Site};

/// A test that is still running when the daemon dies.
const SLOW: &str = "echo begun\nsleep 30\n";

/// Runs the demo.
///
/// # Errors
/// Something isn't as told.
pub(crate) fn run() -> Result<()> {
    let site = Site::new("debug")?;
    site.repository.write("tests-slow/sleep.sh", SLOW)?;
    let cut = site.repository.commit("add a slow test")?;
    let folder = site.folder().to_owned();
    let shown = tour(&site, &cut);
    if shown.is_err() {
        show::say(&format!("the daemon's log ends so:\n{}", show::last_lines(&log(&site), 25)));
    }
    drop(site);
    let rows = shown?;
    step("What is left");
    ensure!(!folder.exists(), "{} is still there", folder.display());
    let left = processes_of(&folder);
    ensure!(left.is_empty(), "processes are left: {left:?}");
    show::say("nothing: no process, no mount, no file");
    table("On this machine, in this run", &rows);
    Ok(())
}

fn tour(site: &Site, cut: &str) -> Result<Vec<(String, String)>> {
    step("A daemon with three WebAssembly policies, on a free loopback port");
    let mut daemon = site.serve()?;
    show::say(&format!("it serves at {}", daemon.url));
    show::run(site, &["policy", "list"], 0)?;

    step("Two warm workers with the source at HEAD");
    let began = Instant::now();
    show::run(site, &["worker", "prepare", "--count", "2"], 0)?;
    let prepared = began.elapsed() / 2;
    show::run(site, &["worker", "list"], 0)?;

    step("A replay in which everything passes");
    let passing = passing_files(site)?;
    let arguments: Vec<&str> = std::iter::once("replay").chain(passing.iter().map(String::as_str)).collect();
    show::run(site, &arguments, 0)?;

    step("A replay in which a file fails: shown, exit 1, the worker is cleaned and given back");
    let failing = first_file(&site.repository.path, "tests-failing")?;
    show::run(site, &["replay", &failing], 1)?;
    all_idle(site, 2)?;
    show::run(site, &["worker", "list"], 0)?;

    step("Another lease policy, loaded while requests run");
    let swap = swap_policy(site, &daemon, &passing)?;

    step("Policies that mean harm: each is offered, each is withstood");
    hostile::withstand(site, &daemon, &passing)?;

    step("The daemon is killed (-9) in the middle of a replay, and started again");
    daemon = crash(site, daemon, cut, &passing)?;

    step("Speed");
    let rows = figures(site, &daemon, &passing, prepared, swap)?;
    ensure!(daemon.stop()?.success(), "the daemon didn't end well on SIGTERM");
    Ok(rows)
}

/// Every file of the example's `tests` folder.
fn passing_files(site: &Site) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(site.repository.path.join("tests"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if [".sh", ".py", ".mjs", ".js"].iter().any(|ending| name.ends_with(ending)) && name != "__init__.py" {
            files.push(format!("tests/{name}"));
        }
    }
    files.sort();
    ensure!(files.len() >= 3, "the example has too few tests: {files:?}");
    Ok(files)
}

fn first_file(repository: &Path, folder: &str) -> Result<String> {
    let mut names: Vec<String> = std::fs::read_dir(repository.join(folder))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.ends_with(".sh") || name.ends_with(".py"))
        .collect();
    names.sort();
    Ok(format!("{folder}/{}", names.first().with_context(|| format!("{folder} is empty"))?))
}

fn all_idle(site: &Site, count: usize) -> Result<()> {
    let workers = site.workers()?;
    let idle = workers.iter().filter(|worker| text(worker, "state") == "idle").count();
    ensure!(idle == count, "{count} workers should be idle: {workers:?}");
    Ok(())
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Replays one file and answers the worker that it ran in.
fn chosen(site: &Site, file: &str) -> Result<String> {
    let ran = site.run(&["replay", "--json", file])?;
    let replay = ran.json()?;
    ensure!(ran.code == 0, "the replay of {file} didn't pass: {replay:#}");
    Ok(text(replay.get("worker").unwrap_or(&Value::Null), "id").to_owned())
}

fn swap_policy(site: &Site, daemon: &Daemon, passing: &[String]) -> Result<Duration> {
    let file = passing.first().context("no file")?;
    let before = chosen(site, file)?;
    show::say(&format!("built in: the first registered worker is chosen: {before}"));
    let recent = use_second_last(site, file, &before)?;
    let load = Load::start(site, daemon, 4)?;
    std::thread::sleep(Duration::from_millis(300));
    let component = site.programs.policy("most-recent")?;
    let began = Instant::now();
    show::run(site, &["policy", "load", "lease", &component.to_string_lossy()], 0)?;
    let swap = began.elapsed();
    std::thread::sleep(Duration::from_millis(300));
    let seen = load.stop()?;
    show::say(&format!(
        "{} requests ran meanwhile, none was lost; they were decided by {}",
        seen.requests,
        seen.policies.iter().cloned().collect::<Vec<_>>().join(" and ")
    ));
    ensure!(seen.failed.is_empty(), "requests failed during the swap: {:?}", seen.failed);
    ensure!(seen.policies.len() == 2, "two policies should have decided: {:?}", seen.policies);
    let after = chosen(site, file)?;
    show::say(&format!("most-recent: the most recently used worker is chosen: {after}"));
    ensure!(after == recent, "{after} was chosen, not {recent}");
    show::run(site, &["policy", "rollback", "lease"], 0)?;
    Ok(swap)
}

/// Holds both workers and gives them back, the first registered one first. The one that is then the most recently used.
fn use_second_last(site: &Site, file: &str, first: &str) -> Result<String> {
    let mut held = Vec::new();
    for _ in 0..2 {
        let replay = site.run(&["replay", "--keep", "--json", file])?.json()?;
        let worker = text(replay.get("worker").unwrap_or(&Value::Null), "id").to_owned();
        held.push((text(&replay, "id").to_owned(), worker));
    }
    for (id, _) in &held {
        let ran = site.run(&["replays", "finalize", id])?;
        ensure!(ran.code == 0, "finalize: {}", ran.stderr);
    }
    let [(_, one), (_, other)] = held.as_slice() else { anyhow::bail!("two replays were to be held") };
    ensure!(one == first && other != first && !other.is_empty(), "{one} and {other} were held, not {first} first");
    Ok(other.clone())
}

/// Waits until a replay of this site executes.
fn wait_executing(site: &Site, daemon: &Daemon, run: &str) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        let list = site.ask(daemon, "query", "GET", "/v1/replays", None)?.json;
        let all =
            list.as_array().or_else(|| list.get("replays").and_then(Value::as_array)).cloned().unwrap_or_default();
        if all.iter().any(|replay| text(replay, "runId") == run && text(replay, "state") == "executing") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("the replay doesn't execute")
}

fn crash(site: &Site, daemon: Daemon, cut: &str, passing: &[String]) -> Result<Daemon> {
    refill(site)?;
    let mut caller = site
        .command(&["replay", "--cut", cut, "--run", "crash", "tests-slow/sleep.sh"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    wait_executing(site, &daemon, "crash")?;
    show::say("a replay executes; kill -9");
    daemon.kill()?;
    let status = caller.wait()?;
    show::say(&format!("its caller is told: exit {}", status.code().unwrap_or(-1)));
    ensure!(status.code() == Some(3), "a caller whose daemon dies exits 3, not {status}");
    let daemon = site.serve()?;
    let replays = site.run(&["replays", "list"])?;
    print!("{}", replays.stdout);
    show::run(site, &["worker", "list"], 0)?;
    let workers = site.workers()?;
    let count = |state: &str| workers.iter().filter(|worker| text(worker, "state") == state).count();
    let held = workers.iter().filter(|worker| text(worker, "reason") == "daemon-died").count();
    ensure!(held == 1 && count("idle") >= 1, "one worker should be quarantined and one idle: {workers:?}");
    let file = passing.first().context("no file")?;
    let worker = chosen(site, file)?;
    show::say(&format!("the other worker serves: {worker}"));
    Ok(daemon)
}

/// Fills every slot that is empty or used up.
fn refill(site: &Site) -> Result<()> {
    let ran = site.run(&["worker", "prepare", "--count", "2"])?;
    ensure!(ran.code == 0, "worker prepare: {}{}", ran.stdout, ran.stderr);
    Ok(())
}

fn figures(
    site: &Site,
    daemon: &Daemon,
    passing: &[String],
    prepared: Duration,
    swap: Duration,
) -> Result<Vec<(String, String)>> {
    let file = passing.iter().find(|file| file.ends_with(".py")).context("no Python test")?;
    let mut warm = Duration::MAX;
    for attempt in 0..5 {
        let body = json!({ "files": [file], "cutSha": site.repository.head()?, "runId": "speed", "attemptId": attempt.to_string() });
        let began = Instant::now();
        let answer = site.ask(daemon, "member", "POST", "/v1/replays", Some(&body))?;
        warm = warm.min(began.elapsed());
        ensure!(answer.json.get("passed") == Some(&Value::Bool(true)), "the replay didn't pass: {}", answer.text);
    }
    let load = Load::start(site, daemon, 8)?;
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let seen = load.stop()?;
    ensure!(seen.failed.is_empty(), "requests failed: {:?}", seen.failed);
    #[allow(clippy::cast_precision_loss, reason = "a count of some seconds")]
    let rate = seen.requests as f64 / began.elapsed().as_secs_f64();
    let cold = prepared + warm;
    let ratio = cold.as_secs_f64() / warm.as_secs_f64();
    Ok(vec![
        ("cold: a fresh pod, then the run".to_owned(), format!("{:.0} ms", cold.as_secs_f64() * 1e3)),
        (
            "warm: the replay of one Python file".to_owned(),
            format!("{:.0} ms ({ratio:.1} times faster)", warm.as_secs_f64() * 1e3),
        ),
        ("durable decisions a second, 8 clients, this unoptimised build".to_owned(), format!("{rate:.0}")),
        ("policy load, from file to serving, under load".to_owned(), format!("{:.0} ms", swap.as_secs_f64() * 1e3)),
    ])
}

fn log(site: &Site) -> String {
    std::fs::read_to_string(site.folder().join("daemon.log")).unwrap_or_default()
}

fn processes_of(folder: &Path) -> Vec<String> {
    let marker = folder.to_string_lossy().into_owned();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let line = std::fs::read(path.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(&marker).then_some(line)
        })
        .collect()
}
