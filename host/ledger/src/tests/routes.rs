//! Every operation once through, with what the original answers.

use super::support::*;
use crate::*;
use serde_json::{Value, json};

fn attrs(row: &Row) -> Value {
    serde_json::from_str(&row.attrs).unwrap()
}

#[tokio::test]
async fn a_worker_goes_once_round() {
    let case = Case::new();
    let ledger = case.open();
    let idle = ledger.done(worker(worker_draft("w1"), machine("m1"))).await;
    assert_eq!(
        idle.attrs.as_ref(),
        r#"{"key":{"context":"local","imageDigest":"sha256:a","lockHash":"b","architecture":"amd64","extra":1},"state":"idle","generation":0,"idleTtlMs":60000,"podUid":"uid-w1"}"#
    );
    assert_eq!(
        (idle.id.as_str(), idle.name.as_str(), idle.owner.as_str()),
        ("pod-worker-lease:w1", "w1", "owner-of-m1")
    );
    assert_eq!(ledger.refusal(worker(worker_draft("w1"), machine("m1"))).await, "worker-id-used");
    assert_eq!(ledger.refusal(worker(worker_draft("w1"), machine("m2"))).await, "not-owner");

    let leased = ledger.done(worker(acquire("run-1"), member())).await;
    let facts = WorkerFacts::of(&leased).unwrap();
    assert_eq!((facts.state, facts.generation, leased.ttl_ms), (WorkerState::Leased, 1, 5_000.0));
    assert_eq!(facts.lease_owner.as_deref(), Some("owner-of-member"));
    assert_eq!((facts.run_id.as_deref(), facts.attempt_id.as_deref()), (Some("run-1"), Some("1")));
    assert_eq!(facts.lease_id.as_ref().unwrap().len(), 36);
    assert_eq!(ledger.refusal(worker(acquire("run-2"), member())).await, "no-warm-worker");

    let mut renew = transition(TransitionKind::Renew, &leased);
    if let Operation::Transition(renew) = &mut renew {
        renew.ttl_ms = Some(9_000);
        renew.reason = Some("why".to_owned());
    }
    case.sleep(4_999);
    let renewed = ledger.done(worker(renew, member())).await;
    assert_eq!(
        (renewed.ttl_ms, renewed.observed_at, attrs(&renewed)["reason"].as_str()),
        (9_000.0, 1_004_999, Some("why"))
    );
    case.sleep(9_000);
    assert_eq!(ledger.refusal(worker(transition(TransitionKind::Renew, &renewed), member())).await, "lease-expired");
    assert_eq!(
        ledger.refusal(worker(transition(TransitionKind::Sanitize, &renewed), machine("m1"))).await,
        "not-sanitizing"
    );
    assert_eq!(ledger.refusal(worker(transition(TransitionKind::Release, &renewed), machine("m1"))).await, "not-owner");
    let released = ledger.done(worker(transition(TransitionKind::Release, &renewed), member())).await;
    assert_eq!(WorkerFacts::of(&released).unwrap().state, WorkerState::Sanitizing);
    assert_eq!(
        ledger.refusal(worker(transition(TransitionKind::Sanitize, &released), machine("m2"))).await,
        "not-owner"
    );
    let clean = ledger.done(worker(transition(TransitionKind::Sanitize, &released), machine("m1"))).await;
    assert_eq!(
        attrs(&clean),
        json!({"key": attrs(&idle)["key"], "state": "idle", "generation": 1, "idleTtlMs": 60000, "podUid": "uid-w1"})
    );
    assert_eq!(clean.ttl_ms, 60_000.0);

    let again = ledger.done(worker(acquire("run-3"), member())).await;
    assert_eq!(WorkerFacts::of(&again).unwrap().generation, 2);
    assert_eq!(
        ledger.refusal(worker(transition(TransitionKind::Renew, &leased), member())).await,
        "stale-worker-lease"
    );
    let out = ledger.done(worker(transition(TransitionKind::Quarantine, &again), machine("m1"))).await;
    assert_eq!(WorkerFacts::of(&out).unwrap().state, WorkerState::Quarantined);
    assert_eq!(
        ledger.refusal(worker(transition(TransitionKind::Quarantine, &out), machine("m1"))).await,
        "already-quarantined"
    );
    assert_eq!(ledger.row("pod-worker-lease:w1").unwrap().unwrap(), *out);
    assert_eq!(*case.policy.violations.lock(), Vec::<String>::new());
    ledger.close().await;
}

#[tokio::test]
async fn workers_are_taken_in_order_of_registration_and_only_while_they_count() {
    let case = Case::new();
    let ledger = case.open();
    for id in ["w9", "w1", "w5"] {
        ledger.done(worker(worker_draft(id), machine("m1"))).await;
    }
    let first = ledger.done(worker(acquire("a"), member())).await;
    assert_eq!(first.name, "w9");
    let released = ledger.done(worker(transition(TransitionKind::Release, &first), member())).await;
    ledger.done(worker(transition(TransitionKind::Sanitize, &released), machine("m1"))).await;
    // Back in its place, not at the end.
    assert_eq!(ledger.done(worker(acquire("b"), member())).await.name, "w9");
    case.sleep(59_999);
    assert_eq!(ledger.done(worker(acquire("c"), member())).await.name, "w1");
    case.sleep(1);
    assert_eq!(ledger.refusal(worker(acquire("d"), member())).await, "no-warm-worker");
    ledger.close().await;
}

#[tokio::test]
async fn plain_rows_and_ports() {
    let case = Case::new();
    let ledger = case.open();
    let row = ledger.done(plain(instance("i1"))).await;
    assert_eq!((row.owner.as_str(), row.observed_at), ("owner-of-member", 1_000_000));
    case.sleep(5);
    let merged = ledger.done(plain(beat("i1", r#"{"note":"ü","10":1.5,"2":null}"#))).await;
    assert_eq!((merged.attrs.as_ref(), merged.observed_at), (r#"{"2":null,"10":1.5,"load":1,"note":"ü"}"#, 1_000_005));
    let foreign = Submission { caller: machine("m1"), ..plain(beat("i1", "{}")) };
    assert_eq!(ledger.refusal(foreign).await, "not-owner");
    let Operation::Register(draft) = instance("i1") else { panic!() };
    let renamed = Operation::Register(RowDraft {
        name: "renamed".to_owned(),
        kind: Kind::Image,
        machine: "elsewhere".to_owned(),
        ttl_ms: 0.0,
        ..draft
    });
    let renamed = ledger.done(plain(renamed)).await;
    assert_eq!((renamed.name.as_str(), renamed.kind, renamed.machine.as_str()), ("renamed", Kind::Image, "elsewhere"));
    let removed = ledger.apply(plain(Operation::Remove { id: "i1".to_owned() })).await.unwrap();
    assert!(removed.row.is_none() && removed.policy.as_ref() == "reference");
    assert_eq!(ledger.row("i1").unwrap(), None);
    assert_eq!(ledger.refusal(plain(Operation::Remove { id: "i1".to_owned() })).await, "not-found");

    let first = ledger.done(plain(port("local"))).await;
    let second = ledger.done(plain(port("local"))).await;
    assert_eq!((first.id.as_str(), second.id.as_str()), ("port-lease:31450", "port-lease:31451"));
    let lease_id = attrs(&first)["leaseId"].as_str().unwrap().to_owned();
    let renew = |lease_id: &str| Operation::RenewPort { port: 31_450, lease_id: lease_id.to_owned() };
    assert_eq!(ledger.refusal(plain(renew("wrong"))).await, "not-owner");
    assert_eq!(attrs(&*ledger.done(plain(renew(&lease_id))).await), attrs(&first));
    case.sleep(30_000);
    let replaced = ledger.done(plain(port("local"))).await;
    assert_eq!(replaced.id, "port-lease:31450");
    assert_ne!(attrs(&replaced)["leaseId"], lease_id);
    let release =
        Operation::ReleasePort { port: 31_450, lease_id: attrs(&replaced)["leaseId"].as_str().unwrap().to_owned() };
    assert!(ledger.apply(plain(release)).await.unwrap().row.is_none());
    assert_eq!(*case.policy.violations.lock(), Vec::<String>::new());
    ledger.close().await;
}

#[tokio::test]
async fn the_host_quarantines_from_every_state_without_policy_or_primary() {
    let case = Case::new();
    let ledger = case.open();
    for id in ["idle", "leased", "sanitizing"] {
        ledger.done(worker(worker_draft(id), machine("m1"))).await;
    }
    let rows = [ledger.done(worker(acquire("a"), member())).await, ledger.done(worker(acquire("b"), member())).await];
    assert_eq!(rows[0].name, "idle");
    let back = ledger.done(worker(transition(TransitionKind::Release, &rows[0]), member())).await;
    ledger.done(worker(transition(TransitionKind::Release, &rows[1]), member())).await;
    ledger.done(worker(transition(TransitionKind::Sanitize, &back), machine("m1"))).await;
    let held = ledger.done(worker(acquire("c"), member())).await;
    *case.primary.view.lock() = None;
    for (id, before) in [("idle", "leased"), ("leased", "sanitizing"), ("sanitizing", "idle")] {
        let row = ledger.row(&worker_row_id(id)).unwrap().unwrap();
        assert_eq!(attrs(&row)["state"], before);
        let applied = ledger.quarantine(id, "lost proof").await.unwrap();
        let after = applied.row.unwrap();
        assert_eq!(applied.policy.as_ref(), "host");
        let mut expected = attrs(&row);
        expected["state"] = json!("quarantined");
        expected["reason"] = json!("lost proof");
        assert_eq!(attrs(&after), expected);
        assert_eq!((after.ttl_ms, after.observed_at), (row.ttl_ms, 1_000_000));
        assert_eq!(ledger.quarantine(id, "again").await.unwrap_err().code(), "already-quarantined");
    }
    assert_eq!(ledger.quarantine("nobody", "x").await.unwrap_err().code(), "not-found");
    assert_eq!(held.name, "idle");
    ledger.close().await;
}

#[tokio::test]
async fn records_compare_and_set() {
    let case = Case::new();
    let ledger = case.open();
    let one = ledger.put_record("replay", "r1", Expect::Absent, json!({"n": 1, "big": u64::MAX})).await.unwrap();
    assert_eq!(
        ledger.get_record("replay", "r1").unwrap().unwrap(),
        Record { id: "r1".into(), seq: one, body: json!({"n": 1, "big": u64::MAX}) }
    );
    let again = ledger.put_record("replay", "r1", Expect::Absent, json!(2)).await.unwrap_err();
    assert!(matches!(again, ApplyError::Conflict { current } if current == Some(one)));
    let two = ledger.put_record("replay", "r1", Expect::Seq(one), json!({"n": 2})).await.unwrap();
    assert!(two > one);
    assert_eq!(
        ledger.put_record("replay", "r1", Expect::Seq(one), json!(3)).await.unwrap_err().code(),
        "record-conflict"
    );
    ledger.put_record("replay", "r0", Expect::Any, json!([])).await.unwrap();
    ledger.put_record("worker", "r1", Expect::Any, json!("other")).await.unwrap();
    let ids = |after| ledger.list_records("replay", after, 10).unwrap().into_iter().map(|r| r.id).collect::<Vec<_>>();
    assert_eq!((ids(None), ids(Some("r0"))), (vec!["r0".to_owned(), "r1".to_owned()], vec!["r1".to_owned()]));
    ledger.remove_record("replay", "r1", Expect::Seq(two)).await.unwrap();
    assert_eq!(ledger.get_record("replay", "r1").unwrap(), None);
    // A racing change of one document has one winner.
    let seq = ledger.put_record("replay", "race", Expect::Absent, json!(0)).await.unwrap();
    let mut racers = tokio::task::JoinSet::new();
    for n in 1..=16 {
        let ledger = ledger.clone();
        racers.spawn(async move { ledger.put_record("replay", "race", Expect::Seq(seq), json!(n)).await.is_ok() });
    }
    assert_eq!(racers.join_all().await.into_iter().filter(|won| *won).count(), 1);
    ledger.close().await;
}
