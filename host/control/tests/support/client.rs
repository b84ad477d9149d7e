//! Requests as they go over the wire, each on a connection of its own.

use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body came whole.
    pub whole: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The code of a refusal.
    pub fn code(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }

    /// Status and code, to compare with.
    pub fn refusal(&self) -> (u16, String) {
        (self.status, self.code())
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

pub fn ask(address: SocketAddr, method: &str, path: &str) -> Ask {
    Ask { address, method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: None }
}

impl Ask {
    pub fn with(mut self, token: &str) -> Self {
        self.headers.push(("authorization".to_owned(), format!("Bearer {token}")));
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn raw(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn json(self, body: &Value) -> Self {
        self.raw(body.to_string())
    }

    pub fn head(&self) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head
    }

    /// Connects and sends the head alone.
    pub async fn begin(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(self.head().as_bytes()).await.unwrap();
        stream
    }

    /// Sends the body on a connection that has the head, and reads the answer.
    pub async fn finish(&self, mut stream: TcpStream) -> Reply {
        // A server that has answered already may have closed.
        let _ = stream.write_all(self.body.as_deref().unwrap_or_default()).await;
        let reply = read(&mut stream).await;
        super::declared::check(&self.method, &self.path, &reply);
        reply
    }

    pub async fn send(self) -> Reply {
        let stream = self.begin().await;
        self.finish(stream).await
    }
}

/// Reads to the end of the connection.
pub async fn read(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let mut chunk = [0_u8; 8192];
    loop {
        match stream.read(&mut chunk).await {
            Ok(0) => break,
            // What came before a reset still counts; without any, the reset is what there is to tell.
            Err(error) => {
                assert!(!bytes.is_empty(), "no answer: {error}");
                break;
            }
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no head in {:?}", String::from_utf8_lossy(bytes));
    });
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let (body, whole) = if chunked { unchunk(rest) } else { (rest.to_vec(), true) };
    Reply { status, headers, body, whole }
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(line) = rest.windows(2).position(|window| window == b"\r\n") else { return (body, false) };
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return (body, true);
        }
        let start = line + 2;
        let Some(chunk) = rest.get(start..start + length) else { return (body, false) };
        body.extend_from_slice(chunk);
        rest = rest.get(start + length + 2..).unwrap_or_default();
    }
}
