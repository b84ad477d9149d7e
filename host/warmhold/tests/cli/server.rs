//! A small HTTP server that answers what a test tells it to, and remembers what it was asked.

use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// The one character that the token is made of.
    pub(crate) fn token(&self) -> char {
        let bearer = self.headers["authorization"].strip_prefix("Bearer ").expect("a bearer");
        assert_eq!(bearer.len(), 64);
        bearer.chars().next().expect("a token")
    }
}

/// What is answered.
pub(crate) enum Answer {
    /// A status and a JSON body.
    Json(u16, Value),
    /// Events, one a line; the stream then ends cleanly.
    Events(Vec<Value>),
    /// Events, and then the connection breaks in the middle of the stream.
    Broken(Vec<Value>),
    /// A status and bytes of no kind in particular.
    Raw(u16, &'static str),
}

/// Serves until the process ends; `/healthz` always answers.
pub(crate) struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || serve(&stream, &seen, &*answer));
            }
        });
        Self { port, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything that was asked but `/healthz`.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }

    /// The only question.
    #[track_caller]
    pub(crate) fn only(&self) -> Asked {
        let asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked[0].clone()
    }
}

fn serve(stream: &TcpStream, seen: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Answer) {
    let mut reader = BufReader::new(stream);
    let Some(asked) = read(&mut reader) else { return };
    let mut out = stream;
    if asked.path == "/healthz" {
        assert!(!asked.headers.contains_key("authorization"), "no token is shown before the daemon is known");
        let _ = out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        return;
    }
    seen.lock().expect("not poisoned").push(asked.clone());
    let whole = |status: u16, kind: &str, body: &str| {
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = { stream }.write_all(head.as_bytes()).and_then(|()| { stream }.write_all(body.as_bytes()));
    };
    let events = |events: &[Value]| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
        let _ = { stream }.write_all(head.as_bytes());
        for event in events {
            let line = format!("{event}\n");
            let _ = write!({ stream }, "{:x}\r\n{line}\r\n", line.len());
        }
    };
    match answer(&asked) {
        Answer::Json(status, body) => whole(status, "application/json", &body.to_string()),
        Answer::Raw(status, body) => whole(status, "text/plain", body),
        Answer::Events(list) => {
            events(&list);
            let _ = out.write_all(b"0\r\n\r\n");
        }
        Answer::Broken(list) => events(&list),
    }
}

fn read(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut parts = line.split_whitespace();
    let (method, path) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, headers, body })
}
