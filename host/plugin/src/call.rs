//! The state of one call: its limits, what it has used of them, and what it said.

use crate::bindings::lease::warmhold::policy::{log, settings};
use crate::fault::{Cause, PolicyFault};
use crate::generation::Identity;
use crate::limits::{Limiter, Limits};
use crate::logbook::{LogBook, SharedLog};
use crate::meter::{Meter, Mode};
use crate::wasi::WasiState;
use std::sync::Arc;
use wasmtime::component::{ResourceTable, ResourceTableError};
use wasmtime::{Engine, Store, Trap};

/// What a guest without a clock or a source of chance of its own sees of both: the call's moment, and a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Milliseconds since the epoch.
    pub(crate) now_ms: u64,
    /// What random numbers are made from.
    pub(crate) seed: String,
}

/// Everything that a call of any world has.
pub(crate) struct CallState {
    pub(crate) limits: Limits,
    pub(crate) limiter: Limiter,
    pub(crate) meter: Arc<Meter>,
    pub(crate) log: SharedLog,
    pub(crate) table: ResourceTable,
    pub(crate) frame: Frame,
    pub(crate) wasi: Option<Box<WasiState>>,
    settings: Arc<str>,
    bytes_left: usize,
    calls_left: u32,
    /// Whether the instance is made, and what follows is the call itself.
    pub(crate) made: bool,
    /// The first cause that a host function ended the call with.
    first: Option<Cause>,
}

/// The data of a store: what every call has, and what its world adds.
pub(crate) struct Host<X> {
    pub(crate) call: CallState,
    pub(crate) own: X,
}

impl CallState {
    pub(crate) fn new(identity: &Identity, limits: &Limits, frame: Frame) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles.get());
        Self {
            limits: *limits,
            limiter: Limiter::new(limits),
            meter: Meter::start(limits),
            log: Arc::new(parking_lot::Mutex::new(LogBook::new(Arc::clone(&identity.tag), limits.log_lines))),
            table,
            frame,
            wasi: None,
            settings: Arc::clone(&identity.settings),
            bytes_left: limits.host_bytes.get(),
            calls_left: limits.host_calls.get(),
            made: false,
            first: None,
        }
    }

    /// Ends the call with a cause. The first one is kept.
    pub(crate) fn fail(&mut self, cause: Cause) -> wasmtime::Error {
        self.first.get_or_insert(cause).clone().trap()
    }

    /// Counts a call of a host function with so many bytes of arguments.
    pub(crate) fn host_call(&mut self, bytes: usize) -> wasmtime::Result<()> {
        match self.calls_left.checked_sub(1) {
            Some(left) => self.calls_left = left,
            None => return Err(self.fail(Cause::HostCalls { allowed: self.limits.host_calls.get() })),
        }
        self.charge(bytes)
    }

    /// Counts bytes that go to or from the guest.
    pub(crate) fn charge(&mut self, bytes: usize) -> wasmtime::Result<()> {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => self.bytes_left = left,
            None => return Err(self.fail(Cause::HostBytes { allowed: self.limits.host_bytes.get() as u64 })),
        }
        Ok(())
    }

    /// Adds something to the table of handles.
    pub(crate) fn push<T: Send + 'static>(&mut self, value: T) -> wasmtime::Result<wasmtime::component::Resource<T>> {
        let pushed = self.table.push(value);
        pushed.map_err(|error| match error {
            ResourceTableError::Full => self.fail(Cause::Handles { allowed: self.limits.handles.get() as u64 }),
            other => other.into(),
        })
    }

    /// Why the engine gave this error.
    fn cause(&self, error: &wasmtime::Error) -> Cause {
        if let Some(cause) = self.first.as_ref().or_else(|| error.downcast_ref::<Cause>()) {
            return cause.clone();
        }
        let refused = self.limiter.refused().cloned();
        if let Some(trap) = error.downcast_ref::<Trap>() {
            return match (trap, refused) {
                (Trap::StackOverflow, _) => Cause::StackOverflow,
                // What an allocator does that got no memory.
                (Trap::UnreachableCodeReached, Some(cause)) => cause,
                (trap, _) => Cause::Trap(trap_name(*trap)),
            };
        }
        if let Some(ResourceTableError::Full) = error.downcast_ref::<ResourceTableError>() {
            return Cause::Handles { allowed: self.limits.handles.get() as u64 };
        }
        if is_transfer_limit(error) {
            return Cause::HostBytes { allowed: self.limits.host_bytes.get() as u64 };
        }
        // The pool counts by its own numbers, which are sized for the shares: this is a number that was set too low.
        if error.is::<wasmtime::PoolConcurrencyLimitError>() || error.is::<std::io::Error>() {
            return Cause::Host(format!("{error:#}"));
        }
        if let Some(cause) = refused.filter(|_| !self.made) {
            return cause;
        }
        let detail = cut(&format!("{:#}", error.root_cause()), 400);
        // Imports were matched when the policy was loaded, so all that can fail in making an instance without a trap is
        // what it is made of.
        if !self.made {
            return Cause::Instances {
                instances: self.limits.instances.get() as u64,
                memories: self.limits.memories.get() as u64,
                tables: self.limits.tables.get() as u64,
                detail,
            };
        }
        Cause::Malformed(detail)
    }

    /// The fault to tell.
    fn fault(&mut self, identity: &Identity, function: &'static str, error: &wasmtime::Error) -> PolicyFault {
        let cause = self.cause(error);
        let fault =
            PolicyFault { tag: identity.tag.to_string(), function, cause, message: self.log.lock().last_words() };
        tracing::warn!(policy = %fault.tag, function, code = fault.code(), guest_ms = self.meter.guest_time().as_secs_f64() * 1e3, "{fault}");
        tracing::debug!(policy = %fault.tag, "{error:?}");
        fault
    }
}

/// Whether the engine refused to copy more than a call's budget from the guest. Its error has a private type without
/// anything in it, so neither a downcast nor its words can tell; the type's own name (as `Debug` prints a unit struct)
/// can, and a test that copies too much in each direction fails should it ever be called otherwise.
fn is_transfer_limit(error: &wasmtime::Error) -> bool {
    format!("{:?}", error.root_cause()) == "HostcallFuelExhausted"
}

/// A trap in the words of the WebAssembly specification, without a prefix.
fn trap_name(trap: Trap) -> String {
    let text = trap.to_string();
    text.strip_prefix("wasm trap: ").map_or_else(|| text.clone(), str::to_owned)
}

/// At most so many bytes of a text, whole characters.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    let mut kept = text.to_owned();
    kept.truncate(text.floor_char_boundary(bytes));
    kept
}

/// A store for one call, limited and armed.
pub(crate) fn store<X: Send + 'static>(engine: &Engine, host: Host<X>, mode: Mode) -> Store<Host<X>> {
    let mut store = Store::new(engine, host);
    let (limits, meter) = (store.data().call.limits, Arc::clone(&store.data().call.meter));
    store.limiter(|host| &mut host.call.limiter);
    store.set_hostcall_fuel(limits.host_bytes.get());
    store.set_max_component_handles(limits.handles.get());
    meter.arm(&mut store, mode);
    store
}

/// Runs one call on this thread, in a store of its own that is gone before this returns.
pub(crate) fn run<X: Send + 'static, R>(
    engine: &Engine,
    identity: &Identity,
    function: &'static str,
    host: Host<X>,
    body: impl FnOnce(&mut Store<Host<X>>) -> wasmtime::Result<R>,
) -> Result<R, PolicyFault> {
    let mut store = store(engine, host, Mode::Sync);
    let result = body(&mut store);
    finish(&mut store, identity, function, result)
}

/// Polls one asynchronous call until it ends, or its wall clock does. The epoch sees a guest that runs; the timer here
/// sees one that waits.
pub(crate) async fn watch<R>(
    meter: &Meter,
    limits: &Limits,
    waits: Waits,
    call: impl Future<Output = wasmtime::Result<R>>,
) -> wasmtime::Result<R> {
    let mut call = std::pin::pin!(call);
    let metered = std::future::poll_fn(|context| {
        meter.resume();
        let polled = call.as_mut().poll(context);
        meter.pause();
        polled
    });
    match waits {
        Waits::Never => metered.await,
        Waits::OnHost => match tokio::time::timeout(limits.wall(), metered).await {
            Ok(result) => result,
            Err(_) => Err(Cause::WallClock { limit_ms: limits.wall_ms.get() }.trap()),
        },
    }
}

/// Whether the host functions of a call can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// They do, on a runtime.
    OnHost,
    /// They answer at once, as in a load: no runtime is needed.
    Never,
}

/// Ends a call: its log is closed, and an error becomes the fault that it stands for.
pub(crate) fn finish<X, R>(
    store: &mut Store<Host<X>>,
    identity: &Identity,
    function: &'static str,
    result: wasmtime::Result<R>,
) -> Result<R, PolicyFault> {
    let call = &mut store.data_mut().call;
    call.log.lock().close();
    result.map_err(|error| call.fault(identity, function, &error))
}

impl settings::Host for CallState {
    fn get(&mut self) -> wasmtime::Result<String> {
        self.host_call(self.settings.len())?;
        Ok(self.settings.to_string())
    }
}

impl log::Host for CallState {
    fn write(&mut self, level: log::Level, message: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        let bytes = fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + message.len();
        self.host_call(bytes)?;
        self.log.lock().write(level, &message, &fields);
        Ok(())
    }
}
