//! What the base tree looks like, without reading the files: any write, chmod, chown, rename or touch moves at least one
//! of these values (ctime can't be set back).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One entry's identity and stamps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    mode: u32,
    size: u64,
    inode: u64,
    owner: (u32, u32),
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The tree at one moment, in path order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(Vec<(PathBuf, Stamp)>);

impl Snapshot {
    /// Looks at every entry under `root`, and at `root` itself.
    ///
    /// # Errors
    /// What the file system answers, with the path.
    pub(crate) fn take(root: &Path) -> io::Result<Self> {
        let mut entries = Vec::new();
        let mut waiting = vec![PathBuf::new()];
        while let Some(relative) = waiting.pop() {
            let path = if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(&relative) };
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let meta = path.symlink_metadata().map_err(named)?;
            if meta.is_dir() {
                for entry in fs::read_dir(&path).map_err(named)? {
                    waiting.push(relative.join(entry.map_err(named)?.file_name()));
                }
            }
            let stamp = Stamp {
                mode: meta.mode(),
                size: meta.size(),
                inode: meta.ino(),
                owner: (meta.uid(), meta.gid()),
                modified: (meta.mtime(), meta.mtime_nsec()),
                changed: (meta.ctime(), meta.ctime_nsec()),
            };
            entries.push((relative, stamp));
        }
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Self(entries))
    }

    /// Whether everything belongs to one user, and to the group of the same number.
    pub(crate) fn belongs_to(&self, uid: u32) -> bool {
        self.0.iter().all(|(_, stamp)| stamp.owner == (uid, uid))
    }

    /// The first few differences, in words.
    pub(crate) fn differences(&self, later: &Self) -> Vec<String> {
        const MOST: usize = 5;
        if self == later {
            return Vec::new();
        }
        let mut found = Vec::new();
        let (mut before, mut after) = (self.0.iter().peekable(), later.0.iter().peekable());
        while found.len() < MOST {
            let name =
                |path: &Path| if path.as_os_str().is_empty() { ".".to_owned() } else { path.display().to_string() };
            match (before.peek(), after.peek()) {
                (None, None) => break,
                (Some((old, _)), Some((new, _))) if old == new => {
                    if before.next().map(|(_, stamp)| stamp) != after.next().map(|(_, stamp)| stamp) {
                        found.push(format!("the base tree changed: {}", name(old)));
                    }
                }
                (Some((old, _)), new) if new.is_none_or(|(new, _)| old < new) => {
                    found.push(format!("the base tree lost {}", name(old)));
                    before.next();
                }
                (_, Some((new, _))) => {
                    found.push(format!("the base tree gained {}", name(new)));
                    after.next();
                }
                (Some(_), None) => break,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn after(change: impl FnOnce(&Path)) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/one"), "1").unwrap();
        fs::write(dir.path().join("two"), "2").unwrap();
        let before = Snapshot::take(dir.path()).unwrap();
        change(dir.path());
        before.differences(&Snapshot::take(dir.path()).unwrap())
    }

    #[test]
    fn reading_is_no_change() {
        assert!(after(|root| assert_eq!(fs::read(root.join("two")).unwrap(), b"2")).is_empty());
    }

    #[test]
    fn every_kind_of_write_is_seen() {
        type Change = (&'static str, fn(&Path));
        let changes: [Change; 7] = [
            ("changed: two", |root| fs::write(root.join("two"), "3").unwrap()),
            ("lost two", |root| fs::remove_file(root.join("two")).unwrap()),
            ("gained a/b/new", |root| fs::write(root.join("a/b/new"), "").unwrap()),
            ("changed: a/one", |root| {
                fs::set_permissions(root.join("a/one"), fs::Permissions::from_mode(0o600)).unwrap();
            }),
            ("gained z", |root| fs::rename(root.join("two"), root.join("z")).unwrap()),
            ("changed: two", |root| {
                // The same size and the same mtime: inode and ctime still tell.
                let old = fs::metadata(root.join("two")).unwrap().modified().unwrap();
                fs::write(root.join("new"), "x").unwrap();
                fs::File::options().write(true).open(root.join("new")).unwrap().set_modified(old).unwrap();
                fs::rename(root.join("new"), root.join("two")).unwrap();
            }),
            ("changed: a/b", |root| {
                fs::write(root.join("a/b/brief"), "").unwrap();
                fs::remove_file(root.join("a/b/brief")).unwrap();
            }),
        ];
        for (want, change) in changes {
            let found = after(change);
            assert!(found.iter().any(|line| line.ends_with(want)), "{want}: {found:?}");
        }
    }
}
