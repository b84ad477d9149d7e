//! The replay policy's imports, answered by a [`Session`].
//!
//! A policy call can be cut off at any await. What changes a lease or the ledger therefore runs in a task of its own,
//! which goes on to its end and keeps what it got in the host's hands; whoever settles afterwards waits for those tasks.

use crate::exec::{SpendError, summary};
use crate::journal::tail;
use crate::live::now_ms;
use crate::record::{PodSpec, WorkerRecord};
use crate::session::{ControlError, Purpose, Session};
use async_trait::async_trait;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use warmhold_plugin as plugin;
use warmhold_plugin::{
    ClusterError, Difference, LeaseFacts, LeaseHandle, ReplayHost, Reply, Settlement, TransportError,
};
use warmhold_pods::{ExecError, ExecReply, PodsError, Target};
use warmhold_protocol::WorkerKey;

/// The longest wait for a pod that a policy may ask for; the specification's is 900 s.
const MAX_WAIT: Duration = Duration::from_secs(1800);

/// See the module.
pub(crate) struct PolicyHost {
    session: Arc<Session>,
}

impl PolicyHost {
    pub(crate) fn new(session: Session) -> Self {
        Self { session: Arc::new(session) }
    }

    /// Runs something to its end, even if nobody waits for it any more.
    async fn whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ControlError>> + Send + 'static,
    ) -> Result<T, plugin::ControlError> {
        let tasks = match &self.session.purpose {
            Purpose::Replay(live) => &live.tasks,
            Purpose::Prepare(_) => &self.session.services.tasks,
        };
        match tasks.spawn(work).await {
            Ok(result) => result.map_err(control_error),
            Err(error) => Err(plugin::ControlError::Unreachable(error.to_string())),
        }
    }
}

#[async_trait]
impl ReplayHost for PolicyHost {
    async fn acquire(
        &self,
        machine: String,
        key: plugin::WorkerKey,
        run_id: String,
        attempt_id: String,
        ttl_ms: u64,
    ) -> Result<LeaseHandle, plugin::ControlError> {
        let session = Arc::clone(&self.session);
        let work = async move { session.acquire(&machine, from_wit_key(key), run_id, attempt_id, ttl_ms).await };
        self.whole(work).await.map(LeaseHandle)
    }

    fn lease(&self, handle: LeaseHandle) -> Option<LeaseFacts> {
        let lease = self.session.lease(handle.0)?;
        let facts = &lease.facts;
        Some(LeaseFacts {
            // A credential of the host's: the policy learns enough of it to name it in a log.
            id: tail(&facts.lease_id),
            worker: facts.worker_id.clone(),
            generation: facts.generation,
            run_id: facts.run_id.clone(),
            attempt_id: facts.attempt_id.clone(),
            pod_uid: facts.pod_uid.clone(),
            key: to_wit_key(&facts.key),
        })
    }

    async fn renew(&self, handle: LeaseHandle, ttl_ms: u64) -> Result<(), plugin::ControlError> {
        let session = Arc::clone(&self.session);
        self.whole(async move { session.renew(handle.0, ttl_ms).await }).await
    }

    async fn release(&self, handle: LeaseHandle) -> Result<Settlement, plugin::ControlError> {
        let session = Arc::clone(&self.session);
        self.whole(async move { session.release(handle.0).await }).await?;
        Ok(Settlement::Open)
    }

    async fn sanitize(&self, handle: LeaseHandle) -> Result<(), plugin::ControlError> {
        let session = Arc::clone(&self.session);
        self.whole(async move { session.sanitize(handle.0).await }).await
    }

    async fn quarantine(&self, handle: LeaseHandle, reason: String) -> Result<(), plugin::ControlError> {
        let session = Arc::clone(&self.session);
        self.whole(async move { session.quarantine(handle.0, &reason).await }).await
    }

    async fn worker_rows(&self, machine: String, worker_id: String) -> Result<String, plugin::ControlError> {
        self.session.worker_rows(&machine, &worker_id).await.map(|rows| rows.to_string()).map_err(control_error)
    }

    async fn register(
        &self,
        machine: String,
        worker_id: String,
        pod_uid: String,
        key: plugin::WorkerKey,
        ttl_ms: u64,
    ) -> Result<String, plugin::ControlError> {
        let session = Arc::clone(&self.session);
        let work = async move { session.register(&machine, &worker_id, &pod_uid, &from_wit_key(key), ttl_ms).await };
        self.whole(work).await.map(|row| row.to_string())
    }

    async fn context_known(&self, context: String) -> Result<(), ClusterError> {
        self.session.backend.context_known(&context).await.map_err(cluster_error)
    }

    async fn get_pod(&self, at: plugin::Target, name: String) -> Result<String, ClusterError> {
        let at = target(at);
        self.session.granted(&at, "get-pod").map_err(cluster_error)?;
        self.session.backend.get_pod(&at, &name).await.map(|pod| pod.to_string()).map_err(cluster_error)
    }

    async fn list_pods(&self, at: plugin::Target) -> Result<Vec<String>, ClusterError> {
        let at = target(at);
        self.session.granted(&at, "list-pods").map_err(cluster_error)?;
        let pods = self.session.backend.list_pods(&at).await.map_err(cluster_error)?;
        Ok(pods.iter().map(Value::to_string).collect())
    }

    async fn get_node(&self, context: String, name: String) -> Result<String, ClusterError> {
        let at = Target { context, namespace: self.session.profile.namespace.clone() };
        self.session.granted(&at, "get-node").map_err(cluster_error)?;
        let node = self.session.backend.get_node(&at.context, &name).await.map_err(cluster_error)?;
        Ok(node.to_string())
    }

    async fn create_pod(&self, at: plugin::Target, manifest: String) -> Result<String, ClusterError> {
        let manifest: Value = serde_json::from_str(&manifest)
            .map_err(|error| ClusterError::Failed(format!("the manifest is no JSON: {error}")))?;
        let (session, at) = (Arc::clone(&self.session), target(at));
        // To its end: a pod that is made must be recorded.
        let made = self.session.services.tasks.spawn(async move { session.create_pod(&at, &manifest).await });
        match made.await {
            Ok(pod) => pod.map(|pod| pod.to_string()).map_err(cluster_error),
            Err(error) => Err(ClusterError::Failed(error.to_string())),
        }
    }

    async fn wait_ready(&self, at: plugin::Target, name: String, seconds: u32) -> Result<(), ClusterError> {
        let at = target(at);
        self.session.granted(&at, "wait-ready").map_err(cluster_error)?;
        let limit = Duration::from_secs(u64::from(seconds)).min(MAX_WAIT);
        match self.session.backend.wait_ready(&at, &name, limit).await {
            Ok(()) => Ok(()),
            Err(error) => {
                // The interface has one word for it; people want to know what was waited for.
                if let PodsError::TimedOut(_) = &error {
                    self.session.note(error.to_string());
                }
                Err(cluster_error(error))
            }
        }
    }

    async fn patch_metadata(
        &self,
        holding: LeaseHandle,
        at: plugin::Target,
        pod: String,
        labels: String,
        annotations: String,
    ) -> Result<(), ClusterError> {
        let parse = |what: &str, text: &str| {
            serde_json::from_str::<Value>(text)
                .map_err(|error| ClusterError::Failed(format!("the {what} are no JSON: {error}")))
        };
        let (labels, annotations) = (parse("labels", &labels)?, parse("annotations", &annotations)?);
        self.session.patch_metadata(holding.0, &target(at), &pod, &labels, &annotations).await.map_err(cluster_error)
    }

    async fn exec(
        &self,
        holding: LeaseHandle,
        at: plugin::Target,
        pod: String,
        command: String,
        deadline: u64,
    ) -> Result<Reply, TransportError> {
        let wanted: Value = serde_json::from_str(&command)
            .map_err(|error| TransportError::Failed(format!("the command is no JSON: {error}")))?;
        match self.session.spend(holding.0, &target(at), &pod, &wanted, deadline).await {
            Ok(reply) => Ok(to_wit_reply(&reply)),
            Err(error) => {
                // The others carry their text.
                if let SpendError::Exec(error @ (ExecError::TooLarge(_) | ExecError::TimedOut(_))) = &error {
                    self.session.note(error.to_string());
                }
                Err(transport_error(error))
            }
        }
    }

    async fn render(&self, spec: plugin::PodSpec) -> Result<String, Vec<String>> {
        self.session.services.manifest.render(spec).await
    }

    async fn verify(&self, spec: plugin::PodSpec, live: String) -> Result<Vec<Difference>, Vec<Difference>> {
        match self.session.services.manifest.verify(spec, live).await {
            Ok(answered) => answered.answer,
            Err(fault) => Err(vec![not_judged(&fault)]),
        }
    }

    fn now(&self) -> u64 {
        now_ms()
    }
}

fn not_judged(why: &str) -> Difference {
    let got = Value::String(format!("the manifest policy gave no answer: {why}"));
    Difference { path: String::new(), want: "null".to_owned(), got: got.to_string() }
}

fn target(at: plugin::Target) -> Target {
    Target { context: at.context, namespace: at.namespace }
}

fn control_error(error: ControlError) -> plugin::ControlError {
    match error {
        ControlError::Refused(status, code) => plugin::ControlError::Refused((status, code)),
        ControlError::Unreachable(why) => plugin::ControlError::Unreachable(why),
    }
}

fn cluster_error(error: PodsError) -> ClusterError {
    match error {
        PodsError::UnknownContext { detail, .. } => ClusterError::UnknownContext(detail),
        PodsError::Denied(why) => ClusterError::Denied(why),
        PodsError::NotFound(_) => ClusterError::NotFound,
        PodsError::Conflict(_) => ClusterError::Conflict,
        PodsError::TimedOut(_) => ClusterError::TimedOut,
        other => ClusterError::Failed(other.to_string()),
    }
}

fn transport_error(error: SpendError) -> TransportError {
    match error {
        SpendError::Quarantined => TransportError::Quarantined,
        SpendError::Exec(ExecError::NoVerdict(why)) => TransportError::NoVerdict(why),
        SpendError::Exec(ExecError::Truncated(why)) => TransportError::Truncated(why),
        SpendError::Exec(ExecError::TooLarge(_)) => TransportError::TooLarge,
        SpendError::Exec(ExecError::Killed(why)) => TransportError::Killed(why),
        SpendError::Exec(ExecError::TimedOut(_)) => TransportError::TimedOut,
        SpendError::Exec(ExecError::WrongPod(why)) => TransportError::WrongPod(why),
        SpendError::Exec(other) => TransportError::Failed(other.to_string()),
    }
}

/// What a policy gets of a reply: everything but the nonce and the whole lease id.
fn to_wit_reply(reply: &ExecReply) -> Reply {
    let mut verdict = serde_json::to_value(&reply.verdict).unwrap_or_default();
    if let Some(fields) = verdict.as_object_mut() {
        fields.remove("nonce");
        fields.insert("leaseId".to_owned(), tail(&reply.verdict.lease_id).into());
    }
    let wit = |digest: &warmhold_protocol::StreamDigest| plugin::StreamDigest {
        bytes: digest.bytes,
        sha256: digest.sha256.clone(),
    };
    Reply {
        verdict: verdict.to_string(),
        out: wit(&summary(reply.files.iter().map(|file| &file.stdout.digest))),
        err: wit(&summary(reply.files.iter().map(|file| &file.stderr.digest))),
        artifacts: reply
            .files
            .iter()
            .flat_map(|file| {
                file.artifacts.iter().map(move |artifact| plugin::Artifact {
                    file: file.file.clone(),
                    suffix: artifact.suffix.clone(),
                    digest: wit(&artifact.received.digest),
                })
            })
            .collect(),
    }
}

fn from_wit_key(key: plugin::WorkerKey) -> WorkerKey {
    WorkerKey {
        context: key.context,
        image_digest: key.image_digest,
        lock_hash: key.lock_hash,
        architecture: key.architecture,
    }
}

fn to_wit_key(key: &WorkerKey) -> plugin::WorkerKey {
    plugin::WorkerKey {
        context: key.context.clone(),
        image_digest: key.image_digest.clone(),
        lock_hash: key.lock_hash.clone(),
        architecture: key.architecture.clone(),
    }
}

impl PodSpec {
    /// In the interface's type.
    pub(crate) fn to_wit(&self) -> plugin::PodSpec {
        plugin::PodSpec {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            context: self.context.clone(),
            worker_id: self.worker_id.clone(),
            image: self.image.clone(),
            node: self.node.clone(),
            cut_sha: self.cut_sha.clone(),
            key: to_wit_key(&self.key),
            memory_limit: self.memory_limit.clone(),
            host_probe_url: self.host_probe_url.clone(),
            prod_probe_url: self.prod_probe_url.clone(),
            source_mirror: self.source_mirror.clone(),
            source: self.source.clone(),
            install: self.install.clone(),
        }
    }
}

impl WorkerRecord {
    /// As a candidate of the interface.
    pub(crate) fn to_wit(&self) -> plugin::Candidate {
        plugin::Candidate { host: self.machine.clone(), tier: self.tier.clone(), spec: self.spec.to_wit() }
    }
}
