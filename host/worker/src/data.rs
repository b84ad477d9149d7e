//! The worker's durable directory: the lock that makes requests one at a time, the highest generation seen, and the
//! place where requests get their private directories.

use crate::check::refuse;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use warmhold_protocol::Refusal;

/// The directory, held for the life of the process.
#[derive(Debug)]
pub(crate) struct Data {
    root: PathBuf,
    /// A flock ends with its holder, however that ends.
    _lock: File,
}

impl Data {
    /// Takes the directory for this process.
    ///
    /// # Errors
    /// `busy` when another request has it, `io`.
    pub(crate) fn open(root: &Path) -> Result<Self, Refusal> {
        let io =
            |what: &str, error: &dyn std::fmt::Display| refuse("io", format!("{}: {what}: {error}", root.display()));
        // A directory that tests may write to could have its lock and its generation replaced.
        let meta = fs::metadata(root).map_err(|error| io("the data directory", &error))?;
        let owner = meta.uid() == rustix::process::geteuid().as_raw();
        if owner {
            // Tests need to cross it to reach their own directories, and nothing more.
            fs::set_permissions(root, fs::Permissions::from_mode(0o711))
                .map_err(|error| io("the data directory's mode", &error))?;
        } else if meta.mode() & 0o022 != 0 {
            return Err(io("the data directory", &"it belongs to another user and others may write to it"));
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(root.join("lock"))
            .map_err(|error| io("the lock", &error))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { root: root.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(refuse("busy", "another request runs in this worker; one at a time"))
            }
            Err(error) => Err(io("the lock", &error)),
        }
    }

    /// Whether a generation is above the highest seen. It counts as seen once it is [remembered](Self::remember).
    ///
    /// # Errors
    /// `stale-generation`, `io` (a damaged record too: what was seen is then unknown).
    pub(crate) fn admit(&self, generation: u64) -> Result<(), Refusal> {
        let seen = self.highest().map_err(|error| refuse("io", format!("the highest generation seen: {error}")))?;
        if generation < 1 || generation <= seen {
            let message = format!("generation {generation} isn't above {seen}, the highest that this worker has seen");
            return Err(refuse("stale-generation", message));
        }
        Ok(())
    }

    fn highest(&self) -> io::Result<u64> {
        let mut text = String::new();
        match File::open(self.root.join("generation")) {
            Ok(file) => file.take(64).read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        // The newline is written last: a record without one is half a record.
        text.strip_suffix('\n')
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the record is damaged; replace this worker"))
    }

    /// Keeps an admitted generation, durably: nothing of its request may begin before.
    ///
    /// # Errors
    /// What writing answers; whether it is kept is then unknown.
    pub(crate) fn remember(&self, generation: u64) -> io::Result<()> {
        let new = self.root.join("generation.new");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        writeln!(file, "{generation}")?;
        file.sync_all()?;
        fs::rename(&new, self.root.join("generation"))?;
        File::open(&self.root)?.sync_all()
    }

    /// Where a request's private directories go.
    pub(crate) fn requests(&self) -> PathBuf {
        self.root.join("requests")
    }

    /// What an earlier request left because it was killed before it cleaned.
    ///
    /// # Errors
    /// What reading the directory answers.
    pub(crate) fn leftovers(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(self.requests()) {
            Ok(entries) => entries
                .map(|entry| Ok(format!("directory {} of an earlier request", entry?.path().display())))
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Data {
        fn accept(&self, generation: u64) -> Result<(), Refusal> {
            self.admit(generation)?;
            self.remember(generation).map_err(|error| refuse("io", error.to_string()))
        }
    }

    #[test]
    fn a_generation_is_accepted_once_and_survives() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::open(dir.path()).unwrap();
        assert_eq!(data.accept(0).unwrap_err().code, "stale-generation");
        data.accept(7).unwrap();
        drop(data);
        let data = Data::open(dir.path()).unwrap();
        for stale in [1, 6, 7] {
            assert_eq!(data.accept(stale).unwrap_err().code, "stale-generation");
        }
        data.accept(u64::MAX).unwrap();
        assert_eq!(data.accept(u64::MAX).unwrap_err().code, "stale-generation");
    }

    #[test]
    fn a_damaged_record_trusts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::open(dir.path()).unwrap();
        for damaged in ["", "7", "x\n", "-1\n", "7\n8\n", "99999999999999999999999\n"] {
            fs::write(dir.path().join("generation"), damaged).unwrap();
            assert_eq!(data.accept(1000).unwrap_err().code, "io", "{damaged:?}");
        }
    }

    #[test]
    fn two_at_once_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let first = Data::open(dir.path()).unwrap();
        assert_eq!(Data::open(dir.path()).unwrap_err().code, "busy");
        drop(first);
        Data::open(dir.path()).unwrap();
    }

    #[test]
    fn what_an_earlier_request_left_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::open(dir.path()).unwrap();
        assert!(data.leftovers().unwrap().is_empty());
        fs::create_dir_all(data.requests().join("3")).unwrap();
        assert_eq!(data.leftovers().unwrap().len(), 1);
    }
}
