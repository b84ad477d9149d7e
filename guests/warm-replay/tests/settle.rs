//! The caller's verdict: given back, or out of use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use warm_replay::settle::stored_reason;
use warm_replay::{Settings, WarmReplay, provenance};
use warmhold_sdk::replay::harness::{FakeHost, FakeLease, Leased, POD_UID, candidate};
use warmhold_sdk::replay::{ClusterError, ControlError, ReplayPolicy};
use warmhold_sdk::serde_json::{self, json};
use warmhold_sdk::{Level, Policy};

fn lease(host: &FakeHost) -> FakeLease {
    host.lease(Leased {
        id: "0a1b2c3d-0000-4000-8000-0123456789ab".into(),
        worker: "w1".into(),
        generation: 3,
        run_id: "run-1".into(),
        attempt_id: "1".into(),
        pod_uid: Some(POD_UID.into()),
        key: candidate("w1").spec.key,
    })
}

#[test]
fn finalize_releases_marks_and_sanitizes() {
    let host = FakeHost::new(1, "{}");
    WarmReplay.finalize(&host, lease(&host), &candidate("w1")).unwrap();
    assert_eq!(host.journal(), ["release", "annotate warm-m1-lite-w1 idle", "sanitize"]);
}

#[test]
fn any_refusal_on_the_way_quarantines_and_is_an_error() {
    type Prepare = fn(&FakeHost);
    let table: [(&str, Prepare); 3] = [
        ("release", |host| host.script.release.push(Err(ControlError::Refused((409, "not-leased".into()))))),
        ("marking", |host| host.script.annotate.push(Err(ClusterError::Conflict))),
        ("sanitize", |host| host.script.sanitize.push(Err(ControlError::Refused((409, "unclean".into()))))),
    ];
    for (step, prepare) in table {
        let host = FakeHost::new(1, "{}");
        prepare(&host);
        let why = WarmReplay.finalize(&host, lease(&host), &candidate("w1")).unwrap_err();
        assert!(why.starts_with(step) && why.contains("w1 is quarantined"), "{why}");
        let journal = host.journal();
        assert!(journal.contains(&"quarantine sanitize-unavailable".to_owned()), "{step}: {journal:?}");
        assert_eq!(journal.last().unwrap(), "annotate warm-m1-lite-w1 quarantined", "{step}");
        assert_eq!(host.environment.lines()[0].0, Level::Warn, "{step}");
    }
}

#[test]
fn a_worker_that_can_neither_be_cleaned_nor_quarantined_is_told_and_left_to_the_host() {
    let host = FakeHost::new(1, "{}");
    host.script.release.push(Err(ControlError::Unreachable("gone".into())));
    host.script.quarantine.push(Err(ControlError::Unreachable("gone".into())));
    let why = WarmReplay.finalize(&host, lease(&host), &candidate("w1")).unwrap_err();
    assert!(why.contains("release: ") && why.contains("can't be quarantined"), "{why}");
    assert_eq!(host.journal().last().unwrap(), "DROPPED w1");
}

#[test]
fn quarantine_asks_the_ledger_first_and_the_mark_may_fail() {
    let host = FakeHost::new(1, "{}");
    host.script.annotate.push(Err(ClusterError::TimedOut));
    WarmReplay.quarantine(&host, lease(&host), &candidate("w1"), "outputs differ").unwrap();
    assert_eq!(host.journal(), ["quarantine outputs differ", "annotate warm-m1-lite-w1 quarantined"]);

    let host = FakeHost::new(1, "{}");
    host.script.quarantine.push(Err(ControlError::Refused((503, "ledger-busy".into()))));
    let why = WarmReplay.quarantine(&host, lease(&host), &candidate("w1"), "x").unwrap_err();
    assert!(why.contains("ledger-busy"), "{why}");
    assert_eq!(host.journal(), ["quarantine x", "DROPPED w1"], "no mark before the ledger says so");
}

#[test]
fn a_reason_is_cut_at_120_characters() {
    assert_eq!(stored_reason(""), "mismatch");
    assert_eq!(stored_reason(" \n"), "mismatch");
    assert_eq!(stored_reason("why"), "why");
    assert_eq!(stored_reason(&"é".repeat(121)), "é".repeat(120));
}

#[test]
fn a_leases_id_is_shown_by_its_end() {
    assert_eq!(provenance::short("0a1b2c3d-0000-4000-8000-0123456789ab"), "456789ab");
    assert_eq!(provenance::short("abc"), "abc");
    assert_eq!(provenance::short(""), "");
    assert_eq!(provenance::short("aéééééééé"), "éééééééé");
}

#[test]
fn settings_are_checked_whole() {
    let check = |text: &str| {
        WarmReplay.check_settings(serde_json::from_str::<serde_json::Value>(text).unwrap().as_object().unwrap())
    };
    assert!(check("{}").is_empty());
    assert!(
        check(r#"{"lease-ttl-ms":1,"idle-ttl-ms":86400000,"transport-limit-ms":6e4,"ready-wait-seconds":900}"#)
            .is_empty()
    );
    let faults = check(
        r#"{"lease-ttl-ms":0,"idle-ttl-ms":86400001,"transport-limit-ms":"1","ready-wait-seconds":1.5,"lease-tll-ms":1}"#,
    );
    assert_eq!(faults.len(), 5, "{faults:?}");
    assert_eq!(faults[0], "lease-tll-ms: unknown setting; did you mean lease-ttl-ms?");
    let read = Settings::read(json!({"lease-ttl-ms": 60000.0}).as_object().unwrap()).unwrap();
    assert_eq!(read, Settings { lease_ttl_ms: 60_000, ..Settings::default() });
}
