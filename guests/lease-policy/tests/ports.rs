//! Ports of a band.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use lease_policy::Standard;
use warmhold_sdk::lease::harness::{Failure, Harness, machine, member};
use warmhold_sdk::lease::{Caller, Operation, PortRequest, Refusal, Row};
use warmhold_sdk::serde_json::{self, Value, json};

fn request() -> PortRequest {
    PortRequest {
        machine: "local".to_owned(),
        purpose: "test-svc".to_owned(),
        ttl_ms: 30_000.0,
        excluded: Vec::new(),
        first: 31450,
        last: 31499,
    }
}

fn lease(harness: &mut Harness<Standard>, who: &Caller, request: PortRequest) -> (u64, String, Row) {
    let row = harness.ask(who, &Operation::LeasePort(request)).unwrap().unwrap();
    let attrs: Value = serde_json::from_str(&row.attrs).unwrap();
    (attrs["port"].as_u64().unwrap(), attrs["leaseId"].as_str().unwrap().to_owned(), row)
}

fn refusal(result: Result<Option<Row>, Failure>) -> Refusal {
    match result {
        Err(Failure::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_is_the_lowest_port() {
    let mut harness = Harness::new(Standard);
    let (port, lease_id, row) = lease(&mut harness, &member("ann"), request());
    assert_eq!(port, 31450);
    assert_eq!((row.id.as_str(), row.kind.as_str()), ("port-lease:31450", "port-lease"));
    assert_eq!((row.machine.as_str(), row.name.as_str(), row.endpoint), ("local", "test-svc", None));
    assert_eq!(
        (row.owner.as_str(), row.observed_at, row.ttl_ms),
        (member("ann").owner.as_str(), harness.now, 30_000.0)
    );
    let attrs: Value = serde_json::from_str(&row.attrs).unwrap();
    assert_eq!(attrs, json!({"port": 31450, "purpose": "test-svc", "leaseId": lease_id}));
    assert_eq!(lease(&mut harness, &machine("m1"), request()).0, 31451);
    let excluding = PortRequest { excluded: vec![31452, 31454], ..request() };
    assert_eq!(lease(&mut harness, &member("ann"), excluding.clone()).0, 31453);
    assert_eq!(lease(&mut harness, &member("ann"), excluding).0, 31455);
}

#[test]
fn a_band_ends() {
    let mut harness = Harness::new(Standard);
    for port in 31450..=31499 {
        assert_eq!(lease(&mut harness, &member("ann"), request()).0, port);
    }
    assert_eq!(refusal(harness.ask(&member("ann"), &Operation::LeasePort(request()))), Refusal::NoPort);
    let top = PortRequest { first: 65535, last: 65535, ..request() };
    assert_eq!(lease(&mut harness, &member("ann"), top.clone()).0, 65535);
    assert_eq!(refusal(harness.ask(&member("ann"), &Operation::LeasePort(top))), Refusal::NoPort);
    let upside_down = PortRequest { first: 2, last: 1, ..request() };
    assert_eq!(refusal(harness.ask(&member("ann"), &Operation::LeasePort(upside_down))), Refusal::NoPort);
}

#[test]
fn an_expired_lease_is_replaced_and_worth_nothing() {
    let mut harness = Harness::new(Standard);
    let (_, old, _) = lease(&mut harness, &member("ann"), request());
    harness.now += 29_999;
    assert_eq!(lease(&mut harness, &member("bob"), request()).0, 31451);
    harness.now += 1;
    let (port, new, row) = lease(&mut harness, &member("bob"), PortRequest { purpose: "other".into(), ..request() });
    assert_eq!((port, row.owner.as_str(), row.name.as_str()), (31450, member("bob").owner.as_str(), "other"));
    assert_ne!(old, new);
    for operation in [
        Operation::RenewPort { port: 31450, lease_id: old.clone() },
        Operation::ReleasePort { port: 31450, lease_id: old },
    ] {
        assert_eq!(refusal(harness.ask(&member("ann"), &operation)), Refusal::NotOwner);
    }
    assert_eq!(harness.ledger.rows().len(), 2);
}

#[test]
fn renews_and_gives_back_with_owner_and_lease() {
    let mut harness = Harness::new(Standard);
    let (_, lease_id, _) = lease(&mut harness, &member("ann"), request());
    for (who, lease_id, port, want) in [
        ("bob", lease_id.as_str(), 31450, Refusal::NotOwner),
        ("ann", "wrong", 31450, Refusal::NotOwner),
        ("ann", "", 31450, Refusal::NotOwner),
        ("ann", lease_id.as_str(), 31499, Refusal::NotFound),
    ] {
        let renew = Operation::RenewPort { port, lease_id: lease_id.into() };
        let release = Operation::ReleasePort { port, lease_id: lease_id.into() };
        assert_eq!(refusal(harness.ask(&member(who), &renew)), want);
        assert_eq!(refusal(harness.ask(&member(who), &release)), want);
    }
    harness.now += 40_000;
    let renew = Operation::RenewPort { port: 31450, lease_id: lease_id.clone() };
    let row = harness.ask(&member("ann"), &renew).unwrap().unwrap();
    assert_eq!((row.observed_at, row.ttl_ms), (harness.now, 30_000.0), "nobody took it meanwhile");
    assert_eq!(lease(&mut harness, &member("bob"), request()).0, 31451);
    let release = Operation::ReleasePort { port: 31450, lease_id };
    assert_eq!(harness.ask(&member("ann"), &release).unwrap(), None);
    assert_eq!(refusal(harness.ask(&member("ann"), &release)), Refusal::NotFound);
    assert_eq!(lease(&mut harness, &member("bob"), request()).0, 31450);
}

#[test]
fn a_time_to_live_is_a_number_above_zero_and_at_most_a_day() {
    let mut harness = Harness::new(Standard);
    for ttl_ms in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let bad = PortRequest { ttl_ms, ..request() };
        assert_eq!(refusal(harness.ask(&member("ann"), &Operation::LeasePort(bad))), Refusal::Invalid, "{ttl_ms}");
    }
    let (_, _, row) = lease(&mut harness, &member("ann"), PortRequest { ttl_ms: 3.2e11, ..request() });
    assert_eq!(row.ttl_ms, 86_400_000.0);
    let (_, _, row) = lease(&mut harness, &member("ann"), PortRequest { ttl_ms: 1500.5, ..request() });
    assert_eq!(row.ttl_ms, 1500.5);
}

/// A row that was imported with an empty lease isn't open to everybody who names none.
#[test]
fn an_empty_lease_is_no_lease() {
    let mut harness = Harness::new(Standard);
    let (_, lease_id, mut row) = lease(&mut harness, &member("ann"), request());
    row.attrs = row.attrs.replace(&lease_id, "");
    harness.ledger.put(row);
    let renew = Operation::RenewPort { port: 31450, lease_id: String::new() };
    assert_eq!(refusal(harness.ask(&member("ann"), &renew)), Refusal::NotOwner);
}
