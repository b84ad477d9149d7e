//! The form of a request, judged before anything is contacted.

use crate::record::ReplayRecord;
use crate::service::MAX_FILES;
use std::collections::HashSet;

/// Whether a path names a file inside the tree: relative, normal, without `..`.
fn inside(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 4096
        && !path.starts_with(['/', '-'])
        && !path.contains(['\0', '\n', '\\'])
        && path.split('/').all(|part| !matches!(part, "" | "." | ".." | ".git"))
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// # Errors
/// What is wrong, for a person.
pub(crate) fn check(record: &ReplayRecord, now: u64) -> Result<(), String> {
    if !is_commit(&record.cut_sha) {
        return Err(format!("the cut must be a commit's 40 hex digits, not {:?}", record.cut_sha));
    }
    if let Some(baseline) = record.baseline_sha.as_ref().filter(|baseline| !is_commit(baseline)) {
        return Err(format!("the baseline must be a commit's 40 hex digits, not {baseline:?}"));
    }
    if record.files.is_empty() || record.files.len() > MAX_FILES {
        return Err(format!("a replay takes 1 to {MAX_FILES} files, not {}", record.files.len()));
    }
    if let Some(file) = record.files.iter().find(|file| !inside(file)) {
        return Err(format!("{file:?} isn't a path inside the repository: relative, without `..`"));
    }
    let mut seen = HashSet::new();
    if let Some(file) = record.files.iter().find(|file| !seen.insert(file.as_str())) {
        return Err(format!("{file:?} is named twice"));
    }
    if record.deadline_at <= now {
        return Err("the deadline has passed".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_inside_the_tree() {
        for good in ["a.sh", "tests/a.py", "tests/.hidden/a b.js", "ü/x.mjs", "a..b/c"] {
            assert!(inside(good), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "../a",
            "a/../b",
            "a/..",
            "./a",
            "a//b",
            "a/",
            "-x",
            "a\0",
            "a\nb",
            "x\\y",
            ".git/config",
        ] {
            assert!(!inside(bad), "{bad:?}");
        }
    }
}
