//! What goes back.

use crate::error::{ApiError, Help};
use axum::body::Body;
use http::StatusCode;
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;

const JSON: &str = "application/json";

/// An answer without the headers that every answer has.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Body,
    pub(super) content_type: Option<&'static str>,
    /// The policy that decided.
    pub(super) policy: Option<Arc<str>>,
    pub(super) retry_after: Option<u32>,
    /// What the content is known by, where a client may keep it and ask whether it is still the same.
    pub(super) etag: Option<&'static str>,
    /// The code of a refusal, for the log.
    pub(super) code: Option<Cow<'static, str>>,
}

impl Answer {
    fn with(status: StatusCode, body: Body, content_type: Option<&'static str>) -> Self {
        Self { status, body, content_type, policy: None, retry_after: None, etag: None, code: None }
    }

    /// 200 with JSON text.
    pub(super) fn json_text(text: String) -> Self {
        Self::with(StatusCode::OK, Body::from(text), Some(JSON))
    }

    /// 200 with a value as JSON.
    pub(super) fn json(value: &impl Serialize) -> Result<Self, ApiError> {
        serde_json::to_string(value).map(Self::json_text).map_err(|error| {
            tracing::error!(%error, "an answer can't be written as JSON");
            ApiError::internal()
        })
    }

    /// 200 with plain text.
    pub(super) fn text(text: &'static str) -> Self {
        Self::with(StatusCode::OK, Body::from(text), Some("text/plain; charset=utf-8"))
    }

    /// 200 with figures in Prometheus' text format.
    pub(super) fn metrics(text: String) -> Self {
        Self::with(StatusCode::OK, Body::from(text), Some("text/plain; version=0.0.4; charset=utf-8"))
    }

    /// 200 with a body that comes in pieces.
    pub(super) fn stream(body: Body, content_type: &'static str) -> Self {
        Self::with(StatusCode::OK, body, Some(content_type))
    }

    /// 200 with JSON that comes in pieces.
    pub(super) fn json_stream(body: Body) -> Self {
        Self::stream(body, JSON)
    }

    /// 200 with JSON that stays the same as long as the daemon lives.
    pub(super) fn constant_json(text: &'static [u8], etag: &'static str) -> Self {
        let mut answer = Self::with(StatusCode::OK, Body::from(text), Some(JSON));
        answer.etag = Some(etag);
        answer
    }

    /// 304: the client has it.
    pub(super) fn unchanged(etag: &'static str) -> Self {
        let mut answer = Self::with(StatusCode::NOT_MODIFIED, Body::empty(), None);
        answer.etag = Some(etag);
        answer
    }

    /// 204.
    pub(super) fn nothing() -> Self {
        Self::with(StatusCode::NO_CONTENT, Body::empty(), None)
    }

    /// What a refusal looks like.
    pub(super) fn refusal(error: &ApiError, id: &str, help: Help) -> Self {
        let text = error.to_json(id, help).to_string();
        let mut answer = Self::with(error.status, Body::from(text), Some(JSON));
        answer.policy = error.policy.clone();
        answer.retry_after = error.retry_after;
        answer.code = Some(error.code.clone());
        answer
    }

    /// With the policy that decided.
    pub(super) fn decided_by(mut self, policy: Arc<str>) -> Self {
        self.policy = Some(policy);
        self
    }
}
