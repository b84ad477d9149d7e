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

#[test]
fn an_import_beside_the_first_write_comes_before_it_or_not_at_all() {
    const ROWS: usize = 300;
    let mut taken = 0;
    for round in 0..6_u64 {
        let site = Site::for_test().unwrap();
        let file = site.folder().join("ledger.json");
        write_rows(&file, ROWS);
        let daemon = site.serve().unwrap();
        let import = site.spawn(&["ledger", "import", file.to_str().unwrap()]).unwrap();
        // Somewhere around the import's own turn.
        std::thread::sleep(std::time::Duration::from_millis(round * 10));
        let row = json!({"id": "own", "kind": "instance", "machine": "m", "name": "n", "attrs": {}, "ttlMs": 1});
        let answer = site.ask(&daemon, "member", "POST", "/v1/resources/register", Some(&row)).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        let ran = Ran::end_of(import).unwrap();
        let rows = export(&site);
        let ids: Vec<_> = items(&rows).iter().filter_map(|row| row.get("id")?.as_str()).collect();
        if ran.code == 0 {
            taken += 1;
            assert_eq!((ids.len(), ids.first(), ids.last()), (ROWS + 1, Some(&"image-0"), Some(&"own")));
        } else {
            assert!(ran.stderr.starts_with("error[ledger-not-empty]"), "{ran:?}");
            assert_eq!(ids, ["own"]);
        }
        // The daemon goes on with what is there, whichever it is.
        let again = site.ask(&daemon, "member", "POST", "/v1/resources/own/heartbeat", Some(&json!({}))).unwrap();
        assert_eq!(again.status, 200, "{}", again.text);
        assert_eq!(sound(&site), Some(ids.len() as u64));
    }
    println!("{taken} of 6 imports came first");
}

/// How many rows the root's ledger has, by a check that finds nothing wrong; none where there is no ledger.
fn sound(site: &Site) -> Option<u64> {
    let ran = site.run(&["ledger", "check", "--json"]).unwrap();
    if ran.code == 2 && ran.stderr.starts_with("error[ledger-absent]") {
        return None;
    }
    let found = ran.json().unwrap();
    // An import that dies while it makes the file leaves an empty one, which the next one takes.
    assert!(ran.code == 0 || found.get("schema") == Some(&json!(0)), "{ran:?}");
    found.get("rows").and_then(Value::as_u64)
}

#[test]
fn an_import_that_is_killed_is_whole_or_not_there() {
    const ROWS: usize = 6_000;
    let site = Site::for_test().unwrap();
    let file = site.folder().join("ledger.json");
    write_rows(&file, ROWS);
    let mut patience = 1;
    let mut killed = 0;
    loop {
        let mut child = site.spawn(&["ledger", "import", file.to_str().unwrap()]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(patience));
        child.kill().unwrap();
        let ran = Ran::end_of(child).unwrap();
        match sound(&site) {
            // What a killed one left is no hindrance to the next.
            None | Some(0) => assert_ne!(ran.code, 0, "{ran:?}"),
            Some(rows) => {
                assert_eq!(rows, ROWS as u64, "a part of it");
                break;
            }
        }
        killed += 1;
        patience += 1 + patience / 4;
    }
    assert!(killed > 0);
    assert_eq!(items(&export(&site)).len(), ROWS);
}

#[test]
fn on_a_full_disk_nothing_is_half_made() {
    let site = Site::for_test().unwrap();
    if !site.small_disk().unwrap() {
        println!("skipped: only root mounts a small disk");
        return;
    }
    let (large, small) = (site.folder().join("large.json"), site.folder().join("small.json"));
    write_rows(&large, 100_000);
    write_rows(&small, 20_000);
    let ran = site.run(&["ledger", "import", large.to_str().unwrap()]).unwrap();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.starts_with("error[ledger-failed]") && ran.stderr.contains("help: make room"), "{ran:?}");
    assert_eq!(sound(&site), Some(0));
    done(site.run(&["ledger", "import", small.to_str().unwrap()]).unwrap());
    // The copy doesn't fit beside it.
    let copies = site.root().join("copies");
    std::fs::create_dir(&copies).unwrap();
    for command in ["backup", "export"] {
        let ran = site.run(&["ledger", command, copies.join("copy").to_str().unwrap()]).unwrap();
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.starts_with("error[file-unwritable]") && ran.stderr.contains("enough room"), "{ran:?}");
    }
    assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 0, "something half-made was left");
    // Nor does the copy that an export is made from.
    let mut command = site.command(&["ledger", "export"]);
    let ran: Ran = command.env("SQLITE_TMPDIR", &copies).env("TMPDIR", &copies).output().unwrap().into();
    assert_eq!((ran.code, ran.stderr.contains("enough room")), (2, true), "{ran:?}");
    assert_eq!(sound(&site), Some(20_000));
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
