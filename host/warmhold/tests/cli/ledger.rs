//! `ledger`, on real files.

use super::{World, ran};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

fn owner() -> String {
    "0".repeat(64)
}

fn image(n: usize) -> Value {
    json!({"id": format!("i{n}"), "kind": "image", "machine": "m1", "name": format!("image {n}"), "owner": owner(),
        "attrs": {"n": n}, "observedAt": 1, "ttlMs": 1.5})
}

fn worker(n: usize) -> Value {
    json!({"id": format!("pod-worker-lease:w{n}"), "kind": "pod-worker-lease", "machine": "m1", "name": format!("w{n}"),
        "owner": owner(), "attrs": {"key": {"context": "local", "imageDigest": "i", "lockHash": "l", "architecture": "a"},
            "state": "idle", "generation": 0, "idleTtlMs": 60000}, "observedAt": 1, "ttlMs": 60000})
}

fn write(world: &World, name: &str, content: &Value) {
    fs::write(world.cwd().join(name), content.to_string()).expect("written");
}

#[test]
fn in_and_out_again_is_the_same_file() {
    let world = World::new();
    let rows = json!([worker(2), image(1), worker(1), image(0)]);
    write(&world, "ledger.json", &rows);
    let would = world.run(&["ledger", "import", "ledger.json", "--dry-run"]).exits(0).stdout;
    assert_eq!(would, "would import 4 rows (2 image, 2 pod-worker-lease); nothing was changed\n");
    assert!(!world.root().join("control/ledger.sqlite3").exists(), "a rehearsal makes nothing");
    let done = world.run(&["ledger", "import", "ledger.json", "--json"]).exits(0).json();
    assert_eq!((&done["rows"], &done["kinds"]["image"], &done["dryRun"]), (&json!(4), &json!(2), &json!(false)));
    assert_eq!(world.run(&["ledger", "export"]).exits(0).stdout, rows.to_string());
    let ran = world.run(&["ledger", "export", "out.json"]).exits(0);
    assert_eq!(ran.stdout, "out.json: 4 rows (2 image, 2 pod-worker-lease)\n");
    let out = world.cwd().join("out.json");
    assert_eq!(fs::read_to_string(&out).expect("read"), rows.to_string());
    assert_eq!(fs::metadata(&out).expect("there").permissions().mode() & 0o777, 0o600, "it holds lease ids");
    let ran = world.run(&["ledger", "export", "out.json"]).exits(2);
    assert!(ran.stderr.starts_with("error[file-exists]: out.json") && ran.stderr.contains("--force"), "{}", ran.stderr);
    let done = world.run(&["ledger", "export", "out.json", "--force", "--json"]).exits(0).json();
    assert_eq!(done, json!({"file": "out.json", "rows": 4, "kinds": {"image": 2, "pod-worker-lease": 2}}));
    for arguments in [&["ledger", "import", "out.json"][..], &["ledger", "import", "out.json", "--dry-run"]] {
        let ran = world.run(arguments).exits(1);
        assert!(ran.stderr.starts_with("error[ledger-not-empty]: ") && ran.stderr.contains("4 rows"), "{}", ran.stderr);
        assert!(ran.stderr.contains("\nhelp: import into a new root"), "{}", ran.stderr);
    }
}

#[test]
fn a_bad_row_is_named_by_its_index_and_nothing_is_made() {
    let world = World::new();
    let mut bad = worker(1);
    bad["attrs"]["state"] = json!("asleep");
    write(&world, "bad.json", &json!([image(0), image(1), bad]));
    for arguments in [&["ledger", "import", "bad.json"][..], &["ledger", "import", "bad.json", "--dry-run"]] {
        let ran = world.run(arguments).exits(1);
        let says = "error[bad-row]: row 2 (\"pod-worker-lease:w1\"): attrs.state is none of idle";
        assert!(ran.stderr.starts_with(says) && ran.stderr.contains("nothing was imported\nhelp: "), "{}", ran.stderr);
    }
    fs::write(world.cwd().join("cut.json"), "[{\"id\":").expect("written");
    let ran = world.run(&["ledger", "import", "cut.json"]).exits(1);
    assert!(ran.stderr.starts_with("error[not-a-ledger]: "), "{}", ran.stderr);
    let ran = world.run(&["ledger", "import", "absent.json"]).exits(2);
    assert!(ran.stderr.starts_with("error[file-unreadable]: absent.json: "), "{}", ran.stderr);
    assert_eq!(fs::read_dir(world.root().join("control")).expect("listed").count(), 0);
    for arguments in [&["ledger", "export"][..], &["ledger", "check"], &["ledger", "backup", "b"]] {
        let ran = world.run(arguments).exits(2);
        assert!(ran.stderr.starts_with("error[ledger-absent]: ") && ran.stderr.contains("\nhelp: "), "{}", ran.stderr);
    }
    assert_eq!(fs::read_dir(world.root().join("control")).expect("listed").count(), 0, "a look makes nothing");
}

#[test]
fn from_standard_input_and_into_a_pipe_that_closes() {
    let world = World::new();
    let rows = Value::Array((0..5000).map(image).collect());
    write(&world, "many.json", &rows);
    let mut command = world.command();
    command.args(["ledger", "import", "-"]).stdin(fs::File::open(world.cwd().join("many.json")).expect("opened"));
    assert_eq!(ran(&mut command).exits(0).stdout, "imported 5000 rows (5000 image)\n");
    let mut command = world.command();
    let mut child =
        command.args(["ledger", "export"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("ended");
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn a_check_says_what_it_found() {
    let world = World::new();
    write(&world, "ledger.json", &json!([worker(0), image(0)]));
    world.run(&["ledger", "import", "ledger.json"]).exits(0);
    let text = world.run(&["ledger", "check"]).exits(0).stdout;
    let marks: Vec<_> =
        text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        marks,
        ["ok schema", "ok integrity", "ok rows", "ok numbers", "ok tombstones", "ok records", "2 rows,"],
        "{text}"
    );
    let facts = world.run(&["ledger", "check", "--json"]).exits(0).json();
    assert_eq!((&facts["sound"], &facts["rows"], &facts["kinds"]["image"]), (&json!(true), &json!(2), &json!(1)));
    assert_eq!(facts["parts"].as_array().map(Vec::len), Some(6));
    // Somebody at work with a shell.
    let file = world.root().join("control/ledger.sqlite3");
    let edit = std::process::Command::new("sqlite3")
        .arg(&file)
        .arg("DROP INDEX row_kind; UPDATE row SET attrs = replace(attrs, 'idle\"', 'leased\"')")
        .output();
    let Ok(edit) = edit else {
        eprintln!("skipped: this machine has no `sqlite3`");
        return;
    };
    assert!(edit.status.success(), "{edit:?}");
    let text = world.run(&["ledger", "check"]).exits(1).stdout;
    assert!(text.contains("FAIL  schema") && text.contains("the index row_kind is missing"), "{text}");
    assert!(text.contains("attrs.leaseId is missing") && text.contains("2 rows, 0 records: 2 faults"), "{text}");
    let facts = world.run(&["ledger", "check", "--json"]).exits(1).json();
    assert_eq!(facts["sound"], json!(false));
    fs::write(&file, "not a database, but long enough to be looked at").expect("written");
    let ran = world.run(&["ledger", "check"]).exits(1);
    assert!(ran.stderr.starts_with("error[ledger-damaged]: ") && ran.stderr.contains("\nhelp: "), "{}", ran.stderr);
}

#[test]
fn a_backup_is_a_ledger_and_replaces_nothing_unasked() {
    let world = World::new();
    write(&world, "ledger.json", &json!([worker(0), image(0)]));
    world.run(&["ledger", "import", "ledger.json"]).exits(0);
    let text = world.run(&["ledger", "backup", "copy.sqlite3"]).exits(0).stdout;
    assert!(text.starts_with("copy.sqlite3: 2 rows, 0 records, "), "{text}");
    let copy = world.cwd().join("copy.sqlite3");
    assert_eq!(fs::metadata(&copy).expect("there").permissions().mode() & 0o777, 0o600);
    world.run(&["ledger", "check", "copy.sqlite3"]).exits(0);
    let ran = world.run(&["ledger", "backup", "copy.sqlite3"]).exits(2);
    assert!(ran.stderr.starts_with("error[file-exists]: ") && ran.stderr.contains("--force"), "{}", ran.stderr);
    let done = world.run(&["ledger", "backup", "copy.sqlite3", "--force", "--json"]).exits(0).json();
    assert_eq!((&done["rows"], done["bytes"].as_u64()), (&json!(2), fs::metadata(&copy).ok().map(|found| found.len())));
    let ledger = world.root().join("control/ledger.sqlite3");
    for command in ["backup", "export"] {
        let ran = world.run(&["ledger", command, &ledger.to_string_lossy(), "--force"]).exits(2);
        assert!(ran.stderr.starts_with("error[file-in-use]: "), "{}", ran.stderr);
    }
    world.run(&["ledger", "check"]).exits(0);
    // In another root it is that root's ledger.
    let other = World::new();
    fs::copy(&copy, other.root().join("control/ledger.sqlite3")).expect("copied");
    assert_eq!(other.run(&["ledger", "export"]).exits(0).stdout, world.run(&["ledger", "export"]).exits(0).stdout);
    let ran = world.run(&["--url", "http://127.0.0.1:1", "ledger", "check"]).exits(2);
    assert!(ran.stderr.starts_with("error[no-url-here]: "), "{}", ran.stderr);
}

/// Many real processes at once on a root that has no ledger yet.
#[test]
fn of_many_imports_one_is_made() {
    let world = World::new();
    write(&world, "ledger.json", &Value::Array((0..500).map(image).collect()));
    let imports: Vec<_> = (0..5)
        .map(|_| {
            let mut command = world.command();
            command.args(["ledger", "import", "ledger.json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("started")
        })
        .collect();
    let mut done = 0;
    for import in imports {
        let ended = import.wait_with_output().expect("ended");
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        match ended.status.code() {
            Some(0) => done += 1,
            code => assert_eq!((code, error.starts_with("error[ledger-not-empty]: ")), (Some(1), true), "{error}"),
        }
    }
    assert_eq!(done, 1);
    let facts = world.run(&["ledger", "check", "--json"]).exits(0).json();
    assert_eq!(facts["rows"], json!(500));
}
