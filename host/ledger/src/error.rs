//! Why something wasn't written, or can't be read.

use crate::fence::Violation;
use crate::operation::{PolicyFailure, PrimaryView, Refusal};
use std::sync::Arc;

/// Why a change wasn't made. But for [`ApplyError::Uncertain`], nothing of it was written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ApplyError {
    /// The policy said no (or the ledger itself, for the host's own quarantine: then the policy is `host`).
    #[error("refused: {}", .0.code())]
    Refused(Refusal, Arc<str>),
    /// The policy gave no answer.
    #[error("the policy gave no answer: {0}")]
    PolicyFailed(PolicyFailure),
    /// The policy wanted something that the fence forbids.
    #[error("the policy {policy} broke a rule of the ledger: {violation}")]
    PolicyViolation {
        /// Whose fault it is.
        policy: Arc<str>,
        /// What it did.
        violation: Violation,
    },
    /// The row would be larger than a row may be.
    #[error("the row's attributes would take {bytes} bytes; at most {limit} are kept: send less")]
    TooLarge {
        /// Bytes of canonical text.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// This machine isn't the primary any more, or isn't the one that the request saw.
    #[error("this machine may not write: it isn't the primary, or stopped being it while the request waited")]
    NotPrimary {
        /// What was read under the lock; for the response's header, not for its body.
        view: Option<PrimaryView>,
    },
    /// Worker routes need a primary, and none is configured.
    #[error("no primary is configured, and worker routes need one")]
    PrimaryUnmeasured,
    /// The ledger's file was moved, removed or replaced under the daemon.
    #[error("the ledger's file was moved, removed or replaced while it was open: put it back, or restart the daemon")]
    LockLost,
    /// The lock didn't come in time.
    #[error("the ledger was busy for as long as the request could wait: try again")]
    Busy,
    /// Nobody knows whether it is durable: the commit failed.
    #[error("the change may or may not have been kept ({0}): read the row before trying again")]
    Uncertain(Arc<str>),
    /// The queue is full.
    #[error("too many writes are waiting: try again later")]
    TooManyWaiting,
    /// The ledger is being closed.
    #[error("the daemon is ending")]
    Closed,
    /// The record isn't what was expected.
    #[error("the record isn't what was expected (its number is {current:?})")]
    Conflict {
        /// The number that it has; none when it doesn't exist.
        current: Option<u64>,
    },
    /// The store failed, and nothing was written.
    #[error("the ledger can't be written: {0}")]
    Storage(Arc<str>),
}

impl ApplyError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal, _) => refusal.code(),
            Self::PolicyFailed(_) => "policy-failed",
            Self::PolicyViolation { .. } => "policy-violation",
            Self::TooLarge { .. } => "too-large",
            Self::NotPrimary { .. } => "not-primary",
            Self::PrimaryUnmeasured => "primary-unmeasured",
            Self::LockLost => "ledger-lock-lost",
            Self::Busy => "ledger-busy",
            Self::Uncertain(_) => "uncertain",
            Self::TooManyWaiting => "too-many-waiting",
            Self::Closed => "closing",
            Self::Conflict { .. } => "record-conflict",
            Self::Storage(_) => "ledger-failed",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Refused(refusal, _) => refusal.status(),
            Self::TooLarge { .. } => 413,
            Self::NotPrimary { .. } | Self::PrimaryUnmeasured | Self::Conflict { .. } => 409,
            _ => 503,
        }
    }

    /// The policy that decided, failed or broke a rule.
    #[must_use]
    pub fn policy(&self) -> Option<&Arc<str>> {
        match self {
            Self::Refused(_, policy) | Self::PolicyViolation { policy, .. } => Some(policy),
            Self::PolicyFailed(failure) => Some(&failure.policy),
            _ => None,
        }
    }
}

/// Why something can't be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the ledger can't be read: {0}")]
pub struct ReadError(pub(crate) Arc<str>);

impl ReadError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "ledger-failed"
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        503
    }
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.to_string().into())
    }
}
