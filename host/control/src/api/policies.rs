//! Policies in their slots.

use crate::error::ApiError;
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The places for policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each is the word that it stands for")]
pub enum PolicySlot {
    Lease,
    Manifest,
    Replay,
}

impl PolicySlot {
    /// Every slot.
    pub const ALL: [Self; 3] = [Self::Lease, Self::Manifest, Self::Replay];

    /// The name that travels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Manifest => "manifest",
            Self::Replay => "replay",
        }
    }

    /// The slot with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|slot| slot.as_str() == name)
    }
}

impl fmt::Display for PolicySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a loaded policy is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyState {
    /// It decides.
    Serving,
    /// It can be rolled back to.
    Kept,
    /// It failed too often.
    Bad,
}

/// One loaded policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyView {
    /// Where.
    pub slot: PolicySlot,
    /// What it calls itself.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// Counts the loads of this slot.
    pub generation: u64,
    /// What it is good for.
    pub state: PolicyState,
    /// How often it was called.
    pub calls: u64,
    /// How often it failed.
    pub faults: u64,
    /// How it failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub first_fault: Option<String>,
}

/// Loads policies and says which serve.
#[async_trait]
pub trait Policies: Send + Sync + 'static {
    /// Every slot's generations, serving ones first within their slot.
    ///
    /// # Errors
    /// The state couldn't be read.
    async fn list(&self) -> Result<Vec<PolicyView>, ApiError>;

    /// Checks and serves a component; the one before goes on serving when this fails.
    ///
    /// # Errors
    /// The whole refusal: what was expected, what was found and how to mend it go into the error with [`ApiError::with`], as
    /// `expected`, `found` and `fix`.
    async fn load(&self, slot: PolicySlot, component: Bytes) -> Result<PolicyView, ApiError>;

    /// Serves the last good generation before this one.
    ///
    /// # Errors
    /// There is none.
    async fn rollback(&self, slot: PolicySlot) -> Result<PolicyView, ApiError>;
}
