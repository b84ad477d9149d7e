//! Small private files that several processes read and change: written whole, replaced atomically, changed under a lock.

use rustix::fs::{FlockOperation, RenameFlags};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// More than any of these files needs; a larger one isn't read.
const MAX_BYTES: u64 = 1 << 20;

/// Tells one content of a path from the next without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// What the path holds now; None when there is nothing.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A file's bytes and the stamp that they belong to.
///
/// The file stays open for as long as this lives: so its inode can't be given to a later content of the same path, and
/// equal stamps mean equal content even when a file is replaced several times within one tick of the clock.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    pub(crate) stamp: Stamp,
    pub(crate) mode: u32,
    _open: File,
}

/// Reads a regular file whole. None: there is nothing at this path.
pub(crate) fn read(path: &Path) -> io::Result<Option<Content>> {
    // A FIFO would block for ever without O_NONBLOCK; regular files don't mind it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {MAX_BYTES} bytes")));
    }
    // The stamp is taken before the bytes: a write in between makes the next look differ, never this one too new.
    let mut bytes = Vec::new();
    (&mut file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(Content { bytes, stamp: Stamp::of(&metadata), mode: metadata.mode() & 0o7777, _open: file }))
}

/// Makes a directory of mode 0700 with its parents, and tightens a looser one.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let mode = std::fs::metadata(path)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Makes a file 0600.
pub(crate) fn tighten(path: &Path) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// An exclusive lock on a file beside the one to change; ends with the value, or with its process.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of `path`, whose file is `path` with `.lock` added.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = Self::file(path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`Lock::of`], but gives up with `TimedOut`: for files that others hold too, who may be stopped while they do.
    pub(crate) fn within(path: &Path, wait: Duration) -> io::Result<Self> {
        let file = Self::file(path)?;
        let end = Instant::now() + wait;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn file(path: &Path) -> io::Result<File> {
        let lock = sibling(path, "", ".lock");
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock)
    }
}

/// Whether something may be at the path already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replace {
    /// Whatever is there is replaced.
    Existing,
    /// Fails with `AlreadyExists` when anything is there, decided by the kernel.
    Nothing,
}

/// Writes a file whole: the path holds the old content or the new one, never a part, also after a loss of power.
pub(crate) fn write(path: &Path, bytes: &[u8], replace: Replace) -> io::Result<()> {
    let temporary = sibling(path, ".", &format!(".{}.tmp", uuid::Uuid::new_v4().simple()));
    let written = (|| {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match replace {
            Replace::Existing => std::fs::rename(&temporary, path)?,
            Replace::Nothing => {
                let here = rustix::fs::CWD;
                match rustix::fs::renameat_with(here, &temporary, here, path, RenameFlags::NOREPLACE) {
                    // Some file systems don't know the flag; a hard link is as exclusive.
                    Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                        std::fs::hard_link(&temporary, path)?;
                        std::fs::remove_file(&temporary)?;
                    }
                    other => other?,
                }
            }
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // Only the half-made file is left; that it can't be removed says nothing that the first error doesn't.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn sibling(path: &Path, before: &str, after: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(before);
    name.push(path.file_name().unwrap_or_default());
    name.push(after);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_leave_nothing_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("a/control");
        private_directory(&control).unwrap();
        let path = control.join("x.json");
        write(&path, b"one", Replace::Nothing).unwrap();
        assert_eq!(write(&path, b"two", Replace::Nothing).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let first = read(&path).unwrap().unwrap();
        assert_eq!((first.bytes.as_slice(), first.mode), (b"one".as_slice(), 0o600));
        write(&path, b"two", Replace::Existing).unwrap();
        assert_ne!(Stamp::at(&path).unwrap().unwrap(), first.stamp);
        let names: Vec<_> = std::fs::read_dir(&control).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["x.json"]);
        assert_eq!(std::fs::metadata(&control).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn what_is_not_a_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(&folder.path().join("absent")).unwrap().is_none());
        assert!(read(folder.path()).is_err());
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&fifo).is_err(), "a FIFO must neither block nor be read");
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(read(&large).is_err());
    }

    #[test]
    fn a_content_replaced_many_times_in_one_tick_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        write(&path, b"00", Replace::Existing).unwrap();
        let kept = read(&path).unwrap().unwrap();
        for n in 0..200 {
            write(&path, format!("{:02}", n % 100).as_bytes(), Replace::Existing).unwrap();
            assert_ne!(Stamp::at(&path).unwrap().unwrap(), kept.stamp, "after {n} more writes");
        }
    }

    #[test]
    fn one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n");
        write(&path, b"0", Replace::Existing).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let _held = Lock::of(&path).unwrap();
                        let text = String::from_utf8(read(&path).unwrap().unwrap().bytes).unwrap();
                        let next = text.parse::<u32>().unwrap() + 1;
                        write(&path, next.to_string().as_bytes(), Replace::Existing).unwrap();
                    }
                });
            }
        });
        assert_eq!(read(&path).unwrap().unwrap().bytes, b"100");
    }
}
