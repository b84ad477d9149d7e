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

/// Sends a request and reads the whole answer, whatever its status.
pub(crate) fn request(url: &str, method: &str, token: Option<&str>, body: Option<Vec<u8>>) -> Result<Answer> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(std::time::Duration::from_secs(300)))
        .build()
        .into();
    let mut request = ureq::http::Request::builder().method(method).uri(url).header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut answer = agent.run(request.body(body.unwrap_or_default())?).with_context(|| format!("{method} {url}"))?;
    let headers = answer
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let status = answer.status().as_u16();
    let text = answer.body_mut().with_config().limit(256 << 20).read_to_string()?;
    Ok(Answer { status, headers, json: serde_json::from_str(&text).unwrap_or(Value::Null), text })
}
