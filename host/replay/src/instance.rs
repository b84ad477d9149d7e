//! A daemon's life, as others on the same root can see it.
//!
//! Each daemon holds an exclusive lock on a file of its own under `ROOT/control/instances`. The kernel drops the lock
//! when the process ends, however it ends; a file whose lock can be taken belongs to nobody any more.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// This daemon's own life. Dropping it ends it.
#[derive(Debug)]
pub struct Instance {
    id: String,
    path: PathBuf,
    lock: File,
}

impl Instance {
    /// Begins a life: a fresh id, a locked file.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn begin(root: &Path) -> io::Result<Self> {
        let folder = folder(root);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let id = uuid::Uuid::new_v4().to_string();
        let path = folder.join(&id);
        // Locked under a name that nobody looks for, then named: nobody ever sees it unlocked.
        let hidden = folder.join(format!(".{id}"));
        let lock = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&hidden)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&hidden, &path)?;
        Ok(Self { id, path, lock })
    }

    /// Says something of itself to the others on this root: where it can be reached.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn describe(&self, text: &str) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.write_all_at(text.as_bytes(), 0)
    }

    /// The id that records carry.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Best effort: a file that stays is found unlocked, which says the same.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn folder(root: &Path) -> PathBuf {
    root.join("control").join("instances")
}

/// Whether the daemon with this id still lives. What can't be told counts as alive: settling a living daemon's leases
/// would be worse than settling a dead one's late.
#[must_use]
pub fn is_alive(root: &Path, id: &str) -> bool {
    if id.is_empty() || id.contains(['/', '\0']) || id.starts_with('.') {
        return false;
    }
    let path = folder(root).join(id);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            drop(file);
            false
        }
        Err(_) => true,
    }
}

/// The daemons that live on a root: what each says of itself, nothing while it starts.
#[must_use]
pub fn living(root: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder(root)) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|id| !id.starts_with('.') && is_alive(root, id))
        .map(|id| std::fs::read_to_string(folder(root).join(id)).unwrap_or_default())
        .collect()
}

/// The ids of daemons that died without taking their file away.
pub(crate) fn dead_instances(root: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder(root)) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|id| !id.starts_with('.') && !is_alive(root, id))
        .collect()
}

/// Removes the files of dead instances whose records are settled.
pub(crate) fn forget(root: &Path, id: &str) {
    if !is_alive(root, id) {
        let _ = std::fs::remove_file(folder(root).join(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_seen_until_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let instance = Instance::begin(root.path()).unwrap();
        let id = instance.id().to_owned();
        assert!(is_alive(root.path(), &id));
        // Looking takes nothing from the living.
        assert!(is_alive(root.path(), &id));
        assert_eq!(living(root.path()), [""]);
        instance.describe("here").unwrap();
        assert_eq!(living(root.path()), ["here"]);
        drop(instance);
        assert!(!is_alive(root.path(), &id));
        assert!(!is_alive(root.path(), "../../etc/passwd"));
        assert!(!is_alive(root.path(), "never-was"));
    }

    #[test]
    fn a_file_without_a_lock_is_a_dead_daemons() {
        let root = tempfile::tempdir().unwrap();
        drop(Instance::begin(root.path()).unwrap());
        std::fs::write(folder(root.path()).join("gone"), "").unwrap();
        assert!(!is_alive(root.path(), "gone"));
        forget(root.path(), "gone");
        assert!(!folder(root.path()).join("gone").exists());
    }
}
