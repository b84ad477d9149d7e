//! The policy's settings.

use serde_json::{Map, Value};
use warmhold_sdk::time::DAY_MS;
use warmhold_sdk::{Environment, json, unknown_keys};

/// See the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a lease counts without being renewed.
    pub lease_ttl_ms: u64,
    /// How long a registered worker counts as idle.
    pub idle_ttl_ms: u64,
    /// The longest that a command may run.
    pub transport_limit_ms: u64,
    /// How long a new pod may take to be Ready.
    pub ready_wait_seconds: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let half_an_hour = 1_800_000;
        Self {
            lease_ttl_ms: half_an_hour,
            idle_ttl_ms: half_an_hour,
            transport_limit_ms: 120_000,
            // Installing what the tests need can take many minutes on a cold node.
            ready_wait_seconds: 900,
        }
    }
}

impl Settings {
    /// Those of this call; the host has had them checked when it loaded the policy.
    #[must_use]
    pub fn of(environment: &(impl Environment + ?Sized)) -> Self {
        json::object(&environment.settings()).and_then(|settings| Self::read(&settings).ok()).unwrap_or_default()
    }

    /// From a JSON object.
    ///
    /// # Errors
    /// Every fault, with its key.
    pub fn read(settings: &Map<String, Value>) -> Result<Self, Vec<String>> {
        let known = ["lease-ttl-ms", "idle-ttl-ms", "transport-limit-ms", "ready-wait-seconds"];
        let mut faults = unknown_keys(settings, &known);
        let mut read = Self::default();
        let mut number = |key: &str, most: u64, default: u64| {
            let Some(value) = settings.get(key) else { return default };
            json::whole(value).filter(|value| (1..=most).contains(value)).unwrap_or_else(|| {
                faults.push(format!("{key}: must be a whole number from 1 to {most}"));
                default
            })
        };
        read.lease_ttl_ms = number("lease-ttl-ms", DAY_MS, read.lease_ttl_ms);
        read.idle_ttl_ms = number("idle-ttl-ms", DAY_MS, read.idle_ttl_ms);
        read.transport_limit_ms = number("transport-limit-ms", DAY_MS, read.transport_limit_ms);
        let seconds = number("ready-wait-seconds", 86_400, u64::from(read.ready_wait_seconds));
        read.ready_wait_seconds = u32::try_from(seconds).unwrap_or(read.ready_wait_seconds);
        if faults.is_empty() { Ok(read) } else { Err(faults) }
    }
}
