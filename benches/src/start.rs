//! How soon a daemon serves, and what it holds in memory when it has nothing to do.

use crate::measure::{Times, mebibytes, shown, table, target};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use warmhold_tests::{Client, Site};

const ROUNDS: usize = 20;
const MIB: u64 = 1 << 20;
/// Until then the ticker rests and the kernel has taken back what it takes back by itself.
const IDLE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);

/// Prints the table.
pub(crate) fn run() -> Result<()> {
    let site = Site::new("release")?;
    // The first one compiles what the next ones find in the cache.
    Daemon::start(&site)?.0.stop()?;
    let (mut serving, mut program) = (Times::default(), Times::default());
    for _ in 0..ROUNDS {
        let (daemon, took) = Daemon::start(&site)?;
        daemon.stop()?;
        serving.add(took);
        program.add(version(&site)?);
    }
    let more = serving.median().saturating_sub(program.median());
    table(
        &format!("start: {ROUNDS} times, with a warm cache"),
        &["", "p50", "p99"],
        &[
            vec![
                "from spawn to the first 200 of /readyz".to_owned(),
                shown(serving.median()),
                shown(serving.percentile(99)),
            ],
            vec![
                "process start: warmhold --version".to_owned(),
                shown(program.median()),
                shown(program.percentile(99)),
            ],
            vec!["more".to_owned(), shown(more), String::new()],
        ],
    );
    target("under 100 ms more", more < Duration::from_millis(100));
    memory(&site)
}

fn memory(site: &Site) -> Result<()> {
    let (daemon, _) = Daemon::start(site)?;
    std::thread::sleep(IDLE);
    let started = Memory::of(daemon.child.id())?;
    let admin = Client::new(&daemon.url, &site.token("admin")?);
    // The lease policy of the examples is another component than the built-in one: it is compiled in the daemon.
    for (slot, policy) in [("lease", "most-recent"), ("manifest", "pod-manifest"), ("replay", "warm-replay")] {
        let component = std::fs::read(site.programs.policy(policy)?)?;
        let answer = admin.send("POST", &format!("/v1/policies/{slot}"), component, &[])?;
        ensure!(answer.status == 200, "{policy} wasn't loaded: {} {}", answer.status, answer.text);
    }
    std::thread::sleep(IDLE);
    let loaded = Memory::of(daemon.child.id())?;
    daemon.stop()?;
    let row = |what: &str, memory: &Memory| {
        vec![what.to_owned(), mebibytes(memory.resident), mebibytes(memory.own), mebibytes(memory.share)]
    };
    table(
        "memory: a daemon with three policies, idle",
        &["", "resident", "of it its own", "proportional"],
        &[row("built in, from the cache", &started), row("and three loaded while it ran", &loaded)],
    );
    target("under 64 MiB resident", started.resident < 64 * MIB);
    target("under 64 MiB resident after three loads", loaded.resident < 64 * MIB);
    Ok(())
}

/// Starts the program and waits for its end.
fn version(site: &Site) -> Result<Duration> {
    let began = Instant::now();
    let output = Command::new(&site.programs.warmhold).arg("--version").stdin(Stdio::null()).output()?;
    let took = began.elapsed();
    ensure!(output.status.success(), "warmhold --version: {}", output.status);
    Ok(took)
}

/// What the kernel says a process holds.
struct Memory {
    resident: u64,
    /// Not backed by a file.
    own: u64,
    /// What is shared counts in parts.
    share: u64,
}

impl Memory {
    fn of(pid: u32) -> Result<Self> {
        let read = |file: &str, name: &str| -> Result<u64> {
            let path = format!("/proc/{pid}/{file}");
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("{path}: {name}"))?;
            let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
            Ok(kibibytes * 1024)
        };
        Ok(Self {
            resident: read("status", "VmRSS:")?,
            own: read("status", "RssAnon:")?,
            share: read("smaps_rollup", "Pss:")?,
        })
    }
}

/// A daemon that says where it serves; killed when it is dropped.
struct Daemon {
    child: Child,
    url: String,
}

impl Daemon {
    /// Starts one and asks until it answers that it is ready. How long that took.
    fn start(site: &Site) -> Result<(Self, Duration)> {
        let began = Instant::now();
        let child =
            site.command(&["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut daemon = Self { child, url: String::new() };
        let stdout = daemon.child.stdout.take().context("no standard output")?;
        // Blocks until the line is there: nothing is lost to looking again and again.
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if let Some(url) = line.split_whitespace().find(|word| word.starts_with("http://")) {
                daemon.url = url.to_owned();
                break;
            }
        }
        ensure!(!daemon.url.is_empty(), "the daemon ended before it served");
        let answer = Client::anonymous(&daemon.url).request("GET", "/readyz", None, &[])?;
        let took = began.elapsed();
        ensure!(answer.status == 200, "it serves and isn't ready: {} {}", answer.status, answer.text);
        Ok((daemon, took))
    }

    /// Asks it to end.
    fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, Signal::TERM)?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the daemon ended with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("the daemon doesn't end");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
