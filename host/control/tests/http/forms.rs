//! What a request may look like: types, ranges, missing and further fields, numbers and texts of every kind.

use super::*;
use proptest::prelude::*;

async fn raw(running: &Running, token: &str, path: &str, body: impl Into<Vec<u8>>) -> Reply {
    ask(running.address, "POST", path).with(token).raw(body).send().await
}

#[tokio::test]
async fn numbers_are_those_of_javascript() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let body = r#"{"id":"n","kind":"instance","machine":"m1","name":"svc","ttlMs":6e4,"attrs":
        {"big":12345678901234567890,"inf":1e400,"zero":-0,"one":1.0,"tiny":1e-7,"exp":1e21,"b":2,"10":1,"2":1,"a":1,"a":3}}"#;
    let reply = raw(&running, &member, "/v1/resources/register", body).await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8(reply.body).unwrap();
    let attrs = r#""attrs":{"2":1,"10":1,"big":12345678901234567000,"inf":null,"zero":0,"one":1,"tiny":1e-7,"exp":1e+21,"b":2,"a":3}"#;
    assert!(text.contains(attrs), "{text}");
    assert!(text.contains(r#""ttlMs":60000"#), "{text}");
    let list = ask(running.address, "GET", "/v1/resources").with(&member).send().await;
    assert!(String::from_utf8(list.body).unwrap().contains(attrs));
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let nested = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    for body in ["", "{", "nope", "{\"a\":1}x", "\"\\ud800\"", "{\"id\":\"\\udc00x\"}", "\u{0}", "'a'", &nested] {
        assert_eq!(
            raw(&running, &member, "/v1/resources/register", body).await.refusal(),
            (400, "invalid-json".into()),
            "{body}"
        );
    }
    assert_eq!(raw(&running, &member, "/v1/leases/port", b"{\"a\":\"\xff\"}".to_vec()).await.code(), "invalid-json");
    for body in ["null", "[]", "1", "\"x\"", "true"] {
        for (path, code) in [
            ("/v1/resources/register", "invalid-record"),
            ("/v1/resources/i1/heartbeat", "invalid-heartbeat"),
            ("/v1/leases/port", "invalid-port-lease"),
            ("/v1/leases/pod-worker", "invalid-pod-worker-lease"),
            ("/v1/replays", "invalid-replay"),
        ] {
            assert_eq!(raw(&running, &member, path, body).await.refusal(), (400, code.into()), "{path} {body}");
        }
    }
    let marked = format!("\u{feff}{}", record("bom"));
    assert_eq!(raw(&running, &member, "/v1/resources/register", marked).await.status, 200);
}

#[tokio::test]
async fn records_that_are_none() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    for (field, values) in [
        ("id", vec![json!(null), json!(""), json!(" "), json!(5), json!([])]),
        ("kind", vec![json!(null), json!(""), json!("bogus"), json!("Machine"), json!(1)]),
        ("machine", vec![json!(null), json!(""), json!("\t"), json!(1)]),
        ("name", vec![json!(null), json!(""), json!({})]),
        ("endpoint", vec![json!(null), json!(1), json!([])]),
        ("attrs", vec![json!(null), json!([]), json!("x"), json!(1)]),
        ("ttlMs", vec![json!(null), json!(-1), json!("60"), json!([1]), json!(true)]),
    ] {
        for value in values {
            let mut body = record("r");
            body[field] = value.clone();
            let reply = post(&running, &member, "/v1/resources/register", body).await;
            assert_eq!(reply.refusal(), (400, "invalid-record".into()), "{field}: {value}");
            assert!(reply.json()["message"].as_str().unwrap().contains(field), "the message names the field");
        }
        let mut body = record("r");
        body.as_object_mut().unwrap().remove(field);
        let reply = post(&running, &member, "/v1/resources/register", body).await;
        assert_eq!(reply.status, if field == "endpoint" { 200 } else { 400 }, "without {field}");
    }
    let huge = r#"{"id":"r","kind":"instance","machine":"m1","name":"n","attrs":{},"ttlMs":1e400}"#;
    assert_eq!(raw(&running, &member, "/v1/resources/register", huge).await.code(), "invalid-record");
    let forged = json!({"id": "own", "kind": "image", "machine": "m9", "name": "n", "attrs": {}, "ttlMs": 0,
        "owner": "0".repeat(64), "observedAt": 1, "unknown": true});
    let row = post(&running, &member, "/v1/resources/register", forged).await.json();
    assert_ne!(row["owner"], json!("0".repeat(64)));
    assert!(row["observedAt"].as_u64().unwrap() > 1 && row.get("unknown").is_none());
}

#[tokio::test]
async fn ids_in_paths_are_decoded_once() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    for (id, path) in
        [("a/b c?", "a%2Fb%20c%3f"), ("%41", "%2541"), ("ü漢", "%C3%BC%E6%BC%A2"), ("x+y", "x+y"), ("..", "%2e.")]
    {
        assert_eq!(post(&running, &member, "/v1/resources/register", record(id)).await.status, 200);
        let beat = post(&running, &member, &format!("/v1/resources/{path}/heartbeat"), json!({})).await;
        assert_eq!(beat.json()["id"], json!(id), "{path}");
        let gone = ask(running.address, "DELETE", &format!("/v1/resources/{path}")).with(&member).send().await;
        assert_eq!(gone.status, 204, "{path}");
    }
    for bad in ["%", "%zz", "%ff", "a%2"] {
        let reply = ask(running.address, "DELETE", &format!("/v1/resources/{bad}")).with(&member).send().await;
        assert_eq!(reply.refusal(), (400, "invalid-id".into()), "{bad}");
    }
    for hidden in ["port-lease%3A31450", "%70ort-lease:31450"] {
        let reply = ask(running.address, "DELETE", &format!("/v1/resources/{hidden}")).with(&member).send().await;
        assert_eq!(reply.refusal(), (403, "port-lease-requires-allocator".into()), "{hidden}");
    }
    let reply = ask(running.address, "DELETE", "/v1/leases/port/%331450").with(&member).send().await;
    assert_eq!(reply.refusal(), (400, "missing-lease-id".into()), "the same port, written oddly");
}

#[tokio::test]
async fn a_machine_touches_its_own_rows_alone() {
    let (_root, running) = serving().await;
    let (m1, m2, member) = (running.issue("m1"), running.issue("m2"), running.token("member"));
    assert_eq!(post(&running, &m1, "/v1/resources/register", record("i1")).await.status, 200);
    let scope = (403, "machine-scope".to_owned());
    assert_eq!(post(&running, &m2, "/v1/resources/register", record("i2")).await.refusal(), scope);
    assert_eq!(post(&running, &m2, "/v1/resources/i1/heartbeat", json!({})).await.refusal(), scope);
    assert_eq!(ask(running.address, "DELETE", "/v1/resources/i1").with(&m2).send().await.refusal(), scope);
    for named in [json!("m2"), json!(null), json!(1)] {
        let reply = post(&running, &m1, "/v1/resources/i1/heartbeat", json!({"machine": named})).await;
        assert_eq!(reply.refusal(), scope, "{named}");
        let reply = post(&running, &member, "/v1/resources/i1/heartbeat", json!({"machine": named})).await;
        assert_eq!(reply.refusal(), (403, "not-owner".into()), "a member has no machine");
    }
    assert_eq!(post(&running, &m1, "/v1/resources/i1/heartbeat", json!({"machine": "m1"})).await.status, 200);
    // An id that is another machine's row already, whatever machine the body names.
    let mut taken = record("i1");
    taken["machine"] = json!("m2");
    assert_eq!(post(&running, &m2, "/v1/resources/register", taken).await.refusal(), scope);
    // A port of another machine, before the missing header.
    let lease = json!({"machine": "m1", "purpose": "p", "ttlMs": 1000});
    assert_eq!(post(&running, &m1, "/v1/leases/port", lease.clone()).await.status, 200);
    assert_eq!(post(&running, &m2, "/v1/leases/port", lease).await.refusal(), scope);
    let reply = ask(running.address, "DELETE", "/v1/leases/port/31450").with(&m2).send().await;
    assert_eq!(reply.refusal(), scope);
    // A worker of another machine.
    assert_eq!(idle_worker(&running, &m1, "w1").await.status, 200);
    let lease = acquire(&running).await.json()["attrs"]["leaseId"].clone();
    let fence = json!({"leaseId": lease, "generation": 1});
    assert_eq!(post(&running, &m2, "/v1/leases/pod-worker/w1/quarantine", fence).await.refusal(), scope);
}

#[tokio::test]
async fn hidden_from_lists_and_shown_to_whoever_acts() {
    let (_root, running) = serving().await;
    let (machine, member) = (running.issue("m1"), running.token("member"));
    assert_eq!(idle_worker(&running, &machine, "w1").await.status, 200);
    let leased = acquire(&running).await.json();
    assert_eq!(leased["attrs"]["state"], json!("leased"));
    let worker_lease = leased["attrs"]["leaseId"].as_str().unwrap().to_owned();
    assert_eq!(leased.get("ageMs"), None);
    let port = json!({"machine": "m1", "purpose": "p", "ttlMs": 60_000});
    let port = post(&running, &member, "/v1/leases/port", port).await.json();
    let port_lease = port["lease"]["attrs"]["leaseId"].as_str().unwrap().to_owned();
    for token in [&machine, &member, &running.token("admin"), &running.token("query")] {
        let list = ask(running.address, "GET", "/v1/resources").with(token).send().await;
        let text = String::from_utf8(list.body.clone()).unwrap();
        assert!(!text.contains(&worker_lease) && !text.contains(&port_lease), "{text}");
        let rows = list.json()["resources"].clone();
        assert_eq!(
            rows[0]["attrs"],
            json!({"key": key(), "state": "leased", "generation": 1, "podUid": "uid-1", "idleTtlMs": 60_000})
        );
        assert_eq!(rows[1]["attrs"], json!({"port": 31450, "purpose": "p"}));
    }
    let renewed = ask(running.address, "POST", "/v1/leases/port/31450/heartbeat")
        .with(&member)
        .header("x-port-lease-id", &port_lease)
        .send()
        .await;
    assert_eq!(renewed.status, 200);
    assert!(!String::from_utf8(renewed.body).unwrap().contains(&port_lease));
    let twice = ask(running.address, "DELETE", "/v1/leases/port/31450")
        .with(&member)
        .header("x-port-lease-id", &port_lease)
        .header("x-port-lease-id", &port_lease);
    assert_eq!(twice.send().await.refusal(), (400, "missing-lease-id".into()));
}

/// JSON of every kind, for fields that want something else.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!("w1")),
        Just(json!("m1")),
        Just(json!(1)),
        Just(key()),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn no_body_makes_the_server_fail() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_root, running) = runtime.block_on(serving());
    let (member, machine) = (running.token("member"), running.issue("m1"));
    let fields = proptest::collection::btree_map(
        prop_oneof![
            "id|kind|machine|name|endpoint|attrs|ttlMs|workerId|key|podUid|runId|attemptId|leaseId|generation|reason|purpose|excluded|files|cutSha",
            ".{0,8}"
        ],
        anything(),
        0..8,
    );
    let path = prop_oneof![
        Just("/v1/resources/register"),
        Just("/v1/resources/i1/heartbeat"),
        Just("/v1/leases/port"),
        Just("/v1/workers/pod"),
        Just("/v1/leases/pod-worker"),
        Just("/v1/leases/pod-worker/w1/renew"),
        Just("/v1/leases/pod-worker/w1/sanitize"),
        Just("/v1/leases/pod-worker/w1/quarantine"),
        Just("/v1/workers/w1/quarantine"),
        Just("/v1/replays/x/quarantine"),
    ];
    let mut runner = proptest::test_runner::TestRunner::new(proptest::test_runner::Config {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    });
    runner
        .run(&(fields, path, any::<bool>()), |(fields, path, as_machine)| {
            let body = Value::Object(fields.into_iter().collect());
            let token = if as_machine { &machine } else { &member };
            let reply = runtime.block_on(post(&running, token, path, body));
            prop_assert!(reply.status < 500, "{} {}", reply.status, String::from_utf8_lossy(&reply.body));
            prop_assert!(reply.status == 200 || !reply.code().is_empty());
            Ok(())
        })
        .unwrap();
    let list = runtime.block_on(ask(running.address, "GET", "/v1/resources").with(&member).send());
    assert_eq!(list.status, 200);
    list.json();
}
