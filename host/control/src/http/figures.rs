//! What is counted and measured, for `/metrics`.
//!
//! Requests are counted on a path that many threads take at once: every metric of a route is looked up ahead, so that a
//! request costs a few atomic additions, without a lock, a map or a text. Labels are routes as the table writes them,
//! statuses and codes: none of them is a client's to choose, so their number is bounded.

use super::route::TABLE;
use http::StatusCode;
use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use warmhold_ledger::Observer;

/// Seconds of requests.
const REQUEST: &[f64] =
    &[0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// Seconds of decisions.
const DECISION: &[f64] =
    &[0.000_005, 0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.1, 1.0];
/// Seconds of waiting in the queue.
const QUEUE: &[f64] =
    &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0];
/// Seconds of commits.
const COMMIT: &[f64] = &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Changes of one commit.
const CHANGES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Statuses that are looked up ahead; the others are rare.
const STATUSES: [u16; 12] = [200, 204, 400, 401, 403, 404, 408, 409, 413, 431, 500, 503];

/// The place of what isn't in the table of routes.
pub(super) const NO_ROUTE: usize = TABLE.len();

/// Counters and histograms of one daemon; the ledger tells it how long its steps take.
pub struct Figures {
    pub(super) registry: Registry,
    /// By their place in the table; the last one is of what has no route.
    routes: Vec<OfRoute>,
    requests: IntCounterVec,
    refusals: IntCounterVec,
    /// Requests in hand now.
    pub(super) in_hand: IntGauge,
    /// What connections do.
    pub(crate) connections: Connections,
    queue: Histogram,
    decision: Histogram,
    commit: Histogram,
    changes: Histogram,
}

struct OfRoute {
    method: &'static str,
    path: String,
    seconds: Histogram,
    answers: [OnceLock<IntCounter>; STATUSES.len()],
    abandoned: IntCounter,
}

/// Connections, and why they ended where it wasn't their client who ended them.
pub(crate) struct Connections {
    /// Now.
    pub(crate) open: IntGauge,
    /// Since the start.
    pub(crate) accepted: IntCounter,
    /// Answered that there is no place.
    pub(crate) turned_away: IntCounter,
    /// Nothing came after an answer.
    pub(crate) idle: IntCounter,
    /// A head didn't come in time.
    pub(crate) slow: IntCounter,
    /// Another one needed the place.
    pub(crate) crowded: IntCounter,
    /// An answer wasn't taken in.
    pub(crate) stalled: IntCounter,
    /// The server stopped.
    pub(crate) stopping: IntCounter,
}

/// Metrics in the making.
struct Making(Registry);

#[allow(
    clippy::expect_used,
    reason = "names and labels are constants of this file, and every test of it makes them all"
)]
impl Making {
    fn keep<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        let metric = metric.expect("a valid name");
        self.0.register(Box::new(metric.clone())).expect("a name of its own");
        metric
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    fn histograms(&self, name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }
}

impl Figures {
    /// With everything at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let making = Making(Registry::new());
        let requests = making.counters(
            "warmhold_http_requests_total",
            "Requests that were answered, by route, method and status.",
            &["route", "method", "status"],
        );
        let refusals = making.counters(
            "warmhold_http_refusals_total",
            "Refusals by code; those of connections that never came to a request too.",
            &["code"],
        );
        let abandoned = making.counters(
            "warmhold_http_requests_abandoned_total",
            "Requests whose client went away before the answer was made.",
            &["route", "method"],
        );
        let seconds = making.histograms(
            "warmhold_http_request_seconds",
            "From a request's head to its answer's.",
            REQUEST,
            &["route", "method"],
        );
        let known = TABLE.iter().map(|entry| (entry.path(), known_method(&entry.method)));
        let routes = known
            .chain([("none".to_owned(), "any")])
            .map(|(path, method)| OfRoute {
                method,
                seconds: seconds.with_label_values(&[path.as_str(), method]),
                abandoned: abandoned.with_label_values(&[path.as_str(), method]),
                answers: Default::default(),
                path,
            })
            .collect();
        let in_hand = making.keep(IntGauge::new("warmhold_http_requests_in_hand", "Requests that are answered now."));
        let connections = connections(&making);
        let queue = making.histogram(
            "warmhold_ledger_queue_seconds",
            "How long a write waited for its turn, until the write lock was held and it was decided on.",
            QUEUE,
        );
        let decision =
            making.histogram("warmhold_ledger_decision_seconds", "How long the lease policy took over one.", DECISION);
        let commit =
            making.histogram("warmhold_ledger_commit_seconds", "How long a commit took, its sync in it.", COMMIT);
        let changes = making.histogram("warmhold_ledger_commit_changes", "How many changes a commit had.", CHANGES);
        let Making(registry) = making;
        Arc::new(Self { registry, routes, requests, refusals, in_hand, connections, queue, decision, commit, changes })
    }

    /// A request was answered.
    pub(super) fn answered(&self, route: usize, status: StatusCode, took: Duration) {
        let Some(of) = self.routes.get(route) else { return };
        let status = status.as_u16();
        let find = || self.requests.with_label_values(&[of.path.as_str(), of.method, status.to_string().as_str()]);
        match STATUSES.iter().position(|known| *known == status).and_then(|at| of.answers.get(at)) {
            Some(known) => known.get_or_init(find).inc(),
            None => find().inc(),
        }
        of.seconds.observe(took.as_secs_f64());
    }

    /// A request's client went away.
    pub(super) fn abandoned(&self, route: usize) {
        if let Some(of) = self.routes.get(route) {
            of.abandoned.inc();
        }
    }

    /// Something was refused.
    pub(crate) fn refused(&self, code: &str) {
        self.refusals.with_label_values(&[code]).inc();
    }
}

impl Observer for Figures {
    fn waited(&self, queue: Duration) {
        self.queue.observe(queue.as_secs_f64());
    }

    fn decided(&self, took: Duration) {
        self.decision.observe(took.as_secs_f64());
    }

    fn committed(&self, took: Duration, changes: u64) {
        self.commit.observe(took.as_secs_f64());
        // Exact for any number of changes that a commit can have.
        self.changes.observe(u32::try_from(changes).unwrap_or(u32::MAX).into());
    }
}

fn connections(making: &Making) -> Connections {
    let ended = making.counters(
        "warmhold_http_connections_ended_total",
        "Connections that the server ended while no request of theirs was in hand, and why.",
        &["why"],
    );
    let why = |why| ended.with_label_values(&[why]);
    Connections {
        open: making.keep(IntGauge::new("warmhold_http_connections", "Connections now.")),
        accepted: making.counter("warmhold_http_connections_accepted_total", "Connections that were let in."),
        turned_away: making.counter(
            "warmhold_http_connections_turned_away_total",
            "Connections that weren't let in, since a request was in hand on every other.",
        ),
        idle: why("idle"),
        slow: why("slow"),
        crowded: why("crowded"),
        stalled: why("stalled"),
        stopping: why("stopping"),
    }
}

/// The methods of the table, as texts that live as long as the program.
fn known_method(method: &http::Method) -> &'static str {
    match *method {
        http::Method::GET => "GET",
        http::Method::POST => "POST",
        http::Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_its_own_figures() {
        let figures = Figures::new();
        assert_eq!(figures.routes.len(), TABLE.len() + 1);
        for (place, of) in figures.routes.iter().enumerate() {
            assert_ne!(of.method, "other", "{}", of.path);
            for status in [200, 418] {
                figures.answered(place, StatusCode::from_u16(status).unwrap(), Duration::from_millis(1));
            }
        }
        figures.answered(usize::MAX, StatusCode::OK, Duration::ZERO);
        let counted: u64 = figures.routes.iter().map(|of| of.seconds.get_sample_count()).sum();
        assert_eq!(counted, 2 * figures.routes.len() as u64);
        let families = figures.registry.gather();
        let requests = families.iter().find(|family| family.name() == "warmhold_http_requests_total").unwrap();
        assert_eq!(requests.get_metric().len(), 2 * figures.routes.len(), "no two routes share one");
    }
}
