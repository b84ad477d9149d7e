//! A git repository to replay from.

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A work tree with its history.
#[derive(Clone, Debug)]
pub struct Repository {
    /// The work tree.
    pub path: PathBuf,
}

impl Repository {
    /// An empty repository in a new folder.
    ///
    /// # Errors
    /// When git refuses.
    pub fn create(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        let repository = Self { path: path.to_owned() };
        repository.git(&["init", "--quiet", "--initial-branch=main"])?;
        Ok(repository)
    }

    /// A repository with one commit: what lies in a folder.
    ///
    /// # Errors
    /// When a file can't be copied, or git refuses.
    pub fn from_folder(path: &Path, folder: &Path) -> Result<Self> {
        let repository = Self::create(path)?;
        copy(folder, path)?;
        repository.commit("the example")?;
        Ok(repository)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path.join(file);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)?;
        Ok(())
    }

    /// Commits everything and answers the commit.
    ///
    /// # Errors
    /// When git refuses.
    pub fn commit(&self, message: &str) -> Result<String> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "--message", message])?;
        self.head()
    }

    /// The commit that is checked out.
    ///
    /// # Errors
    /// When there's none.
    pub fn head(&self) -> Result<String> {
        Ok(self.git(&["rev-parse", "HEAD"])?.trim().to_owned())
    }

    fn git(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("git")
            .args(["-c", "user.name=demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false"])
            .args(arguments)
            .current_dir(&self.path)
            .output()
            .context("git can't be started")?;
        if !output.status.success() {
            bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
