//! What may be written, whoever decided it.
//!
//! A success *is* its transition: for each operation there is exactly one row that it may write (an acquire may choose
//! the worker, a port lease the port, and nothing else), so the fence works out that row itself and compares. What is
//! stored is the fence's own row, never the policy's text. Pure: no clock, no randomness, no store.

use crate::json::{self, Duplicates};
use crate::operation::{
    Caller, Change, Moment, Operation, PortRequest, ProposedRow, RowDraft, Transition, TransitionKind, WorkerDraft,
    WorkerRequest,
};
use crate::row::{Kind, Row};
pub use crate::violation::{Rule, Violation};
use crate::violation::{cut, quoted, require, same, wrong, wrong_row};
use crate::worker::{PORT_PREFIX, WORKER_PREFIX, WorkerFacts, WorkerState, port_lease_id, port_row_id, worker_row_id};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Limits of what may be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Longest time to live of a worker, milliseconds; the shortest is 1.
    pub worker_ttl_ms: u64,
    /// Longest time to live of a port's lease, milliseconds; it must be above zero.
    pub port_ttl_ms: f64,
    /// Most bytes of one row's attributes, as canonical text.
    pub attrs_bytes: usize,
}

impl Default for Bounds {
    /// A day for workers and ports; 1 MiB of attributes.
    fn default() -> Self {
        Self { worker_ttl_ms: 86_400_000, port_ttl_ms: 86_400_000.0, attrs_bytes: 1024 * 1024 }
    }
}

/// Whose effect is judged.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'a> {
    /// A policy said yes to this.
    Asked {
        /// What was asked.
        operation: &'a Operation,
        /// By whom.
        caller: &'a Caller,
    },
    /// The host takes a worker out: from any state but quarantined, and no policy is asked.
    HostQuarantine {
        /// Which worker.
        worker_id: &'a str,
        /// Why; stored as it is.
        reason: &'a str,
    },
}

/// The one thing to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Insert or replace this row.
    Put(Row),
    /// Remove the row with this id.
    Remove(String),
}

/// The highest generation: above it a double no longer tells two apart.
pub(crate) const MAX_GENERATION: u64 = (1 << 53) - 1;

/// Judges a whole change, and answers what to write.
///
/// `before` finds a row as it stands.
///
/// # Errors
/// Nothing of the change may be written.
pub fn check(
    effect: Effect<'_>,
    at: &Moment,
    before: impl Fn(&str) -> Option<Arc<Row>>,
    change: &Change,
    bounds: &Bounds,
) -> Result<Write, Violation> {
    let fence = Fence { at, before: &before, bounds };
    let (put, remove) = match (change.put.as_slice(), change.remove.as_slice()) {
        ([put], []) => (Some(put), None),
        ([], [remove]) => (None, Some(remove.as_str())),
        (put, remove) => return Err(Violation::NotOneEffect { put: put.len(), remove: remove.len() }),
    };
    let removal = match effect {
        Effect::Asked { operation: Operation::Remove { id }, caller } => Some(fence.remove(id, caller)?),
        Effect::Asked { operation: Operation::ReleasePort { port, lease_id }, caller } => {
            Some(fence.own_port(*port, lease_id, caller)?.id.clone())
        }
        _ => None,
    };
    if let Some(id) = removal {
        let got = remove.ok_or(Violation::WrongEffect { expected: "removes" })?;
        return if got == id { Ok(Write::Remove(id)) } else { Err(wrong_row(id, got)) };
    }
    let proposed = put.ok_or(Violation::WrongEffect { expected: "writes" })?;
    let expected = match effect {
        Effect::HostQuarantine { worker_id, reason } => fence.host_quarantine(worker_id, reason)?,
        Effect::Asked { operation, caller } => match operation {
            Operation::Register(draft) => fence.register(draft, caller)?,
            Operation::Heartbeat { id, attrs } => fence.heartbeat(id, attrs.as_deref(), caller)?,
            Operation::LeasePort(request) => fence.lease_port(request, caller, &proposed.id)?,
            Operation::RenewPort { port, lease_id } => {
                let row = fence.own_port(*port, lease_id, caller)?;
                Expected {
                    attrs: object(&row.attrs).ok_or(Violation::Forbidden(Rule::DamagedRow))?,
                    row: refreshed(&row, at, row.ttl_ms),
                }
            }
            Operation::RegisterWorker(draft) => fence.register_worker(draft, caller)?,
            Operation::AcquireWorker(request) => fence.acquire(request, caller, &proposed.id)?,
            Operation::Transition(transition) => fence.transition(transition, caller)?,
            Operation::Remove { .. } | Operation::ReleasePort { .. } => {
                return Err(Violation::WrongEffect { expected: "removes" });
            }
        },
    };
    let limited = matches!(effect, Effect::Asked { .. });
    expected.admit(proposed, if limited { bounds.attrs_bytes } else { usize::MAX })
}

/// The row as it must be. The row's own `attrs` text is stale until [`Expected::admit`] prints `attrs`.
struct Expected {
    row: Row,
    attrs: Map<String, Value>,
}

/// A worker's row, what it says, and all its attributes.
type Worker = (Arc<Row>, WorkerFacts, Map<String, Value>);

struct Fence<'a, F> {
    at: &'a Moment,
    before: &'a F,
    bounds: &'a Bounds,
}

impl<F: Fn(&str) -> Option<Arc<Row>>> Fence<'_, F> {
    fn row(&self, id: &str) -> Result<Arc<Row>, Violation> {
        (self.before)(id).ok_or(Violation::Forbidden(Rule::NoSuchRow))
    }

    /// A row that isn't a port's or a worker's, of this caller.
    fn own_plain(&self, id: &str, caller: &Caller) -> Result<Arc<Row>, Violation> {
        plain(id, None)?;
        let row = self.row(id)?;
        plain(id, Some(row.kind))?;
        require(row.owner == caller.owner, Rule::AnotherOwner)?;
        Ok(row)
    }

    fn remove(&self, id: &str, caller: &Caller) -> Result<String, Violation> {
        self.own_plain(id, caller).map(|row| row.id.clone())
    }

    /// A port's row that this caller leased with this lease id.
    fn own_port(&self, port: u16, lease_id: &str, caller: &Caller) -> Result<Arc<Row>, Violation> {
        let row = self.row(&port_row_id(port))?;
        require(row.kind == Kind::PortLease, Rule::OwnRoutesOnly)?;
        require(row.owner == caller.owner, Rule::AnotherOwner)?;
        let fenced = !lease_id.is_empty() && port_lease_id(&row).as_deref() == Some(lease_id);
        require(fenced, Rule::StaleFence)?;
        Ok(row)
    }

    /// One's own plain row is whatever one says it is: the original lets everything but its id change.
    fn register(&self, draft: &RowDraft, caller: &Caller) -> Result<Expected, Violation> {
        plain(&draft.id, Some(draft.kind))?;
        // Zero is allowed here: such a row is born expired, as in the original.
        require(draft.ttl_ms.is_finite() && draft.ttl_ms >= 0.0, Rule::TtlOutOfBounds)?;
        if let Some(row) = (self.before)(&draft.id) {
            plain(&row.id, Some(row.kind))?;
            require(row.owner == caller.owner, Rule::AnotherOwner)?;
        }
        let attrs = object(&draft.attrs).ok_or(Violation::Forbidden(Rule::RequestAttrs))?;
        let row = Row {
            id: draft.id.clone(),
            kind: draft.kind,
            machine: draft.machine.clone(),
            name: draft.name.clone(),
            owner: caller.owner.clone(),
            endpoint: draft.endpoint.clone(),
            attrs: Arc::clone(&draft.attrs),
            observed_at: self.at.now,
            ttl_ms: draft.ttl_ms,
        };
        Ok(Expected { row, attrs })
    }

    fn heartbeat(&self, id: &str, merge: Option<&str>, caller: &Caller) -> Result<Expected, Violation> {
        let row = self.own_plain(id, caller)?;
        let mut attrs = object(&row.attrs).ok_or(Violation::Forbidden(Rule::DamagedRow))?;
        if let Some(merge) = merge {
            attrs.extend(object(merge).ok_or(Violation::Forbidden(Rule::RequestAttrs))?);
        }
        Ok(Expected { row: refreshed(&row, self.at, row.ttl_ms), attrs })
    }

    fn lease_port(&self, request: &PortRequest, caller: &Caller, id: &str) -> Result<Expected, Violation> {
        let port: u16 = id
            .strip_prefix(PORT_PREFIX)
            .and_then(|port| port.parse().ok())
            // "+31450" and "031450" parse as well, and would be other rows.
            .filter(|port| port_row_id(*port) == id)
            .ok_or_else(|| wrong_row(format!("{PORT_PREFIX}PORT"), id))?;
        require((request.first..=request.last).contains(&port), Rule::OutsideBand)?;
        require(!request.excluded.contains(&port), Rule::Excluded)?;
        require(request.ttl_ms > 0.0 && request.ttl_ms <= self.bounds.port_ttl_ms, Rule::TtlOutOfBounds)?;
        if let Some(row) = (self.before)(id) {
            require(row.kind == Kind::PortLease, Rule::OwnRoutesOnly)?;
            require(row.expired(self.at.now), Rule::PortTaken)?;
        }
        let mut attrs = Map::new();
        attrs.insert("port".to_owned(), port.into());
        attrs.insert("purpose".to_owned(), request.purpose.as_str().into());
        attrs.insert("leaseId".to_owned(), self.at.fresh_id.as_str().into());
        let row =
            self.fresh_row(id.to_owned(), Kind::PortLease, &request.machine, &request.purpose, caller, request.ttl_ms);
        Ok(Expected { row, attrs })
    }

    fn register_worker(&self, draft: &WorkerDraft, caller: &Caller) -> Result<Expected, Violation> {
        let id = worker_row_id(&draft.worker_id);
        require((self.before)(&id).is_none(), Rule::IdUsed)?;
        let ttl_ms = self.worker_ttl(draft.ttl_ms)?;
        let key = object(&draft.key_json).ok_or(Violation::Forbidden(Rule::RequestAttrs))?;
        let fields = [
            ("context", &draft.key.context),
            ("imageDigest", &draft.key.image_digest),
            ("lockHash", &draft.key.lock_hash),
            ("architecture", &draft.key.architecture),
        ];
        // The row is found by its four fields, and shows the whole: the two must not differ.
        let agree = fields.iter().all(|(name, value)| key.get(*name).and_then(Value::as_str) == Some(value.as_str()));
        require(agree, Rule::RequestAttrs)?;
        let mut attrs = Map::new();
        attrs.insert("key".to_owned(), Value::Object(key));
        attrs.insert("state".to_owned(), WorkerState::Idle.as_str().into());
        attrs.insert("generation".to_owned(), 0.into());
        attrs.insert("idleTtlMs".to_owned(), draft.ttl_ms.into());
        if let Some(pod_uid) = &draft.pod_uid {
            attrs.insert("podUid".to_owned(), pod_uid.as_str().into());
        }
        let row = self.fresh_row(id, Kind::PodWorkerLease, &draft.machine, &draft.worker_id, caller, ttl_ms);
        Ok(Expected { row, attrs })
    }

    fn acquire(&self, request: &WorkerRequest, caller: &Caller, id: &str) -> Result<Expected, Violation> {
        let (row, facts, mut attrs) = self.worker(id)?;
        require(facts.state == WorkerState::Idle, Rule::NotIdle)?;
        require(!row.expired(self.at.now), Rule::Expired)?;
        require(facts.key == request.key, Rule::AnotherKey)?;
        require(request.machine.as_ref().is_none_or(|machine| *machine == row.machine), Rule::AnotherMachine)?;
        require(facts.generation < MAX_GENERATION, Rule::GenerationExhausted)?;
        attrs.insert("state".to_owned(), WorkerState::Leased.as_str().into());
        attrs.insert("generation".to_owned(), (facts.generation + 1).into());
        attrs.insert("leaseId".to_owned(), self.at.fresh_id.as_str().into());
        attrs.insert("leaseOwner".to_owned(), caller.owner.as_str().into());
        attrs.insert("runId".to_owned(), request.run_id.as_str().into());
        attrs.insert("attemptId".to_owned(), request.attempt_id.as_str().into());
        Ok(Expected { row: refreshed(&row, self.at, self.worker_ttl(request.ttl_ms)?), attrs })
    }

    fn transition(&self, asked: &Transition, caller: &Caller) -> Result<Expected, Violation> {
        let (row, facts, mut attrs) = self.worker(&worker_row_id(&asked.worker_id))?;
        let fenced = !asked.lease_id.is_empty()
            && facts.lease_id.as_deref() == Some(asked.lease_id.as_str())
            && facts.generation == asked.generation;
        require(fenced, Rule::StaleFence)?;
        let registered = row.owner == caller.owner;
        let holds = facts.lease_owner.as_deref() == Some(caller.owner.as_str());
        let (permitted, rule, possible, to) = match asked.kind {
            TransitionKind::Renew if facts.state == WorkerState::Leased => {
                (holds, Rule::LeaseExpired, !row.expired(self.at.now), WorkerState::Leased)
            }
            TransitionKind::Renew => (holds, Rule::NotLeased, false, WorkerState::Leased),
            TransitionKind::Release => {
                (holds, Rule::NotLeased, facts.state == WorkerState::Leased, WorkerState::Sanitizing)
            }
            TransitionKind::Sanitize => {
                (registered, Rule::NotSanitizing, facts.state == WorkerState::Sanitizing, WorkerState::Idle)
            }
            TransitionKind::Quarantine => {
                let out = matches!(facts.state, WorkerState::Leased | WorkerState::Sanitizing);
                (registered || holds, Rule::AlreadyQuarantined, out, WorkerState::Quarantined)
            }
        };
        require(permitted, Rule::AnotherOwner)?;
        require(possible, rule)?;
        attrs.insert("state".to_owned(), to.as_str().into());
        if to == WorkerState::Idle {
            for name in ["leaseId", "leaseOwner", "runId", "attemptId", "reason"] {
                attrs.shift_remove(name);
            }
            require(facts.idle_ttl_ms.is_finite() && facts.idle_ttl_ms > 0.0, Rule::DamagedRow)?;
            return Ok(Expected { row: refreshed(&row, self.at, facts.idle_ttl_ms), attrs });
        }
        if let Some(reason) = &asked.reason {
            attrs.insert("reason".to_owned(), reason.as_str().into());
        }
        let ttl_ms = asked.ttl_ms.map_or(Ok(row.ttl_ms), |ttl_ms| self.worker_ttl(ttl_ms))?;
        Ok(Expected { row: refreshed(&row, self.at, ttl_ms), attrs })
    }

    /// Works on any worker's row whose attributes are an object, even one that no operation could read any more.
    fn host_quarantine(&self, worker_id: &str, reason: &str) -> Result<Expected, Violation> {
        let row = self.row(&worker_row_id(worker_id))?;
        require(row.kind == Kind::PodWorkerLease, Rule::NoSuchRow)?;
        let mut attrs = object(&row.attrs).ok_or(Violation::Forbidden(Rule::DamagedRow))?;
        let quarantined = Value::from(WorkerState::Quarantined.as_str());
        require(attrs.get("state") != Some(&quarantined), Rule::AlreadyQuarantined)?;
        attrs.insert("state".to_owned(), quarantined);
        attrs.insert("reason".to_owned(), reason.into());
        Ok(Expected { row: refreshed(&row, self.at, row.ttl_ms), attrs })
    }

    fn worker(&self, id: &str) -> Result<Worker, Violation> {
        let row = self.row(id)?;
        if row.kind != Kind::PodWorkerLease {
            return Err(wrong_row(format!("{WORKER_PREFIX}WORKER"), id));
        }
        let attrs = object(&row.attrs);
        match (WorkerFacts::of(&row), attrs) {
            (Some(facts), Some(attrs)) => Ok((row, facts, attrs)),
            _ => Err(Violation::Forbidden(Rule::DamagedRow)),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    fn worker_ttl(&self, ttl_ms: u64) -> Result<f64, Violation> {
        require((1..=self.bounds.worker_ttl_ms).contains(&ttl_ms), Rule::TtlOutOfBounds)?;
        Ok(ttl_ms as f64)
    }

    fn fresh_row(&self, id: String, kind: Kind, machine: &str, name: &str, caller: &Caller, ttl_ms: f64) -> Row {
        Row {
            id,
            kind,
            machine: machine.to_owned(),
            name: name.to_owned(),
            owner: caller.owner.clone(),
            endpoint: None,
            attrs: Arc::from(""),
            observed_at: self.at.now,
            ttl_ms,
        }
    }
}

impl Expected {
    /// Compares field by field, and answers the row in canonical form.
    #[allow(clippy::float_cmp, reason = "the same double or not: nothing is computed")]
    fn admit(mut self, proposed: &ProposedRow, limit: usize) -> Result<Write, Violation> {
        if proposed.id != self.row.id {
            return Err(wrong_row(self.row.id, &proposed.id));
        }
        let text = json::object_to_text(&self.attrs);
        if text.len() > limit {
            return Err(Violation::TooLarge { bytes: text.len(), limit });
        }
        let row = &self.row;
        same("kind", row.kind.as_str(), &proposed.kind)?;
        same("machine", &row.machine, &proposed.machine)?;
        same("name", &row.name, &proposed.name)?;
        same("owner", &row.owner, &proposed.owner)?;
        if row.endpoint != proposed.endpoint {
            let show = |endpoint: &Option<String>| endpoint.as_deref().map_or("none".to_owned(), quoted);
            return Err(wrong("endpoint", &show(&row.endpoint), &show(&proposed.endpoint)));
        }
        if row.observed_at != proposed.observed_at {
            return Err(wrong("observedAt", &row.observed_at, &proposed.observed_at));
        }
        if row.ttl_ms != proposed.ttl_ms {
            return Err(wrong("ttlMs", &row.ttl_ms, &proposed.ttl_ms));
        }
        // The canonical text itself needs no second look.
        if proposed.attrs != text {
            // What is so much longer than the right text can't be it; don't let it cost more than a glance.
            if proposed.attrs.len() > text.len().saturating_mul(16).saturating_add(4096) {
                return Err(wrong(
                    "attrs",
                    &format_args!("{} bytes", text.len()),
                    &format_args!("{} bytes", proposed.attrs.len()),
                ));
            }
            let attrs = json::parse_object(&proposed.attrs, Duplicates::Refuse).map_err(Violation::Attrs)?;
            same_attrs(&self.attrs, &attrs)?;
        }
        self.row.attrs = text.into();
        Ok(Write::Put(self.row))
    }
}

fn same_attrs(want: &Map<String, Value>, got: &Map<String, Value>) -> Result<(), Violation> {
    let show = |name: &str, value: Option<&Value>| match value {
        None => "absent".to_owned(),
        // Lease ids are what opens a lease: they have no business in a log.
        Some(_) if name == "leaseId" => "(not shown)".to_owned(),
        Some(value) => cut(&json::to_text(value)),
    };
    let differing = want.keys().chain(got.keys()).find(|name| want.get(*name) != got.get(*name));
    differing.map_or(Ok(()), |name| {
        Err(wrong(&format!("attrs.{}", cut(name)), &show(name, want.get(name)), &show(name, got.get(name))))
    })
}

/// The same row at another moment.
fn refreshed(row: &Row, at: &Moment, ttl_ms: f64) -> Row {
    Row { observed_at: at.now, ttl_ms, ..row.clone() }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    json::parse_object(text, Duplicates::Refuse).ok()
}

fn plain(id: &str, kind: Option<Kind>) -> Result<(), Violation> {
    let guarded = matches!(kind, Some(Kind::PortLease | Kind::PodWorkerLease))
        || id.starts_with(PORT_PREFIX)
        || id.starts_with(WORKER_PREFIX);
    require(!guarded, Rule::OwnRoutesOnly)
}
