//! What the kernel says of a process.

use anyhow::{Context as _, Result};
use std::time::Duration;

/// The processor time of a process, all its threads, in user and kernel mode.
pub(super) fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    // The name before it may hold blanks and brackets. Then: state, and eleven fields before user and system time.
    let (_, fields) = text.rsplit_once(')').with_context(|| path.clone())?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// The processor time of this process.
pub(super) fn own_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The memory that a process holds, bytes.
pub(super) fn memory(pid: u32) -> Result<u64> {
    status(pid, "VmRSS:")
}

/// The most memory that a process has held since [`forget_peak`], bytes.
pub(super) fn peak_memory(pid: u32) -> Result<u64> {
    status(pid, "VmHWM:")
}

/// Begins the peak anew.
pub(super) fn forget_peak(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    std::fs::write(&path, "5").with_context(|| path)
}

fn status(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| path.clone())?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
