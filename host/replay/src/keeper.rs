//! Profiles that want workers standing without being asked.
//!
//! A look every few seconds: as long as a profile has fewer workers for its source's HEAD than it wants standing, one is
//! prepared. Nothing that works is taken away for it: slots that hold another commit's workers stay theirs until those
//! are used up, expired or removed.

use crate::git::Git;
use crate::record::{WORKERS, WorkerRecord, WorkerState};
use crate::standing::{Facts, Standing};
use std::collections::HashSet;
use std::time::Duration;
use warmhold_control::api::{PrepareAsk, Workers as _};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// After a preparation that failed: whatever it is, it hardly mends itself at once.
const BACK_OFF: Duration = Duration::from_secs(60);

/// Keeps what each profile wants standing, until it is dropped; a preparation that it is in the middle of is settled by
/// the next start.
pub async fn keep_standing(standing: Standing) {
    let services = standing.services();
    let wanting: Vec<String> =
        services.profiles.iter().filter(|(_, profile)| profile.standing > 0).map(|(name, _)| name.clone()).collect();
    while !wanting.is_empty() {
        let mut pause = LOOK;
        for name in &wanting {
            match top_up(&standing, name).await {
                Ok(()) => {}
                Err(why) => {
                    tracing::warn!(profile = %name, %why, "fewer workers stand than are wanted");
                    pause = BACK_OFF;
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Prepares what a profile lacks.
async fn top_up(standing: &Standing, name: &str) -> Result<(), String> {
    let services = standing.services();
    let Some((profile, _)) = services.profile(Some(name)) else { return Ok(()) };
    let head = Git::new(&profile.source).commit("HEAD").await.map_err(|error| error.to_string())?;
    let usable: HashSet<String> = services
        .worker_rows(Some(services.machine.clone()))
        .await?
        .into_iter()
        .filter(|row| match Facts::of(row).state.as_str() {
            "idle" => !row.expired(crate::live::now_ms()),
            "leased" | "sanitizing" => true,
            _ => false,
        })
        .map(|row| row.name)
        .collect();
    let standing_now = services
        .records::<WorkerRecord>(WORKERS)
        .await?
        .iter()
        .filter(|worker| worker.profile == name && worker.spec.cut_sha == head && worker.state != WorkerState::Retired)
        .filter(|worker| worker.state == WorkerState::Preparing || usable.contains(&worker.worker_id))
        .count();
    let lacking = profile.standing.saturating_sub(u32::try_from(standing_now).unwrap_or(u32::MAX));
    if lacking == 0 {
        return Ok(());
    }
    let ask = PrepareAsk { profile: Some(name.to_owned()), cut: Some(head), count: Some(lacking) };
    let prepared = standing.prepare(ask).await.map_err(|error| error.message)?;
    match prepared.into_iter().find(|worker| !worker.prepared) {
        Some(failed) => Err(failed.reason.unwrap_or_default()),
        None => Ok(()),
    }
}
