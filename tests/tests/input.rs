//! Bad input: a clear error, nothing leased, nothing changed.

use anyhow::Result;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use warmhold_tests::{Answer, Client, Daemon, Site, items, text};

/// Everything durable that a request could have touched.
fn rows(site: &Site, daemon: &Daemon) -> Result<Value> {
    let mut rows = site.ask(daemon, "query", "GET", "/v1/resources", None)?.json;
    // Only this moves by itself.
    let list = if rows.is_array() { Some(&mut rows) } else { rows.get_mut("resources") };
    for row in list.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(row) = row.as_object_mut() {
            row.remove("ageMs");
        }
    }
    Ok(rows)
}

struct Place {
    site: Site,
    daemon: Daemon,
    before: Value,
    head: String,
}

impl Place {
    fn new() -> Result<Self> {
        let site = Site::for_test()?;
        let daemon = site.serve()?;
        site.prepare(1)?;
        let (before, head) = (rows(&site, &daemon)?, site.repository.head()?);
        assert_ne!(before.to_string().find("idle"), None, "{before}");
        Ok(Self { site, daemon, before, head })
    }

    fn unchanged(&self, what: &str) -> Result<()> {
        assert_eq!(rows(&self.site, &self.daemon)?, self.before, "{what}");
        Ok(())
    }

    fn post(&self, scope: &str, path: &str, body: &Value) -> Result<Answer> {
        self.site.ask(&self.daemon, scope, "POST", path, Some(body))
    }

    /// A command that must be refused, with its code, exit status and some words.
    fn refused(&self, arguments: &[&str], code: &str, exit: i32, words: &[&str]) -> Result<()> {
        let ran = self.site.run(arguments)?;
        assert_eq!(ran.code, exit, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(&format!("error[{code}]: ")), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("\nhelp: "), "{arguments:?}: {ran:?}");
        for word in words {
            assert!(ran.stderr.contains(word), "{word}: {arguments:?}: {ran:?}");
        }
        self.unchanged(&format!("{arguments:?}"))
    }

    /// A replay over HTTP that must fall back, with some words of the detail.
    fn falls_back(&self, ask: &Value, words: &str) -> Result<()> {
        let answer = self.post("member", "/v1/replays", ask)?;
        let replay = &answer.json;
        assert_eq!((answer.status, text(&replay["state"])), (200, "fallback"), "{ask}: {answer:?}");
        assert_eq!((text(&replay["outcome"]), text(&replay["reason"])), ("fallback", "no-candidate"), "{ask}");
        assert_eq!((replay["passed"].as_bool(), &replay["worker"]), (Some(false), &Value::Null), "{ask}");
        assert!(text(&replay["detail"]).contains(words), "{words}: {replay}");
        self.unchanged(&ask.to_string())
    }
}

#[test]
fn what_no_worker_could_run_is_said_before_one_is_taken() -> Result<()> {
    let place = Place::new()?;
    let unknown = "0123456789abcdef0123456789abcdef01234567";
    place.refused(
        &["replay", "--cut", "no-such-branch", "tests/words.sh"],
        "unknown-commit",
        2,
        &["no-such-branch"],
    )?;
    place.refused(&["replay", "--cut", unknown, "tests/words.sh"], "no-candidate", 1, &[unknown])?;
    let missing = ["replay", "tests/words.sh", "tests/absent.sh"];
    place.refused(&missing, "no-candidate", 1, &["has no file tests/absent.sh"])?;
    place.refused(&["replay", "/etc/passwd"], "bad-file", 2, &["/etc/passwd"])?;
    place.refused(&["replay", "../outside.sh"], "bad-file", 2, &["../outside.sh"])?;
    place.refused(&["replay", "tests"], "no-candidate", 1, &["tests"])?;
    place.refused(&["replay", "--deadline", "0s", "tests/words.sh"], "usage", 2, &["--deadline", "120s"])?;
    let none = place.site.run(&["replay"])?;
    assert_eq!((none.code, none.stderr.contains("FILE")), (2, true), "{none:?}");
    place.refused(&["replay", "--profile", "nobodys", "tests/words.sh"], "unknown-profile", 2, &["local"])?;
    place.refused(&["worker", "prepare", "--profile", "nobodys"], "unknown-profile", 2, &["local"])?;
    place.refused(&["worker", "prepare", "--cut", unknown], "unknown-cut", 2, &[unknown])?;
    place.refused(&["worker", "prepare", "--cut=--upload-pack=x"], "unknown-cut", 2, &[])?;

    // The same over HTTP, where nobody looks first.
    let ask = |files: Value| json!({"files": files, "cutSha": place.head});
    place.falls_back(&json!({"files": ["tests/words.sh"], "cutSha": unknown}), unknown)?;
    place.falls_back(&json!({"files": ["tests/words.sh"], "cutSha": "HEAD"}), "40 hex digits")?;
    place.falls_back(&json!({"files": ["tests/words.sh"], "cutSha": place.head.to_uppercase()}), "40 hex digits")?;
    place.falls_back(&ask(json!([])), "files")?;
    place.falls_back(&ask(json!(["/etc/passwd"])), "/etc/passwd")?;
    place.falls_back(&ask(json!(["tests/../../x"])), "..")?;
    place.falls_back(&ask(json!(["tests/words.sh", "tests/words.sh"])), "twice")?;
    place.falls_back(&ask(json!(["tests/words.sh\nHEAD:README.md"])), "path")?;
    place.falls_back(&ask(json!(["tests/absent.sh"])), "tests/absent.sh")?;
    let late = json!({"files": ["tests/words.sh"], "cutSha": place.head, "deadlineMs": 0});
    place.falls_back(&late, "deadline has passed")?;
    let other = json!({"files": ["tests/words.sh"], "cutSha": place.head, "baselineSha": "main"});
    place.falls_back(&other, "baseline")?;

    // No worker for a commit that is there: what to type is said, and typing it helps.
    place.site.repository.write("tests/new.sh", "exit 0\n")?;
    let newer = place.site.repository.commit("newer")?;
    let help = format!("help: warmhold worker prepare --cut {newer}");
    place.refused(&["replay", "tests/new.sh"], "no-candidate", 1, &[&help])?;
    let prepared = place.site.run(&["worker", "prepare", "--cut", &newer])?;
    assert_eq!(prepared.code, 0, "{prepared:?}");
    assert_eq!(place.site.run(&["replay", "tests/new.sh"])?.code, 0);
    assert!(items(&place.site.run(&["worker", "list", "--json"])?.json()?).iter().all(|row| row["state"] == "idle"));
    Ok(())
}

#[test]
fn what_is_no_request_is_refused_by_form() -> Result<()> {
    let place = Place::new()?;
    let (site, daemon) = (&place.site, &place.daemon);
    let good = json!({"files": ["tests/words.sh"], "cutSha": place.head});

    // Who asks.
    let anonymous = Client::anonymous(&daemon.url);
    let wrong = Client::new(&daemon.url, &"f".repeat(64));
    for client in [&anonymous, &wrong] {
        for (method, path) in [("POST", "/v1/replays"), ("GET", "/v1/replays"), ("GET", "/v1/workers")] {
            let answer = client.request(method, path, Some(&good).filter(|_| method == "POST"), &[])?;
            assert_eq!((answer.status, answer.error()), (401, "unauthorized"), "{method} {path}: {answer:?}");
            assert!(answer.json["message"].is_string() && answer.json["requestId"].is_string(), "{answer:?}");
        }
    }
    for (scope, path) in [
        ("query", "/v1/replays"),
        ("admin", "/v1/replays"),
        ("member", "/v1/workers/prepare"),
        ("query", "/v1/workers/prepare"),
        ("member", "/v1/policies/lease"),
        ("query", "/v1/policies/lease/rollback"),
        ("member", "/v1/workers/w/quarantine"),
    ] {
        let answer = place.post(scope, path, &json!({}))?;
        assert_eq!((answer.status, answer.error()), (403, "forbidden"), "{scope} {path}: {answer:?}");
    }
    let token = site.token("member")?;
    let twice = Client::new(&daemon.url, &token).request(
        "POST",
        "/v1/replays",
        Some(&good),
        &[("authorization", &format!("Bearer {token}"))],
    )?;
    assert_eq!(twice.status, 401, "two authorizations are none: {twice:?}");
    place.unchanged("tokens")?;

    // What is asked.
    for (body, code) in [
        ("{", "invalid-json"),
        ("", "invalid-replay"),
        ("[]", "invalid-replay"),
        ("null", "invalid-replay"),
        (r#"{"files": "tests/words.sh", "cutSha": "x"}"#, "invalid-replay"),
        (r#"{"files": ["tests/words.sh"]}"#, "invalid-replay"),
        (r#"{"files": [], "cutSha": "x", "keeep": true}"#, "invalid-replay"),
        (r#"{"files": [], "cutSha": "x", "deadlineMs": -5}"#, "invalid-replay"),
        (r#"{"files": [], "cutSha": "x", "runId": " "}"#, "invalid-replay"),
        ("{\"files\": [\"\\ud800\"], \"cutSha\": \"x\"}", "invalid-json"),
        (r#"{"files": [], "cutSha": "x", "profile": "nobodys"}"#, "unknown-profile"),
    ] {
        let answer = site.send(daemon, "member", "POST", "/v1/replays", body.as_bytes().to_vec())?;
        assert_eq!((answer.status, answer.error()), (400, code), "{body}: {answer:?}");
    }
    let bytes = site.send(daemon, "member", "POST", "/v1/replays", vec![0xff, 0xfe, 0x00])?;
    assert_eq!((bytes.status, bytes.error()), (400, "invalid-json"));
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let answer = site.send(daemon, "member", "POST", "/v1/replays", deep.into_bytes())?;
    assert_eq!((answer.status, answer.error()), (400, "invalid-json"));
    let large = site.send(daemon, "member", "POST", "/v1/replays", vec![b' '; 2 << 20])?;
    assert_eq!((large.status, large.error()), (413, "too-large"));
    for (path, code, status) in [
        ("/v1/replays/r-none/finalize", "not-found", 404),
        ("/v1/replays/..%2F..%2Fx/finalize", "not-found", 404),
        ("/v1/nothing", "not-found", 404),
    ] {
        let answer = place.post("member", path, &json!({}))?;
        assert_eq!((answer.status, answer.error()), (status, code), "{path}: {answer:?}");
    }
    for body in [json!({"count": 0}), json!({"count": 65}), json!({"count": "two"}), json!({"what": 1})] {
        let answer = place.post("admin", "/v1/workers/prepare", &body)?;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    for id in ["w%2Fx", "-w", "..", ""] {
        let answer = place.post("admin", &format!("/v1/workers/{id}/remove"), &json!({}))?;
        assert!(matches!(answer.status, 400 | 404), "{id}: {answer:?}");
    }

    // What is no HTTP: the connection ends, the daemon doesn't.
    let address = daemon.url.trim_start_matches("http://");
    for bytes in [&b"\x16\x03\x01\x02\x00"[..], b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nx", b"\0\0\0\0"] {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
    place.unchanged("forms")?;

    // A client with a wrong token, a wrong address, or none.
    let mut command = site.command(&["replay", "tests/words.sh"]);
    let ran: warmhold_tests::Ran = command.env("WARMHOLD_TOKEN", "f".repeat(64)).output()?.into();
    assert_eq!((ran.code, ran.stderr.contains("error[unauthorized]")), (2, true), "{ran:?}");
    let ran: warmhold_tests::Ran = command.env("WARMHOLD_TOKEN", "short").output()?.into();
    assert_eq!((ran.code, ran.stderr.contains("error[bad-token]")), (2, true), "{ran:?}");
    let mut command = site.command(&["--url", "http://127.0.0.1:1", "worker", "list"]);
    let ran: warmhold_tests::Ran = command.env("WARMHOLD_TOKEN", token).output()?.into();
    assert_eq!((ran.code, ran.stderr.contains("error[unreachable]")), (3, true), "{ran:?}");

    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0, "after all that it replays");
    Ok(())
}

#[test]
fn a_configuration_is_judged_whole() -> Result<()> {
    let site = Site::for_test()?;
    site.configure(
        "[daemon]\nlisen = \"127.0.0.1:0\"\n[profile.local]\nttl = \"1s\"\ninstall = \"make\"\n[policy.lease]\nfile = \"none.wasm\"\n",
    )?;
    let ran = site.run(&["serve"])?;
    assert_eq!(ran.code, 2, "{ran:?}");
    for part in ["lisen", "listen", "profile.local.ttl", "profile.local.install", "policy.lease.file", "help:"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
    assert!(!site.root().join("control").exists(), "nothing is made before the configuration is right");
    for arguments in [&["serve", "--listen", "0.0.0.0:0"][..], &["serve", "--machine", "Not Fit"], &["serv"]] {
        let ran = site.run(arguments)?;
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
    }
    Ok(())
}
