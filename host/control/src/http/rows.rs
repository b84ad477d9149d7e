//! Rows as clients see them.

use serde_json::{Map, Value};
use std::fmt::Write as _;
use warmhold_ledger::json::{self, Duplicates};
use warmhold_ledger::{Instant, Kind, Row};

/// The attributes of a worker that a list shows: enough to choose and to judge one, nothing to act with.
const WORKER_ATTRS: [&str; 5] = ["key", "state", "generation", "podUid", "idleTtlMs"];

/// The whole row, as whoever wrote it sees it.
pub(super) fn stored(row: &Row) -> String {
    let mut out = String::with_capacity(256 + row.attrs.len());
    write(&mut out, row, &row.attrs, None);
    out
}

/// The row without what a lease can be used with.
pub(super) fn without_lease(row: &Row) -> String {
    let mut out = String::with_capacity(256 + row.attrs.len());
    write(&mut out, row, &hidden(row), None);
    out
}

/// The row in a list, with its age: `leaseId` of ports and all but a few attributes of workers stay hidden.
pub(super) fn view(out: &mut String, row: &Row, now: Instant) {
    match row.kind {
        Kind::PortLease | Kind::PodWorkerLease => write(out, row, &hidden(row), Some(now)),
        _ => write(out, row, &row.attrs, Some(now)),
    }
}

fn hidden(row: &Row) -> String {
    let Ok(mut attrs) = json::parse_object(row.attrs.as_bytes(), Duplicates::LastWins) else {
        // What can't be understood can't be shown in part.
        tracing::error!(row = %row.id, "a row's attributes aren't an object");
        return "{}".to_owned();
    };
    if row.kind == Kind::PodWorkerLease {
        let mut shown = Map::new();
        for name in WORKER_ATTRS {
            if let Some(value) = attrs.get_mut(name) {
                shown.insert(name.to_owned(), value.take());
            }
        }
        attrs = shown;
    } else {
        attrs.shift_remove("leaseId");
    }
    json::object_to_text(&attrs)
}

fn write(out: &mut String, row: &Row, attrs: &str, now: Option<Instant>) {
    out.push_str("{\"id\":");
    string(out, &row.id);
    out.push_str(",\"kind\":");
    string(out, row.kind.as_str());
    out.push_str(",\"machine\":");
    string(out, &row.machine);
    out.push_str(",\"name\":");
    string(out, &row.name);
    out.push_str(",\"owner\":");
    string(out, &row.owner);
    if let Some(endpoint) = &row.endpoint {
        out.push_str(",\"endpoint\":");
        string(out, endpoint);
    }
    out.push_str(",\"attrs\":");
    out.push_str(attrs);
    // Writing to a String can't fail.
    let _ = write!(out, ",\"observedAt\":{},\"ttlMs\":{}", row.observed_at, json::to_text(&json::number(row.ttl_ms)));
    if let Some(now) = now {
        let _ = write!(out, ",\"ageMs\":{},\"expired\":{}", row.age_ms(now), row.expired(now));
    }
    out.push('}');
}

fn string(out: &mut String, text: &str) {
    let plain = text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
    if plain {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&json::to_text(&Value::String(text.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn row(kind: Kind, attrs: &str) -> Row {
        Row {
            id: "i".into(),
            kind,
            machine: "m".into(),
            name: "n".into(),
            owner: "o".into(),
            endpoint: None,
            attrs: attrs.into(),
            observed_at: 1_000,
            ttl_ms: 1500.5,
        }
    }

    fn shown(row: &Row, now: u64) -> Value {
        let mut out = String::new();
        view(&mut out, row, now);
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn a_worker_in_a_list_gives_nothing_to_act_with() {
        let worker = row(
            Kind::PodWorkerLease,
            r#"{"key":{"context":"c","x":1e21},"state":"leased","generation":3,"idleTtlMs":5,"leaseId":"L","leaseOwner":"O","runId":"r","attemptId":"a","reason":"why","podUid":"u"}"#,
        );
        assert_eq!(
            shown(&worker, 2_000)["attrs"],
            json!({"key": {"context": "c", "x": 1e21}, "state": "leased", "generation": 3, "podUid": "u",
                "idleTtlMs": 5})
        );
        assert!(stored(&worker).contains("\"leaseId\":\"L\""), "whoever acts on it sees it whole");
        assert!(!stored(&worker).contains("ageMs"));
    }

    #[test]
    fn a_port_in_a_list_hides_its_lease() {
        let port = row(Kind::PortLease, r#"{"leaseId":"L","port":31450,"purpose":"p"}"#);
        assert_eq!(shown(&port, 0)["attrs"], json!({"port": 31450, "purpose": "p"}));
        assert!(!without_lease(&port).contains('L'));
    }

    #[test]
    fn other_rows_are_shown_as_they_are() {
        let text = r#"{"leaseId":"mine","n":12345678901234567000,"e":1e+21}"#;
        let mut out = String::new();
        view(&mut out, &row(Kind::Instance, text), 1_000);
        assert!(out.contains(text), "{out}");
    }

    #[test]
    fn age_and_expiry() {
        let instance = row(Kind::Instance, "{}");
        for (now, age, expired) in [(0, 0, false), (1_000, 0, false), (2_500, 1_500, false), (2_501, 1_501, true)] {
            let view = shown(&instance, now);
            assert_eq!((view["ageMs"].as_u64(), view["expired"].as_bool()), (Some(age), Some(expired)), "{now}");
        }
        assert_eq!(shown(&instance, 0)["ttlMs"], json!(1500.5));
    }

    proptest! {
        #[test]
        fn any_text_comes_through(id in ".{0,20}", name in ".{0,20}", endpoint in proptest::option::of(".{0,9}")) {
            let mut row = row(Kind::Machine, "{}");
            (row.id, row.name, row.endpoint) = (id, name, endpoint);
            let view = shown(&row, 5);
            prop_assert_eq!(view["id"].as_str(), Some(&*row.id));
            prop_assert_eq!(view["name"].as_str(), Some(&*row.name));
            prop_assert_eq!(view.get("endpoint").and_then(Value::as_str), row.endpoint.as_deref());
        }
    }
}
