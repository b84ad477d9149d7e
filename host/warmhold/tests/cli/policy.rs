//! `policy`.

use super::server::{Answer, Asked, Server};
use super::{ADMIN, QUERY, World};
use serde_json::{Value, json};

fn policy(generation: u64, state: &str) -> Value {
    json!({"slot": "lease", "name": "most-recent", "version": "0.1.0", "digest": "d".repeat(64), "generation": generation, "state": state,
        "calls": 7, "faults": 0})
}

fn serve(asked: &Asked) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/v1/policies") => {
            let mut bad = policy(1, "bad");
            bad["firstFault"] = json!("a trap: unreachable\nat decide");
            Answer::Json(200, json!([policy(2, "serving"), bad]))
        }
        ("POST", "/v1/policies/lease") if asked.body == b"\0asm" => Answer::Json(200, policy(3, "serving")),
        ("POST", "/v1/policies/lease") => Answer::Json(
            400,
            json!({"error": "wrong-world", "message": "this is no lease policy", "requestId": "q1",
                "expected": "warmhold:policy/lease-policy@0.1.0", "found": ["warmhold:policy/leases@0.2.0"], "fix": "build it against wit 0.1.0"}),
        ),
        ("POST", "/v1/policies/lease/rollback") => Answer::Json(200, policy(2, "serving")),
        _ => Answer::Json(409, json!({"error": "nothing-kept", "message": "there is no other generation"})),
    }
}

#[test]
fn a_load_answers_the_generation_that_serves() {
    let server = Server::new(serve);
    let world = World::with(&server);
    std::fs::write(world.cwd().join("good.wasm"), b"\0asm").expect("written");
    let ran = world.run(&["policy", "load", "lease", "good.wasm"]).exits(0);
    assert_eq!(ran.stdout, "lease: most-recent 0.1.0 serves now as generation 3 (sha256:dddddddddddd)\n");
    let asked = server.only();
    assert_eq!((asked.token(), asked.headers["content-type"].as_str()), (ADMIN, "application/wasm"));
    assert_eq!(world.run(&["policy", "load", "lease", "good.wasm", "--json"]).exits(0).json(), policy(3, "serving"));
}

#[test]
fn a_refusal_is_printed_whole() {
    let server = Server::new(serve);
    let world = World::with(&server);
    std::fs::write(world.cwd().join("bad.wasm"), b"no").expect("written");
    let ran = world.run(&["policy", "load", "lease", "bad.wasm"]).exits(1);
    assert_eq!(
        ran.stderr,
        "error[wrong-world]: this is no lease policy (request q1)\n  \
         expected: warmhold:policy/lease-policy@0.1.0\n  found: [\"warmhold:policy/leases@0.2.0\"]\nhelp: build it against wit 0.1.0\n"
    );
    let ran = world.run(&["policy", "load", "lease", "none.wasm"]).exits(2);
    assert!(ran.stderr.starts_with("error[unreadable]: none.wasm: No such file"), "{}", ran.stderr);
    let ran = world.run(&["policy", "load", "lease", "."]).exits(2);
    assert!(ran.stderr.starts_with("error[unreadable]: .: "), "{}", ran.stderr);
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn the_list_is_a_table_or_the_array() {
    let server = Server::new(serve);
    let world = World::with(&server);
    assert_eq!(
        world.run(&["policy", "list"]).exits(0).stdout,
        "SLOT   STATE    NAME         VERSION  GENERATION  DIGEST               CALLS  FAULTS  FIRST FAULT\n\
         lease  serving  most-recent  0.1.0    2           sha256:dddddddddddd  7      0\n\
         lease  bad      most-recent  0.1.0    1           sha256:dddddddddddd  7      0       a trap: unreachable\n"
    );
    assert_eq!(server.only().token(), QUERY);
    let listed = world.run(&["policy", "list", "--json"]).exits(0).json();
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]), (Some(2), &policy(2, "serving")));
}

#[test]
fn a_rollback_says_what_serves_again() {
    let server = Server::new(serve);
    let world = World::with(&server);
    let ran = world.run(&["policy", "rollback", "lease"]).exits(0);
    assert_eq!(ran.stdout, "lease: most-recent 0.1.0 serves again as generation 2 (sha256:dddddddddddd)\n");
    assert_eq!(server.only().token(), ADMIN);
    let ran = world.run(&["policy", "rollback", "replay"]).exits(1);
    assert_eq!(ran.stderr, "error[nothing-kept]: there is no other generation\n");
}

/// A component that this checkout built.
fn built(name: &str) -> String {
    format!("{}/../../target/policies/{name}.wasm", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_check_needs_no_daemon_and_tells_the_slot_by_itself() {
    let world = World::new();
    for (name, slot) in [("lease-policy", "lease"), ("pod-manifest", "manifest"), ("warm-replay", "replay")] {
        let file = built(name);
        let checked = world.run(&["policy", "check", &file, "--json"]).exits(0).json();
        assert_eq!((&checked["slot"], &checked["name"]), (&json!(slot), &json!(name)));
        assert_eq!(checked["digest"].as_str().map(str::len), Some(64));
        let ran = world.run(&["policy", "check", &file, "--slot", slot]).exits(0);
        assert!(ran.stdout.contains(&format!("is a good {slot} policy (sha256:")), "{}", ran.stdout);
    }
}

#[test]
fn a_check_that_finds_faults_is_a_no_with_expected_found_and_fix() {
    let world = World::new();
    let lease = built("lease-policy");
    let whole = std::fs::read(&lease).expect("built");
    std::fs::write(world.cwd().join("cut.wasm"), &whole[..whole.len() / 2]).expect("written");
    std::fs::write(world.cwd().join("empty.wasm"), "").expect("written");
    std::fs::write(world.cwd().join("text.wasm"), "hello").expect("written");
    std::fs::write(world.cwd().join("list.json"), "[]").expect("written");
    for (arguments, code) in [
        (&["cut.wasm"][..], "policy-truncated"),
        (&["empty.wasm"], "policy-empty"),
        (&["text.wasm"], "policy-not-wasm"),
        (&[lease.as_str(), "--slot", "replay"], "policy-wrong-world"),
        (&[lease.as_str(), "--settings", "list.json"], "policy-settings-not-object"),
    ] {
        let ran = world.run(&[&["policy", "check"][..], arguments].concat()).exits(1);
        assert!(ran.stderr.starts_with(&format!("error[{code}]: ")), "{}", ran.stderr);
        for part in ["\n  expected: ", "\n  found: ", "\nhelp: "] {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
        assert!(ran.stdout.is_empty());
    }
}
