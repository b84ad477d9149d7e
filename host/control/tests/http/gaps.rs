//! The document moves while a write waits for the ledger, and while it is being decided: the looks after the route's
//! own ones, at the real document.

use super::limits::{Closed, Slow, until};
use super::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use warmhold_control::MachineName;
use warmhold_control::primary::Change;

/// Each way in which the document can move from under m1, which held it.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// To another machine.
    Away,
    /// Away and back again: the same holder, two generations later.
    Back,
    /// Something that nobody understands.
    Unmeasured,
    /// Nothing is left.
    Absent,
}

impl Move {
    const ALL: [Self; 4] = [Self::Away, Self::Back, Self::Unmeasured, Self::Absent];

    fn make(self, document: &Path) {
        let m1 = MachineName::parse("m1").unwrap();
        match self {
            Self::Away => drop(Change::HandOff { to: "m2" }.make(document, &m1).unwrap()),
            Self::Back => {
                Change::HandOff { to: "m2" }.make(document, &m1).unwrap();
                Change::Revert.make(document, &m1).unwrap();
            }
            Self::Unmeasured => std::fs::write(document, "{").unwrap(),
            Self::Absent => std::fs::remove_file(document).unwrap(),
        }
    }

    /// What the look under the lock shows, for the header.
    fn generation(self) -> Option<&'static str> {
        match self {
            Self::Away => Some("2"),
            Self::Back => Some("3"),
            Self::Unmeasured | Self::Absent => None,
        }
    }
}

/// A server whose ledger stands still at the first decision, with an idle worker `w0` in it already.
async fn standing() -> (tempfile::TempDir, Running, Arc<Slow>, Closed) {
    let root = tempfile::tempdir().unwrap();
    let before = Running::start(root.path(), Setup { document: Document::Own, ..Setup::default() }).await;
    let machine = before.issue("m1");
    assert_eq!(idle_worker(&before, &machine, "w0").await.status, 200);
    before.stop().await;
    let (slow, closed) = Closed::new().await;
    let setup = Setup { document: Document::Own, decider: Some(Arc::clone(&slow) as _), ..Setup::default() };
    let running = Running::start(root.path(), setup).await;
    (root, running, slow, closed)
}

fn acquiring(running: &Running) -> Ask {
    let body = json!({"key": key(), "runId": "r", "attemptId": "1", "ttlMs": 60_000});
    ask(running.address, "POST", "/v1/leases/pod-worker").with(&running.token("member")).json(&body)
}

fn plain(running: &Running, id: &str) -> Ask {
    ask(running.address, "POST", "/v1/resources/register").with(&running.token("member")).json(&record(id))
}

async fn rows(running: &Running) -> Vec<String> {
    let list = ask(running.address, "GET", "/v1/resources").with(&running.token("query")).send().await.json();
    let rows = list["resources"].as_array().unwrap().clone();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows.iter().map(|row| format!("{} {}", word(&row["id"]), word(&row["attrs"]["state"]))).collect()
}

fn turned_away(reply: &Reply, moved: Move) {
    assert_eq!(reply.refusal(), (409, "not-primary".into()), "{moved:?}");
    let told = reply.json();
    assert!(told.get("holder").is_none() && told.get("generation").is_none(), "{moved:?}: {told}");
    assert_eq!(reply.header("x-primary-generation"), moved.generation(), "{moved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_moves_while_a_worker_write_waits_for_the_ledger() {
    for moved in Move::ALL {
        let (_root, running, slow, closed) = standing().await;
        let first = tokio::spawn(plain(&running, "i1").send());
        until(|| slow.entered.load(Ordering::SeqCst) == 1).await;
        let waiting = tokio::spawn(acquiring(&running).send());
        // It has looked twice by now, and both times this machine was the primary.
        until(|| running.ledger.stats().waiting == 1).await;
        moved.make(&running.root.join("control/primary.json"));
        closed.open();
        turned_away(&waiting.await.unwrap(), moved);
        assert_eq!(first.await.unwrap().status, 200, "a row of another kind doesn't rest on the primary");
        assert_eq!(slow.entered.load(Ordering::SeqCst), 1, "no policy was asked for it");
        assert_eq!(rows(&running).await, ["pod-worker-lease:w0 idle", "i1 "]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_moves_while_a_worker_write_is_decided() {
    for moved in Move::ALL {
        let (_root, running, slow, closed) = standing().await;
        let deciding = tokio::spawn(acquiring(&running).send());
        until(|| slow.entered.load(Ordering::SeqCst) == 1).await;
        let beside = tokio::spawn(plain(&running, "i1").send());
        until(|| running.ledger.stats().waiting == 1).await;
        moved.make(&running.root.join("control/primary.json"));
        closed.open();
        let reply = deciding.await.unwrap();
        assert_eq!(reply.refusal(), (409, "not-primary".into()), "{moved:?}");
        assert!(reply.json().get("holder").is_none() && reply.json().get("generation").is_none());
        // What was in the same group is decided again, and written without the other.
        assert_eq!(beside.await.unwrap().status, 200);
        assert_eq!(rows(&running).await, ["pod-worker-lease:w0 idle", "i1 "], "{moved:?}");
    }
}
