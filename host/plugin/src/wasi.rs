//! A WASI with nothing in it, for components that import one (plain `wasm32-wasip2`, JavaScript, Python).
//!
//! It keeps such a guest a pure function: its clock is the call's moment, its random numbers come from the call's fresh
//! id, what it prints goes to the bounded log, and there are no files, arguments, variables and no network. Time stands
//! still but for what the guest sleeps: sleeping moves its clock on and takes no time, so that a loop that waits ends.
//!
//! Nothing here waits, so the same functions serve synchronous and asynchronous calls. The ready-made synchronous
//! implementation enters a tokio runtime for each write, which panics on a runtime's own thread; the ready-made
//! asynchronous one can't be called synchronously. What no guest can ever get hold of (descriptors, sockets) is the
//! ready-made one's all the same: with no directory and no address allowed, there is nothing that it could block on.

use crate::call::{CallState, Host};
use crate::fault::Cause;
use crate::logbook::{SharedLog, Stream};
use sha2::{Digest, Sha256};
use wasmtime::component::{HasData, HasSelf, Linker, Resource, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::sync as sync_bindings;
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, random, sockets};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, InputStream, OutputStream, Pollable, StreamError, StreamResult,
    subscribe,
};
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

/// The longest answer to a request for random bytes.
const RANDOM_BYTES: u64 = 64 * 1024;
/// What a write may bring at once; WASI's own blocking writes bring at most this much.
const WRITE_BYTES: usize = 4096;

/// The part of a call's state that only a guest with WASI needs; made when it is first used.
pub(crate) struct WasiState {
    ctx: WasiCtx,
    /// Nanoseconds that the guest has slept.
    slept: u64,
    random: Seeded,
}

impl CallState {
    fn wasi(&mut self) -> &mut WasiState {
        let frame = &self.frame;
        self.wasi.get_or_insert_with(|| {
            Box::new(WasiState { ctx: WasiCtx::builder().build(), slept: 0, random: Seeded::new(&frame.seed) })
        })
    }
}

/// Random numbers that the same call gets again: SHA-256 over the seed and a counter.
struct Seeded {
    seed: [u8; 32],
    counter: u64,
}

impl Seeded {
    fn new(seed: &str) -> Self {
        Self { seed: Sha256::digest(seed.as_bytes()).into(), counter: 0 }
    }

    fn block(&mut self) -> [u8; 32] {
        let block = Sha256::new().chain_update(self.seed).chain_update(self.counter.to_le_bytes()).finalize();
        self.counter += 1;
        block.into()
    }

    fn number(&mut self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.block();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.next_multiple_of(32));
        while bytes.len() < len {
            bytes.extend_from_slice(&self.block());
        }
        bytes.truncate(len);
        bytes
    }
}

impl<X: Send> WasiView for Host<X> {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.call.wasi();
        let CallState { wasi, table, frame, .. } = &mut self.call;
        let wasi = wasi.get_or_insert_with(|| {
            Box::new(WasiState { ctx: WasiCtx::builder().build(), slept: 0, random: Seeded::new(&frame.seed) })
        });
        WasiCtxView { ctx: &mut wasi.ctx, table }
    }
}

/// Adds all of WASI 0.2's command world to a linker.
pub(crate) fn link<X: Send + 'static>(linker: &mut Linker<Host<X>>) -> wasmtime::Result<()> {
    fn call<X>(host: &mut Host<X>) -> &mut CallState {
        &mut host.call
    }
    fn table<X>(host: &mut Host<X>) -> &mut ResourceTable {
        &mut host.call.table
    }
    type Call = HasSelf<CallState>;
    let l = linker;
    clocks::wall_clock::add_to_linker::<_, Call>(l, call::<X>)?;
    clocks::monotonic_clock::add_to_linker::<_, Call>(l, call::<X>)?;
    random::random::add_to_linker::<_, Call>(l, call::<X>)?;
    random::insecure::add_to_linker::<_, Call>(l, call::<X>)?;
    random::insecure_seed::add_to_linker::<_, Call>(l, call::<X>)?;
    cli::exit::add_to_linker::<_, Call>(l, call::<X>)?;
    cli::stdin::add_to_linker::<_, Call>(l, call::<X>)?;
    cli::stdout::add_to_linker::<_, Call>(l, call::<X>)?;
    cli::stderr::add_to_linker::<_, Call>(l, call::<X>)?;
    sync_bindings::io::error::add_to_linker::<_, Table>(l, table::<X>)?;
    sync_bindings::io::poll::add_to_linker::<_, Call>(l, call::<X>)?;
    sync_bindings::io::streams::add_to_linker::<_, Call>(l, call::<X>)?;

    cli::environment::add_to_linker::<_, WasiCli>(l, WasiCliView::cli)?;
    cli::terminal_input::add_to_linker::<_, WasiCli>(l, WasiCliView::cli)?;
    cli::terminal_output::add_to_linker::<_, WasiCli>(l, WasiCliView::cli)?;
    cli::terminal_stdin::add_to_linker::<_, WasiCli>(l, WasiCliView::cli)?;
    cli::terminal_stdout::add_to_linker::<_, WasiCli>(l, WasiCliView::cli)?;
    cli::terminal_stderr::add_to_linker::<_, WasiCli>(l, WasiCliView::cli)?;
    filesystem::preopens::add_to_linker::<_, WasiFilesystem>(l, WasiFilesystemView::filesystem)?;
    sync_bindings::filesystem::types::add_to_linker::<_, WasiFilesystem>(l, WasiFilesystemView::filesystem)?;
    sockets::tcp_create_socket::add_to_linker::<_, WasiSockets>(l, WasiSocketsView::sockets)?;
    sockets::instance_network::add_to_linker::<_, WasiSockets>(l, WasiSocketsView::sockets)?;
    sockets::network::add_to_linker::<_, WasiSockets>(l, &Default::default(), WasiSocketsView::sockets)?;
    sockets::ip_name_lookup::add_to_linker::<_, WasiSockets>(l, WasiSocketsView::sockets)?;
    sync_bindings::sockets::tcp::add_to_linker::<_, WasiSockets>(l, WasiSocketsView::sockets)?;
    sync_bindings::sockets::udp::add_to_linker::<_, WasiSockets>(l, WasiSocketsView::sockets)?;
    sync_bindings::sockets::udp_create_socket::add_to_linker::<_, WasiSockets>(l, WasiSocketsView::sockets)?;
    Ok(())
}

struct Table;

impl HasData for Table {
    type Data<'a> = &'a mut ResourceTable;
}

impl clocks::wall_clock::Host for CallState {
    fn now(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        self.host_call(0)?;
        let nanos = u128::from(self.frame.now_ms) * 1_000_000 + u128::from(self.wasi().slept);
        Ok(clocks::wall_clock::Datetime {
            seconds: u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX),
            nanoseconds: u32::try_from(nanos % 1_000_000_000).unwrap_or(0),
        })
    }

    fn resolution(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        Ok(clocks::wall_clock::Datetime { seconds: 0, nanoseconds: 1_000_000 })
    }
}

impl clocks::monotonic_clock::Host for CallState {
    fn now(&mut self) -> wasmtime::Result<u64> {
        self.host_call(0)?;
        Ok(self.wasi().slept)
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(1)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let wasi = self.wasi();
        wasi.slept = wasi.slept.max(when);
        self.pollable()
    }

    fn subscribe_duration(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let wasi = self.wasi();
        wasi.slept = wasi.slept.saturating_add(when);
        self.pollable()
    }
}

impl random::random::Host for CallState {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        let len = usize::try_from(len.min(RANDOM_BYTES + 1)).unwrap_or(usize::MAX);
        self.host_call(len)?;
        if len as u64 > RANDOM_BYTES {
            return Err(self.fail(Cause::Malformed(format!("more than {RANDOM_BYTES} random bytes at once"))));
        }
        Ok(self.wasi().random.bytes(len))
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.host_call(8)?;
        Ok(self.wasi().random.number())
    }
}

impl random::insecure::Host for CallState {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        random::random::Host::get_random_bytes(self, len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        random::random::Host::get_random_u64(self)
    }
}

impl random::insecure_seed::Host for CallState {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        self.host_call(16)?;
        let random = &mut self.wasi().random;
        Ok((random.number(), random.number()))
    }
}

impl cli::exit::Host for CallState {
    fn exit(&mut self, status: Result<(), ()>) -> wasmtime::Result<()> {
        Err(self.fail(Cause::Exit(i32::from(status.is_err()))))
    }

    fn exit_with_code(&mut self, status: u8) -> wasmtime::Result<()> {
        Err(self.fail(Cause::Exit(status.into())))
    }
}

impl cli::stdin::Host for CallState {
    fn get_stdin(&mut self) -> wasmtime::Result<Resource<DynInputStream>> {
        let stream: DynInputStream = Box::new(Nothing);
        self.push(stream)
    }
}

impl cli::stdout::Host for CallState {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        self.said(Stream::Out)
    }
}

impl cli::stderr::Host for CallState {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        self.said(Stream::Err)
    }
}

/// An input without anything in it, and a moment that has come.
struct Nothing;

#[async_trait::async_trait]
impl Pollable for Nothing {
    async fn ready(&mut self) {}
}

#[async_trait::async_trait]
impl InputStream for Nothing {
    fn read(&mut self, _size: usize) -> StreamResult<bytes::Bytes> {
        Err(StreamError::Closed)
    }
}

/// stdout or stderr: the call's log.
struct Said {
    log: SharedLog,
    stream: Stream,
}

#[async_trait::async_trait]
impl Pollable for Said {
    async fn ready(&mut self) {}
}

#[async_trait::async_trait]
impl OutputStream for Said {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        self.log.lock().bytes(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}

impl CallState {
    /// Something that is ready.
    fn pollable(&mut self) -> wasmtime::Result<Resource<DynPollable>> {
        self.host_call(0)?;
        let nothing = self.push(Nothing)?;
        subscribe(&mut self.table, nothing)
    }

    fn said(&mut self, stream: Stream) -> wasmtime::Result<Resource<DynOutputStream>> {
        self.host_call(0)?;
        let said: DynOutputStream = Box::new(Said { log: SharedLog::clone(&self.log), stream });
        self.push(said)
    }

    fn print(&mut self, stream: &Resource<DynOutputStream>, bytes: Vec<u8>) -> StreamResult<()> {
        self.host_call(bytes.len()).map_err(StreamError::Trap)?;
        self.table.get_mut(stream)?.write(bytes.into())
    }
}

impl sync_bindings::io::poll::Host for CallState {
    fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        self.host_call(pollables.len() * 4)?;
        if pollables.is_empty() {
            return Err(self.fail(Cause::Malformed("poll of nothing".to_owned())));
        }
        // Everything is always ready.
        for pollable in &pollables {
            self.table.get(pollable)?;
        }
        Ok((0..u32::try_from(pollables.len()).unwrap_or(u32::MAX)).collect())
    }
}

impl sync_bindings::io::poll::HostPollable for CallState {
    fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        self.host_call(0)?;
        self.table.get(&pollable)?;
        Ok(true)
    }

    fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.host_call(0)?;
        self.table.get(&pollable)?;
        Ok(())
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        sync_bindings::io::poll::HostPollable::drop(&mut self.table, pollable)
    }
}

impl sync_bindings::io::streams::Host for CallState {
    fn convert_stream_error(
        &mut self,
        error: StreamError,
    ) -> wasmtime::Result<sync_bindings::io::streams::StreamError> {
        match error {
            StreamError::Closed => Ok(sync_bindings::io::streams::StreamError::Closed),
            StreamError::LastOperationFailed(error) => {
                Ok(sync_bindings::io::streams::StreamError::LastOperationFailed(self.push(error)?))
            }
            StreamError::Trap(error) => Err(error),
        }
    }
}

impl sync_bindings::io::streams::HostInputStream for CallState {
    fn read(&mut self, stream: Resource<DynInputStream>, _len: u64) -> StreamResult<Vec<u8>> {
        self.host_call(0).map_err(StreamError::Trap)?;
        self.table.get(&stream)?;
        Err(StreamError::Closed)
    }

    fn blocking_read(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<Vec<u8>> {
        self.read(stream, len)
    }

    fn skip(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<u64> {
        self.read(stream, len).map(|_| 0)
    }

    fn blocking_skip(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<u64> {
        self.skip(stream, len)
    }

    fn subscribe(&mut self, stream: Resource<DynInputStream>) -> wasmtime::Result<Resource<DynPollable>> {
        self.table.get(&stream)?;
        self.pollable()
    }

    fn drop(&mut self, stream: Resource<DynInputStream>) -> wasmtime::Result<()> {
        self.table.delete(stream)?;
        Ok(())
    }
}

impl sync_bindings::io::streams::HostOutputStream for CallState {
    fn check_write(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<u64> {
        self.host_call(0).map_err(StreamError::Trap)?;
        self.table.get(&stream)?;
        Ok(WRITE_BYTES as u64)
    }

    fn write(&mut self, stream: Resource<DynOutputStream>, contents: Vec<u8>) -> StreamResult<()> {
        self.print(&stream, contents)
    }

    fn blocking_write_and_flush(&mut self, stream: Resource<DynOutputStream>, contents: Vec<u8>) -> StreamResult<()> {
        self.print(&stream, contents)
    }

    fn flush(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<()> {
        self.table.get(&stream)?;
        Ok(())
    }

    fn blocking_flush(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<()> {
        self.flush(stream)
    }

    fn subscribe(&mut self, stream: Resource<DynOutputStream>) -> wasmtime::Result<Resource<DynPollable>> {
        self.table.get(&stream)?;
        self.pollable()
    }

    fn write_zeroes(&mut self, stream: Resource<DynOutputStream>, len: u64) -> StreamResult<()> {
        let len = usize::try_from(len).map_or(WRITE_BYTES, |len| len.min(WRITE_BYTES));
        self.print(&stream, vec![0; len])
    }

    fn blocking_write_zeroes_and_flush(&mut self, stream: Resource<DynOutputStream>, len: u64) -> StreamResult<()> {
        self.write_zeroes(stream, len)
    }

    fn splice(
        &mut self,
        out: Resource<DynOutputStream>,
        from: Resource<DynInputStream>,
        len: u64,
    ) -> StreamResult<u64> {
        self.table.get(&out)?;
        sync_bindings::io::streams::HostInputStream::skip(self, from, len)
    }

    fn blocking_splice(
        &mut self,
        out: Resource<DynOutputStream>,
        from: Resource<DynInputStream>,
        len: u64,
    ) -> StreamResult<u64> {
        self.splice(out, from, len)
    }

    fn drop(&mut self, stream: Resource<DynOutputStream>) -> wasmtime::Result<()> {
        self.table.delete(stream)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_gives_others() {
        let numbers = |seed: &str| {
            let mut random = Seeded::new(seed);
            (random.bytes(100), random.number())
        };
        assert_eq!(numbers("a"), numbers("a"));
        assert_ne!(numbers("a"), numbers("b"));
        let (bytes, _) = numbers("a");
        assert_eq!(bytes.len(), 100);
        assert_ne!(bytes[..32], bytes[32..64], "blocks differ");
    }
}
