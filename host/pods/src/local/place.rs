//! Where a pod's files are.
//!
//! `ROOT/NAMESPACE/NAME/` holds `pod.json` (the live pod), `local.json` (what only this machine knows), `volumes/` and
//! `logs/`. `ROOT/NAMESPACE/.locks/NAME` is locked around each change and is never removed: whoever waits for a lock that
//! is removed meanwhile would hold nothing.

use super::state::Local;
use crate::PodsError;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde_json::Value;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// One pod's place, whether there is a pod or not.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) namespace: PathBuf,
    pub(crate) directory: PathBuf,
}

/// Held while it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Closing isn't enough: a process that another thread is just starting has a copy of the descriptor for a moment.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Place {
    /// Names are checked before they touch a path.
    ///
    /// # Errors
    /// [`PodsError::Failed`] for what is no DNS label.
    pub(crate) fn new(root: &Path, namespace: &str, name: &str) -> Result<Self, PodsError> {
        check_label("namespace", namespace)?;
        check_label("pod", name)?;
        let namespace = root.join(namespace);
        Ok(Self { directory: namespace.join(name), name: name.to_owned(), namespace })
    }

    pub(crate) fn exists(&self) -> bool {
        self.directory.symlink_metadata().is_ok()
    }

    pub(crate) fn pod_file(&self) -> PathBuf {
        self.directory.join("pod.json")
    }

    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        self.directory.join("volumes").join(name)
    }

    pub(crate) fn log(&self, container: &str) -> PathBuf {
        self.directory.join("logs").join(format!("{container}.log"))
    }

    /// Held by who runs the init containers, for as long as that takes.
    pub(crate) fn creation_file(&self) -> PathBuf {
        self.directory.join("creating")
    }

    /// Held while a request runs in the pod.
    pub(crate) fn request_file(&self) -> PathBuf {
        self.directory.join("request")
    }

    /// Waits for the pod's lock.
    ///
    /// # Errors
    /// When the lock file can't be made.
    pub(crate) fn lock(&self) -> Result<Lock, PodsError> {
        let folder = self.namespace.join(".locks");
        folder_with(&self.namespace, open_mode())
            .and_then(|()| folder_with(&folder, 0o700))
            .map_err(|error| PodsError::io(&format!("making {}", folder.display()), &error))?;
        let path = folder.join(&self.name);
        lock(&path).map_err(|error| PodsError::io(&format!("locking {}", path.display()), &error))
    }

    /// The live pod; none when there is no file.
    ///
    /// # Errors
    /// A file that can't be read or is no pod.
    pub(crate) fn read_pod(&self) -> Result<Option<Value>, PodsError> {
        let path = self.pod_file();
        let pod: Option<Value> = read_json(&path)?;
        match pod {
            Some(pod) if !pod.is_object() => Err(PodsError::Failed(format!("{} is no pod", path.display()))),
            other => Ok(other),
        }
    }

    pub(crate) fn write_pod(&self, pod: &Value) -> Result<(), PodsError> {
        write_json(&self.pod_file(), pod)
    }

    pub(crate) fn read_local(&self) -> Result<Option<Local>, PodsError> {
        read_json(&self.directory.join("local.json"))
    }

    pub(crate) fn write_local(&self, local: &Local) -> Result<(), PodsError> {
        write_json(&self.directory.join("local.json"), local)
    }
}

/// Opens a file that is only there to be locked, and waits for its lock.
pub(crate) fn lock(path: &Path) -> io::Result<Lock> {
    let file = lock_file(path)?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(Lock { file }),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same, but none when somebody else holds it.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<Lock>> {
    let file = lock_file(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock { file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Whether somebody holds the lock of this file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            drop(Lock { file });
            false
        }
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

/// Whether the tests run as other users, who must be able to cross the folders above their own.
pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// For folders that lead to where tests run.
pub(crate) fn open_mode() -> u32 {
    if root() { 0o711 } else { 0o700 }
}

/// Makes a folder with exactly this mode, whatever the umask; one that is there is left as it is.
pub(crate) fn folder_with(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, PodsError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PodsError::io(&format!("reading {}", path.display()), &error)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| PodsError::Failed(format!("{} is damaged: {error}", path.display())))
}

/// Replaces the file in one step. Not synced: after a power loss every container has ended, and the pod with it.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), PodsError> {
    let failed = |error: io::Error| PodsError::io(&format!("writing {}", path.display()), &error);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder).map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// A DNS label: what a name of a namespace, a pod, a container or a volume must be.
pub(crate) fn check_label(what: &str, name: &str) -> Result<(), PodsError> {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends = bytes.first().is_some_and(|c| alphanumeric(*c)) && bytes.last().is_some_and(|c| alphanumeric(*c));
    if ends && bytes.len() <= 63 && bytes.iter().all(|c| alphanumeric(*c) || *c == b'-') {
        return Ok(());
    }
    Err(PodsError::Failed(format!(
        "`{}` is no name for a {what}: at most 63 of a-z, 0-9 and `-`, not at an end",
        name.escape_debug().take(80).collect::<String>()
    )))
}
