//! A warm replay of one file over HTTP, beside what cannot be saved: running the file, and writing three times durably.

use crate::disk::Disk;
use crate::measure::{Times, note, ratio, shown, table, target};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use warmhold_tests::{Client, Site};

const ROUNDS: usize = 30;
/// Rounds that aren't counted: files come into the kernel's cache, connections are made.
const WARM_UP: usize = 3;
/// What a replay must write: that it is asked for, who holds the worker, what was observed.
const WRITES: usize = 3;
const FILE: &str = "tests/test_trivial.py";
const TEXT: &str = "\
import unittest


class Trivial(unittest.TestCase):
    def test_two(self):
        self.assertEqual(1 + 1, 2)
";
/// Where a daemon looks for programs when nothing is configured: the same interpreter runs in both ways.
const SEARCHED: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prints the table.
pub(crate) fn run() -> Result<()> {
    let site = Site::new("release")?;
    site.repository.write(FILE, TEXT)?;
    let cut = site.repository.commit("add a trivial test")?;
    let daemon = site.serve()?;
    let prepared = site.run(&["worker", "prepare"])?;
    ensure!(prepared.code == 0, "worker prepare: {}{}", prepared.stdout, prepared.stderr);
    let client = Client::new(&daemon.url, &site.token("member")?);
    let mut disk = Disk::open(site.folder())?;
    let (mut replays, mut plain, mut writes) = (Times::default(), Times::default(), Times::default());
    let mut stages = Stages::default();
    for round in 0..WARM_UP + ROUNDS {
        let counts = round >= WARM_UP;
        let began = Instant::now();
        let replay = ask(&client, &cut)?;
        let took = began.elapsed();
        settle(&client, &replay)?;
        let by_hand = by_hand(&site)?;
        let written = disk.writes(WRITES)?.sum();
        if counts {
            replays.add(took);
            plain.add(by_hand);
            writes.add(written);
            stages.add(&replay, took)?;
        }
    }
    ensure!(daemon.stop()?.success(), "the daemon didn't end well");
    let bound = plain.median() + writes.median();
    let row = |what: &str, times: &Times| {
        vec![
            what.to_owned(),
            shown(times.median()),
            shown(times.percentile(99)),
            format!("{:.2}", ratio(times.median(), bound)),
        ]
    };
    let mut rows = vec![row("replay, from request to observed", &replays)];
    rows.extend(stages.all().map(|(what, times)| row(what, times)));
    rows.push(row("the file by hand: python3 -m unittest", &plain));
    rows.push(row(&format!("{WRITES} durable writes"), &writes));
    table(
        &format!("replay: one trivial Python file, {ROUNDS} times"),
        &["", "p50", "p99", ": by hand + writes"],
        &rows,
    );
    let times = ratio(replays.median(), bound);
    note(&format!("replay : by hand + {WRITES} durable writes = {times:.2}"));
    target("under 1.5 times", times < 1.5);
    Ok(())
}

/// Asks for a replay that stays observed, and looks whether it is.
fn ask(client: &Client, cut: &str) -> Result<Value> {
    let ask = json!({ "files": [FILE], "cutSha": cut, "keep": true });
    let answer = client.request("POST", "/v1/replays", Some(&ask), &[])?;
    ensure!(answer.status == 200, "the replay was refused: {} {}", answer.status, answer.text);
    let state = answer.json.get("state").and_then(Value::as_str);
    let passed = answer.json.get("passed").and_then(Value::as_bool);
    ensure!(state == Some("observed") && passed == Some(true), "the replay didn't pass: {}", answer.text);
    Ok(answer.json)
}

/// Gives the worker back, so that the next replay finds it.
fn settle(client: &Client, replay: &Value) -> Result<()> {
    let id = replay.get("id").and_then(Value::as_str).context("a replay without an id")?;
    let answer = client.request("POST", &format!("/v1/replays/{id}/finalize"), None, &[])?;
    ensure!(
        answer.json.get("state").and_then(Value::as_str) == Some("finalized"),
        "the worker wasn't given back: {} {}",
        answer.status,
        answer.text
    );
    Ok(())
}

/// The file as a person would run it.
fn by_hand(site: &Site) -> Result<Duration> {
    let mut command = Command::new("python3");
    command
        .args(["-m", "unittest", FILE])
        .env("PATH", SEARCHED)
        .current_dir(&site.repository.path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let began = Instant::now();
    let output = command.output().context("python3")?;
    let took = began.elapsed();
    ensure!(output.status.success(), "by hand it fails: {}", String::from_utf8_lossy(&output.stderr));
    Ok(took)
}

/// Where a replay's time goes, by the times in its own history (whole milliseconds).
#[derive(Default)]
struct Stages {
    leased: Times,
    checked: Times,
    executed: Times,
    file: Times,
    rest: Times,
}

impl Stages {
    fn add(&mut self, replay: &Value, took: Duration) -> Result<()> {
        let at = |state: &str| -> Result<u64> {
            let history = replay.get("history").and_then(Value::as_array).into_iter().flatten();
            history
                .filter(|entry| entry.get("state").and_then(Value::as_str) == Some(state))
                .find_map(|entry| entry.get("at")?.as_u64())
                .with_context(|| format!("the history has no {state}: {replay}"))
        };
        let (asked, leased, executing, observed) = (at("acquiring")?, at("leased")?, at("executing")?, at("observed")?);
        let between = |from: u64, to: u64| Duration::from_millis(to.saturating_sub(from));
        self.leased.add(between(asked, leased));
        self.checked.add(between(leased, executing));
        self.executed.add(between(executing, observed));
        let file =
            replay.pointer("/files/0/durationMs").and_then(Value::as_u64).context("a file without a duration")?;
        self.file.add(Duration::from_millis(file));
        self.rest.add(took.saturating_sub(between(asked, observed)));
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &Times)> {
        [
            ("  until a worker is leased", &self.leased),
            ("  until it is checked and starts", &self.checked),
            ("  until its verdict is checked", &self.executed),
            ("    of which the file itself, in the worker", &self.file),
            ("  until the answer is here", &self.rest),
        ]
        .into_iter()
    }
}
