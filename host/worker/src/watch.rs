//! Standard input tells whether anybody waits for the answer: its end means that the host is gone.

use crate::processes;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The status of a worker whose host went away.
pub(crate) const GONE: u8 = 3;
/// How long the request may take to clean up after the host has gone.
const GRACE: Duration = Duration::from_secs(30);
/// How long the answer may take to be read after the deadline: a host that doesn't read blocks every write.
const LINGER: Duration = Duration::from_secs(60);

/// The watcher's side that the request sees.
pub(crate) struct Watch {
    gone: Arc<AtomicBool>,
    wake: OwnedFd,
}

impl Watch {
    /// Begins to watch. When the request doesn't end by itself in time, the watcher ends its processes and this one.
    ///
    /// # Errors
    /// When a thread or a descriptor can't be had.
    pub(crate) fn begin(deadline: Instant, uid: Option<u32>) -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let theirs = wake.try_clone()?;
        let gone = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&gone);
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            wait_for_end(deadline + LINGER);
            flag.store(true, Ordering::SeqCst);
            let _ = rustix::io::write(&theirs, &1_u64.to_ne_bytes());
            // The request's own thread cleans up and exits; this is for when it hangs.
            std::thread::sleep(GRACE);
            for _ in 0..10 {
                processes::end_once(uid);
            }
            std::process::exit(i32::from(GONE));
        })?;
        Ok(Self { gone, wake })
    }

    /// Whether the host is gone.
    pub(crate) fn gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Becomes readable when the host goes, and stays so.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Another descriptor of the same.
    ///
    /// # Errors
    /// When none can be had.
    pub(crate) fn wake_for_others(&self) -> io::Result<OwnedFd> {
        self.wake.try_clone()
    }
}

/// Returns when standard input ends or fails, or when the time is over. What comes in is thrown away.
fn wait_for_end(until: Instant) {
    let stdin = io::stdin();
    let mut waste = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let timeout = Timespec::try_from(left.min(Duration::from_secs(3600))).ok();
        match rustix::event::poll(&mut [PollFd::new(&stdin, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        match rustix::io::read(&stdin, &mut waste) {
            Ok(0) => return,
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}
