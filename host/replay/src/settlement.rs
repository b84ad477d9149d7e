//! What a dead daemon left: settled by whoever lives on the same root, at its start and while it runs.
//!
//! Only what a record names is touched. A lease that a client took over the routes is the client's, whatever happens to
//! the daemon that served it.

use crate::instance::{self, dead_instances};
use crate::live::now_ms;
use crate::record::{REPLAYS, ReplayRecord, WORKERS, WorkerRecord, WorkerState, is_final};
use crate::services::Services;
use crate::standing::{Facts, abandon};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use warmhold_control::api::{HistoryEntry, ReplayState};
use warmhold_ledger::{Expect, Meant};

/// How often a living daemon looks whether another one died.
const EVERY: Duration = Duration::from_secs(1);

/// Settles everything of daemons that are dead now. A daemon calls it before it serves.
///
/// # Errors
/// What couldn't be settled; it is tried again by [`watch`].
pub async fn settle_dead(services: &Arc<Services>) -> Result<(), String> {
    let mut lives: HashSet<String> = HashSet::new();
    let mut dead: HashSet<String> = HashSet::new();
    let mut faults = Vec::new();
    let mut is_dead = |id: &str| {
        if lives.contains(id) {
            return false;
        }
        if dead.contains(id) || !instance::is_alive(&services.root, id) {
            dead.insert(id.to_owned());
            return true;
        }
        lives.insert(id.to_owned());
        false
    };
    let seen = dead_instances(&services.root);
    let mine = services.instance.id();
    for replay in services.records::<ReplayRecord>(REPLAYS).await? {
        let left = if replay.instance == mine {
            // Written, though its write seemed to fail: nobody drives it.
            services.running.get(&replay.id).is_none()
        } else {
            is_dead(&replay.instance)
        };
        if !is_final(replay.state)
            && left
            && let Err(error) = settle_replay(services, replay).await
        {
            faults.push(error);
        }
    }
    for worker in services.records::<WorkerRecord>(WORKERS).await? {
        if worker.state == WorkerState::Preparing
            && worker.instance != mine
            && is_dead(&worker.instance)
            && let Err(error) = settle_preparation(services, &worker).await
        {
            faults.push(format!("worker {}: {error}", worker.worker_id));
        }
    }
    if !faults.is_empty() {
        return Err(faults.join("; "));
    }
    // Only now: as long as something is left, the file says that its owner is dead.
    for id in seen {
        instance::forget(&services.root, &id);
    }
    Ok(())
}

/// Looks for other daemons' deaths until it is told to stop.
pub async fn watch(services: Arc<Services>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        let left = services.running.take_left();
        if !left && dead_instances(&services.root).is_empty() {
            continue;
        }
        if let Err(error) = settle_dead(&services).await {
            if left {
                services.running.left_one();
            }
            tracing::warn!(%error, "what a dead daemon left isn't settled yet");
        }
    }
}

/// Quarantines every worker that is leased for this replay, as the ledger's rows tell, but for leases that somebody still
/// answers for. The workers' ids.
pub(crate) async fn quarantine_by_run(
    services: &Services,
    replay: &ReplayRecord,
    answered_for: &HashSet<String>,
    reason: &str,
) -> Result<Vec<String>, String> {
    let mut taken = Vec::new();
    for row in services.worker_rows(None).await? {
        let facts = Facts::of(&row);
        let by_lease = replay.lease.as_ref().is_some_and(|lease| facts.lease_id.as_ref() == Some(&lease.lease_id));
        let by_run = facts.run_id.as_ref() == Some(&replay.run_id)
            && facts.attempt_id.as_ref() == Some(&replay.attempt_id)
            && facts.lease_owner.as_ref() == Some(&replay.owner);
        let left = !facts.lease_id.as_ref().is_some_and(|lease| answered_for.contains(lease));
        if (by_lease || by_run) && left && matches!(facts.state.as_str(), "leased" | "sanitizing") {
            let meant = facts.lease_id.clone().map_or(Meant::Any, Meant::Lease);
            services.quarantine_worker(&row.name, reason, meant).await.map_err(|error| error.to_string())?;
            tracing::warn!(replay = %replay.id, worker = %row.name, reason, "quarantined");
            taken.push(row.name);
        }
    }
    Ok(taken)
}

async fn settle_replay(services: &Arc<Services>, replay: ReplayRecord) -> Result<(), String> {
    let taken = quarantine_by_run(services, &replay, &HashSet::new(), "daemon-died").await?;
    let held = replay.lease.is_some() || !taken.is_empty();
    let state = if held { ReplayState::Quarantined } else { ReplayState::Fallback };
    // Its record may not have known yet which worker it had.
    let note = match taken.as_slice() {
        [] => "the daemon that drove it died".to_owned(),
        taken => format!("the daemon that drove it died; quarantined: {}", taken.join(", ")),
    };
    let mut settled = replay;
    settled.state = state;
    settled.reason = Some("daemon-died".to_owned());
    settled.detail = Some(note.clone());
    settled.history.push(HistoryEntry { at: now_ms(), state, note: Some(note) });
    let body = serde_json::to_value(&settled).unwrap_or_default();
    services
        .ledger
        .put_record(REPLAYS, &settled.id, Expect::Any, body)
        .await
        .map(drop)
        .map_err(|error| format!("replay {}: {error}", settled.id))
}

async fn settle_preparation(services: &Arc<Services>, worker: &WorkerRecord) -> Result<(), String> {
    if worker.machine != services.machine {
        return Ok(());
    }
    // Registered just before its daemon died: it stands, and only its record doesn't say so yet.
    let row_id = format!("pod-worker-lease:{}", worker.worker_id);
    if let Some(row) = services.read(move |ledger| ledger.row(&row_id)).await?
        && Facts::of(&row).state != "quarantined"
    {
        let standing = WorkerRecord { state: WorkerState::Standing, ..worker.clone() };
        return services.save_worker(&standing).await.map_err(|error| error.to_string());
    }
    match services.profile(Some(&worker.profile)) {
        Some((_, backend)) => abandon(services, &backend, worker).await,
        None => Err(format!("its profile {} is gone", worker.profile)),
    }
}
