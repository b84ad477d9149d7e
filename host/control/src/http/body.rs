//! Bodies: bounded in bytes and in time, then JSON as the original reads it.

use super::exchange::Exchange;
use crate::error::ApiError;
use axum::body::Body;
use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmhold_ledger::json::{self, Duplicates};

/// Up to so many bytes a body counts for nothing: as many connections as there may be have room for one each.
const SMALL: usize = 64 << 10;
/// So many times its bytes a JSON body may take when it is read: `[0,0,…]` does, in values of their own.
const UNFOLDED: usize = 8;
/// The unit in which room is counted, bytes.
const UNIT: usize = 1 << 10;

/// So many connections at the same time wait for the rest of a body that nobody wants. Anyone may send half of one, so
/// those beyond are closed: places are for requests.
const LEFT: usize = 64;

/// Room for large bodies: so many bytes, all of them together.
pub(super) struct Room {
    free: Arc<Semaphore>,
    /// Turns at taking in what nobody wants.
    left: Semaphore,
    /// All of it, in units.
    all: u32,
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let all = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4);
        Self { free: Arc::new(Semaphore::new(all as usize)), left: Semaphore::new(LEFT), all }
    }

    /// Waits until there is room for a body of at most so many bytes; None where it needs none.
    async fn take(
        &self,
        bytes: usize,
        unfolded: usize,
        time: Duration,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if bytes <= SMALL {
            return Ok(None);
        }
        // One that is larger than the whole room has it for itself.
        let units = u32::try_from(bytes.saturating_mul(unfolded).div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.all);
        match tokio::time::timeout(time, Arc::clone(&self.free).acquire_many_owned(units)).await {
            // Never closed, so that can't fail.
            Ok(taken) => Ok(taken.ok()),
            Err(_) => {
                Err(ApiError::unavailable("too-many-bodies", "too many large bodies are on their way: try again later")
                    .with_retry_after(1))
            }
        }
    }
}

/// How many times the limit is taken in of a body that is too large.
const DISCARDED: usize = 4;
/// How long a client may pause while such a body is taken in.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads a JSON body.
pub(super) async fn read_json(exchange: &mut Exchange) -> Result<Value, ApiError> {
    let limits = exchange.control.options.limits;
    let bytes = read(exchange, limits.body, UNFOLDED, limits.body_time).await?;
    parse(&bytes)
}

/// Reads a JSON body that must be an object; `code` is the route's own for one that isn't.
pub(super) async fn read_object(exchange: &mut Exchange, code: &'static str) -> Result<Map<String, Value>, ApiError> {
    match read_json(exchange).await? {
        Value::Object(fields) => Ok(fields),
        _ => Err(ApiError::bad_request(code, "the body must be a JSON object")),
    }
}

/// Reads a JSON body into a type of this crate's own routes; no body is an empty object.
pub(super) async fn read_typed<T: DeserializeOwned>(
    exchange: &mut Exchange,
    code: &'static str,
) -> Result<T, ApiError> {
    let limits = exchange.control.options.limits;
    let bytes = read(exchange, limits.body, UNFOLDED, limits.body_time).await?;
    let value = if bytes.is_empty() { Value::Object(Map::new()) } else { parse(&bytes)? };
    if !value.is_object() {
        return Err(ApiError::bad_request(code, "the body must be a JSON object"));
    }
    serde_json::from_value(value).map_err(|error| ApiError::bad_request(code, error.to_string()))
}

/// Reads a policy.
pub(super) async fn read_component(exchange: &mut Exchange) -> Result<Bytes, ApiError> {
    let limits = exchange.control.options.limits;
    read(exchange, limits.policy, 1, limits.body_time * 4).await
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    // Readers of the original skip a byte order mark.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    json::parse(text, Duplicates::LastWins).map_err(|error| ApiError::bad_request("invalid-json", error.to_string()))
}

async fn read(exchange: &mut Exchange, limit: usize, unfolded: usize, time: Duration) -> Result<Bytes, ApiError> {
    let too_large =
        || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", format!("a body here has at most {limit} bytes"));
    let announced = exchange.head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|length| length.parse::<u64>().ok());
    let Some(mut body) = exchange.body.get_mut().take() else { return Ok(Bytes::new()) };
    if announced.is_some_and(|length| length > limit as u64) {
        let _ = tokio::time::timeout(time, discard(&mut body, limit.saturating_mul(DISCARDED))).await;
        return Err(too_large());
    }
    let expected = announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(limit);
    // A body without a length has none where there is nothing to come: the usual case of a request without one.
    if !http_body::Body::is_end_stream(&body) {
        exchange.room = exchange.control.bodies.take(expected, unfolded, time).await?;
    }
    let collected = tokio::time::timeout(time, Limited::new(&mut body, limit).collect()).await.map_err(|_| {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-timeout",
            format!("the body didn't arrive within {} s", time.as_secs()),
        )
    })?;
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let _ = tokio::time::timeout(time, discard(&mut body, limit.saturating_mul(DISCARDED))).await;
            Err(too_large())
        }
        Err(_) => Err(ApiError::bad_request("incomplete-body", "the body ended before it was whole")),
    }
}

/// Takes in the body of a request that was answered without it. A client that sends head and body apart has its answer
/// before it has sent everything; closing the connection then would fail its next request on it, if not this one.
pub(super) async fn leave(exchange: &mut Exchange) {
    let Some(mut body) = exchange.body.get_mut().take() else { return };
    // Who asks whether to send it is answered by the refusal itself; to read on would be to ask for it.
    if http_body::Body::is_end_stream(&body) || exchange.head.headers.contains_key(header::EXPECT) {
        return;
    }
    if let Ok(_turn) = exchange.control.bodies.left.try_acquire() {
        let _ = tokio::time::timeout(PAUSE, discard(&mut body, SMALL)).await;
    }
}

/// Takes in what a client sends beyond the limit, up to so many bytes and as long as it keeps coming. Many clients look
/// for an answer only when they have sent everything, and would find a broken connection instead.
async fn discard(body: &mut Body, mut bytes: usize) {
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(PAUSE, body.frame()).await {
        bytes = bytes.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if bytes == 0 {
            return;
        }
    }
}
