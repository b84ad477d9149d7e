//! The one thread that moves the engine's epoch on.
//!
//! A thread for each request costs throughput by orders of magnitude; none at all means that no deadline ever fires. So
//! there is exactly one an engine. It rests while no call runs, since a thousand wake-ups a second of an idle daemon
//! would be felt on a laptop, and ends with the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// How often the epoch moves on. A deadline is noticed at most two of these late.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Ticks without a call before the thread rests: long enough that a busy daemon never pays for waking it.
const LINGER: u32 = 200;

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    resting: AtomicBool,
    calls: AtomicUsize,
}

/// Owns the thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the thread. It holds the engine weakly: what keeps an engine alive is its users.
    pub(crate) fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (seen, engine) = (Arc::clone(&shared), engine.weak());
        let handle = std::thread::Builder::new().name("policy-ticker".to_owned()).spawn(move || {
            let mut idle = 0;
            while !seen.stop.load(Ordering::SeqCst) {
                std::thread::sleep(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
                drop(engine);
                idle = if seen.calls.load(Ordering::SeqCst) == 0 { idle + 1 } else { 0 };
                if idle >= LINGER {
                    idle = 0;
                    rest(&seen);
                }
            }
        })?;
        Ok(Self { shared, thread: handle.thread().clone(), handle: Some(handle) })
    }

    /// Says that a call begins; the epoch moves at least until the guard is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.shared.resting.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
        Running(&self.shared.calls)
    }
}

/// Sleeps until a call begins. The flag is set before the calls are counted once more, and a call counts itself before
/// it reads the flag: whichever comes second sees the other.
fn rest(seen: &Shared) {
    seen.resting.store(true, Ordering::SeqCst);
    while seen.resting.load(Ordering::SeqCst)
        && seen.calls.load(Ordering::SeqCst) == 0
        && !seen.stop.load(Ordering::SeqCst)
    {
        std::thread::park();
    }
    seen.resting.store(false, Ordering::SeqCst);
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.unpark();
        // The last user of an engine may be the ticker itself, between its upgrade and its drop.
        if let Some(handle) = self.handle.take()
            && std::thread::current().id() != self.thread.id()
        {
            let _ = handle.join();
        }
    }
}

/// A call that runs.
#[derive(Debug)]
pub(crate) struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
