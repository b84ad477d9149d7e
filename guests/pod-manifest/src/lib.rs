//! The built-in manifest policy: how a warm worker's pod looks, and what of a live pod counts as drift.
//!
//! [`faults`] judges a spec, [`render`] makes the manifest of a good one, [`compare()`] finds every place where a live pod
//! differs from it. Restarts and container ids are no part of a manifest: the host compares those itself.
//!
//! Settings: `memory-limits`, an array of the quantities that a spec may name (default: any above zero); `labels`, an object
//! of further labels for every pod (no key under `warmhold.dev/` or `kubernetes.io/`).

pub mod compare;
pub mod faults;
pub mod names;
pub mod quantity;
pub mod render;
pub mod settings;

pub use compare::compare;
pub use settings::Settings;

use serde_json::{Map, Value};
use warmhold_sdk::manifest::{Difference, ManifestPolicy, PodSpec, difference};
use warmhold_sdk::{Environment, Identity, Policy};

/// The policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct WarmPod;

impl Policy for WarmPod {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity(
            "pod-manifest",
            env!("CARGO_PKG_VERSION"),
            "a worker's pod with two init containers and one container, compared whole",
        )
    }

    fn check_settings(&self, settings: &Map<String, Value>) -> Vec<String> {
        Settings::read(settings).err().unwrap_or_default()
    }
}

impl ManifestPolicy for WarmPod {
    fn render(&self, environment: &dyn Environment, spec: &PodSpec) -> Result<Value, Vec<String>> {
        let settings = Settings::parse(&environment.settings())?;
        let faults = faults::of(spec, &settings);
        if faults.is_empty() { Ok(render::manifest(spec, &settings)) } else { Err(faults) }
    }

    fn verify(
        &self,
        environment: &dyn Environment,
        spec: &PodSpec,
        live: &Value,
    ) -> Result<Vec<Difference>, Vec<Difference>> {
        match self.render(environment, spec) {
            Ok(rendered) => compare(&rendered, live),
            // A spec that renders nothing has no live pod that could equal it.
            Err(faults) => Err(faults
                .iter()
                .map(|fault| difference("$", &Value::from(format!("a spec without faults: {fault}")), &Value::Null))
                .collect()),
        }
    }
}

warmhold_sdk::manifest_policy!(WarmPod);
