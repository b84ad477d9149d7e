//! Asks the daemon, over HTTP.

pub mod locate;
pub mod view;

pub use locate::{DaemonFile, Endpoint, Role, daemon_file, default_root, locate, tokens_file};

use crate::error::CliError;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

/// The longest answer that is read, and the longest line of a stream: far above any honest one.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// How long an ordinary question may take.
pub const ASK: Duration = Duration::from_secs(60);

/// A connection to one daemon with one credential.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    endpoint: Endpoint,
}

/// A line-by-line answer.
pub struct Lines {
    reader: BufReader<Box<dyn Read>>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

/// An answer that may come in pieces.
#[derive(Debug)]
pub enum Streamed {
    /// Events, one JSON object a line.
    Events(Lines),
    /// The whole answer at once.
    Whole(Value),
}

impl Client {
    /// A client for this endpoint. Nothing is sent yet.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let config = ureq::Agent::config_builder()
            // Statuses are answers here, with a body that says why.
            .http_status_as_error(false)
            // A proxy would see the credential, and loopback needs none.
            .proxy(None)
            // A redirect could carry the credential elsewhere.
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(5)))
            .user_agent(concat!("warmhold/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.into(), endpoint }
    }

    /// Whether something that is alive answers there.
    ///
    /// # Errors
    /// Nothing does: exit 3.
    pub fn check_alive(&self) -> Result<(), CliError> {
        let url = format!("{}/healthz", self.endpoint.url);
        let request = self.agent.get(&url).config().timeout_global(Some(Duration::from_secs(5))).build();
        match request.call() {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(self.endpoint.unreachable(&format!("it answers {} to /healthz", answer.status()))),
            Err(error) => Err(self.endpoint.unreachable(&error.to_string())),
        }
    }

    /// GET.
    ///
    /// # Errors
    /// The daemon's refusal, or no daemon.
    pub fn get(&self, path: &str) -> Result<Value, CliError> {
        let request = self.agent.get(self.url(path)).header("authorization", self.bearer());
        let answer = request.config().timeout_global(Some(ASK)).build().call();
        self.whole(answer)
    }

    /// POST with a JSON body.
    ///
    /// # Errors
    /// The daemon's refusal, or no daemon.
    pub fn post(&self, path: &str, body: &Value, limit: Duration) -> Result<Value, CliError> {
        let answer = self.send(path, "application/json", "application/json", body.to_string().as_bytes(), limit);
        self.whole(answer)
    }

    /// POST with a body of bytes.
    ///
    /// # Errors
    /// The daemon's refusal, or no daemon.
    pub fn post_bytes(&self, path: &str, body: &[u8], limit: Duration) -> Result<Value, CliError> {
        let answer = self.send(path, "application/wasm", "application/json", body, limit);
        self.whole(answer)
    }

    /// POST that answers in events where the daemon can.
    ///
    /// # Errors
    /// The daemon's refusal, or no daemon.
    pub fn stream(&self, path: &str, body: &Value, limit: Duration) -> Result<Streamed, CliError> {
        let answer = self
            .send(path, "application/json", "application/x-ndjson", body.to_string().as_bytes(), limit)
            .map_err(|error| self.broken(&error))?;
        let events = answer.status().is_success()
            && answer
                .headers()
                .get("content-type")
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-ndjson"));
        if events {
            return Ok(Streamed::Events(Lines { reader: BufReader::new(Box::new(answer.into_body().into_reader())) }));
        }
        self.whole(Ok(answer)).map(Streamed::Whole)
    }

    fn send(
        &self,
        path: &str,
        kind: &str,
        accept: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<http::Response<ureq::Body>, ureq::Error> {
        self.agent
            .post(self.url(path))
            .header("authorization", self.bearer())
            .header("content-type", kind)
            .header("accept", accept)
            .config()
            .timeout_global(Some(limit))
            .build()
            .send(body)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint.url)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.endpoint.token)
    }

    fn whole(&self, answer: Result<http::Response<ureq::Body>, ureq::Error>) -> Result<Value, CliError> {
        let mut answer = answer.map_err(|error| self.broken(&error))?;
        let status = answer.status();
        let text = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_string()
            .map_err(|error| self.broken(&error))?;
        let body = serde_json::from_str::<Value>(&text);
        if !status.is_success() {
            return Err(refusal(status.as_u16(), body.as_ref().ok()));
        }
        body.map_err(|error| {
            CliError::unreachable("bad-answer", format!("{} answered what is no JSON: {error}", self.endpoint.url))
                .with_help("is this the address of a warmhold daemon?")
        })
    }

    fn broken(&self, error: &ureq::Error) -> CliError {
        match error {
            ureq::Error::Timeout(_) => {
                CliError::unreachable("timed-out", format!("{} did not answer in time: {error}", self.endpoint.url))
                    .with_help("its log tells what it is waiting for; what was asked for may still happen")
            }
            other => self.endpoint.unreachable(&other.to_string()),
        }
    }
}

impl Lines {
    /// The next event; none at a clean end.
    ///
    /// # Errors
    /// The connection broke, or what came is no event.
    pub fn next_event(&mut self) -> Result<Option<Value>, String> {
        loop {
            let mut line = Vec::new();
            let read = self.reader.by_ref().take(MAX_ANSWER_BYTES).read_until(b'\n', &mut line);
            match read.map_err(|error| error.to_string())? {
                0 => return Ok(None),
                _ if line.trim_ascii().is_empty() => {}
                _ => return serde_json::from_slice(&line).map(Some).map_err(|error| format!("no event: {error}")),
            }
        }
    }
}

/// The daemon's own words, as an error of ours.
pub(crate) fn refusal(status: u16, body: Option<&Value>) -> CliError {
    let text = |name: &str| body.and_then(|body| body.get(name)).and_then(Value::as_str).map(crate::term::harmless);
    let code = text("error").unwrap_or_else(|| format!("http-{status}"));
    let mut message = text("message").unwrap_or_else(|| format!("the daemon answered {status}"));
    if let Some(id) = text("requestId") {
        message.push_str(&format!(" (request {id})"));
    }
    for name in ["expected", "found"] {
        let value = body.and_then(|body| body.get(name));
        if let Some(value) = value {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            message.push_str(&format!("\n  {name}: {}", crate::term::harmless(&shown)));
        }
    }
    let help = text("fix").or_else(|| text("help")).or_else(|| match status {
        401 => Some("the token isn't one of this daemon's; `--root` names the root that holds its tokens".to_owned()),
        403 => Some("this needs another token: see `warmhold COMMAND --help`".to_owned()),
        _ => None,
    });
    // A wrong request or credential is the caller's to mend; everything else is the daemon's answer.
    let error = match status {
        400 | 401 | 403 | 413 | 415 => CliError::usage(&code, message),
        _ => CliError::no(&code, message),
    };
    CliError { help, ..error }
}

/// A part of a path, with all that could end or extend it escaped.
#[must_use]
pub fn segment(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    // A client must not resolve these as folders.
    match escaped.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => escaped,
    }
}
