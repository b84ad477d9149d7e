//! `replay`.

use super::server::{Answer, Server};
use super::{MEMBER, World};
use serde_json::{Value, json};
use std::fs;

fn digest(bytes: u64) -> Value {
    json!({"bytes": bytes, "sha256": "0".repeat(64)})
}

fn file(name: &str, exit: i32) -> Value {
    json!({"file": name, "exit": exit, "durationMs": 12, "stdout": digest(3), "stderr": digest(0), "artifacts": []})
}

/// A replay as the daemon answers it.
fn observed(state: &str, files: &[Value]) -> Value {
    let passed = files.iter().all(|file| file["exit"] == 0);
    json!({
        "id": "r1", "runId": "run", "attemptId": "1", "cutSha": "c".repeat(40), "state": state, "outcome": "observed",
        "passed": passed, "files": files,
        "worker": {"id": "w1", "machine": "m1", "tier": "lite", "slot": 1, "pod": "warm-m1-lite-1", "podUid": "u", "containerId": "x",
            "generation": 4, "lease": "abcdefgh"},
        "isolation": {"level": "full", "why": []},
        "policies": {"lease": "l@sha256:0#1", "manifest": "m@sha256:0#1", "replay": "r@sha256:0#1"},
        "history": [{"at": 1, "state": "acquiring"}, {"at": 2, "state": state}],
    })
}

fn state(name: &str) -> Value {
    json!({"event": "state", "at": 1, "state": name})
}

fn event(kind: &str, mut value: Value) -> Value {
    value["event"] = json!(kind);
    value
}

fn output(name: &str, stream: &str, text: &str) -> Value {
    json!({"event": "output", "file": name, "stream": stream, "text": text})
}

#[test]
fn all_passed_is_exit_0() {
    let server = Server::new(|_| {
        let files = [file("tests/a.sh", 0), file("tests/b.sh", 0)];
        Answer::Events(vec![
            state("acquiring"),
            state("leased"),
            output("tests/a.sh", "stdout", "quiet please\n"),
            event("file", files[0].clone()),
            event("file", files[1].clone()),
            state("observed"),
            event("result", observed("finalized", &files)),
        ])
    });
    let world = World::with(&server);
    let head = world.commit(&["tests/a.sh", "tests/b.sh"]);
    let ran = world.run(&["replay", "tests/a.sh", "tests/b.sh"]).exits(0);
    assert_eq!(
        ran.stdout,
        "ok    tests/a.sh  (12 ms)\nok    tests/b.sh  (12 ms)\npassed: 2 of 2 in w1 (generation 4), the worker was cleaned and given back\n"
    );
    assert_eq!(ran.stderr, "", "progress is for terminals");
    let asked = server.only();
    assert_eq!((asked.method.as_str(), asked.path.as_str(), asked.token()), ("POST", "/v1/replays", MEMBER));
    assert_eq!(asked.headers["accept"], "application/x-ndjson");
    let mut body = asked.json();
    let run = body["runId"].take();
    let run = run.as_str().expect("a run");
    assert!(run.len() == 36 && run.chars().filter(|c| *c == '-').count() == 4, "a UUID: {run}");
    assert_eq!(
        body,
        json!({"files": ["tests/a.sh", "tests/b.sh"], "cutSha": head, "runId": null, "attemptId": "1", "deadlineMs": 120_000, "keep": false})
    );
}

#[test]
fn a_failing_file_shows_its_first_lines_and_is_exit_1() {
    let many: String = (1..=50).map(|n| format!("line {n}\n")).collect();
    let server = Server::new(move |_| {
        let timeout = json!({"file": "c.sh", "exit": null, "reason": "timeout", "durationMs": 2000, "stdout": digest(0), "stderr": digest(0), "artifacts": []});
        let killed = json!({"file": "d.sh", "exit": null, "signal": 9, "durationMs": 1, "stdout": digest(0), "stderr": digest(0), "artifacts": []});
        let files = [file("a.sh", 1), file("b.sh", 0), timeout, killed];
        let mut events = vec![
            output("a.sh", "stdout", "\u{1b}[31mred\u{1b}[0m\nhalf "),
            output("a.sh", "stderr", "oops\u{7}\n"),
            output("a.sh", "stdout", &many),
            output("b.sh", "stdout", "must not be shown\n"),
        ];
        events.extend(files.iter().map(|file| event("file", file.clone())));
        events.push(event("result", observed("finalized", &files)));
        Answer::Events(events)
    });
    let world = World::with(&server);
    world.commit(&["a.sh", "b.sh", "c.sh", "d.sh"]);
    let ran = world.run(&["replay", "a.sh", "b.sh", "c.sh", "d.sh"]).exits(1);
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(
        lines[..4],
        ["FAIL  a.sh  (exit 1, 12 ms)", "      | red", "      | oops\u{fffd}", "      | half line 1"]
    );
    assert_eq!(
        lines[20..25],
        [
            "      | line 18",
            "      | …",
            "ok    b.sh  (12 ms)",
            "FAIL  c.sh  (timeout, 2.0 s)",
            "FAIL  d.sh  (signal 9, 1 ms)"
        ]
    );
    assert_eq!(lines[25], "failed: 3 of 4 in w1 (generation 4), the worker was cleaned and given back");
    assert_eq!((lines.len(), ran.stderr.as_str()), (26, ""));
}

#[test]
fn reduced_isolation_is_told_with_its_reasons() {
    let server = Server::new(|_| {
        let mut replay = observed("observed", &[file("a.sh", 0)]);
        replay["isolation"] = json!({"level": "reduced", "why": ["not root", "no network namespace"]});
        Answer::Events(vec![event("result", json!({"replay": replay}))])
    });
    let world = World::with(&server);
    world.commit(&["a.sh"]);
    let ran = world.run(&["replay", "--keep", "a.sh"]).exits(0);
    assert_eq!(
        ran.stdout,
        "passed: 1 of 1 in w1 (generation 4), the worker stays leased until you settle it\n\
         isolation reduced: not root; no network namespace\n\
         settle it: warmhold replays finalize r1, or warmhold replays quarantine r1\n"
    );
    assert_eq!(server.only().json()["keep"], json!(true));
}

#[test]
fn a_fallback_is_exit_1_and_no_worker_names_the_prepare_command() {
    let server = Server::new(|asked| {
        let cut = asked.json()["cutSha"].clone();
        let none = format!("no worker of profile local is prepared for cut {}", cut.as_str().unwrap_or_default());
        let (reason, detail) = match asked.json()["attemptId"].as_str() {
            Some("2") => ("exec-failed", Some("the stream broke".to_owned())),
            Some("3") => ("no-candidate", Some("the commit has no file a.sh".to_owned())),
            _ => ("no-candidate", Some(none)),
        };
        let mut replay = json!({"id": "r1", "cutSha": cut, "state": "fallback", "outcome": "fallback", "reason": reason, "passed": false, "files": [],
            "policies": {}, "history": []});
        if let Some(detail) = detail {
            replay["detail"] = json!(detail);
        }
        Answer::Events(vec![state("acquiring"), event("result", replay)])
    });
    let world = World::with(&server);
    let head = world.commit(&["a.sh"]);
    let ran = world.run(&["replay", "a.sh"]).exits(1);
    assert_eq!(
        ran.stderr,
        format!(
            "error[no-candidate]: no result: no worker of profile local is prepared for cut {head}\n\
             help: warmhold worker prepare --cut {head}\n"
        )
    );
    let ran = world.run(&["replay", "--attempt", "2", "a.sh"]).exits(1);
    assert!(ran.stderr.starts_with("error[exec-failed]: no result: the stream broke\nhelp: "), "{}", ran.stderr);
    // More workers wouldn't help here.
    let ran = world.run(&["replay", "--attempt", "3", "a.sh"]).exits(1);
    assert!(ran.stderr.starts_with("error[no-candidate]: no result: the commit has no file"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("worker prepare"), "{}", ran.stderr);
}

#[test]
fn json_is_one_object_and_nothing_else() {
    let replay = observed("finalized", &[file("a.sh", 3)]);
    let answer = replay.clone();
    let server = Server::new(move |_| {
        Answer::Events(vec![
            state("leased"),
            output("a.sh", "stdout", "x\n"),
            event("file", answer["files"][0].clone()),
            event("result", answer.clone()),
        ])
    });
    let world = World::with(&server);
    world.commit(&["a.sh"]);
    let ran = world.run(&["replay", "--json", "a.sh"]).exits(1);
    assert_eq!(ran.json(), replay);
    assert_eq!(ran.stderr, "");
    // A daemon that answers at once is as good.
    let answer = replay.clone();
    let server = Server::new(move |_| Answer::Json(200, answer.clone()));
    let world = World::with(&server);
    world.commit(&["a.sh"]);
    assert_eq!(world.run(&["replay", "--json", "a.sh"]).exits(1).json(), replay);
}

#[test]
fn a_daemon_that_goes_away_is_exit_3_and_the_run_can_be_asked_for_again() {
    for broken in [Answer::Broken as fn(Vec<Value>) -> Answer, Answer::Events] {
        let server = Server::new(move |_| broken(vec![state("executing")]));
        let world = World::with(&server);
        world.commit(&["a.sh"]);
        let ran = world.run(&["replay", "--run", "run-7", "a.sh"]).exits(3);
        assert!(
            ran.stderr.starts_with("error[connection-lost]: the daemon went away in the middle of the replay"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("`warmhold replay --run run-7`"), "{}", ran.stderr);
        assert_eq!(server.only().json()["runId"], "run-7");
    }
}

#[test]
fn an_error_at_the_end_of_the_stream_is_the_daemons_refusal() {
    let server = Server::new(|_| {
        Answer::Events(vec![
            state("acquiring"),
            json!({"event": "error", "error": "policy-failed", "message": "it trapped", "requestId": "q"}),
        ])
    });
    let world = World::with(&server);
    world.commit(&["a.sh"]);
    let ran = world.run(&["replay", "a.sh"]).exits(1);
    assert!(ran.stderr.starts_with("error[policy-failed]: it trapped (request q)"), "{}", ran.stderr);
}

#[test]
fn files_are_named_from_the_repositorys_top_whatever_folder_one_stands_in() {
    let server = Server::new(|_| Answer::Json(200, observed("finalized", &[file("a", 0)])));
    let world = World::with(&server);
    world.commit(&["tests/deep/a.sh", "tests/b.sh"]);
    let absolute = world.cwd().join("tests/b.sh");
    let mut command = world.command();
    command.current_dir(world.cwd().join("tests/deep")).args(["replay", "a.sh", "../b.sh", "./a.sh"]).arg(absolute);
    super::ran(&mut command).exits(0);
    assert_eq!(server.only().json()["files"], json!(["tests/deep/a.sh", "tests/b.sh"]));

    for outside in ["../x.sh", "/etc/passwd", "."] {
        let ran = world.run(&["replay", outside]).exits(2);
        assert!(
            ran.stderr.starts_with(&format!("error[bad-file]: {outside} is no file of the repository")),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_cut_is_named_as_git_names_commits() {
    let server = Server::new(|_| Answer::Json(200, observed("finalized", &[file("a", 0)])));
    let world = World::with(&server);
    let head = world.commit(&["a.sh"]);
    world.git(&["tag", "v1"]);
    world.run(&["replay", "--cut", "v1", "--baseline", "HEAD", "--profile", "p", "--deadline", "2m", "a.sh"]).exits(0);
    let body = server.only().json();
    assert_eq!((&body["cutSha"], &body["baselineSha"]), (&json!(head), &json!(head)));
    assert_eq!((&body["profile"], &body["deadlineMs"]), (&json!("p"), &json!(120_000)));
    let elsewhere = "A".repeat(40);
    world.run(&["replay", "--cut", &elsewhere, "a.sh"]).exits(0);
    assert_eq!(server.asked()[1].json()["cutSha"], json!("a".repeat(40)), "the daemon may know it");
    for unknown in ["v2", "--output=x", "HEAD:a.sh"] {
        let ran = world.run(&["replay", &format!("--cut={unknown}"), "a.sh"]).exits(2);
        assert!(
            ran.stderr.starts_with(&format!("error[unknown-commit]: git knows no commit `{unknown}` here")),
            "{}",
            ran.stderr
        );
    }
    assert!(!world.cwd().join("x").exists());
}

#[test]
fn outside_of_a_repository_the_commit_must_be_whole() {
    let server = Server::new(|_| Answer::Json(200, observed("finalized", &[file("a", 0)])));
    let world = World::with(&server);
    let ran = world.run(&["replay", "a.sh"]).exits(2);
    assert!(ran.stderr.starts_with("error[no-repository]: "), "{}", ran.stderr);
    world.run(&["replay", "--cut", &"a".repeat(40), "tests/../a.sh"]).exits(0);
    assert_eq!(server.only().json()["files"], json!(["a.sh"]));
}

#[test]
fn changes_that_are_not_committed_are_warned_of() {
    let server = Server::new(|_| Answer::Json(200, observed("finalized", &[file("a", 0)])));
    let world = World::with(&server);
    let head = world.commit(&["a.sh", "b.sh", "other.sh", ".gitignore"]);
    fs::write(world.cwd().join(".gitignore"), "ignored.sh\n").expect("written");
    fs::write(world.cwd().join("a.sh"), "exit 1\n").expect("written");
    fs::write(world.cwd().join("other.sh"), "exit 1\n").expect("written");
    fs::write(world.cwd().join("new [1].sh"), "exit 1\n").expect("written");
    fs::write(world.cwd().join("ignored.sh"), "exit 1\n").expect("written");
    let ran = world.run(&["replay", "a.sh", "b.sh", "new [1].sh", "ignored.sh"]).exits(0);
    let short = &head[..10];
    for file in ["a.sh", "new [1].sh", "ignored.sh"] {
        let line = format!("warning: {file} isn't as in the commit; the replay runs it as of {short}\n");
        assert!(ran.stderr.contains(&line), "{file}: {}", ran.stderr);
    }
    assert_eq!(ran.stderr.matches("warning:").count(), 3, "{}", ran.stderr);
    assert!(ran.stderr.ends_with("help: commit first to replay what lies in the work tree\n"), "{}", ran.stderr);
    assert_eq!(world.run(&["replay", "--cut", "HEAD", "a.sh"]).exits(0).stderr, "", "who names a commit means it");
    assert_eq!(world.run(&["replay", "b.sh"]).exits(0).stderr, "");
}
