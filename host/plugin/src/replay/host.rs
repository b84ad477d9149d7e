//! What a replay policy can ask of its host.

use super::registry::LeaseHandle;
use super::{ClusterError, ControlError, Reply, Target, TransportError};
use crate::{Difference, PodSpec, WorkerKey};
use async_trait::async_trait;

/// What the guest's table holds for a lease.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
#[derive(Debug)]
pub struct HeldLease(pub(crate) LeaseHandle);

/// What a guest may know of a lease that it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseFacts {
    /// The lease's id.
    pub id: String,
    /// The worker that it is of.
    pub worker: String,
    /// Its generation.
    pub generation: u64,
    /// The run that it was taken for.
    pub run_id: String,
    /// The attempt that it was taken for.
    pub attempt_id: String,
    /// The pod that the worker is.
    pub pod_uid: Option<String>,
    /// The worker's key.
    pub key: WorkerKey,
}

/// Whether a lease has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Somebody must still see to it.
    Open,
    /// Nothing more is to be done with it here.
    Settled,
}

/// The host's side of `control`, `cluster`, `transport`, `clock` and `pod-manifest`.
///
/// A method gets a [`LeaseHandle`], which says which lease the guest means and proves nothing: the implementation checks
/// everything else itself. No method may block its thread. A future can be dropped at any await, when the call runs into
/// its wall clock or its caller gives up: what must not be lost by that (a lease that was just taken) has to be in the
/// ledger or in the implementation's own hands before the await.
#[async_trait]
pub trait ReplayHost: Send + Sync + 'static {
    /// Takes a lease. The handle must be one that no call was ever given.
    async fn acquire(
        &self,
        machine: String,
        key: WorkerKey,
        run_id: String,
        attempt_id: String,
        ttl_ms: u64,
    ) -> Result<LeaseHandle, ControlError>;
    /// What the guest may know of a lease; `None` when the handle is of no lease.
    fn lease(&self, handle: LeaseHandle) -> Option<LeaseFacts>;
    /// Renews a lease.
    async fn renew(&self, handle: LeaseHandle, ttl_ms: u64) -> Result<(), ControlError>;
    /// Releases a lease. `Settled` only where that is its end (a worker of another daemon, whose owner sanitizes it).
    async fn release(&self, handle: LeaseHandle) -> Result<Settlement, ControlError>;
    /// Gives a clean worker back; that settles it.
    async fn sanitize(&self, handle: LeaseHandle) -> Result<(), ControlError>;
    /// Quarantines the worker; that settles it.
    async fn quarantine(&self, handle: LeaseHandle, reason: String) -> Result<(), ControlError>;
    /// The rows of one worker, JSON text of an array.
    async fn worker_rows(&self, machine: String, worker_id: String) -> Result<String, ControlError>;
    /// Registers a worker; the stored row as JSON text.
    async fn register(
        &self,
        machine: String,
        worker_id: String,
        pod_uid: String,
        key: WorkerKey,
        ttl_ms: u64,
    ) -> Result<String, ControlError>;

    /// Whether a context can be reached.
    async fn context_known(&self, context: String) -> Result<(), ClusterError>;
    /// A pod as JSON text.
    async fn get_pod(&self, at: Target, name: String) -> Result<String, ClusterError>;
    /// All pods of a namespace, each as JSON text.
    async fn list_pods(&self, at: Target) -> Result<Vec<String>, ClusterError>;
    /// A node as JSON text.
    async fn get_node(&self, context: String, name: String) -> Result<String, ClusterError>;
    /// Makes a pod; it as JSON text.
    async fn create_pod(&self, at: Target, manifest: String) -> Result<String, ClusterError>;
    /// Waits until a pod is ready.
    async fn wait_ready(&self, at: Target, name: String, seconds: u32) -> Result<(), ClusterError>;
    /// Patches labels and annotations (JSON text of objects; a null removes) of the lease's pod.
    async fn patch_metadata(
        &self,
        holding: LeaseHandle,
        at: Target,
        pod: String,
        labels: String,
        annotations: String,
    ) -> Result<(), ClusterError>;

    /// Runs a command in the lease's pod, until `deadline` (milliseconds since the epoch).
    async fn exec(
        &self,
        holding: LeaseHandle,
        at: Target,
        pod: String,
        command: String,
        deadline: u64,
    ) -> Result<Reply, TransportError>;

    /// What the manifest policy makes of a spec: JSON text, or every fault of the spec. When that policy itself fails,
    /// the fault is told in the list.
    async fn render(&self, spec: PodSpec) -> Result<String, Vec<String>>;
    /// How a live pod (JSON text) differs: `Ok` what does no harm, `Err` what is drift. When the manifest policy itself
    /// fails, the answer must be `Err`: what nobody could compare is not equal.
    async fn verify(&self, spec: PodSpec, live: String) -> Result<Vec<Difference>, Vec<Difference>>;

    /// The host's clock, milliseconds since the epoch.
    fn now(&self) -> u64;
}
