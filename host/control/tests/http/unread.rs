//! Requests that are answered without their bodies: the connection goes on all the same.

use super::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Reads one answer off a connection that goes on: its status.
async fn answer(stream: &mut TcpStream) -> u16 {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse::<usize>().unwrap()) {
                return head.split(' ').nth(1).unwrap().parse().unwrap();
            }
        }
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).await.unwrap();
        assert!(count > 0, "the connection was closed after {text:?}");
        bytes.extend_from_slice(&chunk[..count]);
    }
}

#[tokio::test]
async fn a_refusal_before_the_body_leaves_the_connection_as_it_is() {
    let (_root, running) = serving().await;
    let (member, query) = (running.token("member"), running.token("query"));
    for (token, path, status) in [
        ("nobody", "/v1/resources/register", 401),
        (query.as_str(), "/v1/resources/register", 403),
        (member.as_str(), "/v1/nowhere", 404),
        (member.as_str(), "/v1/workers/pod", 403),
        (member.as_str(), "/v1/leases/pod-worker/%ff/release", 400),
    ] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        for _ in 0..3 {
            let body = record("i").to_string();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            // Long enough that the refusal is made before the body is there.
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.write_all(body.as_bytes()).await.unwrap();
            assert_eq!(answer(&mut stream).await, status, "{path}");
        }
    }
}

#[tokio::test]
async fn who_asks_before_sending_is_answered_without_having_sent() {
    let (_root, running) = serving().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head =
        "POST /v1/resources/register HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await, 401, "no 100 before it");
}
