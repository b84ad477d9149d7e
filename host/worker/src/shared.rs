//! Places that every user can write to and that outlive a request.

use rustix::fs::Dir;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The world-writable directories that a Linux image has.
pub(crate) fn directories() -> Vec<PathBuf> {
    ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock"].map(PathBuf::from).to_vec()
}

/// Those of them that hold ordinary files; the other ones belong to a namespace of the request.
pub(crate) fn files() -> impl Iterator<Item = PathBuf> {
    directories().into_iter().filter(|directory| !directory.ends_with("mqueue"))
}

/// Entries of a directory that belong to a user.
pub(crate) fn owned(directory: &Path, uid: u32) -> Vec<PathBuf> {
    let Ok(mut listing) = File::open(directory).map_err(drop).and_then(|file| Dir::new(file).map_err(drop)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    while let Some(Ok(entry)) = listing.read() {
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let path = directory.join(std::ffi::OsStr::from_bytes(name));
        if path.symlink_metadata().is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == uid) {
            found.push(path);
        }
    }
    found
}

/// All that a user has outside of its request's directories, in words.
pub(crate) fn left_by(uid: u32) -> Vec<String> {
    let files = directories().into_iter().flat_map(|directory| owned(&directory, uid));
    let mut left: Vec<String> = files.map(|path| format!("{} belongs to the request's user", path.display())).collect();
    for kind in ["shm", "sem", "msg"] {
        let table = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        let count = owned_segments(&table, uid);
        if count > 0 {
            left.push(format!("{count} System V {kind} objects belong to the request's user"));
        }
    }
    left
}

/// The tables name their columns in the first line; creator and owner both count.
fn owned_segments(table: &str, uid: u32) -> usize {
    let mut lines = table.lines();
    let Some(header) = lines.next() else { return 0 };
    let columns: Vec<usize> = header
        .split_whitespace()
        .enumerate()
        .filter_map(|(index, name)| matches!(name, "uid" | "cuid").then_some(index))
        .collect();
    let uid = uid.to_string();
    lines
        .filter(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            columns.iter().any(|&column| fields.get(column).is_some_and(|&field| field == uid))
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_by_owner_and_creator() {
        let table = "key shmid perms size cpid lpid nattch uid gid cuid cgid\n\
                     0 1 600 4096 9 9 0 64500 64500 64500 64500\n\
                     0 2 600 4096 64500 9 0 0 0 0 0\n\
                     0 3 600 4096 9 9 0 0 0 64500 0\n";
        assert_eq!(owned_segments(table, 64_500), 2);
        assert_eq!(owned_segments("", 1), 0);
    }

    #[test]
    fn entries_are_found_by_owner() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mine"), "").unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(owned(dir.path(), own), [dir.path().join("mine")]);
        assert!(owned(dir.path(), own + 1).is_empty());
        assert!(owned(&dir.path().join("none"), own).is_empty());
    }
}
