//! Files that are replaced whole: written beside, synced, renamed. A reader sees the old one or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A name that no other writer of this directory uses, in this process or another.
fn beside(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{}.tmp", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Replaces a file, mode 0600, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = beside(path);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Makes a directory and its parents, mode 0700, and tightens it if it was looser.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
    }
    Ok(())
}

/// Opens whatever it is without waiting for another end; without effect on regular files.
const AT_ONCE: i32 = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY).bits().cast_signed();

/// Reads a file that nobody else may have written: ours, a regular one, not writable by others, at most `limit` bytes.
pub(crate) fn read_private(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // A pipe that nobody writes would hold the opening up for ever.
    let file = OpenOptions::new().read(true).custom_flags(AT_ONCE).open(path)?;
    let found = file.metadata()?;
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned()));
    if !found.is_file() {
        return refuse("not a regular file");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return refuse("belongs to another user");
    }
    if found.mode() & 0o022 != 0 {
        return refuse("others can write it");
    }
    if found.len() > limit {
        return refuse("too large");
    }
    let mut bytes = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What tells one content of a file from the next when each is a new file: see [`replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A file's stamp; `None` when there is none, or it can't be looked at.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some(Stamp {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// Removes what writers that died left beside.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let old = entry.metadata().and_then(|found| found.modified()).is_ok_and(|time| {
            // A writer that lives needs seconds, not an hour.
            time.elapsed().is_ok_and(|age| age.as_secs() > 3600)
        });
        if old && name.starts_with('.') && name.ends_with(".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Takes the directory's lock for as long as the file lives. Processes that share a root take turns by it.
pub(crate) fn lock(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(AT_ONCE)
        .open(dir.join("lock"))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}
