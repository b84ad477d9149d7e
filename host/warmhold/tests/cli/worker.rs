//! `worker`.

use super::server::{Answer, Asked, Server};
use super::{ADMIN, QUERY, World};
use serde_json::{Value, json};

fn workers() -> Value {
    json!([
        {"workerId": "w1", "machine": "m1", "tier": "lite", "slot": 1, "cutSha": "c".repeat(40), "state": "idle", "generation": 3,
            "podUid": "uid-1", "ageMs": 65_000, "expired": true},
        {"workerId": "w22", "machine": "m2", "tier": null, "slot": null, "cutSha": null, "state": "quarantined", "generation": 12,
            "podUid": null, "ageMs": 5, "expired": false, "reason": "unclean"},
    ])
}

fn serve(asked: &Asked) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/v1/workers") => Answer::Json(200, workers()),
        ("POST", "/v1/workers/w1/quarantine" | "/v1/workers/w1/remove") => Answer::Json(200, workers()[0].clone()),
        ("POST", "/v1/workers/prepare") => {
            let good = json!({"workerId": "w1", "pod": "warm-m1-lite-1", "podUid": "uid-1", "prepared": true});
            let bad = json!({"workerId": "w2", "pod": "warm-m1-lite-2", "podUid": "", "prepared": false, "reason": "install failed"});
            match asked.json()["count"].as_u64() {
                Some(1) => Answer::Json(200, json!([good])),
                Some(2) => Answer::Json(200, json!([good, bad])),
                _ => Answer::Json(200, json!([])),
            }
        }
        _ => Answer::Json(404, json!({"error": "not-found", "message": "no such worker"})),
    }
}

#[test]
fn the_list_is_a_table_or_the_array() {
    let server = Server::new(serve);
    let world = World::with(&server);
    assert_eq!(
        world.run(&["worker", "list"]).exits(0).stdout,
        "WORKER  STATE           GENERATION  MACHINE  TIER    CUT         AGE    REASON\n\
         w1      idle (expired)  3           m1       lite 1  cccccccccc  1 min\n\
         w22     quarantined     12          m2       -       -           5 ms   unclean\n"
    );
    assert_eq!(server.only().token(), QUERY);
    assert_eq!(world.run(&["worker", "list", "--json"]).exits(0).json(), workers());
}

#[test]
fn one_worker_is_shown_or_is_not_there() {
    let server = Server::new(serve);
    let world = World::with(&server);
    let shown = world.run(&["worker", "show", "w1"]).exits(0).stdout;
    assert!(shown.starts_with("worker     w1\nstate      idle (expired)\ngeneration 3\n"), "{shown}");
    assert_eq!(world.run(&["worker", "show", "w22", "--json"]).exits(0).json(), workers()[1]);
    let ran = world.run(&["worker", "show", "w3"]).exits(1);
    assert_eq!(ran.stderr, "error[not-found]: there is no worker `w3`\nhelp: warmhold worker list shows them all\n");
}

#[test]
fn preparing_is_done_when_every_worker_is_ready() {
    let server = Server::new(serve);
    let world = World::with(&server);
    let ran = world.run(&["worker", "prepare"]).exits(0);
    assert_eq!(ran.stdout, "w1: ready in pod warm-m1-lite-1 (uid-1)\n");
    assert_eq!((server.only().json(), server.only().token()), (json!({"count": 1}), ADMIN));
    let ran = world.run(&["worker", "prepare", "--count", "2", "--cut", "v1", "--profile", "local"]).exits(1);
    assert_eq!(ran.stdout, "w1: ready in pod warm-m1-lite-1 (uid-1)\nw2: not prepared: install failed\n");
    assert_eq!(server.asked()[1].json(), json!({"count": 2, "profile": "local", "cut": "v1"}));
    let ran = world.run(&["worker", "prepare", "--count", "2", "--json"]).exits(1);
    assert_eq!(ran.json()[1]["reason"], "install failed");
    world.run(&["worker", "prepare", "--count", "3"]).exits(1);
}

#[test]
fn taking_out_and_taking_away_are_the_admins() {
    let server = Server::new(serve);
    let world = World::with(&server);
    assert_eq!(world.run(&["worker", "quarantine", "w1", "--reason", "odd"]).exits(0).stdout, "w1: quarantined\n");
    assert_eq!(world.run(&["worker", "remove", "w1"]).exits(0).stdout, "w1: removed\n");
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.token() == ADMIN));
    assert_eq!(asked[0].json(), json!({"reason": "odd"}));
    assert_eq!(world.run(&["worker", "remove", "w9"]).exits(1).stderr, "error[not-found]: no such worker\n");
}

#[test]
fn a_rehearsal_looks_and_changes_nothing() {
    let server = Server::new(serve);
    let world = World::with(&server);
    let would = world.run(&["worker", "quarantine", "w1", "--dry-run"]).exits(0).stdout;
    assert_eq!(would, "would quarantine w1, which is idle; nothing was changed\n");
    let would = world.run(&["worker", "remove", "w1", "--dry-run", "--json"]).exits(0).json();
    assert_eq!((&would["dryRun"], &would["would"], &would["worker"]), (&json!(true), &json!("remove"), &workers()[0]));
    for (words, code) in [
        (["worker", "quarantine", "w22"], "already-quarantined"),
        (["worker", "remove", "w22"], "another-machine"),
        (["worker", "remove", "w3"], "not-found"),
    ] {
        let ran = world.run(&[&words[..], &["--dry-run"]].concat()).exits(1);
        assert!(ran.stderr.starts_with(&format!("error[{code}]: ")), "{}", ran.stderr);
    }
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.method == "GET" && asked.token() == QUERY), "{asked:?}");
}
