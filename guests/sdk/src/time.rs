//! Times as people read them, and whether a row still counts.

use crate::types::Row;

/// A day in milliseconds: the longest time that a lease or a worker may be given.
pub const DAY_MS: u64 = 86_400_000;

/// How old a row is at `now`; a row from the future has age 0.
#[must_use]
pub fn age_ms(row: &Row, now: u64) -> u64 {
    now.saturating_sub(row.observed_at)
}

/// Whether a row no longer counts at `now`.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "ages are far below 2^53 ms")]
pub fn expired(row: &Row, now: u64) -> bool {
    age_ms(row, now) as f64 >= row.ttl_ms
}

/// An instant as RFC 3339 in UTC with milliseconds: `2026-11-30T19:57:49.125Z`.
#[must_use]
pub fn rfc3339(instant_ms: u64) -> String {
    let (days, ms) = (instant_ms / DAY_MS, instant_ms % DAY_MS);
    // Days are counted from 1 March of year 0, so that a leap day is the last day of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_dates() {
        // The expected texts are `date -u -d @SECONDS` of GNU coreutils.
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_796_068_669_125, "2026-11-30T19:57:49.125Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }

    #[test]
    fn never_fails() {
        assert!(rfc3339(u64::MAX).ends_with('Z'));
    }
}
