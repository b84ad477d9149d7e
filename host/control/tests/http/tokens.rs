//! Tokens over the wire.

use super::*;
use warmhold_control::{MachineName, MachineTokens};

#[tokio::test]
async fn more_than_one_authorization_is_none() {
    let (_root, running) = serving().await;
    let query = running.token("query");
    let once = ask(running.address, "GET", "/v1/resources").with(&query);
    assert_eq!(once.clone().send().await.status, 200);
    assert_eq!(once.clone().with(&query).send().await.refusal(), (401, "unauthorized".into()));
    assert_eq!(once.header("Authorization", "Basic eDp5").send().await.status, 401);
    for value in ["", "Bearer", &query, &format!("Basic {query}"), &format!("Bearer {query} x")] {
        let reply = ask(running.address, "GET", "/v1/resources").header("authorization", value).send().await;
        assert_eq!(reply.status, 401, "{value:?}");
    }
}

#[tokio::test]
async fn a_re_issued_token_ends_the_old_one_at_once_and_keeps_what_it_owned() {
    let (_root, running) = serving().await;
    let old = running.issue("m1");
    assert_eq!(post(&running, &old, "/v1/resources/register", record("i1")).await.status, 200);
    let new = running.issue("m1");
    assert_eq!(ask(running.address, "GET", "/v1/resources").with(&old).send().await.status, 401);
    assert_eq!(post(&running, &new, "/v1/resources/i1/heartbeat", json!({})).await.status, 200);
    MachineTokens::of(&running.root).revoke(&MachineName::parse("m1").unwrap()).unwrap();
    assert_eq!(ask(running.address, "GET", "/v1/resources").with(&new).send().await.status, 401);
}

#[tokio::test]
async fn a_restart_keeps_tokens_and_rows() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let running = Running::start(&root, Setup { document: Document::Own, ..Setup::default() }).await;
    let (member, machine) = (running.token("member"), running.issue("m1"));
    assert_eq!(post(&running, &member, "/v1/resources/register", record("i1")).await.status, 200);
    assert_eq!(idle_worker(&running, &machine, "w1").await.status, 200);
    let lease = acquire(&running).await.json();
    running.stop().await;
    let running = Running::start(&root, Setup { document: Document::Own, ..Setup::default() }).await;
    assert_eq!(running.token("member"), member);
    assert_eq!(post(&running, &member, "/v1/resources/i1/heartbeat", json!({})).await.status, 200);
    let fence = json!({"leaseId": lease["attrs"]["leaseId"], "generation": 1});
    assert_eq!(post(&running, &member, "/v1/leases/pod-worker/w1/release", fence.clone()).await.status, 200);
    assert_eq!(post(&running, &machine, "/v1/leases/pod-worker/w1/sanitize", fence).await.status, 200);
    running.stop().await;
}

#[tokio::test]
async fn machines_are_told_apart_from_strangers_even_when_nobody_can_be() {
    let (_root, running) = serving().await;
    let machine = running.issue("m1");
    std::fs::write(running.root.join("control/machine-tokens.json"), "{").unwrap();
    let reply = ask(running.address, "GET", "/v1/resources").with(&machine).send().await;
    assert_eq!(reply.refusal(), (503, "tokens-unreadable".into()));
    assert!(!String::from_utf8_lossy(&reply.body).contains("machine-tokens.json"), "paths are for the log");
    let query = running.token("query");
    assert_eq!(ask(running.address, "GET", "/v1/resources").with(&query).send().await.status, 200);
}
