//! A local pod, as its files and the process table show it.

use anyhow::{Context as _, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A pod's folder.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The folder.
    pub folder: PathBuf,
}

impl Pod {
    /// The live pod.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(&self) -> Result<Value> {
        read(&self.folder.join("pod.json"))
    }

    /// Changes the live pod by hand, in one step as everything else does it.
    ///
    /// # Errors
    /// The file can't be read or written.
    pub fn change(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut pod = self.read()?;
        change(&mut pod);
        let next = self.folder.join("pod.json.by-hand");
        std::fs::write(&next, serde_json::to_vec_pretty(&pod)?)?;
        std::fs::rename(next, self.folder.join("pod.json"))?;
        Ok(())
    }

    /// The process of the container.
    ///
    /// # Errors
    /// Nobody wrote it down.
    pub fn container(&self) -> Result<u32> {
        let pid = self.local()?.pointer("/processes/worker/pid").and_then(Value::as_u64);
        Ok(u32::try_from(pid.context("the pod has no container")?)?)
    }

    /// The user that its tests run as; none where the daemon isn't root.
    ///
    /// # Errors
    /// Nobody wrote it down.
    pub fn user(&self) -> Result<Option<u32>> {
        let user = self.local()?.get("requestUid").and_then(Value::as_u64);
        Ok(user.map(u32::try_from).transpose()?)
    }

    /// The folder that the worker keeps between requests.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.join("volumes/runtime-data")
    }

    /// What runs of requests: the worker's own process and everything that the tests started.
    ///
    /// # Errors
    /// The pod's files can't be read.
    pub fn requests(&self) -> Result<Vec<u32>> {
        let user = self.user()?;
        let container = self.container()?;
        let marker = self.folder.to_string_lossy().into_owned();
        Ok(processes()
            .filter(|pid| *pid != container)
            .filter(|pid| user.is_some_and(|user| has_user(*pid, user)) || mentions(*pid, &marker))
            .collect())
    }

    /// The worker of the request that runs now.
    ///
    /// # Errors
    /// The pod's files can't be read.
    pub fn worker(&self) -> Result<Option<u32>> {
        self.running("warmhold-worker run")
    }

    /// A process of a request whose command line ends in these words.
    ///
    /// # Errors
    /// The pod's files can't be read.
    pub fn running(&self, words: &str) -> Result<Option<u32>> {
        Ok(self.requests()?.into_iter().find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").trim_end().ends_with(words)
        }))
    }

    fn local(&self) -> Result<Value> {
        read(&self.folder.join("local.json"))
    }
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Every process that isn't dead and merely waits to be fetched.
fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    })
}

fn has_user(pid: u32, user: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().any(|id| id.parse() == Ok(user))
}

fn mentions(pid: u32, marker: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.windows(marker.len()).any(|window| window == marker.as_bytes())
}
