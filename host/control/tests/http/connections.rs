//! Connections: how many there may be, how long they may do nothing, and what becomes of one that is in the way.

use super::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use support::client::read;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmhold_control::ServerLimits;

const HALF_A_HEAD: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n";

/// Times that no test waits for.
fn patient(connections: usize) -> ServerLimits {
    let long = Duration::from_secs(3600);
    ServerLimits { connections, head_time: long, idle_time: long, stall_time: long, ..ServerLimits::default() }
}

async fn server(server: ServerLimits) -> (tempfile::TempDir, Running) {
    with(Setup { document: Document::Own, server, ..Setup::default() }).await
}

async fn half(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // One that is turned away may be closed already.
    let _ = stream.write_all(HALF_A_HEAD).await;
    stream
}

/// Asks on a connection that is kept, and says whether it was answered.
async fn asked(stream: &mut TcpStream) -> bool {
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut chunk = [0_u8; 4096];
    let count = stream.read(&mut chunk).await.unwrap_or(0);
    chunk[..count].starts_with(b"HTTP/1.1 200 OK")
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_half_a_head_are_in_nobodys_way() {
    let (_root, running) = server(patient(16)).await;
    let mut kept = TcpStream::connect(running.address).await.unwrap();
    assert!(asked(&mut kept).await);
    let mut slow = Vec::new();
    for n in 0..100 {
        slow.push(half(running.address).await);
        if n % 10 == 9 {
            // None of them would ever have given its place back.
            assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200, "after {n}");
        }
    }
    assert!(asked(&mut kept).await, "who has been answered before stays longer than who never asked");
    let ended = read(&mut slow[0]).await;
    assert_eq!(ended.refusal(), (503, "too-many-connections".into()), "the oldest made room, and is told so");
    assert_eq!(ended.header("retry-after"), Some("1"));
    assert_eq!(ended.header("x-request-id"), ended.json()["requestId"].as_str());
    let mut last = slow.pop().unwrap();
    last.write_all(b"\r\n").await.unwrap();
    let mut chunk = [0_u8; 4096];
    let count = last.read(&mut chunk).await.unwrap();
    assert!(chunk[..count].starts_with(b"HTTP/1.1 200 OK"), "the newest one is still served");
    let figure = async |name: &str| figures(&running).await.get(name).copied().unwrap_or_default();
    assert!(figure(r#"warmhold_http_connections_ended_total{why="crowded"}"#).await >= 84.0);
    assert!(figure(r#"warmhold_http_refusals_total{code="too-many-connections"}"#).await >= 1.0);
    assert!((2.0..=16.0).contains(&figure("warmhold_http_connections").await));
    assert_eq!(running.stop().await, 0, "none of them holds up the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_that_send_half_a_body_are_in_nobodys_way() {
    let (_root, running) = server(patient(128)).await;
    let address = running.address;
    // Each is refused for want of a token, and the rest of its body never comes.
    let mut strangers = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(b"POST /v1/replays HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{").await;
        strangers.push(stream);
        assert_eq!(ask(address, "GET", "/healthz").send().await.status, 200, "after {}", strangers.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_every_connection_has_a_request_the_next_one_is_told() {
    let (_root, running) = server(patient(2)).await;
    let member = running.token("member");
    let closed = Arc::clone(&running.replays.gate).write_owned().await;
    let replay =
        ask(running.address, "POST", "/v1/replays").with(&member).json(&json!({"files": ["a"], "cutSha": "c"}));
    let held = [tokio::spawn(replay.clone().send()), tokio::spawn(replay.send())];
    while running.replays.replays.lock().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..200 {
        let told =
            ask(running.address, "POST", "/v1/resources/register").with(&member).json(&record("i1")).send().await;
        assert_eq!(told.refusal(), (503, "too-many-connections".into()));
        assert_eq!(told.header("retry-after"), Some("1"));
    }
    drop(closed);
    for replay in held {
        assert_eq!(replay.await.unwrap().status, 200, "what is in hand isn't ended for another");
    }
    let list = ask(running.address, "GET", "/v1/resources").with(&member).send().await;
    assert_eq!(list.json(), json!({"resources": []}), "what was turned away did nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_of_doing_nothing_has_an_end() {
    let limits = ServerLimits { head_time: Duration::from_millis(150), ..patient(16) };
    let (_root, running) = server(limits).await;
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"", "nothing was asked, so nothing is answered");
    let late = read(&mut half(running.address).await).await;
    assert_eq!(late.refusal(), (408, "request-timeout".into()));
    // Drop by drop, before the first answer and after it.
    for again in [false, true] {
        let mut drops = TcpStream::connect(running.address).await.unwrap();
        if again {
            assert!(asked(&mut drops).await);
        }
        let (mut from, mut to) = drops.into_split();
        let dripping = tokio::spawn(async move {
            while to.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let mut answer = Vec::new();
        let _ = from.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&answer));
        drop(from);
        dripping.await.unwrap();
    }
    // Between requests, another time counts.
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    assert!(asked(&mut idle).await);
    tokio::time::sleep(limits.head_time * 5).await;
    assert!(asked(&mut idle).await, "an idle connection has more time than a head");
    let (_root, running) = server(ServerLimits { idle_time: Duration::from_millis(150), ..patient(16) }).await;
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    assert!(asked(&mut idle).await);
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_in_no_answer_keeps_its_place_for_a_while_only() {
    let limits = ServerLimits { stall_time: Duration::from_millis(300), ..patient(1) };
    let (_root, running) = server(limits).await;
    let member = running.token("member");
    // More than the system keeps for a connection that isn't read.
    for n in 0..24 {
        let mut body = record(&format!("i{n}"));
        body["attrs"] = json!({"text": "x".repeat(1_000_000)});
        assert_eq!(post(&running, &member, "/v1/resources/register", body).await.status, 200);
    }
    let mut stalled = ask(running.address, "GET", "/v1/resources").with(&member).begin().await;
    let mut first = [0_u8; 16];
    stalled.read_exact(&mut first).await.unwrap();
    while ask(running.address, "GET", "/healthz").send().await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut rest = Vec::new();
    // Broken off, whether by an end or by a reset.
    let _ = stalled.read_to_end(&mut rest).await;
    assert!(rest.len() < 24_000_000, "it came whole");
    let slow = ask(running.address, "GET", "/v1/resources").with(&member).begin().await;
    // Slower than that all in all, but never at rest for so long.
    let mut slow = tokio::io::BufReader::with_capacity(1 << 20, slow);
    let mut seen = 0;
    loop {
        let count = slow.fill_buf().await.unwrap().len();
        if count == 0 {
            break;
        }
        seen += count;
        slow.consume(count);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(seen > 24_000_000, "{seen}");
}
