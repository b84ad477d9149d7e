//! Standing workers.

use crate::error::ApiError;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which slots to fill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"count": 2}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrepareAsk {
    /// Which profile; the default one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The commit, as git names it; `HEAD` of the profile's source when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// How many workers; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 64)]
    pub count: Option<u32>,
}

/// What became of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The worker's id.
    pub worker_id: String,
    /// Its pod's name.
    pub pod: String,
    /// Its pod's UID; empty when there is no pod.
    pub pod_uid: String,
    /// Whether it can be leased now.
    pub prepared: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// A standing worker. What only its own daemon knows is null for a worker of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Its id.
    pub worker_id: String,
    /// Its machine.
    pub machine: String,
    /// Its tier.
    #[schema(required = true)]
    pub tier: Option<String>,
    /// Its slot within the tier.
    #[schema(required = true)]
    pub slot: Option<u32>,
    /// The commit that it holds.
    #[schema(required = true)]
    pub cut_sha: Option<String>,
    /// `idle`, `leased`, `sanitizing` or `quarantined`.
    pub state: String,
    /// How often it was leased.
    pub generation: u64,
    /// Its pod's UID.
    #[schema(required = true)]
    pub pod_uid: Option<String>,
    /// How old its row is.
    pub age_ms: u64,
    /// Whether the row's time to live is over.
    pub expired: bool,
    /// Why it is where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// Keeps standing workers.
#[async_trait]
pub trait Workers: Send + Sync + 'static {
    /// Fills slots; answers when each is filled or has failed.
    ///
    /// # Errors
    /// Nothing was tried: unknown profile or commit, no quota left.
    async fn prepare(&self, ask: PrepareAsk) -> Result<Vec<Prepared>, ApiError>;

    /// Every worker in the ledger.
    ///
    /// # Errors
    /// The ledger couldn't be read.
    async fn list(&self) -> Result<Vec<WorkerView>, ApiError>;

    /// Takes a worker's pod away. None: there is no such worker.
    ///
    /// # Errors
    /// It is leased, or not this daemon's.
    async fn remove(&self, id: &str) -> Result<Option<WorkerView>, ApiError>;

    /// Takes a worker out for good, an idle one too. None: there is no such worker.
    ///
    /// # Errors
    /// It is quarantined already, or the ledger can't be written.
    async fn quarantine(&self, id: &str, reason: &str) -> Result<Option<WorkerView>, ApiError>;
}
