//! What comes out of a pod, byte for byte: anything but a whole, true reply is an error, and no bytes do harm.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::command;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::path::Path;
use tempfile::TempDir;
use warmhold_pods::{ExecError, Limits, ReceivedFile, collect};
use warmhold_protocol::{
    ArtifactDigest, Command, FileResult, Frame, IsolationLevel, IsolationReport, PROTOCOL, Stream, StreamDigest,
    Verdict, write_frame,
};

fn digest(bytes: &[u8]) -> StreamDigest {
    let sha256 = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    StreamDigest { bytes: bytes.len() as u64, sha256 }
}

/// What one file says and leaves.
#[derive(Clone, Debug)]
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    artifacts: Vec<(String, Vec<u8>)>,
}

fn sample() -> Vec<Said> {
    vec![
        Said { stdout: b"hello\n".to_vec(), stderr: vec![], artifacts: vec![("a/b".to_owned(), b"xyz".to_vec())] },
        Said { stdout: vec![], stderr: vec![0, 255, 10], artifacts: vec![("c".to_owned(), vec![])] },
    ]
}

fn verdict(command: &Command, files: &[Said]) -> Verdict {
    Verdict {
        protocol: PROTOCOL,
        lease_id: command.lease_id.clone(),
        generation: command.generation,
        nonce: command.nonce.clone(),
        pod_uid: command.pod_uid.clone(),
        worker_id: command.worker_id.clone(),
        key: command.key.clone(),
        cut_sha: command.cut_sha.clone(),
        refused: None,
        files: files
            .iter()
            .zip(&command.files)
            .map(|(said, file)| FileResult {
                file: file.clone(),
                exit: Some(0),
                signal: None,
                reason: None,
                detail: None,
                duration_ms: 1,
                stdout: digest(&said.stdout),
                stderr: digest(&said.stderr),
                artifacts: said
                    .artifacts
                    .iter()
                    .map(|(suffix, bytes)| ArtifactDigest { suffix: suffix.clone(), digest: digest(bytes) })
                    .collect(),
            })
            .collect(),
        isolation: IsolationReport { level: IsolationLevel::Full, why: vec![] },
        clean: true,
        unclean: vec![],
        oom_kills: 0,
    }
}

/// The frames before the verdict, in pieces of `size` bytes.
fn frames(files: &[Said], size: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    for (index, said) in files.iter().enumerate() {
        let file = u32::try_from(index).unwrap();
        frames.push(Frame::Begin { file });
        for (stream, bytes) in [(Stream::Stdout, &said.stdout), (Stream::Stderr, &said.stderr)] {
            frames.extend(bytes.chunks(size).map(|bytes| Frame::Output { file, stream, bytes: bytes.to_vec() }));
        }
        for (suffix, bytes) in &said.artifacts {
            frames.extend(bytes.chunks(size).map(|bytes| Frame::Artifact {
                file,
                suffix: suffix.clone(),
                bytes: bytes.to_vec(),
            }));
        }
    }
    frames
}

fn encode(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| write_frame(&mut bytes, frame).unwrap());
    bytes
}

fn whole(command: &Command, files: &[Said], size: usize) -> Vec<u8> {
    let mut all = frames(files, size);
    all.push(Frame::Verdict(Box::new(verdict(command, files))));
    encode(&all)
}

fn read(command: &Command, bytes: &[u8], sink: &Path) -> Result<(Verdict, Vec<ReceivedFile>), ExecError> {
    read_with(command, bytes, sink, &Limits::default())
}

fn read_with(
    command: &Command,
    bytes: &[u8],
    sink: &Path,
    limits: &Limits,
) -> Result<(Verdict, Vec<ReceivedFile>), ExecError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(collect(bytes, command, sink, limits, None))
}

#[test]
fn a_whole_reply_is_written_and_answered() {
    let (command, files) = (command("uid"), sample());
    let sink = TempDir::new().unwrap();
    let (_, received) = read(&command, &whole(&command, &files, 2), sink.path()).unwrap();
    for (received, said) in received.iter().zip(&files) {
        assert_eq!(std::fs::read(&received.stdout.path).unwrap(), said.stdout);
        assert_eq!(std::fs::read(&received.stderr.path).unwrap(), said.stderr);
        for (artifact, (suffix, bytes)) in received.artifacts.iter().zip(&said.artifacts) {
            assert_eq!(&artifact.suffix, suffix);
            assert_eq!(&std::fs::read(&artifact.received.path).unwrap(), bytes);
        }
        assert_eq!(received.artifacts.len(), said.artifacts.len());
    }
    assert_eq!(received.len(), 2);
}

#[test]
fn cut_anywhere_it_is_an_error() {
    let (command, files) = (command("uid"), sample());
    let bytes = whole(&command, &files, 3);
    let boundaries: Vec<usize> = {
        let mut all = frames(&files, 3);
        all.push(Frame::Verdict(Box::new(verdict(&command, &files))));
        (0..=all.len()).map(|count| encode(&all[..count]).len()).collect()
    };
    for length in 0..bytes.len() {
        let sink = TempDir::new().unwrap();
        let error = read(&command, &bytes[..length], sink.path()).unwrap_err();
        let want = if boundaries.contains(&length) { "no-verdict" } else { "truncated" };
        assert_eq!(error.code(), want, "cut after {length} bytes: {error}");
    }
}

#[test]
fn frames_out_of_order_are_no_reply() {
    let (command, files) = (command("uid"), sample());
    let verdict = || Frame::Verdict(Box::new(verdict(&command, &files)));
    let output = |file, bytes: &[u8]| Frame::Output { file, stream: Stream::Stdout, bytes: bytes.to_vec() };
    let artifact = |suffix: &str| Frame::Artifact { file: 0, suffix: suffix.to_owned(), bytes: b"x".to_vec() };
    let begin = |file| Frame::Begin { file };
    let cases: Vec<(&str, Vec<Frame>)> = vec![
        ("a file that isn't in the command", vec![begin(2)]),
        ("the highest index", vec![begin(u32::MAX)]),
        ("output before its file", vec![output(0, b"x")]),
        ("output of the file before", vec![begin(0), begin(1), output(0, b"x")]),
        ("output of the file after", vec![begin(0), output(1, b"x")]),
        ("a file twice", vec![begin(0), begin(0)]),
        ("backwards", vec![begin(1), begin(0)]),
        ("mixed artifacts", vec![begin(0), artifact("a"), artifact("b"), artifact("a")]),
        ("an absolute artifact", vec![begin(0), artifact("/etc/passwd")]),
        ("an artifact above", vec![begin(0), artifact("../x")]),
        ("an artifact above, later", vec![begin(0), artifact("a/../../x")]),
        ("an artifact that is a folder", vec![begin(0), artifact("a/")]),
        ("an artifact with a dot", vec![begin(0), artifact("./a")]),
        ("an artifact without a name", vec![begin(0), artifact("")]),
        ("an artifact for a terminal", vec![begin(0), artifact("a\u{1b}[31m")]),
        ("a verdict first", vec![verdict(), begin(0)]),
        ("two", [frames(&files, 9), vec![verdict(), verdict()]].concat()),
        (
            "more output than it tells of",
            [vec![begin(0), output(0, b"hello\nmore")], vec![begin(1), verdict()]].concat(),
        ),
        ("a file that it tells of and that never began", vec![begin(0), verdict()]),
        ("an artifact that it doesn't tell of", {
            let mut all = frames(&files, 9);
            all.insert(4, artifact("extra"));
            all.push(verdict());
            all
        }),
    ];
    for (what, frames) in cases {
        let sink = TempDir::new().unwrap();
        let error = read(&command, &encode(&frames), sink.path()).unwrap_err();
        assert_eq!(error.code(), "no-verdict", "{what}: {error}");
        assert!(!error.to_string().contains(&command.nonce), "{error}");
    }
}

#[test]
fn an_artifact_of_no_frame_keeps_to_the_rules_for_names() {
    let command = command("uid");
    let mut files = sample();
    files[1].artifacts[0].0 = "../../x".to_owned();
    let sink = TempDir::new().unwrap();
    assert_eq!(read(&command, &whole(&command, &files, 9), sink.path()).unwrap_err().code(), "no-verdict");
}

#[test]
fn limits_hold_to_the_byte() {
    let (command, files) = (command("uid"), sample());
    let bytes = whole(&command, &files, 2);
    let exact = Limits { stream: 6, artifact: 3, artifacts: 1, total: bytes.len() as u64 };
    read_with(&command, &bytes, TempDir::new().unwrap().path(), &exact).unwrap();
    for limits in [
        Limits { stream: 5, ..exact },
        Limits { artifact: 2, ..exact },
        Limits { artifacts: 0, ..exact },
        Limits { total: exact.total - 1, ..exact },
    ] {
        let error = read_with(&command, &bytes, TempDir::new().unwrap().path(), &limits).unwrap_err();
        assert_eq!(error.code(), "too-large", "{limits:?}: {error}");
    }
}

#[test]
fn nothing_that_is_in_the_sink_is_written_through() {
    let (command, files) = (command("uid"), sample());
    let (sink, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let target = outside.path().join("target");
    std::os::unix::fs::symlink(&target, sink.path().join("0.stdout")).unwrap();
    assert_eq!(read(&command, &whole(&command, &files, 9), sink.path()).unwrap_err().code(), "failed");
    assert!(!target.exists());
}

fn said() -> impl Strategy<Value = Said> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40_000);
    (bytes(), bytes(), proptest::collection::btree_map("[a-z]{1,8}(/[a-z.]{2,5}[a-z])?", bytes(), 0..3))
        .prop_map(|(stdout, stderr, artifacts)| Said { stdout, stderr, artifacts: artifacts.into_iter().collect() })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_an_error_and_no_more(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let sink = TempDir::new().unwrap();
        prop_assert!(read(&command("uid"), &bytes, sink.path()).is_err());
    }

    /// Beginnings that are right take the reader further in.
    #[test]
    fn any_bytes_in_the_place_of_a_frame_are_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 1..64), at in 0_usize..8, tag in prop::sample::select(vec![b'B', b'O', b'E', b'A', b'V', b'x']),
        length in 0_u32..64,
    ) {
        let (command, files) = (command("uid"), sample());
        let mut all = frames(&files, 3);
        let rest = all.split_off(at.min(all.len()));
        let mut stream = encode(&all);
        stream.push(tag);
        stream.extend(length.to_be_bytes());
        stream.extend(&bytes);
        stream.extend(encode(&rest));
        let sink = TempDir::new().unwrap();
        prop_assert!(read(&command, &stream, sink.path()).is_err());
    }

    #[test]
    fn whatever_is_said_arrives(files in proptest::collection::vec(said(), 2), size in 1_usize..70_000) {
        let size = size.max(files.iter().map(|said| said.stdout.len() / 200 + 1).max().unwrap_or(1));
        let command = command("uid");
        let sink = TempDir::new().unwrap();
        let (_, received) = read(&command, &whole(&command, &files, size), sink.path()).unwrap();
        for (received, said) in received.iter().zip(&files) {
            prop_assert_eq!(&std::fs::read(&received.stdout.path).unwrap(), &said.stdout);
            prop_assert_eq!(&std::fs::read(&received.stderr.path).unwrap(), &said.stderr);
            for (artifact, (suffix, bytes)) in received.artifacts.iter().zip(&said.artifacts) {
                prop_assert_eq!(&artifact.suffix, suffix);
                prop_assert_eq!(&std::fs::read(&artifact.received.path).unwrap(), bytes);
            }
        }
    }

    /// One changed bit in what a test said is always found.
    #[test]
    fn changed_output_is_never_proven(files in proptest::collection::vec(said(), 2), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let command = command("uid");
        let mut all = frames(&files, 10_000);
        let carriers: Vec<usize> = (0..all.len()).filter(|index| !matches!(&all[*index], Frame::Begin { .. })).collect();
        prop_assume!(!carriers.is_empty());
        match &mut all[carriers[at.index(carriers.len())]] {
            Frame::Output { bytes, .. } | Frame::Artifact { bytes, .. } => {
                let place = at.index(bytes.len());
                bytes[place] ^= 1 << bit;
            }
            _ => {}
        }
        all.push(Frame::Verdict(Box::new(verdict(&command, &files))));
        let sink = TempDir::new().unwrap();
        let error = read(&command, &encode(&all), sink.path()).unwrap_err();
        prop_assert_eq!(error.code(), "no-verdict");
    }
}
