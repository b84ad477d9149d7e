//! Whatever a policy wants, only the one valid transition gets through.

use super::policy::{attrs, lawless, proposed, verdict};
use super::support::{key, member};
use crate::fence::{Effect, Rule, Violation, Write, check};
use crate::mirror::Mirror;
use crate::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const NOW: u64 = 1_000_000;
const OWNERS: [&str; 2] = ["owner-a", "owner-b"];
const MACHINES: [&str; 2] = ["m1", "m2"];
const LEASES: [&str; 6] = ["lease-1", "lease-1", "lease-1", "lease-1", "lease-2", ""];

fn at() -> Moment {
    Moment { now: NOW, fresh_id: "fresh".to_owned() }
}

fn caller(owner: &str) -> Caller {
    Caller { owner: owner.to_owned(), ..member() }
}

fn other_key(n: usize) -> WorkerKey {
    WorkerKey { lock_hash: format!("b{n}"), ..key() }
}

fn key_json(key: &WorkerKey, extra: bool) -> Value {
    let mut value = serde_json::to_value(key).unwrap();
    if extra {
        value["extra"] = json!({"kept": [1.5, null]});
    }
    value
}

fn row(id: String, kind: Kind, owner: &str, machine: &str, attrs: &Value, age: u64, ttl_ms: f64) -> Row {
    let name = id.rsplit(':').next().unwrap().to_owned();
    Row {
        id,
        kind,
        machine: machine.to_owned(),
        name,
        owner: owner.to_owned(),
        endpoint: None,
        attrs: json::to_text(attrs).into(),
        observed_at: NOW - age,
        ttl_ms,
    }
}

fn owner() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&OWNERS[..])
}

fn machine() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&MACHINES[..])
}

fn lease() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&LEASES[..])
}

fn ttl() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(86_400_000), 1u64..100_000]
}

fn worker_row(n: usize) -> impl Strategy<Value = Row> {
    let states = prop::sample::select(&["idle", "leased", "sanitizing", "quarantined"][..]);
    let facts = (states, 0u64..2, 0usize..2, any::<bool>(), any::<bool>(), any::<bool>());
    (facts, owner(), machine(), lease(), owner(), (0u64..3000, 1u64..6000)).prop_map(
        move |((state, generation, key, extra, uid, reason), owner, machine, lease, holder, (age, ttl))| {
            let mut attrs = json!({"key": key_json(&other_key(key), extra), "state": state, "generation": generation, "idleTtlMs": 60_000});
            if uid {
                attrs["podUid"] = json!(format!("uid-{n}"));
            }
            if state != "idle" {
                attrs["leaseId"] = json!(lease);
                attrs["leaseOwner"] = json!(holder);
                attrs["runId"] = json!("run");
                attrs["attemptId"] = json!("1");
                if reason {
                    attrs["reason"] = json!("old");
                }
            }
            row(format!("pod-worker-lease:w{n}"), Kind::PodWorkerLease, owner, machine, &attrs, age, ttl as f64)
        },
    )
}

fn port_row(port: u16) -> impl Strategy<Value = Row> {
    (owner(), machine(), lease(), 0u64..3000, 1u64..3000).prop_map(move |(owner, machine, lease, age, ttl)| {
        let attrs = json!({"port": port, "purpose": "p", "leaseId": lease});
        Row {
            name: "p".to_owned(),
            ..row(format!("port-lease:{port}"), Kind::PortLease, owner, machine, &attrs, age, ttl as f64)
        }
    })
}

fn plain_row(n: usize) -> impl Strategy<Value = Row> {
    (owner(), machine(), prop::sample::select(&[Kind::Instance, Kind::Image][..]), 0u64..3000).prop_map(
        move |(owner, machine, kind, age)| {
            row(format!("r{n}"), kind, owner, machine, &json!({"load": n, "1": "x"}), age, 1500.5)
        },
    )
}

/// Some workers, some ports, some plain rows.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let some = prop::collection::vec(any::<bool>(), 9);
    let all = (
        (worker_row(0), worker_row(1), worker_row(2), worker_row(3)),
        (port_row(31_450), port_row(31_451)),
        (plain_row(0), plain_row(1), plain_row(2)),
    );
    (some, all).prop_map(|(some, ((a, b, c, d), (e, f), (g, h, i)))| {
        [a, b, c, d, e, f, g, h, i].into_iter().zip(some).filter(|(_, there)| *there).map(|(row, _)| row).collect()
    })
}

fn small_object() -> impl Strategy<Value = Value> {
    prop::collection::vec(
        ("[a-c1-3]", prop_oneof![Just(json!(1)), Just(json!(1.5)), Just(json!("ü")), Just(json!({"x": []}))]),
        0..4,
    )
    .prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn operation() -> impl Strategy<Value = Operation> {
    let kind = prop::sample::select(&[Kind::Instance, Kind::Image, Kind::PortLease, Kind::PodWorkerLease][..]);
    let id = || prop::sample::select(&["r0", "r1", "r2", "r9", "port-lease:31450", "pod-worker-lease:w0"][..]);
    let worker_id = || prop::sample::select(&["w0", "w1", "w2", "w3", "w9"][..]);
    let transition = prop::sample::select(
        &[TransitionKind::Renew, TransitionKind::Release, TransitionKind::Sanitize, TransitionKind::Quarantine][..],
    );
    prop_oneof![
        1 => (id(), kind, machine(), small_object(), prop::sample::select(&[0.0, 1500.5, 30_000.0][..])).prop_map(
            |(id, kind, machine, attrs, ttl_ms)| Operation::Register(RowDraft {
                id: id.to_owned(),
                kind,
                machine: machine.to_owned(),
                name: "n".to_owned(),
                endpoint: None,
                attrs: json::to_text(&attrs).into(),
                ttl_ms
            })
        ),
        1 => (id(), prop::option::of(small_object())).prop_map(|(id, attrs)| Operation::Heartbeat {
            id: id.to_owned(),
            attrs: attrs.map(|attrs| json::to_text(&attrs).into())
        }),
        1 => id().prop_map(|id| Operation::Remove { id: id.to_owned() }),
        1 => (machine(), prop::collection::vec(31_449u16..31_453, 0..3), ttl()).prop_map(|(machine, excluded, ttl)| {
            Operation::LeasePort(PortRequest {
                machine: machine.to_owned(),
                purpose: "p".to_owned(),
                ttl_ms: ttl as f64,
                excluded,
                first: 31_450,
                last: 31_452,
            })
        }),
        1 => (31_449u16..31_453, lease())
            .prop_map(|(port, lease)| Operation::RenewPort { port, lease_id: lease.to_owned() }),
        1 => (31_449u16..31_453, lease()).prop_map(|(port, lease)| Operation::ReleasePort { port, lease_id: lease.to_owned() }),
        1 => (worker_id(), machine(), 0usize..2, any::<bool>(), ttl()).prop_map(|(worker_id, machine, n, extra, ttl_ms)| {
            Operation::RegisterWorker(WorkerDraft {
                worker_id: worker_id.to_owned(),
                machine: machine.to_owned(),
                key: other_key(n),
                key_json: json::to_text(&key_json(&other_key(n), extra)).into(),
                pod_uid: extra.then(|| "uid".to_owned()),
                ttl_ms,
            })
        }),
        2 => (prop::option::of(machine()), 0usize..2, ttl()).prop_map(|(machine, n, ttl_ms)| {
            Operation::AcquireWorker(WorkerRequest {
                machine: machine.map(str::to_owned),
                key: other_key(n),
                run_id: "run-2".to_owned(),
                attempt_id: "2".to_owned(),
                ttl_ms,
            })
        }),
        6 => (transition, worker_id(), lease(), 0u64..2, prop::option::of(ttl()), prop::option::of(Just("why"))).prop_map(
            |(kind, worker_id, lease, generation, ttl_ms, reason)| Operation::Transition(Transition {
                kind,
                worker_id: worker_id.to_owned(),
                lease_id: lease.to_owned(),
                generation,
                ttl_ms,
                reason: reason.map(str::to_owned)
            })
        ),
    ]
}

/// The operation again, at a row that is there and with that row's own fence.
fn aimed(rows: &[Row], operation: Operation, at: &prop::sample::Index) -> Operation {
    let of = |kinds: fn(Kind) -> bool| {
        let rows: Vec<&Row> = rows.iter().filter(|row| kinds(row.kind)).collect();
        (!rows.is_empty()).then(|| (*at.get(&rows)).clone())
    };
    let lease = |row: &Row| attrs(row).get("leaseId").and_then(Value::as_str).unwrap_or_default().to_owned();
    let port = |row: &Row| row.id.rsplit(':').next().unwrap().parse().unwrap();
    match operation {
        Operation::Transition(asked) => match of(|kind| kind == Kind::PodWorkerLease) {
            Some(row) => Operation::Transition(Transition {
                worker_id: row.name.clone(),
                lease_id: lease(&row),
                generation: attrs(&row)["generation"].as_u64().unwrap(),
                ..asked
            }),
            None => Operation::Transition(asked),
        },
        Operation::RenewPort { .. } | Operation::ReleasePort { .. } => match of(|kind| kind == Kind::PortLease) {
            Some(row) if matches!(operation, Operation::RenewPort { .. }) => {
                Operation::RenewPort { port: port(&row), lease_id: lease(&row) }
            }
            Some(row) => Operation::ReleasePort { port: port(&row), lease_id: lease(&row) },
            None => operation,
        },
        other => other,
    }
}

/// Rows, who asks, and what: usually something that may well be granted.
fn question() -> impl Strategy<Value = (Vec<Row>, &'static str, Operation)> {
    (rows(), owner(), operation(), prop::option::weighted(0.8, any::<prop::sample::Index>())).prop_map(
        |(rows, owner, operation, at)| {
            let operation = match at {
                Some(at) => aimed(&rows, operation, &at),
                None => operation,
            };
            (rows, owner, operation)
        },
    )
}

fn mirror(rows: &[Row]) -> Mirror {
    let mut mirror = Mirror::default();
    for (position, row) in rows.iter().enumerate() {
        mirror.put(Arc::new(row.clone()), position as u64 + 1);
    }
    mirror
}

/// Every change that the specification allows: usually one, for a choice one for each thing that may be chosen.
fn allowed(rows: &[Row], caller: &Caller, operation: &Operation) -> Vec<Change> {
    let ask = |rows: &[Row], operation: &Operation| verdict(&mirror(rows), &at(), caller, operation).ok();
    match operation {
        Operation::AcquireWorker(_) => {
            rows.iter().filter_map(|row| ask(std::slice::from_ref(row), operation)).collect()
        }
        Operation::LeasePort(request) => (request.first..=request.last)
            .filter_map(|port| {
                ask(rows, &Operation::LeasePort(PortRequest { first: port, last: port, ..request.clone() }))
            })
            .collect(),
        _ => ask(rows, operation).into_iter().collect(),
    }
}

/// The right change for the wrong moment: what each operation would write if no rule kept it.
fn forbidden_too(rows: &[Row], caller: &Caller, operation: &Operation) -> Vec<Change> {
    let ask = |rows: &[Row], operation: &Operation| lawless(&mirror(rows), &at(), caller, operation);
    match operation {
        Operation::AcquireWorker(_) => {
            rows.iter().filter_map(|row| ask(std::slice::from_ref(row), operation)).collect()
        }
        Operation::LeasePort(request) => (request.first - 1..=request.last + 1)
            .filter_map(|port| {
                ask(rows, &Operation::LeasePort(PortRequest { first: port, last: port, ..request.clone() }))
            })
            .collect(),
        _ => ask(rows, operation).into_iter().collect(),
    }
}

fn judge(rows: &[Row], caller: &Caller, operation: &Operation, change: &Change) -> Result<Write, Violation> {
    let mirror = mirror(rows);
    check(Effect::Asked { operation, caller }, &at(), |id| mirror.get(id), change, &Bounds::default())
}

/// Rows without and with what their attributes mean, and the ids to remove.
type Meaning = (Vec<(ProposedRow, Value)>, Vec<String>);

/// What a change means, however its text is written; none when the text means nothing.
fn meaning(change: &Change) -> Option<Meaning> {
    let rows = change.put.iter().map(|row| {
        let attrs = json::parse(&row.attrs, json::Duplicates::Refuse).ok()?;
        Some((ProposedRow { attrs: String::new(), ..row.clone() }, attrs))
    });
    Some((rows.collect::<Option<_>>()?, change.remove.clone()))
}

fn is_allowed(allowed: &[Change], change: &Change) -> bool {
    meaning(change).is_some_and(|meant| allowed.iter().any(|one| meaning(one).unwrap() == meant))
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(
            &[
                "",
                "owner-a",
                "owner-b",
                "m1",
                "m2",
                "w0",
                "r0",
                "r1",
                "idle",
                "leased",
                "quarantined",
                "instance",
                "machine",
                "pod-worker-lease",
                "port-lease",
                "pod-worker-lease:w0",
                "pod-worker-lease:w1",
                "port-lease:31450",
                "port-lease:031450",
                "port-lease:+31450",
                "fresh",
                "lease-1"
            ][..]
        )
        .prop_map(str::to_owned),
        any::<String>(),
    ]
}

fn attribute() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(
            &[
                "key",
                "state",
                "generation",
                "idleTtlMs",
                "podUid",
                "leaseId",
                "leaseOwner",
                "runId",
                "attemptId",
                "reason",
                "port",
                "purpose",
                "load"
            ][..]
        )
        .prop_map(str::to_owned),
        any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(Value::from),
        (0u64..4).prop_map(Value::from),
        Just(json!(1.5)),
        Just(Value::Null),
        Just(json!({})),
        Just(json!(u64::MAX)),
    ]
}

/// One thing that is done to a change.
#[derive(Clone, Debug)]
enum Mutation {
    Id(String),
    Kind(String),
    Machine(String),
    Name(String),
    Owner(String),
    Endpoint(Option<String>),
    ObservedAt(u64),
    Ttl(f64),
    SetAttr(String, Value),
    DropAttr(String),
    DoubleAttr(String),
    AttrsText(String),
    Twice,
    Nothing,
    AlsoRemove(String),
    OnlyRemove(String),
    AlsoPut(Row),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        text().prop_map(Mutation::Id),
        text().prop_map(Mutation::Kind),
        text().prop_map(Mutation::Machine),
        text().prop_map(Mutation::Name),
        text().prop_map(Mutation::Owner),
        prop::option::of(text()).prop_map(Mutation::Endpoint),
        prop_oneof![Just(NOW - 1), Just(NOW + 1), Just(0), any::<u64>()].prop_map(Mutation::ObservedAt),
        prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN), Just(f64::INFINITY), Just(60_000.0), any::<f64>()]
            .prop_map(Mutation::Ttl),
        (attribute(), value()).prop_map(|(name, value)| Mutation::SetAttr(name, value)),
        attribute().prop_map(Mutation::DropAttr),
        attribute().prop_map(Mutation::DoubleAttr),
        prop_oneof![
            any::<String>(),
            Just("null".to_owned()),
            Just("[]".to_owned()),
            Just("{}".to_owned()),
            Just("{".repeat(5000))
        ]
        .prop_map(Mutation::AttrsText),
        Just(Mutation::Twice),
        Just(Mutation::Nothing),
        text().prop_map(Mutation::AlsoRemove),
        text().prop_map(Mutation::OnlyRemove),
        worker_row(1).prop_map(Mutation::AlsoPut),
        plain_row(1).prop_map(Mutation::AlsoPut),
    ]
}

fn mutate(mut change: Change, mutation: Mutation) -> Change {
    let with = |row: &mut ProposedRow, act: &dyn Fn(&mut Map<String, Value>)| {
        let mut attrs = serde_json::from_str(&row.attrs).unwrap_or_default();
        act(&mut attrs);
        row.attrs = serde_json::to_string(&attrs).unwrap();
    };
    match (mutation, change.put.first_mut()) {
        (Mutation::Id(id), Some(row)) => row.id = id,
        (Mutation::Kind(kind), Some(row)) => row.kind = kind,
        (Mutation::Machine(machine), Some(row)) => row.machine = machine,
        (Mutation::Name(name), Some(row)) => row.name = name,
        (Mutation::Owner(owner), Some(row)) => row.owner = owner,
        (Mutation::Endpoint(endpoint), Some(row)) => row.endpoint = endpoint,
        (Mutation::ObservedAt(time), Some(row)) => row.observed_at = time,
        (Mutation::Ttl(ttl_ms), Some(row)) => row.ttl_ms = ttl_ms,
        (Mutation::SetAttr(name, value), Some(row)) => {
            with(row, &|attrs| drop(attrs.insert(name.clone(), value.clone())))
        }
        (Mutation::DropAttr(name), Some(row)) => with(row, &|attrs| drop(attrs.remove(&name))),
        (Mutation::DoubleAttr(name), Some(row)) => {
            let member =
                format!("{{{}:1,{}:1,", serde_json::to_string(&name).unwrap(), serde_json::to_string(&name).unwrap());
            row.attrs = row.attrs.replacen('{', &member, 1);
        }
        (Mutation::AttrsText(text), Some(row)) => row.attrs = text,
        (Mutation::Twice, _) => {
            change.put.extend(change.put.clone());
            change.remove.extend(change.remove.clone());
        }
        (Mutation::AlsoRemove(id), _) => change.remove.push(id),
        (Mutation::OnlyRemove(id), _) => change = Change { put: vec![], remove: vec![id] },
        (Mutation::AlsoPut(row), _) => change.put.push(proposed(&row, &attrs(&row))),
        (Mutation::Nothing, _) => change = Change::default(),
        (_, None) => {}
    }
    change
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// What the specification allows gets through, and what is written is what was proposed, in canonical text.
    #[test]
    fn valid_transitions_pass((rows, owner, operation) in question()) {
        let caller = caller(owner);
        for change in allowed(&rows, &caller, &operation) {
            let written = judge(&rows, &caller, &operation, &change);
            match (written, change.put.first()) {
                (Ok(Write::Put(row)), Some(wanted)) => {
                    let same = proposed(&row, &attrs(&row));
                    prop_assert_eq!(&ProposedRow { attrs: wanted.attrs.clone(), ..same }, wanted);
                    prop_assert_eq!(json::parse(&wanted.attrs, json::Duplicates::Refuse).unwrap(), Value::Object(attrs(&row)));
                    let canonical = json::to_text(&json::parse(row.attrs.as_ref(), json::Duplicates::Refuse).unwrap());
                    prop_assert_eq!(row.attrs.as_ref(), canonical.as_str());
                }
                (Ok(Write::Remove(id)), None) => prop_assert_eq!(&change.remove, &[id]),
                (other, _) => prop_assert!(false, "{:?} was answered with {:?}", change, other),
            }
        }
    }

    /// What would be right at another moment, a valid change with anything done to it, a change that is valid for another caller, operation or ledger, and
    /// plain rubbish: none gets through unless it means the same as a valid one.
    #[test]
    fn nothing_else_passes(
        (rows, owner, operation) in question(),
        other_rows in rows(), other_owner in owner(), other_operation in operation(),
        mutations in prop::collection::vec(mutation(), 0..3), rubbish in worker_row(0),
    ) {
        let asked = caller(owner);
        let valid = allowed(&rows, &asked, &operation);
        let mut sources = valid.clone();
        sources.extend(allowed(&rows, &caller(other_owner), &operation));
        sources.extend(allowed(&rows, &asked, &other_operation));
        sources.extend(allowed(&other_rows, &asked, &operation));
        for change in forbidden_too(&rows, &asked, &operation) {
            let passed = judge(&rows, &asked, &operation, &change);
            prop_assert_eq!(passed.is_ok(), is_allowed(&valid, &change), "{:?} for {:?}: {:?}", change, operation, passed);
            sources.push(change);
        }
        sources.push(Change { put: vec![proposed(&rubbish, &attrs(&rubbish))], remove: vec![] });
        for row in &rows {
            sources.push(Change { put: vec![proposed(row, &attrs(row))], remove: vec![] });
            sources.push(Change { put: vec![], remove: vec![row.id.clone()] });
        }
        for source in sources {
            let change = mutations.iter().cloned().fold(source, mutate);
            let passed = judge(&rows, &asked, &operation, &change);
            prop_assert_eq!(passed.is_ok(), is_allowed(&valid, &change), "{:?} for {:?}: {:?}", change, operation, passed);
        }
    }

    /// What holds of any write, said apart from how it comes about.
    #[test]
    fn invariants_hold((rows, owner, operation) in question()) {
        let caller = caller(owner);
        for change in allowed(&rows, &caller, &operation) {
            let Ok(write) = judge(&rows, &caller, &operation, &change) else { continue };
            let id = match &write { Write::Put(row) => &row.id, Write::Remove(id) => id };
            let before = rows.iter().find(|row| row.id == *id);
            let Write::Put(row) = &write else {
                let before = before.unwrap();
                prop_assert_ne!(before.kind, Kind::PodWorkerLease);
                prop_assert_eq!(&before.owner, &caller.owner);
                continue;
            };
            prop_assert_eq!(row.observed_at, NOW);
            prop_assert!(row.ttl_ms.is_finite() && row.ttl_ms >= 0.0);
            let Some(before) = before else {
                prop_assert_eq!(&row.owner, &caller.owner);
                continue;
            };
            if !matches!(operation, Operation::Register(_)) {
                prop_assert_eq!((row.kind, &row.name), (before.kind, &before.name));
            }
            if row.kind == Kind::PodWorkerLease {
                prop_assert_eq!((&row.machine, &row.name, &row.owner), (&before.machine, &before.name, &before.owner));
                let (was, is) = (attrs(before), attrs(row));
                prop_assert_eq!((was.get("key"), was.get("podUid")), (is.get("key"), is.get("podUid")));
                let raised = is["generation"].as_u64().unwrap() - was["generation"].as_u64().unwrap();
                prop_assert_eq!(raised, u64::from(was["state"] == "idle"));
                prop_assert_ne!(&was["state"], "quarantined");
                prop_assert_eq!(is.get("leaseId").is_some(), is["state"] != "idle");
            }
        }
    }

    /// The host takes out any worker that isn't out already, and changes nothing else about it.
    #[test]
    fn the_host_takes_any_worker_out(row in worker_row(0), mutation in mutation()) {
        let rows = [row.clone()];
        let mirror = mirror(&rows);
        let mut after = attrs(&row);
        let out = after["state"] == "quarantined";
        after.insert("state".to_owned(), json!("quarantined"));
        after.insert("reason".to_owned(), json!("x"));
        let change = Change { put: vec![ProposedRow { observed_at: NOW, ..proposed(&row, &after) }], remove: vec![] };
        let judge = |change: &Change| check(
            Effect::HostQuarantine { worker_id: "w0", reason: "x" }, &at(), |id| mirror.get(id), change, &Bounds::default(),
        );
        prop_assert_eq!(judge(&change).is_ok(), !out);
        let mutated = mutate(change.clone(), mutation);
        prop_assert_eq!(judge(&mutated).is_ok(), !out && is_allowed(&[change], &mutated));
    }
}

fn one(change: Result<Change, Refusal>) -> Change {
    change.unwrap()
}

#[test]
fn requests_out_of_bounds_have_no_success() {
    let caller = caller("owner-a");
    let idle = json!({"key": key_json(&key(), false), "state": "idle", "generation": 0, "idleTtlMs": 60_000});
    let worker = row("pod-worker-lease:w0".into(), Kind::PodWorkerLease, "owner-a", "m1", &idle, 0, 60_000.0);
    let rows = [worker.clone()];
    let judged = |operation: &Operation| {
        let change = one(verdict(&mirror(&rows), &at(), &caller, operation));
        judge(&rows, &caller, operation, &change)
    };
    let acquire = |ttl_ms| {
        Operation::AcquireWorker(WorkerRequest {
            machine: None,
            key: key(),
            run_id: "r".into(),
            attempt_id: "1".into(),
            ttl_ms,
        })
    };
    assert!(judged(&acquire(86_400_000)).is_ok());
    for ttl in [0, 86_400_001, u64::MAX] {
        assert_eq!(judged(&acquire(ttl)), Err(Violation::Forbidden(Rule::TtlOutOfBounds)), "{ttl}");
    }
    let port = |ttl_ms| {
        Operation::LeasePort(PortRequest {
            machine: "m1".into(),
            purpose: "p".into(),
            ttl_ms,
            excluded: vec![],
            first: 1,
            last: 2,
        })
    };
    assert!(judged(&port(86_400_000.0)).is_ok() && judged(&port(0.5)).is_ok());
    for ttl in [0.0, -1.0, 86_400_000.5, f64::INFINITY, f64::NAN] {
        assert_eq!(judged(&port(ttl)), Err(Violation::Forbidden(Rule::TtlOutOfBounds)), "{ttl}");
    }
    let top = Row {
        attrs: worker.attrs.replace("\"generation\":0", "\"generation\":9007199254740991").into(),
        ..worker.clone()
    };
    let change = one(verdict(&mirror(std::slice::from_ref(&top)), &at(), &caller, &acquire(1)));
    assert_eq!(judge(&[top], &caller, &acquire(1), &change), Err(Violation::Forbidden(Rule::GenerationExhausted)));
    let beat =
        Operation::Heartbeat { id: "r0".into(), attrs: Some(json!({"big": "x".repeat(2_000_000)}).to_string().into()) };
    let rows = [row("r0".into(), Kind::Image, "owner-a", "m1", &json!({}), 0, 1.0)];
    let change = one(verdict(&mirror(&rows), &at(), &caller, &beat));
    let large = judge(&rows, &caller, &beat, &change).unwrap_err();
    assert!(
        !large.blames_policy() && matches!(large, Violation::TooLarge { bytes: 2_000_010, limit: 1_048_576 }),
        "{large}"
    );
}

#[test]
fn violations_read_well_and_show_no_lease() {
    let caller = caller("owner-a");
    let held = json!({"key": key_json(&key(), false), "state": "leased", "generation": 1, "idleTtlMs": 60_000, "leaseId": "secret",
        "leaseOwner": "owner-a", "runId": "r", "attemptId": "1"});
    let rows = [row("pod-worker-lease:w0".into(), Kind::PodWorkerLease, "owner-m", "m1", &held, 0, 60_000.0)];
    let renew = Operation::Transition(Transition {
        kind: TransitionKind::Renew,
        worker_id: "w0".into(),
        lease_id: "secret".into(),
        generation: 1,
        ttl_ms: None,
        reason: None,
    });
    let valid = one(verdict(&mirror(&rows), &at(), &caller, &renew));
    let said = |mutation| judge(&rows, &caller, &renew, &mutate(valid.clone(), mutation)).unwrap_err().to_string();
    assert_eq!(
        said(Mutation::SetAttr("generation".into(), json!(2))),
        "attrs.generation must be 1; the policy wrote 2"
    );
    assert_eq!(
        said(Mutation::SetAttr("leaseId".into(), json!("x"))),
        "attrs.leaseId must be (not shown); the policy wrote (not shown)"
    );
    assert_eq!(
        said(Mutation::DropAttr("leaseId".into())),
        "attrs.leaseId must be (not shown); the policy wrote absent"
    );
    assert_eq!(said(Mutation::Owner("forged".into())), "owner must be \"owner-m\"; the policy wrote \"forged\"");
    assert_eq!(said(Mutation::Ttl(f64::NAN)), "ttlMs must be 60000; the policy wrote NaN");
    assert_eq!(said(Mutation::Nothing), "the operation changes exactly one row; the policy put 0 and removed 0");
    assert_eq!(
        said(Mutation::Id("pod-worker-lease:w1".into())),
        "the operation names the row \"pod-worker-lease:w0\"; the policy touched \"pod-worker-lease:w1\""
    );
    assert_eq!(said(Mutation::DoubleAttr("x".into())), "attrs: invalid JSON at byte 7: the name \"x\" occurs twice");
    assert!(said(Mutation::Name("é".repeat(10_000))).len() < 300);
    assert!(said(Mutation::SetAttr("x".repeat(10_000), json!("y".repeat(10_000)))).len() < 400);
}

/// The properties above say nothing about what is never generated.
#[test]
fn every_transition_is_reached() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use std::collections::BTreeMap;
    let mut runner = TestRunner::deterministic();
    let mut reached: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..2_000 {
        let (rows, owner, operation) = question().new_tree(&mut runner).unwrap().current();
        let name = match &operation {
            Operation::Transition(transition) => format!("{:?}", transition.kind),
            other => format!("{other:?}").split(['(', ' ']).next().unwrap().to_owned(),
        };
        *reached.entry(name).or_default() += u32::try_from(allowed(&rows, &caller(owner), &operation).len()).unwrap();
    }
    assert_eq!(reached.len(), 12, "{reached:?}");
    assert!(reached.values().all(|count| *count >= 5), "{reached:?}");
}
