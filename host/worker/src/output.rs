//! The stream to the host.

use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use warmhold_protocol::{Frame, write_frame};

/// Frames to the host. After the first failure nobody listens any more, and nothing further is written.
pub(crate) struct Output {
    to: BufWriter<Patient>,
    failed: bool,
}

impl Output {
    /// Takes standard output.
    ///
    /// # Errors
    /// When it is closed.
    pub(crate) fn stdout() -> io::Result<Self> {
        let own = rustix::io::fcntl_dupfd_cloexec(io::stdout().as_fd(), 3)?;
        let to = Patient { to: File::from(own), wake: None };
        Ok(Self { to: BufWriter::with_capacity(128 * 1024, to), failed: false })
    }

    /// From now on writing gives up when this becomes readable, however full the pipe is.
    pub(crate) fn give_up_on(&mut self, wake: OwnedFd) {
        self.to.get_mut().wake = Some(wake);
    }

    /// Queues a frame.
    pub(crate) fn frame(&mut self, frame: &Frame) {
        self.failed = self.failed || write_frame(&mut self.to, frame).is_err();
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self) {
        self.failed = self.failed || self.to.flush().is_err();
    }

    /// Whether the host has stopped to listen.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }
}

/// Waits for room before it writes, so that a host that is gone but whose pipe is full and open holds nobody up.
/// Standard output isn't ours to make non-blocking: the flag is shared with whoever else holds the pipe.
struct Patient {
    to: File,
    wake: Option<OwnedFd>,
}

/// A pipe that polls as writable takes this much without blocking.
const ROOM: usize = 4096;

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(wake) = &self.wake {
            let mut fds = [PollFd::new(&self.to, PollFlags::OUT), PollFd::new(wake, PollFlags::IN)];
            rustix::event::poll(&mut fds, None)?;
            let [_, woken] = &fds;
            if !woken.revents().is_empty() {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the host is gone"));
            }
        }
        self.to.write(bytes.get(..ROOM).unwrap_or(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
