//! Replays as callers ask for them: accepted once, driven in a task of their own, remembered.

use crate::git::{Found, Git, GitError};
use crate::live::{Admission, Live, now_ms};
use crate::record::{PolicyTags, REPLAYS, ReplayRecord, WORKERS, WorkerRecord, WorkerState, is_final};
use crate::run;
use crate::services::Services;
use crate::standing::unreadable;
use crate::view::view;
use async_trait::async_trait;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use warmhold_control::ApiError;
use warmhold_control::api::{HistoryEntry, ReplayAsk, ReplayRun, ReplayState, ReplayView, Replays, Settle};
use warmhold_ledger::{ApplyError, Caller, Expect};

/// Without a deadline of the caller's own.
const DEADLINE: Duration = Duration::from_secs(120);
/// The longest deadline: a lease must outlive it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Replays that run at once; more would wait on each other's pods.
const MAX_RUNNING: usize = 256;
/// Files of one replay.
pub(crate) const MAX_FILES: usize = 1000;
/// How often another daemon's replay is looked at for its end.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long running replays may go on after the daemon was told to stop.
const DRAIN: Duration = Duration::from_secs(8);

/// Runs replays and remembers them. Clones are one driver.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
}

struct Shared {
    services: Arc<Services>,
    stopping: CancellationToken,
    /// Fires when running replays must end now.
    cut_short: CancellationToken,
    /// Files that were seen at their commits.
    found: Found,
}

impl Driver {
    /// For these services.
    #[must_use]
    pub fn new(services: Arc<Services>) -> Self {
        let shared = Shared {
            services,
            stopping: CancellationToken::new(),
            cut_short: CancellationToken::new(),
            found: Found::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes no more replays, gives those that run 8 s, then quarantines what they hold.
    pub async fn stop(&self) {
        let shared = &self.shared;
        shared.stopping.cancel();
        shared.services.tasks.close();
        // Kept observations wait for a caller who will find no daemon: they are cut short at once.
        if tokio::time::timeout(DRAIN, shared.idle()).await.is_err() {
            tracing::warn!("replays still run; what they hold is quarantined");
        }
        shared.cut_short.cancel();
        if tokio::time::timeout(DRAIN, shared.services.tasks.wait()).await.is_err() {
            // A ledger that can't be written: the next start settles what is left.
            tracing::warn!("not everything could be settled before the end");
        }
    }
}

/// A replay in the table of running ones: it leaves however its task ends.
struct Entry {
    services: Arc<Services>,
    live: Arc<Live>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.services.running.remove(&self.live.id);
        // Only a task that failed leaves anybody waiting here.
        self.live.admit(Admission::Failed(ApiError::internal()));
        self.live.answer();
    }
}

impl Shared {
    /// Waits until nothing executes.
    async fn idle(&self) {
        loop {
            // An observation that waits for its caller isn't waited for; one that the daemon settles itself is.
            let quiet = self.services.running.all().iter().all(|live| {
                let record = live.record();
                is_final(record.state) || (record.keep && record.state == ReplayState::Observed)
            });
            if quiet {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// A replay that this daemon runs and whose record is kept.
    fn find(&self, id: &str) -> Option<Arc<Live>> {
        self.services.running.get(id).filter(|live| matches!(live.admission(), Admission::Kept))
    }

    /// One replay, from its record to its end: a task of its own, which no client's going away cancels.
    async fn live_through(self: Arc<Self>, live: Arc<Live>, caller: Caller) {
        let entry = Entry { services: Arc::clone(&self.services), live: Arc::clone(&live) };
        let record = live.record();
        let body = serde_json::to_value(&record).unwrap_or_default();
        let (saved, refusal) = tokio::join!(
            self.services.ledger.put_record(REPLAYS, &record.id, Expect::Absent, body),
            self.refusal(&record)
        );
        match saved {
            Ok(_) => live.admit(Admission::Kept),
            Err(ApplyError::Conflict { .. }) => return live.admit(Admission::Elsewhere),
            Err(error) => {
                if matches!(error, ApplyError::Uncertain(_)) {
                    self.services.running.left_one();
                }
                return live.admit(Admission::Failed(apply_error(&error)));
            }
        }
        match refusal {
            None => run::drive(&self.services, &live, &caller, &self.cut_short).await,
            Some(why) => run::fall_back(&self.services, &live, "no-candidate", Some(why)).await,
        }
        live.answer();
        run::save_until_kept(&self.services, &live, &self.cut_short).await;
        drop(entry);
        let pruned = self.services.prune().await;
        if let Err(error) = pruned {
            tracing::warn!(%error, "old results can't be removed");
        }
    }

    async fn stored(&self, id: &str) -> Result<Option<ReplayRecord>, ApiError> {
        let id = id.to_owned();
        let record = self
            .services
            .read(move |ledger| ledger.get_record(REPLAYS, &id))
            .await
            .map_err(|error| unreadable(&error))?;
        record
            .map(|record| serde_json::from_value(record.body))
            .transpose()
            .map_err(|error| unreadable(&error.to_string()))
    }

    /// Answers with a replay that this daemon has in hand, once it is known what it is.
    async fn join(self: &Arc<Self>, live: &Arc<Live>, asked: &ReplayRecord) -> Result<ReplayRun, ApiError> {
        match live.admitted().await {
            Admission::Failed(error) => return Err(error),
            Admission::Elsewhere => {
                let Some(stored) = self.stored(&asked.id).await? else {
                    return Err(ApiError::unavailable("ledger-changed", "the replay's record changed; ask again"));
                };
                same_request(&stored, asked)?;
                return Ok(self.follow(stored));
            }
            Admission::Kept | Admission::Pending => {}
        }
        same_request(&live.record(), asked)?;
        let (sender, result) = oneshot::channel();
        let events = live.listen();
        let waiting = Arc::clone(live);
        tokio::spawn(async move {
            waiting.answered().await;
            let _ = sender.send(Ok(view(&waiting.record())));
        });
        Ok(ReplayRun { id: live.id.clone(), events, result })
    }

    /// Answers with a replay that is over, or that another daemon on this root runs.
    fn follow(self: &Arc<Self>, record: ReplayRecord) -> ReplayRun {
        let (sender, result) = oneshot::channel();
        let (_, events) = tokio::sync::mpsc::channel(1);
        let id = record.id.clone();
        let driver = Arc::clone(self);
        tokio::spawn(async move {
            let mut record = record;
            // Settled by whichever daemon lives, should its own die: this ends.
            let answered = |record: &ReplayRecord| {
                is_final(record.state) || (record.keep && record.state == ReplayState::Observed)
            };
            while !answered(&record) {
                tokio::select! {
                    () = driver.stopping.cancelled() => return,
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
                match driver.stored(&record.id).await {
                    Ok(Some(now)) => record = now,
                    Ok(None) => return,
                    Err(error) => {
                        let _ = sender.send(Err(error));
                        return;
                    }
                }
            }
            let _ = sender.send(Ok(view(&record)));
        });
        ReplayRun { id, events, result }
    }

    /// What is wrong with a request before anything is contacted.
    async fn refusal(&self, record: &ReplayRecord) -> Option<String> {
        if let Err(why) = crate::input::check(record, now_ms()) {
            return Some(why);
        }
        let source = self.services.profile(Some(&record.profile)).map(|(profile, _)| profile.source.clone())?;
        if self.found.has(&source, &record.cut_sha, &record.files) {
            return None;
        }
        let git = Git::new(source.clone());
        match git.blobs(&record.cut_sha, &record.files).await {
            Ok(blobs) => {
                let missing: Vec<&str> = record
                    .files
                    .iter()
                    .zip(blobs)
                    .filter(|(_, blob)| blob.is_none())
                    .map(|(file, _)| file.as_str())
                    .collect();
                if missing.is_empty() {
                    self.found.add(&source, &record.cut_sha, &record.files);
                    return None;
                }
                Some(match git.commit(&record.cut_sha).await {
                    Err(GitError::UnknownCommit { .. }) => format!("{} is no commit of {source}", record.cut_sha),
                    _ => format!("commit {} has no file {}", record.cut_sha, missing.join(", ")),
                })
            }
            // A source that can't be asked from here (another machine's) is judged in the pod.
            Err(error) => {
                tracing::debug!(%error, "the source can't be asked for the files");
                None
            }
        }
    }
}

#[async_trait]
impl Replays for Driver {
    async fn start(&self, caller: &Caller, ask: ReplayAsk) -> Result<ReplayRun, ApiError> {
        if self.shared.stopping.is_cancelled() {
            return Err(ApiError::unavailable("stopping", "this daemon is stopping").with_retry_after(5));
        }
        let record = new_record(&self.shared.services, caller, ask)?;
        let live = match self.shared.services.running.enter(&record, MAX_RUNNING) {
            None => {
                return Err(ApiError::unavailable("too-many-replays", format!("{MAX_RUNNING} replays run already"))
                    .with_retry_after(5));
            }
            Some((live, false)) => live,
            Some((live, true)) => {
                let task = Arc::clone(&self.shared).live_through(Arc::clone(&live), caller.clone());
                self.shared.services.tasks.spawn(task);
                live
            }
        };
        self.shared.join(&live, &record).await
    }

    async fn list(&self, before: Option<&str>, limit: usize) -> Result<Vec<ReplayView>, ApiError> {
        let mut all: Vec<ReplayRecord> =
            self.shared.services.records(REPLAYS).await.map_err(|error| unreadable(&error))?;
        for record in &mut all {
            if let Some(live) = self.shared.find(&record.id) {
                *record = live.record();
            }
        }
        let began = |record: &ReplayRecord| record.history.first().map_or(0, |entry| entry.at);
        all.sort_by(|a, b| began(b).cmp(&began(a)).then_with(|| b.id.cmp(&a.id)));
        let skip = before.and_then(|id| all.iter().position(|record| record.id == id)).map_or(0, |found| found + 1);
        Ok(all.iter().skip(skip).take(limit).map(view).collect())
    }

    async fn get(&self, id: &str) -> Result<Option<ReplayView>, ApiError> {
        if let Some(live) = self.shared.find(id) {
            return Ok(Some(view(&live.record())));
        }
        Ok(self.shared.stored(id).await?.as_ref().map(view))
    }

    async fn settle(&self, caller: &Caller, id: &str, verdict: Settle) -> Result<ReplayView, ApiError> {
        let live = self.shared.find(id);
        let record = match &live {
            Some(live) => live.record(),
            None => {
                self.shared.stored(id).await?.ok_or_else(|| ApiError::not_found(format!("there is no replay {id}")))?
            }
        };
        if record.owner != caller.owner {
            return Err(ApiError::forbidden("not-owner", "another member asked for this replay"));
        }
        if record.state != ReplayState::Observed {
            let state = record.state.as_str();
            return Err(ApiError::conflict("not-observed", format!("replay {id} is {state}"))
                .with_help("only a replay that was asked for with `keep` waits for a verdict"));
        }
        let Some(live) = live else {
            return Err(ApiError::conflict("another-daemon", format!("replay {id} is held by another daemon"))
                .with("instance", record.instance)
                .with_help("ask the daemon that runs it (the same --url as for the replay)"));
        };
        run::settle(&self.shared.services, &live, caller, verdict).await?;
        Ok(view(&live.record()))
    }
}

/// A record for what was asked.
fn new_record(services: &Services, caller: &Caller, ask: ReplayAsk) -> Result<ReplayRecord, ApiError> {
    let Some((profile, _)) = services.profile(ask.profile.as_deref()) else {
        let known: Vec<&str> = services.profiles.keys().map(String::as_str).collect();
        let named = ask.profile.map_or_else(
            || "several profiles are configured, and none is named".to_owned(),
            |name| format!("there is no profile {name:?}"),
        );
        return Err(ApiError::bad_request("unknown-profile", named)
            .with_help(format!("name one with --profile: {}", known.join(", "))));
    };
    let run_id = ask.run_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let attempt_id = ask.attempt_id.unwrap_or_else(|| "1".to_owned());
    for (name, value) in [("runId", &run_id), ("attemptId", &attempt_id)] {
        if value.trim().is_empty() || value.chars().count() > 200 || value.contains('\0') {
            return Err(ApiError::bad_request("invalid-replay", format!("{name} must be 1 to 200 characters")));
        }
    }
    let now = now_ms();
    let deadline = ask.deadline_ms.map_or(DEADLINE, Duration::from_millis).min(LONGEST).min(profile.ttl);
    let deadline_at = now.saturating_add(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    Ok(ReplayRecord {
        id: replay_id(&caller.owner, &run_id, &attempt_id),
        owner: caller.owner.clone(),
        instance: services.instance.id().to_owned(),
        profile: profile.name.clone(),
        run_id,
        attempt_id,
        cut_sha: ask.cut_sha,
        baseline_sha: ask.baseline_sha,
        files: ask.files,
        keep: ask.keep,
        deadline_at,
        state: ReplayState::Acquiring,
        state_until: deadline_at,
        reason: None,
        detail: None,
        observed: false,
        passed: false,
        results: Vec::new(),
        evidence: None,
        lease: None,
        isolation: None,
        policies: PolicyTags::default(),
        history: vec![HistoryEntry { at: now, state: ReplayState::Acquiring, note: None }],
    })
}

/// The same owner, run and attempt always make the same id: the ledger's own key refuses a second one.
fn replay_id(owner: &str, run_id: &str, attempt_id: &str) -> String {
    let hash = Sha256::digest(serde_json::json!([owner, run_id, attempt_id]).to_string().as_bytes());
    let hex = crate::key::hex(&hash);
    format!("r-{}", hex.chars().take(24).collect::<String>())
}

/// A run and attempt stand for one request.
fn same_request(known: &ReplayRecord, asked: &ReplayRecord) -> Result<(), ApiError> {
    let same = known.cut_sha == asked.cut_sha
        && known.files == asked.files
        && known.baseline_sha == asked.baseline_sha
        && known.profile == asked.profile;
    if same {
        return Ok(());
    }
    Err(ApiError::conflict(
        "run-attempt-used",
        format!("run {} attempt {} was another request: other files, or another cut", asked.run_id, asked.attempt_id),
    )
    .with_help("use a new attemptId for a new request"))
}

pub(crate) fn apply_error(error: &ApplyError) -> ApiError {
    let status = http::StatusCode::from_u16(error.status()).unwrap_or(http::StatusCode::SERVICE_UNAVAILABLE);
    ApiError::new(status, error.code().to_string(), error.to_string())
}

/// The workers that a replay's policy may choose among.
pub(crate) async fn candidates(services: &Services, profile: &str) -> Result<Vec<WorkerRecord>, String> {
    let mut all: Vec<WorkerRecord> = services.records(WORKERS).await?;
    all.retain(|worker| {
        worker.profile == profile
            && worker.machine == services.machine
            && worker.state != WorkerState::Retired
            && worker.container_id.is_some()
    });
    // The oldest first, as the ledger orders its rows.
    all.sort_by(|a, b| a.created_at.cmp(&b.created_at).then_with(|| a.worker_id.cmp(&b.worker_id)));
    Ok(all)
}
