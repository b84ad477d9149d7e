//! What a change did wrong, in words for the log and for who wrote the policy.

use crate::json::JsonError;
use std::fmt;

/// Why a change may not be written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A success that changes nothing, or more than one thing.
    #[error("the operation changes exactly one row; the policy put {put} and removed {remove}")]
    NotOneEffect {
        /// Rows put.
        put: usize,
        /// Rows removed.
        remove: usize,
    },
    /// A removal where the operation writes, or the other way round.
    #[error("the operation {expected} its row; the policy did the opposite")]
    WrongEffect {
        /// `writes` or `removes`.
        expected: &'static str,
    },
    /// Another row than the one that the operation names.
    #[error("the operation names the row {expected:?}; the policy touched {got:?}")]
    WrongRow {
        /// The row's id, or what it may be.
        expected: String,
        /// What the policy named, cut.
        got: String,
    },
    /// The ledger as it stands allows no success.
    #[error("the policy granted what the ledger forbids: {0}")]
    Forbidden(Rule),
    /// The right row with a wrong field.
    #[error("{field} must be {want}; the policy wrote {got}")]
    WrongField {
        /// The field; `attrs.NAME` for an attribute.
        field: String,
        /// What it must be, cut.
        want: String,
        /// What it would have been, cut.
        got: String,
    },
    /// Attributes that are no JSON object, or hold a name twice.
    #[error("attrs: {0}")]
    Attrs(JsonError),
    /// The row would be too large. This is the request's fault and not the policy's.
    #[error("the row's attributes would take {bytes} bytes, above the limit of {limit}")]
    TooLarge {
        /// Bytes of canonical text.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

impl Violation {
    /// Whether the policy is to blame.
    #[must_use]
    pub fn blames_policy(&self) -> bool {
        !matches!(self, Self::TooLarge { .. })
    }
}

/// A rule that the ledger's rows enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each one's text says it")]
pub enum Rule {
    #[error("there is no such row")]
    NoSuchRow,
    #[error("the row is another owner's")]
    AnotherOwner,
    #[error("port and worker rows are touched only through their own routes")]
    OwnRoutesOnly,
    #[error("a worker's id is used once, ever")]
    IdUsed,
    #[error("the worker isn't idle")]
    NotIdle,
    #[error("the worker's registration has expired")]
    Expired,
    #[error("the worker's key isn't the one asked for")]
    AnotherKey,
    #[error("the worker is on another machine than the one asked for")]
    AnotherMachine,
    #[error("the port is outside the band")]
    OutsideBand,
    #[error("the caller excluded the port")]
    Excluded,
    #[error("the port has a lease that hasn't expired")]
    PortTaken,
    #[error("lease and generation aren't the row's")]
    StaleFence,
    #[error("the lease has expired")]
    LeaseExpired,
    #[error("the worker isn't leased")]
    NotLeased,
    #[error("the worker isn't sanitizing")]
    NotSanitizing,
    #[error("the worker is quarantined already")]
    AlreadyQuarantined,
    #[error("the worker's row is damaged")]
    DamagedRow,
    #[error("the generation can't rise any further")]
    GenerationExhausted,
    #[error("the time to live is out of bounds")]
    TtlOutOfBounds,
    #[error("the request's attributes are no canonical JSON object")]
    RequestAttrs,
}

pub(crate) fn require(holds: bool, rule: Rule) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::Forbidden(rule)) }
}

pub(crate) fn same(field: &str, want: &str, got: &str) -> Result<(), Violation> {
    if want == got { Ok(()) } else { Err(wrong(field, &quoted(want), &quoted(got))) }
}

pub(crate) fn wrong(field: &str, want: &dyn fmt::Display, got: &dyn fmt::Display) -> Violation {
    Violation::WrongField { field: field.to_owned(), want: want.to_string(), got: got.to_string() }
}

pub(crate) fn wrong_row(expected: String, got: &str) -> Violation {
    Violation::WrongRow { expected, got: cut(got) }
}

pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}

/// A policy's text may be of any length; a message isn't.
pub(crate) fn cut(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}
