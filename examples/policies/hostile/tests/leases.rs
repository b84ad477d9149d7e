//! What the replay policies do with their lease, as the host sees it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use hostile::replay::{DropLease, Hostile, KeepLease, Misdeed, OtherPod, PanicHolding, SanitizeUnclean};
use warmhold_sdk::replay::harness::{FakeHost, candidate, input};
use warmhold_sdk::replay::{ControlError, Fallback, Outcome, ReplayPolicy, TransportError};

const NOW: u64 = 1_796_068_669_125;

fn run<M: Misdeed>(host: &FakeHost) -> Fallback {
    match Hostile::<M>::default().request(host, &input(NOW), &[candidate("w1"), candidate("w2")]) {
        Outcome::Fallback(fallback) => fallback,
        other => panic!("{other:?}"),
    }
}

#[test]
fn dropped_and_kept() {
    let host = FakeHost::new(NOW, "{}");
    run::<DropLease>(&host);
    assert_eq!(host.journal(), ["acquire m1 60000", "DROPPED w1"]);
    let host = FakeHost::new(NOW, "{}");
    run::<KeepLease>(&host);
    assert_eq!(host.journal(), ["acquire m1 60000"], "no destructor ever comes");
}

#[test]
fn another_pod_is_named() {
    let host = FakeHost::new(NOW, "{}");
    host.script.exec.push(Err(TransportError::WrongPod("not the lease's".into())));
    let detail = run::<OtherPod>(&host).detail.unwrap();
    assert!(detail.contains("warm-m1-lite-w2") && detail.contains("not the lease's"), "{detail}");
    assert!(host.journal().iter().any(|line| line.starts_with("exec warm-m1-lite-w2 ")));
    assert_eq!(host.journal().last().unwrap(), "DROPPED w1");
}

#[test]
fn sanitize_is_asked_for_without_proof() {
    let host = FakeHost::new(NOW, "{}");
    host.script.exec.push(Err(TransportError::NoVerdict("closed".into())));
    host.script.sanitize.push(Err(ControlError::Refused((409, "not-proven-clean".into()))));
    let detail = run::<SanitizeUnclean>(&host).detail.unwrap();
    assert!(detail.contains("release: accepted") && detail.contains("not-proven-clean"), "{detail}");
}

#[test]
fn a_panic_names_the_worker() {
    let caught = std::panic::catch_unwind(|| {
        let host = FakeHost::new(NOW, "{}");
        run::<PanicHolding>(&host)
    });
    assert_eq!(*caught.unwrap_err().downcast::<String>().unwrap(), "panic-holding holds the lease of w1");
}
