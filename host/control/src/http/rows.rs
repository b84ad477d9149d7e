//! Rows as clients see them.

use super::values::{JsonObject, KindName};
use super::workers::WorkerKey;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use utoipa::openapi::{AllOfBuilder, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use warmhold_ledger::json::{self, Duplicates};
use warmhold_ledger::{Instant, Kind, Row};

/// A row as whoever wrote it sees it.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) struct StoredRow {
    /// Its name for ever.
    id: String,
    /// What it is.
    kind: KindName,
    /// Where it is.
    machine: String,
    /// What people call it.
    name: String,
    /// SHA-256 of the token that wrote it, or of the machine's name.
    owner: String,
    /// Where it can be reached.
    #[schema(nullable = false)]
    endpoint: Option<String>,
    /// Whatever there is to say about it. Numbers are doubles.
    attrs: JsonObject,
    /// When it was last heard of, in milliseconds since 1970.
    observed_at: u64,
    /// How long it counts from then, in milliseconds.
    ttl_ms: f64,
}

/// What a list says beside the row.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) struct Age {
    /// How long ago it was last heard of, in milliseconds.
    age_ms: u64,
    /// Whether it counts no more.
    expired: bool,
}

/// A row in a list; of leases only what nobody can act with.
pub(super) struct ListedRow;

impl PartialSchema for ListedRow {
    fn schema() -> RefOr<Schema> {
        AllOfBuilder::new()
            .item(Ref::from_schema_name(StoredRow::name()))
            .item(Age::schema())
            .description(Some("A row in a list; of leases only what nobody can act with."))
            .into()
    }
}

impl ToSchema for ListedRow {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((StoredRow::name().into(), StoredRow::schema()));
        StoredRow::schemas(schemas);
    }
}

/// The answer of `GET /v1/resources`.
#[derive(ToSchema)]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) struct Resources {
    /// In the order in which they were registered.
    resources: Vec<ListedRow>,
}

/// The row of a worker, as the routes of workers answer it.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) struct WorkerRow {
    /// `pod-worker-lease:` and the worker's id.
    #[schema(pattern = "^pod-worker-lease:")]
    id: String,
    /// `pod-worker-lease`.
    kind: KindName,
    /// Where it is.
    machine: String,
    /// The worker's id.
    name: String,
    /// SHA-256 of what registered it.
    owner: String,
    /// Where it stands.
    attrs: WorkerAttrs,
    /// When it was last heard of, in milliseconds since 1970.
    observed_at: u64,
    /// How long it counts from then, in milliseconds.
    ttl_ms: f64,
}

/// Where a worker stands.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) struct WorkerAttrs {
    /// What it can stand in for.
    key: WorkerKey,
    /// Its state.
    state: WorkerStateName,
    /// How often it was leased.
    generation: u64,
    /// For how long it counts when it is idle, in milliseconds.
    idle_ttl_ms: f64,
    /// The pod that it is.
    #[schema(nullable = false)]
    pod_uid: Option<String>,
    /// The lease, with `generation`; kept while sanitizing and quarantined.
    #[schema(nullable = false)]
    lease_id: Option<String>,
    /// Whose lease it is.
    #[schema(nullable = false)]
    lease_owner: Option<String>,
    /// The holder's run.
    #[schema(nullable = false)]
    run_id: Option<String>,
    /// The holder's attempt.
    #[schema(nullable = false)]
    attempt_id: Option<String>,
    /// The reason of the last transition that gave one.
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// The state of a worker.
#[derive(ToSchema)]
#[schema(as = WorkerState, rename_all = "lowercase")]
#[allow(dead_code, reason = "rows are written as text; this type says what that text holds")]
pub(super) enum WorkerStateName {
    Idle,
    Leased,
    Sanitizing,
    Quarantined,
}

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
