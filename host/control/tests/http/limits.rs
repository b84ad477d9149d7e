//! A server that can be left alone.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::client::read;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmhold_control::{Control, RequestLimits, Server, ServerLimits};
use warmhold_ledger::{Caller, Decider, Decision, Moment, Operation, PolicyFailure, View};

#[tokio::test]
async fn bodies_are_bounded_whether_they_say_their_length_or_not() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let mut body = record("large");
    body["attrs"] = json!({"text": "x".repeat(1 << 20)});
    let reply = post(&running, &member, "/v1/resources/register", body).await;
    assert_eq!(reply.refusal(), (413, "too-large".into()));
    let request =
        ask(running.address, "POST", "/v1/resources/register").with(&member).header("transfer-encoding", "chunked");
    let mut stream = request.begin().await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    // Everything is taken in: a client that looks for its answer only afterwards finds it.
    for _ in 0..40 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut stream).await.refusal(), (413, "too-large".into()));
    let announced = ask(running.address, "POST", "/v1/resources/register").with(&member);
    let mut stream = announced.header("content-length", "3000000").begin().await;
    for _ in 0..30 {
        stream.write_all("x".repeat(100_000).as_bytes()).await.unwrap();
    }
    assert_eq!(read(&mut stream).await.refusal(), (413, "too-large".into()));
    let almost = json!({"id": "fits", "kind": "image", "machine": "m1", "name": "n", "ttlMs": 1,
        "attrs": {"text": "x".repeat((1 << 20) - 1000)}});
    assert_eq!(post(&running, &member, "/v1/resources/register", almost).await.status, 200);
}

#[tokio::test]
async fn a_policy_has_a_limit_of_its_own() {
    assert_eq!((RequestLimits::default().body, RequestLimits::default().policy), (1 << 20, 64 << 20));
    let limits = RequestLimits { policy: 3 << 20, ..RequestLimits::default() };
    let (_root, running) = with(Setup { limits, ..Setup::default() }).await;
    let load = |size: usize| {
        let component = [b"\0asm".to_vec(), vec![0; size - 4]].concat();
        ask(running.address, "POST", "/v1/policies/lease").with(&running.token("admin")).raw(component)
    };
    assert_eq!(load(3 << 20).send().await.status, 200, "larger than any other body");
    assert_eq!(load((3 << 20) + 1).send().await.refusal(), (413, "too-large".into()));
    assert_eq!(running.policies.loaded.lock().len(), 1);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let limits = RequestLimits { body_time: Duration::from_millis(100), ..RequestLimits::default() };
    let (_root, running) = with(Setup { document: Document::Own, limits, ..Setup::default() }).await;
    let request = ask(running.address, "POST", "/v1/resources/register")
        .with(&running.token("member"))
        .header("content-length", "100");
    let mut stream = request.begin().await;
    stream.write_all(b"{").await.unwrap();
    assert_eq!(read(&mut stream).await.refusal(), (408, "request-timeout".into()));
}

#[tokio::test]
async fn a_body_that_breaks_off_changes_nothing() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let text = record("half").to_string();
    let request = ask(running.address, "POST", "/v1/resources/register").with(&member).raw(text.clone());
    let mut stream = request.begin().await;
    stream.write_all(&text.as_bytes()[..text.len() - 1]).await.unwrap();
    drop(stream);
    let list = ask(running.address, "GET", "/v1/resources").with(&member).send().await.json();
    assert_eq!(list, json!({"resources": []}));
}

#[tokio::test]
async fn heads_are_bounded_in_size_and_number() {
    let (_root, running) = with(Setup::default()).await;
    let many = |count: usize| {
        let ask = ask(running.address, "GET", "/v1/primary");
        // Two are its own.
        (2..count).fold(ask, |ask, n| ask.header(&format!("x-{n}"), "1"))
    };
    assert_eq!(many(64).send().await.status, 200);
    assert_eq!(many(65).send().await.refusal(), (431, "head-too-large".into()));
    assert_eq!(many(200).send().await.status, 431);
    let large = |size: usize| ask(running.address, "GET", "/v1/primary").header("x-large", &"x".repeat(size));
    assert_eq!(large(15 << 10).send().await.status, 200);
    assert_eq!(large(20 << 10).send().await.refusal(), (431, "head-too-large".into()));
    assert_eq!(large(100 << 10).send().await.status, 431);
    let long = ask(running.address, "GET", &format!("/v1/resources?name={}", "x".repeat(20 << 10)));
    assert_eq!(long.send().await.refusal(), (431, "head-too-large".into()));
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let (_root, running) = serving().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        stream.write_all(b"GET /v1/primary HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut chunk = [0_u8; 4096];
        let count = stream.read(&mut chunk).await.unwrap();
        seen.extend_from_slice(&chunk[..count]);
    }
    assert_eq!(String::from_utf8(seen).unwrap().matches("HTTP/1.1 200 OK").count(), 3);
}

/// Decides as the standard policy does, but only when it is let.
pub(super) struct Slow {
    gate: parking_lot::RwLock<()>,
    pub(super) entered: AtomicUsize,
}

impl Decider for Slow {
    fn decide(
        &self,
        view: Arc<dyn View>,
        at: &Moment,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Decision, PolicyFailure> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.read();
        support::decider::Native.decide(view, at, caller, operation)
    }

    fn violated(&self, _: &str, _: &str) {}
}

/// A gate that is closed, until it is told to open. A thread of its own holds it: a guard can't be kept across an await.
pub(super) struct Closed {
    open: std::sync::mpsc::Sender<()>,
    keeper: std::thread::JoinHandle<()>,
}

impl Closed {
    pub(super) async fn new() -> (Arc<Slow>, Self) {
        let slow = Arc::new(Slow { gate: parking_lot::RwLock::new(()), entered: AtomicUsize::new(0) });
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let (ready, waiting) = tokio::sync::oneshot::channel();
        let gate = Arc::clone(&slow);
        let keeper = std::thread::spawn(move || {
            let _closed = gate.gate.write();
            ready.send(()).unwrap();
            let _ = opened.recv();
        });
        waiting.await.unwrap();
        (slow, Self { open, keeper })
    }

    pub(super) fn open(self) {
        self.open.send(()).unwrap();
        self.keeper.join().unwrap();
    }
}

pub(super) async fn until(mut reached: impl FnMut() -> bool) {
    while !reached() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_ends_and_nothing_new_begins() {
    let (slow, closed) = Closed::new().await;
    let setup = Setup { document: Document::Own, decider: Some(Arc::clone(&slow) as _), ..Setup::default() };
    let (_root, running) = with(setup).await;
    let (address, member) = (running.address, running.token("member"));
    let write = ask(address, "POST", "/v1/resources/register").with(&member).json(&record("i1"));
    let in_flight = tokio::spawn(write.send());
    until(|| slow.entered.load(Ordering::SeqCst) == 1).await;
    let stopping = tokio::spawn(running.stop());
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!stopping.is_finished(), "what is in flight is waited for");
    closed.open();
    assert_eq!(in_flight.await.unwrap().status, 200);
    assert_eq!(stopping.await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_in_time_is_cut_off() {
    let server = ServerLimits { drain: Duration::from_millis(100), ..ServerLimits::default() };
    let (_root, running) = with(Setup { document: Document::Own, server, ..Setup::default() }).await;
    let closed = Arc::clone(&running.replays.gate).write_owned().await;
    let request = ask(running.address, "POST", "/v1/replays")
        .with(&running.token("member"))
        .json(&json!({"files": ["a"], "cutSha": "c"}));
    let waiting = request.begin().await;
    let answer = tokio::spawn(async move {
        let mut stream = waiting;
        stream.write_all(br#"{"files":["a"],"cutSha":"c"}"#).await.unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    });
    while running.replays.replays.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(running.stop().await, 1);
    assert!(answer.await.unwrap().is_empty());
    drop(closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_for_the_ledger_no_longer_than_its_request_may_live() {
    let (slow, closed) = Closed::new().await;
    let limits = RequestLimits { write_time: Duration::from_millis(1500), ..RequestLimits::default() };
    let setup = Setup { document: Document::Own, decider: Some(Arc::clone(&slow) as _), limits, ..Setup::default() };
    let (_root, running) = with(setup).await;
    let (address, member) = (running.address, running.token("member"));
    let write = |id: &str| ask(address, "POST", "/v1/resources/register").with(&member).json(&record(id)).send();
    let first = tokio::spawn(write("i1"));
    until(|| slow.entered.load(Ordering::SeqCst) == 1).await;
    // Behind the one that is being decided.
    let second = tokio::spawn(write("i2"));
    until(|| running.ledger.stats().waiting > 0).await;
    tokio::time::sleep(limits.write_time).await;
    closed.open();
    assert_eq!(first.await.unwrap().status, 200, "what was begun is ended");
    let second = second.await.unwrap();
    assert_eq!(second.refusal(), (503, "ledger-busy".into()));
    assert_eq!(second.header("retry-after"), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_client_goes_while_it_is_decided_is_made() {
    let (slow, closed) = Closed::new().await;
    let setup = Setup { document: Document::Own, decider: Some(Arc::clone(&slow) as _), ..Setup::default() };
    let (_root, running) = with(setup).await;
    let member = running.token("member");
    let body = record("i1").to_string();
    let mut stream =
        ask(running.address, "POST", "/v1/resources/register").with(&member).raw(body.clone()).begin().await;
    stream.write_all(body.as_bytes()).await.unwrap();
    until(|| slow.entered.load(Ordering::SeqCst) == 1).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    for _ in 0..20 {
        assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200);
    }
    closed.open();
    until(|| running.ledger.stats().writes == 1).await;
    let list = ask(running.address, "GET", "/v1/resources").with(&member).send().await.json();
    assert_eq!(list["resources"][0]["id"], json!("i1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_writes_wait_and_no_more() {
    let (slow, closed) = Closed::new().await;
    let decider = Some(Arc::clone(&slow) as _);
    let setup = Setup { document: Document::Own, decider, queue: Some(2), ..Setup::default() };
    let (_root, running) = with(setup).await;
    let (address, member) = (running.address, running.token("member"));
    let write = |id: &str| ask(address, "POST", "/v1/resources/register").with(&member).json(&record(id)).send();
    let mut waiting = vec![tokio::spawn(write("i0"))];
    until(|| slow.entered.load(Ordering::SeqCst) == 1).await;
    for (n, id) in ["i1", "i2"].into_iter().enumerate() {
        waiting.push(tokio::spawn(write(id)));
        until(|| running.ledger.stats().waiting == n as u64 + 1).await;
    }
    let beyond = write("beyond").await;
    assert_eq!(beyond.refusal(), (503, "too-many-waiting".into()));
    assert_eq!(beyond.header("retry-after"), Some("1"));
    closed.open();
    for write in waiting {
        assert_eq!(write.await.unwrap().status, 200);
    }
    assert_eq!(write("beyond").await.status, 200, "and then there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_share_a_bounded_room() {
    let limits = RequestLimits { bodies: 1 << 20, body_time: Duration::from_millis(500), ..RequestLimits::default() };
    let (_root, running) = with(Setup { document: Document::Own, limits, ..Setup::default() }).await;
    let (admin, member) = (running.token("admin"), running.token("member"));
    // A policy may take four times as long as another body, so it is still there when that one has waited enough.
    let policy = ask(running.address, "POST", "/v1/policies/lease").with(&admin).header("content-length", "1000000");
    let mut held = policy.begin().await;
    held.write_all(b"\0asm").await.unwrap();
    let large = |id: &str| {
        let mut body = record(id);
        body["attrs"] = json!({"text": "x".repeat(900_000)});
        body
    };
    loop {
        // Until the one that is held has its room.
        let refused = post(&running, &member, "/v1/resources/register", large("large")).await;
        if refused.status != 200 {
            assert_eq!(refused.refusal(), (503, "too-many-bodies".into()));
            assert_eq!(refused.header("retry-after"), Some("1"));
            break;
        }
    }
    assert_eq!(post(&running, &member, "/v1/resources/register", record("small")).await.status, 200);
    drop(held);
    // The room is given back with the connection.
    while post(&running, &member, "/v1/resources/register", large("later")).await.status != 200 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_not_waited_for_without_end() {
    let limits = RequestLimits { read_time: Duration::from_millis(100), ..RequestLimits::default() };
    let (_root, running) = with(Setup { limits, ..Setup::default() }).await;
    let query = running.token("query");
    let list = ask(running.address, "GET", "/v1/workers").with(&query);
    let closed = Arc::clone(&running.workers.gate).write_owned().await;
    let late = list.clone().send().await;
    assert_eq!(late.refusal(), (503, "timed-out".into()));
    assert_eq!(late.header("retry-after"), Some("1"));
    drop(closed);
    assert_eq!(list.send().await.status, 200);
}

/// Fails in each of its ways, by turns.
struct Faulty;

impl Decider for Faulty {
    fn decide(
        &self,
        _: Arc<dyn View>,
        _: &Moment,
        _: &Caller,
        operation: &Operation,
    ) -> Result<Decision, PolicyFailure> {
        let policy: Arc<str> = "faulty@sha256:0#1".into();
        match operation {
            Operation::Register(_) => Err(PolicyFailure {
                code: "trap".into(),
                message: "the guest's own words about /secret/path".into(),
                policy,
            }),
            _ => Ok(Decision { verdict: Ok(warmhold_ledger::Change::default()), policy }),
        }
    }

    fn violated(&self, _: &str, _: &str) {}
}

#[tokio::test]
async fn a_policys_fault_is_not_the_callers_and_its_words_stay_here() {
    let setup = Setup { document: Document::Own, decider: Some(Arc::new(Faulty)), ..Setup::default() };
    let (_root, running) = with(setup).await;
    let member = running.token("member");
    let failed = post(&running, &member, "/v1/resources/register", record("i1")).await;
    assert_eq!(failed.refusal(), (503, "policy-failed".into()));
    assert_eq!(failed.header("x-warmhold-policy"), Some("faulty@sha256:0#1"));
    assert!(!String::from_utf8(failed.body).unwrap().contains("secret"));
    let lease = json!({"machine": "m1", "purpose": "p", "ttlMs": 1000});
    let broken = post(&running, &member, "/v1/leases/port", lease).await;
    assert_eq!(broken.refusal(), (503, "policy-violation".into()));
    let list = ask(running.address, "GET", "/v1/resources").with(&member).send().await;
    assert_eq!(list.json(), json!({"resources": []}));
}

#[tokio::test]
async fn a_busy_address_is_told_as_such() {
    let (_root, running) = serving().await;
    let address = running.address.to_string().parse().unwrap();
    let error = Server::bind(address, ServerLimits::default()).unwrap_err();
    assert_eq!(error.code(), "listen-in-use");
    assert!(error.to_string().contains(&running.address.to_string()));
}

#[test]
fn the_control_plane_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Control>();
    shared::<warmhold_control::Tokens>();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_ask_nothing_do_not_hold_up_the_end() {
    let server = ServerLimits { drain: Duration::from_secs(3600), ..ServerLimits::default() };
    let (_root, running) = with(Setup { server, ..Setup::default() }).await;
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut chunk = [0_u8; 4096];
    assert!(idle.read(&mut chunk).await.unwrap() > 0);
    // The server has accepted both: the second one was answered, and the first one came before.
    assert_eq!(running.stop().await, 0);
    assert_eq!(idle.read(&mut chunk).await.unwrap(), 0);
    let _ = silent.read(&mut chunk).await;
}
