//! Manifest policies: they render a pod and judge a live one. Pure functions, called from any thread.

use crate::bindings::manifest as bindings;
use crate::call::{self, CallState, Frame, Host};
use crate::engine::Inner;
use crate::fault::PolicyFault;
use crate::generation::Identity;
use crate::limits::Limits;
use crate::slot::{Kind, Slot};
use crate::world::World;
use std::sync::Arc;
use wasmtime::component::Component;

pub use crate::bindings::lease::warmhold::policy::types::{Candidate, Difference, PodSpec};

/// What a manifest policy's store holds beside the call's state: nothing.
#[derive(Debug)]
pub(crate) struct ManifestHost;

/// Manifest policies, as a [`Kind`].
#[derive(Debug)]
pub struct ManifestKind;

/// A manifest policy, compiled and matched with its imports.
#[derive(Clone)]
pub struct ManifestProgram(bindings::ManifestPolicyPre<Host<ManifestHost>>);

impl std::fmt::Debug for ManifestProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ManifestProgram")
    }
}

/// The slot of the manifest policy.
pub type ManifestSlot = Slot<ManifestKind>;

/// An answer of a policy and who gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered<T> {
    /// The answer.
    pub answer: T,
    /// `NAME@sha256:DIGEST#GENERATION`.
    pub policy: Arc<str>,
}

/// How a live pod compares with its spec: `Ok` with the differences that do no harm, `Err` with those that are drift.
pub type Comparison = Result<Vec<Difference>, Vec<Difference>>;

impl ManifestSlot {
    /// The pod's manifest as JSON text, or every fault of the spec.
    ///
    /// # Errors
    /// When the policy fails, or every place of the pool is taken.
    pub fn render(&self, spec: &PodSpec) -> Result<Answered<Result<String, Vec<String>>>, PolicyFault> {
        self.call("render", |inner, generation| {
            let answer = ask(
                inner,
                &generation.program,
                &generation.identity,
                &generation.limits,
                "render",
                |policy, store| policy.warmhold_policy_pod_manifest().call_render(store, spec),
            )?;
            Ok(Answered { answer, policy: Arc::clone(generation.tag()) })
        })
    }

    /// Compares a live pod (JSON text, as the API server shows it) with the spec.
    ///
    /// # Errors
    /// When the policy fails, or every place of the pool is taken.
    pub fn verify(&self, spec: &PodSpec, live: &str) -> Result<Answered<Comparison>, PolicyFault> {
        let live = live.to_owned();
        self.call("verify", |inner, generation| {
            let answer = ask(
                inner,
                &generation.program,
                &generation.identity,
                &generation.limits,
                "verify",
                |policy, store| policy.warmhold_policy_pod_manifest().call_verify(store, spec, &live),
            )?;
            Ok(Answered { answer, policy: Arc::clone(generation.tag()) })
        })
    }
}

/// One call. It has neither a moment nor a fresh id of its own, so a guest with WASI sees the same ones every time.
fn ask<R>(
    inner: &Inner,
    program: &ManifestProgram,
    identity: &Identity,
    limits: &Limits,
    function: &'static str,
    body: impl FnOnce(&bindings::ManifestPolicy, &mut wasmtime::Store<Host<ManifestHost>>) -> wasmtime::Result<R>,
) -> Result<R, PolicyFault> {
    let frame = Frame { now_ms: 0, seed: function.to_owned() };
    let host = Host { call: CallState::new(identity, limits, frame), own: ManifestHost };
    call::run(&inner.engine, identity, function, host, |store| {
        let policy = program.0.instantiate(&mut *store)?;
        store.data_mut().call.made = true;
        body(&policy, store)
    })
}

impl Kind for ManifestKind {
    const WORLD: World = World::Manifest;
    type Program = ManifestProgram;

    fn link(inner: &Inner, component: &Component) -> wasmtime::Result<ManifestProgram> {
        Ok(ManifestProgram(bindings::ManifestPolicyPre::new(inner.manifest.instantiate_pre(component)?)?))
    }

    fn identify(
        inner: &Inner,
        program: &ManifestProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<crate::load::About, PolicyFault> {
        let about = ask(inner, program, identity, limits, "identify", |policy, store| {
            policy.warmhold_policy_about().call_identify(store)
        })?;
        Ok(crate::load::About { name: about.name, version: about.version, summary: about.summary })
    }

    fn check_settings(
        inner: &Inner,
        program: &ManifestProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), Vec<String>>, PolicyFault> {
        let settings = identity.settings.to_string();
        ask(inner, program, identity, limits, "check-settings", |policy, store| {
            policy.warmhold_policy_about().call_check_settings(store, &settings)
        })
    }

    /// Renders a pod; a policy may find faults in this one, but what it renders must be a JSON object.
    fn self_test(
        inner: &Inner,
        program: &ManifestProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), String>, PolicyFault> {
        let spec = sample_spec();
        let rendered = ask(inner, program, identity, limits, "render", |policy, store| {
            policy.warmhold_policy_pod_manifest().call_render(store, &spec)
        })?;
        Ok(match rendered.map(|text| serde_json::from_str::<serde_json::Value>(&text)) {
            Ok(Ok(serde_json::Value::Object(_))) | Err(_) => Ok(()),
            Ok(Ok(_)) => Err("asked to render a pod, it answered JSON that is no object".to_owned()),
            Ok(Err(error)) => Err(format!("asked to render a pod, it answered what is no JSON: {error}")),
        })
    }
}

/// A spec that any team's policy could meet.
pub(crate) fn sample_spec() -> PodSpec {
    PodSpec {
        name: "self-test".to_owned(),
        namespace: "default".to_owned(),
        context: "local".to_owned(),
        worker_id: "self-test".to_owned(),
        image: format!("example.invalid/worker@sha256:{}", "0".repeat(64)),
        node: None,
        cut_sha: "0".repeat(40),
        key: crate::WorkerKey {
            context: "local".to_owned(),
            image_digest: format!("sha256:{}", "0".repeat(64)),
            lock_hash: "0".repeat(64),
            architecture: "amd64".to_owned(),
        },
        memory_limit: None,
        host_probe_url: "http://127.0.0.1:1/".to_owned(),
        prod_probe_url: "http://127.0.0.1:2/".to_owned(),
        source_mirror: None,
        source: "https://example.invalid/repository.git".to_owned(),
        install: Vec::new(),
    }
}
