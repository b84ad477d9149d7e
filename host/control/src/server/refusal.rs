//! Answers to who never got as far as a request: written by hand, since there is no request to answer.

use super::seats::End;
use crate::error::{ApiError, Help};
use crate::http::Figures;
use crate::request_id;
use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a client that is turned away may take over it, all in all.
const LINGER: Duration = Duration::from_secs(2);
/// How much of what it sends is taken in.
const TAKEN_IN: u64 = 256 << 10;

/// Why a connection is ended, for who has it.
pub(super) struct Refusal {
    error: ApiError,
    id: String,
}

impl Refusal {
    /// To who has sent a part of a head, or was done with it at the very moment when the connection was ended.
    pub(super) fn of(end: End, figures: &Figures) -> Self {
        let error = match end {
            End::Slow | End::Idle | End::Stalled => ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                "request-timeout",
                "the request's head didn't arrive in time; nothing was done",
            ),
            End::Crowded => ApiError::unavailable(
                "too-many-connections",
                "this connection was the longest without a request, and its place was needed; nothing was done",
            )
            .with_retry_after(1),
            End::Stopping => {
                ApiError::unavailable("closing", "the daemon is ending; nothing was done").with_retry_after(1)
            }
        };
        Self::new(error, figures)
    }

    /// Every place is taken by a request.
    pub(super) fn full(figures: &Figures) -> Self {
        let error =
            ApiError::unavailable("too-many-connections", "a request is in hand on each connection; nothing was done");
        Self::new(error.with_retry_after(1), figures)
    }

    fn new(error: ApiError, figures: &Figures) -> Self {
        figures.refused(&error.code);
        let refusal = Self { error, id: request_id::next().to_string() };
        let Self { error, id } = &refusal;
        tracing::debug!(request = %id, status = error.status.as_u16(), code = %error.code, "a connection was ended");
        refusal
    }

    /// As it goes over the wire.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let response = self.head();
        let mut text = format!("HTTP/1.1 {}\r\n", response.status());
        for (name, value) in response.headers() {
            text.push_str(name.as_str());
            text.push_str(": ");
            text.push_str(value.to_str().unwrap_or_default());
            text.push_str("\r\n");
        }
        let body = self.body();
        text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
        text.into_bytes()
    }

    /// As hyper takes it.
    pub(super) fn response(&self) -> Response<Body> {
        self.head().map(|()| Body::from(self.body()))
    }

    fn body(&self) -> String {
        self.error.to_json(&self.id, Help::InMessage).to_string()
    }

    fn head(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = self.error.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            headers.insert("x-request-id", id);
        }
        if let Some(seconds) = self.error.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Tells a client that there is no place for it. What it sends is taken in for a moment: closing over unread bytes resets
/// the connection, and the client may lose the answer with it.
pub(super) async fn turn_away(mut stream: TcpStream, figures: &Figures) {
    let told = async {
        let mut first = [0_u8; 4096];
        // Not before it has asked: an answer that comes first confuses some.
        if stream.read(&mut first).await? == 0 {
            return Ok(());
        }
        stream.write_all(&Refusal::full(figures).bytes()).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(TAKEN_IN), &mut tokio::io::sink()).await.map(|_| ())
    };
    // A client that doesn't listen isn't told.
    let _: Result<std::io::Result<()>, _> = tokio::time::timeout(LINGER, told).await;
}
