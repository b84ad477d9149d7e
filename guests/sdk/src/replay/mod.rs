//! Replay policies: how a replay is driven, from the lease to the verdict of its caller.
//!
//! The policy drives; the host holds what must not go wrong. A lease is a value that can't be copied: whoever drops one
//! without a verdict has its worker quarantined. There is no way into a pod without one.

#[doc(hidden)]
pub mod component;
pub mod harness;

pub use crate::types::{Candidate, Difference, PodSpec, WorkerKey};
pub use warmhold_bindings_replay::exports::warmhold::policy::replay::{Fallback, ReplayInput};
pub use warmhold_bindings_replay::warmhold::policy::cluster::{ClusterError, Target};
pub use warmhold_bindings_replay::warmhold::policy::control::ControlError;
pub use warmhold_bindings_replay::warmhold::policy::transport::{Artifact, Reply, StreamDigest, TransportError};

use crate::{Environment, Policy};
use serde_json::Value;
use std::fmt;

/// A leased worker. Dropping it without [`Lease::release`] and [`Lease::sanitize`], or [`Lease::quarantine`], makes the
/// host quarantine the worker.
pub trait Lease {
    /// The lease's id.
    fn id(&self) -> String;
    /// The leased worker.
    fn worker(&self) -> String;
    /// 1 or more.
    fn generation(&self) -> u64;
    /// The run that it was taken for.
    fn run_id(&self) -> String;
    /// The attempt at that run.
    fn attempt_id(&self) -> String;
    /// The pod that the worker's row names.
    fn pod_uid(&self) -> Option<String>;
    /// The key in the worker's row.
    fn key(&self) -> WorkerKey;
    /// Makes the lease young again.
    ///
    /// # Errors
    /// The control plane's answer.
    fn renew(&self, ttl_ms: u64) -> Result<(), ControlError>;
    /// leased → sanitizing.
    ///
    /// # Errors
    /// The control plane's answer.
    fn release(&self) -> Result<(), ControlError>;
    /// sanitizing → idle, with the host's machine credential.
    ///
    /// # Errors
    /// The control plane's answer; refused unless the worker proved itself clean or nothing ran.
    fn sanitize(&self) -> Result<(), ControlError>;
    /// Out of use for good, in the ledger and in the host.
    ///
    /// # Errors
    /// The control plane's answer.
    fn quarantine(&self, reason: &str) -> Result<(), ControlError>;
}

/// Everything that a replay policy can do.
pub trait Host: Environment {
    /// A leased worker.
    type Lease: Lease;

    /// The host's clock, milliseconds since the epoch.
    fn now(&self) -> u64;
    /// Leases an idle worker of this machine with this key.
    ///
    /// # Errors
    /// The control plane's answer.
    fn acquire(
        &self,
        machine: &str,
        key: &WorkerKey,
        run_id: &str,
        attempt_id: &str,
        ttl_ms: u64,
    ) -> Result<Self::Lease, ControlError>;
    /// The rows of a worker as the control plane shows them: a JSON array.
    ///
    /// # Errors
    /// The control plane's answer.
    fn worker_rows(&self, machine: &str, worker_id: &str) -> Result<Value, ControlError>;
    /// Registers a worker whose pod this call made; the stored row.
    ///
    /// # Errors
    /// The control plane's answer.
    fn register(
        &self,
        machine: &str,
        worker_id: &str,
        pod_uid: &str,
        key: &WorkerKey,
        ttl_ms: u64,
    ) -> Result<Value, ControlError>;

    /// Whether the context is known where kubectl runs.
    ///
    /// # Errors
    /// It isn't.
    fn context_known(&self, context: &str) -> Result<(), ClusterError>;
    /// A pod.
    ///
    /// # Errors
    /// The cluster's answer.
    fn get_pod(&self, at: &Target, name: &str) -> Result<Value, ClusterError>;
    /// Every pod of the namespace.
    ///
    /// # Errors
    /// The cluster's answer.
    fn list_pods(&self, at: &Target) -> Result<Vec<Value>, ClusterError>;
    /// A node.
    ///
    /// # Errors
    /// The cluster's answer.
    fn get_node(&self, context: &str, name: &str) -> Result<Value, ClusterError>;
    /// Creates a pod; as the cluster then shows it.
    ///
    /// # Errors
    /// The cluster's answer; `conflict` when the name is taken.
    fn create_pod(&self, at: &Target, manifest: &Value) -> Result<Value, ClusterError>;
    /// Waits until the pod is Ready.
    ///
    /// # Errors
    /// The cluster's answer.
    fn wait_ready(&self, at: &Target, name: &str, seconds: u32) -> Result<(), ClusterError>;
    /// Patches annotations under `warmhold.dev/`; null removes one.
    ///
    /// # Errors
    /// The cluster's answer; `conflict` when the pod isn't the lease's any more.
    fn annotate(&self, holding: &Self::Lease, at: &Target, pod: &str, annotations: &Value) -> Result<(), ClusterError>;

    /// Runs a command in the lease's pod. The host adds lease, generation, nonce, pod UID, rules, variables and limits.
    ///
    /// # Errors
    /// There is no verdict that can be believed.
    fn exec(
        &self,
        holding: &Self::Lease,
        at: &Target,
        pod: &str,
        command: &Value,
        deadline: u64,
    ) -> Result<Reply, TransportError>;

    /// What the manifest policy renders.
    ///
    /// # Errors
    /// Every fault of the spec.
    fn render(&self, spec: &PodSpec) -> Result<Value, Vec<String>>;
    /// What the manifest policy says of a live pod: differences that do no harm.
    ///
    /// # Errors
    /// Differences that are drift.
    fn verify(&self, spec: &PodSpec, live: &Value) -> Result<Vec<Difference>, Vec<Difference>>;
}

/// How a request ended.
#[derive(Debug)]
pub enum Outcome<L> {
    /// The files ran; the lease goes back to the host, still held, until the caller gives a verdict.
    Observed {
        /// The lease.
        held: L,
        /// What a person or a gate wants to know of the run.
        evidence: Value,
    },
    /// Nothing to rely on; whatever was leased is quarantined or given back.
    Fallback(Fallback),
    /// The worker couldn't even be quarantined; the host goes on trying.
    Failed(String),
}

impl<L> Outcome<L> {
    /// A fallback with a stable reason and what a person should know.
    #[must_use]
    pub fn fallback(reason: &str, detail: impl Into<Option<String>>) -> Self {
        Self::Fallback(Fallback { reason: reason.to_owned(), detail: detail.into(), evidence: None })
    }
}

/// A replay policy.
pub trait ReplayPolicy: Policy {
    /// One replay: lease a worker, run the files in it, hand the lease back or settle it.
    fn request<H: Host>(&self, host: &H, input: &ReplayInput, candidates: &[Candidate]) -> Outcome<H::Lease>;

    /// The caller is content: the worker is cleaned and given back. The lease is gone afterwards in any case.
    ///
    /// # Errors
    /// It couldn't be given back, for a person; it must be quarantined then.
    fn finalize<H: Host>(&self, host: &H, held: H::Lease, of: &Candidate) -> Result<(), String>;

    /// The caller isn't: the worker is taken out of use.
    ///
    /// # Errors
    /// It couldn't be; the host tries again.
    fn quarantine<H: Host>(&self, host: &H, held: H::Lease, of: &Candidate, reason: &str) -> Result<(), String>;

    /// Makes a standing worker, or finds the one that is there: its pod's UID.
    ///
    /// # Errors
    /// Why there is none, for a person.
    fn prepare<H: Host>(&self, host: &H, of: &Candidate) -> Result<String, String>;
}

/// A control error as a person reads it.
#[must_use]
pub fn control_text(error: &ControlError) -> String {
    match error {
        ControlError::Refused((status, code)) => format!("the control plane refused: {code} ({status})"),
        ControlError::Unreachable(why) => format!("the control plane can't be reached: {why}"),
    }
}

/// A cluster error as a person reads it.
#[must_use]
pub fn cluster_text(error: &ClusterError) -> String {
    match error {
        ClusterError::UnknownContext(why) => format!("unknown context: {why}"),
        ClusterError::Denied(why) => format!("not granted: {why}"),
        ClusterError::NotFound => "not found".to_owned(),
        ClusterError::Conflict => "conflict: it is another one, or it is there already".to_owned(),
        ClusterError::Failed(why) => why.clone(),
        ClusterError::TimedOut => "timed out".to_owned(),
    }
}

/// A transport error as a person reads it.
#[must_use]
pub fn transport_text(error: &TransportError) -> String {
    match error {
        TransportError::NoVerdict(why) => format!("the worker gave no verdict: {why}"),
        TransportError::Truncated(why) => format!("the worker's answer is cut off: {why}"),
        TransportError::TooLarge => "the worker's answer is too large".to_owned(),
        TransportError::Killed(why) => format!("the worker was killed: {why}"),
        TransportError::TimedOut => "the deadline passed".to_owned(),
        TransportError::WrongPod(why) => format!("the pod isn't the leased one: {why}"),
        TransportError::Quarantined => "this pod is marked as never to be used again".to_owned(),
        TransportError::Failed(why) => why.clone(),
    }
}

/// The lease of a component: the handle that the host gave.
pub struct HostLease(pub(crate) warmhold_bindings_replay::warmhold::policy::control::Lease);

impl fmt::Debug for HostLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostLease")
    }
}
