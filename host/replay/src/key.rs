//! The worker key of a cut: equal keys mean equal sources and equal installs.

use crate::git::{Git, GitError};
use crate::profile::Profile;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use warmhold_protocol::WorkerKey;

/// The key of a profile's workers at a commit. `lockHash` covers the cut, the install argv and the lock files.
///
/// # Errors
/// When the repository can't be asked.
pub async fn source_key(profile: &Profile, commit: &str) -> Result<WorkerKey, GitError> {
    let blobs = if profile.lock_files.is_empty() {
        Vec::new()
    } else {
        Git::new(&profile.source).blobs(commit, &profile.lock_files).await?
    };
    let locks: Vec<(&String, Option<String>)> = profile.lock_files.iter().zip(blobs).collect();
    if let Some((file, _)) = locks.iter().find(|(_, blob)| blob.is_none()) {
        return Err(GitError::Refused {
            repository: profile.source.clone(),
            message: format!("commit {commit} has no file {file}, which the profile's lock-files name"),
        });
    }
    // JSON keeps the parts apart: no two different lists have the same text.
    let text = serde_json::json!({ "cut": commit, "install": profile.install, "locks": locks }).to_string();
    Ok(WorkerKey {
        context: profile.context.clone(),
        image_digest: profile.image_digest.clone(),
        lock_hash: hex(&Sha256::digest(text.as_bytes())),
        architecture: profile.architecture.clone(),
    })
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
