//! The end of a lease: given back, or out of use.

use crate::provenance::{mark_idle, mark_quarantined};
use warmhold_sdk::Level;
use warmhold_sdk::replay::{Candidate, ControlError, Host, Lease, cluster_text, control_text};

/// The longest reason that is stored, in characters.
const LONGEST_REASON: usize = 120;

/// Releases, marks the pod as idle and has the host sanitize. Any refusal on the way takes the worker out of use, and is
/// still an error: the caller's verdict was that it comes back.
///
/// # Errors
/// The worker isn't idle again, for a person.
pub fn finalize<H: Host>(host: &H, held: &H::Lease, of: &Candidate) -> Result<(), String> {
    let given_back = held
        .release()
        .map_err(|error| format!("release: {}", control_text(&error)))
        .and_then(|()| {
            mark_idle(host, held, of).map_err(|error| format!("marking the pod idle: {}", cluster_text(&error)))
        })
        .and_then(|()| held.sanitize().map_err(|error| format!("sanitize: {}", control_text(&error))));
    let Err(why) = given_back else { return Ok(()) };
    host.log(Level::Warn, "the worker can't be given back", &[("worker", &held.worker()), ("why", &why)]);
    match quarantine(host, held, of, "sanitize-unavailable") {
        Ok(()) => Err(format!("{why}; worker {} is quarantined", held.worker())),
        Err(second) => Err(format!("{why}; and {second}")),
    }
}

/// The ledger first: what it says decides who uses the worker. The pod's mark is for people, and may fail.
///
/// # Errors
/// The ledger still has the worker in use, for a person.
pub fn quarantine<H: Host>(host: &H, held: &H::Lease, of: &Candidate, reason: &str) -> Result<(), String> {
    match held.quarantine(&stored_reason(reason)) {
        Ok(()) => {}
        // Somebody was faster; that is what was wanted.
        Err(ControlError::Refused((_, code))) if code == "already-quarantined" => {}
        Err(error) => return Err(format!("worker {} can't be quarantined: {}", held.worker(), control_text(&error))),
    }
    if let Err(error) = mark_quarantined(host, held, of) {
        let fields = [("pod", of.spec.name.as_str()), ("why", &cluster_text(&error))];
        host.log(Level::Debug, "the pod of a quarantined worker can't be marked", &fields);
    }
    Ok(())
}

/// At most 120 characters; a reason that says nothing is `mismatch`.
#[must_use]
pub fn stored_reason(reason: &str) -> String {
    let cut: String = reason.trim().chars().take(LONGEST_REASON).collect();
    if cut.is_empty() { "mismatch".to_owned() } else { cut }
}
