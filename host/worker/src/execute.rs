//! One test file: started as a process of its own, its streams passed on as they are made, over when it is over.

use crate::helper::{Action, Answer, Helper, Order};
use crate::memory;
use crate::output::Output;
use crate::run::Session;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::time::{Duration, Instant};
use warmhold_protocol::{FileReason, FileResult, Frame, Stream, StreamDigest, hex};

const CHUNK: usize = 64 * 1024;

/// One stream of a running file.
struct Pump {
    from: File,
    file: u32,
    stream: Stream,
    limit: u64,
    sent: u64,
    hash: Sha256,
    open: bool,
    over: bool,
}

impl Pump {
    /// Passes on what is there, at most one chunk; whether there may be more.
    fn pass(&mut self, out: &mut Output) -> bool {
        if !self.open {
            return false;
        }
        let mut chunk = vec![0; CHUNK];
        let length = match self.from.read(&mut chunk) {
            Ok(0) => {
                self.open = false;
                return false;
            }
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => {
                self.open = false;
                return false;
            }
        };
        let room = usize::try_from(self.limit - self.sent).unwrap_or(usize::MAX);
        if length > room {
            self.over = true;
            self.open = false;
        }
        chunk.truncate(length.min(room));
        if !chunk.is_empty() {
            self.sent += chunk.len() as u64;
            self.hash.update(&chunk);
            out.frame(&Frame::Output { file: self.file, stream: self.stream, bytes: chunk });
        }
        self.open
    }

    fn digest(self) -> StreamDigest {
        StreamDigest { bytes: self.sent, sha256: hex(&self.hash.finalize()) }
    }
}

/// A result of a file that didn't run.
pub(crate) fn not_run(file: &str, reason: FileReason, detail: &str) -> FileResult {
    let nothing = StreamDigest { bytes: 0, sha256: hex(&Sha256::digest([])) };
    FileResult {
        file: file.to_owned(),
        exit: None,
        signal: None,
        reason: Some(reason),
        detail: (!detail.is_empty()).then(|| detail.to_owned()),
        duration_ms: 0,
        stdout: nothing.clone(),
        stderr: nothing,
        artifacts: Vec::new(),
    }
}

/// Runs one file to its end and ends all that it leaves.
///
/// # Errors
/// When processes of it can't be ended: the worker is unclean and nothing further may run. The result is whole.
pub(crate) fn file(
    session: &mut Session<'_>,
    index: u32,
    name: &str,
    ready: Result<Ready, String>,
) -> (FileResult, Result<(), Vec<String>>) {
    let began = Instant::now();
    let kills = memory::kills();
    session.out.frame(&Frame::Begin { file: index });
    session.out.flush();
    let (helper, mut pumps) = match ready.and_then(Ready::go) {
        Ok(started) => started,
        Err(why) => return (not_run(name, FileReason::NotStarted, &why), session.end_processes()),
    };
    let (status, mut reason) = watch(session, helper.pid, &mut pumps);
    let _ = rustix::process::kill_process_group(helper.pid, Signal::KILL);
    let status = match status {
        Some(status) => Some(status),
        None => {
            let _ = rustix::process::kill_process(helper.pid, Signal::KILL);
            helper.wait().ok()
        }
    };
    let ended = session.end_processes();
    // Nobody writes any more; what is left is in the pipes.
    for pump in &mut pumps {
        while pump.pass(session.out) {}
    }
    session.out.flush();
    if reason.is_none() && pumps.iter().any(|pump| pump.over) {
        reason = Some(FileReason::OutputLimit);
    }
    let signal = status.and_then(|status| status.terminating_signal());
    if reason.is_none() && signal == Some(Signal::KILL.as_raw()) && memory::kills() > kills {
        reason = Some(FileReason::OutOfMemory);
    }
    let ordinary = reason.is_none();
    let [stdout, stderr] = pumps.map(Pump::digest);
    let result = FileResult {
        file: name.to_owned(),
        exit: status.filter(|_| ordinary).and_then(|status| status.exit_status()),
        signal: signal.filter(|_| ordinary || reason == Some(FileReason::OutOfMemory)),
        detail: reason.map(|reason| detail(reason, session.command.stream_limit)),
        reason,
        duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        stdout,
        stderr,
        artifacts: Vec::new(),
    };
    (result, ended)
}

fn detail(reason: FileReason, limit: u64) -> String {
    match reason {
        FileReason::Timeout => "it was still running at the deadline".to_owned(),
        FileReason::OutputLimit => format!("it wrote more than {limit} bytes to one stream"),
        FileReason::OutOfMemory => "the kernel ended it for want of memory".to_owned(),
        FileReason::NotRun => "nobody waited for the answer any more".to_owned(),
        FileReason::NoRule | FileReason::Missing | FileReason::NotStarted => String::new(),
    }
}

/// A process that has given up everything and waits to become a test, with two pipes that are its own.
pub(crate) struct Ready {
    helper: Helper,
    pumps: [Pump; 2],
}

impl Ready {
    /// Starts it and doesn't wait until it is ready.
    ///
    /// # Errors
    /// In words, why it can't be started.
    pub(crate) fn begin(
        session: &Session<'_>,
        file: u32,
        argv: Vec<String>,
        env: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let pump = |stream| -> io::Result<(Pump, OwnedFd)> {
            let (reader, writer) = io::pipe()?;
            if let Some(uid) = session.uid {
                // Else `/dev/stdout` couldn't be opened by the user who writes to it.
                fchown(&writer, Some(uid), Some(uid))?;
            }
            let from = File::from(OwnedFd::from(reader));
            rustix::fs::fcntl_setfl(&from, OFlags::NONBLOCK)?;
            let limit = session.command.stream_limit;
            Ok((
                Pump { from, file, stream, limit, sent: 0, hash: Sha256::new(), open: true, over: false },
                writer.into(),
            ))
        };
        let pipes = || Ok::<_, io::Error>((pump(Stream::Stdout)?, pump(Stream::Stderr)?));
        let ((out, out_end), (err, err_end)) = pipes().map_err(|error| format!("a pipe: {error}"))?;
        let action = Action::Exec { argv, directory: session.place.tree(), env: env.clone() };
        let order = Order { uid: session.uid, sandbox: session.sandbox.clone(), action };
        let helper = Helper::start(&order, out_end.into(), err_end.into()).map_err(|error| error.to_string())?;
        Ok(Self { helper, pumps: [out, err] })
    }

    /// Lets it become the test.
    fn go(mut self) -> Result<(Helper, [Pump; 2]), String> {
        // It says that it is ready, and then nothing more: or why not.
        let answer = self.helper.answer().and_then(|ready| match ready {
            Some(Answer { error: None, .. }) => self.helper.go().and_then(|()| self.helper.answer()),
            Some(failed) => Ok(Some(failed)),
            None => Err(io::Error::other("it ended before it was ready")),
        });
        match answer {
            Ok(None) => Ok((self.helper, self.pumps)),
            Ok(Some(answer)) => {
                let _ = self.helper.wait();
                Err(answer.error.unwrap_or_else(|| "it answered like a helper".to_owned()))
            }
            Err(error) => {
                self.helper.end();
                Err(error.to_string())
            }
        }
    }

    /// It isn't wanted any more.
    pub(crate) fn end(self) {
        self.helper.end();
    }
}

/// Passes output on until the main process is over, the deadline comes, a stream is too long or the host is gone.
fn watch(session: &mut Session<'_>, pid: Pid, pumps: &mut [Pump; 2]) -> (Option<WaitStatus>, Option<FileReason>) {
    // Without a descriptor for the process its end is found by asking, a little later.
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    let pause = if process.is_some() { Duration::from_secs(3600) } else { Duration::from_millis(20) };
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return (Some(status), None),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return (None, Some(FileReason::NotStarted)),
        }
        if session.watch.gone() || session.out.failed() {
            return (None, Some(FileReason::NotRun));
        }
        if pumps.iter().any(|pump| pump.over) {
            return (None, Some(FileReason::OutputLimit));
        }
        let left = session.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (None, Some(FileReason::Timeout));
        }
        {
            let wake = session.watch.wake();
            let mut waiting = vec![PollFd::from_borrowed_fd(wake, PollFlags::IN)];
            waiting.extend(process.as_ref().map(|process| PollFd::new(process, PollFlags::IN)));
            let open = pumps.iter().filter(|pump| pump.open);
            waiting.extend(open.map(|pump| PollFd::from_borrowed_fd(pump.from.as_fd(), PollFlags::IN)));
            // Rounded up, so that the last wait doesn't end just before the deadline again and again.
            let timeout = Timespec::try_from(left.min(pause) + Duration::from_millis(1)).ok();
            let _ = rustix::event::poll(&mut waiting, timeout.as_ref());
        }
        for pump in pumps.iter_mut() {
            pump.pass(session.out);
        }
        session.out.flush();
    }
}
