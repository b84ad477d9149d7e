//! The life of one replay: driven by the policy, ended by the host.

use crate::lease::{Lease, Proof, Stage};
use crate::live::{Live, now_ms};
use crate::policy_host::PolicyHost;
use crate::record::{ReplayRecord, WorkerRecord};
use crate::service::candidates;
use crate::services::{Services, short};
use crate::session::{Purpose, Session};
use crate::settlement::quarantine_by_run;
use crate::view::file_view;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use warmhold_control::ApiError;
use warmhold_control::api::{ReplayEvent, ReplayState, Settle};
use warmhold_ledger::Caller;
use warmhold_plugin::{LeaseHandle, ReplayInput, ReplayOutcome};

/// What a policy may take beyond the replay's own deadline, to settle what it holds.
const AFTERWARDS: Duration = Duration::from_secs(45);
/// A write that fails is tried again for as long as this: the leases themselves are settled either way.
const SAVE_AGAIN: Duration = Duration::from_millis(500);
const SAVE_TRIES: u32 = 20;

fn session(services: &Arc<Services>, live: &Arc<Live>, caller: &Caller, workers: Vec<WorkerRecord>) -> Option<Session> {
    let (profile, backend) = services.profile(Some(&live.record().profile))?;
    Some(Session {
        services: Arc::clone(services),
        caller: caller.clone(),
        profile,
        backend,
        workers,
        purpose: Purpose::Replay(Arc::clone(live)),
    })
}

/// Drives a replay to its answer, and on to its end when nobody else is to settle it. When it returns, nothing of the
/// replay is owed any more.
pub(crate) async fn drive(services: &Arc<Services>, live: &Arc<Live>, caller: &Caller, cut_short: &CancellationToken) {
    let driven = tokio::select! {
        driven = request(services, live, caller) => driven,
        () = cut_short.cancelled() => Err(("daemon-stopped", "the daemon was told to stop".to_owned())),
    };
    let held = match driven {
        Ok(held) => held,
        Err((reason, detail)) => {
            settle_left(services, live, None, reason).await;
            return fall_back(services, live, reason, Some(detail)).await;
        }
    };
    settle_left(services, live, Some(held), "lease-dropped").await;
    let ends = match live.leases.get(held) {
        Some(lease) => lease.inner.lock().await.ends,
        None => Instant::now(),
    };
    let left = u64::try_from(ends.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX);
    live.enter(ReplayState::Observed, now_ms().saturating_add(left), None);
    save(services, live).await;
    if live.record().keep {
        live.answer();
        let settled = async {
            loop {
                if crate::record::is_final(live.record().state) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let reason = tokio::select! {
            () = settled => return,
            () = tokio::time::sleep_until(ends.into()) => "not-settled",
            () = cut_short.cancelled() => "daemon-stopped",
        };
        let _settling = live.settling.lock().await;
        if !crate::record::is_final(live.record().state) {
            settle_left(services, live, None, reason).await;
            quarantined(services, live, reason, None).await;
        }
        return;
    }
    let settled = tokio::select! {
        settled = settle(services, live, caller, Settle::Finalize) => settled.err().map(|error| error.message),
        () = cut_short.cancelled() => Some("the daemon was told to stop".to_owned()),
    };
    if let Some(why) = settled {
        tracing::warn!(replay = %live.id, %why, "a replay wasn't finalized");
        let _settling = live.settling.lock().await;
        if !crate::record::is_final(live.record().state) {
            settle_left(services, live, None, "not-finalized").await;
            quarantined(services, live, "not-finalized", Some(why)).await;
        }
    }
}

/// Asks the policy. The handle of the lease that stays fenced, or why there's none.
async fn request(services: &Arc<Services>, live: &Arc<Live>, caller: &Caller) -> Result<u64, (&'static str, String)> {
    let record = live.record();
    let workers = candidates(services, &record.profile).await.map_err(|error| ("lease-unavailable", error))?;
    if !workers.iter().any(|worker| worker.spec.cut_sha == record.cut_sha) {
        let why = format!("no worker of profile {} is prepared for cut {}", record.profile, record.cut_sha);
        return Err(("no-candidate", why));
    }
    let offered: Vec<_> = workers.iter().map(WorkerRecord::to_wit).collect();
    let Some(session) = session(services, live, caller, workers) else {
        return Err(("no-candidate", format!("there is no profile {}", record.profile)));
    };
    let input = ReplayInput {
        protocol: warmhold_protocol::PROTOCOL,
        run_id: record.run_id.clone(),
        attempt_id: record.attempt_id.clone(),
        cut_sha: record.cut_sha.clone(),
        baseline_sha: record.baseline_sha.clone(),
        env_profile: warmhold_protocol::ENV_PROFILE.to_owned(),
        deadline_at: record.deadline_at,
        files: record.files.clone(),
    };
    let left = Duration::from_millis(record.deadline_at.saturating_sub(now_ms()));
    let call = services.replay.request(Arc::new(PolicyHost::new(session)), Arc::default(), &input, &offered);
    let end = tokio::time::timeout(left + AFTERWARDS, call)
        .await
        .map_err(|_| ("policy-failed", "the replay policy gave no answer in time".to_owned()))?;
    live.change(|record| record.policies.replay = Some(end.policy.to_string()));
    match end.outcome {
        Err(fault) => Err(("policy-failed", fault.to_string())),
        Ok(ReplayOutcome::Failed(why)) => Err(("policy-failed", why)),
        Ok(ReplayOutcome::Fallback(fallback)) => {
            let reason = known_reason(&fallback.reason);
            let said = fallback.detail.or(fallback.evidence).unwrap_or(fallback.reason);
            Err((reason, live.noted().map_or_else(|| said.clone(), |note| format!("{said}: {note}"))))
        }
        Ok(ReplayOutcome::Observed { held: LeaseHandle(handle), evidence }) => {
            let lease = live.leases.get(handle).ok_or(("invalid-result", "the policy holds no lease".to_owned()))?;
            observed(live, &lease, &evidence).await?;
            Ok(handle)
        }
    }
}

/// What the policy says was observed, held against what the host saw.
async fn observed(live: &Live, lease: &Lease, evidence: &str) -> Result<(), (&'static str, String)> {
    let state = lease.inner.lock().await;
    if state.stage != Stage::Fenced {
        return Err(("invalid-result", "the observed lease isn't held any more".to_owned()));
    }
    if matches!(state.proof, Proof::NothingRan | Proof::Unknown) {
        return Err(("invalid-result", "no verdict of a worker stands behind this observation".to_owned()));
    }
    let missing = live.change(|record| {
        order_results(record);
        record.files.iter().find(|file| !record.results.iter().any(|result| &result.file == *file)).cloned()
    });
    if let Some(file) = missing {
        return Err(("invalid-result", format!("{file} has no result")));
    }
    live.change(|record| {
        record.observed = true;
        record.passed = record
            .results
            .iter()
            .all(|result| result.exit == Some(0) && result.signal.is_none() && result.reason.is_none());
        record.evidence = serde_json::from_str(evidence).ok();
    });
    for result in live.record().results {
        live.tell(&ReplayEvent::File(file_view(&result)));
    }
    Ok(())
}

/// In the order that was asked for, each once: the last of several results of a file counts.
fn order_results(record: &mut ReplayRecord) {
    let results = std::mem::take(&mut record.results);
    for file in &record.files {
        if let Some(result) = results.iter().rev().find(|result| &result.file == file) {
            record.results.push(result.clone());
        }
    }
}

/// Reasons are a closed set: a policy of a team's own may say what it likes in the detail.
fn known_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "key-drift",
        "pod-unready",
        "pod-replaced",
        "exec-failed",
        "invalid-result",
        "worker-quarantined",
        "no-candidate",
        "lease-unavailable",
        "context-unavailable",
    ];
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("policy-declined")
}

/// Carries out the verdict on an observed replay.
///
/// # Errors
/// It wasn't carried out as asked: the worker is quarantined then, or the ledger gave no answer.
pub(crate) async fn settle(
    services: &Arc<Services>,
    live: &Arc<Live>,
    caller: &Caller,
    verdict: Settle,
) -> Result<(), ApiError> {
    let _settling = live.settling.lock().await;
    let record = live.record();
    if record.state != ReplayState::Observed {
        return Err(ApiError::conflict("not-observed", format!("the replay is {}", record.state.as_str())));
    }
    let Some((handle, lease)) = held_lease(live).await else {
        return Err(ApiError::conflict("not-observed", "the replay holds no lease any more"));
    };
    let workers = candidates(services, &record.profile).await.map_err(|error| crate::standing::unreadable(&error))?;
    let worker = workers.iter().find(|worker| worker.worker_id == lease.facts.worker_id).map(WorkerRecord::to_wit);
    let failure = match (worker, session(services, live, caller, workers)) {
        (Some(of), Some(session)) => {
            let host = Arc::new(PolicyHost::new(session));
            let call = async {
                let (leases, held) = (Arc::default(), LeaseHandle(handle));
                match &verdict {
                    Settle::Finalize => services.replay.finalize(host, leases, held, &of).await,
                    Settle::Quarantine { reason } => {
                        services.replay.quarantine(host, leases, held, &of, &short(reason)).await
                    }
                }
            };
            match tokio::time::timeout(AFTERWARDS, call).await {
                Ok(end) => match end.outcome {
                    Ok(Ok(())) => None,
                    Ok(Err(why)) => Some(why),
                    Err(fault) => Some(format!("the replay policy failed: {fault}")),
                },
                Err(_) => Some("the replay policy gave no answer in time".to_owned()),
            }
        }
        _ => Some(format!("worker {} isn't one of this daemon's any more", lease.facts.worker_id)),
    };
    let given = match &verdict {
        Settle::Quarantine { reason } => short(reason),
        Settle::Finalize => "sanitize-unavailable".to_owned(),
    };
    // Whatever the policy said: what it left is settled by the host.
    settle_left(services, live, None, &given).await;
    if lease.inner.lock().await.stage == Stage::Sanitized {
        live.enter(ReplayState::Finalized, 0, failure);
        save(services, live).await;
        return Ok(());
    }
    let out = lease.inner.lock().await.stage == Stage::Quarantined;
    quarantined(services, live, &given, failure.clone()).await;
    if !out {
        return Err(ApiError::unavailable(
            "quarantine-pending",
            "the worker isn't given back; it is quarantined as soon as the ledger can be written",
        ));
    }
    match verdict {
        Settle::Quarantine { .. } => Ok(()),
        Settle::Finalize => Err(ApiError::conflict(
            "sanitize-unavailable",
            format!("the worker is quarantined: {}", failure.unwrap_or_else(|| "it isn't proven clean".to_owned())),
        )
        .with_help("the replay's result stands; fill the slot again with `warmhold worker prepare`")),
    }
}

/// The lease that an observed replay holds.
async fn held_lease(live: &Live) -> Option<(u64, Arc<Lease>)> {
    for (handle, lease) in live.leases.all() {
        if !lease.inner.lock().await.stage.settled() {
            return Some((handle, lease));
        }
    }
    None
}

/// Settles every lease that is owed, but the one that stays held. One that was given back before anything ran in it is
/// cleaned by its owner: by this machine if the worker is its own, else by the other one.
async fn settle_left(services: &Arc<Services>, live: &Arc<Live>, but: Option<u64>, reason: &str) {
    live.quiet().await;
    for (handle, lease) in live.leases.all() {
        if Some(handle) == but {
            continue;
        }
        let (stage, proof) = {
            let state = lease.inner.lock().await;
            (state.stage, state.proof.clone())
        };
        if stage == Stage::Released && proof == Proof::NothingRan {
            let mine = lease.facts.machine == services.machine;
            if !mine || services.sanitize_unused(&lease).await.is_ok() {
                continue;
            }
        }
        services.settle_left_lease(&lease, reason).await;
    }
    if live.uncertain.load(Ordering::Acquire) {
        settle_unknown(services, live, reason).await;
    }
}

/// A write of which nobody knows whether it was kept may have leased a worker: the rows are asked until they answer.
async fn settle_unknown(services: &Arc<Services>, live: &Arc<Live>, reason: &str) {
    let answered_for = live.leases.all().into_iter().map(|(_, lease)| lease.facts.lease_id.clone()).collect();
    let (services, live, reason) = (Arc::clone(services), Arc::clone(live), reason.to_owned());
    let tracker = services.tasks.clone();
    tracker.spawn(async move {
        while let Err(error) = quarantine_by_run(&services, &live.record(), &answered_for, &reason).await {
            tracing::warn!(replay = %live.id, %error, "whether a worker was leased isn't known yet");
            tokio::time::sleep(SAVE_AGAIN).await;
        }
        live.uncertain.store(false, Ordering::Release);
    });
}

/// Ends a replay without a verdict.
pub(crate) async fn fall_back(services: &Arc<Services>, live: &Arc<Live>, reason: &str, detail: Option<String>) {
    live.change(|record| {
        record.reason = Some(reason.to_owned());
        record.detail.clone_from(&detail);
    });
    let mut out = None;
    for (_, lease) in live.leases.all() {
        if lease.inner.lock().await.stage == Stage::Quarantined {
            out = Some(format!("{reason}: worker {} is quarantined", lease.facts.worker_id));
        }
    }
    live.enter(ReplayState::Fallback, 0, out.or_else(|| Some(reason.to_owned())));
    save(services, live).await;
}

async fn quarantined(services: &Arc<Services>, live: &Arc<Live>, reason: &str, detail: Option<String>) {
    live.change(|record| {
        record.reason = Some(reason.to_owned());
        record.detail.clone_from(&detail);
    });
    live.enter(ReplayState::Quarantined, 0, Some(reason.to_owned()));
    save(services, live).await;
}

/// Makes the record durable. The answer waits for it, but not for ever: what can't be written now is written by
/// [`save_until_kept`].
async fn save(services: &Arc<Services>, live: &Live) {
    live.unsaved.store(true, Ordering::Release);
    for _ in 0..SAVE_TRIES {
        match services.save_replay(live).await {
            Ok(()) => return live.unsaved.store(false, Ordering::Release),
            Err(error) => tracing::warn!(replay = %live.id, %error, "a replay's record wasn't written"),
        }
        tokio::time::sleep(SAVE_AGAIN).await;
    }
}

/// Goes on writing a record that couldn't be written, for as long as the daemon lives.
pub(crate) async fn save_until_kept(services: &Arc<Services>, live: &Live, cut_short: &CancellationToken) {
    while live.unsaved.load(Ordering::Acquire) {
        match services.save_replay(live).await {
            Ok(()) => live.unsaved.store(false, Ordering::Release),
            Err(error) => tracing::warn!(replay = %live.id, %error, "a replay's record isn't written yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(SAVE_AGAIN) => {}
            () = cut_short.cancelled() => return,
        }
    }
}
