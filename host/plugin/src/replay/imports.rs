//! The imports of a replay policy, from the component's types to [`ReplayHost`].
//!
//! Each one counts its bytes, stops the guest's clock, asks the host, and starts the clock again.

use super::host::{HeldLease, ReplayHost, Settlement};
use super::registry::{LeaseHandle, LeaseRegistry};
use super::{ClusterError, ControlError, LeaseFacts, Reply, Target, TransportError};
use crate::bindings::replay::warmhold::policy::{clock, cluster, control, pod_manifest, transport};
use crate::call::Host;
use crate::fault::Cause;
use crate::{Difference, PodSpec, WorkerKey};
use std::sync::Arc;
use wasmtime::component::Resource;

/// What a replay policy's store holds beside the call's state.
pub(crate) struct ReplayCall {
    pub(crate) host: Arc<dyn ReplayHost>,
    pub(crate) leases: Arc<LeaseRegistry>,
}

/// Bytes that a value takes on its way; what matters is what has no bound of its own.
trait Size {
    fn size(&self) -> usize;
}

impl Size for String {
    fn size(&self) -> usize {
        self.len()
    }
}

impl<T: Size> Size for Vec<T> {
    fn size(&self) -> usize {
        self.iter().map(Size::size).sum::<usize>() + self.len() * 8
    }
}

impl<T: Size, E: Size> Size for Result<T, E> {
    fn size(&self) -> usize {
        match self {
            Ok(value) => value.size(),
            Err(error) => error.size(),
        }
    }
}

impl Size for () {
    fn size(&self) -> usize {
        0
    }
}

impl Size for Settlement {
    fn size(&self) -> usize {
        0
    }
}

impl Size for LeaseHandle {
    fn size(&self) -> usize {
        8
    }
}

impl Size for WorkerKey {
    fn size(&self) -> usize {
        self.context.len() + self.image_digest.len() + self.lock_hash.len() + self.architecture.len()
    }
}

impl Size for Target {
    fn size(&self) -> usize {
        self.context.len() + self.namespace.len()
    }
}

impl Size for Difference {
    fn size(&self) -> usize {
        self.path.len() + self.want.len() + self.got.len()
    }
}

impl Size for PodSpec {
    fn size(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.name.len()
            + self.namespace.len()
            + self.context.len()
            + self.worker_id.len()
            + self.image.len()
            + optional(&self.node)
            + self.cut_sha.len()
            + self.key.size()
            + optional(&self.memory_limit)
            + self.host_probe_url.len()
            + self.prod_probe_url.len()
            + optional(&self.source_mirror)
            + self.source.len()
            + self.install.size()
    }
}

impl Size for ControlError {
    fn size(&self) -> usize {
        match self {
            Self::Refused((_, text)) | Self::Unreachable(text) => text.len(),
        }
    }
}

impl Size for ClusterError {
    fn size(&self) -> usize {
        match self {
            Self::UnknownContext(text) | Self::Denied(text) | Self::Failed(text) => text.len(),
            Self::NotFound | Self::Conflict | Self::TimedOut => 0,
        }
    }
}

impl Size for TransportError {
    fn size(&self) -> usize {
        match self {
            Self::NoVerdict(text)
            | Self::Truncated(text)
            | Self::Killed(text)
            | Self::WrongPod(text)
            | Self::Failed(text) => text.len(),
            Self::TooLarge | Self::TimedOut | Self::Quarantined => 0,
        }
    }
}

impl Size for Reply {
    fn size(&self) -> usize {
        let artifacts = self.artifacts.iter().map(|artifact| artifact.file.len() + artifact.suffix.len() + 80);
        self.verdict.len() + 160 + artifacts.sum::<usize>()
    }
}

impl Host<ReplayCall> {
    /// One call of the host: counted, with the guest's clock stopped meanwhile.
    async fn ask<R: Size>(&mut self, bytes: usize, ask: impl Future<Output = R> + Send) -> wasmtime::Result<R> {
        self.call.host_call(bytes)?;
        self.call.meter.leave_guest();
        let answer = ask.await;
        self.call.meter.enter_guest();
        self.call.charge(answer.size())?;
        Ok(answer)
    }

    fn host(&self) -> Arc<dyn ReplayHost> {
        Arc::clone(&self.own.host)
    }

    fn handle(&self, lease: &Resource<HeldLease>) -> wasmtime::Result<LeaseHandle> {
        Ok(self.call.table.get(lease)?.0)
    }

    fn facts(&mut self, lease: &Resource<HeldLease>) -> wasmtime::Result<LeaseFacts> {
        let handle = self.handle(lease)?;
        self.call.host_call(0)?;
        match self.own.host.lease(handle) {
            Some(facts) => {
                self.call.charge(256)?;
                Ok(facts)
            }
            None => Err(self.call.fail(Cause::Host(format!("lease {} of a guest is not known to its host", handle.0)))),
        }
    }
}

impl control::HostLease for Host<ReplayCall> {
    async fn id(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<String> {
        Ok(self.facts(&lease)?.id)
    }

    async fn worker(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<String> {
        Ok(self.facts(&lease)?.worker)
    }

    async fn generation(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<u64> {
        Ok(self.facts(&lease)?.generation)
    }

    async fn run_id(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<String> {
        Ok(self.facts(&lease)?.run_id)
    }

    async fn attempt_id(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<String> {
        Ok(self.facts(&lease)?.attempt_id)
    }

    async fn pod_uid(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<Option<String>> {
        Ok(self.facts(&lease)?.pod_uid)
    }

    async fn key(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<WorkerKey> {
        Ok(self.facts(&lease)?.key)
    }

    async fn renew(&mut self, lease: Resource<HeldLease>, ttl_ms: u64) -> wasmtime::Result<Result<(), ControlError>> {
        let handle = self.handle(&lease)?;
        let host = self.host();
        self.ask(8, async move { host.renew(handle, ttl_ms).await }).await
    }

    async fn release(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<Result<(), ControlError>> {
        let handle = self.handle(&lease)?;
        let leases = Arc::clone(&self.own.leases);
        // Settled in the same step as the host answers, not after the charge that could end the call.
        let host = self.host();
        self.ask(8, async move {
            let released = host.release(handle).await;
            if matches!(released, Ok(Settlement::Settled)) {
                leases.settle(handle);
            }
            released.map(|_| ())
        })
        .await
    }

    async fn sanitize(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<Result<(), ControlError>> {
        let handle = self.handle(&lease)?;
        let leases = Arc::clone(&self.own.leases);
        let host = self.host();
        self.ask(8, async move {
            let sanitized = host.sanitize(handle).await;
            if sanitized.is_ok() {
                leases.settle(handle);
            }
            sanitized
        })
        .await
    }

    async fn quarantine(
        &mut self,
        lease: Resource<HeldLease>,
        reason: String,
    ) -> wasmtime::Result<Result<(), ControlError>> {
        let handle = self.handle(&lease)?;
        let leases = Arc::clone(&self.own.leases);
        let host = self.host();
        self.ask(reason.len(), async move {
            let quarantined = host.quarantine(handle, reason).await;
            if quarantined.is_ok() {
                leases.settle(handle);
            }
            quarantined
        })
        .await
    }

    /// Only the handle goes; the registry still has the lease, open unless it was settled.
    async fn drop(&mut self, lease: Resource<HeldLease>) -> wasmtime::Result<()> {
        self.call.table.delete(lease)?;
        Ok(())
    }
}

impl control::Host for Host<ReplayCall> {
    async fn acquire(
        &mut self,
        machine: String,
        key: WorkerKey,
        run_id: String,
        attempt_id: String,
        ttl_ms: u64,
    ) -> wasmtime::Result<Result<Resource<HeldLease>, ControlError>> {
        let leases = Arc::clone(&self.own.leases);
        let bytes = machine.len() + key.size() + run_id.len() + attempt_id.len();
        let host = self.host();
        let acquired = self
            .ask(bytes, async move {
                let acquired = host.acquire(machine, key, run_id, attempt_id, ttl_ms).await;
                if let Ok(handle) = acquired {
                    leases.give(handle);
                }
                acquired
            })
            .await?;
        match acquired {
            Ok(handle) => Ok(Ok(self.call.push(HeldLease(handle))?)),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn worker_rows(
        &mut self,
        machine: String,
        worker_id: String,
    ) -> wasmtime::Result<Result<String, ControlError>> {
        let bytes = machine.len() + worker_id.len();
        let host = self.host();
        self.ask(bytes, async move { host.worker_rows(machine, worker_id).await }).await
    }

    async fn register(
        &mut self,
        machine: String,
        worker_id: String,
        pod_uid: String,
        key: WorkerKey,
        ttl_ms: u64,
    ) -> wasmtime::Result<Result<String, ControlError>> {
        let bytes = machine.len() + worker_id.len() + pod_uid.len() + key.size();
        let host = self.host();
        self.ask(bytes, async move { host.register(machine, worker_id, pod_uid, key, ttl_ms).await }).await
    }
}

impl cluster::Host for Host<ReplayCall> {
    async fn context_known(&mut self, context: String) -> wasmtime::Result<Result<(), ClusterError>> {
        let host = self.host();
        self.ask(context.len(), async move { host.context_known(context).await }).await
    }

    async fn get_pod(&mut self, at: Target, name: String) -> wasmtime::Result<Result<String, ClusterError>> {
        let host = self.host();
        self.ask(at.size() + name.len(), async move { host.get_pod(at, name).await }).await
    }

    async fn list_pods(&mut self, at: Target) -> wasmtime::Result<Result<Vec<String>, ClusterError>> {
        let host = self.host();
        self.ask(at.size(), async move { host.list_pods(at).await }).await
    }

    async fn get_node(&mut self, context: String, name: String) -> wasmtime::Result<Result<String, ClusterError>> {
        let host = self.host();
        self.ask(context.len() + name.len(), async move { host.get_node(context, name).await }).await
    }

    async fn create_pod(&mut self, at: Target, manifest: String) -> wasmtime::Result<Result<String, ClusterError>> {
        let host = self.host();
        self.ask(at.size() + manifest.len(), async move { host.create_pod(at, manifest).await }).await
    }

    async fn wait_ready(
        &mut self,
        at: Target,
        name: String,
        seconds: u32,
    ) -> wasmtime::Result<Result<(), ClusterError>> {
        let host = self.host();
        self.ask(at.size() + name.len(), async move { host.wait_ready(at, name, seconds).await }).await
    }

    async fn patch_metadata(
        &mut self,
        holding: Resource<HeldLease>,
        at: Target,
        pod: String,
        labels: String,
        annotations: String,
    ) -> wasmtime::Result<Result<(), ClusterError>> {
        let handle = self.handle(&holding)?;
        let bytes = at.size() + pod.len() + labels.len() + annotations.len();
        let host = self.host();
        self.ask(bytes, async move { host.patch_metadata(handle, at, pod, labels, annotations).await }).await
    }
}

impl transport::Host for Host<ReplayCall> {
    async fn exec(
        &mut self,
        holding: Resource<HeldLease>,
        at: Target,
        pod: String,
        command: String,
        deadline: u64,
    ) -> wasmtime::Result<Result<Reply, TransportError>> {
        let handle = self.handle(&holding)?;
        let bytes = at.size() + pod.len() + command.len();
        let host = self.host();
        self.ask(bytes, async move { host.exec(handle, at, pod, command, deadline).await }).await
    }
}

impl pod_manifest::Host for Host<ReplayCall> {
    async fn render(&mut self, spec: PodSpec) -> wasmtime::Result<Result<String, Vec<String>>> {
        let host = self.host();
        self.ask(spec.size(), async move { host.render(spec).await }).await
    }

    async fn verify(
        &mut self,
        spec: PodSpec,
        live: String,
    ) -> wasmtime::Result<Result<Vec<Difference>, Vec<Difference>>> {
        let host = self.host();
        self.ask(spec.size() + live.len(), async move { host.verify(spec, live).await }).await
    }
}

impl clock::Host for Host<ReplayCall> {
    async fn now(&mut self) -> wasmtime::Result<u64> {
        self.call.host_call(8)?;
        Ok(self.own.host.now())
    }
}
