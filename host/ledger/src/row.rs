//! A row of the ledger and what identifies it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Milliseconds since the Unix epoch.
pub type Instant = u64;

/// What a row stands for. The set is closed: clients of the original know these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A machine that joined.
    Machine,
    /// An instance of a service.
    Instance,
    /// A leased port; only through the port routes.
    PortLease,
    /// An exposed endpoint.
    Exposure,
    /// A universe.
    Universe,
    /// How far a set-up has come.
    SetupStatus,
    /// An image.
    Image,
    /// A leased slot.
    SlotLease,
    /// A warm worker; only through the worker routes.
    PodWorkerLease,
}

impl Kind {
    /// Every kind, in the order of the original.
    pub const ALL: [Self; 9] = [
        Self::Machine,
        Self::Instance,
        Self::PortLease,
        Self::Exposure,
        Self::Universe,
        Self::SetupStatus,
        Self::Image,
        Self::SlotLease,
        Self::PodWorkerLease,
    ];

    /// The name that travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Instance => "instance",
            Self::PortLease => "port-lease",
            Self::Exposure => "exposure",
            Self::Universe => "universe",
            Self::SetupStatus => "setup-status",
            Self::Image => "image",
            Self::SlotLease => "slot-lease",
            Self::PodWorkerLease => "pod-worker-lease",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Four values; two workers are interchangeable when all are equal. A stored key may hold more fields: they are kept
/// in the row's attributes and don't count here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerKey {
    /// The cluster context, `local` for local pods.
    pub context: String,
    /// Digest of the image.
    pub image_digest: String,
    /// Digest of what was installed.
    pub lock_hash: String,
    /// `amd64` or `arm64`.
    pub architecture: String,
}

/// A row. `attrs` is a JSON object in canonical text (see `json`); nothing else may construct one from outside text.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Unique in the ledger; `port-lease:PORT` and `pod-worker-lease:WORKER` for the two kinds with their own routes.
    pub id: String,
    /// See [`Kind`].
    pub kind: Kind,
    /// The machine that it belongs to.
    pub machine: String,
    /// A name within kind and machine.
    pub name: String,
    /// SHA-256 (hex) of the identity of the credential that wrote it; set by the host, never by a client.
    pub owner: String,
    /// Where it can be reached.
    pub endpoint: Option<String>,
    /// A JSON object, canonical.
    pub attrs: Arc<str>,
    /// When it was last written, by the host's clock.
    pub observed_at: Instant,
    /// For how long it counts from then, milliseconds; finite, 0 or more, not always whole.
    pub ttl_ms: f64,
}

impl Row {
    /// Age at `now`; a row from the future has age 0.
    #[must_use]
    pub fn age_ms(&self, now: Instant) -> u64 {
        now.saturating_sub(self.observed_at)
    }

    /// Whether it no longer counts at `now`. Expired rows stay.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "ages are far below 2^53 ms")]
    pub fn expired(&self, now: Instant) -> bool {
        self.age_ms(now) as f64 >= self.ttl_ms
    }
}
