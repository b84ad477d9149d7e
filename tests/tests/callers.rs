//! Callers that go away, and callers that ask for the same at once.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use warmhold_tests::{Client, Daemon, Site};

fn state(replay: &Value) -> &str {
    replay.get("state").and_then(Value::as_str).unwrap_or_default()
}

/// Sends a whole request and goes away after a moment.
fn ask_and_leave(daemon: &Daemon, token: &str, body: &Value, stay: Duration) {
    let address = daemon.url.trim_start_matches("http://");
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/replays HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    std::thread::sleep(stay);
}

#[test]
fn callers_who_go_away_leave_nothing_behind() {
    let site = Site::new("debug").unwrap();
    let daemon = site.serve().unwrap();
    let prepared = site.run(&["worker", "prepare", "--count", "2"]).unwrap();
    assert_eq!(prepared.code, 0, "{}{}", prepared.stdout, prepared.stderr);
    let token = site.token("member").unwrap();
    let cut = site.repository.head().unwrap();
    for number in 0..60_u64 {
        let body = json!({ "files": ["tests/words.sh"], "cutSha": cut, "runId": format!("gone-{number}") });
        ask_and_leave(&daemon, &token, &body, Duration::from_millis(number % 6));
    }
    let began = Instant::now();
    loop {
        let list = site.ask(&daemon, "query", "GET", "/v1/replays?limit=1000", None).unwrap().json;
        let open: Vec<&str> = list
            .as_array()
            .unwrap()
            .iter()
            .map(state)
            .filter(|state| !["finalized", "quarantined", "fallback"].contains(state))
            .collect();
        if open.is_empty() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "these have no end: {open:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ran = site.run(&["replay", "tests/words.sh"]).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(site.workers().unwrap().iter().all(|worker| state(worker) == "idle"), "{:?}", site.workers());
}

#[test]
fn who_asks_again_gets_the_same_answer_however_many_ask_at_once_and_wherever() {
    let site = Site::new("debug").unwrap();
    let first = site.serve().unwrap();
    let second = site.serve().unwrap();
    let prepared = site.run(&["worker", "prepare", "--count", "2"]).unwrap();
    assert_eq!(prepared.code, 0, "{}{}", prepared.stdout, prepared.stderr);
    let token = site.token("member").unwrap();
    let cut = site.repository.head().unwrap();
    for round in 0..5 {
        let body = json!({ "files": ["tests/words.sh"], "cutSha": cut, "runId": format!("same-{round}") });
        // The second time it is over already.
        for again in 0..2 {
            let answers: Vec<_> = std::thread::scope(|scope| {
                let asked: Vec<_> = (0..6)
                    .map(|number| {
                        let url = if number % 2 == 0 { &first.url } else { &second.url };
                        let (body, token) = (&body, &token);
                        scope.spawn(move || {
                            Client::new(url, token).request("POST", "/v1/replays", Some(body), &[]).unwrap()
                        })
                    })
                    .collect();
                asked.into_iter().map(|asked| asked.join().unwrap()).collect()
            });
            let ids: std::collections::BTreeSet<_> =
                answers.iter().map(|answer| answer.json.get("id").cloned().unwrap_or_default().to_string()).collect();
            assert_eq!(ids.len(), 1, "round {round}, {again}: {ids:?}");
            for answer in &answers {
                assert_eq!((answer.status, state(&answer.json)), (200, "finalized"), "{}", answer.text);
                assert_eq!(answer.json.get("passed"), Some(&Value::Bool(true)), "{}", answer.text);
            }
        }
    }
}
