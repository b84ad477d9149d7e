//! `replays`.

use super::server::{Answer, Asked, Server};
use super::{MEMBER, QUERY, World};
use serde_json::{Value, json};

fn replay() -> Value {
    json!({
        "id": "r1", "runId": "run", "attemptId": "2", "cutSha": "c".repeat(40), "state": "quarantined", "outcome": "observed",
        "reason": "mismatch", "detail": "differs", "passed": false,
        "files": [{"file": "a.sh", "exit": 1, "durationMs": 1500, "stdout": {"bytes": 1, "sha256": "s"}, "stderr": {"bytes": 0, "sha256": "t"}, "artifacts": []}],
        "worker": {"id": "w1", "machine": "m1", "tier": "lite", "slot": 1, "pod": "warm-m1-lite-1", "podUid": "uid", "containerId": "cid", "generation": 4, "lease": "abcdefgh"},
        "isolation": {"level": "reduced", "why": ["not root"]},
        "policies": {"lease": "l@sha256:0#1", "manifest": "m@sha256:0#1", "replay": "r@sha256:0#1"},
        "history": [{"at": 1_772_323_200_000_u64, "state": "acquiring"}, {"at": 1_772_323_201_500_u64, "state": "quarantined", "note": "the daemon died\u{1b}[2J"}],
    })
}

fn serve(asked: &Asked) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/v1/replays?limit=20") => Answer::Json(200, json!([replay()])),
        ("GET", "/v1/replays?limit=1") => Answer::Json(200, json!({"replays": [], "next": null})),
        ("GET", "/v1/replays/r1") | ("POST", "/v1/replays/r1/finalize" | "/v1/replays/r1/quarantine") => {
            Answer::Json(200, replay())
        }
        _ => Answer::Json(404, json!({"error": "not-found", "message": "no such replay"})),
    }
}

#[test]
fn the_list_is_a_table_or_the_array() {
    let server = Server::new(serve);
    let world = World::with(&server);
    let ran = world.run(&["replays", "list"]).exits(0);
    assert_eq!(
        ran.stdout,
        "ID  STATE        RESULT  FILES  CUT         STARTED\n\
         r1  quarantined  failed  1      cccccccccc  2026-03-01 00:00:00.000 UTC\n"
    );
    assert_eq!(server.only().token(), QUERY);
    assert_eq!(world.run(&["replays", "list", "--json"]).exits(0).json(), json!([replay()]));
    assert_eq!(world.run(&["replays", "list", "--limit", "1", "--json"]).exits(0).json(), json!([]));
    assert!(world.run(&["replays", "list", "--limit", "1"]).exits(0).stdout.starts_with("no replays yet"));
}

#[test]
fn show_tells_everything_with_the_history() {
    let server = Server::new(serve);
    let world = World::with(&server);
    let ran = world.run(&["replays", "show", "r1"]).exits(0);
    assert_eq!(
        ran.stdout,
        "replay     r1\n\
         run        run, attempt 2\n\
         cut        cccccccccccccccccccccccccccccccccccccccc\n\
         state      quarantined\n\
         result     failed\n\
         detail     differs\n\
         worker     w1, generation 4, lease …abcdefgh\n\
         pod        warm-m1-lite-1 uid (lite slot 1 of m1)\n\
         container  cid\n\
         isolation  reduced: not root\n\
         lease by   l@sha256:0#1\n\
         manifest by m@sha256:0#1\n\
         replay by  r@sha256:0#1\n\
         \nfiles\n  FAIL  a.sh  (exit 1, 1.5 s)\n\
         \nhistory\n  2026-03-01 00:00:00.000 UTC  acquiring\n  2026-03-01 00:00:01.500 UTC  quarantined  the daemon died\n"
    );
    assert_eq!(world.run(&["replays", "show", "--json", "r1"]).exits(0).json(), replay());
    let ran = world.run(&["replays", "show", "none"]).exits(1);
    assert!(ran.stderr.starts_with("error[not-found]: no such replay"), "{}", ran.stderr);
}

#[test]
fn the_verdict_is_the_members() {
    let server = Server::new(serve);
    let world = World::with(&server);
    assert_eq!(world.run(&["replays", "finalize", "r1"]).exits(0).stdout, "r1: quarantined, worker w1\n");
    world.run(&["replays", "quarantine", "r1", "--reason", "odd bytes", "--json"]).exits(0);
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.token() == MEMBER));
    assert_eq!((asked[0].json(), asked[1].json()), (json!({}), json!({"reason": "odd bytes"})));
}

#[test]
fn an_id_cannot_leave_its_place_in_the_path() {
    let server = Server::new(serve);
    let world = World::with(&server);
    for (id, path) in [
        ("../policies", "/v1/replays/..%2Fpolicies"),
        ("..", "/v1/replays/%2E%2E"),
        ("a?b#c d", "/v1/replays/a%3Fb%23c%20d"),
    ] {
        world.run(&["replays", "show", id]).exits(1);
        assert_eq!(server.asked().last().expect("asked").path, path);
    }
}
