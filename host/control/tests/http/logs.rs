//! What is logged, and what never is.

use super::*;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};

/// Everything that this process logs, at its most talkative.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        log
    })
}

#[tokio::test]
async fn requests_are_logged_by_their_id_and_tokens_never() {
    let log = log();
    let (_root, running) = serving().await;
    let machine = running.issue("m1");
    let tokens = [running.token("admin"), running.token("member"), running.token("query"), machine];
    let mut ids = Vec::new();
    for token in &tokens {
        for reply in [
            post(&running, token, "/v1/resources/register", record("i1")).await,
            post(&running, token, "/v1/leases/pod-worker", json!({"key": key()})).await,
            ask(running.address, "GET", "/v1/replays/none").with(token).with(token).send().await,
        ] {
            ids.push(reply.header("x-request-id").unwrap().to_owned());
        }
    }
    std::fs::write(running.root.join("control/machine-tokens.json"), "{").unwrap();
    let refused = ask(running.address, "GET", "/v1/resources").with("secret-of-a-stranger").send().await;
    assert_eq!(refused.status, 503);
    ids.push(refused.header("x-request-id").unwrap().to_owned());
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for id in &ids {
        assert!(text.contains(id.as_str()), "the request {id} is in the log");
    }
    for token in tokens.iter().map(String::as_str).chain(["secret-of-a-stranger"]) {
        assert!(!text.contains(token), "a token is in the log");
    }
    assert!(!text.to_lowercase().contains("bearer "), "an authorization header is in the log");
    assert!(text.contains("machine-tokens.json"), "what is wrong with a file is told where only the operator reads");
}
