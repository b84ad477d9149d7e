//! From a worker's standard output to files and a verdict. The same for every backend.
//!
//! The verdict is the last frame and then comes the end of the stream; anything else is no verdict. Nothing is held in
//! memory but the frame that is arriving.

use crate::exec::{Artifact, Limits, Progress, ProgressSink, Received, ReceivedFile};
use crate::verify::{Arrived, verify};
use crate::{ExecError, hex};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use warmhold_protocol::{Command, Frame, FrameReader, Stream, StreamDigest, Verdict, is_artifact_name};

/// Frames are taken out after each piece of this size: taking one moves what is left in the buffer, which a flood of tiny
/// frames in a large piece would make quadratic.
const PIECE: usize = 8 * 1024;

/// Reads until the end of the stream, writes streams and artifacts into `sink`, and answers what is proven.
///
/// # Errors
/// [`ExecError::NoVerdict`], [`ExecError::Truncated`], [`ExecError::TooLarge`]; [`ExecError::Failed`] when `from` or the
/// sink fails. Reading stops at the first one.
pub async fn collect(
    from: impl AsyncRead + Unpin,
    command: &Command,
    sink: &Path,
    limits: &Limits,
    progress: Option<&ProgressSink>,
) -> Result<(Verdict, Vec<ReceivedFile>), ExecError> {
    let mut collector = Collector::new(command, sink, limits, progress);
    let verdict = collector.run(from).await?;
    let files = collector.finish().await?;
    let arrived: Vec<Arrived> = files.iter().map(arrived).collect();
    verify(command, &verdict, &arrived).map_err(|why| ExecError::NoVerdict(format!("the worker's verdict: {why}")))?;
    if verdict.refused.is_some() {
        return Ok((verdict, Vec::new()));
    }
    let mut proven = Vec::with_capacity(files.len());
    for (index, (mut file, told)) in files.into_iter().zip(&verdict.files).enumerate() {
        let mut by_suffix: BTreeMap<String, Artifact> =
            file.artifacts.drain(..).map(|artifact| (artifact.suffix.clone(), artifact)).collect();
        for (number, artifact) in told.artifacts.iter().enumerate() {
            let found = match by_suffix.remove(&artifact.suffix) {
                Some(found) => found,
                // An empty artifact may come without a single frame.
                None => {
                    check_suffix(&artifact.suffix)?;
                    let path = sink.join(format!("{index}.artifact.empty.{number}"));
                    let received = Writer::create(path).await?.finish().await?;
                    Artifact { suffix: artifact.suffix.clone(), received }
                }
            };
            file.artifacts.push(found);
        }
        proven.push(file);
    }
    Ok((verdict, proven))
}

fn arrived(file: &ReceivedFile) -> Arrived {
    Arrived {
        stdout: file.stdout.digest.clone(),
        stderr: file.stderr.digest.clone(),
        artifacts: file
            .artifacts
            .iter()
            .map(|artifact| (artifact.suffix.clone(), artifact.received.digest.clone()))
            .collect(),
    }
}

struct Collector<'a> {
    command: &'a Command,
    sink: &'a Path,
    limits: &'a Limits,
    progress: Option<&'a ProgressSink>,
    /// Files that are complete; a file is complete when a later one begins, so that three files at most are open.
    done: BTreeMap<usize, ReceivedFile>,
    current: Option<Incoming>,
    /// Artifacts so far, of all files.
    artifacts: usize,
}

/// The file whose output is arriving.
struct Incoming {
    index: usize,
    stdout: Writer,
    stderr: Writer,
    artifacts: Vec<Artifact>,
    artifact: Option<(String, Writer)>,
}

impl<'a> Collector<'a> {
    fn new(command: &'a Command, sink: &'a Path, limits: &'a Limits, progress: Option<&'a ProgressSink>) -> Self {
        Self { command, sink, limits, progress, done: BTreeMap::new(), current: None, artifacts: 0 }
    }

    async fn run(&mut self, mut from: impl AsyncRead + Unpin) -> Result<Verdict, ExecError> {
        let mut reader = FrameReader::default();
        let mut chunk = vec![0; 64 * 1024];
        let mut total: u64 = 0;
        let mut verdict = None;
        loop {
            let length = from
                .read(&mut chunk)
                .await
                .map_err(|error| ExecError::Failed(format!("reading from the worker: {error}")))?;
            if length == 0 {
                break;
            }
            total = total.saturating_add(length as u64);
            if total > self.limits.total {
                return Err(ExecError::TooLarge(format!("the worker sent more than {} bytes", self.limits.total)));
            }
            for piece in chunk.get(..length).unwrap_or_default().chunks(PIECE) {
                if verdict.is_some() {
                    return Err(ExecError::NoVerdict("something follows the verdict".to_owned()));
                }
                reader.push(piece);
                while let Some(frame) = reader.next_frame().map_err(|error| ExecError::NoVerdict(error.to_string()))? {
                    if verdict.is_some() {
                        return Err(ExecError::NoVerdict("something follows the verdict".to_owned()));
                    }
                    match frame {
                        Frame::Verdict(found) => verdict = Some(*found),
                        other => self.take(other).await?,
                    }
                }
                if verdict.is_some() && !reader.is_empty() {
                    return Err(ExecError::NoVerdict("something follows the verdict".to_owned()));
                }
            }
        }
        match verdict {
            Some(verdict) => Ok(verdict),
            None if reader.is_empty() => {
                Err(ExecError::NoVerdict(format!("the stream ended after {total} bytes without one")))
            }
            None => Err(ExecError::Truncated(format!("the stream ended inside a frame, after {total} bytes"))),
        }
    }

    async fn take(&mut self, frame: Frame) -> Result<(), ExecError> {
        match frame {
            Frame::Begin { file } => {
                let index = file as usize;
                let last = self.current.as_ref().map(|current| current.index);
                if index >= self.command.files.len() || last.is_some_and(|last| index <= last) {
                    return Err(ExecError::NoVerdict(format!("file {file} begins out of order")));
                }
                self.complete().await?;
                self.current = Some(Incoming::begin(self.sink, index).await?);
                self.tell(Progress::Began { file });
                Ok(())
            }
            Frame::Output { file, stream, bytes } => {
                let limit = self.limits.stream;
                let current = self.current(file)?;
                let writer = match stream {
                    Stream::Stdout => &mut current.stdout,
                    Stream::Stderr => &mut current.stderr,
                };
                writer.write(&bytes, limit).await?;
                let so_far = writer.bytes;
                self.tell(Progress::Output { file, stream, bytes: &bytes, so_far });
                Ok(())
            }
            Frame::Artifact { file, suffix, bytes } => self.artifact(file, suffix, &bytes).await,
            Frame::Verdict(_) => Err(ExecError::NoVerdict("a second verdict".to_owned())),
        }
    }

    async fn artifact(&mut self, file: u32, suffix: String, bytes: &[u8]) -> Result<(), ExecError> {
        let (limit, sink, number, most) = (self.limits.artifact, self.sink, self.artifacts + 1, self.limits.artifacts);
        let current = self.current(file)?;
        if let Some((name, writer)) = &mut current.artifact
            && *name == suffix
        {
            return writer.write(bytes, limit).await;
        }
        current.close_artifact().await?;
        check_suffix(&suffix)?;
        if current.artifacts.iter().any(|artifact| artifact.suffix == suffix) {
            return Err(ExecError::NoVerdict(format!("the frames of the artifact {suffix} are mixed with others")));
        }
        if number > most {
            return Err(ExecError::TooLarge(format!("more than {most} artifacts")));
        }
        let mut writer = Writer::create(sink.join(format!("{file}.artifact.{number}"))).await?;
        writer.write(bytes, limit).await?;
        current.artifact = Some((suffix, writer));
        self.artifacts = number;
        Ok(())
    }

    /// The file that is arriving, which must be this one.
    fn current(&mut self, file: u32) -> Result<&mut Incoming, ExecError> {
        self.current
            .as_mut()
            .filter(|current| current.index == file as usize)
            .ok_or_else(|| ExecError::NoVerdict(format!("bytes of file {file} arrived out of turn")))
    }

    fn tell(&self, progress: Progress<'_>) {
        if let Some(sink) = self.progress {
            sink(progress);
        }
    }

    async fn complete(&mut self) -> Result<(), ExecError> {
        if let Some(current) = self.current.take() {
            let index = current.index;
            let name = self.command.files.get(index).cloned().unwrap_or_default();
            self.done.insert(index, current.complete(name).await?);
        }
        Ok(())
    }

    /// One for each file of the command; one that never began has empty streams, as files too, so that a reader needs no
    /// case for it.
    async fn finish(mut self) -> Result<Vec<ReceivedFile>, ExecError> {
        self.complete().await?;
        let mut files = Vec::with_capacity(self.command.files.len());
        for (index, name) in self.command.files.iter().enumerate() {
            files.push(match self.done.remove(&index) {
                Some(file) => file,
                None => Incoming::begin(self.sink, index).await?.complete(name.clone()).await?,
            });
        }
        Ok(files)
    }
}

impl Incoming {
    async fn begin(sink: &Path, index: usize) -> Result<Self, ExecError> {
        let stdout = Writer::create(sink.join(format!("{index}.stdout"))).await?;
        let stderr = Writer::create(sink.join(format!("{index}.stderr"))).await?;
        Ok(Self { index, stdout, stderr, artifacts: Vec::new(), artifact: None })
    }

    async fn close_artifact(&mut self) -> Result<(), ExecError> {
        if let Some((suffix, writer)) = self.artifact.take() {
            self.artifacts.push(Artifact { suffix, received: writer.finish().await? });
        }
        Ok(())
    }

    async fn complete(mut self, file: String) -> Result<ReceivedFile, ExecError> {
        self.close_artifact().await?;
        let (stdout, stderr) = (self.stdout.finish().await?, self.stderr.finish().await?);
        Ok(ReceivedFile { file, stdout, stderr, artifacts: self.artifacts })
    }
}

fn check_suffix(suffix: &str) -> Result<(), ExecError> {
    if is_artifact_name(suffix) {
        return Ok(());
    }
    let shown: String = suffix.escape_debug().take(100).collect();
    Err(ExecError::NoVerdict(format!("`{shown}` is no name for an artifact")))
}

/// A file of the sink that is being written, hashed on the way.
struct Writer {
    file: File,
    path: PathBuf,
    hash: Sha256,
    bytes: u64,
}

impl Writer {
    async fn create(path: PathBuf) -> Result<Self, ExecError> {
        // `create_new`: nothing that is already there, a link least of all, is written through.
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).await.map_err(|error| sink(&path, &error))?;
        Ok(Self { file, path, hash: Sha256::new(), bytes: 0 })
    }

    async fn write(&mut self, bytes: &[u8], limit: u64) -> Result<(), ExecError> {
        let total = self.bytes.saturating_add(bytes.len() as u64);
        if total > limit {
            return Err(ExecError::TooLarge(format!("a stream or an artifact has more than {limit} bytes")));
        }
        self.bytes = total;
        self.hash.update(bytes);
        self.file.write_all(bytes).await.map_err(|error| sink(&self.path, &error))
    }

    async fn finish(mut self) -> Result<Received, ExecError> {
        // tokio's files write behind: only a flush tells of a full disk.
        self.file.flush().await.map_err(|error| sink(&self.path, &error))?;
        let sha256 = hex(&self.hash.finalize());
        Ok(Received { path: self.path, digest: StreamDigest { bytes: self.bytes, sha256 } })
    }
}

fn sink(path: &Path, error: &std::io::Error) -> ExecError {
    ExecError::Failed(format!("writing {}: {error}", path.display()))
}
