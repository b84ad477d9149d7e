//! Manifest policies: how a pod looks, and whether a live one still looks so.

pub use crate::types::{Difference, PodSpec, WorkerKey};

use crate::component::install_panic_hook;
use crate::{Environment, Policy};
use serde_json::Value;
use std::marker::PhantomData;
use warmhold_bindings_manifest::exports::warmhold::policy::{about, pod_manifest};
use warmhold_bindings_manifest::warmhold::policy::{log, settings};

/// A manifest policy: two pure functions of a spec and the settings.
pub trait ManifestPolicy: Policy {
    /// The manifest of a pod.
    ///
    /// # Errors
    /// Every fault of the spec, one a line, each with its field; nothing is rendered then.
    fn render(&self, environment: &dyn Environment, spec: &PodSpec) -> Result<Value, Vec<String>>;

    /// Whether a live pod is still the one that was rendered: the differences that do no harm (they are shown).
    ///
    /// # Errors
    /// The differences that are drift; the pod must not be used.
    fn verify(
        &self,
        environment: &dyn Environment,
        spec: &PodSpec,
        live: &Value,
    ) -> Result<Vec<Difference>, Vec<Difference>>;
}

/// A difference from two JSON values.
#[must_use]
pub fn difference(path: impl Into<String>, want: &Value, got: &Value) -> Difference {
    Difference { path: path.into(), want: want.to_string(), got: got.to_string() }
}

/// Makes a component of a [`ManifestPolicy`]; once in a crate of type `cdylib`.
#[macro_export]
macro_rules! manifest_policy {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated exports of a component are unsafe functions")]
        mod __component {
            #[allow(unused_imports, reason = "the policy may be named by its whole path")]
            use super::*;
            type Component = $crate::manifest::Exported<$policy>;
            $crate::bindings::manifest::export_component!(Component with_types_in $crate::bindings::manifest);

            #[global_allocator]
            static ALLOCATOR: $crate::alloc::Bump = $crate::alloc::Bump::new();
        }
    };
}

/// The component's exports, for the macro alone.
#[doc(hidden)]
#[derive(Debug)]
pub struct Exported<P>(PhantomData<P>);

struct Host;
crate::log::environment!(Host, settings, log);

fn begin<P: Policy>() -> P {
    install_panic_hook(|line| log::write(log::Level::Error, line, &[]));
    P::default()
}

impl<P: ManifestPolicy> about::Guest for Exported<P> {
    fn identify() -> about::Identity {
        let crate::Identity { name, version, summary } = begin::<P>().identity();
        about::Identity { name, version, summary }
    }

    fn check_settings(settings: String) -> Result<(), Vec<String>> {
        crate::settings::check(&begin::<P>(), &settings)
    }
}

impl<P: ManifestPolicy> pod_manifest::Guest for Exported<P> {
    fn render(spec: PodSpec) -> Result<String, Vec<String>> {
        begin::<P>().render(&Host, &spec).map(|manifest| manifest.to_string())
    }

    fn verify(spec: PodSpec, live: String) -> Result<Vec<Difference>, Vec<Difference>> {
        match serde_json::from_str(&live) {
            Ok(live) => begin::<P>().verify(&Host, &spec, &live),
            Err(error) => Err(vec![Difference {
                path: "$".to_owned(),
                want: "\"a pod\"".to_owned(),
                got: Value::from(format!("no JSON: {error}")).to_string(),
            }]),
        }
    }
}
