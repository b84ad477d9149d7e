//! A standing worker.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    reason = "tests"
)]

use warm_replay::WarmReplay;
use warmhold_sdk::replay::harness::{FakeHost, POD_UID, candidate, idle_row, ready_pod};
use warmhold_sdk::replay::{Candidate, ClusterError, ControlError, Difference, ReplayPolicy};
use warmhold_sdk::serde_json::{Value, json};

const NOW: u64 = 1_796_068_669_125;
const POD: &str = "warm-m1-lite-w1";

fn host() -> FakeHost {
    FakeHost::new(NOW, "{}")
}

fn prepare(host: &FakeHost) -> Result<String, String> {
    WarmReplay.prepare(host, &candidate("w1"))
}

fn calls(host: &FakeHost) -> Vec<String> {
    host.journal().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn row() -> Value {
    idle_row("m1", "w1", POD_UID, &candidate("w1").spec.key, 1_800_000, NOW - 1000)
}

fn drift() -> Vec<Difference> {
    vec![Difference { path: "$.spec.nodeName".into(), want: "\"a\"".into(), got: "\"b\"".into() }]
}

/// A host with our pod and this row.
fn standing(row: Value) -> FakeHost {
    let host = host();
    host.script.list_pods.push(Ok(vec![ready_pod("another", "x"), ready_pod(POD, POD_UID)]));
    host.script.worker_rows.push(Ok(json!([row])));
    host
}

#[test]
fn makes_a_worker_where_there_is_none() {
    let host = host();
    assert_eq!(prepare(&host).unwrap(), POD_UID);
    assert_eq!(
        calls(&host),
        [
            "render",
            "list-pods",
            "worker-rows",
            "create-pod",
            "verify",
            "wait-ready",
            "get-pod",
            "verify",
            "worker-rows",
            "register"
        ]
    );
    let journal = host.journal();
    assert!(journal.contains(&format!("wait-ready {POD} 900")));
    assert_eq!(journal.last().unwrap(), &format!("register m1 w1 {POD_UID} 1800000"));
}

#[test]
fn settings_say_how_long() {
    let host = FakeHost::new(NOW, r#"{"idle-ttl-ms":5000,"ready-wait-seconds":7}"#);
    prepare(&host).unwrap();
    assert!(host.journal().contains(&format!("wait-ready {POD} 7")));
    assert!(host.journal().contains(&format!("register m1 w1 {POD_UID} 5000")));
}

#[test]
fn finds_the_worker_that_is_there() {
    let host = standing(row());
    assert_eq!(prepare(&host).unwrap(), POD_UID);
    assert!(!calls(&host).iter().any(|call| call == "create-pod" || call == "register"));
    let mut leased = row();
    leased["attrs"]["state"] = json!("leased");
    assert_eq!(prepare(&standing(leased)).unwrap(), POD_UID);
}

#[test]
fn a_pod_that_says_it_is_the_worker_is_found_under_any_name() {
    let host = host();
    let mut other = ready_pod("renamed", POD_UID);
    other["metadata"]["annotations"] = json!({"warmhold.dev/worker-id": "w1"});
    host.script.list_pods.push(Ok(vec![other]));
    host.script.verify.push(Err(drift()));
    assert!(prepare(&host).unwrap_err().contains("isn't ours"));
    assert!(!calls(&host).contains(&"create-pod".to_owned()));
}

/// Every refusal: what is said, and what must not have been done by then.
#[test]
fn refuses() {
    type Prepare = fn(&FakeHost);
    let table: Vec<(&str, &[&str], Prepare)> = vec![
        ("can't be rendered: name: bad", &["list-pods"], |h| h.script.render.push(Err(vec!["name: bad".into()]))),
        ("namespace can't be listed", &["create-pod"], |h| {
            h.script.list_pods.push(Err(ClusterError::Denied("list".into())));
        }),
        ("more than one pod", &["create-pod", "wait-ready"], |h| {
            let mut second = ready_pod("second", "y");
            second["metadata"]["annotations"] = json!({"warmhold.dev/worker-id": "w1"});
            h.script.list_pods.push(Ok(vec![ready_pod(POD, POD_UID), second]));
        }),
        ("isn't ours: the pod differs from its manifest: $.spec.nodeName", &["create-pod", "wait-ready"], |h| {
            h.script.list_pods.push(Ok(vec![ready_pod(POD, POD_UID)]));
            h.script.verify.push(Err(drift()));
        }),
        ("its pod is gone", &["create-pod"], |h| h.script.worker_rows.push(Ok(json!([row()])))),
        ("ledger can't be read", &["create-pod"], |h| {
            h.script.worker_rows.push(Err(ControlError::Unreachable("timed out".into())));
        }),
        ("ledger can't be read: its answer is no list", &["create-pod"], |h| h.script.worker_rows.push(Ok(json!({})))),
        ("somebody else just made", &["wait-ready"], |h| h.script.create_pod.push(Err(ClusterError::Conflict))),
        ("can't be created: quota", &["wait-ready"], |h| {
            h.script.create_pod.push(Err(ClusterError::Failed("quota".into())));
        }),
        ("created otherwise than asked", &["wait-ready"], |h| h.script.verify.push(Err(drift()))),
        ("without a UID", &["wait-ready"], |h| h.script.create_pod.push(Ok(json!({})))),
        ("isn't Ready: timed out", &["register"], |h| h.script.wait_ready.push(Err(ClusterError::TimedOut))),
        ("not found", &["register"], |h| h.script.get_pod.push(Err(ClusterError::NotFound))),
        ("was replaced", &["register"], |h| h.script.get_pod.push(Ok(ready_pod(POD, "another")))),
        ("isn't running and Ready", &["register"], |h| {
            let mut pod = ready_pod(POD, POD_UID);
            pod["status"]["phase"] = json!("Failed");
            h.script.get_pod.push(Ok(pod));
        }),
        ("differs from its manifest", &["register"], |h| {
            h.script.verify.push(Ok(vec![]));
            h.script.verify.push(Err(drift()));
        }),
        ("ledger can't be read", &["register"], |h| {
            h.script.worker_rows.push(Ok(json!([])));
            h.script.worker_rows.push(Err(ControlError::Refused((503, "ledger-busy".into()))));
        }),
        ("registered by somebody else", &["register"], |h| {
            h.script.worker_rows.push(Ok(json!([])));
            h.script.worker_rows.push(Ok(json!([row()])));
        }),
        ("more than one row", &["register"], |h| {
            h.script.list_pods.push(Ok(vec![ready_pod(POD, POD_UID)]));
            h.script.worker_rows.push(Ok(json!([row(), row()])));
        }),
        ("nobody registered it", &["register"], |h| h.script.list_pods.push(Ok(vec![ready_pod(POD, POD_UID)]))),
        ("can't be registered: the control plane refused: worker-id-used (409)", &[], |h| {
            h.script.register.push(Err(ControlError::Refused((409, "worker-id-used".into()))));
        }),
        ("registered otherwise than asked", &[], |h| {
            let mut other = row();
            other["attrs"]["podUid"] = json!("another");
            h.script.register.push(Ok(other));
        }),
    ];
    for (text, never, arrange) in table {
        let host = host();
        arrange(&host);
        let why = prepare(&host).expect_err(text);
        assert!(why.contains(text), "{why:?} doesn't say {text:?}");
        for call in never {
            assert!(!calls(&host).contains(&(*call).to_owned()), "{text}: {call}");
        }
    }
}

#[test]
fn a_row_that_disagrees_in_anything_refuses() {
    let table: Vec<(&str, &str, Value)> = vec![
        ("kind", "/kind", json!("instance")),
        ("machine", "/machine", json!("m2")),
        ("name", "/name", json!("w2")),
        ("state", "/attrs/state", json!("sanitizing")),
        ("state", "/attrs/state", json!("quarantined")),
        ("pod", "/attrs/podUid", json!("another")),
        ("pod", "/attrs/podUid", Value::Null),
        ("time to live", "/ttlMs", json!(1)),
        ("time to live", "/ttlMs", json!("1800000")),
        ("idle time", "/attrs/idleTtlMs", json!(1)),
        ("key", "/attrs/key/lockHash", json!("other")),
        ("key", "/attrs/key", Value::Null),
        ("future", "/observedAt", json!(NOW + 1)),
        ("future", "/observedAt", json!(1.5)),
        ("expired", "/observedAt", json!(NOW - 1_800_000)),
    ];
    for (what, pointer, value) in table {
        let mut row = row();
        *row.pointer_mut(pointer).unwrap() = value;
        let why = prepare(&standing(row)).expect_err(what);
        assert!(why.contains(&format!("another {what}")) || why.contains(what), "{pointer}: {why}");
    }
}

#[test]
fn without_a_node_only_a_local_pod_is_made() {
    let without = |context: &str| {
        let mut of: Candidate = candidate("w1");
        of.spec.node = None;
        of.spec.context = context.to_owned();
        of
    };
    let host = host();
    assert!(WarmReplay.prepare(&host, &without("minik8s")).unwrap_err().contains("no node"));
    assert_eq!(host.journal(), Vec::<String>::new(), "nothing is contacted");
    assert_eq!(WarmReplay.prepare(&host, &without("local")).unwrap(), POD_UID);
}
