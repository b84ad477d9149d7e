//! Removing trees that hostile code has made: no link is followed, a directory without permissions is opened up first,
//! and depth is bounded (a test may nest directories deeper than any stack or path).

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Deeper directories are moved up to the top and removed from there.
const MOST_DEPTH: usize = 64;

/// Empties a directory and leaves it in place.
///
/// # Errors
/// The first thing that couldn't be removed; the rest is removed all the same.
pub(crate) fn empty(directory: &Path) -> Result<(), String> {
    let named = |error: Errno| format!("{}: {error}", directory.display());
    let top = match open_directory(CWD, directory) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(named(error)),
    };
    let (mut moved, mut failed) = (0, None);
    loop {
        let before = moved;
        let mut sweep = Sweep { top: top.as_fd(), moved: &mut moved, first: None };
        sweep.empty(top.as_fd(), 0);
        failed = failed.or(sweep.first);
        // What was moved up is removed by another round, which finds it less deep.
        if moved == before {
            return failed.map_or(Ok(()), |error| Err(named(error)));
        }
    }
}

/// Removes one entry of a directory, whatever it is.
///
/// # Errors
/// The first thing that couldn't be removed.
pub(crate) fn entry(path: &Path) -> Result<(), String> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("{}: {error}", path.display())),
        Ok(meta) if meta.is_dir() => {
            empty(path)?;
            std::fs::remove_dir(path).map_err(|error| format!("{}: {error}", path.display()))
        }
        Ok(_) => std::fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display())),
    }
}

struct Sweep<'a> {
    top: BorrowedFd<'a>,
    moved: &'a mut u64,
    first: Option<Errno>,
}

impl Sweep<'_> {
    fn empty(&mut self, directory: BorrowedFd<'_>, depth: usize) {
        match names(directory) {
            Ok(names) => names.iter().for_each(|name| {
                if let Err(error) = self.remove(directory, name, depth) {
                    self.first.get_or_insert(error);
                }
            }),
            Err(error) => {
                self.first.get_or_insert(error);
            }
        }
    }

    fn remove(&mut self, directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Errno> {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        // An empty one goes without being opened, which its parent's owner may do and others may not.
        match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(_) => {}
        }
        let child = open_directory(directory, name)?;
        if depth >= MOST_DEPTH {
            *self.moved += 1;
            let fresh = format!(".moved-{}-{}", std::process::id(), self.moved);
            return rustix::fs::renameat(directory, name, self.top, fresh.as_str());
        }
        self.empty(child.as_fd(), depth + 1);
        rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
    }
}

/// Opens a directory, never through a link, and makes it usable when its owner took the permissions away.
fn open_directory(at: impl AsFd, path: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = rustix::fs::openat(at.as_fd(), path, flags, Mode::empty());
    let fd = match opened {
        Err(Errno::ACCESS) => {
            // chmodat follows links, but O_DIRECTORY | O_NOFOLLOW has just told that this is a directory, and nobody
            // else is left who could exchange it.
            rustix::fs::chmodat(at.as_fd(), path, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(at, path, flags, Mode::empty())?
        }
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    if Mode::from_raw_mode(stat.st_mode) & Mode::RWXU != Mode::RWXU {
        // Fails on a directory of somebody else's; removing its entries then says so.
        let _ = rustix::fs::fchmod(&fd, Mode::RWXU);
    }
    Ok(fd)
}

fn names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    Dir::read_from(directory)?
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .filter(|name| !matches!(name, Ok(name) if matches!(name.to_bytes(), b"." | b"..")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn directories_without_permissions_and_links_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join("kept"), "").unwrap();
        let closed = dir.path().join("closed");
        fs::create_dir_all(closed.join("inner")).unwrap();
        fs::write(closed.join("inner/file"), "").unwrap();
        std::os::unix::fs::symlink(kept.path(), dir.path().join("link")).unwrap();
        fs::set_permissions(closed.join("inner"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        empty(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(kept.path().join("kept").exists());
        entry(&dir.path().join("never-there")).unwrap();
    }

    #[test]
    fn a_nest_deeper_than_any_path_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut here = open_directory(CWD, dir.path()).unwrap();
        // 6,000 bytes of path, and deeper than one sweep goes.
        let name = "deeper".repeat(10);
        for _ in 0..100 {
            rustix::fs::mkdirat(&here, name.as_str(), Mode::RWXU).unwrap();
            here = open_directory(&here, name.as_str()).unwrap();
        }
        empty(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
