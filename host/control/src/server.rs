//! The listening side: a loop of its own over hyper, since every limit must be ours to state.
//!
//! What is beyond a limit makes room or is turned away; nothing grows without one, and nothing waits in a queue behind
//! clients that do nothing. When every connection is taken, the one that has waited longest without a request is ended
//! for the new one; when a request is in hand on each, the new one is answered 503. A head that is too large or has too
//! many headers is answered in the same form as every other refusal; one of more than twice that isn't even read, and
//! hyper's own 431 has no body.

mod refusal;
mod seats;
mod wire;

use crate::error::ApiError;
use crate::http::{Control, Figures};
use crate::listen::ListenAddress;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use refusal::Refusal;
use seats::{Patience, Room, Seated, Seats};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use wire::{Answering, Wire};

/// So many connections beyond the limit are told so at the same time; more are closed without a word.
const TURNED_AWAY: usize = 64;
/// How long nothing is accepted when the system has nothing left for another connection.
const EXHAUSTED: Duration = Duration::from_millis(20);
/// How often that is told.
const TELL: Duration = Duration::from_secs(10);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Connections at once.
    pub connections: usize,
    /// Connections that wait in the kernel's queue to be accepted; those beyond are turned away there.
    pub waiting: u32,
    /// Headers of a request.
    pub headers: usize,
    /// Bytes of a request's address and headers.
    pub head: usize,
    /// For a head to arrive, counted from the connection's begin or the head's first byte.
    pub head_time: Duration,
    /// For a connection to do nothing after an answer.
    pub idle_time: Duration,
    /// For a client to take in some more of an answer.
    pub stall_time: Duration,
    /// For what is in flight to end, once the server is to stop.
    pub drain: Duration,
}

impl Default for ServerLimits {
    /// 1,024 connections, as many waiting, 64 headers in 16 KiB, 10 s for a head, 60 s idle, 30 s for a piece of an answer,
    /// 10 s to drain.
    fn default() -> Self {
        Self {
            connections: 1024,
            waiting: 1024,
            headers: 64,
            head: 16 << 10,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

impl ServerLimits {
    fn patience(&self) -> Patience {
        Patience { head: self.head_time, idle: self.idle_time, stall: self.stall_time }
    }

    /// How often connections are looked through.
    fn tick(&self) -> Duration {
        let shortest = self.head_time.min(self.idle_time).min(self.stall_time);
        (shortest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1))
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
        let figures = Arc::clone(control.figures());
        let respond = move |request: http::Request<Incoming>, peer| {
            let control = Arc::clone(&control);
            async move {
                match head_within(&request, &limits) {
                    Ok(()) => control.respond(request, peer).await,
                    Err(refused) => control.refuse(request, peer, &refused),
                }
            }
        };
        self.answer_with(respond, figures, stop).await
    }

    /// As [`Server::serve`], with something else behind the connections, which judges heads itself. The benches put a
    /// constant there, to see what connections cost alone.
    pub async fn serve_with<F, R>(self, respond: F, stop: impl Future<Output = ()>) -> usize
    where
        F: Fn(http::Request<Incoming>, IpAddr) -> R + Clone + Send + 'static,
        R: Future<Output = http::Response<Body>> + Send + 'static,
    {
        self.answer_with(respond, Figures::new(), stop).await
    }

    async fn answer_with<F, R>(self, respond: F, figures: Arc<Figures>, stop: impl Future<Output = ()>) -> usize
    where
        F: Fn(http::Request<Incoming>, IpAddr) -> R + Clone + Send + 'static,
        R: Future<Output = http::Response<Body>> + Send + 'static,
    {
        let Self { listener, limits } = self;
        let doors = Doors {
            places: Arc::new(Semaphore::new(limits.connections)),
            aside: Arc::new(Semaphore::new(TURNED_AWAY)),
            seats: Seats::new(figures),
        };
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut exhausted = Exhausted::default();
        let tick = limits.tick();
        let mut sweep = tokio::time::interval(tick);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                _ = sweep.tick() => {
                    doors.seats.sweep(limits.patience(), tick);
                    continue;
                }
                // Ended ones are collected as they end, so that the set doesn't grow.
                Some(ended) = connections.join_next() => {
                    report(ended);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let place = tokio::select! {
                        () = &mut stop => break,
                        place = doors.place() => place,
                    };
                    let Some(place) = place else {
                        doors.turn_away(stream);
                        continue;
                    };
                    let connection = connection(stream, peer.ip(), doors.seats.take(), respond.clone(), limits);
                    let watched = graceful.watch(connection);
                    connections.spawn(async move {
                        let _place = place;
                        if let Err(error) = watched.await {
                            // Clients go away, idle and send nonsense; none of it is a fault of ours.
                            tracing::debug!(%error, "a connection ended early");
                        }
                    });
                }
                Err(error) => exhausted.wait(&error, &doors.seats).await,
            }
        }
        drop(listener);
        doors.seats.stop();
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

/// Who may come in.
struct Doors {
    places: Arc<Semaphore>,
    /// Places of those that are told that there is none.
    aside: Arc<Semaphore>,
    seats: Arc<Seats>,
}

impl Doors {
    /// A place, if need be another's; None when a request is in hand on every connection.
    async fn place(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return Some(place);
            }
            match self.seats.make_room() {
                Room::None => return None,
                // It waits for nobody to give its place back: its task is woken, and has nothing left to do.
                Room::Made => return Arc::clone(&self.places).acquire_owned().await.ok(),
                // Accepting must not outrun answering: those that were accepted have their turn first.
                Room::Soon => tokio::task::yield_now().await,
            }
        }
    }

    fn turn_away(&self, stream: TcpStream) {
        self.seats.figures.connections.turned_away.inc();
        if let Ok(place) = Arc::clone(&self.aside).try_acquire_owned() {
            let figures = Arc::clone(&self.seats.figures);
            tokio::spawn(async move {
                refusal::turn_away(stream, &figures).await;
                drop(place);
            });
        }
    }
}

/// What is done when the system gives no more connections.
#[derive(Default)]
struct Exhausted {
    told: Option<Instant>,
}

impl Exhausted {
    async fn wait(&mut self, error: &io::Error, seats: &Seats) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            // The client went away before its turn: the next one is fine.
            return;
        }
        // File descriptors, most likely. One that is given back does for the next connection; without one the error comes
        // again at once.
        let room = seats.make_room() == Room::Made;
        if self.told.is_none_or(|told| told.elapsed() >= TELL) {
            self.told = Some(Instant::now());
            tracing::warn!(%error, room, "a connection can't be accepted; raise the limit of open files (ulimit -n)");
        }
        tokio::time::sleep(EXHAUSTED).await;
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
    seated: Seated,
    respond: F,
    limits: ServerLimits,
) -> hyper::server::conn::http1::Connection<
    TokioIo<Wire>,
    impl hyper::service::Service<
        http::Request<Incoming>,
        Response = http::Response<Answering>,
        Error = Infallible,
        Future: Send,
    >,
>
where
    F: Fn(http::Request<Incoming>, IpAddr) -> R + Send + 'static,
    R: Future<Output = http::Response<Body>> + Send + 'static,
{
    // Answers are small and written whole: waiting for more to send would only delay them. Where it can't be set, they
    // are slower, and right.
    let _ = stream.set_nodelay(true);
    let (seat, figures) = (Arc::clone(&seated.seat), Arc::clone(&seated.seats.figures));
    let service = service_fn(move |request| {
        let seat = Arc::clone(&seat);
        let answer = seat.begin().map(|()| respond(request, peer)).map_err(|end| Refusal::of(end, &figures));
        async move {
            let answer = match answer {
                Ok(answer) => answer.await,
                Err(refusal) => refusal.response(),
            };
            Ok::<_, Infallible>(answer.map(|body| Answering::new(body, seat)))
        }
    });
    // No timer of hyper's: it would be made anew for each request. The sweeps see who is slow.
    hyper::server::conn::http1::Builder::new()
        .max_headers(limits.headers.saturating_mul(2))
        .max_buf_size(limits.head.saturating_mul(2).max(8 << 10))
        .serve_connection(TokioIo::new(Wire::new(stream, seated)), service)
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
