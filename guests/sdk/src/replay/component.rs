//! A [`ReplayPolicy`] as a component.

use super::{
    Candidate, ClusterError, ControlError, Difference, Host, HostLease, Lease, Outcome, PodSpec, ReplayInput,
    ReplayPolicy, Reply, Target, TransportError, WorkerKey,
};
use crate::Policy;
use crate::component::install_panic_hook;
use serde_json::Value;
use std::marker::PhantomData;
use warmhold_bindings_replay::exports::warmhold::policy::{about, replay};
use warmhold_bindings_replay::warmhold::policy::{clock, cluster, control, log, pod_manifest, settings, transport};

/// Makes a component of a [`ReplayPolicy`]; once in a crate of type `cdylib`.
///
/// It keeps Rust's own allocator: a replay reads many pods, one after the other, and gives their memory back.
#[macro_export]
macro_rules! replay_policy {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated exports of a component are unsafe functions")]
        mod __component {
            #[allow(unused_imports, reason = "the policy may be named by its whole path")]
            use super::*;
            type Component = $crate::replay::component::Exported<$policy>;
            $crate::bindings::replay::export_component!(Component with_types_in $crate::bindings::replay);
        }
    };
}

/// The component's exports, for the macro alone.
#[derive(Debug)]
pub struct Exported<P>(PhantomData<P>);

struct Imports;
crate::log::environment!(Imports, settings, log);

fn begin<P: Policy>() -> P {
    install_panic_hook(|line| log::write(log::Level::Error, line, &[]));
    P::default()
}

impl<P: ReplayPolicy> about::Guest for Exported<P> {
    fn identify() -> about::Identity {
        let crate::Identity { name, version, summary } = begin::<P>().identity();
        about::Identity { name, version, summary }
    }

    fn check_settings(settings: String) -> Result<(), Vec<String>> {
        crate::settings::check(&begin::<P>(), &settings)
    }
}

impl<P: ReplayPolicy> replay::Guest for Exported<P> {
    fn request(input: ReplayInput, candidates: Vec<Candidate>) -> replay::Outcome {
        match begin::<P>().request(&Imports, &input, &candidates) {
            Outcome::Observed { held, evidence } => {
                replay::Outcome::Observed(replay::Observation { held: held.0, evidence: evidence.to_string() })
            }
            Outcome::Fallback(fallback) => replay::Outcome::Fallback(fallback),
            Outcome::Failed(why) => replay::Outcome::Failed(why),
        }
    }

    fn finalize(held: control::Lease, of: Candidate) -> Result<(), String> {
        begin::<P>().finalize(&Imports, HostLease(held), &of)
    }

    fn quarantine(held: control::Lease, of: Candidate, reason: String) -> Result<(), String> {
        begin::<P>().quarantine(&Imports, HostLease(held), &of, &reason)
    }

    fn prepare(of: Candidate) -> Result<String, String> {
        begin::<P>().prepare(&Imports, &of)
    }
}

impl Lease for HostLease {
    fn id(&self) -> String {
        self.0.id()
    }

    fn worker(&self) -> String {
        self.0.worker()
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn run_id(&self) -> String {
        self.0.run_id()
    }

    fn attempt_id(&self) -> String {
        self.0.attempt_id()
    }

    fn pod_uid(&self) -> Option<String> {
        self.0.pod_uid()
    }

    fn key(&self) -> WorkerKey {
        self.0.key()
    }

    fn renew(&self, ttl_ms: u64) -> Result<(), ControlError> {
        self.0.renew(ttl_ms)
    }

    fn release(&self) -> Result<(), ControlError> {
        self.0.release()
    }

    fn sanitize(&self) -> Result<(), ControlError> {
        self.0.sanitize()
    }

    fn quarantine(&self, reason: &str) -> Result<(), ControlError> {
        self.0.quarantine(reason)
    }
}

impl Host for Imports {
    type Lease = HostLease;

    fn now(&self) -> u64 {
        clock::now()
    }

    fn acquire(
        &self,
        machine: &str,
        key: &WorkerKey,
        run_id: &str,
        attempt_id: &str,
        ttl_ms: u64,
    ) -> Result<HostLease, ControlError> {
        control::acquire(machine, key, run_id, attempt_id, ttl_ms).map(HostLease)
    }

    fn worker_rows(&self, machine: &str, worker_id: &str) -> Result<Value, ControlError> {
        control::worker_rows(machine, worker_id).and_then(|text| control_json(&text))
    }

    fn register(
        &self,
        machine: &str,
        worker_id: &str,
        pod_uid: &str,
        key: &WorkerKey,
        ttl_ms: u64,
    ) -> Result<Value, ControlError> {
        control::register(machine, worker_id, pod_uid, key, ttl_ms).and_then(|text| control_json(&text))
    }

    fn context_known(&self, context: &str) -> Result<(), ClusterError> {
        cluster::context_known(context)
    }

    fn get_pod(&self, at: &Target, name: &str) -> Result<Value, ClusterError> {
        cluster::get_pod(at, name).and_then(|text| cluster_json(&text))
    }

    fn list_pods(&self, at: &Target) -> Result<Vec<Value>, ClusterError> {
        cluster::list_pods(at)?.iter().map(|text| cluster_json(text)).collect()
    }

    fn get_node(&self, context: &str, name: &str) -> Result<Value, ClusterError> {
        cluster::get_node(context, name).and_then(|text| cluster_json(&text))
    }

    fn create_pod(&self, at: &Target, manifest: &Value) -> Result<Value, ClusterError> {
        cluster::create_pod(at, &manifest.to_string()).and_then(|text| cluster_json(&text))
    }

    fn wait_ready(&self, at: &Target, name: &str, seconds: u32) -> Result<(), ClusterError> {
        cluster::wait_ready(at, name, seconds)
    }

    fn annotate(&self, holding: &HostLease, at: &Target, pod: &str, annotations: &Value) -> Result<(), ClusterError> {
        cluster::patch_metadata(&holding.0, at, pod, "{}", &annotations.to_string())
    }

    fn exec(
        &self,
        holding: &HostLease,
        at: &Target,
        pod: &str,
        command: &Value,
        deadline: u64,
    ) -> Result<Reply, TransportError> {
        transport::exec(&holding.0, at, pod, &command.to_string(), deadline)
    }

    fn render(&self, spec: &PodSpec) -> Result<Value, Vec<String>> {
        let text = pod_manifest::render(spec)?;
        serde_json::from_str(&text).map_err(|error| vec![format!("the manifest is no JSON: {error}")])
    }

    fn verify(&self, spec: &PodSpec, live: &Value) -> Result<Vec<Difference>, Vec<Difference>> {
        pod_manifest::verify(spec, &live.to_string())
    }
}

fn control_json(text: &str) -> Result<Value, ControlError> {
    serde_json::from_str(text).map_err(|error| ControlError::Unreachable(format!("its answer is no JSON: {error}")))
}

fn cluster_json(text: &str) -> Result<Value, ClusterError> {
    serde_json::from_str(text).map_err(|error| ClusterError::Failed(format!("its answer is no JSON: {error}")))
}
