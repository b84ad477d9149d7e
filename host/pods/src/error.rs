//! What can go wrong with pods, in the two families that policies know: the cluster's and the transport's.

use std::io;

/// Why a question or a change wasn't answered. The variants are those of `cluster-error` in the interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PodsError {
    /// Nobody here knows this context.
    #[error("the context `{context}` isn't known: {detail}")]
    UnknownContext {
        /// As it was asked for.
        context: String,
        /// Who said so, and what is known instead.
        detail: String,
    },
    /// Not granted, or the directory or API server refuses.
    #[error("not allowed: {0}")]
    Denied(String),
    /// No such pod or node.
    #[error("{0} doesn't exist")]
    NotFound(String),
    /// The name is taken, or the object isn't the one that was meant (another UID).
    #[error("conflict: {0}")]
    Conflict(String),
    /// Anything else, for a person.
    #[error("{0}")]
    Failed(String),
    /// It took longer than it may; the text says what was waited for.
    #[error("timed out: {0}")]
    TimedOut(String),
}

impl PodsError {
    /// A stable name.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownContext { .. } => "unknown-context",
            Self::Denied(_) => "denied",
            Self::NotFound(_) => "not-found",
            Self::Conflict(_) => "conflict",
            Self::Failed(_) => "failed",
            Self::TimedOut(_) => "timed-out",
        }
    }

    /// An error of the file system, with what was being done.
    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied(format!("{doing}: {error}")),
            _ => Self::Failed(format!("{doing}: {error}")),
        }
    }
}

/// Why there is no reply. The variants are those of `transport-error` in the interface. After any of them nobody knows
/// what ran in the pod, except after [`ExecError::WrongPod`]: there nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The stream ended without a verdict, or with one that isn't for this command or these bytes.
    #[error("no valid verdict: {0}")]
    NoVerdict(String),
    /// The stream ended inside a frame.
    #[error("truncated: {0}")]
    Truncated(String),
    /// More bytes than the limits allow.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A signal ended the worker before its verdict.
    #[error("the worker was killed: {0}")]
    Killed(String),
    /// The deadline came first; everything of the request was killed.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The pod isn't the one that the command names; nothing was started.
    #[error("wrong pod: {0}")]
    WrongPod(String),
    /// Anything else, for a person.
    #[error("{0}")]
    Failed(String),
}

impl ExecError {
    /// A stable name.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoVerdict(_) => "no-verdict",
            Self::Truncated(_) => "truncated",
            Self::TooLarge(_) => "too-large",
            Self::Killed(_) => "killed",
            Self::TimedOut(_) => "timed-out",
            Self::WrongPod(_) => "wrong-pod",
            Self::Failed(_) => "failed",
        }
    }

    /// The same error with something added to its text.
    #[must_use]
    pub(crate) fn also(self, more: &str) -> Self {
        if more.is_empty() {
            return self;
        }
        let add = |text: String| format!("{text}; {more}");
        match self {
            Self::NoVerdict(text) => Self::NoVerdict(add(text)),
            Self::Truncated(text) => Self::Truncated(add(text)),
            Self::TooLarge(text) => Self::TooLarge(add(text)),
            Self::Killed(text) => Self::Killed(add(text)),
            Self::TimedOut(text) => Self::TimedOut(add(text)),
            Self::WrongPod(text) => Self::WrongPod(add(text)),
            Self::Failed(text) => Self::Failed(add(text)),
        }
    }
}
