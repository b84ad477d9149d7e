//! The registry of resources.

use super::answer::Answer;
use super::body::read_object;
use super::exchange::Exchange;
use super::fields::{number, text};
use super::ledger::{Guarded, Reads, apply, machine_scope, own_machine};
use super::rows;
use super::values::{FreeKind, JsonObject, Text, Ttl};
use crate::error::ApiError;
use axum::body::Body;
use bytes::Bytes;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;
use warmhold_ledger::json;
use warmhold_ledger::{Kind, Operation, Page, Position, RowDraft, RowFilter};

/// Rows that are read at once: a list is streamed page by page, in constant memory.
const PAGE: usize = 256;

/// The body of `POST /v1/resources/register`. Other fields are ignored, `owner` and `observedAt` too.
#[derive(ToSchema)]
#[schema(example = json!({"id": "instance:web", "kind": "instance", "machine": "build-07", "name": "web", "attrs": {"port": 80}, "ttlMs": 60000}))]
#[schema(rename_all = "camelCase")]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct RegisterResource {
    /// The row's name for ever.
    id: Text,
    /// What it is.
    kind: FreeKind,
    /// Where it is; a machine's token registers for itself alone.
    machine: Text,
    /// What people call it.
    name: Text,
    /// Whatever there is to say about it. Numbers are doubles.
    attrs: JsonObject,
    /// How long it counts, in milliseconds.
    ttl_ms: Ttl,
    /// Where it can be reached.
    #[schema(nullable = false)]
    endpoint: Option<String>,
}

/// The body of `POST /v1/resources/{id}/heartbeat`. Other fields are ignored.
#[derive(ToSchema)]
#[schema(example = json!({"attrs": {"load": 0.5}}))]
#[allow(dead_code, reason = "the parser reads the JSON itself; this type says what it takes")]
pub(super) struct Heartbeat {
    /// Merged into the row's.
    #[schema(nullable = false)]
    attrs: Option<JsonObject>,
}

/// `GET /v1/resources?kind&machine&name`.
pub(super) async fn list(exchange: &Exchange) -> Result<Answer, ApiError> {
    let kind = match exchange.parameter("kind") {
        None => None,
        Some(name) => match Kind::from_name(&name) {
            Some(kind) => Some(kind),
            // No row is of a kind that doesn't exist.
            None => return Ok(Answer::json_text("{\"resources\":[]}".to_owned())),
        },
    };
    let filter = RowFilter { kind, machine: exchange.parameter("machine"), name: exchange.parameter("name") };
    let ledger = exchange.control.reads.clone();
    let now = now();
    let first = page(&ledger, &filter, None).await?;
    let mut text = String::from("{\"resources\":[");
    append(&mut text, &first, now, true);
    let Some(next) = first.next else {
        text.push_str("]}");
        return Ok(Answer::json_text(text));
    };
    let rest = Rest { ledger, filter, now, next: Some(next) };
    let head = futures::stream::once(async move { Ok(Bytes::from(text)) });
    let tail = futures::stream::unfold(Some(rest), |rest| async move {
        let mut rest = rest?;
        match rest.piece().await {
            Ok(piece) => Some((Ok(piece), rest.next.is_some().then_some(rest))),
            // The status is sent already: an answer that breaks off is the only way left to say that it isn't whole.
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Answer::json_stream(Body::from_stream(futures::StreamExt::chain(head, tail))))
}

/// What is still to be sent of a list.
struct Rest {
    ledger: Reads,
    filter: RowFilter,
    now: u64,
    next: Option<Position>,
}

impl Rest {
    async fn piece(&mut self) -> Result<Bytes, ApiError> {
        let page = page(&self.ledger, &self.filter, self.next).await?;
        let mut text = String::new();
        append(&mut text, &page, self.now, false);
        self.next = page.next;
        if self.next.is_none() {
            text.push_str("]}");
        }
        Ok(Bytes::from(text))
    }
}

async fn page(ledger: &Reads, filter: &RowFilter, after: Option<Position>) -> Result<Page, ApiError> {
    let filter = filter.clone();
    ledger.read(move |ledger| ledger.rows(&filter, after, PAGE)).await
}

fn append(text: &mut String, page: &Page, now: u64, first: bool) {
    for (index, row) in page.rows.iter().enumerate() {
        if !first || index > 0 {
            text.push(',');
        }
        rows::view(text, row, now);
    }
}

/// `POST /v1/resources/register`.
pub(super) async fn register(exchange: &mut Exchange) -> Result<Answer, ApiError> {
    let fields = read_object(exchange, "invalid-record").await?;
    let draft = draft(&fields).map_err(|message| ApiError::bad_request("invalid-record", message))?;
    if draft.kind == Kind::PortLease || draft.id.starts_with("port-lease:") {
        return Err(ports_only());
    }
    if draft.kind == Kind::PodWorkerLease || draft.id.starts_with("pod-worker-lease:") {
        return Err(workers_only());
    }
    if let Some(machine) = exchange.caller()?.machine.as_deref().filter(|machine| *machine != draft.machine) {
        return Err(machine_scope(machine));
    }
    own_machine(exchange, &draft.id).await?;
    let written = apply(exchange, Operation::Register(draft), Guarded::No).await?;
    Ok(Answer::json_text(rows::stored(written.row()?)).decided_by(written.policy))
}

/// `POST /v1/resources/{id}/heartbeat`.
pub(super) async fn heartbeat(exchange: &mut Exchange, raw: &str) -> Result<Answer, ApiError> {
    let id = own_row(exchange, raw)?;
    let fields = read_object(exchange, "invalid-heartbeat").await?;
    if let (Some(own), Some(named)) = (&exchange.caller()?.machine, fields.get("machine"))
        && named.as_str() != Some(own)
    {
        return Err(machine_scope(own));
    }
    let attrs = match fields.get("attrs") {
        None => None,
        Some(Value::Object(attrs)) => Some(Arc::from(json::object_to_text(attrs))),
        Some(_) => return Err(ApiError::bad_request("invalid-heartbeat", "attrs must be an object")),
    };
    own_machine(exchange, &id).await?;
    let written = apply(exchange, Operation::Heartbeat { id, attrs }, Guarded::No).await?;
    Ok(Answer::json_text(rows::stored(written.row()?)).decided_by(written.policy))
}

/// `DELETE /v1/resources/{id}`.
pub(super) async fn remove(exchange: &mut Exchange, raw: &str) -> Result<Answer, ApiError> {
    let id = own_row(exchange, raw)?;
    own_machine(exchange, &id).await?;
    let written = apply(exchange, Operation::Remove { id }, Guarded::No).await?;
    Ok(Answer::nothing().decided_by(written.policy))
}

/// The id in the path, if it is of a row that has no routes of its own.
fn own_row(exchange: &Exchange, raw: &str) -> Result<String, ApiError> {
    let id = exchange.segment(raw, "invalid-id")?;
    if id.starts_with("port-lease:") {
        return Err(ports_only());
    }
    if id.starts_with("pod-worker-lease:") {
        return Err(workers_only());
    }
    Ok(id)
}

fn ports_only() -> ApiError {
    ApiError::forbidden("port-lease-requires-allocator", "ports have their own routes").with_help("use /v1/leases/port")
}

fn workers_only() -> ApiError {
    ApiError::forbidden("pod-worker-requires-allocator", "workers have their own routes")
        .with_help("use /v1/workers/pod and /v1/leases/pod-worker")
}

/// The row that a body describes. `owner` and `observedAt` are the host's, whatever the body says.
fn draft(fields: &Map<String, Value>) -> Result<RowDraft, String> {
    let required = |name: &str| {
        text(fields, name).map(str::to_owned).ok_or_else(|| format!("{name} must be a text that isn't blank"))
    };
    let kind = fields
        .get("kind")
        .and_then(Value::as_str)
        .and_then(Kind::from_name)
        .ok_or_else(|| format!("kind must be one of {}", Kind::ALL.map(Kind::as_str).join(", ")))?;
    let endpoint = match fields.get("endpoint") {
        None => None,
        Some(Value::String(endpoint)) => Some(endpoint.clone()),
        Some(_) => return Err("endpoint must be a text".to_owned()),
    };
    let Some(Value::Object(attrs)) = fields.get("attrs") else { return Err("attrs must be an object".to_owned()) };
    let ttl_ms = number(fields, "ttlMs").filter(|ttl| *ttl >= 0.0).ok_or("ttlMs must be a number of 0 or more")?;
    Ok(RowDraft {
        id: required("id")?,
        kind,
        machine: required("machine")?,
        name: required("name")?,
        endpoint,
        attrs: json::object_to_text(attrs).into(),
        ttl_ms,
    })
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
