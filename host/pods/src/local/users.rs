//! A user for each pod's requests, unique on the machine.
//!
//! The registry is a folder that all daemons of the machine share: a file for each user that is given out, named by its
//! number, holding the pod's directory and UID. A file whose pod is gone is free again.

use super::place::{folder_with, lock};
use super::process;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How many users may be given out.
const MOST: u32 = 10_000;

/// Gives out users.
#[derive(Clone, Debug)]
pub(crate) struct Users {
    pub(crate) registry: PathBuf,
    /// The first one.
    pub(crate) base: u32,
}

impl Users {
    /// The lowest user that no pod has and that runs nothing. The pod's directory must exist.
    ///
    /// # Errors
    /// When the registry can't be written or everything is given out.
    pub(crate) fn take(&self, directory: &Path, pod_uid: &str) -> io::Result<u32> {
        fs::create_dir_all(self.registry.parent().unwrap_or(Path::new("/")))?;
        folder_with(&self.registry, 0o700)?;
        let _guard = lock(&self.registry.join(".lock"))?;
        let running = process::all();
        for uid in self.base..self.base.saturating_add(MOST) {
            let path = self.registry.join(uid.to_string());
            if self.taken(&path) || running.iter().any(|found| found.has_user(uid)) {
                continue;
            }
            fs::write(&path, format!("{pod_uid} {}\n", directory.display()))?;
            return Ok(uid);
        }
        Err(io::Error::other(format!("all {MOST} users from {} on are given out", self.base)))
    }

    /// Gives a user back, if it is this pod's.
    pub(crate) fn give_back(&self, uid: u32, pod_uid: &str) {
        let Ok(_guard) = lock(&self.registry.join(".lock")) else { return };
        let path = self.registry.join(uid.to_string());
        if fs::read_to_string(&path).is_ok_and(|text| text.split(' ').next() == Some(pod_uid)) {
            let _ = fs::remove_file(path);
        }
    }

    /// Whether a pod still has it.
    fn taken(&self, path: &Path) -> bool {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            // What can't be read is somebody's.
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        let Some((pod_uid, directory)) = text.trim_end_matches('\n').split_once(' ') else { return false };
        match fs::read_to_string(Path::new(directory).join("local.json")) {
            Ok(local) => local.contains(pod_uid),
            // A pod that is just being made has a directory and nothing in it yet.
            Err(_) => Path::new(directory).is_dir(),
        }
    }
}
