//! A new file that appears whole, or not at all.

use crate::ledger::beside;
use crate::schema::OpenError;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why nothing was taken out of a ledger.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// There is no ledger.
    #[error("{}: there is no ledger", path.display())]
    Absent {
        /// Its file.
        path: PathBuf,
    },
    /// The ledger can't be read, or its copy isn't whole.
    #[error("{0}")]
    Ledger(#[from] OpenError),
    /// Something is there already.
    #[error("{}: there is a file already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The copy would lie over a ledger that may be in use.
    #[error("{}: this is a ledger that may be in use, and a copy over it would destroy it", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It can't be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or what else was to be written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl CopyError {
    /// The system refuses to write here.
    pub(crate) fn writing(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::AlreadyExists { Self::Exists { path } } else { Self::Io { path, source } }
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "ledger-absent",
            Self::Ledger(error) => error.code(),
            Self::Exists { .. } => "file-exists",
            Self::InUse { .. } => "file-in-use",
            Self::Io { .. } => "file-unwritable",
        }
    }
}

/// A file of mode 0600 beside the place that it is meant for; removed unless it is [published](Draft::publish).
pub(crate) struct Draft {
    path: PathBuf,
    target: PathBuf,
    replace: bool,
    published: bool,
}

impl Draft {
    /// Makes one for what is taken out of this ledger.
    pub(crate) fn from_ledger(ledger: &Path, target: &Path, replace: bool) -> Result<Self, CopyError> {
        let file = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let itself = file(target).is_some_and(|there| Some(there) == file(ledger));
        // A log or a turnstile beside a file shows that daemons use it.
        if itself || ["-wal", "-turn"].iter().any(|suffix| beside(target, suffix).exists()) {
            return Err(CopyError::InUse { path: target.to_owned() });
        }
        Self::of(target, replace).map_err(|source| CopyError::writing(target, source))
    }

    /// Whether what is at the target already may be replaced is certain only when the draft is published.
    fn of(target: &Path, replace: bool) -> io::Result<Self> {
        match fs::symlink_metadata(target) {
            Ok(_) if !replace => return Err(io::ErrorKind::AlreadyExists.into()),
            // Renaming over a device, a pipe or a link would take it away instead of writing to it.
            Ok(found) if !found.is_file() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file"));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut name = OsString::from(".");
        name.push(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(format!(".{}.tmp", uuid::Uuid::new_v4().simple()));
        let path = target.with_file_name(name);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, target: target.to_owned(), replace, published: false })
    }

    /// Where it is to be written.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it durable, and then visible under its name.
    pub(crate) fn publish(mut self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        if self.replace {
            fs::rename(&self.path, &self.target)?;
        } else {
            match renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::NOREPLACE) {
                // Some file systems don't know the flag; a hard link is as exclusive.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                    fs::hard_link(&self.path, &self.target)?;
                    fs::remove_file(&self.path)?;
                }
                other => other?,
            }
        }
        self.published = true;
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // The error that led here says more than this one could.
            let _ = fs::remove_file(&self.path);
        }
    }
}
