//! Removing a pod: first it is written down that it goes, then its processes end, then its directory disappears in one
//! step, and at last its files. Whoever finds it half done goes on from there.

use super::place::Place;
use super::settle::PATIENCE;
use super::state::Local;
use super::{Inner, expect_uid, status, time};
use crate::PodsError;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What the name of a directory begins with that holds no pod any more. No pod's name begins with a dot.
pub(super) const GONE: &str = ".gone-";

impl Inner {
    pub(super) fn delete(&self, place: &Place, expected: &str) -> Result<(), PodsError> {
        if !place.exists() {
            return Ok(());
        }
        let _lock = place.lock()?;
        let local = place.read_local()?;
        match place.read_pod() {
            // Its file may have been taken away by hand, with everything still running.
            Ok(None) => {}
            Ok(Some(mut pod)) => {
                expect_uid(&pod, place, expected)?;
                if let Some(object) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
                    object.insert("deletionTimestamp".to_owned(), json!(time::now()));
                    object.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
                }
                status::touch(&mut pod);
                if let Some(local) = &local {
                    mark(place, local);
                }
                // Shown to whoever looks while its processes end.
                let _ = place.write_pod(&pod);
            }
            // Who it was is also written beside the damaged file.
            Err(error) => match &local {
                Some(local) if local.pod_uid == expected => mark(place, local),
                _ => return Err(error),
            },
        }
        match local {
            Some(local) => self.finish_deletion(place, &local),
            None => self.discard(place, None),
        }
    }

    /// Ends everything of the pod and removes it. Called under the lock.
    pub(super) fn finish_deletion(&self, place: &Place, local: &Local) -> Result<(), PodsError> {
        let ended = local.whole(place).kill(PATIENCE);
        self.reap(None);
        match ended {
            Ok(_) => self.discard(place, Some(local)),
            // It keeps its name and its user: the next look goes on.
            Err(left) => Err(PodsError::TimedOut(format!(
                "the pod `{}` is half removed: these processes don't end: {left}",
                place.name
            ))),
        }
    }

    /// Removes a directory in which nothing runs.
    pub(super) fn discard(&self, place: &Place, local: Option<&Local>) -> Result<(), PodsError> {
        if let Some(group) = local.and_then(|local| local.group.as_ref())
            && !group.remove()
        {
            return Err(PodsError::TimedOut(format!(
                "the pod `{}` is half removed: something runs in its control group {}",
                place.name,
                group.path.display()
            )));
        }
        unmount_below(&place.directory);
        let gone = place.namespace.join(format!("{GONE}{}-{}", place.name, uuid::Uuid::new_v4().simple()));
        match fs::rename(&place.directory, &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => {
                other.map_err(|error| PodsError::io(&format!("removing {}", place.directory.display()), &error))?
            }
        }
        if let (Some(users), Some(local)) = (&self.users, local)
            && let Some(uid) = local.request_uid
        {
            users.give_back(uid, &local.pod_uid);
        }
        tree(&gone);
        Ok(())
    }
}

/// Writes down that the pod goes. A disk that is full keeps no pod alive: should the deletion then be interrupted, it has
/// to be asked for again.
fn mark(place: &Place, local: &Local) {
    let mut local = local.clone();
    local.deleting = true;
    if let Err(error) = place.write_local(&local) {
        tracing::warn!(pod = %place.name, %error, "a deletion can't be written down");
    }
}

/// Removes a tree, as far as it goes; what stays has a name that the next list tries again.
pub(super) fn tree(path: &Path) {
    for _ in 0..3 {
        match fs::remove_dir_all(path) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return,
            // A test may have closed its own directories.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open_up(path),
            Err(_) => unmount_below(path),
        }
    }
    tracing::warn!(path = %path.display(), "what is left of a removed pod can't be removed");
}

fn open_up(path: &Path) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    if !found.is_dir() {
        return;
    }
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        open_up(&entry.path());
    }
}

/// Takes off whatever is mounted in a directory, the deepest first.
fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(directory))
        .collect();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    for point in points {
        // Nothing runs in there; detached, it can't be busy because of somebody who looks.
        if let Err(error) = unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            tracing::warn!(point = %point.display(), %error, "can't be unmounted");
        }
    }
}

/// The kernel writes spaces and the like as `\040`.
fn unescape(point: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(point.to_owned(), |text, (from, to)| text.replace(from, to))
}
