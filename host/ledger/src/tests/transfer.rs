//! Out of a ledger and into another.

use super::support::*;
use crate::transfer::Target;
use crate::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

/// By an owner as the host makes them.
pub(super) fn owned(mut submission: Submission) -> Submission {
    let mut hasher = DefaultHasher::new();
    submission.caller.owner.hash(&mut hasher);
    submission.caller.owner = format!("{:064x}", hasher.finish());
    submission
}

pub(super) fn text(path: &Path) -> String {
    let mut out = Vec::new();
    export(path, Target::Stream(&mut out)).unwrap();
    String::from_utf8(out).unwrap()
}

pub(super) fn sound(path: &Path) -> Checked {
    let checked = check(path, &Bounds::default()).unwrap();
    assert!(checked.sound(), "{:#?}", checked.parts);
    checked
}

pub(super) fn faults(path: &Path) -> String {
    let checked = check(path, &Bounds::default()).unwrap();
    let parts = checked.parts.iter().filter(|part| part.count > 0);
    parts.map(|part| format!("{}: {}", part.name, part.faults.join(" | "))).collect::<Vec<_>>().join("\n")
}

/// Rows of many kinds in many states.
pub(super) async fn lived_in(case: &Case) -> Ledger {
    let ledger = case.open();
    for id in ["z", "a", "gone", "m"] {
        ledger.done(owned(plain(instance(id)))).await;
    }
    ledger.apply(owned(plain(Operation::Remove { id: "gone".into() }))).await.unwrap();
    ledger.done(owned(plain(port("elsewhere")))).await;
    for n in 0..5 {
        ledger.done(owned(worker(worker_draft(&format!("w{n}")), machine("m1")))).await;
    }
    let mut leased = Vec::new();
    for n in 0..4 {
        leased.push(ledger.done(owned(worker(acquire(&format!("r{n}")), member()))).await);
    }
    ledger.done(owned(worker(transition(TransitionKind::Release, &leased[1]), member()))).await;
    ledger.done(owned(worker(transition(TransitionKind::Quarantine, &leased[2]), member()))).await;
    let released = ledger.done(owned(worker(transition(TransitionKind::Release, &leased[3]), member()))).await;
    ledger.done(owned(worker(transition(TransitionKind::Sanitize, &released), machine("m1")))).await;
    ledger.quarantine("w4", "looked odd").await.unwrap();
    ledger.put_record("replay", "r", Expect::Any, json!({"a": 1})).await.unwrap();
    // Comes back at another place.
    ledger.apply(owned(plain(Operation::Remove { id: "a".into() }))).await.unwrap();
    ledger.done(owned(plain(instance("a")))).await;
    ledger
}

#[tokio::test]
async fn out_and_in_again_is_the_same() {
    let case = Case::new();
    let ledger = lived_in(&case).await;
    let rows = ledger.rows(&RowFilter::default(), None, 100).unwrap().rows;
    // While it is open, and after it was closed.
    let out = text(&case.path());
    ledger.close().await;
    assert_eq!(text(&case.path()), out);
    let list: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(list.as_array().unwrap().len(), rows.len());
    assert_eq!(
        list[0],
        json!({"id": "z", "kind": "instance", "machine": "local", "name": "svc", "owner": rows[0].owner,
        "endpoint": "http://127.0.0.1:31415", "attrs": {"load": 1}, "observedAt": 1_000_000, "ttlMs": 30_000})
    );
    let other = Case::new();
    let counted = rehearse_import(&other.path(), out.as_bytes(), &Bounds::default()).unwrap();
    assert!(!other.path().parent().unwrap().exists(), "a rehearsal makes nothing");
    assert_eq!(import(&other.path(), out.as_bytes(), &Bounds::default()).unwrap(), counted);
    assert_eq!((counted.rows, counted.kinds["pod-worker-lease"]), (rows.len() as u64, 5));
    assert_eq!(text(&other.path()), out);
    assert_eq!(sound(&other.path()).rows, counted.rows);
    let ledger = other.open();
    assert_eq!(ledger.rows(&RowFilter::default(), None, 100).unwrap().rows, rows);
    // What came in goes on: the one idle worker is leased, and an id that was used stays used.
    let leased = ledger.done(owned(worker(acquire("next"), member()))).await;
    assert_eq!((leased.name.as_str(), WorkerFacts::of(&leased).unwrap().generation), ("w3", 2));
    assert_eq!(ledger.refusal(owned(worker(worker_draft("w4"), machine("m1")))).await, "worker-id-used");
    ledger.close().await;
    sound(&other.path());
}

#[tokio::test]
async fn into_a_ledger_that_is_open_and_only_while_it_is_empty() {
    let source = Case::new();
    lived_in(&source).await.close().await;
    let out = text(&source.path());
    let case = Case::new();
    let ledger = case.open();
    // Its mirror is made by the first write; what was removed leaves it empty again.
    ledger.done(owned(plain(instance("early")))).await;
    ledger.apply(owned(plain(Operation::Remove { id: "early".into() }))).await.unwrap();
    import(&case.path(), out.as_bytes(), &Bounds::default()).unwrap();
    let leased = ledger.done(owned(worker(acquire("r"), member()))).await;
    assert_eq!(leased.name, "w3");
    assert_eq!(ledger.stats().read_whole, 1, "what was imported is read as a change");
    let before = text(&case.path());
    for result in [
        import(&case.path(), out.as_bytes(), &Bounds::default()),
        rehearse_import(&case.path(), out.as_bytes(), &Bounds::default()),
        import(&case.path(), b"[]", &Bounds::default()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.code(), "ledger-not-empty");
        assert!(error.to_string().contains("holds 9 rows"), "{error}");
    }
    assert_eq!(text(&case.path()), before);
    ledger.close().await;
    sound(&case.path());
}

#[test]
fn a_bad_row_is_named_and_nothing_is_imported() {
    let owner = "0".repeat(64);
    let plain = |id: &str| json!({"id": id, "kind": "image", "machine": "m", "name": "n", "owner": owner, "attrs": {}, "observedAt": 1, "ttlMs": 1.5});
    let port = json!({"id": "port-lease:31450", "kind": "port-lease", "machine": "m", "name": "p", "owner": owner,
        "attrs": {"port": 31450, "purpose": "p", "leaseId": "L"}, "observedAt": 1, "ttlMs": 5});
    let worker = json!({"id": "pod-worker-lease:w", "kind": "pod-worker-lease", "machine": "m", "name": "w", "owner": owner,
        "attrs": {"key": {"context": "c", "imageDigest": "i", "lockHash": "l", "architecture": "a", "more": 1},
            "state": "leased", "generation": 2, "idleTtlMs": 60000, "leaseId": "L", "leaseOwner": owner, "runId": "r",
            "attemptId": "1"}, "observedAt": 1, "ttlMs": 5});
    let with = |row: &Value, path: &str, value: Value| {
        let mut row = row.clone();
        match (path.rsplit_once('.'), value) {
            (None, Value::Null) => drop(row.as_object_mut().unwrap().shift_remove(path)),
            (None, value) => row[path] = value,
            (Some((parents, name)), value) => {
                let parent = parents.split('.').fold(&mut row, |at, name| &mut at[name]);
                if value.is_null() {
                    parent.as_object_mut().unwrap().shift_remove(name);
                } else {
                    parent[name] = value;
                }
            }
        }
        row
    };
    let long = "x".repeat(1 << 20);
    let cases: Vec<(Value, &str)> = vec![
        (json!(7), "it isn't an object"),
        (with(&plain("x"), "kind", json!("cat")), "kind is none of machine, instance"),
        (with(&plain("x"), "kind", Value::Null), "kind is missing"),
        (with(&plain("x"), "ageMs", json!(1)), "ageMs isn't a field"),
        (with(&plain("x"), "id", json!(" ")), "id is blank"),
        (with(&plain("x"), "id", json!("port-lease:1")), "id is one of a port or a worker"),
        (with(&plain("x"), "id", json!("pod-worker-lease:1")), "id is one of a port or a worker"),
        (with(&plain("x"), "machine", json!(1)), "machine isn't a text"),
        (with(&plain("x"), "name", json!("")), "name is blank"),
        (with(&plain("x"), "owner", json!("me")), "owner isn't 64 hex digits"),
        (with(&plain("x"), "endpoint", json!(1)), "endpoint isn't a text"),
        (with(&plain("x"), "attrs", json!([])), "attrs isn't an object"),
        (with(&plain("x"), "attrs.long", json!(long)), "attrs take "),
        (with(&plain("x"), "observedAt", json!(-1)), "observedAt isn't a time"),
        (with(&plain("x"), "observedAt", json!(1.5)), "observedAt isn't a time"),
        (with(&plain("x"), "ttlMs", json!(-1)), "ttlMs isn't a number of 0 or more"),
        (with(&plain("x"), "ttlMs", json!("1")), "ttlMs isn't a number"),
        (plain("first"), "id is the one of row 0 too"),
        (with(&port, "id", json!("port-lease:031450")), "id isn't port-lease:PORT"),
        (with(&port, "id", json!("port-lease:70000")), "id isn't port-lease:PORT"),
        (with(&port, "ttlMs", json!(0)), "ttlMs isn't above 0"),
        (with(&port, "ttlMs", json!(86_400_001)), "ttlMs isn't above 0"),
        (with(&port, "attrs.port", json!(31451)), "attrs.port isn't 31450"),
        (with(&port, "attrs.purpose", json!("q")), "attrs.purpose isn't the row's name"),
        (with(&port, "attrs.leaseId", Value::Null), "attrs.leaseId is missing"),
        (with(&port, "endpoint", json!("e")), "endpoint isn't a port's"),
        (with(&worker, "id", json!("pod-worker-lease:v")), "id isn't pod-worker-lease:NAME"),
        (with(&worker, "ttlMs", json!(1.5)), "ttlMs isn't a whole number"),
        (with(&worker, "ttlMs", json!(86_400_001)), "ttlMs isn't a whole number"),
        (with(&worker, "attrs.state", json!("busy")), "attrs.state is none of"),
        (with(&worker, "attrs.key.lockHash", json!(" ")), "attrs.key.lockHash isn't a text"),
        (with(&worker, "attrs.key", json!("k")), "attrs.key isn't an object"),
        (with(&worker, "attrs.generation", json!(-1)), "attrs aren't those of a worker"),
        (with(&worker, "attrs.generation", json!(0)), "attrs.generation is 0"),
        (with(&worker, "attrs.generation", json!(9_007_199_254_740_992_u64)), "attrs.generation is higher"),
        (with(&worker, "attrs.idleTtlMs", json!(0)), "attrs.idleTtlMs isn't a whole number"),
        (with(&worker, "attrs.podUid", json!("")), "attrs.podUid isn't a text"),
        (with(&worker, "attrs.leaseId", Value::Null), "attrs.leaseId is missing"),
        (with(&worker, "attrs.leaseOwner", json!("me")), "attrs.leaseOwner isn't 64 hex"),
        (with(&worker, "attrs.state", json!("sanitizing")).clone(), ""),
        (with(&worker, "attrs.state", json!("quarantined")).clone(), ""),
        (
            with(&with(&worker, "attrs.state", json!("quarantined")), "attrs.runId", Value::Null),
            "attrs.runId is missing",
        ),
        (with(&worker, "attrs.state", json!("idle")), "attrs.leaseId is left of a lease"),
        (plain("x"), ""),
        (port.clone(), ""),
        (worker.clone(), ""),
    ];
    for (row, expected) in cases {
        let case = Case::new();
        let text = json!([plain("first"), plain("second"), row]).to_string();
        let result = import(&case.path(), text.as_bytes(), &Bounds::default());
        if expected.is_empty() {
            assert_eq!(result.unwrap().rows, 3);
            sound(&case.path());
            continue;
        }
        let error = result.unwrap_err();
        assert_eq!(error.code(), "bad-row", "{error}");
        let message = error.to_string();
        assert!(message.starts_with("row 2") && message.contains(expected), "{message} instead of {expected}");
        assert!(!case.path().parent().unwrap().exists(), "{message}");
    }
}

#[test]
fn what_is_no_list_of_rows_is_refused() {
    let owner = "0".repeat(64);
    let row = |extra: &str, attrs: &str| {
        format!(
            r#"{{"id":"i","kind":"image","machine":"m","name":"n","owner":"{owner}","observedAt":1,"ttlMs":1{extra},"attrs":{attrs}}}"#
        )
    };
    let deep = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    for (text, code, message) in [
        (String::new(), "not-a-ledger", "ends in the middle"),
        ("{}".to_owned(), "not-a-ledger", "an array was expected"),
        (r#"{"resources":[]}"#.to_owned(), "not-a-ledger", "an array was expected"),
        ("[".to_owned(), "not-a-ledger", "ends in the middle"),
        (format!("[{}", row("", "{}")), "not-a-ledger", "ends in the middle"),
        (format!("[{},]", row("", "{}")), "not-a-ledger", "a value was expected"),
        ("[] []".to_owned(), "not-a-ledger", "something follows"),
        (format!("[{}]", row(r#","id":"j""#, "{}")), "bad-row", "row 0: JSON isn't allowed"),
        (format!("[{}]", row("", r#"{"a":{"b":1,"b":2}}"#)), "bad-row", "the name \"b\" occurs twice"),
        (format!("[{}]", row("", r#"{"a":"\ud800"}"#)), "bad-row", "a lone surrogate"),
        (format!("[{}]", row("", &deep(200))), "bad-row", "nested more than"),
        (format!("[{}]", row("", "{}")).replace("\"ttlMs\":1", "\"ttlMs\":1e400"), "bad-row", "ttlMs isn't a number"),
    ] {
        let case = Case::new();
        let error = import(&case.path(), text.as_bytes(), &Bounds::default()).unwrap_err();
        assert_eq!(error.code(), code, "{text}: {error}");
        assert!(error.to_string().contains(message), "{error} instead of {message}");
        assert!(!case.path().parent().unwrap().exists());
    }
    // Attributes may be as deep as a request's may be.
    let case = Case::new();
    let text = format!("[{}]", row("", &deep(json::MAX_DEPTH)));
    import(&case.path(), text.as_bytes(), &Bounds::default()).unwrap();
    sound(&case.path());
    assert_eq!(self::text(&case.path()).matches("{\"a\":").count(), json::MAX_DEPTH);
}

#[derive(Clone, Debug)]
enum Step {
    Instance(u8),
    Beat(u8),
    Remove(u8),
    Port,
    Worker(u8),
    Acquire,
    Move(TransitionKind, u8),
    Out(u8),
    Sleep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        Just(TransitionKind::Renew),
        Just(TransitionKind::Release),
        Just(TransitionKind::Sanitize),
        Just(TransitionKind::Quarantine)
    ];
    prop_oneof![
        (0..4_u8).prop_map(Step::Instance),
        (0..4_u8).prop_map(Step::Beat),
        (0..4_u8).prop_map(Step::Remove),
        Just(Step::Port),
        (0..6_u8).prop_map(Step::Worker),
        Just(Step::Acquire),
        Just(Step::Acquire),
        (kind, 0..6_u8).prop_map(|(kind, n)| Step::Move(kind, n)),
        (0..6_u8).prop_map(Step::Out),
        (1..60_000_u64).prop_map(Step::Sleep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever the ledger's own operations leave is sound, goes out, and comes in again the same.
    #[test]
    fn every_life_is_sound_and_portable(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let case = Case::new();
            let ledger = case.open();
            for step in steps {
                let submission = match step {
                    Step::Instance(n) => plain(instance(&format!("i{n}"))),
                    Step::Beat(n) => plain(beat(&format!("i{n}"), r#"{"load":2.5,"7":"\u0000\ud83d\ude00"}"#)),
                    Step::Remove(n) => plain(Operation::Remove { id: format!("i{n}") }),
                    Step::Port => plain(port("m1")),
                    Step::Worker(n) => worker(worker_draft(&format!("w{n}")), machine("m1")),
                    Step::Acquire => worker(acquire("run"), member()),
                    Step::Move(kind, n) => {
                        let Some(row) = ledger.row(&worker_row_id(&format!("w{n}"))).unwrap() else { continue };
                        let caller = if kind == TransitionKind::Sanitize { machine("m1") } else { member() };
                        worker(transition(kind, &row), caller)
                    }
                    Step::Out(n) => {
                        let _ = ledger.quarantine(&format!("w{n}"), "odd").await;
                        continue;
                    }
                    Step::Sleep(ms) => {
                        case.sleep(ms);
                        continue;
                    }
                };
                // Many of these are refused; that is not what this is about.
                let _ = ledger.apply(owned(submission)).await;
            }
            sound(&case.path());
            let out = text(&case.path());
            ledger.close().await;
            let other = Case::new();
            import(&other.path(), out.as_bytes(), &Bounds::default()).unwrap();
            assert_eq!(text(&other.path()), out);
            sound(&other.path());
        });
    }

    /// No text does harm, and none makes half a ledger.
    #[test]
    fn no_text_does_harm(text in r#"\[?(\{|\}|\[|\]|,|:|"id"|"a"|1|null){0,12}\]?"#) {
        let case = Case::new();
        let result = import(&case.path(), text.as_bytes(), &Bounds::default());
        prop_assert_eq!(result.is_ok(), case.path().exists());
    }
}
