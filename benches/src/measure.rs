//! Times, their order, and the tables that show them.

use anyhow::Result;
use std::fmt::Write as _;
use std::time::Duration;

/// Times of one thing that was done again and again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    /// One more.
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The time that `percent` of all don't exceed (nearest rank); zero when there are none.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// All together.
    pub(crate) fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    /// The middle one.
    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }
}

/// How many times `of` goes into `this`.
pub(crate) fn ratio(this: Duration, of: Duration) -> f64 {
    if of.is_zero() { f64::INFINITY } else { this.as_secs_f64() / of.as_secs_f64() }
}

/// A time, three digits.
pub(crate) fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    let (value, unit) = if micros < 1e3 { (micros, "µs") } else { (micros / 1e3, "ms") };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Bytes in MiB.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

/// Prints a heading, and rows whose first column is left and whose others are right.
pub(crate) fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    all.extend(rows.iter().cloned());
    let widths: Vec<usize> = (0..head.len())
        .map(|column| all.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0))
        .collect();
    println!("\n{title}");
    for row in all {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string can't fail.
            let _ = if column == 0 { write!(line, "  {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        println!("{}", line.trim_end());
    }
}

/// A sentence below a table.
pub(crate) fn note(text: &str) {
    println!("  {text}");
}

/// A target, and whether this run met it.
pub(crate) fn target(what: &str, met: bool) {
    println!("  {} {what}", if met { "met:" } else { "NOT MET:" });
}

/// Says what this ran on: a figure means little without it.
pub(crate) fn machine() {
    let first =
        |path: &str| std::fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().to_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = first("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    println!("{processors} processors, Linux {}, load {load} at the start", first("/proc/sys/kernel/osrelease"));
    if load.parse::<f64>().is_ok_and(|load| load > 0.5) {
        println!("something else runs on this machine: the high percentiles are its");
    }
    if cfg!(debug_assertions) {
        println!("a debug build: ./x bench builds for release");
    }
}

/// Runs one part with [`machine`] before it.
pub(crate) fn with_machine(part: fn() -> Result<()>) -> Result<()> {
    machine();
    part()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(millis: &[u64]) -> Times {
        Times(millis.iter().copied().map(Duration::from_millis).collect())
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let all = times(&(1..=200).rev().collect::<Vec<_>>());
        assert_eq!(all.percentile(50), Duration::from_millis(100));
        assert_eq!(all.percentile(99), Duration::from_millis(198));
        assert_eq!(all.percentile(100), Duration::from_millis(200));
        assert_eq!(times(&[7]).percentile(99), Duration::from_millis(7));
        assert_eq!(times(&[]).median(), Duration::ZERO);
    }

    #[test]
    fn times_are_shown_in_a_fitting_unit() {
        assert_eq!(shown(Duration::from_nanos(1234)), "1.23 µs");
        assert_eq!(shown(Duration::from_micros(45)), "45.0 µs");
        assert_eq!(shown(Duration::from_micros(123_456)), "123 ms");
    }
}
