//! From a request to an answer.
//!
//! [`Control::respond`] is the whole of it: one request goes through the checks of `checks`, in their fixed order, then
//! to the module of its route. Nothing here decides about rows; it asks the ledger, and the ledger asks the policy.

mod answer;
mod body;
mod checks;
mod describe;
mod exchange;
mod fields;
mod figures;
mod ledger;
mod metrics;
mod policies;
mod ports;
mod ready;
mod replays;
mod resources;
mod route;
mod rows;
mod uri;
mod values;
mod workers;

use crate::api::{Policies, Replays, Workers};
use crate::error::ApiError;
use crate::primary::PrimarySource;
use crate::tokens::Tokens;
use answer::Answer;
use axum::body::Body;
pub use describe::description;
use exchange::Exchange;
pub use figures::Figures;
use http::{Request, Response};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use warmhold_ledger::Ledger;

/// What one request may take.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Bytes of a JSON body.
    pub body: usize,
    /// Bytes of a policy.
    pub policy: usize,
    /// Bytes of all large bodies that are in memory at the same time, JSON counted as what it takes when it is read. The
    /// next one waits for its turn.
    pub bodies: usize,
    /// For a JSON body to arrive; a policy has four times as long.
    pub body_time: Duration,
    /// For a write to wait for the ledger, counted from the request's head.
    pub write_time: Duration,
    /// For a question to be answered; replays, preparations and policies have ends of their own.
    pub read_time: Duration,
    /// Bytes that must be free on the ledger's disk, or the daemon says that it isn't ready.
    pub free_space: u64,
}

impl Default for RequestLimits {
    /// 1 MiB, 64 MiB for policies, 256 MiB together, 15 s each, 32 MiB free.
    fn default() -> Self {
        Self {
            body: 1 << 20,
            policy: 64 << 20,
            bodies: 256 << 20,
            body_time: Duration::from_secs(15),
            write_time: Duration::from_secs(15),
            read_time: Duration::from_secs(15),
            free_space: 32 << 20,
        }
    }
}

/// What the routes are made of.
pub struct ControlOptions {
    /// Rows.
    pub ledger: Ledger,
    /// Callers.
    pub tokens: Tokens,
    /// Who may write; the ledger has the same.
    pub primary: Arc<PrimarySource>,
    /// Refuse every write while the primary is unknown, not only those of workers.
    pub require_primary: bool,
    /// Replays.
    pub replays: Arc<dyn Replays>,
    /// Standing workers.
    pub workers: Arc<dyn Workers>,
    /// Policies.
    pub policies: Arc<dyn Policies>,
    /// See [`RequestLimits`].
    pub limits: RequestLimits,
}

/// The control plane, for any number of requests at once.
pub struct Control {
    options: ControlOptions,
    figures: Arc<Figures>,
    /// The ledger as requests read it.
    reads: ledger::Reads,
    /// Room for large bodies.
    bodies: body::Room,
    /// When a ledger that failed was tried last.
    tried: ready::Tried,
    stopping: AtomicBool,
}

impl Control {
    /// With these parts, and figures of its own.
    #[must_use]
    pub fn new(options: ControlOptions) -> Arc<Self> {
        Self::with_figures(options, Figures::new())
    }

    /// With figures that the ledger tells about its steps too.
    #[must_use]
    pub fn with_figures(options: ControlOptions, figures: Arc<Figures>) -> Arc<Self> {
        let reads = ledger::Reads::new(options.ledger.clone(), options.limits.read_time);
        let bodies = body::Room::new(options.limits.bodies);
        Arc::new(Self {
            options,
            figures,
            reads,
            bodies,
            tried: ready::Tried::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// From now on no change is begun: it would be cut off by the end that is near. Questions are still answered, and
    /// what is in hand goes on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// What is counted here.
    pub(crate) fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Answers one request; never fails, never panics on what a client sends.
    ///
    /// When the returned future is dropped before it ends, a write that the ledger has taken is still made whole.
    pub async fn respond<B>(self: &Arc<Self>, request: Request<B>, peer: IpAddr) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let mut exchange = Exchange::new(Arc::clone(self), head, Body::new(body), peer, started);
        let answer = match checks::pass(&mut exchange).await {
            Ok(route) => dispatch(&mut exchange, route).await,
            Err(refused) => Err(refused),
        };
        let answer = answer.unwrap_or_else(|error| Answer::refusal(&error, &exchange.id, exchange.help));
        body::leave(&mut exchange).await;
        exchange.finish(answer)
    }

    /// Turns one request away before any check.
    pub(crate) fn refuse<B>(self: &Arc<Self>, request: Request<B>, peer: IpAddr, error: &ApiError) -> Response<Body> {
        let (head, _) = request.into_parts();
        let exchange = Exchange::new(Arc::clone(self), head, Body::empty(), peer, Instant::now());
        let answer = Answer::refusal(error, &exchange.id, exchange.help);
        exchange.finish(answer)
    }
}

/// Has something done in a task of its own: whole, whether the client waits for it or not.
async fn undivided<T: Send + 'static>(
    what: &'static str,
    task: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(task).await.unwrap_or_else(|error| {
        tracing::error!(%error, what, "a task broke off");
        Err(ApiError::internal())
    })
}

/// Waits for an answer that changes nothing, but not for ever.
async fn within<T>(time: Duration, answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::time::timeout(time, answer).await.unwrap_or_else(|_| {
        Err(ApiError::unavailable("timed-out", format!("there was no answer within {} s", time.as_secs_f32()))
            .with_help("nothing was changed; look at the machine's disk and load, then ask again")
            .with_retry_after(1))
    })
}

async fn dispatch(exchange: &mut Exchange, route: route::Route) -> Result<Answer, ApiError> {
    use route::Route;
    match route {
        Route::Description => describe::show(exchange),
        Route::Primary => checks::primary(exchange),
        Route::Alive => Ok(Answer::text("ok\n")),
        Route::Ready => ready::show(exchange).await,
        Route::Metrics => metrics::show(exchange).await,
        Route::Resources => resources::list(exchange).await,
        Route::Register => resources::register(exchange).await,
        Route::Heartbeat(id) => resources::heartbeat(exchange, &id).await,
        Route::Remove(id) => resources::remove(exchange, &id).await,
        Route::LeasePort => ports::lease(exchange).await,
        Route::RenewPort(port) => ports::renew(exchange, &port).await,
        Route::ReleasePort(port) => ports::release(exchange, &port).await,
        Route::RegisterWorker => workers::register(exchange).await,
        Route::AcquireWorker => workers::acquire(exchange).await,
        Route::Transition(worker, kind) => workers::transition(exchange, &worker, kind).await,
        Route::PrepareWorkers => workers::prepare(exchange).await,
        Route::ListWorkers => workers::list(exchange).await,
        Route::RemoveWorker(worker) => workers::remove(exchange, &worker).await,
        Route::QuarantineWorker(worker) => workers::quarantine(exchange, &worker).await,
        Route::StartReplay => replays::start(exchange).await,
        Route::ListReplays => replays::list(exchange).await,
        Route::ShowReplay(id) => replays::show(exchange, &id).await,
        Route::FinalizeReplay(id) => replays::finalize(exchange, &id).await,
        Route::QuarantineReplay(id) => replays::quarantine(exchange, &id).await,
        Route::ListPolicies => policies::list(exchange).await,
        Route::LoadPolicy(slot) => policies::load(exchange, slot).await,
        Route::RollBackPolicy(slot) => policies::roll_back(exchange, slot).await,
    }
}
