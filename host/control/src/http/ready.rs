//! `GET /readyz`: whether a request would be served as it should be.
//!
//! Whoever sends requests here sends none to a daemon that isn't ready, so nothing but this would ever find out that a
//! failed ledger works again: while it counts as failed, the question itself tries a write, though not more often than
//! once in a while, since anybody may ask.

use super::answer::Answer;
use super::exchange::Exchange;
use super::{Control, within};
use crate::api::{PolicySlot, PolicyState};
use crate::error::ApiError;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use warmhold_ledger::Expect;

/// How often a ledger that failed is tried.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// When a ledger that failed was tried last.
#[derive(Default)]
pub(super) struct Tried(Mutex<Option<Instant>>);

impl Tried {
    /// Whether it is time to try it; then it counts as tried.
    fn is_due(&self) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| last.elapsed() >= TRY_AGAIN);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Answers the question.
pub(super) async fn show(exchange: &Exchange) -> Result<Answer, ApiError> {
    let Control { options, reads, tried, .. } = &*exchange.control;
    if exchange.control.is_stopping() {
        return Err(ApiError::unavailable("closing", "the daemon is ending"));
    }
    let (_, free) = reads.read(|ledger| Ok((ledger.row("readyz")?, ledger.free_space()?))).await?;
    if free < options.limits.free_space {
        let wanted = options.limits.free_space >> 10;
        let message = format!("the ledger's disk has {} KiB free, and at least {wanted} are wanted", free >> 10);
        return Err(ApiError::unavailable("disk-full", message).with_help("make room where ROOT/control lies"));
    }
    if options.ledger.stats().failing {
        let failing = || {
            ApiError::unavailable("ledger-failed", "the ledger's last write failed")
                .with_help("the daemon's log has the cause; the ledger is tried again by itself")
        };
        if !tried.is_due() {
            return Err(failing());
        }
        // Nothing is there to be removed, and yet it is a change like any other, down to the disk.
        let tried = options.ledger.remove_record("readyz", "readyz", Expect::Any);
        within(options.limits.read_time, async { tried.await.map_err(|_| failing()) }).await?;
    }
    if options.require_primary && !exchange.primary.as_ref().is_some_and(|view| view.known) {
        return Err(ApiError::unavailable(
            "primary-unknown",
            "the primary document can't be read, so every write is refused",
        )
        .with_help("`primary show` says what is wrong with it"));
    }
    let policies = within(options.limits.read_time, options.policies.list()).await?;
    for slot in PolicySlot::ALL {
        if !policies.iter().any(|policy| policy.slot == slot && policy.state == PolicyState::Serving) {
            return Err(ApiError::unavailable("policy-missing", format!("no {slot} policy serves")));
        }
    }
    Ok(Answer::text("ok\n"))
}
