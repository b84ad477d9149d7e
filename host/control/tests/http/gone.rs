//! Clients that go away: what they asked for is done whole, or not at all.

use super::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A request, as bytes.
fn request(token: &str, id: &str) -> Vec<u8> {
    let body = record(id).to_string();
    format!(
        "POST /v1/resources/register HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends so much and goes, with an end of file or with a reset.
async fn leave(running: &Running, bytes: &[u8], reset: bool) {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    if reset {
        stream.set_zero_linger().unwrap();
    }
    stream.write_all(bytes).await.unwrap();
}

/// The ids of all rows, each of which must be what was asked for.
async fn rows(running: &Running) -> Vec<String> {
    let list = ask(running.address, "GET", "/v1/resources").with(&running.token("query")).send().await.json();
    let rows = list["resources"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            let id = row["id"].as_str().unwrap().to_owned();
            let expected = record(&id);
            for field in ["kind", "machine", "name", "attrs", "ttlMs"] {
                assert_eq!(row[field], expected[field], "{id}: {field}");
            }
            id
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_cut_anywhere_changes_nothing() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let whole = request(&member, "cut").len();
    for cut in 0..whole {
        leave(&running, &request(&member, "cut")[..cut], cut % 2 == 0).await;
    }
    // Those that went away are done with when the server has nothing in hand any more.
    assert_eq!(post(&running, &member, "/v1/resources/register", record("last")).await.status, 200);
    assert_eq!(rows(&running).await, ["last"]);
    assert_eq!(running.ledger.stats().writes, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_request_whose_client_is_gone_is_done_whole_or_not_at_all() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    for n in 0..100 {
        leave(&running, &request(&member, &format!("gone-{n}")), n % 2 == 0).await;
    }
    // `rows` looks at each of those that were made.
    let made = rows(&running).await;
    assert!(made.len() <= 100);
    for n in 0..100 {
        let again = post(&running, &member, "/v1/resources/register", record(&format!("gone-{n}"))).await;
        assert_eq!(again.status, 200, "whichever it was, it can be asked for again");
    }
    assert_eq!(rows(&running).await.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_several_steps_is_ended_without_its_client() {
    let (_root, running) = serving().await;
    let admin = running.token("admin");
    for n in 0..2 {
        let prepared = post(&running, &admin, "/v1/workers/prepare", json!({"count": 1})).await;
        assert_eq!(prepared.json()[0]["workerId"], json!(format!("w{n}")));
    }
    let closed = Arc::clone(&running.workers.gate).write_owned().await;
    for (path, body) in [("/v1/workers/w0/remove", json!({})), ("/v1/workers/w1/quarantine", json!({"reason": "odd"}))]
    {
        let before = running.workers.begun.load(Ordering::SeqCst);
        let request = ask(running.address, "POST", path).with(&admin).json(&body);
        let mut stream = request.begin().await;
        stream.write_all(body.to_string().as_bytes()).await.unwrap();
        while running.workers.begun.load(Ordering::SeqCst) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stream.set_zero_linger().unwrap();
    }
    let abandoned = |path: &str| format!("warmhold_http_requests_abandoned_total{{method=\"POST\",route=\"{path}\"}}");
    for path in ["/v1/workers/{workerId}/remove", "/v1/workers/{workerId}/quarantine"] {
        while figures(&running).await[&abandoned(path)] < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    drop(closed);
    let done = || {
        let workers = running.workers.workers.lock();
        workers.len() == 1 && workers[0].state == "quarantined"
    };
    while !done() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
