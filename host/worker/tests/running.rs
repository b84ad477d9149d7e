//! Files that run: what they see, what they say and how they end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

mod common;

use common::{CUT, Pod};
use warmhold_protocol::FileReason;

#[test]
fn a_file_runs_and_its_streams_and_exit_code_come_back() {
    let pod = Pod::new();
    let reply = pod.script("deep/t.sh", "echo out; echo err >&2; pwd");
    let verdict = reply.assert_passed();
    assert_eq!((verdict.nonce.as_str(), verdict.generation), ("7f3c9a1e5b8d2046", 1));
    assert_eq!(reply.stderr_of(0), "err\n");
    let tree = pod.data().join("requests/1/tree");
    assert_eq!(reply.stdout(0), format!("out\n{}\n", tree.display()));
    assert!(reply.status.unwrap().success());
    pod.assert_empty();
}

#[test]
fn shell_python_and_node_files_run_in_order() {
    let pod = Pod::new();
    pod.file("a.sh", "test -f b.py");
    pod.file("b.py", "import sys; sys.exit(42)");
    pod.file("c.mjs", "import test from 'node:test'; test('one', () => {});");
    pod.file("d.txt", "");
    let reply = pod.run(&pod.command(&["b.py", "a.sh", "c.mjs", "d.txt", "none.sh"]));
    let verdict = reply.verdict();
    assert!(verdict.clean && !verdict.passed(), "{verdict:?}");
    let exits: Vec<_> = verdict.files.iter().map(|file| (file.exit, file.reason)).collect();
    let want = [
        (Some(42), None),
        (Some(0), None),
        (Some(0), None),
        (None, Some(FileReason::NoRule)),
        (None, Some(FileReason::Missing)),
    ];
    assert_eq!(exits, want, "{}", reply.stdout(2));
    assert_eq!(reply.begun, [0, 1, 2]);
    assert_eq!(verdict.cut_sha, CUT);
}
