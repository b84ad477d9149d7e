//! Durations (`"120s"`) and sizes (`"16MiB"`): a whole number and a unit, so that no number is read in the wrong one.

use std::time::Duration;

/// Units of time with their milliseconds, largest first.
const TIMES: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size with their bytes, largest first. The short forms are those of Kubernetes.
const SIZES: [(&str, &str, u64); 5] =
    [("TiB", "Ti", 1 << 40), ("GiB", "Gi", 1 << 30), ("MiB", "Mi", 1 << 20), ("KiB", "Ki", 1 << 10), ("B", "B", 1)];

/// Reads a duration: a whole number and `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
/// A sentence for a person.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write a whole number and ms, s, m, h or d, such as `120s`");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let (_, scale) = TIMES.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    number
        .checked_mul(scale)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is longer than any clock counts; write a shorter duration"))
}

/// Writes a duration in the largest unit in which it is whole. Below a millisecond nothing is kept.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (unit, scale) =
        TIMES.into_iter().find(|(_, scale)| millis >= *scale && millis.is_multiple_of(*scale)).unwrap_or(("s", 1));
    format!("{}{unit}", millis / scale)
}

/// Reads a size: a whole number and `B`, `KiB`, `MiB`, `GiB` or `TiB` (`Ki`, `Mi`, `Gi`, `Ti` too).
///
/// # Errors
/// A sentence for a person.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write a whole number and B, KiB, MiB, GiB or TiB, such as `16MiB`");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let (.., scale) = SIZES.into_iter().find(|(long, short, _)| *long == unit || *short == unit).ok_or_else(wrong)?;
    number.checked_mul(scale).ok_or_else(|| format!("`{text}` is more bytes than 64 bits count; write a smaller size"))
}

/// Writes a size in the largest unit in which it is whole.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let (unit, _, scale) =
        SIZES.into_iter().find(|(.., scale)| bytes >= *scale && bytes.is_multiple_of(*scale)).unwrap_or(("B", "B", 1));
    format!("{}{unit}", bytes / scale)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(end)?;
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_need_a_unit_that_is_known() {
        assert_eq!(parse_duration("120s"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "s", "120", "1.5s", "-1s", "1 s", " 1s", "1S", "1min", "1h30m", "٣s", "1s\n"] {
            let error = parse_duration(wrong).expect_err(wrong);
            assert!(error.contains("such as `120s`"), "{error}");
        }
        assert!(parse_duration("18446744073709551615d").expect_err("overflow").contains("shorter"));
        assert!(parse_duration("99999999999999999999s").is_err());
    }

    #[test]
    fn sizes_are_binary_and_say_so() {
        assert_eq!(parse_size("16MiB"), Ok(16 << 20));
        assert_eq!(parse_size("2Gi"), Ok(2 << 30));
        assert_eq!(parse_size("512B"), Ok(512));
        for wrong in ["", "16", "16MB", "16M", "1.5GiB", "16 MiB", "-1B", "mib"] {
            let error = parse_size(wrong).expect_err(wrong);
            assert!(error.contains("such as `16MiB`"), "{error}");
        }
        assert!(parse_size("18446744073709551615TiB").expect_err("overflow").contains("smaller"));
    }

    #[test]
    fn the_largest_whole_unit_is_written() {
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
        assert_eq!(format_duration(Duration::from_secs(7200)), "2h");
        assert_eq!(format_duration(Duration::ZERO), "0s");
        assert_eq!(format_size(3 << 30), "3GiB");
        assert_eq!(format_size(1025), "1025B");
        assert_eq!(format_size(0), "0B");
    }

    proptest! {
        #[test]
        fn a_duration_reads_back(millis in any::<u64>()) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn a_size_reads_back(number in any::<u64>(), shift in 0_u32..50) {
            let bytes = number >> shift << shift.min(number.leading_zeros());
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_an_answer(text in "\\PC{0,12}") {
            let _ = (parse_duration(&text), parse_size(&text));
        }
    }
}
