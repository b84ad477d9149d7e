//! The load generator: a process of its own, so that its work isn't the server's.
//!
//! A closed loop: each client has one connection, and asks for the next thing when the last one is answered. One thread
//! and one epoll serve all clients. Every answer is checked; a wrong one ends the bench.

use super::process::{own_time, processor_time};
use super::seed;
use super::wire::{Scanner, Worker, post};
use crate::measure::Times;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The hidden part of this program.
pub(crate) const LOAD: &str = "control-load";
/// Nothing that is asked here takes so long.
const SILENCE: Duration = Duration::from_secs(20);

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) address: SocketAddr,
    pub(super) member: String,
    pub(super) machine: String,
    pub(super) clients: usize,
    /// Until then nothing is counted.
    pub(super) warm: Duration,
    /// Then cycles are counted for so long.
    pub(super) measure: Duration,
    /// The process whose time is measured.
    pub(super) server: u32,
    /// Whether generations must rise from cycle to cycle; a constant's don't.
    pub(super) rising: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) cycles: u64,
    pub(super) time: Duration,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// Processor time of the server.
    pub(super) server: Duration,
    /// Processor time of the load generator.
    pub(super) load: Duration,
}

#[allow(clippy::cast_precision_loss, reason = "counts of a few seconds")]
impl Outcome {
    /// Cycles a second.
    pub(super) fn rate(&self) -> f64 {
        self.cycles as f64 / self.time.as_secs_f64()
    }

    /// The server's processor time a cycle.
    pub(super) fn server_each(&self) -> Duration {
        self.server.div_f64((self.cycles as f64).max(1.0))
    }

    /// The load generator's processor time a cycle.
    pub(super) fn load_each(&self) -> Duration {
        self.load.div_f64((self.cycles as f64).max(1.0))
    }
}

/// Has a process of its own do a job, in the hidden part with this name.
pub(super) fn in_process<T: serde::de::DeserializeOwned>(part: &str, job: &impl Serialize) -> Result<T> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // When it fails, what the process says is the better reason.
        let _ = input.write_all(serde_json::to_string(job)?.as_bytes());
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim().trim_start_matches("bench: error: "));
    serde_json::from_slice(&output.stdout).with_context(|| format!("the load generator said nothing: {said}"))
}

/// The hidden part: a job on standard input, its outcome on standard output.
pub(crate) fn run() -> Result<()> {
    report(&drive(&job()?)?)
}

/// The job of this process.
pub(super) fn job<T: serde::de::DeserializeOwned>() -> Result<T> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Tells the process that gave the job what came of it.
pub(super) fn report(outcome: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(outcome)?);
    Ok(())
}

fn drive(job: &Job) -> Result<Outcome> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let scanner = Scanner::default();
    let mut clients = Vec::with_capacity(job.clients);
    for number in 0..job.clients {
        let client = Client::connect(job, number)?;
        epoll::add(&poll, &client.stream, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
        clients.push(client);
    }
    let mut clock = Clock::new(job);
    for client in &mut clients {
        client.begin()?;
    }
    let mut busy = clients.len();
    let silence = Timespec::try_from(SILENCE)?;
    let mut events = Vec::with_capacity(job.clients.max(1));
    while busy > 0 {
        events.clear();
        match epoll::wait(&poll, spare_capacity(&mut events), Some(&silence)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(!events.is_empty(), "the server doesn't answer");
        clock.look()?;
        for event in &events {
            let number = usize::try_from(event.data.u64())?;
            let client = clients.get_mut(number).context("an event of nobody")?;
            let Some(took) = client.go_on(&scanner).with_context(|| format!("client {number}"))? else { continue };
            clock.count(took);
            // Cycles are ended, not broken off: the next measurement finds each worker idle.
            if clock.over() {
                busy -= 1;
            } else {
                client.begin()?;
            }
        }
    }
    clock.outcome()
}

/// When to count, and what was counted.
pub(super) struct Clock {
    warm_until: Instant,
    measure: Duration,
    server: u32,
    began: Option<Moment>,
    ended: Option<Moment>,
    times: Times,
}

/// Two processes' time at one moment.
struct Moment {
    at: Instant,
    server: Duration,
    load: Duration,
}

impl Moment {
    fn now(server: u32) -> Result<Self> {
        Ok(Self { at: Instant::now(), server: processor_time(server)?, load: own_time() })
    }
}

impl Clock {
    /// Begins now.
    pub(super) fn new(job: &Job) -> Self {
        Self {
            warm_until: Instant::now() + job.warm,
            measure: job.measure,
            server: job.server,
            began: None,
            ended: None,
            times: Times::default(),
        }
    }

    /// To be called at least once for each answer: begins and ends what is measured.
    pub(super) fn look(&mut self) -> Result<()> {
        match (&self.began, &self.ended) {
            (None, _) if Instant::now() >= self.warm_until => self.began = Some(Moment::now(self.server)?),
            (Some(began), None) if began.at.elapsed() >= self.measure => self.ended = Some(Moment::now(self.server)?),
            _ => {}
        }
        Ok(())
    }

    /// One cycle.
    pub(super) fn count(&mut self, took: Duration) {
        if self.began.is_some() && self.ended.is_none() {
            self.times.add(took);
        }
    }

    /// Whether enough was measured.
    pub(super) fn over(&self) -> bool {
        self.ended.is_some()
    }

    /// What was.
    pub(super) fn outcome(self) -> Result<Outcome> {
        let (Some(began), Some(ended)) = (self.began, self.ended) else { bail!("nothing was measured") };
        Ok(Outcome {
            cycles: self.times.count() as u64,
            time: ended.at.duration_since(began.at),
            p50: self.times.percentile(50),
            p99: self.times.percentile(99),
            server: ended.server.saturating_sub(began.server),
            load: ended.load.saturating_sub(began.load),
        })
    }
}

/// What is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Acquire,
    Release,
    Sanitize,
}

/// One connection.
struct Client {
    stream: TcpStream,
    member: String,
    machine: String,
    acquire: Vec<u8>,
    request: Vec<u8>,
    input: Box<[u8]>,
    filled: usize,
    step: Step,
    began: Instant,
    lease: Lease,
    /// The last generation of each worker of this client's key; none where it needn't rise.
    generations: Option<Vec<(String, u64)>>,
}

#[derive(Default)]
struct Lease {
    worker: String,
    id: String,
    generation: u64,
}

impl Client {
    fn connect(job: &Job, number: usize) -> Result<Self> {
        let stream = TcpStream::connect(job.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let body = format!(
            "{{\"key\":{},\"runId\":\"run-{number}\",\"attemptId\":\"1\",\"ttlMs\":60000}}",
            seed::key_json(number)
        );
        let mut acquire = Vec::new();
        post(&mut acquire, "/v1/leases/pod-worker", &job.member, &body);
        Ok(Self {
            stream,
            member: job.member.clone(),
            machine: job.machine.clone(),
            acquire,
            request: Vec::new(),
            input: vec![0; 16 << 10].into(),
            filled: 0,
            step: Step::Acquire,
            began: Instant::now(),
            lease: Lease::default(),
            generations: job.rising.then(Vec::new),
        })
    }

    /// A new cycle.
    fn begin(&mut self) -> Result<()> {
        self.step = Step::Acquire;
        self.began = Instant::now();
        // A request is far smaller than a socket's buffer, and only one is under way.
        self.stream.write_all(&self.acquire)?;
        Ok(())
    }

    /// Reads what is there and asks for the next thing; how long the cycle took when it is over.
    fn go_on(&mut self, scanner: &Scanner) -> Result<Option<Duration>> {
        let room =
            self.input.get_mut(self.filled..).filter(|room| !room.is_empty()).context("an answer is too long")?;
        match self.stream.read(room) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(count) => self.filled += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let bytes = self.input.get(..self.filled).unwrap_or_default();
        let Some(answer) = scanner.answer(bytes)? else { return Ok(None) };
        let worker = scanner.worker(&answer).with_context(|| format!("{:?}", self.step))?;
        self.filled = 0;
        match self.step {
            Step::Acquire => {
                ensure!(worker.state == "leased" && !worker.lease_id.is_empty(), "not leased: {worker:?}");
                if let Some(generations) = &mut self.generations {
                    rises(generations, &worker)?;
                }
                self.lease.worker.clear();
                self.lease.worker.push_str(worker.id);
                self.lease.id.clear();
                self.lease.id.push_str(worker.lease_id);
                self.lease.generation = worker.generation;
                self.send(Step::Release, "release")?;
                Ok(None)
            }
            Step::Release => {
                ensure!(worker.state == "sanitizing" && self.lease.is_of(&worker), "not released: {worker:?}");
                self.send(Step::Sanitize, "sanitize")?;
                Ok(None)
            }
            Step::Sanitize => {
                let same = worker.id == self.lease.worker && worker.generation == self.lease.generation;
                ensure!(worker.state == "idle" && same && worker.lease_id.is_empty(), "not sanitized: {worker:?}");
                Ok(Some(self.began.elapsed()))
            }
        }
    }

    fn send(&mut self, step: Step, action: &str) -> Result<()> {
        self.step = step;
        let token = if step == Step::Sanitize { &self.machine } else { &self.member };
        let Lease { worker, id, generation } = &self.lease;
        let body = format!("{{\"leaseId\":\"{id}\",\"generation\":{generation}}}");
        post(&mut self.request, &format!("/v1/leases/pod-worker/{worker}/{action}"), token, &body);
        self.stream.write_all(&self.request)?;
        Ok(())
    }
}

impl Lease {
    fn is_of(&self, worker: &Worker<'_>) -> bool {
        worker.id == self.worker && worker.lease_id == self.id && worker.generation == self.generation
    }
}

/// A lease has the generation after the last one of its worker: nobody else had it in between.
fn rises(generations: &mut Vec<(String, u64)>, worker: &Worker<'_>) -> Result<()> {
    match generations.iter_mut().find(|(id, _)| id == worker.id) {
        Some((_, last)) => {
            ensure!(worker.generation == *last + 1, "generation {last} was followed by {worker:?}");
            *last = worker.generation;
        }
        None => generations.push((worker.id.to_owned(), worker.generation)),
    }
    Ok(())
}
