//! Waiting for what a test can only look at.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Far more than anything here takes on a busy machine: a test that runs into it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until there is something.
///
/// # Errors
/// A look fails, or a minute was not enough.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if began.elapsed() > PATIENCE {
            bail!("waited {} s in vain: {what}", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
