//! What waits for the writer.
//!
//! A job is in the queue until the write lock is held and its turn has come. Who gives up waiting takes his job out; a
//! job that isn't there any more will be written or has been, and its result must be waited for.

use crate::error::ApplyError;
use crate::operation::{Meant, Submission};
use crate::store::Expect;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::oneshot;

/// What the writer is to do.
pub(crate) enum Task {
    /// Ask the policy.
    Apply(Box<Submission>),
    /// The host's own quarantine.
    Quarantine { worker_id: String, reason: String, meant: Meant },
    /// Write a record, or remove it where there is no body.
    Record { kind: &'static str, id: String, expect: Expect, body: Option<String> },
}

/// What the writer did.
#[derive(Debug)]
pub(crate) enum Done {
    Applied(crate::operation::Applied),
    Recorded(u64),
}

pub(crate) type Outcome = Result<Done, ApplyError>;

pub(crate) struct Job {
    ticket: u64,
    /// When it came into the queue.
    pub(crate) queued: Instant,
    pub(crate) deadline: Instant,
    pub(crate) task: Task,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    tickets: u64,
    closed: bool,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    limit: usize,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), work: Condvar::new(), limit }
    }

    pub(crate) fn push(&self, task: Task, deadline: Instant) -> Result<(u64, oneshot::Receiver<Outcome>), ApplyError> {
        let (reply, result) = oneshot::channel();
        let queued = Instant::now();
        let mut state = self.state.lock();
        if state.closed {
            return Err(ApplyError::Closed);
        }
        if state.jobs.len() >= self.limit {
            return Err(ApplyError::TooManyWaiting);
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.jobs.push_back(Job { ticket, queued, deadline, task, reply });
        drop(state);
        self.work.notify_one();
        Ok((ticket, result))
    }

    /// Takes a job out again; false when the writer has it already.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.state.lock();
        match state.jobs.binary_search_by_key(&ticket, |job| job.ticket) {
            Ok(index) => state.jobs.remove(index).is_some(),
            Err(_) => false,
        }
    }

    pub(crate) fn pop(&self) -> Option<Job> {
        self.state.lock().jobs.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// Waits until something waits; false when the queue is closed and empty.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return false;
            }
            self.work.wait(&mut state);
        }
        true
    }

    /// Nothing more comes in; what waits is still written.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }
}
