//! Whether a verdict is to be believed: a pure function over the command, the verdict and what arrived.

use std::collections::BTreeMap;
use warmhold_protocol::{Command, FileResult, PROTOCOL, StreamDigest, Verdict};

/// What arrived of one file: the two streams, and each artifact by its suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) stdout: StreamDigest,
    pub(crate) stderr: StreamDigest,
    pub(crate) artifacts: BTreeMap<String, StreamDigest>,
}

/// Checks a verdict; `arrived` has one entry for each file of the command.
///
/// # Errors
/// The first thing that is wrong, for a person.
pub(crate) fn verify(command: &Command, verdict: &Verdict, arrived: &[Arrived]) -> Result<(), String> {
    let differs = |what: &str, want: &dyn std::fmt::Display, got: &dyn std::fmt::Display| {
        Err(format!("its {what} is `{got}`, the command's is `{want}`"))
    };
    if verdict.protocol != PROTOCOL {
        return differs("protocol", &PROTOCOL, &verdict.protocol);
    }
    if verdict.nonce != command.nonce {
        // Neither value goes into a message: whoever reads it could answer the next one.
        return Err("its nonce isn't the command's".to_owned());
    }
    if verdict.lease_id != command.lease_id {
        return Err("its lease isn't the command's".to_owned());
    }
    if verdict.generation != command.generation {
        return differs("generation", &command.generation, &verdict.generation);
    }
    if verdict.pod_uid != command.pod_uid {
        return differs("pod UID", &command.pod_uid, &verdict.pod_uid);
    }
    if verdict.refused.is_some() {
        // A refusal may be about exactly these three (wrong worker, wrong key): they are the worker's own, shown as is.
        if verdict.files.is_empty() && arrived.iter().all(|file| *file == Arrived::nothing()) {
            return Ok(());
        }
        return Err("it refuses the command and yet brings results".to_owned());
    }
    if verdict.worker_id != command.worker_id {
        return differs("worker id", &command.worker_id, &verdict.worker_id);
    }
    if verdict.key != command.key {
        return Err("its worker key isn't the command's".to_owned());
    }
    if verdict.cut_sha != command.cut_sha {
        return differs("cut", &command.cut_sha, &verdict.cut_sha);
    }
    if verdict.files.len() != command.files.len() || arrived.len() != command.files.len() {
        return differs("number of files", &command.files.len(), &verdict.files.len());
    }
    for ((name, result), arrived) in command.files.iter().zip(&verdict.files).zip(arrived) {
        if result.file != *name {
            return differs("file", name, &result.file);
        }
        file(result, arrived)?;
    }
    Ok(())
}

fn file(result: &FileResult, arrived: &Arrived) -> Result<(), String> {
    let name = &result.file;
    same(&format!("standard output of {name}"), &result.stdout, &arrived.stdout)?;
    same(&format!("standard error of {name}"), &result.stderr, &arrived.stderr)?;
    let mut told = BTreeMap::new();
    for artifact in &result.artifacts {
        if told.insert(artifact.suffix.as_str(), ()).is_some() {
            return Err(format!("it names the artifact {} of {name} twice", artifact.suffix));
        }
        match arrived.artifacts.get(&artifact.suffix) {
            Some(got) => same(&format!("the artifact {} of {name}", artifact.suffix), &artifact.digest, got)?,
            None => same(
                &format!("the artifact {} of {name}", artifact.suffix),
                &artifact.digest,
                &Arrived::nothing().stdout,
            )?,
        }
    }
    match arrived.artifacts.keys().find(|suffix| !told.contains_key(suffix.as_str())) {
        Some(suffix) => Err(format!("an artifact {suffix} of {name} arrived that it doesn't name")),
        None => Ok(()),
    }
}

fn same(what: &str, told: &StreamDigest, got: &StreamDigest) -> Result<(), String> {
    if told == got {
        return Ok(());
    }
    Err(format!(
        "{what}: it tells of {} bytes with SHA-256 {}, {} bytes with {} arrived",
        told.bytes,
        short(&told.sha256),
        got.bytes,
        short(&got.sha256)
    ))
}

fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

impl Arrived {
    /// Two empty streams.
    pub(crate) fn nothing() -> Self {
        let empty = StreamDigest { bytes: 0, sha256: EMPTY_SHA256.to_owned() };
        Self { stdout: empty.clone(), stderr: empty, artifacts: BTreeMap::new() }
    }
}

/// SHA-256 of no bytes.
pub(crate) const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
