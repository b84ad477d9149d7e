//! As little of HTTP/1.1 as a load generator needs: requests as bytes, and answers found in a buffer.

use anyhow::{Context as _, Result, ensure};
use memchr::memmem::Finder;

/// A request with a JSON body.
pub(super) fn post(out: &mut Vec<u8>, path: &str, token: &str, body: &str) {
    out.clear();
    out.extend_from_slice(b"POST ");
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer ");
    out.extend_from_slice(token.as_bytes());
    out.extend_from_slice(b"\r\ncontent-type: application/json\r\ncontent-length: ");
    out.extend_from_slice(body.len().to_string().as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body.as_bytes());
}

/// A request without a body.
pub(super) fn get(path: &str, token: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\r\n").into_bytes()
}

/// A whole answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
}

/// A worker's row, as far as a cycle needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worker<'a> {
    pub(super) id: &'a str,
    pub(super) state: &'a str,
    pub(super) generation: u64,
    /// Empty while it has none.
    pub(super) lease_id: &'a str,
}

/// Finds the parts of answers.
#[derive(Debug)]
pub(super) struct Scanner {
    end: Finder<'static>,
    length: Finder<'static>,
    id: Finder<'static>,
    state: Finder<'static>,
    generation: Finder<'static>,
    lease_id: Finder<'static>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            end: Finder::new(b"\r\n\r\n"),
            length: Finder::new(b"\r\ncontent-length: "),
            id: Finder::new(b"\"id\":\"pod-worker-lease:"),
            state: Finder::new(b"\"state\":\""),
            generation: Finder::new(b"\"generation\":"),
            lease_id: Finder::new(b"\"leaseId\":\""),
        }
    }
}

impl Scanner {
    /// The answer at the start of these bytes, once it is whole. It must come with a length.
    pub(super) fn answer<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>> {
        let Some(end) = self.end.find(bytes) else { return Ok(None) };
        let (head, rest) = bytes.split_at(end);
        let status = head.strip_prefix(b"HTTP/1.1 ").and_then(|head| number(head.get(..3)?));
        let status = status.with_context(|| format!("no status: {}", String::from_utf8_lossy(head)))?;
        let length = after(&self.length, head).and_then(number);
        let length = length.with_context(|| format!("no length: {}", String::from_utf8_lossy(head)))?;
        let body = rest.get(4..).and_then(|rest| rest.get(..usize::try_from(length).ok()?));
        Ok(match body {
            Some(body) => Some(Answer { status: u16::try_from(status)?, body }),
            None => None,
        })
    }

    /// The worker in the body of an answer of 200.
    pub(super) fn worker<'a>(&self, answer: &Answer<'a>) -> Result<Worker<'a>> {
        let shown = || format!("{} {}", answer.status, String::from_utf8_lossy(answer.body));
        ensure!(answer.status == 200, "{}", shown());
        let text = |finder: &Finder<'_>| after(finder, answer.body).and_then(until_quote);
        Ok(Worker {
            id: text(&self.id).with_context(shown)?,
            state: text(&self.state).with_context(shown)?,
            generation: after(&self.generation, answer.body).and_then(number).with_context(shown)?,
            lease_id: text(&self.lease_id).unwrap_or_default(),
        })
    }
}

fn after<'a>(finder: &Finder<'_>, bytes: &'a [u8]) -> Option<&'a [u8]> {
    bytes.get(finder.find(bytes)? + finder.needle().len()..)
}

/// What is read here has no escapes: ids and names of states.
fn until_quote(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.get(..memchr::memchr(b'"', bytes)?)?).ok()
}

/// The digits at the start.
fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(bytes.get(..digits)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"id":"pod-worker-lease:w-1","kind":"pod-worker-lease","attrs":{"key":{"context":"c"},"state":"leased","generation":12,"leaseId":"l-1"},"observedAt":1}"#;

    fn reply(body: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    }

    #[test]
    fn an_answer_is_there_when_it_is_whole() {
        let (scanner, bytes) = (Scanner::default(), reply(ROW));
        for cut in 0..bytes.len() {
            assert!(scanner.answer(&bytes[..cut]).unwrap().is_none(), "{cut} bytes");
        }
        let answer = scanner.answer(&bytes).unwrap().unwrap();
        assert_eq!((answer.status, answer.body), (200, ROW.as_bytes()));
    }

    #[test]
    fn a_worker_is_read_from_its_row() {
        let scanner = Scanner::default();
        let worker = scanner.worker(&Answer { status: 200, body: ROW.as_bytes() }).unwrap();
        assert_eq!(worker, Worker { id: "w-1", state: "leased", generation: 12, lease_id: "l-1" });
        let refused = scanner.worker(&Answer { status: 409, body: br#"{"error":"no-warm-worker"}"# });
        assert!(refused.unwrap_err().to_string().contains("no-warm-worker"));
        assert!(scanner.worker(&Answer { status: 200, body: b"{}" }).is_err());
    }

    #[test]
    fn an_answer_without_length_or_status_is_a_fault() {
        let scanner = Scanner::default();
        assert!(scanner.answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(scanner.answer(b"SSH-2.0\r\n\r\n").is_err());
    }
}
