//! Which check answers first, and what every answer carries.

use super::*;

#[tokio::test]
async fn the_first_failing_check_answers() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("lease.json");
    let elsewhere = r#"{"holder":"m2","generation":8,"state":"held","renewedAt":1}"#;
    std::fs::write(&document, elsewhere).unwrap();
    let (_root, running) = with(Setup { document: Document::File(document.clone()), ..Setup::default() }).await;
    let (admin, member, query) = (running.token("admin"), running.token("member"), running.token("query"));
    let machine = running.issue("m1");
    let post = |token: &str, path: &str, body: &str| {
        let request = ask(running.address, "POST", path).raw(body);
        let request = if token.is_empty() { request } else { request.with(token) };
        request.send()
    };
    let not_primary = (409, "not-primary".to_owned());
    // An unknown path or method, before any token.
    assert_eq!(post("", "/v1/nothing", "{").await.refusal(), (404, "not-found".into()));
    assert_eq!(ask(running.address, "PUT", "/v1/resources").send().await.refusal(), (404, "not-found".into()));
    // The token, before scope.
    assert_eq!(post("", "/v1/workers/pod", "{").await.refusal(), (401, "unauthorized".into()));
    assert_eq!(post("wrong", "/v1/workers/pod", "{").await.refusal(), (401, "unauthorized".into()));
    // The scope, before the primary.
    assert_eq!(post(&query, "/v1/resources/register", "{").await.refusal(), (403, "forbidden".into()));
    assert_eq!(post(&admin, "/v1/leases/pod-worker/-bad/renew", "{").await.refusal(), (403, "forbidden".into()));
    // The primary, before id, role and body.
    assert_eq!(post(&member, "/v1/leases/pod-worker/-bad/renew", "{").await.refusal(), not_primary);
    assert_eq!(post(&member, "/v1/workers/pod", "{").await.refusal(), not_primary);
    let refused = post(&machine, "/v1/resources/register", "{").await;
    assert_eq!((refused.json()["holder"].as_str(), refused.json()["generation"].as_u64()), (Some("m2"), Some(8)));
    // Reading needs no primary.
    assert_eq!(ask(running.address, "GET", "/v1/resources").with(&query).send().await.status, 200);
    std::fs::write(&document, elsewhere.replace("m2", "m1")).unwrap();
    // Id, before role; role, before body; body, before machine scope.
    let transition = |action: &str, id: &str| format!("/v1/leases/pod-worker/{id}/{action}");
    assert_eq!(post(&member, &transition("sanitize", "-bad"), "{").await.code(), "invalid-worker-id");
    assert_eq!(post(&member, &transition("sanitize", "%zz"), "{").await.code(), "invalid-worker-id");
    assert_eq!(post(&member, &transition("sanitize", "w1"), "{").await.code(), "worker-scope");
    assert_eq!(post(&machine, &transition("renew", "w1"), "{").await.code(), "worker-scope");
    assert_eq!(post(&machine, &transition("sanitize", "w1"), "{").await.code(), "invalid-json");
    assert_eq!(post(&member, "/v1/workers/pod", "{").await.code(), "worker-host-required");
    assert_eq!(post(&machine, "/v1/leases/pod-worker", "{").await.code(), "worker-consumer-required");
    let foreign = json!({"workerId": "w1", "machine": "m2", "key": null, "ttlMs": 1}).to_string();
    assert_eq!(post(&machine, "/v1/workers/pod", &foreign).await.code(), "machine-scope");
    let bad_key = json!({"workerId": "w1", "machine": "m1", "key": null, "ttlMs": 1}).to_string();
    assert_eq!(post(&machine, "/v1/workers/pod", &bad_key).await.refusal(), (400, "invalid-worker-key".into()));
}

#[tokio::test]
async fn every_answer_says_which_request_and_which_generation() {
    let (_root, running) = serving().await;
    let first = ask(running.address, "GET", "/v1/nothing").send().await;
    let second = ask(running.address, "GET", "/v1/nothing").send().await;
    for reply in [&first, &second] {
        assert_eq!(reply.header("x-request-id"), reply.json()["requestId"].as_str());
        assert_eq!(reply.header("x-primary-generation"), Some("1"));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert!(reply.json()["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
    assert_eq!(first.json().as_object().unwrap().len(), 3, "error, message and requestId alone");
    let anyone = ask(running.address, "GET", "/v1/primary").send().await;
    assert_eq!(anyone.json(), json!({"holder": "m1", "generation": 1, "known": true}));
    let unauthorized = ask(running.address, "GET", "/v1/resources").send().await;
    assert_eq!(unauthorized.header("www-authenticate"), Some("Bearer"));
}

#[tokio::test]
async fn what_a_policy_decided_names_it_and_nothing_else_does() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let written = post(&running, &member, "/v1/resources/register", record("i1")).await;
    assert_eq!(written.header("x-warmhold-policy"), Some(support::decider::TAG));
    let refused = post(&running, &running.token("admin"), "/v1/resources/i1/heartbeat", json!({})).await;
    assert_eq!(refused.refusal(), (403, "not-owner".into()));
    assert_eq!(refused.header("x-warmhold-policy"), Some(support::decider::TAG));
    let removed = ask(running.address, "DELETE", "/v1/resources/i1").with(&member).send().await;
    assert_eq!((removed.status, removed.body.len()), (204, 0));
    assert_eq!(removed.header("x-warmhold-policy"), Some(support::decider::TAG));
    for reply in [
        ask(running.address, "GET", "/v1/resources").with(&member).send().await,
        post(&running, &member, "/v1/resources/register", json!({})).await,
        post(&running, "wrong", "/v1/resources/register", record("i1")).await,
    ] {
        assert_eq!(reply.header("x-warmhold-policy"), None);
    }
}

#[tokio::test]
async fn health_needs_no_token_and_readiness_needs_policies() {
    let (_root, running) = serving().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(ask(running.address, "GET", path).send().await.status, 200, "{path}");
    }
    *running.policies.missing.lock() = Some(warmhold_control::api::PolicySlot::Replay);
    let unready = ask(running.address, "GET", "/readyz").send().await;
    assert_eq!(unready.refusal(), (503, "policy-missing".into()));
    assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200);
}

#[tokio::test]
async fn figures_count_what_was_answered() {
    let (_root, running) = serving().await;
    for _ in 0..3 {
        assert_eq!(ask(running.address, "GET", "/v1/resources").send().await.status, 401);
    }
    assert_eq!(ask(running.address, "GET", "/a/clients/own/path").send().await.status, 404);
    let member = running.token("member");
    assert_eq!(post(&running, &member, "/v1/resources/register", record("i1")).await.status, 200);
    let reply = ask(running.address, "GET", "/metrics").send().await;
    assert_eq!(reply.status, 200, "this machine needs no token");
    let text = String::from_utf8(reply.body).unwrap();
    for line in [
        r#"warmhold_http_requests_total{method="GET",route="/v1/resources",status="401"} 3"#,
        r#"warmhold_http_requests_total{method="POST",route="/v1/resources/register",status="200"} 1"#,
        r#"warmhold_http_requests_total{method="any",route="none",status="404"} 1"#,
        r#"warmhold_http_refusals_total{code="unauthorized"} 3"#,
        r#"warmhold_http_request_seconds_bucket{method="GET",route="/v1/resources",le="+Inf"} 3"#,
        r#"warmhold_http_request_seconds_count{method="POST",route="/v1/resources/register"} 1"#,
        "warmhold_ledger_queue_seconds_count 1",
        "warmhold_ledger_decision_seconds_count 1",
        r#"warmhold_ledger_commit_changes_bucket{le="1"} 1"#,
        "warmhold_ledger_commit_seconds_count 1",
        "warmhold_ledger_commits_total 1",
        "warmhold_ledger_writes_total 1",
        "warmhold_http_requests_in_hand 1",
        r#"warmhold_http_requests_abandoned_total{method="POST",route="/v1/resources/register"} 0"#,
        &format!(r#"warmhold_policy_calls_total{{policy="lease-policy@sha256:{}#1",slot="lease"}} 0"#, "0".repeat(64)),
        &format!(r#"warmhold_policy_serving{{policy="replay-policy@sha256:{}#1",slot="replay"}} 1"#, "0".repeat(64)),
        "warmhold_ledger_failing 0",
        "warmhold_ledger_waiting 0",
        "warmhold_ledger_rows 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}

#[tokio::test]
async fn figures_are_not_for_strangers() {
    let (_root, running) = serving().await;
    let control = running.control.clone();
    let from = |token: Option<&str>| {
        let mut request = http::Request::get("/metrics");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let control = control.clone();
        async move { control.respond(request, "100.64.0.9".parse().unwrap()).await.status().as_u16() }
    };
    assert_eq!(from(None).await, 401);
    assert_eq!(from(Some("wrong")).await, 401);
    assert_eq!(from(Some(&running.token("query"))).await, 200);
}
