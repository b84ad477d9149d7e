//! What the fence says of the lease policies that answer at all. Those that don't answer need a host.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use hostile::lease::{DuplicateKeys, ForgedOwner, GenerationKept, Hostile, LeaseQuarantined, ManyRows, Misdeed, Panic};
use warmhold_sdk::Policy;
use warmhold_sdk::lease::harness::{Failure, Harness, machine, member};
use warmhold_sdk::lease::standard::worker_row_id;
use warmhold_sdk::lease::{Ledger, Operation, Refusal, Transition, TransitionKind};

/// An acquire with one idle worker: what the fence says.
fn violation<M: Misdeed>() -> String {
    let mut harness = Harness::new(Hostile::<M>::default());
    let before = harness.idle_worker("w1", "m1").unwrap();
    match harness.ask(&member("ann"), &Operation::Acquire(harness.request("run"))) {
        Err(Failure::Violation(violation)) => {
            assert_eq!(harness.ledger.rows(), [before], "nothing is written");
            violation
        }
        other => panic!("{}: {other:?}", M::NAME),
    }
}

#[test]
fn each_is_refused_for_what_it_does() {
    assert!(violation::<ForgedOwner>().contains("owner"));
    assert!(violation::<GenerationKept>().contains("generation"));
    assert!(violation::<ManyRows>().contains("exactly one row"));
    assert!(violation::<DuplicateKeys>().contains("twice"));
}

#[test]
fn a_quarantined_worker_is_not_leased() {
    let mut harness = Harness::new(Hostile::<LeaseQuarantined>::default());
    let acquire = Operation::Acquire(harness.request("run"));
    assert_eq!(harness.ask(&member("ann"), &acquire), Err(Failure::Refused(Refusal::NoWarmWorker)));
    // It behaves until there is one to revive.
    let mut row = harness.idle_worker("w1", "m1").unwrap();
    row.attrs = row.attrs.replace("\"idle\"", "\"leased\"").replacen('{', "{\"leaseId\":\"l\",", 1);
    harness.ledger.put(row);
    let quarantine =
        Transition { worker_id: "w1".into(), lease_id: "l".into(), generation: 0, ttl_ms: None, reason: None };
    harness.ask(&machine("m1"), &Operation::Transition(TransitionKind::Quarantine, quarantine)).unwrap();
    let quarantined = harness.ledger.get(&worker_row_id("w1"));
    match harness.ask(&member("ann"), &acquire) {
        Err(Failure::Violation(violation)) => assert!(violation.contains("idle"), "{violation}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(harness.ledger.get(&worker_row_id("w1")), quarantined);
}

#[test]
fn a_panic_has_a_text() {
    let caught = std::panic::catch_unwind(|| {
        let mut harness = Harness::new(Hostile::<Panic>::default());
        harness.ask(&member("ann"), &Operation::Acquire(harness.request("run")))
    });
    let text = *caught.unwrap_err().downcast::<String>().unwrap();
    assert!(text.starts_with("panic was asked at "), "{text}");
}

/// Whatever isn't an acquire is answered as the standard policy answers it.
#[test]
fn the_rest_is_standard() {
    let mut harness = Harness::new(Hostile::<ForgedOwner>::default());
    let remove = Operation::Remove { id: "nothing".into() };
    assert_eq!(harness.ask(&member("ann"), &remove), Err(Failure::Refused(Refusal::NotFound)));
    assert_eq!(harness.policy.identity().name, "forged-owner");
}
