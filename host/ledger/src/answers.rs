//! How the outcomes of a group get to those who wait for them.

use crate::queue::{Job, Outcome};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

type Group = Vec<(Job, Outcome)>;

/// Answers jobs.
///
/// To wake a task from a thread that isn't the runtime's takes the runtime's lock and often a system call, for each. So
/// where there is a runtime one task of it is woken for a group, and wakes the others from within.
pub(crate) struct Answers {
    within: Option<mpsc::UnboundedSender<Group>>,
}

impl Answers {
    /// Within the runtime that this is called in, if there is one.
    pub(crate) fn new() -> Self {
        let Ok(runtime) = Handle::try_current() else { return Self { within: None } };
        let (sender, mut groups) = mpsc::unbounded_channel::<Group>();
        runtime.spawn(async move {
            while let Some(group) = groups.recv().await {
                group.into_iter().for_each(answer);
            }
        });
        Self { within: Some(sender) }
    }

    /// Answers all of a group. One alone is answered at once.
    pub(crate) fn give(&self, group: Group) {
        let group = match &self.within {
            // A runtime that is gone gives it back; who waits on another one is answered from here.
            Some(within) if group.len() > 1 => match within.send(group) {
                Ok(()) => return,
                Err(mpsc::error::SendError(group)) => group,
            },
            _ => group,
        };
        group.into_iter().for_each(answer);
    }
}

fn answer((job, outcome): (Job, Outcome)) {
    // Who asked may be gone; what was written stays written.
    let _ = job.reply.send(outcome);
}
