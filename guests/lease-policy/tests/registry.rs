//! Rows that callers write themselves.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use lease_policy::Standard;
use warmhold_sdk::Policy;
use warmhold_sdk::lease::harness::{Failure, Harness, machine, member};
use warmhold_sdk::lease::{Caller, Operation, Refusal, Row, RowDraft, Scope};
use warmhold_sdk::serde_json::{self, Value, json};

fn draft(id: &str, kind: &str) -> RowDraft {
    RowDraft {
        id: id.to_owned(),
        kind: kind.to_owned(),
        machine: "local".to_owned(),
        name: "svc".to_owned(),
        endpoint: Some("http://127.0.0.1:31415".to_owned()),
        attrs: "{\"load\":1}".to_owned(),
        ttl_ms: 30_000.0,
    }
}

fn admin() -> Caller {
    Caller { owner: "owner-of-admin".to_owned(), scope: Scope::Admin, machine: None }
}

fn refusal(result: Result<Option<Row>, Failure>) -> Refusal {
    match result {
        Err(Failure::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn registers_and_replaces_ones_own_row() {
    let mut harness = Harness::new(Standard);
    let row = harness.ask(&member("ann"), &Operation::Register(draft("i1", "instance"))).unwrap().unwrap();
    assert_eq!(row.owner, member("ann").owner);
    assert_eq!((row.observed_at, row.ttl_ms), (harness.now, 30_000.0));
    assert_eq!(row.endpoint.as_deref(), Some("http://127.0.0.1:31415"));
    assert_eq!(row.attrs, "{\"load\":1}");
    harness.now += 5;
    let renamed = RowDraft { name: "renamed".into(), endpoint: None, ttl_ms: 0.0, ..draft("i1", "instance") };
    let row = harness.ask(&member("ann"), &Operation::Register(renamed)).unwrap().unwrap();
    assert_eq!((row.name.as_str(), row.endpoint, row.ttl_ms, row.observed_at), ("renamed", None, 0.0, harness.now));
    assert_eq!(harness.ledger.rows().len(), 1);
    assert_eq!(refusal(harness.ask(&admin(), &Operation::Register(draft("i1", "instance")))), Refusal::NotOwner);
    for attrs in ["[]", "{", "1"] {
        let bad = RowDraft { attrs: attrs.into(), ..draft("i2", "instance") };
        assert_eq!(refusal(harness.ask(&admin(), &Operation::Register(bad))), Refusal::Invalid);
    }
}

#[test]
fn every_kind_but_two_is_registered() {
    let mut harness = Harness::new(Standard);
    for kind in ["machine", "instance", "exposure", "universe", "setup-status", "image", "slot-lease"] {
        harness.ask(&member("ann"), &Operation::Register(draft(&format!("k-{kind}"), kind))).unwrap();
    }
    let ports = Refusal::PortLeaseRequiresAllocator;
    let workers = Refusal::PodWorkerRequiresAllocator;
    for (id, kind, want) in [
        ("x", "port-lease", ports),
        ("port-lease:31450", "instance", ports),
        ("port-lease:", "pod-worker-lease", ports),
        ("x", "pod-worker-lease", workers),
        ("pod-worker-lease:w1", "instance", workers),
    ] {
        assert_eq!(refusal(harness.ask(&member("ann"), &Operation::Register(draft(id, kind)))), want, "{id} {kind}");
        if id != "x" {
            let heartbeat = Operation::Heartbeat { id: id.into(), attrs: None };
            assert_eq!(refusal(harness.ask(&member("ann"), &heartbeat)), want, "{id}: there or not");
            assert_eq!(refusal(harness.ask(&member("ann"), &Operation::Remove { id: id.into() })), want, "{id}");
        }
    }
    // The name alone, without the colon, is an id like any other.
    harness.ask(&member("ann"), &Operation::Register(draft("port-lease", "instance"))).unwrap();
}

#[test]
fn a_row_of_a_kind_with_its_own_routes_is_untouched_whatever_its_id() {
    let mut harness = Harness::new(Standard);
    for (kind, want) in
        [("port-lease", Refusal::PortLeaseRequiresAllocator), ("pod-worker-lease", Refusal::PodWorkerRequiresAllocator)]
    {
        // Imported from elsewhere, under an id that doesn't tell.
        let mut row = harness.idle_worker(kind, "m1").unwrap();
        row.id = format!("odd-{kind}");
        row.kind = kind.to_owned();
        harness.ledger.put(row.clone());
        let heartbeat = Operation::Heartbeat { id: row.id.clone(), attrs: None };
        assert_eq!(refusal(harness.ask(&machine("m1"), &heartbeat)), want);
        assert_eq!(refusal(harness.ask(&machine("m1"), &Operation::Remove { id: row.id })), want);
    }
}

#[test]
fn a_heartbeat_merges_key_by_key() {
    let mut harness = Harness::new(Standard);
    let first = RowDraft { attrs: "{\"b\":1,\"a\":{\"x\":1},\"c\":0.1}".into(), ..draft("i1", "instance") };
    harness.ask(&member("ann"), &Operation::Register(first)).unwrap();
    harness.now += 500;
    let heartbeat = |attrs: Option<&str>| Operation::Heartbeat { id: "i1".into(), attrs: attrs.map(Into::into) };
    let row = harness.ask(&member("ann"), &heartbeat(None)).unwrap().unwrap();
    assert_eq!((row.attrs.as_str(), row.observed_at), ("{\"b\":1,\"a\":{\"x\":1},\"c\":0.1}", harness.now));
    let row = harness.ask(&member("ann"), &heartbeat(Some("{\"d\":[1],\"a\":{\"y\":2},\"b\":null}"))).unwrap().unwrap();
    assert_eq!(row.attrs, "{\"b\":null,\"a\":{\"y\":2},\"c\":0.1,\"d\":[1]}", "not deeply, and each key in its place");
    assert_eq!((row.ttl_ms, row.name.as_str()), (30_000.0, "svc"));
    let row = harness.ask(&member("ann"), &heartbeat(Some("{}"))).unwrap().unwrap();
    assert_eq!(row.attrs, "{\"b\":null,\"a\":{\"y\":2},\"c\":0.1,\"d\":[1]}");
    for (who, id, want) in [("bob", "i1", Refusal::NotOwner), ("ann", "i2", Refusal::NotFound)] {
        let heartbeat = Operation::Heartbeat { id: id.into(), attrs: None };
        assert_eq!(refusal(harness.ask(&member(who), &heartbeat)), want);
    }
    assert_eq!(refusal(harness.ask(&member("ann"), &heartbeat(Some("[]")))), Refusal::Invalid);
}

/// What isn't touched by a heartbeat comes back digit for digit.
#[test]
fn numbers_survive_a_heartbeat() {
    let mut harness = Harness::new(Standard);
    let numbers = "[0.1,1e-7,123456789012345680000,1.7976931348623157e308,5e-324,-0.0000013,9007199254740993,2.2250738585072011e-308]";
    let first = RowDraft { attrs: format!("{{\"n\":{numbers}}}"), ..draft("i1", "instance") };
    harness.ask(&member("ann"), &Operation::Register(first)).unwrap();
    let heartbeat = Operation::Heartbeat { id: "i1".into(), attrs: Some("{\"m\":1}".into()) };
    let row = harness.ask(&member("ann"), &heartbeat).unwrap().unwrap();
    let got: Value = serde_json::from_str(&row.attrs).unwrap();
    let want: Value = serde_json::from_str(numbers).unwrap();
    assert_eq!(got["n"], want);
    for number in want.as_array().unwrap() {
        let again: f64 = number.to_string().parse().unwrap();
        assert_eq!(Some(again.to_bits()), number.as_f64().map(f64::to_bits), "{number}");
    }
}

#[test]
fn removes_ones_own_row() {
    let mut harness = Harness::new(Standard);
    harness.ask(&machine("m1"), &Operation::Register(draft("i1", "instance"))).unwrap();
    let remove = Operation::Remove { id: "i1".into() };
    assert_eq!(refusal(harness.ask(&machine("m2"), &remove)), Refusal::NotOwner);
    assert_eq!(harness.ask(&machine("m1"), &remove).unwrap(), None);
    assert!(harness.ledger.rows().is_empty());
    assert_eq!(refusal(harness.ask(&machine("m1"), &remove)), Refusal::NotFound);
}

#[test]
fn has_no_settings() {
    let settings = json!({"ttl": 1, "prefer": "young"});
    let faults = Standard.check_settings(settings.as_object().unwrap());
    assert_eq!(faults.len(), 2);
    assert!(faults[0].starts_with("ttl: ") && faults[1].starts_with("prefer: "), "{faults:?}");
    assert!(Standard.check_settings(&serde_json::Map::new()).is_empty());
    assert_eq!(Standard.identity().name, "lease-policy");
}
