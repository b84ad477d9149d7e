//! The primary moves in every gap between the checks, and nothing is written by who isn't it any more.

use super::*;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use warmhold_ledger::{Primary, PrimaryView};

fn write(path: &Path, holder: &str, generation: u64) {
    let temporary = path.with_extension("tmp");
    let text = format!(r#"{{"holder":"{holder}","generation":{generation},"state":"held","renewedAt":1}}"#);
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

/// How many worker rows there are, and in which states.
async fn workers(running: &Running) -> Vec<String> {
    let query = running.token("query");
    let list = ask(running.address, "GET", "/v1/resources?kind=pod-worker-lease").with(&query).send().await.json();
    let rows = list["resources"].as_array().unwrap().clone();
    rows.iter().map(|row| row["attrs"]["state"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn it_moves_while_the_body_is_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("lease.json");
    write(&document, "m1", 7);
    let (_root, running) = with(Setup { document: Document::File(document.clone()), ..Setup::default() }).await;
    let machine = running.issue("m1");
    let body = json!({"workerId": "w1", "machine": "m1", "key": key(), "ttlMs": 60_000});
    for (holder, generation) in [("m2", 8), ("m1", 9)] {
        write(&document, "m1", 7);
        let request =
            ask(running.address, "POST", "/v1/workers/pod").with(&machine).header("expect", "100-continue").json(&body);
        let mut waiting = request.begin().await;
        // The body is asked for once the head has passed its checks.
        let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
        let mut interim = vec![0; go_on.len()];
        waiting.read_exact(&mut interim).await.unwrap();
        assert_eq!(interim, go_on);
        write(&document, holder, generation);
        let reply = request.finish(waiting).await;
        assert_eq!(reply.refusal(), (409, "not-primary".into()));
        assert_eq!(reply.json()["generation"], json!(generation));
        assert_eq!(reply.json()["holder"], json!(holder));
        assert_eq!(reply.header("x-primary-generation"), Some(generation.to_string().as_str()), "the fresh read's");
    }
    assert!(workers(&running).await.is_empty());
    // Now that it stands still, the key is judged, and last of all.
    let bad = json!({"workerId": "w1", "machine": "m1", "key": [], "ttlMs": 60_000});
    assert_eq!(post(&running, &machine, "/v1/workers/pod", bad).await.code(), "invalid-worker-key");
}

/// A fence that says what a test wants, in place of the document.
struct Scripted {
    view: Mutex<PrimaryView>,
    unchanged: Mutex<bool>,
}

impl Primary for Scripted {
    fn read(&self) -> Option<PrimaryView> {
        Some(self.view.lock().clone())
    }

    fn unchanged(&self) -> bool {
        *self.unchanged.lock()
    }
}

fn held(holder: &str, generation: u64) -> PrimaryView {
    PrimaryView { holder: Some(holder.into()), generation: Some(generation), held_here: holder == "m1", known: true }
}

#[tokio::test]
async fn it_moves_after_the_last_look_of_the_route() {
    let fence = Arc::new(Scripted { view: Mutex::new(held("m1", 1)), unchanged: Mutex::new(true) });
    let setup = Setup { document: Document::Own, fence: Some(Arc::clone(&fence) as _), ..Setup::default() };
    let (_root, running) = with(setup).await;
    let machine = running.issue("m1");
    let lost = PrimaryView { holder: None, generation: None, held_here: false, known: false };
    for (view, header) in [(held("m2", 2), Some("2")), (held("m1", 2), Some("2")), (lost, None)] {
        *fence.view.lock() = view;
        let reply = idle_worker(&running, &machine, "w1").await;
        assert_eq!(reply.refusal(), (409, "not-primary".into()));
        assert_eq!(reply.header("x-primary-generation"), header);
        assert!(reply.json().get("holder").is_none() && reply.json().get("generation").is_none());
        // Other kinds of rows aren't looked at again.
        assert_eq!(post(&running, &machine, "/v1/resources/register", record("i1")).await.status, 200);
    }
    *fence.view.lock() = held("m1", 1);
    *fence.unchanged.lock() = false;
    assert_eq!(idle_worker(&running, &machine, "w1").await.refusal(), (409, "not-primary".into()));
    assert!(workers(&running).await.is_empty());
    *fence.unchanged.lock() = true;
    assert_eq!(idle_worker(&running, &machine, "w1").await.status, 200);
    assert_eq!(workers(&running).await, ["idle"]);
}

#[tokio::test]
async fn without_a_document_only_workers_are_refused() {
    let (_root, running) = with(Setup::default()).await;
    let machine = running.issue("m1");
    assert_eq!(idle_worker(&running, &machine, "w1").await.refusal(), (409, "primary-unmeasured".into()));
    assert_eq!(acquire(&running).await.refusal(), (409, "primary-unmeasured".into()));
    let reply = post(&running, &machine, "/v1/resources/register", record("i1")).await;
    assert_eq!((reply.status, reply.header("x-primary-generation")), (200, None));
    let primary = ask(running.address, "GET", "/v1/primary").send().await;
    assert_eq!(primary.json(), json!({"holder": null, "generation": null, "known": false}));
}

#[tokio::test]
async fn what_cannot_be_measured_writes_no_worker_and_when_required_nothing() {
    for required in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("lease.json");
        let setup = Setup { document: Document::File(document.clone()), require_primary: required, ..Setup::default() };
        let (_root, running) = with(setup).await;
        let machine = running.issue("m1");
        for text in ["", "{}", r#"{"holder":"m1","generation":1,"state":"held","renewedAt":1,"expiresAt":1}"#] {
            std::fs::write(&document, text).unwrap();
            let worker = idle_worker(&running, &machine, "w1").await;
            assert_eq!(worker.refusal(), (409, "not-primary".into()), "{text}");
            assert_eq!((&worker.json()["holder"], &worker.json()["generation"]), (&Value::Null, &Value::Null));
            let row = post(&running, &machine, "/v1/resources/register", record("i1")).await;
            assert_eq!(row.status, if required { 409 } else { 200 }, "{text}");
        }
        // A very old stamp of another machine's clock expires nothing.
        write(&document, "m1", 3);
        assert_eq!(idle_worker(&running, &machine, "w1").await.status, 200);
    }
}

#[tokio::test]
async fn policies_and_verdicts_go_on_without_the_primary() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("lease.json");
    write(&document, "m1", 1);
    let (_root, running) = with(Setup { document: Document::File(document.clone()), ..Setup::default() }).await;
    let (admin, member) = (running.token("admin"), running.token("member"));
    let body = json!({"files": ["a.sh"], "cutSha": "c"});
    let replay = post(&running, &member, "/v1/replays", body.clone()).await.json();
    write(&document, "m2", 2);
    assert_eq!(post(&running, &member, "/v1/replays", body).await.code(), "not-primary");
    assert_eq!(post(&running, &admin, "/v1/workers/prepare", json!({})).await.code(), "not-primary");
    let settle = format!("/v1/replays/{}/finalize", replay["id"].as_str().unwrap());
    assert_eq!(post(&running, &member, &settle, json!({})).await.status, 200);
    let load = ask(running.address, "POST", "/v1/policies/lease").with(&admin).raw("\0asm");
    assert_eq!(load.send().await.status, 200);
    assert_eq!(post(&running, &admin, "/v1/policies/lease/rollback", json!({})).await.status, 200);
}
