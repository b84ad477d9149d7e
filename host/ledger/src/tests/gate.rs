//! A decider that stops when it is told to, so that a test says who waits together.

use super::policy::Reference;
use super::support::Case;
use crate::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) inner: Arc<Reference>,
    armed: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

/// Where a decision stands still until it is let go.
pub(crate) struct Held {
    entered: Receiver<()>,
    go: Sender<()>,
}

impl Held {
    pub(crate) fn entered(&self) {
        // Long enough for any machine; a test that fails should end.
        self.entered.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    pub(crate) fn go(self) {
        self.go.send(()).unwrap();
    }
}

impl Gate {
    /// The next decision stops.
    pub(crate) fn arm(&self) -> Held {
        let ((tell, entered), (go, wait)) = (channel(), channel());
        *self.armed.lock() = Some((tell, wait));
        Held { entered, go }
    }
}

impl Decider for Gate {
    fn decide(
        &self,
        view: Arc<dyn View>,
        at: &Moment,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Decision, PolicyFailure> {
        if let Some((tell, wait)) = self.armed.lock().take() {
            tell.send(()).unwrap();
            // An error means that the test is over.
            let _ = wait.recv();
        }
        self.inner.decide(view, at, caller, operation)
    }

    fn violated(&self, policy: &str, violation: &str) {
        self.inner.violated(policy, violation);
    }
}

/// A ledger whose groups are as large as what waits.
pub(crate) fn gated(case: &Case) -> (Ledger, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let options = Options { decider: gate.clone(), group_time: Duration::from_secs(60), ..case.options() };
    (Ledger::open(&case.path(), options).unwrap(), gate)
}

/// What a group has in it.
pub(crate) enum Part {
    Apply(Box<Submission>),
    Quarantine(&'static str),
    Record(&'static str, Expect),
}

/// A part that a policy decides.
pub(crate) fn asked(submission: Submission) -> Part {
    Part::Apply(Box::new(submission))
}

pub(crate) async fn wait_for_waiting(ledger: &Ledger, count: usize) {
    while ledger.stats().waiting != count as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Puts all of it into one group, in this order, and answers what each got: the code, or `ok`.
pub(crate) async fn together(ledger: &Ledger, gate: &Gate, first: Submission, rest: Vec<Part>) -> Vec<String> {
    let held = gate.arm();
    let mut tasks = Vec::new();
    let go = |part: Part| {
        let ledger = ledger.clone();
        tokio::spawn(async move {
            let result = match part {
                Part::Apply(submission) => ledger.apply(*submission).await.map(|_| ()),
                Part::Quarantine(id) => ledger.quarantine(id, "told").await.map(|_| ()),
                Part::Record(id, expect) => ledger.put_record("k", id, expect, serde_json::json!(1)).await.map(|_| ()),
            };
            result.map_or_else(|error| error.code().to_owned(), |()| "ok".to_owned())
        })
    };
    tasks.push(go(Part::Apply(Box::new(first))));
    held.entered();
    for (index, part) in rest.into_iter().enumerate() {
        tasks.push(go(part));
        wait_for_waiting(ledger, index + 1).await;
    }
    held.go();
    let mut codes = Vec::new();
    for task in tasks {
        codes.push(task.await.unwrap());
    }
    codes
}
