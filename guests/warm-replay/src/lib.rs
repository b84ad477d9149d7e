//! The built-in replay policy: one replay in one leased worker, and whatever is uncertain ends in quarantine.
//!
//! Settings, all optional: `lease-ttl-ms` and `idle-ttl-ms` (1,800,000), `transport-limit-ms` (120,000: the longest that
//! a command may run whatever its deadline), `ready-wait-seconds` (900: how long a new pod may take to be Ready).

pub mod checks;
pub mod evidence;
pub mod input;
pub mod prepare;
pub mod provenance;
pub mod request;
pub mod settings;
pub mod settle;

pub use settings::Settings;

use serde_json::{Map, Value};
use warmhold_sdk::replay::{Candidate, Host, Outcome, ReplayInput, ReplayPolicy};
use warmhold_sdk::{Identity, Policy};

/// The policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct WarmReplay;

impl Policy for WarmReplay {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity(
            "warm-replay",
            env!("CARGO_PKG_VERSION"),
            "one leased worker, checked before and after; what is uncertain is quarantined",
        )
    }

    fn check_settings(&self, settings: &Map<String, Value>) -> Vec<String> {
        Settings::read(settings).err().unwrap_or_default()
    }
}

impl ReplayPolicy for WarmReplay {
    fn request<H: Host>(&self, host: &H, input: &ReplayInput, candidates: &[Candidate]) -> Outcome<H::Lease> {
        request::request(host, input, candidates)
    }

    fn finalize<H: Host>(&self, host: &H, held: H::Lease, of: &Candidate) -> Result<(), String> {
        settle::finalize(host, &held, of)
    }

    fn quarantine<H: Host>(&self, host: &H, held: H::Lease, of: &Candidate, reason: &str) -> Result<(), String> {
        settle::quarantine(host, &held, of, reason)
    }

    fn prepare<H: Host>(&self, host: &H, of: &Candidate) -> Result<String, String> {
        prepare::prepare(host, of)
    }
}

warmhold_sdk::replay_policy!(WarmReplay);
