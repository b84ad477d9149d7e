//! The ledger's file, worked on by commands while daemons serve it.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use warmhold_tests::{Client, Ran, Site, items};

fn done(ran: Ran) -> Ran {
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

fn key() -> Value {
    json!({"context": "local", "imageDigest": "i", "lockHash": "l", "architecture": "amd64"})
}

fn image(n: usize, weight: usize) -> Value {
    json!({"id": format!("image-{n}"), "kind": "image", "machine": "m1", "name": format!("n{n}"),
        "owner": "0".repeat(64), "attrs": {"n": n, "text": "x".repeat(weight)}, "observedAt": 1, "ttlMs": 1})
}

fn idle_worker(machine: &str, name: &str) -> Value {
    json!({"id": format!("pod-worker-lease:{name}"), "kind": "pod-worker-lease", "machine": machine, "name": name,
        "owner": "0".repeat(64), "attrs": {"key": key(), "state": "idle", "generation": 3, "idleTtlMs": 86_400_000},
        "observedAt": 4_000_000_000_000_u64, "ttlMs": 86_400_000})
}

fn export(site: &Site) -> Value {
    done(site.run(&["ledger", "export"]).unwrap()).json().unwrap()
}

#[test]
fn copies_are_taken_while_clients_write() {
    let site = Site::for_test().unwrap();
    let daemon = site.serve().unwrap();
    let token = site.token("member").unwrap();
    let stop = AtomicBool::new(false);
    let copy = site.folder().join("copy.sqlite3");
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (daemon, token, stop) = (&daemon, &token, &stop);
                scope.spawn(move || {
                    let client = Client::new(&daemon.url, token);
                    let mut n = 0_u64;
                    while !stop.load(Ordering::SeqCst) {
                        let row = json!({"id": format!("{writer}-{n}"), "kind": "instance", "machine": "m", "name": "n",
                            "attrs": {"n": n}, "ttlMs": 1000});
                        let answer = client.request("POST", "/v1/resources/register", Some(&row), &[]).unwrap();
                        assert_eq!(answer.status, 200, "{}", answer.text);
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        let mut seen = 0;
        for _ in 0..5 {
            let rows = export(&site);
            // Of each writer a beginning without a gap: a copy is of one moment.
            for writer in 0..4 {
                let own =
                    items(&rows).iter().filter_map(|row| row.get("id")?.as_str()?.strip_prefix(&format!("{writer}-")));
                for (expected, got) in own.enumerate() {
                    assert_eq!(got, expected.to_string());
                }
            }
            assert!(items(&rows).len() >= seen);
            seen = items(&rows).len();
            let check = done(site.run(&["ledger", "check", "--json"]).unwrap()).json().unwrap();
            assert!(check.get("rows").and_then(Value::as_u64) >= Some(seen as u64), "{check}");
            let ran = done(site.run(&["ledger", "backup", copy.to_str().unwrap(), "--force", "--json"]).unwrap());
            assert!(ran.json().unwrap().get("rows").and_then(Value::as_u64) >= Some(seen as u64));
            done(site.run(&["ledger", "check", copy.to_str().unwrap()]).unwrap());
        }
        stop.store(true, Ordering::SeqCst);
        let written: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        assert_eq!(items(&export(&site)).len() as u64, written, "a write was lost");
    });
    assert!(daemon.stop().unwrap().success());
    done(site.run(&["ledger", "check"]).unwrap());

    // A daemon serves the copy.
    let restored = Site::for_test().unwrap();
    let control = restored.root().join("control");
    std::fs::create_dir_all(&control).unwrap();
    std::fs::copy(&copy, control.join("ledger.sqlite3")).unwrap();
    let expected = export(&restored);
    let daemon = restored.serve().unwrap();
    let listed = restored.ask(&daemon, "query", "GET", "/v1/resources", None).unwrap();
    let ids = |rows: &Value| items(rows).iter().filter_map(|row| row.get("id").cloned()).collect::<Vec<_>>();
    assert_eq!(ids(listed.json.get("resources").unwrap()), ids(&expected));
    assert!(!ids(&expected).is_empty());
}

#[test]
fn rows_come_into_a_daemon_that_serves_and_move_to_another_machine() {
    let (from, to) = (Site::for_test().unwrap(), Site::for_test().unwrap());
    let rows = json!([image(0, 5), idle_worker("elsewhere", "w1"), image(1, 5)]);
    let file = from.folder().join("ledger.json");
    std::fs::write(&file, rows.to_string()).unwrap();
    let first = from.serve().unwrap();
    let daemon = to.serve().unwrap();
    let text = done(from.run(&["ledger", "import", file.to_str().unwrap()]).unwrap()).stdout;
    assert_eq!(text, "imported 3 rows (2 image, 1 pod-worker-lease)\n");
    assert_eq!(export(&from), rows);
    let acquire = json!({"key": key(), "runId": "r", "attemptId": "1", "ttlMs": 1000});
    let leased = from.ask(&first, "member", "POST", "/v1/leases/pod-worker", Some(&acquire)).unwrap();
    assert_eq!(leased.json.pointer("/attrs/generation"), Some(&json!(4)), "{}", leased.text);
    assert!(first.stop().unwrap().success());

    let moved = from.folder().join("moved.json");
    done(from.run(&["ledger", "export", moved.to_str().unwrap()]).unwrap());
    let would = done(to.run(&["ledger", "import", moved.to_str().unwrap(), "--dry-run"]).unwrap()).stdout;
    assert!(would.contains("nothing was changed"), "{would}");
    assert_eq!(export(&to), json!([]));
    done(to.run(&["ledger", "import", moved.to_str().unwrap()]).unwrap());
    assert_eq!(export(&to), export(&from));
    let listed = to.ask(&daemon, "query", "GET", "/v1/resources?kind=pod-worker-lease", None).unwrap();
    let state = listed.json.pointer("/resources/0/attrs/state");
    assert_eq!(state, Some(&json!("leased")), "what is leased stays leased: {}", listed.text);
    // The daemon's writer knows the new rows.
    let again = to.ask(&daemon, "member", "POST", "/v1/leases/pod-worker", Some(&acquire)).unwrap();
    assert_eq!(again.error(), "no-warm-worker");
    for arguments in [&["ledger", "import"][..], &["ledger", "import", "--dry-run"]] {
        let ran = to.run(&[arguments, &[moved.to_str().unwrap()]].concat()).unwrap();
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.starts_with("error[ledger-not-empty]"), "{ran:?}");
    }
    done(to.run(&["ledger", "check"]).unwrap());
}

/// A figure of a process's memory, KiB.
fn memory(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

/// A hundred thousand rows, some 60 MB: no copy of them fits into the memory that each step is given.
#[test]
fn long_lists_take_little_memory() {
    const ROWS: usize = 100_000;
    const ROOM: u64 = 40 << 10;
    let site = Site::for_test().unwrap();
    let file = site.folder().join("ledger.json");
    write_rows(&file, ROWS);
    done(site.run(&["ledger", "import", file.to_str().unwrap()]).unwrap());
    // All that a process may allocate, not what its program takes.
    let limited = |arguments: &[&str]| -> Ran {
        let plain = site.command(arguments);
        let mut command = Command::new("prlimit");
        command.arg(format!("--data={}", ROOM << 10)).arg(plain.get_program()).args(plain.get_args());
        command.env("WARMHOLD_ROOT", site.root()).stdin(Stdio::null());
        command.output().unwrap().into()
    };
    let out = site.folder().join("out.json");
    done(limited(&["ledger", "export", out.to_str().unwrap()]));
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&file).unwrap(), "what came in goes out");
    done(limited(&["ledger", "backup", site.folder().join("copy").to_str().unwrap()]));
    done(limited(&["ledger", "check"]));

    let daemon = site.serve().unwrap();
    let token = site.token("query").unwrap();
    let client = Client::new(&daemon.url, &token);
    // Whatever the first request takes is not the list's.
    client.request("GET", "/v1/resources?name=n5", None, &[]).unwrap();
    let before = memory(daemon.pid(), "VmRSS");
    // The peak counts from here on.
    std::fs::write(format!("/proc/{}/clear_refs", daemon.pid()), "5").unwrap();
    let answer = client.request("GET", "/v1/resources?kind=image", None, &[]).unwrap();
    let peak = memory(daemon.pid(), "VmHWM");
    assert_eq!(answer.json.get("resources").map(items).map(<[Value]>::len), Some(ROWS));
    assert!(answer.text.len() as u64 > 1024 * ROOM, "the list must be larger than the room for it");
    assert!(peak < before + ROOM, "{before} KiB before, {peak} KiB at the most");
}

fn write_rows(path: &Path, count: usize) {
    use std::io::Write as _;
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    for n in 0..count {
        write!(out, "{}{}", if n == 0 { '[' } else { ',' }, image(n, 400)).unwrap();
    }
    out.write_all(b"]").unwrap();
    out.flush().unwrap();
}
