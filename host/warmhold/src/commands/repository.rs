//! The caller's git repository: which commit is meant, and where in it a file lies.

use crate::error::CliError;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// The work tree around the current folder.
#[derive(Debug)]
pub(super) struct Repository {
    top: PathBuf,
    /// The current folder seen from the top.
    prefix: PathBuf,
}

impl Repository {
    /// The work tree that the current folder lies in; none outside of one.
    pub(super) fn here() -> Option<Self> {
        let top = git(["rev-parse", "--show-toplevel"].as_slice())?;
        let prefix = git(["rev-parse", "--show-prefix"].as_slice())?;
        Some(Self { top: PathBuf::from(top), prefix: PathBuf::from(prefix) })
    }

    /// The whole name of a commit.
    pub(super) fn commit(&self, name: &str) -> Option<String> {
        git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{name}^{{commit}}")])
    }

    /// A file as the repository names it.
    pub(super) fn relative(&self, file: &Path) -> Option<PathBuf> {
        if file.is_relative() {
            return normal(&self.prefix.join(file));
        }
        // The top is free of symbolic links; the caller's path may hold some, in folders and not in its last part.
        let inside = file.strip_prefix(&self.top).map(Path::to_owned).ok().or_else(|| {
            let folder = file.parent()?.canonicalize().ok()?;
            folder.join(file.file_name()?).strip_prefix(&self.top).map(Path::to_owned).ok()
        });
        normal(&inside?)
    }

    /// Which of these files don't lie in the work tree as they do in HEAD.
    pub(super) fn changed(&self, files: &[String]) -> Vec<String> {
        let mut command = Command::new("git");
        command.arg("-C").arg(&self.top).args(["status", "--porcelain=v1", "-z", "--no-renames", "--ignored", "--"]);
        command.args(files.iter().map(|file| format!(":(literal){file}")));
        let Ok(output) = command.stdin(Stdio::null()).stderr(Stdio::null()).output() else { return Vec::new() };
        // Two letters, a space and the path, each ended by a zero byte.
        String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter_map(|entry| entry.get(3..))
            .map(str::to_owned)
            .collect()
    }
}

/// The path without `.` and `..`, lexically; none when it leaves the top.
pub(super) fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!normal.as_os_str().is_empty()).then_some(normal)
}

/// Commit and files of a replay. Outside of a work tree both must already be as the repository names them.
pub(super) fn resolve(cut: Option<&str>, files: &[PathBuf]) -> Result<(String, Vec<String>), CliError> {
    let repository = Repository::here();
    let cut_sha = match (&repository, cut) {
        (Some(repository), name) => {
            let name = name.unwrap_or("HEAD");
            match repository.commit(name) {
                Some(sha) => sha,
                // The daemon may hold a commit that this clone doesn't.
                None if is_sha(name) => name.to_ascii_lowercase(),
                None => {
                    let error = CliError::usage("unknown-commit", format!("git knows no commit `{name}` here"));
                    return Err(error.with_help(
                        "git log --oneline shows the commits of this branch; a new repository needs a first one",
                    ));
                }
            }
        }
        (None, Some(name)) if is_sha(name) => name.to_ascii_lowercase(),
        (None, _) => {
            let error = CliError::usage(
                "no-repository",
                "the current folder is in no git work tree, so that no commit is meant",
            );
            return Err(error.with_help("go to the repository, or name the commit with --cut and all of its 40 digits"));
        }
    };
    let mut named = Vec::new();
    for file in files {
        let relative = match &repository {
            Some(repository) => repository.relative(file),
            None => normal(file),
        };
        let text = relative.as_deref().and_then(Path::to_str).map(str::to_owned).ok_or_else(|| {
            CliError::usage("bad-file", format!("{} is no file of the repository", file.display()))
                .with_help("name files below the repository's top folder, whose names are UTF-8")
        })?;
        if !named.contains(&text) {
            named.push(text);
        }
    }
    Ok((cut_sha, named))
}

fn is_sha(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn git<S: AsRef<OsStr>>(arguments: &[S]) -> Option<String> {
    let output = Command::new("git").args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_inside_or_is_refused() {
        for (path, expected) in [
            ("a/b", Some("a/b")),
            ("./a//b/.", Some("a/b")),
            ("a/../b", Some("b")),
            ("a/..", None),
            ("..", None),
            ("a/../../b", None),
            ("/a", None),
            ("", None),
        ] {
            assert_eq!(normal(Path::new(path)).as_deref(), expected.map(Path::new), "{path}");
        }
    }
}
