//! What tests leave in their artifact directory: read as their user, sent in path order, within bounds.

use crate::helper::{Action, Helper, Order, checked};
use crate::output::Output;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use warmhold_protocol::{
    ArtifactDigest, Frame, FrameReader, MAX_ARTIFACT_NAME_BYTES, StreamDigest, hex, is_artifact_name, write_frame,
};

/// The most artifacts of a request.
pub(crate) const MOST: usize = 1000;
/// The most bytes of all artifacts of a request.
pub(crate) const MOST_BYTES: u64 = 64 * 1024 * 1024;
const MOST_DEPTH: usize = 16;
const CHUNK: usize = 256 * 1024;

/// What may still be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

/// Lets a helper send a directory's files and passes them on: their digests in path order, and what was left out.
///
/// # Errors
/// When the helper fails; then what was sent can't be relied on.
pub(crate) fn collect(
    directory: &Path,
    uid: Option<u32>,
    file: u32,
    allowance: &mut Allowance,
    out: &mut Output,
) -> Result<(Vec<ArtifactDigest>, Vec<String>), String> {
    if is_empty(directory) {
        return Ok((Vec::new(), Vec::new()));
    }
    let (count, bytes) = (allowance.count, allowance.bytes);
    let action = Action::Collect { directory: directory.to_owned(), file, count, bytes };
    let (mut reader, writer) = io::pipe().map_err(|error| format!("a pipe: {error}"))?;
    let mut helper = Helper::start(&Order { uid, sandbox: None, action }, writer.into(), Stdio::null())
        .map_err(|error| format!("a helper can't be started: {error}"))?;
    let passed = pass_on(&mut reader, file, allowance, out);
    drop(reader);
    let answer = helper.answer().map_err(|error| error.to_string()).and_then(checked);
    if passed.is_err() {
        helper.end();
    } else {
        helper.wait().map_err(|error| error.to_string())?;
    }
    Ok((passed?, answer?.notes))
}

/// Most tests leave nothing: then no helper is needed to read it. A look at the names follows no link and opens nothing
/// else; where this process may not even look, the helper does.
fn is_empty(directory: &Path) -> bool {
    let listed = open(CWD, directory, OFlags::DIRECTORY).and_then(Dir::new);
    listed.is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
    })
}

fn pass_on(
    from: &mut impl Read,
    file: u32,
    allowance: &mut Allowance,
    out: &mut Output,
) -> Result<Vec<ArtifactDigest>, String> {
    let mut frames = FrameReader::default();
    let mut found: BTreeMap<String, (u64, Sha256)> = BTreeMap::new();
    while let Some(frame) = frames.read_from(from).map_err(|error| error.to_string())? {
        let Frame::Artifact { file: of, suffix, bytes } = &frame else {
            return Err("a helper sent something else than artifacts".to_owned());
        };
        let size = bytes.len() as u64;
        let known = found.contains_key(suffix);
        // The helper holds these bounds too; it has just been another user's process, so this side looks again.
        if *of != file || size > allowance.bytes || !(known || allowance.count > 0) || !is_artifact_name(suffix) {
            return Err("a helper sent more than it was allowed".to_owned());
        }
        allowance.bytes -= size;
        allowance.count -= usize::from(!known);
        let (length, hash) = found.entry(suffix.clone()).or_default();
        *length += size;
        hash.update(bytes);
        out.frame(&frame);
    }
    let digest = |(suffix, (bytes, hash)): (String, (u64, Sha256))| ArtifactDigest {
        suffix,
        digest: StreamDigest { bytes, sha256: hex(&hash.finalize()) },
    };
    Ok(found.into_iter().map(digest).collect())
}

/// The helper's side: sends regular files below a directory, follows no link, and says what it left out.
///
/// # Errors
/// When nobody reads, or the directory can't be listed.
pub(crate) fn send(directory: &Path, file: u32, count: usize, bytes: u64) -> Result<Vec<String>, String> {
    let out = rustix::io::fcntl_dupfd_cloexec(io::stdout().as_fd(), 3).map_err(|error| error.to_string())?;
    let mut sender = Sender {
        out: BufWriter::new(File::from(out)),
        file,
        left: Allowance { count, bytes },
        left_out: BTreeMap::new(),
    };
    let top = open(CWD, directory, OFlags::DIRECTORY).map_err(|error| format!("{}: {error}", directory.display()))?;
    sender.directory(&top, "", 0).and_then(|()| sender.out.flush()).map_err(|error| error.to_string())?;
    Ok(sender.left_out.into_iter().map(|(why, count)| format!("{count} artifacts were left out: {why}")).collect())
}

struct Sender {
    out: BufWriter<File>,
    file: u32,
    left: Allowance,
    left_out: BTreeMap<&'static str, u64>,
}

impl Sender {
    fn leave_out(&mut self, why: &'static str) {
        *self.left_out.entry(why).or_default() += 1;
    }

    /// In the order of names, which isn't the order of whole paths; the digests are sorted on arrival.
    fn directory(&mut self, directory: &OwnedFd, prefix: &str, depth: usize) -> io::Result<()> {
        let mut names = Dir::read_from(directory)?
            .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
            .collect::<Result<Vec<_>, _>>()?;
        names.sort_unstable();
        for name in names.iter().filter(|name| !matches!(name.to_bytes(), b"." | b"..")) {
            let Ok(text) = name.to_str() else {
                self.leave_out("the name isn't UTF-8");
                continue;
            };
            let suffix = if prefix.is_empty() { text.to_owned() } else { format!("{prefix}/{text}") };
            if suffix.len() <= MAX_ARTIFACT_NAME_BYTES && !is_artifact_name(&suffix) {
                self.leave_out("the name has a control character or a backslash");
                continue;
            }
            if suffix.len() > MAX_ARTIFACT_NAME_BYTES {
                self.leave_out("the path is too long");
                continue;
            }
            // Opening without waiting: a FIFO must not hold anybody up.
            let Ok(entry) = open(directory, name.as_c_str(), OFlags::NONBLOCK) else {
                self.leave_out("it is a link, a socket or unreadable");
                continue;
            };
            let stat = rustix::fs::fstat(&entry)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if depth < MOST_DEPTH => self.directory(&entry, &suffix, depth + 1)?,
                FileType::Directory => self.leave_out("the directories are nested too deeply"),
                FileType::RegularFile => self.regular(&File::from(entry), &suffix)?,
                _ => self.leave_out("it is no regular file"),
            }
        }
        Ok(())
    }

    fn regular(&mut self, from: &File, suffix: &str) -> io::Result<()> {
        if self.left.count == 0 {
            self.leave_out("there are too many");
            return Ok(());
        }
        if from.metadata()?.len() > self.left.bytes {
            self.leave_out("they are too large in all");
            return Ok(());
        }
        self.left.count -= 1;
        let mut first = true;
        loop {
            let mut bytes = Vec::new();
            from.take((CHUNK as u64).min(self.left.bytes)).read_to_end(&mut bytes)?;
            if bytes.is_empty() && !first {
                return Ok(());
            }
            first = false;
            self.left.bytes -= bytes.len() as u64;
            let end = bytes.is_empty();
            write_frame(&mut self.out, &Frame::Artifact { file: self.file, suffix: suffix.to_owned(), bytes })?;
            if end {
                return Ok(());
            }
        }
    }
}

fn open(at: impl AsFd, path: impl rustix::path::Arg, more: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more, Mode::empty())
}
