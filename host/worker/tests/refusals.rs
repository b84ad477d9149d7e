//! What the worker refuses, in which order, and that nothing runs then.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

mod common;

use common::Pod;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use warmhold_protocol::{Command, Rule, read_command, write_command};

/// Refused with this code, clean, and the file left no trace.
fn refused(pod: &Pod, code: &str, change: impl FnOnce(&mut Command)) {
    let witness = pod.path().join("it-ran");
    pod.file("t.sh", &format!("echo ran > {}", witness.display()));
    let mut command = pod.command(&["t.sh"]);
    change(&mut command);
    let reply = pod.run(&command);
    assert_eq!(reply.refusal(), code, "{:?}", reply.verdict);
    assert!(reply.verdict().clean, "{:?}", reply.verdict);
    assert!(reply.status.is_some_and(|status| status.success()), "{}", reply.stderr);
    assert!(!witness.exists());
    pod.assert_empty();
}

type Change = fn(&mut Command);

#[test]
fn a_command_for_somebody_else_is_refused() {
    let cases: [(&str, Change); 9] = [
        ("wrong-protocol", |command| command.protocol = 2),
        ("wrong-worker", |command| command.worker_id = "worker-2".to_owned()),
        ("wrong-key", |command| command.key.context = "other".to_owned()),
        ("wrong-key", |command| command.key.image_digest = "sha256:0".to_owned()),
        ("wrong-key", |command| command.key.lock_hash = String::new()),
        ("wrong-key", |command| command.key.architecture = "arm64".to_owned()),
        ("wrong-cut", |command| command.cut_sha = "f".repeat(40)),
        ("wrong-env-profile", |command| command.env_profile = "gate-v2".to_owned()),
        // The first fault in the order counts.
        ("wrong-worker", |command| {
            command.worker_id.clear();
            command.generation = 0;
            command.files.clear();
        }),
    ];
    for (code, change) in cases {
        refused(&Pod::new(), code, change);
    }
}

#[test]
fn a_passed_deadline_is_refused() {
    let cases: [Change; 3] = [
        |command| command.deadline_at = 0,
        |command| command.deadline_at = command.requested_at.saturating_sub(1),
        |command| command.budget_ms = 0,
    ];
    for change in cases {
        refused(&Pod::new(), "deadline-passed", change);
    }
}

#[test]
fn bad_files_are_refused() {
    let lists: [&[&str]; 15] = [
        &[],
        &["/etc/passwd"],
        &["../t.sh"],
        &["a/../t.sh"],
        &["./t.sh"],
        &["a//t.sh"],
        &["t.sh/"],
        &[""],
        &["t\0.sh"],
        &["t.sh", "t.sh"],
        &["out"],
        &["out-dangling"],
        &["sub"],
        &["t.sh", ".."],
        &["pipe"],
    ];
    for list in lists {
        let pod = Pod::new();
        fs::create_dir(pod.repo().join("sub")).unwrap();
        symlink("/etc/passwd", pod.repo().join("out")).unwrap();
        symlink("/etc/not-there", pod.repo().join("out-dangling")).unwrap();
        if list == ["pipe"] {
            let made = std::process::Command::new("mkfifo").arg(pod.repo().join("pipe")).status().unwrap();
            assert!(made.success());
        }
        refused(&pod, "bad-file", |command| command.files = list.iter().map(|&file| file.to_owned()).collect());
    }
}

#[test]
fn a_link_inside_the_tree_is_a_file() {
    let pod = Pod::new();
    pod.file("real/t.sh", "echo here");
    symlink("real/t.sh", pod.repo().join("link.sh")).unwrap();
    let reply = pod.run(&pod.command(&["link.sh"]));
    reply.assert_passed();
    assert_eq!(reply.stdout(0), "here\n");
}

#[test]
fn bad_rules_and_variables_are_refused() {
    let rule = |pattern: &str, run: &[&str]| Rule {
        pattern: pattern.to_owned(),
        run: run.iter().map(|&argument| argument.to_owned()).collect(),
    };
    for bad in [rule("[", &["sh"]), rule("*", &[])] {
        refused(&Pod::new(), "bad-rule", |command| command.rules.push(bad));
    }
    for name in ["", "A=B", "WARM_KEY"] {
        refused(&Pod::new(), "bad-env", |command| drop(command.env.insert(name.to_owned(), String::new())));
    }
}

#[test]
fn tests_never_run_as_root() {
    if common::root() {
        refused(&Pod::new(), "bad-isolation", |command| command.isolation.uid = Some(0));
        refused(&Pod::new(), "bad-isolation", |command| command.isolation.uid = Some(u32::MAX));
    }
}

#[test]
fn a_generation_is_spent_once_across_restarts_and_even_by_a_refusal() {
    let pod = Pod::new();
    pod.file("t.sh", "exit 0");
    let run = |generation: u64| {
        let mut command = pod.command(&["t.sh"]);
        command.generation = generation;
        pod.run(&command)
    };
    assert_eq!(run(0).refusal(), "stale-generation");
    run(5).assert_passed();
    for stale in [5, 4, 1, 0] {
        assert_eq!(run(stale).refusal(), "stale-generation", "{stale}");
    }
    let mut command = pod.command(&["no/../file"]);
    command.generation = 6;
    assert_eq!(pod.run(&command).refusal(), "bad-file");
    assert_eq!(run(6).refusal(), "stale-generation");
    run(7).assert_passed();
    fs::write(pod.data().join("generation"), "rubbish").unwrap();
    assert_eq!(run(8).refusal(), "io");
}

#[test]
fn the_generation_is_on_disk_before_the_file_runs() {
    let pod = Pod::new();
    pod.file("t.sh", "echo started; sleep 1000");
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    assert_eq!(fs::read_to_string(pod.data().join("generation")).unwrap(), "1\n");
    drop(running.stdin.take());
    running.finish();
}

#[test]
fn a_second_request_at_once_is_busy_and_the_first_one_goes_on() {
    let pod = Pod::new();
    let gate = pod.data().join("gate");
    pod.file("t.sh", &format!("echo started; while ! [ -e {} ]; do sleep 0.05; done", gate.display()));
    let mut first = pod.start(&pod.command(&["t.sh"]));
    first.until("started");
    let mut command = pod.command(&["t.sh"]);
    command.generation = 2;
    let second = pod.run(&command);
    assert_eq!(second.refusal(), "busy");
    assert!(!second.verdict().clean, "a lease that meets another one isn't clean");
    fs::write(gate, "").unwrap();
    first.finish().assert_passed();
}

#[test]
fn what_is_no_command_is_exit_status_2_and_no_verdict() {
    let pod = Pod::new();
    pod.file("t.sh", "exit 0");
    let mut whole = Vec::new();
    write_command(&mut whole, &pod.command(&["t.sh"])).unwrap();
    assert!(read_command(&whole[..]).is_ok());
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let short = &whole[..whole.len() - 1];
    for bytes in [&b""[..], b"hello\n", b"warmhold/1 99999999999 x\n", short, &damaged] {
        let mut running = pod.start_silent();
        running.stdin.take().unwrap().write_all(bytes).unwrap();
        let reply = running.finish();
        assert!(reply.verdict.is_none());
        assert_eq!(reply.status.unwrap().code(), Some(2));
        assert!(reply.stderr.starts_with("error[command]: "), "{}", reply.stderr);
    }
    assert!(!pod.data().join("generation").exists());
}

#[test]
fn a_worker_without_an_identity_says_which_variable_is_missing() {
    for (name, value) in [("WARM_KEY", "{}"), ("WARM_WORKER_ID", ""), ("WARM_REPO", "relative"), ("WARM_DATA", "/none")]
    {
        let mut pod = Pod::new();
        pod.variables.push((name.to_owned(), value.to_owned()));
        let reply = pod.start_silent().finish();
        assert_eq!(reply.status.unwrap().code(), Some(2));
        assert!(reply.stderr.contains(name), "{}", reply.stderr);
    }
}

#[test]
fn a_full_disk_refuses_before_anything_runs() {
    if !common::root() {
        return;
    }
    let pod = Pod::new();
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new(arguments[0]).args(&arguments[1..]).status().unwrap();
        assert!(status.success(), "{arguments:?}");
    };
    let data = pod.data();
    let data = data.to_str().unwrap();
    mount(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", data]);
    let filler = fs::File::create(pod.data().join("filler")).and_then(|mut file| file.write_all(&[1; 128 * 1024]));
    let filled = filler.is_err();
    pod.file("t.sh", "exit 0");
    let reply = pod.run(&pod.command(&["t.sh"]));
    mount(&["umount", data]);
    assert!(filled);
    assert_eq!(reply.refusal(), "io", "{:?}", reply.verdict);
}

#[test]
fn probes_that_fail_refuse() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    refused(&Pod::new(), "host-probe-failed", |command| command.probes.host = Some(closed));
    refused(&Pod::new(), "host-probe-failed", |command| command.probes.host = Some("http://name/".to_owned()));
    refused(&Pod::new(), "io", |command| command.probes.prod = Some("http://name/".to_owned()));
}
