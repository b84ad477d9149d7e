//! A daemon that is left alone: slow clients, too few file descriptors, an end in the middle of everything, and a log that
//! tells everything but secrets.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use warmhold_tests::{Client, Daemon, Site, until};

/// Times that no test waits for.
const PATIENT: &str = "header-timeout = \"10m\"\nidle-timeout = \"10m\"\nrequest-timeout = \"10m\"\n";

fn address(daemon: &Daemon) -> &str {
    daemon.url.trim_start_matches("http://")
}

fn row(id: &str) -> Value {
    json!({"id": id, "kind": "instance", "machine": "m1", "name": "n", "attrs": {}, "ttlMs": 60_000})
}

/// A request in two halves: its head, and its body.
fn register(token: &str, id: &str) -> (String, String) {
    let body = row(id).to_string();
    let head = format!(
        "POST /v1/resources/register HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    (head, body)
}

/// A client that has sent half a head, and waits.
fn half(daemon: &Daemon) -> TcpStream {
    let mut stream = TcpStream::connect(address(daemon)).unwrap();
    // One that is turned away at once may be closed already.
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n");
    stream
}

/// A daemon that a shell starts with something done first.
fn started_by(site: &Site, first: &str) -> Daemon {
    let script = site.folder().join("start.sh");
    let program = site.programs.warmhold.display();
    std::fs::write(&script, format!("#!/bin/sh\n{first}\nexec '{program}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = ["--listen", "127.0.0.1:0"];
    Daemon::start(&script, &site.root(), &site.repository.path, &arguments, &site.folder().join("daemon.log")).unwrap()
}

/// So many files may this test have open, whose clients are as many.
fn allow_files(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
    }
}

#[test]
fn fifteen_hundred_slow_clients_are_in_nobodys_way() {
    allow_files(4096);
    let site = Site::for_test().unwrap();
    site.configure(&format!("[daemon]\n{PATIENT}")).unwrap();
    // The usual limit of files, which the daemon has to raise for its 1,024 connections.
    let daemon = started_by(&site, "ulimit -S -n 1024");
    let slow: Vec<TcpStream> = (0..1500).map(|_| half(&daemon)).collect();
    // None of them ends by itself while this test runs.
    let client = Client::new(&daemon.url, &site.token("member").unwrap());
    for path in ["/healthz", "/readyz", "/v1/resources"] {
        let answer = client.request("GET", path, None, &[]).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    let written = client.request("POST", "/v1/resources/register", Some(&row("r1")), &[]).unwrap();
    assert_eq!(written.status, 200, "{}", written.text);
    let figures = client.request("GET", "/metrics", None, &[]).unwrap().text;
    let crowded = figures.lines().find(|line| line.contains(r#"{why="crowded"}"#)).unwrap();
    assert!(crowded.rsplit(' ').next().unwrap().parse::<u32>().unwrap() > 400, "{crowded}");
    drop(slow);
    assert!(daemon.stop().unwrap().success());
}

#[test]
fn a_daemon_without_file_descriptors_goes_on() {
    allow_files(4096);
    let site = Site::for_test().unwrap();
    site.configure(&format!("[daemon]\n{PATIENT}")).unwrap();
    let daemon = started_by(&site, "ulimit -n 200");
    let slow: Vec<TcpStream> = (0..400).map(|_| half(&daemon)).collect();
    let answer = Client::anonymous(&daemon.url).request("GET", "/healthz", None, &[]).unwrap();
    assert_eq!(answer.status, 200);
    drop(slow);
    let client = Client::new(&daemon.url, &site.token("member").unwrap());
    until("a write works again", || {
        let written = client.request("POST", "/v1/resources/register", Some(&row("r1")), &[])?;
        Ok((written.status == 200).then_some(()))
    })
    .unwrap();
    assert!(daemon.stop().unwrap().success());
}

#[test]
fn what_is_in_flight_ends_and_the_ledger_is_folded() {
    let site = Site::for_test().unwrap();
    site.configure(&format!("[daemon]\n{PATIENT}drain-timeout = \"10m\"\n")).unwrap();
    let daemon = site.serve().unwrap();
    let token = site.token("member").unwrap();
    let (head, body) = register(&token, "in-flight");
    let mut stream = TcpStream::connect(address(&daemon)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body.as_bytes()[..10]).unwrap();
    let client = Client::new(&daemon.url, &token);
    until("it is in hand, beside the question whether it is", || {
        let figures = client.request("GET", "/metrics", None, &[])?.text;
        Ok(figures.lines().any(|line| line == "warmhold_http_requests_in_hand 2").then_some(()))
    })
    .unwrap();
    drop(client);
    daemon.signal(Signal::TERM).unwrap();
    let address = address(&daemon).to_owned();
    until("nothing new is accepted", || Ok(TcpStream::connect(&address).is_err().then_some(()))).unwrap();
    stream.write_all(&body.as_bytes()[10..]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(daemon.stop().unwrap().success());
    let log: PathBuf = site.root().join("control/ledger.sqlite3-wal");
    assert_eq!(std::fs::metadata(log).map_or(0, |found| found.len()), 0, "everything is in the file itself");
    let daemon = site.serve().unwrap();
    let list = site.ask(&daemon, "query", "GET", "/v1/resources", None).unwrap().json;
    assert_eq!(list["resources"][0]["id"], json!("in-flight"));
    assert!(daemon.stop().unwrap().success());
}

#[test]
fn clients_that_never_end_do_not_keep_the_daemon() {
    let site = Site::for_test().unwrap();
    site.configure(&format!("[daemon]\n{PATIENT}drain-timeout = \"1s\"\n")).unwrap();
    let daemon = site.serve().unwrap();
    let token = site.token("member").unwrap();
    let mut never = TcpStream::connect(address(&daemon)).unwrap();
    let (head, _) = register(&token, "never");
    never.write_all(head.as_bytes()).unwrap();
    never.write_all(b"{").unwrap();
    let slow = half(&daemon);
    let mut idle = TcpStream::connect(address(&daemon)).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut first = [0_u8; 12];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    // Each of them alone would keep it for ten minutes, and `stop` gives up after one.
    let status = daemon.stop().unwrap();
    assert_eq!(status.code(), Some(0));
    drop((never, slow, idle));
    let daemon = site.serve().unwrap();
    let list = site.ask(&daemon, "query", "GET", "/v1/resources", None).unwrap().json;
    assert_eq!(list, json!({"resources": []}));
}

#[test]
fn the_log_has_every_request_and_no_token() {
    let site = Site::for_test().unwrap();
    // Once before, so that no policy has to be compiled: the compiler alone would write gigabytes.
    assert!(site.serve().unwrap().stop().unwrap().success());
    std::fs::remove_file(site.folder().join("daemon.log")).unwrap();
    let daemon = started_by(&site, "export WARMHOLD_LOG=trace");
    let issued = site.run(&["token", "issue", "m1"]).unwrap();
    assert_eq!(issued.code, 0, "{}", issued.stderr);
    let tokens: Vec<String> = ["admin", "member", "query"]
        .map(|scope| site.token(scope).unwrap())
        .into_iter()
        .chain([issued.stdout.trim().to_owned(), "a-secret-of-nobody".to_owned(), "0123456789abcdef".repeat(4)])
        .collect();
    let mut ids = Vec::new();
    let key = json!({"context": "c", "imageDigest": "i", "lockHash": "l", "architecture": "a"});
    for token in &tokens {
        let client = Client::new(&daemon.url, token);
        let worker = json!({"workerId": "w1", "machine": "m1", "key": key, "ttlMs": 60_000});
        let acquire = json!({"key": key, "runId": "r", "attemptId": "1", "ttlMs": 60_000});
        for (method, path, body) in [
            ("GET", "/v1/resources", None),
            ("GET", "/v1/nothing?token=none", None),
            ("GET", "/metrics", None),
            ("POST", "/v1/resources/register", Some(row("r1"))),
            ("POST", "/v1/resources/register", Some(json!([]))),
            ("POST", "/v1/workers/pod", Some(worker)),
            ("POST", "/v1/leases/pod-worker", Some(acquire)),
            ("POST", "/v1/policies/lease", Some(json!("no component"))),
            ("DELETE", "/v1/resources/r1", None),
        ] {
            let answer = client.request(method, path, body.as_ref(), &[]).unwrap();
            ids.push(answer.header("x-request-id").unwrap().to_owned());
        }
        // Twice, in another scheme, with nonsense around it, and in a head that isn't one.
        for extra in [("authorization", token.as_str()), ("authorization", &format!("Basic {token}"))] {
            let answer = client.request("GET", "/v1/resources", None, &[extra]).unwrap();
            assert_eq!(answer.status, 401);
            ids.push(answer.header("x-request-id").unwrap().to_owned());
        }
        let mut stream = TcpStream::connect(address(&daemon)).unwrap();
        write!(stream, "GET /v1/resources HTTP/1.1\r\nauthorization: Bearer {token}\r\n\u{1} {token}\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let log = daemon.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for id in &ids {
        assert!(lines.iter().any(|line| line["request"] == id.as_str()), "the request {id} isn't in the log");
    }
    assert!(daemon.stop().unwrap().success());
    let log = std::fs::read_to_string(site.folder().join("daemon.log")).unwrap().to_lowercase();
    for token in tokens {
        assert!(!log.contains(&token), "a token is in the log");
    }
    assert!(!log.contains("bearer ") && !log.contains("basic "), "an authorization header is in the log");
}
