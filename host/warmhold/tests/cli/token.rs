//! `token`.

use super::World;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_token_is_printed_alone_and_once() {
    let world = World::new();
    let first = world.run(&["token", "issue", "build-07"]).exits(0);
    assert_eq!((first.stdout.len(), first.stderr.as_str()), (65, ""));
    let token = first.stdout.trim_end();
    assert!(token.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let file = world.root().join("control/machine-tokens.json");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).expect("read").contains(token), "only its hash is kept");
    assert_ne!(world.run(&["token", "issue", "build-07"]).exits(0).stdout, first.stdout);
}

#[test]
fn tokens_are_listed_and_taken_away() {
    let world = World::new();
    assert!(world.run(&["token", "list"]).exits(0).stdout.starts_with("no machine has a token"));
    assert_eq!(world.run(&["token", "list", "--json"]).exits(0).json(), serde_json::json!([]));
    for machine in ["m2", "m1"] {
        world.run(&["token", "issue", machine]).exits(0);
    }
    let listed = world.run(&["token", "list", "--json"]).exits(0).json();
    assert_eq!((&listed[0]["machine"], &listed[1]["machine"]), (&"m1".into(), &"m2".into()));
    assert!(listed[0]["issuedAt"].is_u64() && listed[0].as_object().map(serde_json::Map::len) == Some(2));
    let table = world.run(&["token", "list"]).exits(0).stdout;
    assert!(table.starts_with("MACHINE  ISSUED\nm1       20") && table.lines().count() == 3, "{table}");
    let would = world.run(&["token", "revoke", "m1", "--dry-run"]).exits(0).stdout;
    assert_eq!(would, "would take away the token of m1; nothing was changed\n");
    assert_eq!(world.run(&["token", "list", "--json"]).exits(0).json(), listed);
    world.run(&["token", "revoke", "m1"]).exits(0);
    world.run(&["token", "revoke", "m1", "--dry-run"]).exits(1);
    let ran = world.run(&["token", "revoke", "m1"]).exits(1);
    assert!(ran.stderr.starts_with("error[not-found]: `m1` has no token\nhelp: "), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_lost() {
    let world = World::new();
    let ran = world.run(&["token", "issue", "a/b"]).exits(2);
    assert!(ran.stderr.starts_with("error[invalid-machine]: "), "{}", ran.stderr);
    let ran = world.run(&["--url", "http://127.0.0.1:1", "token", "list"]).exits(2);
    assert!(ran.stderr.starts_with("error[no-url-here]: "), "{}", ran.stderr);
    let file = world.root().join("control/machine-tokens.json");
    std::fs::write(&file, "{").expect("written");
    let ran = world.run(&["token", "issue", "m1"]).exits(2);
    assert!(ran.stderr.starts_with("error[tokens-malformed]: ") && ran.stderr.contains("\nhelp: "), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "{");
}
