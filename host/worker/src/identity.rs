//! Who this worker is, as the manifest rendered it into the container's environment.

use std::path::PathBuf;
use warmhold_protocol::{WorkerKey, env};

/// The pod's identity and its two directories.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) worker_id: String,
    pub(crate) cut: String,
    pub(crate) key: WorkerKey,
    pub(crate) repo: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) host_probe: Option<String>,
    pub(crate) prod_probe: Option<String>,
    /// The image decides where programs are.
    pub(crate) path: String,
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Identity {
    /// Reads the environment.
    ///
    /// # Errors
    /// A sentence that names the variable.
    pub(crate) fn from_env() -> Result<Self, String> {
        let key = required(env::KEY)?;
        Ok(Self {
            worker_id: required(env::WORKER_ID)?,
            cut: required(env::CUT)?,
            key: serde_json::from_str(&key).map_err(|error| format!("{} is no worker key: {error}", env::KEY))?,
            repo: directory(env::REPO)?,
            data: directory(env::DATA)?,
            host_probe: optional(env::HOST_PROBE_URL)?,
            prod_probe: optional(env::PROD_PROBE_URL)?,
            path: optional("PATH")?.unwrap_or_else(|| DEFAULT_PATH.to_owned()),
        })
    }
}

fn optional(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} isn't UTF-8")),
    }
}

fn required(name: &str) -> Result<String, String> {
    optional(name)?.ok_or_else(|| format!("{name} is missing or empty"))
}

fn directory(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(required(name)?);
    if !path.is_absolute() {
        return Err(format!("{name} must be an absolute path, got {}", path.display()));
    }
    // One spelling for each directory: mount points and links would otherwise compare as different.
    path.canonicalize().map_err(|error| format!("{name}: {}: {error}", path.display()))
}
