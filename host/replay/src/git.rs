//! The source repository, read through the `git` program.
//!
//! Configuration of the user or the machine, hooks and prompts have no say here: an answer depends on the repository
//! and the commit alone.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Long for a look into a local repository, short for a person who waits.
const LIMIT: Duration = Duration::from_secs(20);

/// Why git gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GitError {
    /// The program can't be started.
    #[error("git can't be started: {0}")]
    NotStarted(String),
    /// It took too long.
    #[error("git took longer than {} s in {repository}", LIMIT.as_secs())]
    TimedOut {
        /// Where.
        repository: String,
    },
    /// It refused.
    #[error("git in {repository}: {message}")]
    Refused {
        /// Where.
        repository: String,
        /// Its own words, one line.
        message: String,
    },
    /// The revision names no commit.
    #[error("{revision} is no commit of {repository}")]
    UnknownCommit {
        /// What was asked for.
        revision: String,
        /// Where.
        repository: String,
    },
}

/// One repository.
#[derive(Clone, Debug)]
pub struct Git {
    repository: String,
}

impl Git {
    /// The repository in this folder.
    #[must_use]
    pub fn new(repository: impl Into<String>) -> Self {
        Self { repository: repository.into() }
    }

    /// The full id of the commit that a revision names.
    ///
    /// # Errors
    /// [`GitError::UnknownCommit`] where there's none, and when git can't be asked.
    pub async fn commit(&self, revision: &str) -> Result<String, GitError> {
        let unknown = || GitError::UnknownCommit { revision: revision.to_owned(), repository: self.repository.clone() };
        // A revision beginning with a dash would be an option.
        if revision.is_empty() || revision.starts_with('-') || revision.contains(['\0', '\n']) {
            return Err(unknown());
        }
        let revision = format!("{revision}^{{commit}}");
        match self.ask(&["rev-parse", "--verify", "--quiet", "--end-of-options", &revision], "").await {
            Ok(text) => Ok(text.trim().to_owned()),
            // Only `--quiet` leaves nothing to say: the repository is there and has no such commit.
            Err(GitError::Refused { message, .. }) if message.is_empty() => Err(unknown()),
            Err(error) => Err(error),
        }
    }

    /// The object ids of these paths at a commit, in order; none where there is no file.
    ///
    /// # Errors
    /// When git can't be asked.
    pub async fn blobs(&self, commit: &str, paths: &[String]) -> Result<Vec<Option<String>>, GitError> {
        let input: String = paths.iter().map(|path| format!("{commit}:{path}\n")).collect();
        let answer = self.ask(&["cat-file", "--batch-check=%(objecttype) %(objectname)"], &input).await?;
        Ok(answer.lines().map(|line| line.strip_prefix("blob ").map(str::to_owned)).collect())
    }

    async fn ask(&self, arguments: &[&str], input: &str) -> Result<String, GitError> {
        let mut command = Command::new("git");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("LC_ALL", "C")
            .args(["-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-C"])
            .arg(&self.repository)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| GitError::NotStarted(error.to_string()))?;
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A git that has already refused closes its end; its status says so.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let both = async { tokio::join!(child.wait_with_output(), feed).0 };
        let output = tokio::time::timeout(LIMIT, both)
            .await
            .map_err(|_| GitError::TimedOut { repository: self.repository.clone() })?
            .map_err(|error| GitError::NotStarted(error.to_string()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            return Err(GitError::Refused { repository: self.repository.clone(), message });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Files that were found at a commit. A commit never changes, so git needn't be started again to say the same; what
/// wasn't found may come with the next fetch, and isn't remembered.
#[derive(Debug, Default)]
pub(crate) struct Found(Mutex<HashSet<String>>);

impl Found {
    /// So many are remembered; then it begins anew.
    const MOST: usize = 10_000;

    fn name(source: &str, commit: &str, file: &str) -> String {
        [source, commit, file].join("\0")
    }

    /// Whether each of these files was found.
    pub(crate) fn has(&self, source: &str, commit: &str, files: &[String]) -> bool {
        let known = self.0.lock();
        files.iter().all(|file| known.contains(&Self::name(source, commit, file)))
    }

    /// These were found.
    pub(crate) fn add(&self, source: &str, commit: &str, files: &[String]) {
        let mut known = self.0.lock();
        if known.len() + files.len() > Self::MOST {
            known.clear();
        }
        known.extend(files.iter().map(|file| Self::name(source, commit, file)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_found_at_this_commit_of_this_source_is_known() {
        let found = Found::default();
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        found.add("/one", "c1", &files(&["a", "b"]));
        assert!(found.has("/one", "c1", &files(&["b"])));
        assert!(!found.has("/one", "c1", &files(&["a", "c"])), "all of them count");
        assert!(!found.has("/one", "c2", &files(&["a"])));
        assert!(!found.has("/two", "c1", &files(&["a"])));
    }

    #[test]
    fn it_doesnt_grow_for_ever() {
        let found = Found::default();
        for number in 0..=Found::MOST {
            found.add("/one", "c", &[number.to_string()]);
        }
        assert!(found.0.lock().len() <= Found::MOST);
        assert!(found.has("/one", "c", &[Found::MOST.to_string()]));
    }
}
