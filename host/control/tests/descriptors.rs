//! A server to which the system gives no more file descriptors. In a process of its own, since the limit is a process's.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends at once where something isn't as it must be; the lint's own exception knows test functions only"
)]

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use support::client::ask;
use support::{Running, Setup};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_file_descriptors_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&folder.path().join("root"), Setup::default()).await;
    assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200);
    // The clients' own descriptors are made before there are none left.
    let mut sockets: Vec<TcpSocket> = (0..40).map(|_| TcpSocket::new_v4().unwrap()).collect();
    let asking = TcpSocket::new_v4().unwrap();
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(open_files() + 10), maximum: before.maximum };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut slow = Vec::new();
    for socket in sockets.drain(..) {
        let mut stream = socket.connect(running.address).await.unwrap();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n").await;
        slow.push(stream);
    }
    // Nobody gives one back by himself, and yet this one is served.
    let mut stream = asking.connect(running.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert_eq!(support::client::read(&mut stream).await.status, 200);
    setrlimit(Resource::Nofile, before).unwrap();
    drop(slow);
    assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200);
    let stopped = tokio::time::timeout(Duration::from_secs(60), running.stop()).await;
    assert_eq!(stopped.unwrap(), 0);
}
