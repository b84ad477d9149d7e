//! What an author of a Warmhold policy imports.
//!
//! A policy is a WebAssembly component that decides; the host writes, and lets nothing pass that breaks its fence. In
//! Rust a policy is a type, one trait and one macro. A lease policy overrides only what differs from the standard
//! behaviour:
//!
//! ```
//! use warmhold_sdk::lease::{Call, LeasePolicy, Row, WorkerRequest};
//! use warmhold_sdk::{Identity, Policy};
//!
//! /// Prefers the worker that was used last.
//! #[derive(Default)]
//! struct MostRecent;
//!
//! impl Policy for MostRecent {
//!     fn identity(&self) -> Identity {
//!         warmhold_sdk::identity("most-recent", "0.1.0", "the worker that was used last")
//!     }
//! }
//!
//! impl LeasePolicy for MostRecent {
//!     fn pick_worker(&self, call: &Call<'_>, request: &WorkerRequest) -> Option<Row> {
//!         call.idle_workers(request, 1000).into_iter().max_by_key(|row| row.observed_at)
//!     }
//! }
//!
//! warmhold_sdk::lease_policy!(MostRecent);
//! ```
//!
//! # Rules
//! - A policy sees what it is given and nothing else: no files, no network, no clock but the call's moment, no random
//!   numbers but the call's fresh id. So any decision can be evaluated again.
//! - Every call gets a fresh instance. Nothing that is kept in a static outlives the call.
//! - A panic is a fault of the policy: its message goes to the log, the caller gets 503, and the third fault in a row
//!   brings the last good policy back. Refuse with a [`lease::Refusal`] instead.
//! - Log lines are cut at 1 KiB, and a call has a bounded number of them.
//!
//! # Which module
//! [`lease`] for lease policies, [`manifest`] for pod manifests, [`replay`] for replay policies. Each has the trait, the
//! types of the interface and what a test needs to run the policy natively, without any WebAssembly.

pub mod alloc;
mod component;
pub mod json;
pub mod lease;
mod log;
pub mod manifest;
pub mod replay;
mod settings;
pub mod time;

pub use log::{Environment, Level, MAX_LINE_BYTES, Recorder, cut};
/// The JSON that policies read and write.
pub use serde_json;
pub use settings::unknown_keys;
/// A row of the interface, and the other types that every world shares.
pub use warmhold_bindings_types::warmhold::policy::types;

/// The generated bindings, a module for each world: what the macros expand to, and the way to what the traits don't cover.
pub mod bindings {
    pub use {warmhold_bindings_facts as facts, warmhold_bindings_lease as lease};
    pub use {warmhold_bindings_manifest as manifest, warmhold_bindings_replay as replay};
}

use serde_json::{Map, Value};

/// What a policy says of itself. `policy list` shows name and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A short name, `[a-z0-9-]`.
    pub name: String,
    /// The policy's own version.
    pub version: String,
    /// One line: what it does differently.
    pub summary: String,
}

/// An [`Identity`] from three texts.
#[must_use]
pub fn identity(name: &str, version: &str, summary: &str) -> Identity {
    Identity { name: name.to_owned(), version: version.to_owned(), summary: summary.to_owned() }
}

/// What every policy has.
pub trait Policy: Default {
    /// What the policy says of itself.
    fn identity(&self) -> Identity;

    /// Called once, when the policy is loaded: every fault of its settings, one a line, each with its key. A policy with
    /// a fault isn't loaded. As it stands, a policy has no settings and each key is a fault.
    fn check_settings(&self, settings: &Map<String, Value>) -> Vec<String> {
        unknown_keys(settings, &[])
    }
}
