//! One request on its way, and what the answer's headers must say about it.

use super::Control;
use super::answer::Answer;
use super::figures::NO_ROUTE;
use super::uri;
use crate::error::{ApiError, Help};
use crate::request_id;
use axum::body::Body;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, header};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use warmhold_ledger::{Caller, PrimaryView};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PRIMARY_GENERATION: HeaderName = HeaderName::from_static("x-primary-generation");
const POLICY: HeaderName = HeaderName::from_static("x-warmhold-policy");

/// One request.
pub(super) struct Exchange {
    pub(super) control: Arc<Control>,
    pub(super) head: Parts,
    /// Until it is read. In a lock only since a body isn't `Sync`, and an exchange is lent across awaits.
    pub(super) body: Mutex<Option<Body>>,
    /// The room that a large body takes, until the answer is made.
    pub(super) room: Option<OwnedSemaphorePermit>,
    pub(super) peer: IpAddr,
    pub(super) started: Instant,
    /// In the answer and in the log.
    pub(super) id: String,
    /// The primary as it was read first; None where none is configured.
    pub(super) primary: Option<PrimaryView>,
    /// The primary as it was read last, for the header.
    pub(super) shown: Option<PrimaryView>,
    pub(super) caller: Option<Caller>,
    pub(super) route: Option<&'static str>,
    /// The route's place in the table.
    pub(super) place: usize,
    /// How a refusal looks on this route.
    pub(super) help: Help,
    answered: bool,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.control.figures.in_hand.dec();
        if !self.answered {
            self.control.figures.abandoned(self.place);
            tracing::debug!(request = %self.id, peer = %self.peer, route = self.route, "its client went away");
        }
    }
}

impl Exchange {
    pub(super) fn new(control: Arc<Control>, head: Parts, body: Body, peer: IpAddr, started: Instant) -> Self {
        control.figures.in_hand.inc();
        Self {
            control,
            head,
            body: Mutex::new(Some(body)),
            room: None,
            peer,
            started,
            id: request_id::next().to_string(),
            primary: None,
            shown: None,
            caller: None,
            route: None,
            place: NO_ROUTE,
            answered: false,
            help: Help::InMessage,
        }
    }

    /// Who asks.
    ///
    /// # Errors
    /// The route is open to everybody, so nobody was asked: a fault of this crate, answered as 401.
    pub(super) fn caller(&self) -> Result<&Caller, ApiError> {
        self.caller.as_ref().ok_or_else(ApiError::unauthorized)
    }

    /// A query parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        uri::parameter(self.head.uri.query(), name)
    }

    /// A decoded segment of the path.
    pub(super) fn segment(&self, raw: &str, code: &'static str) -> Result<String, ApiError> {
        uri::decode(raw).ok_or_else(|| ApiError::bad_request(code, "the id in the path isn't percent-encoded UTF-8"))
    }

    /// The response, with the headers that every one has.
    pub(super) fn finish(mut self, answer: Answer) -> Response<Body> {
        self.answered = true;
        self.log(&answer);
        let mut response = Response::new(answer.body);
        *response.status_mut() = answer.status;
        let headers = response.headers_mut();
        if let Some(kind) = answer.content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        // What has an ETag may be kept, and is asked for again each time; nothing else is true a moment later.
        let kept = if answer.etag.is_some() { "no-cache" } else { "no-store" };
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
        if let Some(etag) = answer.etag {
            headers.insert(header::ETAG, HeaderValue::from_static(etag));
        }
        let mut put = |name: HeaderName, value: &str| {
            // All of these are ASCII; one that weren't is better left out than answered as a fault.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        put(REQUEST_ID, &self.id);
        if let Some(generation) = self.shown.as_ref().filter(|view| view.known).and_then(|view| view.generation) {
            put(PRIMARY_GENERATION, &generation.to_string());
        }
        if let Some(policy) = &answer.policy {
            put(POLICY, policy);
        }
        if let Some(seconds) = answer.retry_after {
            put(header::RETRY_AFTER, &seconds.to_string());
        }
        if answer.status == http::StatusCode::UNAUTHORIZED {
            put(header::WWW_AUTHENTICATE, "Bearer");
        }
        response
    }

    /// One count and one line a request: no path, since a client chose it; no header; never a token.
    fn log(&self, answer: &Answer) {
        let took = self.started.elapsed();
        self.control.figures.answered(self.place, answer.status, took);
        if let Some(code) = &answer.code {
            self.control.figures.refused(code);
        }
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let status = answer.status.as_u16();
        let scope = self.caller.as_ref().map(|caller| caller.scope);
        let machine = self.caller.as_ref().and_then(|caller| caller.machine.as_deref());
        let (route, code) = (self.route.unwrap_or("unknown"), answer.code.as_deref().unwrap_or_default());
        if answer.status.is_server_error() {
            tracing::warn!(request = %self.id, peer = %self.peer, route, status, code, ?scope, machine, took, "answered");
        } else {
            tracing::debug!(request = %self.id, peer = %self.peer, route, status, code, ?scope, machine, took, "answered");
        }
    }
}
