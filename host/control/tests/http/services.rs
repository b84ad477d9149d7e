//! Replays, standing workers and policies.

use super::*;
use std::time::Duration;
use tokio::io::AsyncReadExt;

fn lines(reply: &Reply) -> Vec<Value> {
    let text = std::str::from_utf8(&reply.body).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_replay_answers_when_it_ends() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let body = json!({"files": ["a.sh", "b.sh"], "cutSha": "c", "runId": "r", "keep": true});
    let reply = post(&running, &member, "/v1/replays", body).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    assert_eq!(reply.header("x-warmhold-policy"), Some(support::services::TAG));
    let replay = reply.json();
    assert_eq!((&replay["runId"], &replay["attemptId"], &replay["passed"]), (&json!("r"), &json!("1"), &json!(true)));
    assert_eq!(replay["files"][1]["file"], json!("b.sh"));
    let id = replay["id"].as_str().unwrap();
    let shown = ask(running.address, "GET", &format!("/v1/replays/{id}")).with(&running.token("query")).send().await;
    assert_eq!(shown.json(), replay);
    let list = ask(running.address, "GET", "/v1/replays?limit=1").with(&running.token("query")).send().await;
    assert_eq!(list.json(), json!([replay]));
    for bad in ["0", "x", "1001", "-1", ""] {
        let reply = ask(running.address, "GET", &format!("/v1/replays?limit={bad}")).with(&member).send().await;
        assert_eq!(reply.refusal(), (400, "invalid-query".into()));
    }
    assert_eq!(ask(running.address, "GET", "/v1/replays/none").with(&member).send().await.status, 404);
}

#[tokio::test]
async fn a_replay_can_be_watched() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let watch = async |profile: &str| {
        let watched = ask(running.address, "POST", "/v1/replays")
            .with(&member)
            .header("accept", "application/json;q=0.1, Application/X-NDJSON")
            .json(&json!({"files": ["a.sh", "b.sh"], "cutSha": "c", "profile": profile}))
            .send();
        // Only so that a reader that waits for ever fails the test instead of hanging it.
        tokio::time::timeout(Duration::from_secs(60), watched).await.unwrap()
    };
    let reply = watch("local").await;
    assert_eq!((reply.header("content-type"), reply.whole), (Some("application/x-ndjson"), true));
    let lines_seen = lines(&reply);
    let events: Vec<&str> = lines_seen.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["state", "output", "file", "output", "file", "result"]);
    assert_eq!(lines_seen[1]["text"], json!("a.sh says hello\n"));
    assert_eq!(lines_seen[5]["replay"]["state"], json!("observed"));
    // Refused before it began: an ordinary answer. Failed after: the last line says so.
    let refused = watch("unknown").await;
    assert_eq!(refused.refusal(), (400, "unknown-profile".into()));
    assert_eq!(refused.json()["known"], json!(["local"]));
    let failed = lines(&watch("broken").await);
    let last = failed.last().unwrap();
    assert_eq!((&last["event"], &last["error"]), (&json!("error"), &json!("internal")));
    assert!(last["requestId"].is_string());
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let closed = std::sync::Arc::clone(&running.replays.gate).write_owned().await;
    for accept in ["application/x-ndjson", "application/json"] {
        let request = ask(running.address, "POST", "/v1/replays")
            .with(&member)
            .header("accept", accept)
            .json(&json!({"files": ["a.sh"], "cutSha": "c"}));
        let mut stream = request.begin().await;
        tokio::io::AsyncWriteExt::write_all(&mut stream, br#"{"files":["a.sh"],"cutSha":"c"}"#).await.unwrap();
        if accept.ends_with("ndjson") {
            let mut some = [0_u8; 16];
            stream.read_exact(&mut some).await.unwrap();
        }
        let started = usize::from(accept == "application/json") + 1;
        while running.replays.replays.lock().len() < started {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(stream);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(closed);
    while running.replays.ended.lock().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn verdicts() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let start = async || {
        let replay = post(&running, &member, "/v1/replays", json!({"files": ["a"], "cutSha": "c", "keep": true})).await;
        replay.json()["id"].as_str().unwrap().to_owned()
    };
    let id = start().await;
    // A verdict needs no body.
    let path = format!("/v1/replays/{id}/finalize");
    assert_eq!(ask(running.address, "POST", &path).with(&member).send().await.json()["state"], json!("finalized"));
    for (body, reason) in [
        (json!({}), "mismatch".to_owned()),
        (json!({"reason": "  "}), "mismatch".to_owned()),
        (json!({"reason": "ü".repeat(200)}), "ü".repeat(120)),
    ] {
        let path = format!("/v1/replays/{}/quarantine", start().await);
        let settled = post(&running, &member, &path, body).await.json();
        assert_eq!((&settled["state"], &settled["reason"]), (&json!("quarantined"), &json!(reason)));
    }
    let path = format!("/v1/replays/{id}/quarantine");
    assert_eq!(post(&running, &member, &path, json!({"why": 1})).await.refusal(), (400, "invalid-quarantine".into()));
    for token in [running.token("admin"), running.token("query"), running.issue("m1")] {
        assert_eq!(post(&running, &token, &path, json!({})).await.refusal(), (403, "forbidden".into()));
        let body = json!({"files": ["a"], "cutSha": "c"});
        assert_eq!(post(&running, &token, "/v1/replays", body).await.refusal(), (403, "forbidden".into()));
    }
    assert_eq!(post(&running, &member, "/v1/replays/none/finalize", json!({})).await.status, 404);
}

#[tokio::test]
async fn a_replay_that_is_asked_wrongly_is_told_what_is_wrong() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    for (body, named) in [
        (json!({}), "files"),
        (json!({"files": "a", "cutSha": "c"}), "sequence"),
        (json!({"files": ["a"]}), "cutSha"),
        (json!({"files": ["a"], "cutSha": "c", "deadlineMs": -1}), "-1"),
        (json!({"files": ["a"], "cutSha": "c", "cutsha": "c"}), "cutsha"),
        (json!({"files": [1], "cutSha": "c"}), "string"),
    ] {
        let reply = post(&running, &member, "/v1/replays", body.clone()).await;
        assert_eq!(reply.refusal(), (400, "invalid-replay".into()), "{body}");
        assert!(reply.json()["message"].as_str().unwrap().contains(named), "{}", reply.json());
    }
    assert!(running.replays.replays.lock().is_empty());
    // However large a deadline is, and however it is written, it is one.
    for deadline in ["0", "6e4", "1.0", "9007199254740993", "18446744073709551616", "1e300"] {
        let body = format!("{{\"files\":[],\"cutSha\":\"c\",\"deadlineMs\":{deadline}}}");
        let reply = ask(running.address, "POST", "/v1/replays").with(&member).raw(body).send().await;
        assert_eq!(reply.status, 200, "{deadline}");
    }
}

#[tokio::test]
async fn standing_workers() {
    let (_root, running) = serving().await;
    let admin = running.token("admin");
    let prepared = post(&running, &admin, "/v1/workers/prepare", json!({"count": 2, "cut": "HEAD"})).await;
    assert_eq!(
        prepared.json()[1],
        json!({"workerId": "w1", "pod": "warm-m1-lite-0", "podUid": "uid", "prepared": true})
    );
    let list = ask(running.address, "GET", "/v1/workers").with(&running.token("query")).send().await.json();
    assert_eq!(
        list[0],
        json!({"workerId": "w0", "machine": "m1", "tier": "lite", "slot": 0, "cutSha": "HEAD", "state": "idle",
            "generation": 0, "podUid": "uid", "ageMs": 0, "expired": false})
    );
    let out = post(&running, &admin, "/v1/workers/w0/quarantine", json!({"reason": "looks odd"})).await.json();
    assert_eq!((&out["state"], &out["reason"]), (&json!("quarantined"), &json!("looks odd")));
    assert_eq!(ask(running.address, "POST", "/v1/workers/w0/remove").with(&admin).send().await.status, 200);
    let gone = ask(running.address, "POST", "/v1/workers/w0/remove").with(&admin).send().await;
    assert_eq!(gone.refusal(), (404, "not-found".into()));
    assert!(gone.json()["help"].is_string());
    for path in ["/v1/workers/prepare", "/v1/workers/w1/remove", "/v1/workers/w1/quarantine"] {
        assert_eq!(
            post(&running, &running.token("member"), path, json!({})).await.refusal(),
            (403, "forbidden".into())
        );
    }
    assert_eq!(post(&running, &admin, "/v1/workers/-x/remove", json!({})).await.code(), "invalid-worker-id");
    assert_eq!(post(&running, &admin, "/v1/workers/prepare", json!({"coutn": 1})).await.code(), "invalid-prepare");
}

#[tokio::test]
async fn policies() {
    let (_root, running) = serving().await;
    let admin = running.token("admin");
    let list = ask(running.address, "GET", "/v1/policies").with(&running.token("query")).send().await.json();
    assert_eq!(
        list[0],
        json!({"slot": "lease", "name": "lease-policy", "version": "1", "digest": "0".repeat(64), "generation": 1,
            "state": "serving", "calls": 0, "faults": 0})
    );
    assert_eq!(
        post(&running, &admin, "/v1/policies/lease/rollback", json!({})).await.refusal(),
        (409, "nothing-to-roll-back".into())
    );
    let load = |slot: &str, bytes: Vec<u8>| {
        ask(running.address, "POST", &format!("/v1/policies/{slot}")).with(&admin).raw(bytes).send()
    };
    let mut component = b"\0asm".to_vec();
    component.resize(3 << 20, 7);
    assert_eq!(load("replay", component).await.json()["generation"], json!(2));
    assert_eq!(*running.policies.loaded.lock(), [(warmhold_control::api::PolicySlot::Replay, 3 << 20)]);
    for bytes in [b"hello".to_vec(), Vec::new()] {
        let refused = load("lease", bytes).await;
        assert_eq!(refused.refusal(), (422, "policy-not-wasm".into()));
        for field in ["expected", "found", "fix"] {
            assert!(refused.json()[field].is_string(), "{field}");
        }
    }
    assert_eq!(load("bogus", b"\0asm".to_vec()).await.refusal(), (404, "not-found".into()));
    let member = running.token("member");
    let reply = ask(running.address, "POST", "/v1/policies/lease").with(&member).raw("\0asm").send().await;
    assert_eq!(reply.refusal(), (403, "forbidden".into()));
}
