//! The journal of leases: every start has exactly one end, and a lease that never started has a refusal.

/// Writes `lease-start`, and `lease-end` or `lease-refused`, once each.
#[derive(Debug)]
pub(crate) struct LeaseJournal {
    lease: String,
    worker: String,
    run: String,
    attempt: String,
    started: bool,
    ended: bool,
}

impl LeaseJournal {
    /// For one lease. Only the lease id's end is written: the whole is a credential.
    pub(crate) fn new(lease: &str, worker: &str, run: &str, attempt: &str) -> Self {
        Self {
            lease: tail(lease),
            worker: worker.to_owned(),
            run: run.to_owned(),
            attempt: attempt.to_owned(),
            started: false,
            ended: false,
        }
    }

    /// The worker's pod carries the lease's provenance.
    pub(crate) fn start(&mut self, pod_uid: Option<&str>) {
        if !self.started && !self.ended {
            self.started = true;
            tracing::info!(target: "warmhold::journal", event = "lease-start", lease = %self.lease, worker = %self.worker,
                run = %self.run, attempt = %self.attempt, pod_uid);
        }
    }

    /// The lease is settled.
    pub(crate) fn end(&mut self, result: &str, reason: Option<&str>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let event = if self.started { "lease-end" } else { "lease-refused" };
        tracing::info!(target: "warmhold::journal", event, lease = %self.lease, worker = %self.worker, run = %self.run,
            attempt = %self.attempt, result, reason);
    }
}

/// The last 8 characters of an id.
pub(crate) fn tail(id: &str) -> String {
    let skip = id.chars().count().saturating_sub(8);
    id.chars().skip(skip).collect()
}
