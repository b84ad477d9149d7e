//! One request over HTTP.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as JSON; null when it is none.
    pub json: Value,
    /// The body as text.
    pub text: String,
}

impl Answer {
    /// A header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The error code of a refusal, empty without one.
    #[must_use]
    pub fn error(&self) -> &str {
        self.json.get("error").and_then(Value::as_str).unwrap_or_default()
    }
}

/// A client that keeps its connection.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

impl Client {
    /// For a daemon, with a token.
    #[must_use]
    pub fn new(url: &str, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::anonymous(url) }
    }

    /// For a daemon, without a token.
    #[must_use]
    pub fn anonymous(url: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(std::time::Duration::from_secs(300)))
            .build()
            .into();
        Self { agent, url: url.to_owned(), token: None }
    }

    /// Sends JSON and reads the whole answer, whatever its status.
    ///
    /// # Errors
    /// There is no answer.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>, headers: &[(&str, &str)]) -> Result<Answer> {
        self.send(method, path, body.map(|body| body.to_string().into_bytes()).unwrap_or_default(), headers)
    }

    /// Sends bytes and reads the whole answer, whatever its status.
    ///
    /// # Errors
    /// There is no answer.
    pub fn send(&self, method: &str, path: &str, body: Vec<u8>, headers: &[(&str, &str)]) -> Result<Answer> {
        let uri = format!("{}{path}", self.url);
        let mut request = ureq::http::Request::builder().method(method).uri(&uri);
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut answer = self.agent.run(request.body(body)?).with_context(|| format!("{method} {uri}"))?;
        let headers = answer
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(256 << 20).read_to_string()?;
        Ok(Answer { status, headers, json: serde_json::from_str(&text).unwrap_or(Value::Null), text })
    }
}
