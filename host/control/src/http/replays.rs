//! Replays: asking for one, watching it, and saying what became of it.

use super::answer::Answer;
use super::body::read_typed;
use super::exchange::Exchange;
use super::uri;
use super::workers::cut;
use super::{Control, undivided, within};
use crate::api::{ReplayAsk, ReplayEvent, ReplayRun, ReplayView, Settle};
use crate::error::{ApiError, Help};
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;

pub(super) const NDJSON: &str = "application/x-ndjson";
/// Replays in one list, when the client doesn't say.
const LIST: usize = 100;
/// Replays in one list, at most.
pub(super) const LONGEST_LIST: usize = 1000;

/// `POST /v1/replays`.
pub(super) async fn start(exchange: &mut Exchange) -> Result<Answer, ApiError> {
    let ask: ReplayAsk = read_typed(exchange, "invalid-replay").await?;
    let ReplayRun { id, events, result } = exchange.control.options.replays.start(exchange.caller()?, ask).await?;
    tracing::info!(request = %exchange.id, replay = %id, "a replay runs");
    if wants_events(&exchange.head.headers) {
        let lines = Lines { events: Some(events), result: Some(result), request: exchange.id.clone() };
        let stream = futures::stream::unfold(lines, |mut lines| async move {
            let line = lines.next().await?;
            Some((Ok::<Bytes, std::convert::Infallible>(line), lines))
        });
        return Ok(Answer::stream(Body::from_stream(stream), NDJSON));
    }
    // Nobody watches; the sender must not wait for a reader anyway.
    drop(events);
    answer(&ended(result.await)?)
}

/// A replay, and the policy that drove it.
fn answer(replay: &ReplayView) -> Result<Answer, ApiError> {
    let answer = Answer::json(replay)?;
    let policy = &replay.policies.replay;
    Ok(if policy.is_empty() { answer } else { answer.decided_by(policy.as_str().into()) })
}

fn ended(result: Result<Result<ReplayView, ApiError>, oneshot::error::RecvError>) -> Result<ReplayView, ApiError> {
    result.unwrap_or_else(|_| {
        Err(ApiError::unavailable("closing", "the daemon ends before the replay does")
            .with_help("ask again with the same run and attempt, or look with `replays show`"))
    })
}

fn wants_events(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .any(|range| range.trim().eq_ignore_ascii_case(NDJSON))
}

/// The lines of a replay that is watched: its events, then its result or its refusal.
struct Lines {
    events: Option<mpsc::Receiver<ReplayEvent>>,
    result: Option<oneshot::Receiver<Result<ReplayView, ApiError>>>,
    request: String,
}

/// The last line of a replay that came to its end.
#[derive(Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum LastLine {
    /// How it ended.
    Result {
        /// The whole of it.
        replay: Box<ReplayView>,
    },
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let result = self.result.as_mut()?;
            let Some(events) = &mut self.events else {
                let ended = ended(result.await);
                return self.last(ended);
            };
            tokio::select! {
                // In this order, so that everything that happened is told before how it ended.
                biased;
                event = events.recv() => match event {
                    Some(event) => return line(&event),
                    None => self.events = None,
                },
                ended_now = result => {
                    // What was sent before the end may still lie in the channel; nothing is sent after it.
                    let ended = ended(ended_now);
                    events.close();
                    return match events.recv().await {
                        Some(event) => {
                            let (sender, receiver) = oneshot::channel();
                            // The receiver is kept right here, so this can't fail.
                            let _ = sender.send(ended);
                            self.result = Some(receiver);
                            line(&event)
                        }
                        None => self.last(ended),
                    };
                }
            }
        }
    }

    fn last(&mut self, ended: Result<ReplayView, ApiError>) -> Option<Bytes> {
        self.result = None;
        match ended {
            Ok(replay) => line(&LastLine::Result { replay: Box::new(replay) }),
            Err(error) => {
                let mut refusal = error.to_json(&self.request, Help::Field);
                if let Value::Object(fields) = &mut refusal {
                    fields.insert("event".to_owned(), "error".into());
                }
                line(&refusal)
            }
        }
    }
}

fn line(value: &impl Serialize) -> Option<Bytes> {
    match serde_json::to_vec(value) {
        Ok(mut text) => {
            text.push(b'\n');
            Some(text.into())
        }
        Err(error) => {
            tracing::error!(%error, "an event can't be written as JSON");
            None
        }
    }
}

/// `GET /v1/replays?before&limit`.
pub(super) async fn list(exchange: &Exchange) -> Result<Answer, ApiError> {
    let limit = match uri::given(exchange.head.uri.query(), "limit") {
        None => LIST,
        Some(text) => text.parse().ok().filter(|limit| (1..=LONGEST_LIST).contains(limit)).ok_or_else(|| {
            ApiError::bad_request("invalid-query", format!("limit must be a number from 1 to {LONGEST_LIST}"))
        })?,
    };
    let before = exchange.parameter("before");
    let Control { options, .. } = &*exchange.control;
    Answer::json(&within(options.limits.read_time, options.replays.list(before.as_deref(), limit)).await?)
}

/// `GET /v1/replays/{id}`.
pub(super) async fn show(exchange: &Exchange, raw: &str) -> Result<Answer, ApiError> {
    let id = exchange.segment(raw, "invalid-id")?;
    let Control { options, .. } = &*exchange.control;
    match within(options.limits.read_time, options.replays.get(&id)).await? {
        Some(replay) => Answer::json(&replay),
        None => {
            Err(ApiError::not_found("there is no such replay").with_help("`replays list` shows those that there are"))
        }
    }
}

/// `POST /v1/replays/{id}/finalize`.
pub(super) async fn finalize(exchange: &Exchange, raw: &str) -> Result<Answer, ApiError> {
    settle(exchange, raw, Settle::Finalize).await
}

/// Why a replay's worker must not be used again.
#[derive(Default, Deserialize, ToSchema)]
#[schema(example = json!({"reason": "differs from the one-shot run"}))]
#[serde(deny_unknown_fields)]
pub(super) struct Mismatch {
    /// At most 120 characters of it are kept; `mismatch` when blank.
    #[serde(default)]
    reason: String,
}

/// `POST /v1/replays/{id}/quarantine`.
pub(super) async fn quarantine(exchange: &mut Exchange, raw: &str) -> Result<Answer, ApiError> {
    let Mismatch { reason } = read_typed(exchange, "invalid-quarantine").await?;
    settle(exchange, raw, Settle::Quarantine { reason: cut(&reason, "mismatch") }).await
}

async fn settle(exchange: &Exchange, raw: &str, verdict: Settle) -> Result<Answer, ApiError> {
    let id = exchange.segment(raw, "invalid-id")?;
    let replays = std::sync::Arc::clone(&exchange.control.options.replays);
    let caller = exchange.caller()?.clone();
    // A verdict is several steps, and a client that goes away must not stop between them.
    answer(&undivided("settle a replay", async move { replays.settle(&caller, &id, verdict).await }).await?)
}
