//! etcd, doing the same three steps: each a transaction that compares a key's revision and puts a new value.
//!
//! It has it easier than ours: nobody looks for an idle worker, nobody decides, tokens aren't checked, and each client
//! knows its key's revision from the answer before.

use super::load::{Clock, Job, Outcome, job, report};
use super::seed;
use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The hidden part that loads it.
pub(crate) const LOAD: &str = "control-load-etcd";
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients that share a connection: its protocol has room for many, and it is quicker so than with one for each.
const OF_A_CONNECTION: usize = 64;
/// Puts in a transaction while it is filled; etcd takes 128.
const AT_ONCE: usize = 100;

/// A running etcd; killed when it is dropped.
pub(super) struct Etcd {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Etcd {
    /// Starts one with so many keys.
    pub(super) fn start(folder: &Path, keys: usize) -> Result<Self> {
        let (clients, peers) = (free()?, free()?);
        let (client_url, peer_url) = (format!("http://{clients}"), format!("http://{peers}"));
        let data = folder.join(format!("etcd-{keys}"));
        let child = Command::new("etcd")
            .args(["--name", "bench", "--log-level", "error", "--logger", "zap"])
            .arg("--data-dir")
            .arg(&data)
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("bench={peer_url}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .context("etcd doesn't start; ./x bench installs it, or: apt-get install etcd-server")?;
        let mut etcd = Self { child, address: clients };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut client = etcd.ready().await?;
            fill(&mut client, keys).await
        })?;
        Ok(etcd)
    }

    async fn ready(&mut self) -> Result<Client> {
        let began = Instant::now();
        loop {
            if let Ok(mut client) = Client::connect([self.address.to_string()], None).await
                && client.get("/", None).await.is_ok()
            {
                return Ok(client);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("etcd ended with {status}");
            }
            ensure!(began.elapsed() < PATIENCE, "etcd doesn't serve");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end.
    pub(super) fn stop(mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, Signal::TERM)?;
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(began.elapsed() < PATIENCE, "etcd doesn't end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that was free a moment ago: etcd can't say which one it took by itself.
fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn key(number: usize) -> String {
    format!("/pod-worker-lease/worker-{number:06}")
}

/// As many keys as there are rows in our ledgers, with values as long as the rows.
async fn fill(client: &mut Client, keys: usize) -> Result<()> {
    let numbers: Vec<usize> = (0..keys).collect();
    for some in numbers.chunks(AT_ONCE) {
        let puts: Vec<_> =
            some.iter().map(|number| TxnOp::put(key(*number), seed::row_json(*number, "idle", 0, ""), None)).collect();
        client.txn(Txn::new().and_then(puts)).await?;
    }
    Ok(())
}

/// The hidden part: a job on standard input, its outcome on standard output.
pub(crate) fn load() -> Result<()> {
    let job = job()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    report(&tokio::task::LocalSet::new().block_on(&runtime, drive(&job))?)
}

async fn drive(job: &Job) -> Result<Outcome> {
    let mut connections = Vec::new();
    for _ in 0..job.clients.div_ceil(OF_A_CONNECTION) {
        connections.push(Client::connect([job.address.to_string()], None).await?);
    }
    let clock = Rc::new(RefCell::new(Clock::new(job)));
    let mut clients = Vec::new();
    for number in 0..job.clients {
        let connection = connections.get(number / OF_A_CONNECTION).context("too few connections")?.clone();
        clients.push(tokio::task::spawn_local(work(connection, number, Rc::clone(&clock))));
    }
    for client in clients {
        client.await??;
    }
    let clock = Rc::into_inner(clock).context("somebody still works")?;
    clock.into_inner().outcome()
}

async fn work(mut client: Client, number: usize, clock: Rc<RefCell<Clock>>) -> Result<()> {
    let key = key(number);
    let held = client.get(key.as_str(), None).await?;
    let mut revision = held.kvs().first().with_context(|| format!("there is no {key}"))?.mod_revision();
    let mut generation = 0_u64;
    loop {
        let began = Instant::now();
        generation += 1;
        let lease = format!("00000000-0000-4000-a000-{generation:012}");
        for (state, lease) in [("leased", lease.as_str()), ("sanitizing", &lease), ("idle", "")] {
            let put = TxnOp::put(key.as_str(), seed::row_json(number, state, generation, lease), None);
            let fence = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
            let answer = client.txn(Txn::new().when([fence]).and_then([put])).await?;
            ensure!(answer.succeeded(), "{key} was changed by somebody else");
            revision = answer.header().context("an answer without a header")?.revision();
        }
        let mut clock = clock.borrow_mut();
        clock.look()?;
        clock.count(began.elapsed());
        if clock.over() {
            return Ok(());
        }
    }
}
