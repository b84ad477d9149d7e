//! Lease policies: they decide every change of the ledger, synchronously, inside the transaction that asks.

use crate::bindings::lease as bindings;
use crate::bindings::lease::warmhold::policy::ledger_view;
use crate::call::{self, CallState, Frame, Host};
use crate::engine::Inner;
use crate::fault::PolicyFault;
use crate::generation::{Generation, Identity};
use crate::limits::{Limits, VIEW_ROWS};
use crate::slot::{Kind, Slot};
use crate::world::World;
use std::sync::Arc;
use wasmtime::component::{Component, ComponentExportIndex, ComponentNamedList, Instance, InstancePre, Lower};

pub use bindings::exports::warmhold::policy::leases::{
    Change, Moment, PortRequest, RowDraft, Transition, Verdict, WorkerDraft, WorkerRequest,
};
pub use bindings::warmhold::policy::types::{Caller, Refusal, Row, Scope, WorkerKey};

/// The ledger as it stands inside the transaction that asks. Read only.
///
/// The call owns it through an `Arc` that is dropped before the call returns, so that the caller's own is the only one
/// again. Answers are capped at [`VIEW_ROWS`] rows whatever the policy asked for; their bytes count as host bytes.
pub trait LedgerView: Send + Sync {
    /// The row with this id.
    fn get(&self, id: &str) -> Option<Row>;
    /// Idle workers with this key (and of this machine, if given) that are not expired at `unexpired_at` (milliseconds
    /// since the epoch), in the order of their registration, at most `limit`.
    fn idle_workers(&self, key: &WorkerKey, machine: Option<&str>, unexpired_at: u64, limit: u32) -> Vec<Row>;
    /// Rows of one kind in the order of their ids, after `after`, at most `limit`.
    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<Row>;
}

/// A ledger without a row, for a load's self-test.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyLedger;

impl LedgerView for EmptyLedger {
    fn get(&self, _id: &str) -> Option<Row> {
        None
    }

    fn idle_workers(&self, _key: &WorkerKey, _machine: Option<&str>, _unexpired_at: u64, _limit: u32) -> Vec<Row> {
        Vec::new()
    }

    fn page(&self, _kind: &str, _after: Option<&str>, _limit: u32) -> Vec<Row> {
        Vec::new()
    }
}

/// What is to be decided.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseRequest {
    /// Insert or replace one's own row.
    RegisterResource(RowDraft),
    /// Refresh one's own row.
    Heartbeat {
        /// The row.
        id: String,
        /// JSON text of an object to merge into its attributes.
        attrs: Option<String>,
    },
    /// Remove one's own row.
    RemoveResource {
        /// The row.
        id: String,
    },
    /// Lease a port.
    LeasePort(PortRequest),
    /// Renew a port's lease.
    RenewPort {
        /// The port.
        port: u16,
        /// Its lease.
        lease_id: String,
    },
    /// Give a port back.
    ReleasePort {
        /// The port.
        port: u16,
        /// Its lease.
        lease_id: String,
    },
    /// Register a worker.
    RegisterWorker(WorkerDraft),
    /// Lease a worker.
    AcquireWorker(WorkerRequest),
    /// leased → leased.
    RenewWorker(Transition),
    /// leased → sanitizing.
    ReleaseWorker(Transition),
    /// sanitizing → idle.
    SanitizeWorker(Transition),
    /// leased or sanitizing → quarantined.
    QuarantineWorker(Transition),
}

impl LeaseRequest {
    /// The exported function that decides it.
    #[must_use]
    pub fn function(&self) -> &'static str {
        match self {
            Self::RegisterResource(_) => "register-resource",
            Self::Heartbeat { .. } => "heartbeat",
            Self::RemoveResource { .. } => "remove-resource",
            Self::LeasePort(_) => "lease-port",
            Self::RenewPort { .. } => "renew-port",
            Self::ReleasePort { .. } => "release-port",
            Self::RegisterWorker(_) => "register-worker",
            Self::AcquireWorker(_) => "acquire-worker",
            Self::RenewWorker(_) => "renew-worker",
            Self::ReleaseWorker(_) => "release-worker",
            Self::SanitizeWorker(_) => "sanitize-worker",
            Self::QuarantineWorker(_) => "quarantine-worker",
        }
    }
}

/// A verdict and who gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// What to write, or why not.
    pub verdict: Verdict,
    /// `NAME@sha256:DIGEST#GENERATION`.
    pub policy: Arc<str>,
}

/// What a lease policy's store holds beside the call's state.
pub(crate) type LeaseHost = Arc<dyn LedgerView>;

/// Lease policies, as a [`Kind`].
#[derive(Debug)]
pub struct LeaseKind;

/// A lease policy, compiled and matched with its imports.
#[derive(Clone)]
pub struct LeaseProgram {
    /// For the questions of a load.
    policy: bindings::LeasePolicyPre<Host<LeaseHost>>,
    /// For decisions: looking at every export's type, as the generated binding does for each new instance, costs as much
    /// as a short decision, and a decision calls one.
    instance: InstancePre<Host<LeaseHost>>,
    functions: Arc<Functions>,
}

/// Where a component's functions for decisions are.
struct Functions {
    register_resource: ComponentExportIndex,
    heartbeat: ComponentExportIndex,
    remove_resource: ComponentExportIndex,
    lease_port: ComponentExportIndex,
    renew_port: ComponentExportIndex,
    release_port: ComponentExportIndex,
    register_worker: ComponentExportIndex,
    acquire_worker: ComponentExportIndex,
    renew_worker: ComponentExportIndex,
    release_worker: ComponentExportIndex,
    sanitize_worker: ComponentExportIndex,
    quarantine_worker: ComponentExportIndex,
}

impl Functions {
    fn of(component: &Component) -> wasmtime::Result<Self> {
        let missing = |name: &str| wasmtime::format_err!("the component doesn't export `{name}`");
        let leases = component.get_export_index(None, INTERFACE).ok_or_else(|| missing(INTERFACE))?;
        let find = |name: &str| component.get_export_index(Some(&leases), name).ok_or_else(|| missing(name));
        Ok(Self {
            register_resource: find("register-resource")?,
            heartbeat: find("heartbeat")?,
            remove_resource: find("remove-resource")?,
            lease_port: find("lease-port")?,
            renew_port: find("renew-port")?,
            release_port: find("release-port")?,
            register_worker: find("register-worker")?,
            acquire_worker: find("acquire-worker")?,
            renew_worker: find("renew-worker")?,
            release_worker: find("release-worker")?,
            sanitize_worker: find("sanitize-worker")?,
            quarantine_worker: find("quarantine-worker")?,
        })
    }
}

/// The interface that decides.
const INTERFACE: &str = "warmhold:policy/leases@0.1.0";

/// Calls one function of an instance. Its type is checked here: a program that was loaded has the right ones.
fn invoke<P: ComponentNamedList + Lower>(
    store: &mut wasmtime::Store<Host<LeaseHost>>,
    instance: &Instance,
    function: &ComponentExportIndex,
    params: P,
) -> wasmtime::Result<Verdict> {
    let function = instance.get_typed_func::<P, (Verdict,)>(&mut *store, function)?;
    Ok(function.call(store, params)?.0)
}

impl std::fmt::Debug for LeaseProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseProgram")
    }
}

/// The slot of the lease policy.
pub type LeaseSlot = Slot<LeaseKind>;

impl LeaseSlot {
    /// Decides one request, in a fresh instance, on this thread. The policy that serves when this begins decides.
    ///
    /// Whoever applies the verdict must say so when it breaks the host's rules: [`Slot::report_violation`].
    ///
    /// # Errors
    /// When the policy fails, or every place of the pool is taken. Nothing was decided then.
    pub fn decide(
        &self,
        view: Arc<dyn LedgerView>,
        at: &Moment,
        who: &Caller,
        request: &LeaseRequest,
    ) -> Result<Decided, PolicyFault> {
        self.call(request.function(), |inner, generation| {
            let verdict =
                decide(inner, &generation.program, &generation.identity, &generation.limits, view, at, who, request)?;
            Ok(Decided { verdict, policy: Arc::clone(generation.tag()) })
        })
    }

    /// Decides with a generation that need not serve: how a policy on trial would have decided. Counts for nothing.
    ///
    /// # Errors
    /// As [`LeaseSlot::decide`].
    pub fn decide_with(
        &self,
        generation: &Generation<LeaseProgram>,
        view: Arc<dyn LedgerView>,
        at: &Moment,
        who: &Caller,
        request: &LeaseRequest,
    ) -> Result<Decided, PolicyFault> {
        let inner = self.engine().inner();
        let _place = inner.enter_load(World::Lease).map_err(|cause| PolicyFault {
            tag: generation.tag().to_string(),
            function: request.function(),
            cause,
            message: None,
        })?;
        let verdict =
            decide(inner, &generation.program, &generation.identity, &generation.limits, view, at, who, request)?;
        Ok(Decided { verdict, policy: Arc::clone(generation.tag()) })
    }

    /// Makes an instance of what serves, as a decision does, and drops it: what the sandbox costs when the policy has
    /// nothing to decide. For measuring.
    ///
    /// # Errors
    /// As [`LeaseSlot::decide`].
    pub fn instantiate(&self) -> Result<(), PolicyFault> {
        self.call("instantiate", |inner, generation| {
            let frame = Frame { now_ms: 0, seed: String::new() };
            let call = CallState::new(&generation.identity, &generation.limits, frame);
            let host = Host { call, own: Arc::new(EmptyLedger) as LeaseHost };
            call::run(&inner.engine, &generation.identity, "instantiate", host, |store| {
                generation.program.instance.instantiate(store).map(drop)
            })
        })
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "a decision has this many inputs, and a struct of them would be made for this call alone"
)]
fn decide(
    inner: &Inner,
    program: &LeaseProgram,
    identity: &Identity,
    limits: &Limits,
    view: Arc<dyn LedgerView>,
    at: &Moment,
    who: &Caller,
    request: &LeaseRequest,
) -> Result<Verdict, PolicyFault> {
    let frame = Frame { now_ms: at.now, seed: at.fresh_id.clone() };
    let host = Host { call: CallState::new(identity, limits, frame), own: view };
    call::run(&inner.engine, identity, request.function(), host, |store| {
        let instance = program.instance.instantiate(&mut *store)?;
        store.data_mut().call.made = true;
        let of = &*program.functions;
        match request {
            LeaseRequest::RegisterResource(draft) => invoke(store, &instance, &of.register_resource, (at, who, draft)),
            LeaseRequest::Heartbeat { id, attrs } => {
                invoke(store, &instance, &of.heartbeat, (at, who, id.as_str(), attrs.as_deref()))
            }
            LeaseRequest::RemoveResource { id } => {
                invoke(store, &instance, &of.remove_resource, (at, who, id.as_str()))
            }
            LeaseRequest::LeasePort(request) => invoke(store, &instance, &of.lease_port, (at, who, request)),
            LeaseRequest::RenewPort { port, lease_id } => {
                invoke(store, &instance, &of.renew_port, (at, who, *port, lease_id.as_str()))
            }
            LeaseRequest::ReleasePort { port, lease_id } => {
                invoke(store, &instance, &of.release_port, (at, who, *port, lease_id.as_str()))
            }
            LeaseRequest::RegisterWorker(draft) => invoke(store, &instance, &of.register_worker, (at, who, draft)),
            LeaseRequest::AcquireWorker(request) => invoke(store, &instance, &of.acquire_worker, (at, who, request)),
            LeaseRequest::RenewWorker(request) => invoke(store, &instance, &of.renew_worker, (at, who, request)),
            LeaseRequest::ReleaseWorker(request) => invoke(store, &instance, &of.release_worker, (at, who, request)),
            LeaseRequest::SanitizeWorker(request) => invoke(store, &instance, &of.sanitize_worker, (at, who, request)),
            LeaseRequest::QuarantineWorker(request) => {
                invoke(store, &instance, &of.quarantine_worker, (at, who, request))
            }
        }
    })
}

impl Kind for LeaseKind {
    const WORLD: World = World::Lease;
    type Program = LeaseProgram;

    fn link(inner: &Inner, component: &Component) -> wasmtime::Result<LeaseProgram> {
        let instance = inner.lease.instantiate_pre(component)?;
        let policy = bindings::LeasePolicyPre::new(instance.clone())?;
        Ok(LeaseProgram { policy, instance, functions: Arc::new(Functions::of(component)?) })
    }

    fn identify(
        inner: &Inner,
        program: &LeaseProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<crate::load::About, PolicyFault> {
        let about = question(inner, program, identity, limits, "identify", |policy, store| {
            policy.warmhold_policy_about().call_identify(store)
        })?;
        Ok(crate::load::About { name: about.name, version: about.version, summary: about.summary })
    }

    fn check_settings(
        inner: &Inner,
        program: &LeaseProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), Vec<String>>, PolicyFault> {
        let settings = identity.settings.to_string();
        question(inner, program, identity, limits, "check-settings", |policy, store| {
            policy.warmhold_policy_about().call_check_settings(store, &settings)
        })
    }

    /// Heartbeats a row that an empty ledger doesn't have: there is nothing to be written.
    fn self_test(
        inner: &Inner,
        program: &LeaseProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), String>, PolicyFault> {
        let at = Moment { now: 1_700_000_000_000, fresh_id: "00000000-0000-4000-8000-000000000000".to_owned() };
        let who = Caller { owner: "0".repeat(64), scope: Scope::Member, machine: None };
        let request = LeaseRequest::Heartbeat { id: "self-test".to_owned(), attrs: None };
        match decide(inner, program, identity, limits, Arc::new(EmptyLedger), &at, &who, &request)? {
            Ok(change) if !change.put.is_empty() || !change.remove.is_empty() => {
                Ok(Err("asked to refresh a row that does not exist, it wants to write".to_owned()))
            }
            _ => Ok(Ok(())),
        }
    }
}

/// One question of a load.
fn question<R>(
    inner: &Inner,
    program: &LeaseProgram,
    identity: &Identity,
    limits: &Limits,
    function: &'static str,
    ask: impl FnOnce(&bindings::LeasePolicy, &mut wasmtime::Store<Host<LeaseHost>>) -> wasmtime::Result<R>,
) -> Result<R, PolicyFault> {
    let frame = Frame { now_ms: 0, seed: function.to_owned() };
    let host = Host { call: CallState::new(identity, limits, frame), own: Arc::new(EmptyLedger) as LeaseHost };
    call::run(&inner.engine, identity, function, host, |store| {
        let policy = program.policy.instantiate(&mut *store)?;
        store.data_mut().call.made = true;
        ask(&policy, store)
    })
}

/// What a row takes on its way to the guest.
fn row_bytes(row: &Row) -> usize {
    row.id.len()
        + row.kind.len()
        + row.machine.len()
        + row.name.len()
        + row.owner.len()
        + row.attrs.len()
        + row.endpoint.as_ref().map_or(0, String::len)
        + size_of::<Row>()
}

impl Host<LeaseHost> {
    fn rows(&mut self, mut rows: Vec<Row>, limit: u32) -> wasmtime::Result<Vec<Row>> {
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        self.call.charge(rows.iter().map(row_bytes).sum())?;
        Ok(rows)
    }
}

impl ledger_view::Host for Host<LeaseHost> {
    fn get(&mut self, id: String) -> wasmtime::Result<Option<Row>> {
        self.call.host_call(id.len())?;
        let row = self.own.get(&id);
        self.call.charge(row.as_ref().map_or(0, row_bytes))?;
        Ok(row)
    }

    fn idle_workers(
        &mut self,
        key: WorkerKey,
        machine: Option<String>,
        unexpired_at: u64,
        limit: u32,
    ) -> wasmtime::Result<Vec<Row>> {
        let bytes = key.context.len() + key.image_digest.len() + key.lock_hash.len() + key.architecture.len();
        self.call.host_call(bytes + machine.as_ref().map_or(0, String::len))?;
        let limit = limit.min(VIEW_ROWS);
        let rows = self.own.idle_workers(&key, machine.as_deref(), unexpired_at, limit);
        self.rows(rows, limit)
    }

    fn page(&mut self, kind: String, after: Option<String>, limit: u32) -> wasmtime::Result<Vec<Row>> {
        self.call.host_call(kind.len() + after.as_ref().map_or(0, String::len))?;
        let limit = limit.min(VIEW_ROWS);
        let rows = self.own.page(&kind, after.as_deref(), limit);
        self.rows(rows, limit)
    }
}
