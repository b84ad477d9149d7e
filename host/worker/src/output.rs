//! The stream to the host.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use warmhold_protocol::{Frame, write_frame};

/// Frames to the host. After the first failure nobody listens any more, and nothing further is written.
pub(crate) struct Output {
    to: BufWriter<File>,
    failed: bool,
}

impl Output {
    /// Takes standard output.
    ///
    /// # Errors
    /// When it is closed.
    pub(crate) fn stdout() -> io::Result<Self> {
        let own = rustix::io::fcntl_dupfd_cloexec(io::stdout().as_fd(), 3)?;
        Ok(Self { to: BufWriter::with_capacity(128 * 1024, File::from(own)), failed: false })
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
