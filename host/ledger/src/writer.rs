//! The one thread that writes.
//!
//! It takes the write lock once for all who wait, decides one after the other, and commits once: a durable write costs
//! its share of one sync. Everybody is answered after the commit, those who were refused too: a refusal may rest on a
//! write of the same group, and is worth no more than that write.

use crate::answers::Answers;
use crate::error::ApplyError;
use crate::fence::{self, Bounds, Effect, Violation, Write};
use crate::mirror::Mirror;
use crate::operation::{
    Applied, Change, Decider, Decision, Meant, Moment, PolicyFailure, Primary, PrimaryView, ProposedRow, Refusal,
    Submission, View,
};
use crate::queue::{Done, Job, Outcome, Queue, Task};
use crate::row::Instant as Millis;
use crate::stats::{Counters, Observer};
use crate::store::{Refresh, Store, StoreError, lookup};
use crate::worker::{WorkerFacts, WorkerState, worker_row_id};
use crate::{fence::Rule, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest reason that the host's own quarantine stores, characters.
const LONGEST_REASON: usize = 1000;

/// The policy's name in answers that no policy gave.
const HOST: &str = "host";

pub(crate) struct Writer {
    pub(crate) store: Store,
    pub(crate) queue: Arc<Queue>,
    pub(crate) decider: Arc<dyn Decider>,
    pub(crate) primary: Arc<dyn Primary>,
    pub(crate) bounds: Bounds,
    /// When a group is closed, counted from when the lock was held.
    pub(crate) group_time: Duration,
    /// How many a group may have.
    pub(crate) group_size: usize,
    pub(crate) clock: Arc<dyn Fn() -> Millis + Send + Sync>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) answers: Answers,
}

/// What went on in one group.
#[derive(Default)]
struct Group {
    answers: Vec<(Job, Outcome)>,
    writes: u64,
    /// The primary as the first worker route of the group read it.
    primary: Option<Option<PrimaryView>>,
}

/// The whole transaction is gone: nothing of the group was written.
struct Lost(StoreError);

impl Writer {
    /// Writes until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        while self.queue.wait() {
            // A panic here is a fault of ours; it costs its group, whose callers are told that nothing is certain.
            if catch_unwind(AssertUnwindSafe(|| self.group())).is_err() {
                tracing::error!("the ledger's writer failed; everything is opened and read anew");
                self.counters.failed();
                self.store.give_up();
            }
        }
        if let Err(error) = self.store.checkpoint() {
            tracing::warn!(%error, "the ledger's log couldn't be folded into its file; the next start does it");
        }
    }

    fn group(&mut self) {
        let queue = Arc::clone(&self.queue);
        match self.store.begin(|| queue.len() == 0) {
            Ok(Some(refresh)) => self.counters.refreshed(refresh),
            Ok(None) => return,
            Err(error) => return self.fail_waiting(&error),
        }
        let mut group = Group::default();
        let result = self.decide(&mut group).and_then(|()| self.confirm(&mut group));
        match result {
            Ok(()) => self.commit(group),
            Err(Lost(error)) => {
                tracing::error!(%error, "the ledger's transaction was lost; nothing of it was written");
                self.counters.failed();
                self.store.give_up();
                let error: Arc<str> = error.to_string().into();
                let lost = |(job, _)| (job, Err(ApplyError::Storage(Arc::clone(&error))));
                self.answers.give(group.answers.into_iter().map(lost).collect());
            }
        }
    }

    /// The lock can't be had for a reason that won't go away by waiting.
    fn fail_waiting(&mut self, error: &StoreError) {
        tracing::error!(%error, "the ledger can't be locked");
        self.counters.failed();
        self.store.give_up();
        let error: Arc<str> = error.to_string().into();
        while let Some(job) = self.queue.pop() {
            self.answers.give(vec![(job, Err(ApplyError::Storage(Arc::clone(&error))))]);
        }
    }

    /// Decides what waits, until nothing does or the group's time is over.
    fn decide(&mut self, group: &mut Group) -> Result<(), Lost> {
        let begun = Instant::now();
        while let Some(job) = self.queue.pop() {
            let outcome = self.one(&job, group);
            let lost = self.store.transaction_lost();
            match outcome {
                Ok(outcome) => group.answers.push((job, outcome)),
                Err(error) => {
                    self.counters.failed();
                    let message: Arc<str> = error.to_string().into();
                    group.answers.push((job, Err(ApplyError::Storage(message))));
                    if lost || !matches!(error, StoreError::Sqlite(_)) {
                        return Err(Lost(error));
                    }
                }
            }
            if group.answers.len() >= self.group_size || begun.elapsed() >= self.group_time {
                break;
            }
        }
        Ok(())
    }

    /// Looks once more at what the group rests on: the file in its place, and the primary.
    fn confirm(&mut self, group: &mut Group) -> Result<(), Lost> {
        if !self.store.in_place() {
            self.store.restart().map_err(Lost)?;
            group.writes = 0;
            for (job, outcome) in &mut group.answers {
                let view = group.primary.clone().flatten();
                *outcome = Err(if worker_route(job) { ApplyError::NotPrimary { view } } else { ApplyError::LockLost });
            }
            return Ok(());
        }
        if group.primary.is_none() || self.primary.unchanged() {
            return Ok(());
        }
        // Undo everything, and decide again what doesn't need the primary: another's decision may rest on theirs.
        self.store.restart().map_err(Lost)?;
        group.writes = 0;
        let view = group.primary.take().flatten();
        let answers = std::mem::take(&mut group.answers);
        for (job, _) in answers {
            let outcome = if worker_route(&job) {
                Err(ApplyError::NotPrimary { view: view.clone() })
            } else {
                match self.one(&job, group) {
                    Ok(outcome) => outcome,
                    Err(error) if !self.store.transaction_lost() => Err(ApplyError::Storage(error.to_string().into())),
                    Err(error) => {
                        self.answers.give(vec![(job, Err(ApplyError::Storage(error.to_string().into())))]);
                        return Err(Lost(error));
                    }
                }
            };
            group.answers.push((job, outcome));
        }
        Ok(())
    }

    fn commit(&mut self, group: Group) {
        let failed = if group.writes == 0 {
            self.store.end();
            None
        } else {
            let begun = Instant::now();
            let failed = self.store.commit().err();
            self.observer.committed(begun.elapsed(), group.writes);
            failed
        };
        if let Some(error) = failed {
            tracing::error!(%error, writes = group.writes, "the ledger's commit failed; everything is opened and read anew");
            self.counters.uncertain(group.answers.len());
            let error: Arc<str> = error.to_string().into();
            let uncertain = |(job, _)| (job, Err(ApplyError::Uncertain(Arc::clone(&error))));
            self.answers.give(group.answers.into_iter().map(uncertain).collect());
            return;
        }
        self.counters.committed(group.writes, group.answers.len(), self.store.rows());
        self.answers.give(group.answers);
    }

    /// One job; an error is the store's.
    fn one(&mut self, job: &Job, group: &mut Group) -> Result<Outcome, StoreError> {
        let begun = Instant::now();
        self.observer.waited(begun.saturating_duration_since(job.queued));
        if begun >= job.deadline {
            return Ok(Err(ApplyError::Busy));
        }
        let outcome = match &job.task {
            Task::Apply(submission) => {
                let primary = if submission.guard.worker_route {
                    match self.admitted(submission, group) {
                        Ok(view) => Some(view),
                        Err(error) => return Ok(Err(error)),
                    }
                } else {
                    None
                };
                self.apply(submission)?.map(|(row, policy)| Done::Applied(Applied { row, policy, primary }))
            }
            Task::Quarantine { worker_id, reason, meant } => {
                self.quarantine(worker_id, reason, meant)?.map(Done::Applied)
            }
            Task::Record { kind, id, expect, body } => match self.store.record(kind, id, *expect, body.as_deref())? {
                Ok(seq) => Ok(Done::Recorded(seq)),
                Err(current) => Err(ApplyError::Conflict { current }),
            },
        };
        group.writes += u64::from(outcome.is_ok());
        Ok(outcome)
    }

    /// The primary, when this request may still write.
    fn admitted(&self, submission: &Submission, group: &mut Group) -> Result<PrimaryView, ApplyError> {
        let view = group.primary.get_or_insert_with(|| self.primary.read());
        let Some(view) = view else { return Err(ApplyError::PrimaryUnmeasured) };
        let seen = submission.guard.seen_generation;
        if !view.known || !view.held_here || (seen.is_some() && view.generation != seen) {
            return Err(ApplyError::NotPrimary { view: Some(view.clone()) });
        }
        Ok(view.clone())
    }

    fn moment(&self) -> Moment {
        Moment { now: (self.clock)(), fresh_id: uuid::Uuid::new_v4().to_string() }
    }

    #[allow(clippy::type_complexity, reason = "the row and who decided it")]
    fn apply(
        &mut self,
        submission: &Submission,
    ) -> Result<Result<(Option<Arc<crate::row::Row>>, Arc<str>), ApplyError>, StoreError> {
        let at = self.moment();
        let view: Arc<dyn View> = self.store.view()?;
        let decision = {
            let decider = Arc::clone(&self.decider);
            let decide = AssertUnwindSafe(|| decider.decide(view, &at, &submission.caller, &submission.operation));
            let begun = Instant::now();
            let decision = catch_unwind(decide);
            self.observer.decided(begun.elapsed());
            decision
        };
        if !self.store.reclaim()? {
            tracing::warn!("a decider kept the ledger's view; all rows were read anew");
            self.counters.refreshed(Refresh::Whole);
        }
        let Decision { verdict, policy } = match decision {
            Ok(Ok(decision)) => decision,
            Ok(Err(failure)) => return Ok(Err(ApplyError::PolicyFailed(failure))),
            Err(panic) => return Ok(Err(ApplyError::PolicyFailed(panicked(panic.as_ref())))),
        };
        let change = match verdict {
            Ok(change) => change,
            Err(refusal) => return Ok(Err(ApplyError::Refused(refusal, policy))),
        };
        let effect = Effect::Asked { operation: &submission.operation, caller: &submission.caller };
        match self.judge(effect, &at, &change)? {
            Ok(write) => Ok(Ok((self.store.write(write)?, policy))),
            Err(Violation::TooLarge { bytes, limit }) => Ok(Err(ApplyError::TooLarge { bytes, limit })),
            Err(violation) => {
                let text = violation.to_string();
                let told = catch_unwind(AssertUnwindSafe(|| self.decider.violated(&policy, &text)));
                if told.is_err() {
                    tracing::error!(%policy, violation = text, "the policy's fault couldn't be counted");
                }
                Ok(Err(ApplyError::PolicyViolation { policy, violation }))
            }
        }
    }

    fn judge(&self, effect: Effect<'_>, at: &Moment, change: &Change) -> Result<Result<Write, Violation>, StoreError> {
        let mirror = self.store.view()?;
        Ok(fence::check(effect, at, lookup(&mirror), change, &self.bounds))
    }

    fn quarantine(
        &mut self,
        worker_id: &str,
        reason: &str,
        meant: &Meant,
    ) -> Result<Result<Applied, ApplyError>, StoreError> {
        let at = self.moment();
        let policy: Arc<str> = HOST.into();
        let reason: String = reason.chars().take(LONGEST_REASON).collect();
        let refused = |refusal| Ok(Err(ApplyError::Refused(refusal, Arc::clone(&policy))));
        let mirror = self.store.view()?;
        let Some(change) = quarantined(&mirror, worker_id, &reason, &at) else {
            return refused(Refusal::NotFound);
        };
        let now = mirror.get(&worker_row_id(worker_id)).and_then(|row| WorkerFacts::of(&row));
        // Or it could not be written to.
        drop(mirror);
        let as_meant = match (meant, &now) {
            (Meant::Any, _) => true,
            // One that is out already is told so below.
            (_, Some(facts)) if facts.state == WorkerState::Quarantined => true,
            (Meant::Idle, Some(facts)) => facts.state == WorkerState::Idle,
            (Meant::Lease(lease), Some(facts)) => facts.lease_id.as_ref() == Some(lease),
            // A row that can't be understood is whatever was meant: out with it.
            (_, None) => true,
        };
        if !as_meant {
            return refused(Refusal::Conflict);
        }
        match self.judge(Effect::HostQuarantine { worker_id, reason: &reason }, &at, &change)? {
            Ok(write) => Ok(Ok(Applied { row: self.store.write(write)?, policy, primary: None })),
            Err(Violation::Forbidden(Rule::AlreadyQuarantined)) => refused(Refusal::AlreadyQuarantined),
            Err(Violation::Forbidden(Rule::NoSuchRow)) => refused(Refusal::NotFound),
            Err(violation) => Ok(Err(ApplyError::Storage(violation.to_string().into()))),
        }
    }
}

/// What the host itself proposes when it takes a worker out.
fn quarantined(mirror: &Arc<Mirror>, worker_id: &str, reason: &str, at: &Moment) -> Option<Change> {
    let row = mirror.get(&worker_row_id(worker_id))?;
    let mut attrs = json::parse_object(row.attrs.as_ref(), json::Duplicates::Refuse).unwrap_or_default();
    attrs.insert("state".to_owned(), WorkerState::Quarantined.as_str().into());
    attrs.insert("reason".to_owned(), reason.into());
    let put = ProposedRow {
        id: row.id.clone(),
        kind: row.kind.as_str().to_owned(),
        machine: row.machine.clone(),
        name: row.name.clone(),
        owner: row.owner.clone(),
        endpoint: row.endpoint.clone(),
        attrs: json::object_to_text(&attrs),
        observed_at: at.now,
        ttl_ms: row.ttl_ms,
    };
    Some(Change { put: vec![put], remove: Vec::new() })
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> PolicyFailure {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let message = format!("the decider panicked: {}", text.unwrap_or("no message"));
    PolicyFailure { code: "panic".to_owned(), message, policy: HOST.into() }
}

fn worker_route(job: &Job) -> bool {
    matches!(&job.task, Task::Apply(submission) if submission.guard.worker_route)
}
