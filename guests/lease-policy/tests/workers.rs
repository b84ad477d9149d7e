//! The life of a worker: every state, every action, every guard.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use lease_policy::Standard;
use warmhold_sdk::lease::harness::{Failure, Harness, key, key_json, machine, member};
use warmhold_sdk::lease::standard::worker_row_id;
use warmhold_sdk::lease::{
    Caller, Ledger, Operation, Refusal, Row, Transition, TransitionKind, WorkerDraft, WorkerKey, WorkerRequest,
};
use warmhold_sdk::serde_json::{self, Value, json};

fn harness() -> Harness<Standard> {
    Harness::new(Standard)
}

fn attrs(row: &Row) -> Value {
    serde_json::from_str(&row.attrs).unwrap()
}

fn refused(harness: &mut Harness<Standard>, who: &Caller, operation: &Operation) -> Refusal {
    let rows = harness.ledger.rows().to_vec();
    match harness.ask(who, operation) {
        Err(Failure::Refused(refusal)) => {
            assert_eq!(harness.ledger.rows(), rows, "a refusal writes nothing");
            refusal
        }
        other => panic!("{operation:?}: {other:?}"),
    }
}

fn written(harness: &mut Harness<Standard>, who: &Caller, operation: &Operation) -> Row {
    harness.ask(who, operation).unwrap_or_else(|failure| panic!("{operation:?}: {failure:?}")).unwrap()
}

fn draft(worker_id: &str) -> WorkerDraft {
    WorkerDraft {
        worker_id: worker_id.to_owned(),
        machine: "m1".to_owned(),
        key: key(),
        key_json: key_json(&key()),
        pod_uid: Some("uid-1".to_owned()),
        ttl_ms: 60_000,
    }
}

fn request() -> WorkerRequest {
    WorkerRequest { machine: None, key: key(), run_id: "run-1".into(), attempt_id: "att-1".into(), ttl_ms: 5_000 }
}

fn fence(row: &Row) -> Transition {
    let attrs = attrs(row);
    Transition {
        worker_id: row.name.clone(),
        lease_id: attrs["leaseId"].as_str().unwrap_or_default().to_owned(),
        generation: attrs["generation"].as_u64().unwrap(),
        ttl_ms: None,
        reason: None,
    }
}

#[test]
fn registers_idle_at_generation_0() {
    let mut harness = harness();
    let row = written(&mut harness, &machine("m1"), &Operation::RegisterWorker(draft("w1")));
    assert_eq!(row.id, "pod-worker-lease:w1");
    assert_eq!((row.kind.as_str(), row.machine.as_str(), row.name.as_str()), ("pod-worker-lease", "m1", "w1"));
    assert_eq!(
        (row.owner.as_str(), row.observed_at, row.ttl_ms),
        (machine("m1").owner.as_str(), harness.now, 60_000.0)
    );
    assert_eq!(row.endpoint, None);
    let key: Value = serde_json::from_str(&key_json(&key())).unwrap();
    assert_eq!(
        attrs(&row),
        json!({"key": key, "state": "idle", "generation": 0, "idleTtlMs": 60000, "podUid": "uid-1"})
    );
}

#[test]
fn a_worker_without_a_pod_has_no_pod_uid() {
    let mut harness = harness();
    let row =
        written(&mut harness, &machine("m1"), &Operation::RegisterWorker(WorkerDraft { pod_uid: None, ..draft("w1") }));
    assert!(attrs(&row).get("podUid").is_none());
}

#[test]
fn a_key_is_stored_whole_and_counts_by_four_fields() {
    let mut harness = harness();
    let mut whole: Value = serde_json::from_str(&key_json(&key())).unwrap();
    whole["extra"] = json!({"kept": [1, 2.5]});
    let draft = WorkerDraft { key_json: whole.to_string(), ..draft("w1") };
    written(&mut harness, &machine("m1"), &Operation::RegisterWorker(draft));
    let leased = written(&mut harness, &member("ann"), &Operation::Acquire(request()));
    assert_eq!(attrs(&leased)["key"], whole);
}

#[test]
fn an_id_is_used_once_ever() {
    let mut harness = harness();
    let register = Operation::RegisterWorker(draft("w1"));
    written(&mut harness, &machine("m1"), &register);
    assert_eq!(refused(&mut harness, &machine("m1"), &register), Refusal::WorkerIdUsed);
    assert_eq!(refused(&mut harness, &machine("m2"), &register), Refusal::NotOwner);
    harness.now += 86_400_000 * 30;
    assert_eq!(refused(&mut harness, &machine("m1"), &register), Refusal::WorkerIdUsed, "an expired one too");
}

#[test]
fn an_id_that_is_a_row_of_another_kind_conflicts() {
    let mut harness = harness();
    let mut row = harness.idle_worker("w1", "m1").unwrap();
    row.kind = "instance".to_owned();
    harness.ledger.put(row);
    let register = Operation::RegisterWorker(draft("w1"));
    assert_eq!(refused(&mut harness, &machine("m2"), &register), Refusal::WorkerIdConflict);
    let renew = Operation::Transition(
        TransitionKind::Renew,
        Transition { worker_id: "w1".into(), lease_id: "x".into(), generation: 1, ttl_ms: None, reason: None },
    );
    assert_eq!(refused(&mut harness, &member("ann"), &renew), Refusal::NotFound);
}

#[test]
fn out_of_bounds_is_invalid() {
    let mut harness = harness();
    for ttl_ms in [0, 86_400_001, u64::MAX] {
        let register = Operation::RegisterWorker(WorkerDraft { ttl_ms, ..draft("w1") });
        assert_eq!(refused(&mut harness, &machine("m1"), &register), Refusal::Invalid);
    }
    for key_json in ["[]", "{", "null", "7"] {
        let register = Operation::RegisterWorker(WorkerDraft { key_json: key_json.into(), ..draft("w1") });
        assert_eq!(refused(&mut harness, &machine("m1"), &register), Refusal::Invalid, "{key_json}");
    }
    harness.idle_worker("w1", "m1").unwrap();
    for ttl_ms in [0, 86_400_001] {
        let acquire = Operation::Acquire(WorkerRequest { ttl_ms, ..request() });
        assert_eq!(refused(&mut harness, &member("ann"), &acquire), Refusal::Invalid);
    }
    let row = written(&mut harness, &member("ann"), &Operation::Acquire(request()));
    for ttl_ms in [0, 86_400_001] {
        let renew = Operation::Transition(TransitionKind::Renew, Transition { ttl_ms: Some(ttl_ms), ..fence(&row) });
        assert_eq!(refused(&mut harness, &member("ann"), &renew), Refusal::Invalid);
    }
}

#[test]
fn acquires_the_first_that_fits() {
    let mut harness = harness();
    for (worker, machine_name) in [("w3", "m1"), ("w1", "m2"), ("w2", "m1")] {
        harness.idle_worker(worker, machine_name).unwrap();
    }
    let ann = member("ann");
    let of_m2 = WorkerRequest { machine: Some("m2".into()), ..request() };
    assert_eq!(written(&mut harness, &ann, &Operation::Acquire(of_m2.clone())).name, "w1");
    assert_eq!(refused(&mut harness, &ann, &Operation::Acquire(of_m2)), Refusal::NoWarmWorker);
    let row = written(&mut harness, &ann, &Operation::Acquire(request()));
    assert_eq!(row.name, "w3", "registration order, not that of the ids");
    assert_eq!((row.ttl_ms, row.owner.as_str()), (5_000.0, machine("m1").owner.as_str()));
    let leased = attrs(&row);
    assert_eq!(leased["state"], "leased");
    assert_eq!(leased["generation"], 1);
    assert_eq!(leased["leaseOwner"], ann.owner.as_str());
    assert_eq!((leased["runId"].as_str(), leased["attemptId"].as_str()), (Some("run-1"), Some("att-1")));
    assert_eq!(leased["idleTtlMs"], 60_000);
    let other: [fn(&mut WorkerKey); 4] = [
        |key| key.context.push('x'),
        |key| key.image_digest.push('x'),
        |key| key.lock_hash.push('x'),
        |key| key.architecture.push('x'),
    ];
    for change in other {
        let mut request = request();
        change(&mut request.key);
        assert_eq!(refused(&mut harness, &ann, &Operation::Acquire(request)), Refusal::NoWarmWorker);
    }
}

#[test]
fn an_expired_idle_worker_is_never_leased_and_one_from_the_future_is() {
    let mut harness = harness();
    harness.idle_worker("w1", "m1").unwrap();
    harness.now += 60_000;
    let acquire = Operation::Acquire(request());
    assert_eq!(refused(&mut harness, &member("ann"), &acquire), Refusal::NoWarmWorker, "age equals the time to live");
    harness.now -= 1;
    let mut future = harness.ledger.get(&worker_row_id("w1")).unwrap();
    future.observed_at = harness.now + 3_600_000;
    harness.ledger.put(future);
    assert_eq!(written(&mut harness, &member("ann"), &acquire).observed_at, harness.now);
}

/// A whole cycle keeps what it must keep, and raises the generation once.
#[test]
fn a_cycle_leaves_nothing_of_the_lease() {
    let mut harness = harness();
    let idle = written(&mut harness, &machine("m1"), &Operation::RegisterWorker(draft("w1")));
    for generation in 1..=3 {
        harness.now += 7;
        let leased = written(&mut harness, &member("ann"), &Operation::Acquire(request()));
        let carry = |kind, ttl_ms, reason: Option<&str>| {
            Operation::Transition(kind, Transition { ttl_ms, reason: reason.map(Into::into), ..fence(&leased) })
        };
        harness.now += 7;
        let renewed = written(&mut harness, &member("ann"), &carry(TransitionKind::Renew, Some(90_000), Some("why")));
        assert_eq!((renewed.ttl_ms, renewed.observed_at), (90_000.0, harness.now));
        assert_eq!(attrs(&renewed)["reason"], "why");
        let again = written(&mut harness, &member("ann"), &carry(TransitionKind::Renew, None, None));
        assert_eq!((again.ttl_ms, attrs(&again)["reason"].as_str()), (90_000.0, Some("why")), "both stay");
        let released = written(&mut harness, &member("ann"), &carry(TransitionKind::Release, None, None));
        assert_eq!(attrs(&released)["state"], "sanitizing");
        assert_eq!(attrs(&released)["leaseId"], attrs(&leased)["leaseId"], "the lease stays while it is cleaned");
        harness.now += 7;
        // Neither a time to live nor a reason is taken by sanitize.
        let clean = written(&mut harness, &machine("m1"), &carry(TransitionKind::Sanitize, Some(1), Some("no")));
        assert_eq!((clean.ttl_ms, clean.observed_at), (60_000.0, harness.now));
        let mut want = attrs(&idle);
        want["generation"] = json!(generation);
        assert_eq!(attrs(&clean), want);
    }
}

/// Who acts, as the guard sees them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Holder,
    Registrar,
    Stranger,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fence {
    Right,
    WrongLease,
    EmptyLease,
    WrongGeneration,
}

/// What the spec's table and its order of judging say, written down apart from the policy.
fn expected(state: &str, expired: bool, kind: TransitionKind, who: Who, fence: Fence) -> Result<&'static str, Refusal> {
    if state == "none" {
        return Err(Refusal::NotFound);
    }
    // An idle worker has no lease that could be named.
    if fence != Fence::Right || state == "idle" {
        return Err(Refusal::StaleWorkerLease);
    }
    let allowed = match kind {
        TransitionKind::Renew | TransitionKind::Release => who == Who::Holder,
        TransitionKind::Sanitize => who == Who::Registrar,
        TransitionKind::Quarantine => who != Who::Stranger,
    };
    if !allowed {
        return Err(Refusal::NotOwner);
    }
    match (kind, state) {
        (TransitionKind::Renew, "leased") if !expired => Ok("leased"),
        (TransitionKind::Renew, _) => Err(Refusal::LeaseExpired),
        (TransitionKind::Release, "leased") => Ok("sanitizing"),
        (TransitionKind::Release, _) => Err(Refusal::NotLeased),
        (TransitionKind::Sanitize, "sanitizing") => Ok("idle"),
        (TransitionKind::Sanitize, _) => Err(Refusal::NotSanitizing),
        (TransitionKind::Quarantine, "quarantined") => Err(Refusal::AlreadyQuarantined),
        (TransitionKind::Quarantine, _) => Ok("quarantined"),
    }
}

#[test]
fn every_state_action_and_guard() {
    let mut cases = 0;
    for state in ["none", "idle", "leased", "sanitizing", "quarantined"] {
        for expired in [false, true] {
            for kind in TransitionKind::ALL {
                for who in [Who::Holder, Who::Registrar, Who::Stranger] {
                    for fence in [Fence::Right, Fence::WrongLease, Fence::EmptyLease, Fence::WrongGeneration] {
                        case(state, expired, kind, who, fence);
                        cases += 1;
                    }
                }
            }
        }
    }
    assert_eq!(cases, 5 * 2 * 4 * 3 * 4);
}

fn case(state: &str, expired: bool, kind: TransitionKind, who: Who, given: Fence) {
    let mut harness = harness();
    let mut lease = Transition {
        worker_id: "w1".into(),
        lease_id: "a-lease".into(),
        generation: 1,
        ttl_ms: Some(7_000),
        reason: Some("because".into()),
    };
    if state != "none" {
        harness.idle_worker("w1", "m1").unwrap();
        let mut row = harness.ledger.get(&worker_row_id("w1")).unwrap();
        if state != "idle" {
            row = written(&mut harness, &member("ann"), &Operation::Acquire(request()));
            lease = Transition { ttl_ms: lease.ttl_ms, reason: lease.reason, ..fence(&row) };
        }
        let mut stored = attrs(&row);
        stored["state"] = json!(state);
        row.attrs = stored.to_string();
        harness.ledger.put(row.clone());
        harness.now += if expired { 60_000 } else { 10 };
    }
    match given {
        Fence::Right => {}
        Fence::WrongLease => lease.lease_id = "00000000-0000-4000-8000-ffffffffffff".into(),
        Fence::EmptyLease => lease.lease_id = String::new(),
        Fence::WrongGeneration => lease.generation += 1,
    }
    let caller = match who {
        Who::Holder => member("ann"),
        Who::Registrar => machine("m1"),
        Who::Stranger => member("bob"),
    };
    let before = harness.ledger.get(&worker_row_id("w1"));
    let label = format!("{state} expired={expired} {kind:?} {who:?} {given:?}");
    let got = harness.ask(&caller, &Operation::Transition(kind, lease));
    match expected(state, expired, kind, who, given) {
        Err(refusal) => {
            assert_eq!(got, Err(Failure::Refused(refusal)), "{label}");
            assert_eq!(harness.ledger.get(&worker_row_id("w1")), before, "{label}");
        }
        Ok(next) => {
            let row = got.unwrap_or_else(|failure| panic!("{label}: {failure:?}")).unwrap();
            let before = before.unwrap();
            let (old, new) = (attrs(&before), attrs(&row));
            assert_eq!(new["state"], next, "{label}");
            assert_eq!(row.observed_at, harness.now, "{label}");
            assert_eq!(new["generation"], old["generation"], "{label}");
            for same in ["key", "podUid", "idleTtlMs"] {
                assert_eq!(new[same], old[same], "{label}");
            }
            assert_eq!(
                (&row.owner, &row.machine, &row.name),
                (&before.owner, &before.machine, &before.name),
                "{label}"
            );
            if next == "idle" {
                assert_eq!(row.ttl_ms, 60_000.0, "{label}");
                for gone in ["leaseId", "leaseOwner", "runId", "attemptId", "reason"] {
                    assert!(new.get(gone).is_none(), "{label}: {gone}");
                }
            } else {
                assert_eq!((row.ttl_ms, new["reason"].as_str()), (7_000.0, Some("because")), "{label}");
                for same in ["leaseId", "leaseOwner", "runId", "attemptId"] {
                    assert_eq!(new[same], old[same], "{label}");
                }
            }
        }
    }
}

#[test]
fn without_a_ttl_or_a_reason_the_rows_own_stay() {
    for kind in [TransitionKind::Renew, TransitionKind::Release, TransitionKind::Quarantine] {
        let mut harness = harness();
        harness.idle_worker("w1", "m1").unwrap();
        let leased = written(&mut harness, &member("ann"), &Operation::Acquire(request()));
        let row = written(&mut harness, &member("ann"), &Operation::Transition(kind, fence(&leased)));
        assert_eq!(row.ttl_ms, 5_000.0, "{kind:?}");
        assert!(attrs(&row).get("reason").is_none(), "{kind:?}");
    }
}

#[test]
fn a_leased_worker_whose_attributes_are_damaged_is_stale_and_never_a_panic() {
    for damage in ["", "[]", "{", "{\"state\":\"leased\"}", "{\"leaseId\":7,\"generation\":\"1\"}"] {
        let mut harness = harness();
        let mut row = harness.idle_worker("w1", "m1").unwrap();
        row.attrs = damage.to_owned();
        harness.ledger.put(row);
        for kind in TransitionKind::ALL {
            let request =
                Transition { worker_id: "w1".into(), lease_id: "a".into(), generation: 1, ttl_ms: None, reason: None };
            let refusal = refused(&mut harness, &member("ann"), &Operation::Transition(kind, request));
            assert_eq!(refusal, Refusal::StaleWorkerLease, "{damage} {kind:?}");
        }
    }
}

/// A row that was imported with an empty lease isn't open to everybody who names none.
#[test]
fn an_empty_lease_is_no_fence() {
    let mut harness = harness();
    harness.idle_worker("w1", "m1").unwrap();
    let mut row = written(&mut harness, &member("ann"), &Operation::Acquire(request()));
    let mut stored = attrs(&row);
    stored["leaseId"] = json!("");
    row.attrs = stored.to_string();
    harness.ledger.put(row.clone());
    let renew = Operation::Transition(TransitionKind::Renew, fence(&row));
    assert_eq!(refused(&mut harness, &member("ann"), &renew), Refusal::StaleWorkerLease);
}
