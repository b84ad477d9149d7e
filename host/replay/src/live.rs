//! A replay while this daemon drives it: its record, who listens, and the leases that it holds.

use crate::lease::Lease;
use crate::record::{ReplayRecord, is_final};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use warmhold_control::ApiError;
use warmhold_control::api::{HistoryEntry, ReplayEvent, ReplayState};

/// Progress that a slow reader may fall behind by; everything that counts is in the result.
const EVENTS: usize = 256;

/// Milliseconds since the epoch, by this machine's clock.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The leases of one replay or preparation, by the handle that a policy sees.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    next: AtomicU64,
    table: Mutex<BTreeMap<u64, Arc<Lease>>>,
}

impl Leases {
    /// Keeps a lease and gives it a handle.
    pub(crate) fn add(&self, lease: Lease) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.table.lock().insert(handle, Arc::new(lease));
        handle
    }

    /// The lease behind a handle.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<Lease>> {
        self.table.lock().get(&handle).cloned()
    }

    /// How many were ever taken.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// All of them, with their handles.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Lease>)> {
        self.table.lock().iter().map(|(handle, lease)| (*handle, Arc::clone(lease))).collect()
    }
}

/// What is known of a replay's record.
#[derive(Clone, Debug)]
pub(crate) enum Admission {
    /// It is being written.
    Pending,
    /// It is durable: the replay is this daemon's.
    Kept,
    /// There was one already: the replay is over, or another daemon's.
    Elsewhere,
    /// It couldn't be written: there is no such replay.
    Failed(ApiError),
}

/// The replays that this daemon has in hand, by id.
#[derive(Default)]
pub struct Running {
    table: Mutex<HashMap<String, Arc<Live>>>,
    /// A record of this daemon may be left that no replay in the table answers for.
    left: AtomicBool,
}

impl Running {
    /// The replay with the record's id: a new one (true), or the one that is there. None when there are too many.
    pub(crate) fn enter(&self, record: &ReplayRecord, limit: usize) -> Option<(Arc<Live>, bool)> {
        let mut table = self.table.lock();
        if let Some(live) = table.get(&record.id) {
            return Some((Arc::clone(live), false));
        }
        if table.len() >= limit {
            return None;
        }
        let live = Arc::new(Live::new(record.clone()));
        table.insert(record.id.clone(), Arc::clone(&live));
        Some((live, true))
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Live>> {
        self.table.lock().get(id).cloned()
    }

    pub(crate) fn remove(&self, id: &str) {
        self.table.lock().remove(id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Live>> {
        self.table.lock().values().cloned().collect()
    }

    /// Says that a record may be left; see [`Running::take_left`].
    pub(crate) fn left_one(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Whether a record may be left that nobody answers for; asked once each time.
    pub(crate) fn take_left(&self) -> bool {
        self.left.swap(false, Ordering::AcqRel)
    }
}

/// See the module.
pub(crate) struct Live {
    pub(crate) id: String,
    record: Mutex<ReplayRecord>,
    listeners: Mutex<Vec<mpsc::Sender<ReplayEvent>>>,
    admission: watch::Sender<Admission>,
    /// What the record says isn't durable yet.
    pub(crate) unsaved: AtomicBool,
    /// Set once the caller has its answer: observed with `keep`, or final.
    answered: watch::Sender<bool>,
    pub(crate) leases: Leases,
    /// Changes of leases that go on although the policy call that asked for them was cut off.
    pub(crate) tasks: TaskTracker,
    /// Nobody knows whether a lease was taken: the ledger's rows must be asked.
    pub(crate) uncertain: AtomicBool,
    /// What the host knows about the last thing that failed, in more words than the interface has.
    note: Mutex<Option<String>>,
    /// Held while a verdict is carried out: the second of two finds it done.
    pub(crate) settling: tokio::sync::Mutex<()>,
}

impl Live {
    pub(crate) fn new(record: ReplayRecord) -> Self {
        Self {
            id: record.id.clone(),
            record: Mutex::new(record),
            listeners: Mutex::new(Vec::new()),
            admission: watch::Sender::new(Admission::Pending),
            unsaved: AtomicBool::new(false),
            answered: watch::Sender::new(false),
            leases: Leases::default(),
            tasks: TaskTracker::new(),
            uncertain: AtomicBool::new(false),
            note: Mutex::new(None),
            settling: tokio::sync::Mutex::new(()),
        }
    }

    /// The record as it is now.
    pub(crate) fn record(&self) -> ReplayRecord {
        self.record.lock().clone()
    }

    /// Changes the record.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut ReplayRecord) -> T) -> T {
        change(&mut self.record.lock())
    }

    /// Keeps what the host knows about a failure.
    pub(crate) fn note(&self, what: String) {
        *self.note.lock() = Some(what);
    }

    /// See [`Live::note`].
    pub(crate) fn noted(&self) -> Option<String> {
        self.note.lock().clone()
    }

    /// Waits until no change of a lease is under way.
    pub(crate) async fn quiet(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    /// Enters a state, once: a state that is there already isn't entered again, and nothing leaves a final one.
    pub(crate) fn enter(&self, state: ReplayState, until: u64, note: Option<String>) {
        let entry = {
            let mut record = self.record.lock();
            if record.state == state || is_final(record.state) {
                return;
            }
            let entry = HistoryEntry { at: now_ms(), state, note };
            record.state = state;
            record.state_until = until;
            record.history.push(entry.clone());
            entry
        };
        tracing::info!(replay = %self.id, state = state.as_str(), note = entry.note.as_deref(), "replay");
        self.tell(&ReplayEvent::State(entry));
    }

    /// Tells everyone who listens; nobody is waited for.
    pub(crate) fn tell(&self, event: &ReplayEvent) {
        self.listeners.lock().retain(|listener| match listener.try_send(event.clone()) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }

    /// Listens from here on, and hears what happened so far.
    pub(crate) fn listen(&self) -> mpsc::Receiver<ReplayEvent> {
        let (sender, receiver) = mpsc::channel(EVENTS);
        // Held together: no event is lost or heard twice.
        let mut listeners = self.listeners.lock();
        for entry in self.record.lock().history.clone() {
            let _ = sender.try_send(ReplayEvent::State(entry));
        }
        listeners.push(sender);
        receiver
    }

    /// What is known of the record by now.
    pub(crate) fn admission(&self) -> Admission {
        self.admission.borrow().clone()
    }

    /// Says what is known of the record; the first word counts.
    pub(crate) fn admit(&self, admission: Admission) {
        self.admission.send_if_modified(|known| {
            let first = matches!(known, Admission::Pending);
            if first {
                *known = admission;
            }
            first
        });
    }

    /// Waits until it is known.
    pub(crate) async fn admitted(&self) -> Admission {
        let mut admission = self.admission.subscribe();
        match admission.wait_for(|admission| !matches!(admission, Admission::Pending)).await {
            Ok(admission) => admission.clone(),
            // The sender is in `self`.
            Err(_) => Admission::Failed(ApiError::internal()),
        }
    }

    /// Lets everyone who waits for the answer go.
    pub(crate) fn answer(&self) {
        self.answered.send_replace(true);
        self.listeners.lock().clear();
    }

    /// Waits for the answer.
    pub(crate) async fn answered(&self) {
        // An error means that the sender is gone, and it is in `self`.
        let _ = self.answered.subscribe().wait_for(|done| *done).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::PolicyTags;

    fn live() -> Live {
        Live::new(ReplayRecord {
            id: "r".into(),
            owner: "o".into(),
            instance: "i".into(),
            profile: "p".into(),
            run_id: "run".into(),
            attempt_id: "1".into(),
            cut_sha: "0".repeat(40),
            baseline_sha: None,
            files: vec!["a.sh".into()],
            keep: false,
            deadline_at: 0,
            state: ReplayState::Acquiring,
            state_until: 0,
            reason: None,
            detail: None,
            observed: false,
            passed: false,
            results: Vec::new(),
            evidence: None,
            lease: None,
            isolation: None,
            policies: PolicyTags::default(),
            history: vec![HistoryEntry { at: 1, state: ReplayState::Acquiring, note: None }],
        })
    }

    #[tokio::test]
    async fn a_late_listener_hears_what_happened_before() {
        let live = live();
        live.enter(ReplayState::Leased, 0, Some("w".into()));
        let mut events = live.listen();
        live.enter(ReplayState::Executing, 0, None);
        let mut states = Vec::new();
        while let Ok(ReplayEvent::State(entry)) = events.try_recv() {
            states.push(entry.state);
        }
        assert_eq!(states, [ReplayState::Acquiring, ReplayState::Leased, ReplayState::Executing]);
    }

    #[test]
    fn nothing_leaves_a_final_state() {
        for last in [ReplayState::Finalized, ReplayState::Quarantined, ReplayState::Fallback] {
            let live = live();
            live.enter(last, 0, None);
            live.enter(ReplayState::Executing, 0, None);
            assert_eq!(live.record().state, last);
            assert_eq!(live.record().history.len(), 2);
        }
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_holds_nobody_up_and_hears_the_answer() {
        let live = live();
        let mut events = live.listen();
        for number in 0..EVENTS * 2 {
            let text = number.to_string();
            let stream = warmhold_control::api::OutputStream::Stdout;
            live.tell(&ReplayEvent::Output { file: "a.sh".into(), stream, text });
        }
        live.answer();
        live.answered().await;
        let mut heard = 0;
        while events.recv().await.is_some() {
            heard += 1;
        }
        assert_eq!(heard, EVENTS);
    }
}
