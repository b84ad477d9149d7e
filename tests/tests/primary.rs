//! The primary document is moved by commands while daemons serve and clients lease.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use warmhold_tests::{Answer, Client, Daemon, Site, text, until};

fn key() -> Value {
    json!({"context": "local", "imageDigest": "i", "lockHash": "l", "architecture": "amd64"})
}

fn register(daemon: &Daemon, token: &str, machine: &str, id: &str) -> Answer {
    let body = json!({"workerId": id, "machine": machine, "key": key(), "ttlMs": 600_000});
    Client::new(&daemon.url, token).request("POST", "/v1/workers/pod", Some(&body), &[]).unwrap()
}

fn acquire(client: &Client) -> Answer {
    let body = json!({"key": key(), "runId": "r", "attemptId": "1", "ttlMs": 600_000});
    client.request("POST", "/v1/leases/pod-worker", Some(&body), &[]).unwrap()
}

/// A machine's token, by the command that a person types.
fn token(site: &Site, machine: &str) -> String {
    let ran = site.run(&["token", "issue", machine]).unwrap();
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout.trim().to_owned()
}

fn primary(site: &Site, arguments: &[&str]) -> Value {
    let ran = site.run(&[&["primary"], arguments, &["--json"]].concat()).unwrap();
    assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    ran.json().unwrap()
}

/// One answer of the loop below, and which moves were over when it was asked for.
struct Seen {
    moves: u64,
    answer: Answer,
}

/// Takes a worker and gives it back, as fast as it can, until there have been enough moves.
fn lease_in_a_loop(
    daemon: &Daemon,
    member: &str,
    machine: &str,
    moves: &AtomicU64,
    enough: u64,
    seen: &Mutex<Vec<Seen>>,
) {
    let (member, machine) = (Client::new(&daemon.url, member), Client::new(&daemon.url, machine));
    let mut row: Option<Value> = None;
    let mut step = 0;
    loop {
        let before = moves.load(Ordering::SeqCst);
        if before >= enough {
            return;
        }
        let answer = match &row {
            None => acquire(&member),
            Some(row) => {
                let (client, verb) = if step == 1 { (&member, "release") } else { (&machine, "sanitize") };
                let path = format!("/v1/leases/pod-worker/{}/{verb}", text(row.get("name").unwrap()));
                let attrs = row.get("attrs").unwrap();
                let body = json!({"leaseId": attrs.get("leaseId"), "generation": attrs.get("generation")});
                client.request("POST", &path, Some(&body), &[]).unwrap()
            }
        };
        if answer.status == 200 {
            step = (step + 1) % 3;
            row = (step > 0).then(|| answer.json.clone());
        }
        seen.lock().unwrap().push(Seen { moves: before, answer });
    }
}

#[test]
fn a_move_counts_from_the_moment_that_it_is_made() {
    const CLIENTS: usize = 3;
    const ROUNDS: u64 = 6;
    let site = Site::for_test().unwrap();
    let daemon = site.serve().unwrap();
    let machine = primary(&site, &["show"]);
    let machine = text(machine.get("machine").unwrap());
    let host = token(&site, machine);
    for n in 0..CLIENTS {
        assert_eq!(register(&daemon, &host, machine, &format!("w{n}")).status, 200);
    }
    let member = site.token("member").unwrap();
    let (moves, seen) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| lease_in_a_loop(&daemon, &member, &host, &moves, 2 * ROUNDS, &seen));
        }
        for round in 0..ROUNDS {
            for (words, generation) in [(&["hand-off", "--to", "elsewhere"][..], 2), (&["revert"], 3)] {
                // Some answers in each state of the document.
                let (now, so_far) = (moves.load(Ordering::SeqCst), seen.lock().unwrap().len());
                until("answers", || {
                    let seen = seen.lock().unwrap();
                    let fresh = seen.iter().skip(so_far).filter(|seen| seen.moves == now).count();
                    Ok((fresh >= 2 * CLIENTS).then_some(()))
                })
                .unwrap();
                let changed = primary(&site, words);
                assert_eq!(changed.pointer("/after/generation"), Some(&json!(2 * round + generation)));
                moves.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let seen = seen.into_inner().unwrap();
    for Seen { moves, answer } in &seen {
        let generation: u64 = answer.header("x-primary-generation").unwrap().parse().unwrap();
        let here = generation % 2 == 1;
        match (answer.status, answer.error()) {
            // Written while this machine held it, and never by an older document than when it was asked.
            (200, _) => assert!(here && generation > *moves, "{moves}: {generation}: {}", answer.text),
            // Asked while it was elsewhere, or it moved meanwhile.
            (409, "not-primary") => assert!(generation > *moves, "{moves}: {}", answer.text),
            _ => panic!("{moves} moves, {}: {}", answer.status, answer.text),
        }
        // Whoever asks when it is away is turned away, with who holds it.
        if moves % 2 == 1 && generation == moves + 1 {
            assert_eq!((answer.status, answer.json.get("holder")), (409, Some(&json!("elsewhere"))), "{}", answer.text);
        }
    }
    let done = seen.iter().filter(|seen| seen.answer.status == 200).count();
    assert!(done > 0 && done < seen.len(), "{done} of {}", seen.len());
    // Everything that was answered 200 is there, and nothing else: as many leases as generations.
    let leases = seen
        .iter()
        .filter(|seen| seen.answer.status == 200 && seen.answer.json.pointer("/attrs/state") == Some(&json!("leased")));
    let rows = site.run(&["ledger", "export"]).unwrap().json().unwrap();
    let generations: u64 =
        rows.as_array().unwrap().iter().filter_map(|row| row.pointer("/attrs/generation")?.as_u64()).sum();
    assert_eq!(generations, leases.count() as u64);
    assert_eq!(site.run(&["ledger", "check"]).unwrap().code, 0);
}

#[test]
fn of_two_machines_on_one_document_exactly_one_writes() {
    let (first, second) = (Site::for_test().unwrap(), Site::for_test().unwrap());
    let document = first.folder().join("shared.json");
    let file = document.to_str().unwrap();
    let serve = |site: &Site, machine: &str| {
        site.serve_with(&["--listen", "127.0.0.1:0", "--machine", machine, "--primary-lease", file]).unwrap()
    };
    let sites = [(&first, "m1"), (&second, "m2")].map(|(site, machine)| (site, machine, serve(site, machine)));
    let tokens = [token(&first, "m1"), token(&second, "m2")];
    let mut n = 0;
    let mut writes = |expected: [bool; 2]| {
        n += 1;
        let answers = [0, 1].map(|index| {
            let (_, machine, daemon) = sites.get(index).unwrap();
            register(daemon, tokens.get(index).unwrap(), machine, &format!("w{n}"))
        });
        let wrote = answers.clone().map(|answer| answer.status == 200);
        assert_eq!(wrote, expected, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!((answer.status, answer.error()), (409, "not-primary"));
        }
    };
    let change = |machine: &str, words: &[&str]| {
        primary(&first, &[words, &["--file", file, "--machine", machine]].concat());
    };
    writes([false, false]);
    change("m1", &["claim"]);
    writes([true, false]);
    change("m1", &["hand-off", "--to", "m2"]);
    writes([false, true]);
    change("m2", &["accept"]);
    writes([false, true]);
    change("m2", &["hand-off", "--to", "m1"]);
    writes([true, false]);
    change("m2", &["revert"]);
    writes([false, true]);
    std::fs::write(&document, "half a docu").unwrap();
    writes([false, false]);
    let ran = first.run(&["primary", "claim", "--file", file, "--machine", "m1"]).unwrap();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.starts_with("error[primary-unmeasured]"), "{ran:?}");
    writes([false, false]);
    std::fs::remove_file(&document).unwrap();
    writes([false, false]);
    change("m2", &["claim"]);
    writes([false, true]);
}

fn rows(site: &Site) -> usize {
    site.run(&["ledger", "export"]).unwrap().json().unwrap().as_array().map_or(0, Vec::len)
}

#[test]
fn what_is_required_and_cannot_be_read_lets_nothing_through() {
    let row = json!({"id": "i", "kind": "image", "machine": "m1", "name": "n", "attrs": {}, "ttlMs": 1});
    for required in [true, false] {
        let site = Site::for_test().unwrap();
        let document = site.folder().join("shared.json");
        let mut arguments = vec!["--listen", "127.0.0.1:0", "--machine", "m1", "--primary-lease"];
        arguments.push(document.to_str().unwrap());
        if required {
            arguments.push("--require-primary");
        }
        let daemon = site.serve_with(&arguments).unwrap();
        let host = token(&site, "m1");
        let plain = |row: &Value| site.ask(&daemon, "member", "POST", "/v1/resources/register", Some(row)).unwrap();
        let port = json!({"machine": "m1", "purpose": "p", "ttlMs": 1000});
        let worth = |write: &dyn Fn(&Path)| {
            write(&document);
            let before = rows(&site);
            assert_eq!(register(&daemon, &host, "m1", "w1").error(), "not-primary");
            let answers = [plain(&row), site.ask(&daemon, "member", "POST", "/v1/leases/port", Some(&port)).unwrap()];
            for answer in answers {
                let expected = if required { (409, "not-primary") } else { (200, "") };
                assert_eq!((answer.status, answer.error()), expected, "{}", answer.text);
            }
            assert!(!required || rows(&site) == before);
        };
        worth(&|_| {});
        worth(&|path| std::fs::write(path, "").unwrap());
        worth(&|path| {
            std::fs::write(path, r#"{"holder":"m1","generation":1,"state":"held","renewedAt":1,"expiresAt":2}"#)
                .unwrap()
        });
        worth(&|path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        });
        std::fs::remove_dir(&document).unwrap();
        // A stamp from another machine's clock, long ago: nothing expires by it.
        std::fs::write(&document, r#"{"holder":"m1","generation":1,"state":"held","renewedAt":1}"#).unwrap();
        assert_eq!(plain(&row).status, 200);
        assert_eq!(register(&daemon, &host, "m1", "w1").status, 200);
    }
}
