//! A lease as a capability that the host holds and a policy only points at.

use crate::journal::LeaseJournal;
use std::time::{Duration, Instant};
use warmhold_protocol::WorkerKey;

/// What is proven of the worker under this lease. Only [`Proof::NothingRan`] and [`Proof::Clean`] let it serve again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// No command was ever sent, or the worker refused it before anything ran.
    NothingRan,
    /// A command was sent and no verdict is believed (yet).
    Unknown,
    /// The verdict says clean, and the host's own checks held afterwards.
    Clean,
    /// The verdict says that something is left, or a check didn't hold.
    Dirty(String),
}

/// Where the lease stands. Goes one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Leased; may be spent.
    Fenced,
    /// Released; only cleaning and quarantine are left.
    Released,
    /// The worker serves again.
    Sanitized,
    /// The worker is out.
    Quarantined,
}

impl Stage {
    /// Whether nothing is owed any more.
    pub(crate) fn settled(self) -> bool {
        matches!(self, Self::Sanitized | Self::Quarantined)
    }
}

/// What never changes of a lease.
#[derive(Clone, Debug)]
pub(crate) struct LeaseFacts {
    pub(crate) lease_id: String,
    pub(crate) worker_id: String,
    pub(crate) machine: String,
    pub(crate) generation: u64,
    pub(crate) run_id: String,
    pub(crate) attempt_id: String,
    pub(crate) pod_uid: Option<String>,
    pub(crate) key: WorkerKey,
    /// The lease policy that gave it.
    pub(crate) policy: String,
    /// When it was taken, milliseconds since the epoch.
    pub(crate) requested_at: u64,
}

/// A lease. Its state is behind a lock that is held across each operation: two calls can't spend it at once.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) facts: LeaseFacts,
    pub(crate) inner: tokio::sync::Mutex<LeaseState>,
}

/// See [`Lease`].
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) stage: Stage,
    pub(crate) proof: Proof,
    /// When it ends by this process's own clock: another machine's is never asked.
    pub(crate) ends: Instant,
    pub(crate) journal: LeaseJournal,
}

impl Lease {
    /// A lease that was just taken for `ttl`.
    pub(crate) fn new(facts: LeaseFacts, ttl: Duration, taken: Instant) -> Self {
        let journal = LeaseJournal::new(&facts.lease_id, &facts.worker_id, &facts.run_id, &facts.attempt_id);
        let state = LeaseState { stage: Stage::Fenced, proof: Proof::NothingRan, ends: taken + ttl, journal };
        Self { facts, inner: tokio::sync::Mutex::new(state) }
    }
}

impl LeaseState {
    /// Whether the worker may serve again, and why not.
    pub(crate) fn may_sanitize(&self) -> Result<(), String> {
        match (&self.stage, &self.proof) {
            (Stage::Released, Proof::NothingRan | Proof::Clean) => Ok(()),
            (Stage::Fenced, _) => Err("the lease isn't released".to_owned()),
            (Stage::Sanitized | Stage::Quarantined, _) => Err("the lease is settled".to_owned()),
            (Stage::Released, Proof::Unknown) => Err("no verdict proves what happened in the worker".to_owned()),
            (Stage::Released, Proof::Dirty(why)) => Err(format!("the worker isn't clean: {why}")),
        }
    }

    /// Whether it may still be spent.
    pub(crate) fn may_spend(&self, now: Instant) -> Result<(), String> {
        match self.stage {
            Stage::Fenced if now < self.ends => Ok(()),
            Stage::Fenced => Err("the lease has ended".to_owned()),
            _ => Err("the lease is given back".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(stage: Stage, proof: Proof) -> LeaseState {
        let journal = LeaseJournal::new("l", "w", "r", "a");
        LeaseState { stage, proof, ends: Instant::now() + Duration::from_secs(60), journal }
    }

    #[test]
    fn only_a_proof_lets_a_worker_serve_again() {
        let proofs = [Proof::NothingRan, Proof::Unknown, Proof::Clean, Proof::Dirty("a process".into())];
        for stage in [Stage::Fenced, Stage::Released, Stage::Sanitized, Stage::Quarantined] {
            for proof in &proofs {
                let want = stage == Stage::Released && matches!(proof, Proof::NothingRan | Proof::Clean);
                assert_eq!(state(stage, proof.clone()).may_sanitize().is_ok(), want, "{stage:?} {proof:?}");
            }
        }
    }

    #[test]
    fn a_lease_is_spent_only_while_it_is_held() {
        let now = Instant::now();
        assert!(state(Stage::Fenced, Proof::NothingRan).may_spend(now).is_ok());
        assert!(state(Stage::Fenced, Proof::NothingRan).may_spend(now + Duration::from_secs(61)).is_err());
        for stage in [Stage::Released, Stage::Sanitized, Stage::Quarantined] {
            assert!(state(stage, Proof::NothingRan).may_spend(now).is_err());
        }
    }
}
