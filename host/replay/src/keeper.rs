//! Profiles that want workers standing without being asked.
//!
//! A look every few seconds: as long as a profile has fewer workers for its source's HEAD than it wants standing, the
//! missing ones are prepared, as `worker prepare` would.

use crate::standing::Standing;
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

/// Prepares what a profile lacks: asking for so many makes no more than are missing.
async fn top_up(standing: &Standing, name: &str) -> Result<(), String> {
    let Some((profile, _)) = standing.services().profile(Some(name)) else { return Ok(()) };
    let ask = PrepareAsk { profile: Some(name.to_owned()), cut: None, count: Some(profile.standing) };
    let prepared = standing.prepare(ask).await.map_err(|error| error.message)?;
    match prepared.into_iter().find(|worker| !worker.prepared) {
        Some(failed) => Err(failed.reason.unwrap_or_default()),
        None => Ok(()),
    }
}
