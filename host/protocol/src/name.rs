//! Names of artifacts: one rule for the worker that sends and the host that keeps.

/// The longest name of an artifact.
pub const MAX_ARTIFACT_NAME_BYTES: usize = 512;

/// Whether this can be the name of an artifact: a relative path with `/` between its parts that stays inside whatever
/// directory it is joined to, and that prints as one line. So no empty part, no `.` or `..`, no control character (a
/// newline is one), no line or paragraph separator, no backslash, and 1 to [`MAX_ARTIFACT_NAME_BYTES`] bytes.
#[must_use]
pub fn is_artifact_name(name: &str) -> bool {
    let refused = |c: char| c.is_control() || matches!(c, '\\' | '\u{2028}' | '\u{2029}');
    name.len() <= MAX_ARTIFACT_NAME_BYTES
        && !name.contains(refused)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names_that_lead_elsewhere_or_print_as_more_than_a_line_are_none() {
        for good in ["a", "a/b.txt", "\u{e4}\u{f6}", "...", "a b", "-", "a:b"] {
            assert!(is_artifact_name(good), "{good:?}");
        }
        let bad = [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\nb", "a\r", "a\0b", "\u{7f}", "a\\b",
            "\u{2028}", "\u{85}",
        ];
        for bad in bad {
            assert!(!is_artifact_name(bad), "{bad:?}");
        }
        assert!(is_artifact_name(&"x".repeat(MAX_ARTIFACT_NAME_BYTES)));
        assert!(!is_artifact_name(&"x".repeat(MAX_ARTIFACT_NAME_BYTES + 1)));
    }

    proptest! {
        #[test]
        fn a_name_stays_inside(name in "[a./\\\\\n ]{0,12}|.{0,12}") {
            if is_artifact_name(&name) {
                prop_assert!(Path::new(&name).components().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(name.lines().count(), 1);
            }
        }
    }
}
