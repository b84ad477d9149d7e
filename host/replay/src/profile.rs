//! What a team configures of its workers, as this crate uses it.

use std::collections::BTreeMap;
use std::time::Duration;
use warmhold_protocol::Rule;

/// One size of worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Its name; part of the pod's name.
    pub name: String,
    /// A Kubernetes quantity.
    pub memory: Option<String>,
    /// Slots a host.
    pub quota: u32,
}

/// A profile: where sources come from, what a pod looks like, how files are run.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name in the configuration.
    pub name: String,
    /// The cluster context; `local` for local pods.
    pub context: String,
    /// The namespace.
    pub namespace: String,
    /// The node that pods are bound to.
    pub node: Option<String>,
    /// The image's reference.
    pub image: String,
    /// `sha256:` and 64 hex digits.
    pub image_digest: String,
    /// `amd64` or `arm64`.
    pub architecture: String,
    /// The git repository (a folder here); never one from a request.
    pub source: String,
    /// A folder on the node that pods read the source from.
    pub source_mirror: Option<String>,
    /// Files whose content decides what `install` makes.
    pub lock_files: Vec<String>,
    /// Run once in a fresh tree, an argv.
    pub install: Vec<String>,
    /// In order; the first is the default.
    pub tiers: Vec<Tier>,
    /// So many workers for the source's HEAD are kept without being asked.
    pub standing: u32,
    /// Must answer before a request's isolation.
    pub host_probe: String,
    /// Must not answer under it.
    pub prod_probe: String,
    /// How long a lease counts without renewal.
    pub ttl: Duration,
    /// How long an idle worker counts.
    pub idle_ttl: Duration,
    /// The longest that one exec may take.
    pub transport_limit: Duration,
    /// Fixed variables of the tests.
    pub env: BTreeMap<String, String>,
    /// How files are run; first match wins.
    pub rules: Vec<Rule>,
    /// Folders that the tests must not see.
    pub hide: Vec<String>,
    /// Whether the worker makes a network namespace of its own (local pods).
    pub private_network: bool,
}

impl Profile {
    /// The tier with this name.
    #[must_use]
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.name == name)
    }

    /// The pod of one slot: creators of a slot collide on this name.
    #[must_use]
    pub fn pod_name(host: &str, tier: &str, slot: u32) -> String {
        format!("warm-{host}-{tier}-{slot}")
    }
}
