//! The listening side: a loop of its own over hyper, since every limit must be ours to state.
//!
//! What is beyond a limit waits or is turned away; nothing grows without one. Connections beyond theirs stay in the
//! kernel's queue until one ends. A head must arrive in time, which also ends connections that idle. A head that is too
//! large or has too many headers is answered in the same form as every other refusal; one of more than twice that isn't
//! even read, and hyper's own 431 has no body.

use crate::error::ApiError;
use crate::http::Control;
use crate::listen::ListenAddress;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at once.
    pub connections: usize,
    /// Connections that wait in the kernel's queue; those beyond are turned away there.
    pub waiting: u32,
    /// Headers of a request.
    pub headers: usize,
    /// Bytes of a request's address and headers.
    pub head: usize,
    /// For a head to arrive, counted from the end of the request before: so also how long a connection may idle.
    pub head_time: Duration,
    /// For what is in flight to end, once the server is to stop.
    pub drain: Duration,
}

impl Default for ServerLimits {
    /// 1,024 connections, as many waiting, 64 headers in 32 KiB, 30 s for a head, 10 s to drain.
    fn default() -> Self {
        Self {
            connections: 1024,
            waiting: 1024,
            headers: 64,
            head: 32 << 10,
            head_time: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// The address can't be listened on now.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process does.
    #[error("{address} is in use: another daemon may be serving there")]
    InUse {
        /// The address.
        address: ListenAddress,
    },
    /// The system refuses.
    #[error("{address} can't be listened on: {source}")]
    Io {
        /// The address.
        address: ListenAddress,
        /// Why.
        source: io::Error,
    },
}

impl BindError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "listen-in-use",
            Self::Io { .. } => "listen-failed",
        }
    }
}

/// A socket that is bound; clients that connect wait until it is served.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    limits: ServerLimits,
}

impl Server {
    /// Binds an address; must be called within a runtime.
    ///
    /// # Errors
    /// It is in use, or the system refuses.
    pub fn bind(address: ListenAddress, limits: ServerLimits) -> Result<Self, BindError> {
        match listen(address.socket(), limits.waiting) {
            Ok(listener) => Ok(Self { listener, limits }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(BindError::InUse { address }),
            Err(source) => Err(BindError::Io { address, source }),
        }
    }

    /// Where it listens; tells the port where port 0 was asked for.
    ///
    /// # Errors
    /// The system refuses.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` ends; then no connection is accepted, what is in flight may end within the drain time, and
    /// the rest is cut off. Returns how many connections were.
    pub async fn serve(self, control: Arc<Control>, stop: impl Future<Output = ()>) -> usize {
        let limits = self.limits;
        let respond = move |request: http::Request<Incoming>, peer| {
            let control = Arc::clone(&control);
            async move {
                match head_within(&request, &limits) {
                    Ok(()) => control.respond(request, peer).await,
                    Err(refused) => control.refuse(request, peer, &refused),
                }
            }
        };
        self.serve_with(respond, stop).await
    }

    /// As [`Server::serve`], with something else behind the connections, which judges heads itself. The benches put a
    /// constant there, to see what connections cost alone.
    pub async fn serve_with<F, R>(self, respond: F, stop: impl Future<Output = ()>) -> usize
    where
        F: Fn(http::Request<Incoming>, IpAddr) -> R + Clone + Send + 'static,
        R: Future<Output = http::Response<Body>> + Send + 'static,
    {
        let Self { listener, limits } = self;
        let places = Arc::new(Semaphore::new(limits.connections));
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = async {
                // Never closed, so this can't fail.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = &mut stop => break,
                // Ended ones are collected as they end, so that the set doesn't grow.
                Some(ended) = connections.join_next() => {
                    report(ended);
                    continue;
                }
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let watcher = graceful.watcher();
                    let connection = connection(stream, peer.ip(), respond.clone(), limits);
                    connections.spawn(async move {
                        let _place = place;
                        if let Err(error) = watcher.watch(connection).await {
                            // Clients go away, idle and send nonsense; none of it is a fault of ours.
                            tracing::debug!(%error, "a connection ended early");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection can't be accepted");
                    // Out of file descriptors, most likely: the error comes again at once, until one is free.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        if tokio::time::timeout(limits.drain, graceful.shutdown()).await.is_err() {
            tracing::warn!(left = connections.len(), "requests were cut off: they took longer than the drain time");
        }
        while let Some(ended) = connections.try_join_next() {
            report(ended);
        }
        let cut = connections.len();
        connections.shutdown().await;
        cut
    }
}

fn listen(address: SocketAddr, waiting: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Else the address stays taken for a minute after a restart.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(waiting)
}

fn connection<F, R>(
    stream: TcpStream,
    peer: IpAddr,
    respond: F,
    limits: ServerLimits,
) -> hyper::server::conn::http1::Connection<
    TokioIo<TcpStream>,
    impl hyper::service::Service<http::Request<Incoming>, Response = http::Response<Body>, Error = Infallible, Future: Send>,
>
where
    F: Fn(http::Request<Incoming>, IpAddr) -> R + Send + 'static,
    R: Future<Output = http::Response<Body>> + Send + 'static,
{
    // Answers are small and written whole: waiting for more to send would only delay them. Where it can't be set, they
    // are slower, and right.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let answer = respond(request, peer);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(limits.headers.saturating_mul(2))
        .max_buf_size(limits.head.saturating_mul(2).max(8 << 10))
        .serve_connection(TokioIo::new(stream), service)
}

fn head_within<B>(request: &http::Request<B>, limits: &ServerLimits) -> Result<(), ApiError> {
    let headers = request.headers();
    let address = request.uri().path_and_query().map_or(0, |address| address.as_str().len());
    let bytes = headers.iter().fold(address, |bytes, (name, value)| bytes + name.as_str().len() + value.len());
    if headers.len() <= limits.headers && bytes <= limits.head {
        return Ok(());
    }
    Err(ApiError::new(
        http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "head-too-large",
        format!("a request has at most {} headers, and {} bytes of address and headers", limits.headers, limits.head),
    ))
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task failed");
    }
}
