//! One replay: what is asked of the host in which order, and how each failure ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use warm_replay::WarmReplay;
use warmhold_sdk::replay::harness::{
    FakeHost, FakeLease, Leased, POD_UID, candidate, input, passing_verdict, ready_pod, reply,
};
use warmhold_sdk::replay::{
    Candidate, ClusterError, ControlError, Difference, Fallback, Outcome, ReplayInput, ReplayPolicy, Reply,
    TransportError,
};
use warmhold_sdk::serde_json::{self, Value, json};

const NOW: u64 = 1_796_068_669_125;

fn host() -> FakeHost {
    FakeHost::new(NOW, "{}")
}

fn ask(host: &FakeHost, input: &ReplayInput, candidates: &[Candidate]) -> Outcome<FakeLease> {
    WarmReplay.request(host, input, candidates)
}

fn fallback(outcome: Outcome<FakeLease>) -> Fallback {
    match outcome {
        Outcome::Fallback(fallback) => fallback,
        other => panic!("{other:?}"),
    }
}

fn leased(of: &Candidate) -> Leased {
    Leased {
        id: "0a1b2c3d-0000-4000-8000-0123456789ab".into(),
        worker: of.spec.worker_id.clone(),
        generation: 3,
        run_id: "run-1".into(),
        attempt_id: "1".into(),
        pod_uid: Some(POD_UID.into()),
        key: of.spec.key.clone(),
    }
}

/// The calls, without what they carry.
fn calls(host: &FakeHost) -> Vec<String> {
    host.journal().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn drift() -> Vec<Difference> {
    vec![Difference {
        path: "$.spec.containers[0].image".into(),
        want: "\"worker:1\"".into(),
        got: "\"worker:2\"".into(),
    }]
}

/// The command that an ordinary request sends.
fn command() -> Value {
    let host = host();
    drop(ask(&host, &input(NOW), &[candidate("w1")]));
    let line = host.journal().into_iter().find(|line| line.starts_with("exec ")).unwrap();
    serde_json::from_str(line.splitn(4, ' ').nth(3).unwrap()).unwrap()
}

#[test]
fn an_observed_replay() {
    let host = host();
    let Outcome::Observed { held, evidence } = ask(&host, &input(NOW), &[candidate("w1")]) else {
        panic!("{:?}", host.journal())
    };
    assert_eq!(
        calls(&host),
        ["acquire", "annotate", "get-pod", "verify", "get-node", "exec", "get-pod", "verify"],
        "the lease is still held"
    );
    let journal = host.journal();
    assert_eq!(journal[0], "acquire m1 1800000");
    assert_eq!(journal[1], "annotate warm-m1-lite-w1 leased");
    assert!(journal[5].starts_with(&format!("exec warm-m1-lite-w1 {} ", NOW + 60_000)), "{}", journal[5]);
    assert_eq!(
        evidence["worker"],
        json!({
            "id": "w1", "machine": "m1", "tier": "lite", "pod": "warm-m1-lite-w1", "podUid": POD_UID,
            "generation": 3, "lease": "456789ab",
        })
    );
    assert_eq!((&evidence["passed"], &evidence["clean"]), (&json!(true), &json!(true)));
    assert_eq!(evidence["files"][1]["file"], "tests/b.py");
    assert_eq!(evidence["isolation"]["level"], "full");
    held.hand_back();
}

#[test]
fn the_command_says_what_the_policy_knows() {
    let mut with_baseline = input(NOW);
    with_baseline.baseline_sha = Some("d".repeat(40));
    let key = json!({
        "context": "minik8s", "imageDigest": format!("sha256:{}", "a".repeat(64)),
        "lockHash": "b".repeat(64), "architecture": "amd64",
    });
    let mut want = json!({
        "protocol": 1, "runId": "run-1", "attemptId": "1", "cutSha": "c".repeat(40), "envProfile": "gate-v1",
        "deadlineAt": NOW + 60_000, "requestedAt": NOW, "files": ["tests/a.sh", "tests/b.py"], "key": key,
        "workerId": "w1",
    });
    assert_eq!(command(), want);
    want["baselineSha"] = json!("d".repeat(40));
    let host = host();
    drop(ask(&host, &with_baseline, &[candidate("w1")]));
    let line = host.journal().into_iter().find(|line| line.starts_with("exec ")).unwrap();
    let sent: Value = serde_json::from_str(line.splitn(4, ' ').nth(3).unwrap()).unwrap();
    assert_eq!(sent, want);
}

#[test]
fn invalid_input_contacts_nothing() {
    type Change = fn(&mut ReplayInput);
    let table: [(&str, Change); 20] = [
        ("protocol", |i| i.protocol = 2),
        ("run-id", |i| i.run_id = " ".into()),
        ("attempt-id", |i| i.attempt_id.clear()),
        ("cut-sha", |i| i.cut_sha = "c".repeat(39)),
        ("cut-sha", |i| i.cut_sha = "C".repeat(40)),
        ("baseline-sha", |i| i.baseline_sha = Some("main".into())),
        ("env-profile", |i| i.env_profile = "gate-v2".into()),
        ("deadline-at", |i| i.deadline_at = NOW),
        ("files", |i| i.files.clear()),
        ("files", |i| i.files.push("tests/a.sh".into())),
        ("files", |i| i.files = vec!["/etc/passwd".into()]),
        ("files", |i| i.files = vec!["../a.sh".into()]),
        ("files", |i| i.files = vec!["a/../b.sh".into()]),
        ("files", |i| i.files = vec!["./a.sh".into()]),
        ("files", |i| i.files = vec!["a//b.sh".into()]),
        ("files", |i| i.files = vec!["a/".into()]),
        ("files", |i| i.files = vec!["a\\b.sh".into()]),
        ("files", |i| i.files = vec!["a\nb.sh".into()]),
        ("files", |i| i.files = vec![String::new()]),
        ("files", |i| i.files = vec!["a".repeat(1025)]),
    ];
    for (field, change) in table {
        let host = host();
        let mut input = input(NOW);
        change(&mut input);
        let fallback = fallback(ask(&host, &input, &[candidate("w1")]));
        assert_eq!(fallback.reason, "no-candidate", "{field}");
        let detail = fallback.detail.unwrap();
        assert!(detail.starts_with(&format!("{field}: ")) && !detail.contains(';'), "{field}: {detail}");
        assert_eq!(host.journal(), Vec::<String>::new(), "{field}");
    }
}

#[test]
fn no_worker_for_the_cut_contacts_nothing() {
    let host = host();
    let mut other = candidate("w1");
    other.spec.cut_sha = "d".repeat(40);
    for candidates in [vec![], vec![other]] {
        assert_eq!(fallback(ask(&host, &input(NOW), &candidates)).reason, "no-candidate");
        assert_eq!(host.journal(), Vec::<String>::new());
    }
}

#[test]
fn a_pools_context_is_looked_up_before_any_lease() {
    let pool = |context: &str| {
        let mut of = candidate("w1");
        (of.spec.context, of.spec.key.context) = (context.to_owned(), context.to_owned());
        of
    };
    let host = host();
    host.script.context_known.push(Err(ClusterError::UnknownContext("no context exists".into())));
    let fallback = fallback(ask(&host, &input(NOW), &[pool("k3d-pool")]));
    assert_eq!(fallback.reason, "context-unavailable");
    assert!(fallback.detail.unwrap().contains("no context exists"));
    assert_eq!(calls(&host), ["context-known"]);
    for context in ["k3d-", "k3d-Pool", "minik8s", "local"] {
        let host = FakeHost::new(NOW, "{}");
        let Outcome::Observed { held, .. } = ask(&host, &input(NOW), &[pool(context)]) else { panic!("{context}") };
        held.hand_back();
        assert_eq!(calls(&host)[0], "acquire", "{context}");
    }
    let host = FakeHost::new(NOW, "{}");
    drop(ask(&host, &input(NOW), &[pool("k3d-pool-2")]));
    assert_eq!(calls(&host)[..2], ["context-known", "acquire"]);
}

#[test]
fn without_a_lease_nothing_is_fenced() {
    for error in [ControlError::Refused((409, "no-warm-worker".into())), ControlError::Unreachable("timed out".into())]
    {
        let host = host();
        host.script.acquire.push(Err(error));
        let fallback = fallback(ask(&host, &input(NOW), &[candidate("w1")]));
        assert_eq!(fallback.reason, "lease-unavailable");
        assert!(
            fallback.detail.is_some_and(|detail| detail.contains("no-warm-worker") || detail.contains("timed out"))
        );
        assert_eq!(calls(&host), ["acquire"]);
    }
}

/// A worker that isn't one of ours is given back untouched.
#[test]
fn an_unknown_worker_is_given_back() {
    let of = candidate("w1");
    let mut elsewhere = candidate("w2");
    elsewhere.host = "m2".into();
    let mut other_cut = candidate("w3");
    other_cut.spec.cut_sha = "d".repeat(40);
    let cases = [
        Leased { worker: "stranger".into(), ..leased(&of) },
        Leased { worker: "w2".into(), ..leased(&of) },
        Leased { worker: "w3".into(), ..leased(&of) },
        Leased { worker: "-bad".into(), ..leased(&of) },
        Leased { worker: String::new(), ..leased(&of) },
        Leased { id: String::new(), ..leased(&of) },
        Leased { generation: 0, ..leased(&of) },
        Leased { pod_uid: None, ..leased(&of) },
        Leased { pod_uid: Some(String::new()), ..leased(&of) },
    ];
    for facts in cases {
        let host = host();
        host.script.acquire.push(Ok(facts.clone()));
        let candidates = [of.clone(), elsewhere.clone(), other_cut.clone()];
        let fallback = fallback(ask(&host, &input(NOW), &candidates));
        assert_eq!(fallback.reason, "lease-unavailable", "{facts:?}");
        assert_eq!(calls(&host), ["acquire", "release"], "{facts:?}");
    }
}

#[test]
fn an_unknown_worker_that_cant_be_given_back_is_quarantined() {
    let host = host();
    host.script.acquire.push(Ok(Leased { worker: "stranger".into(), ..leased(&candidate("w1")) }));
    host.script.release.push(Err(ControlError::Unreachable("gone".into())));
    assert_eq!(fallback(ask(&host, &input(NOW), &[candidate("w1")])).reason, "lease-unavailable");
    assert_eq!(host.journal()[1..], ["release", "quarantine release-unavailable"]);

    let host = FakeHost::new(NOW, "{}");
    host.script.acquire.push(Ok(Leased { worker: "stranger".into(), ..leased(&candidate("w1")) }));
    host.script.release.push(Err(ControlError::Unreachable("gone".into())));
    host.script.quarantine.push(Err(ControlError::Unreachable("gone".into())));
    assert!(matches!(ask(&host, &input(NOW), &[candidate("w1")]), Outcome::Failed(_)));
}

/// The lease is taken by machine and key, so another of our workers may be the one.
#[test]
fn another_candidate_with_an_equal_key_serves() {
    let host = host();
    host.script.acquire.push(Ok(leased(&candidate("w2"))));
    let candidates = [candidate("w1"), candidate("w2")];
    let Outcome::Observed { held, evidence } = ask(&host, &input(NOW), &candidates) else { panic!() };
    held.hand_back();
    assert_eq!(evidence["worker"]["id"], "w2");
    assert!(host.journal().iter().any(|line| line.starts_with("exec warm-m1-lite-w2 ")));
}

/// Everything that can go wrong once a worker is leased: the reason for the caller, and the one that is stored. Each ends
/// in quarantine, and none leaves the lease to the host.
#[test]
fn every_failure_after_the_lease_quarantines() {
    type Prepare = fn(&FakeHost);
    let table: Vec<(&str, &str, &str, Prepare)> = vec![
        ("another key", "lease-unavailable", "candidate-identity-mismatch", |host| {
            let mut facts = leased(&candidate("w1"));
            facts.key.lock_hash = "other".into();
            host.script.acquire.push(Ok(facts));
        }),
        ("no provenance", "lease-unavailable", "provenance-unavailable", |host| {
            host.script.annotate.push(Err(ClusterError::Conflict));
        }),
        ("no pod", "pod-unready", "pod-unready", |host| host.script.get_pod.push(Err(ClusterError::NotFound))),
        ("cluster silent", "pod-unready", "pod-unready", |host| host.script.get_pod.push(Err(ClusterError::TimedOut))),
        ("pending", "pod-unready", "pod-unready", |host| {
            let mut pod = ready_pod("p", POD_UID);
            pod["status"]["phase"] = json!("Pending");
            host.script.get_pod.push(Ok(pod));
        }),
        ("not ready", "pod-unready", "pod-unready", |host| {
            let mut pod = ready_pod("p", POD_UID);
            pod["status"]["conditions"][0]["status"] = json!("False");
            host.script.get_pod.push(Ok(pod));
        }),
        ("another UID", "pod-replaced", "pod-replaced", |host| {
            host.script.get_pod.push(Ok(ready_pod("p", "another")));
        }),
        ("drift", "pod-replaced", "pod-replaced", |host| host.script.verify.push(Err(drift()))),
        ("no node", "pod-unready", "pod-unready", |host| host.script.get_node.push(Err(ClusterError::NotFound))),
        ("another architecture", "pod-unready", "pod-unready", |host| {
            host.script.get_node.push(Ok(json!({"metadata": {"labels": {"kubernetes.io/arch": "arm64"}}})));
        }),
        ("unknown architecture", "pod-unready", "pod-unready", |host| host.script.get_node.push(Ok(json!({})))),
        ("no verdict", "invalid-result", "invalid-result", |host| {
            host.script.exec.push(Err(TransportError::NoVerdict("closed".into())));
        }),
        ("truncated", "invalid-result", "invalid-result", |host| {
            host.script.exec.push(Err(TransportError::Truncated("3 of 5".into())));
        }),
        ("too large", "invalid-result", "invalid-result", |host| host.script.exec.push(Err(TransportError::TooLarge))),
        ("killed", "exec-failed", "exec-failed", |host| {
            host.script.exec.push(Err(TransportError::Killed("SIGKILL".into())));
        }),
        ("timed out", "exec-failed", "exec-failed", |host| host.script.exec.push(Err(TransportError::TimedOut))),
        ("failed", "exec-failed", "exec-failed", |host| {
            host.script.exec.push(Err(TransportError::Failed("no such program".into())));
        }),
        ("wrong pod", "pod-replaced", "pod-replaced", |host| {
            host.script.exec.push(Err(TransportError::WrongPod("restarted".into())));
        }),
        ("marked", "worker-quarantined", "worker-quarantined", |host| {
            host.script.exec.push(Err(TransportError::Quarantined));
        }),
        ("gone afterwards", "pod-replaced", "pod-replaced", |host| {
            host.script.get_pod.push(Ok(ready_pod("p", POD_UID)));
            host.script.get_pod.push(Err(ClusterError::NotFound));
        }),
        ("another afterwards", "pod-replaced", "pod-replaced", |host| {
            host.script.get_pod.push(Ok(ready_pod("p", POD_UID)));
            host.script.get_pod.push(Ok(ready_pod("p", "another")));
        }),
        ("drift afterwards", "pod-replaced", "pod-replaced", |host| {
            host.script.verify.push(Ok(vec![]));
            host.script.verify.push(Err(drift()));
        }),
        ("no JSON", "invalid-result", "invalid-result", |host| {
            host.script.exec.push(Ok(Reply { verdict: "{".into(), ..reply(&json!({})) }));
        }),
        ("refused by the worker", "exec-failed", "exec-failed", |host| {
            let mut verdict = passing_verdict(&command());
            verdict["refused"] = json!({"code": "stale-generation", "message": "seen 9"});
            verdict["files"] = json!([]);
            host.script.exec.push(Ok(reply(&verdict)));
        }),
    ];
    for (name, reason, stored, prepare) in table {
        let host = host();
        prepare(&host);
        let fallback = fallback(ask(&host, &input(NOW), &[candidate("w1")]));
        assert_eq!(fallback.reason, reason, "{name}");
        assert!(fallback.detail.is_some_and(|detail| detail.len() > 5), "{name}");
        let journal = host.journal();
        let end: Vec<&str> = journal.iter().rev().take(2).map(String::as_str).collect();
        let quarantine = format!("quarantine {stored}");
        assert_eq!(end, ["annotate warm-m1-lite-w1 quarantined", quarantine.as_str()], "{name}");
        assert_eq!(journal.iter().filter(|line| line.starts_with("quarantine")).count(), 1, "{name}");
        assert!(!journal.iter().any(|line| line.starts_with("DROPPED") || line == "release"), "{name}");
        let before_it_runs = [
            "another key",
            "no provenance",
            "no pod",
            "cluster silent",
            "pending",
            "not ready",
            "another UID",
            "drift",
            "no node",
            "another architecture",
            "unknown architecture",
        ];
        let ran = journal.iter().any(|line| line.starts_with("exec"));
        assert_eq!(ran, !before_it_runs.contains(&name), "{name}");
    }
}

#[test]
fn a_verdict_must_answer_this_request() {
    type Change = fn(&mut Value);
    let table: [(&str, Change); 9] = [
        ("protocol", |v| v["protocol"] = json!(2)),
        ("worker", |v| v["workerId"] = json!("w2")),
        ("key", |v| v["key"]["lockHash"] = json!("other")),
        ("no key", |v| v["key"] = Value::Null),
        ("cut", |v| v["cutSha"] = json!("d".repeat(40))),
        ("no files", |v| v["files"] = json!(null)),
        ("a file less", |v| drop(v["files"].as_array_mut().unwrap().pop())),
        ("another order", |v| v["files"].as_array_mut().unwrap().swap(0, 1)),
        ("another file", |v| v["files"][0]["file"] = json!("tests/c.sh")),
    ];
    for (name, change) in table {
        let mut verdict = passing_verdict(&command());
        change(&mut verdict);
        let host = host();
        host.script.exec.push(Ok(reply(&verdict)));
        assert_eq!(fallback(ask(&host, &input(NOW), &[candidate("w1")])).reason, "invalid-result", "{name}");
    }
}

/// Tests that fail, and even a worker that isn't clean, are an observation: the host won't let the worker come back.
#[test]
fn a_failed_or_unclean_run_is_observed() {
    type Change = fn(&mut Value);
    let table: [(&str, bool, bool, Change); 5] = [
        ("exit 1", false, true, |v| v["files"][0]["exit"] = json!(1)),
        ("a signal", false, true, |v| {
            v["files"][0]["exit"] = Value::Null;
            v["files"][0]["signal"] = json!(9);
        }),
        ("a reason", false, true, |v| v["files"][1]["reason"] = json!("output-limit")),
        ("unclean", true, false, |v| {
            v["clean"] = json!(false);
            v["unclean"] = json!(["a process is left"]);
        }),
        ("clean isn't a truth", true, false, |v| v["clean"] = json!("yes")),
    ];
    for (name, passed, clean, change) in table {
        let mut verdict = passing_verdict(&command());
        change(&mut verdict);
        let host = host();
        host.script.exec.push(Ok(reply(&verdict)));
        let Outcome::Observed { held, evidence } = ask(&host, &input(NOW), &[candidate("w1")]) else {
            panic!("{name}")
        };
        held.hand_back();
        assert_eq!((&evidence["passed"], &evidence["clean"]), (&json!(passed), &json!(clean)), "{name}");
    }
}

#[test]
fn the_deadline_is_the_nearer_one_and_counts_from_the_lease() {
    let mut long = input(NOW);
    long.deadline_at = NOW + 3_600_000;
    for (settings, want) in [("{}", 120_000), ("{\"transport-limit-ms\":5000}", 5_000)] {
        let host = FakeHost::new(NOW, settings);
        let Outcome::Observed { held, .. } = ask(&host, &long, &[candidate("w1")]) else { panic!() };
        held.hand_back();
        let exec = host.journal().into_iter().find(|line| line.starts_with("exec ")).unwrap();
        assert_eq!(exec.split(' ').nth(2).unwrap(), (NOW + want).to_string());
    }
    // Each look at the clock costs half a minute: nothing is left when it comes to running.
    let host = host();
    host.tick.set(30_000);
    let fallback = fallback(ask(&host, &input(NOW), &[candidate("w1")]));
    assert_eq!(fallback.reason, "exec-failed");
    assert!(!host.journal().iter().any(|line| line.starts_with("exec")));
    assert!(host.journal().contains(&"quarantine exec-failed".to_owned()));
}

#[test]
fn a_worker_that_cant_be_quarantined_is_a_failure() {
    let host = host();
    host.script.exec.push(Err(TransportError::TimedOut));
    host.script.quarantine.push(Err(ControlError::Refused((503, "ledger-busy".into()))));
    let Outcome::Failed(why) = ask(&host, &input(NOW), &[candidate("w1")]) else { panic!() };
    assert!(why.contains("exec-failed") && why.contains("ledger-busy") && why.contains("w1"), "{why}");
    assert_eq!(host.journal().last().unwrap(), "DROPPED w1", "the host goes on with it");
}

#[test]
fn somebody_elses_quarantine_is_as_good() {
    let host = host();
    host.script.exec.push(Err(TransportError::Quarantined));
    host.script.quarantine.push(Err(ControlError::Refused((409, "already-quarantined".into()))));
    assert_eq!(fallback(ask(&host, &input(NOW), &[candidate("w1")])).reason, "worker-quarantined");
}

#[test]
fn harmless_differences_are_evidence() {
    let host = host();
    let label = Difference { path: "$.metadata.labels.team".into(), want: "null".into(), got: "\"a\"".into() };
    host.script.verify.push(Ok(vec![label]));
    let Outcome::Observed { held, evidence } = ask(&host, &input(NOW), &[candidate("w1")]) else { panic!() };
    held.hand_back();
    assert_eq!(evidence["harmless"], json!([{"path": "$.metadata.labels.team", "want": null, "got": "a"}]));
}
