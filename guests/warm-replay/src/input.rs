//! What a caller may ask for. All of it is looked at before anything is contacted.

use std::collections::BTreeSet;
use warmhold_sdk::replay::ReplayInput;

/// The only version of the protocol.
pub const PROTOCOL: u32 = 1;
/// The only environment profile.
pub const ENV_PROFILE: &str = "gate-v1";

/// Every fault of a request; none: it can be tried.
#[must_use]
pub fn faults(input: &ReplayInput, now: u64) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |holds: bool, fault: String| {
        if !holds {
            faults.push(fault);
        }
    };
    check(input.protocol == PROTOCOL, format!("protocol: {} isn't spoken, only {PROTOCOL}", input.protocol));
    check(!input.run_id.trim().is_empty(), "run-id: must not be blank".to_owned());
    check(!input.attempt_id.trim().is_empty(), "attempt-id: must not be blank".to_owned());
    check(is_commit(&input.cut_sha), "cut-sha: must be 40 lower-case hex digits".to_owned());
    check(
        input.baseline_sha.as_deref().is_none_or(is_commit),
        "baseline-sha: must be 40 lower-case hex digits, or none".to_owned(),
    );
    check(input.env_profile == ENV_PROFILE, format!("env-profile: must be {ENV_PROFILE}"));
    check(input.deadline_at > now, "deadline-at: has passed".to_owned());
    check(!input.files.is_empty(), "files: must name at least one test file".to_owned());
    let mut seen = BTreeSet::new();
    for file in &input.files {
        check(is_test_path(file), format!("files: {file:?} must be a path inside the tree, without . .. or // in it"));
        check(seen.insert(file), format!("files: {file:?} is named twice"));
    }
    faults
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Relative, normalised, and nothing that a terminal or a file system could take for something else.
fn is_test_path(path: &str) -> bool {
    path.len() <= 1024
        && !path.chars().any(|c| c.is_control() || c == '\\')
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}
