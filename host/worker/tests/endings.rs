//! How files end, and what is left of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

mod common;

use common::{Pod, Power, processes_of, root};
use std::time::Duration;
use warmhold_protocol::FileReason;

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let pod = Pod::new();
    pod.file("a.sh", "exit 137");
    pod.file("b.sh", "kill -9 $$");
    pod.file("c.sh", "exit 42");
    pod.file("d.sh", "kill -TERM $$");
    let reply = pod.run(&pod.command(&["a.sh", "b.sh", "c.sh", "d.sh"]));
    let verdict = reply.verdict();
    let ends: Vec<_> = verdict.files.iter().map(|file| (file.exit, file.signal, file.reason)).collect();
    assert_eq!(ends, [(Some(137), None, None), (None, Some(9), None), (Some(42), None, None), (None, Some(15), None)]);
    assert!(verdict.clean, "{verdict:?}");
}

#[test]
fn a_file_past_the_deadline_is_ended_and_the_rest_is_not_run() {
    let pod = Pod::new();
    pod.file("a.sh", "echo begun; trap '' TERM INT HUP; sleep 1000");
    pod.file("b.sh", "exit 0");
    let mut command = pod.command(&["a.sh", "b.sh"]);
    command.budget_ms = 1500;
    let reply = pod.run(&command);
    let verdict = reply.verdict();
    let reasons: Vec<_> = verdict.files.iter().map(|file| (file.exit, file.reason)).collect();
    assert_eq!(reasons, [(None, Some(FileReason::Timeout)), (None, Some(FileReason::NotRun))]);
    assert_eq!(reply.stdout(0), "begun\n");
    assert!(verdict.clean, "{verdict:?}");
    pod.assert_empty();
}

const STAYERS: &str = r#"
import os, signal, subprocess, sys, time
def stay(stop=False):
    # Twice forked, in a session of its own, deaf to polite signals, holding both streams.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            if stop:
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                time.sleep(1000)
        os._exit(0)
    os.wait()
stay()
stay(stop=True)
subprocess.Popen(['sleep', '1000'])
subprocess.Popen(['sh', '-c', 'while :; do sleep 0.01 & done'])
print('leaving', flush=True)
"#;

fn stayers(power: Power) {
    let pod = Pod::with(power);
    pod.file("a.py", STAYERS);
    pod.file("b.sh", "echo next");
    let reply = pod.run(&pod.command(&["a.py", "b.sh"]));
    reply.assert_passed();
    assert_eq!((reply.stdout(0).as_str(), reply.stdout(1).as_str()), ("leaving\n", "next\n"));
    pod.assert_empty();
    assert_eq!(processes_of(pod.uid + 1), Vec::<String>::new());
}

#[test]
fn children_that_stay_are_ended() {
    stayers(Power::Own);
}

#[test]
fn children_that_stay_are_ended_with_the_capabilities_of_a_pod() {
    if root() {
        stayers(Power::Pod);
    }
}

#[test]
fn children_that_stay_are_ended_without_root() {
    if root() {
        stayers(Power::User);
    }
}

#[test]
fn a_fork_bomb_is_ended() {
    let pod = Pod::new();
    let bomb = "import os, time\nend = time.time() + 30\nwhile time.time() < end:\n    try:\n        os.fork()\n    except OSError:\n        pass\n    time.sleep(0.02)\n";
    pod.file("a.py", bomb);
    let mut command = pod.command(&["a.py"]);
    command.rules[1].run =
        vec!["sh".to_owned(), "-c".to_owned(), "ulimit -u 300; exec /usr/bin/python3 {file}".to_owned()];
    command.budget_ms = 1000;
    let reply = pod.run(&command);
    assert!(reply.verdict().clean, "{:?}", reply.verdict);
    assert_eq!(reply.verdict().files[0].reason, Some(FileReason::Timeout));
    pod.assert_empty();
}

#[test]
fn a_hundred_mebibytes_are_cut_at_the_limit_and_the_worker_is_not_lost() {
    let pod = Pod::new();
    pod.file("a.py", "import os\nfor _ in range(1600): os.write(1, b'x' * 65536)\n");
    pod.file("b.sh", "head -c 1000 /dev/zero >&2; echo done");
    let mut command = pod.command(&["a.py", "b.sh"]);
    command.stream_limit = 1_000_000;
    let reply = pod.run(&command);
    let verdict = reply.verdict();
    assert_eq!(verdict.files[0].reason, Some(FileReason::OutputLimit));
    assert_eq!((verdict.files[0].stdout.bytes, verdict.files[0].exit), (1_000_000, None));
    assert_eq!((verdict.files[1].exit, verdict.files[1].stderr.bytes), (Some(0), 1000));
    assert!(verdict.clean, "{verdict:?}");
    // Within the limit every byte arrives.
    command.stream_limit = 200 << 20;
    command.generation = 2;
    let reply = pod.run(&command);
    assert_eq!(reply.assert_passed().files[0].stdout.bytes, 100 << 20);
}

#[test]
fn output_at_exactly_the_limit_is_no_fault() {
    for (size, reason) in [(5000, None), (5001, Some(FileReason::OutputLimit))] {
        let pod = Pod::new();
        pod.file("a.sh", &format!("head -c {size} /dev/zero"));
        let mut command = pod.command(&["a.sh"]);
        command.stream_limit = 5000;
        let reply = pod.run(&command);
        assert_eq!((reply.verdict().files[0].reason, reply.verdict().files[0].stdout.bytes), (reason, 5000));
    }
}

#[test]
fn a_file_that_closes_its_streams_still_has_an_end() {
    let reply = Pod::new().script("t.sh", "echo before; exec >&- 2>&-; sleep 0.3; exit 7");
    assert_eq!(reply.verdict().files[0].exit, Some(7));
    assert_eq!(reply.stdout(0), "before\n");
    assert!(reply.verdict().clean);
}

#[test]
fn a_program_that_does_not_exist_is_not_started() {
    let pod = Pod::new();
    pod.file("t.sh", "exit 0");
    pod.file("u.sh", "exit 0");
    let mut command = pod.command(&["t.sh", "u.sh"]);
    command
        .rules
        .insert(0, warmhold_protocol::Rule { pattern: "t.sh".to_owned(), run: vec!["no-such-program".to_owned()] });
    let reply = pod.run(&command);
    let files = &reply.verdict().files;
    assert_eq!((files[0].reason, files[0].exit, files[1].exit), (Some(FileReason::NotStarted), None, Some(0)));
    assert!(files[0].detail.as_ref().is_some_and(|detail| detail.contains("no-such-program")), "{files:?}");
}

#[test]
fn a_host_that_goes_away_ends_everything() {
    for power in [Power::Own, Power::User] {
        if power == Power::User && !root() {
            continue;
        }
        let pod = Pod::with(power);
        pod.file("t.sh", "sleep 1000 & setsid sleep 1000 & echo started; sleep 1000");
        let mut running = pod.start(&pod.command(&["t.sh"]));
        running.until("started");
        drop(running.stdin.take());
        let reply = running.finish();
        assert!(reply.verdict.is_none(), "nobody waits for one");
        assert_eq!(reply.status.unwrap().code(), Some(3), "{}", reply.stderr);
        pod.assert_empty();
        assert_eq!(processes_of(pod.uid + 1), Vec::<String>::new());
        // It cleaned, so the next one may run.
        let mut command = pod.command(&["t.sh"]);
        pod.file("t.sh", "exit 0");
        command.generation = 2;
        pod.run(&command).assert_passed();
    }
}

#[test]
fn a_host_that_stops_reading_ends_everything() {
    let pod = Pod::new();
    pod.file("t.sh", "echo started; while :; do echo more; done");
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    drop(running.child.stdout.take());
    assert_eq!(running.child.wait().unwrap().code(), Some(3));
    pod.assert_empty();
}

#[test]
fn a_host_that_is_gone_with_a_full_pipe_left_open_ends_everything() {
    let pod = Pod::new();
    pod.file("t.sh", "echo started; while :; do echo more; done");
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    // The pipe fills, since nobody reads; then standard input ends.
    std::thread::sleep(Duration::from_millis(300));
    drop(running.stdin.take());
    assert_eq!(running.child.wait().unwrap().code(), Some(3));
    pod.assert_empty();
}

/// A memory control group of this test's own, version 1 or 2; none where they can't be made here.
fn memory_group(name: &str, limit: u64) -> Option<std::path::PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    for line in groups.lines() {
        let fields: Vec<&str> = line.splitn(3, ':').collect();
        let own = fields.get(2)?.trim_start_matches('/');
        let (root, file) = match *fields.get(1)? {
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ => continue,
        };
        let path = std::path::Path::new(root).join(own).join(name);
        if std::fs::create_dir(&path).is_ok() {
            if std::fs::write(path.join(file), limit.to_string()).is_ok() {
                return Some(path);
            }
            let _ = std::fs::remove_dir(&path);
        }
    }
    None
}

#[test]
fn a_test_that_the_kernel_ends_for_want_of_memory_says_so_and_the_worker_lives() {
    let pod = Pod::new();
    let Some(group) = memory_group(&format!("warmhold-test-{}", pod.uid), 128 << 20) else {
        eprintln!("no memory control group can be made here: nothing was tested");
        return;
    };
    pod.file("a.py", "block = []\nwhile True: block.append(bytearray(b'x' * (8 << 20)))\n");
    pod.file("b.sh", "exit 0");
    let mut running = pod.start_silent();
    std::fs::write(group.join("cgroup.procs"), running.child.id().to_string()).unwrap();
    warmhold_protocol::write_command(running.stdin.as_mut().unwrap(), &pod.command(&["a.py", "b.sh"])).unwrap();
    let reply = running.finish();
    std::fs::remove_dir(&group).unwrap();
    let verdict = reply.verdict();
    let ends: Vec<_> = verdict.files.iter().map(|file| (file.exit, file.signal, file.reason)).collect();
    assert_eq!(ends, [(None, Some(9), Some(FileReason::OutOfMemory)), (Some(0), None, None)], "{verdict:?}");
    assert!(verdict.clean && verdict.oom_kills >= 1, "{verdict:?}");
}

#[test]
fn a_killed_worker_is_never_trusted_again() {
    let pod = Pod::new();
    pod.file("t.sh", "setsid sleep 20 & echo started; sleep 20");
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    pod.file("t.sh", "exit 0");
    for generation in [2, 3] {
        let mut command = pod.command(&["t.sh"]);
        command.generation = generation;
        let reply = pod.run(&command);
        assert_eq!(reply.refusal(), "unclean");
        assert!(!reply.verdict().clean && !reply.verdict().unclean.is_empty());
    }
    if root() {
        assert_eq!(processes_of(pod.uid), Vec::<String>::new(), "what was left of it is ended all the same");
    }
}

#[test]
fn more_on_standard_input_is_no_end() {
    let pod = Pod::new();
    pod.file("t.sh", "echo started; sleep 0.5");
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    running.say(&[b'x'; 10_000]);
    std::thread::sleep(Duration::from_millis(50));
    running.finish().assert_passed();
}
