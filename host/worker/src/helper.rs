//! This program started again as a helper: the caller's side. See [`crate::jail`] for the other one.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a helper is to do, after it has given up all that the order doesn't leave it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The user and group to become; none: stay.
    pub(crate) uid: Option<u32>,
    /// Restrict what can be reached; none: no restriction beyond the user's.
    pub(crate) sandbox: Option<Sandbox>,
    /// What then.
    pub(crate) action: Action,
}

/// File system restrictions, see [`crate::sandbox`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// Not even readable.
    pub(crate) hide: Vec<PathBuf>,
    /// The only places that can be written.
    pub(crate) write: Vec<PathBuf>,
}

/// See [`Order`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Action {
    /// Tell who and where one is, then wait until the caller has looked.
    Check {
        /// Must be a directory that can be entered.
        tree: PathBuf,
        /// Must be directories that can be written.
        write: Vec<PathBuf>,
        /// A production probe to try from here.
        probe: Option<String>,
        /// The network namespace is private: a connection to anywhere must fail at once.
        closed: bool,
    },
    /// Get ready to become a test, say so, and become it when the caller says [`GO`].
    Exec {
        /// Its argv.
        argv: Vec<String>,
        /// Where it starts.
        directory: PathBuf,
        /// All of its environment.
        env: BTreeMap<String, String>,
    },
    /// Send what is in a directory as frames on standard output, and remove it.
    Collect {
        /// The directory.
        directory: PathBuf,
        /// The index of the file whose artifacts these are.
        file: u32,
        /// No more artifacts than this.
        count: usize,
        /// No more bytes than this in all.
        bytes: u64,
    },
    /// Empty these directories, and take one's own entries out of the shared ones.
    Wipe {
        /// The request's own.
        directories: Vec<PathBuf>,
        /// World-writable ones.
        shared: Vec<PathBuf>,
    },
    /// Enter a user namespace, for the caller to fill and to take, and wait until it has.
    Users,
    /// One signal to every process of this user at once.
    End,
}

/// What a helper that got ready to become a test waits for; the end of its channel instead ends it.
pub(crate) const GO: u8 = b'g';

/// What a helper says, one line of JSON. A test that was started says nothing more: the channel's end is the sign.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Things left out or not done, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// What the production probe found: none where none was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) probe: Option<crate::network::Reached>,
}

/// A started helper. It isn't waited for on drop; whoever starts one calls [`Helper::wait`] or ends it.
pub(crate) struct Helper {
    pub(crate) pid: Pid,
    channel: BufReader<UnixStream>,
}

/// Longer than any honest answer takes, and the end of a hanging one.
const PATIENCE: Duration = Duration::from_secs(120);

impl Helper {
    /// Starts one and gives it its order.
    ///
    /// # Errors
    /// What starting a process answers.
    pub(crate) fn start(order: &Order, stdout: Stdio, stderr: Stdio) -> io::Result<Self> {
        let (mut ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        ours.set_write_timeout(Some(PATIENCE))?;
        // The running program itself, even when its file was replaced since.
        let child = Command::new("/proc/self/exe")
            .arg0("warmhold-worker")
            .arg("jail")
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("a process id out of range"))?;
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let given = ours.write_all(&line);
        let helper = Self { pid, channel: BufReader::new(ours) };
        if let Err(error) = given {
            helper.end();
            return Err(error);
        }
        Ok(helper)
    }

    /// Lets a helper that got ready become a test.
    ///
    /// # Errors
    /// It isn't there any more.
    pub(crate) fn go(&mut self) -> io::Result<()> {
        self.channel.get_mut().write_all(&[GO])
    }

    /// Its line: none when it became a test.
    ///
    /// # Errors
    /// When it says nothing in time, or nonsense.
    pub(crate) fn answer(&mut self) -> io::Result<Option<Answer>> {
        let mut line = String::new();
        if self.channel.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What waiting answers.
    pub(crate) fn wait(self) -> io::Result<WaitStatus> {
        // A helper that waits for its caller goes on now.
        let _ = self.channel.get_ref().shutdown(Shutdown::Write);
        loop {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(status),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends it and waits.
    pub(crate) fn end(self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        let _ = self.wait();
    }
}

/// Starts a helper that has nothing to print, and waits for its answer and its end.
///
/// # Errors
/// What it says, or why it said nothing.
pub(crate) fn call(order: &Order) -> Result<Answer, String> {
    let started = Helper::start(order, Stdio::null(), Stdio::null());
    finish(started.map_err(|error| format!("a helper can't be started: {error}"))?)
}

/// Waits for the answer and the end of a helper that has nothing to print.
///
/// # Errors
/// What it says, or why it said nothing.
pub(crate) fn finish(mut helper: Helper) -> Result<Answer, String> {
    let answer = match helper.answer() {
        Ok(answer) => answer,
        Err(error) => {
            helper.end();
            return Err(format!("a helper didn't answer: {error}"));
        }
    };
    helper.wait().map_err(|error| format!("a helper can't be waited for: {error}"))?;
    checked(answer)
}

/// An answer without an error.
///
/// # Errors
/// What it says, or that it said nothing.
pub(crate) fn checked(answer: Option<Answer>) -> Result<Answer, String> {
    match answer {
        None => Err("a helper ended without an answer".to_owned()),
        Some(Answer { error: Some(error), .. }) => Err(error),
        Some(answer) => Ok(answer),
    }
}
