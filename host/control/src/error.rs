//! What a client is told when the answer is no.
//!
//! The code is the contract: scripts match on it, and it never changes its meaning. Everything else is for people. What
//! only the operator may know goes to the log beside the same request id, never into an [`ApiError`].

use http::StatusCode;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;
use utoipa::ToSchema;

/// A typed refusal, on its way to a client as `{"error": CODE, "message", "help"?, "requestId", …extra}`; see [`Help`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code.
    pub code: Cow<'static, str>,
    /// What happened, for a person.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Further fields of the answer. They never replace the four named ones.
    pub extra: Option<Box<Map<String, Value>>>,
    /// For `retry-after`, in seconds.
    pub retry_after: Option<u32>,
    /// The policy that decided so, for `x-warmhold-policy`.
    pub policy: Option<Arc<str>>,
}

/// What [`ApiError::to_json`] writes: every refusal is one. Match on `error`; everything else is for people.
#[derive(ToSchema)]
#[schema(as = Refusal, rename_all = "camelCase")]
#[allow(dead_code, reason = "a refusal is written field by field; this type says which there are")]
pub(crate) struct RefusalBody {
    /// The stable code.
    error: String,
    /// What happened.
    message: String,
    /// What to do about it, where it isn't the end of `message`.
    #[schema(nullable = false)]
    help: Option<String>,
    /// As in `x-request-id`, and in the daemon's log.
    request_id: String,
    /// `not-primary`: the primary, where it is known.
    holder: Option<String>,
    /// `not-primary`: its generation, where it is known.
    generation: Option<u64>,
    /// A component that is refused: what it should have been.
    #[schema(nullable = false)]
    expected: Option<String>,
    /// A component that is refused: what it is.
    #[schema(nullable = false)]
    found: Option<String>,
    /// A component that is refused: how to mend it.
    #[schema(nullable = false)]
    fix: Option<String>,
    /// `another-daemon`: the one that holds it.
    #[schema(nullable = false)]
    instance: Option<String>,
}

/// Where an answer says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// At the end of `message`.
    InMessage,
    /// In `help`.
    Field,
}

impl ApiError {
    /// A refusal with nothing but status, code and message.
    pub fn new(status: StatusCode, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            help: None,
            extra: None,
            retry_after: None,
            policy: None,
        }
    }

    /// 400: the request itself is wrong.
    pub fn bad_request(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 401 `unauthorized`: no token that is known, or more than one.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "show one valid token: authorization: Bearer TOKEN")
    }

    /// 403: not with this token.
    pub fn forbidden(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    /// 404 `not-found`.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", message)
    }

    /// 409: not as things stand.
    pub fn conflict(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 503: not now.
    pub fn unavailable(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// 500 `internal`. The cause belongs in the log: the client only learns that there was one.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the daemon failed; its log has the cause")
    }

    /// With what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// With one more field in the answer.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.get_or_insert_default().insert(field.into(), value.into());
        self
    }

    /// With a time after which it is worth trying again.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// With the policy that decided so.
    #[must_use]
    pub fn with_policy(mut self, policy: impl Into<Arc<str>>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// The answer's body. On the routes that clients of the original know, an answer has no fields that those don't
    /// expect: there the help is a part of the message.
    #[must_use]
    pub fn to_json(&self, request_id: &str, help: Help) -> Value {
        let mut body = Map::new();
        body.insert("error".into(), self.code.clone().into_owned().into());
        match (&self.help, help) {
            (Some(text), Help::InMessage) => {
                body.insert("message".into(), format!("{}; {text}", self.message).into());
            }
            (Some(text), Help::Field) => {
                body.insert("message".into(), self.message.clone().into());
                body.insert("help".into(), text.clone().into());
            }
            (None, _) => {
                body.insert("message".into(), self.message.clone().into());
            }
        }
        body.insert("requestId".into(), request_id.into());
        for (field, value) in self.extra.iter().flat_map(|extra| extra.iter()) {
            body.entry(field.clone()).or_insert_with(|| value.clone());
        }
        Value::Object(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn further_fields_never_hide_the_code() {
        let error = ApiError::conflict("not-primary", "another machine writes")
            .with("holder", "m2")
            .with("error", "forged")
            .with("requestId", "forged")
            .with_help("ask m2");
        assert_eq!(
            error.to_json("id", Help::Field),
            json!({"error": "not-primary", "message": "another machine writes", "help": "ask m2",
                "requestId": "id", "holder": "m2"})
        );
        assert_eq!(
            error.to_json("id", Help::InMessage),
            json!({"error": "not-primary", "message": "another machine writes; ask m2", "requestId": "id",
                "holder": "m2"})
        );
    }
}
