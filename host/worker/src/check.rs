//! What a command must be before anything of it runs. Refusals come in one fixed order, so that equal faults get equal
//! codes.

use crate::identity::Identity;
use globset::{Glob, GlobMatcher};
use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use warmhold_protocol::{Command, ENV_PROFILE, PROTOCOL, Refusal, Rule};

/// More files than this are several requests.
pub(crate) const MAX_FILES: usize = 4096;
/// The kernel's own limit is 4096; the verdict repeats every path and must stay small.
pub(crate) const MAX_PATH_BYTES: usize = 1024;

/// A refusal with a stable code.
pub(crate) fn refuse(code: &str, message: impl Into<String>) -> Refusal {
    Refusal { code: code.to_owned(), message: message.into() }
}

/// Whether the command is meant for this worker, and in words that it knows.
///
/// # Errors
/// `wrong-protocol`, `wrong-worker`, `wrong-key`, `wrong-cut`, `wrong-env-profile`.
pub(crate) fn identity(command: &Command, identity: &Identity) -> Result<(), Refusal> {
    if command.protocol != PROTOCOL {
        let message = format!("protocol {} was asked for, this worker speaks {PROTOCOL}", command.protocol);
        return Err(refuse("wrong-protocol", message));
    }
    if command.worker_id != identity.worker_id {
        let message = format!("the command is for worker {}, this is {}", command.worker_id, identity.worker_id);
        return Err(refuse("wrong-worker", message));
    }
    if command.key != identity.key {
        let differing: Vec<&str> = [
            ("context", command.key.context != identity.key.context),
            ("imageDigest", command.key.image_digest != identity.key.image_digest),
            ("lockHash", command.key.lock_hash != identity.key.lock_hash),
            ("architecture", command.key.architecture != identity.key.architecture),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect();
        return Err(refuse("wrong-key", format!("the command's key differs in {}", differing.join(", "))));
    }
    if command.cut_sha != identity.cut {
        let message = format!("the command is for cut {}, this worker has {}", command.cut_sha, identity.cut);
        return Err(refuse("wrong-cut", message));
    }
    if command.env_profile != ENV_PROFILE {
        let message = format!("the environment profile {} is unknown, only {ENV_PROFILE} is", command.env_profile);
        return Err(refuse("wrong-env-profile", message));
    }
    Ok(())
}

/// How long the request may take: the smaller of the budget and what the deadline leaves.
///
/// # Errors
/// `deadline-passed`.
pub(crate) fn time_left(command: &Command) -> Result<Duration, Refusal> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_millis(command.deadline_at).saturating_sub(now);
    let left = left.min(Duration::from_millis(command.budget_ms));
    if left.is_zero() {
        return Err(refuse("deadline-passed", "the deadline has passed; ask again with a later one"));
    }
    // A day is for ever here, and keeps every later addition within range.
    Ok(left.min(Duration::from_secs(24 * 60 * 60)))
}

/// What of the time left the tests don't get: ending them, cleaning and answering must fit before the deadline too, else
/// a test that is too slow costs the worker instead of only itself.
pub(crate) fn reserve(left: Duration) -> Duration {
    (left / 10).min(Duration::from_secs(3))
}

/// A file of the command, found in the base tree or not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A regular file, perhaps through links that stay in the tree.
    File,
    /// Nothing is there at this cut.
    Missing,
}

/// The files: at least one, distinct, plain relative paths that stay in the tree.
///
/// # Errors
/// `bad-file`.
pub(crate) fn files(command: &Command, repo: &Path) -> Result<Vec<Found>, Refusal> {
    let bad = |file: &str, why: &str| refuse("bad-file", format!("{file:?} {why}"));
    if command.files.is_empty() {
        return Err(refuse("bad-file", "no files were asked for"));
    }
    if command.files.len() > MAX_FILES {
        return Err(refuse("bad-file", format!("{} files are more than {MAX_FILES}", command.files.len())));
    }
    let mut seen = HashSet::new();
    let mut found = Vec::with_capacity(command.files.len());
    for file in &command.files {
        if let Some(why) = fault_of_path(file) {
            return Err(bad(file, why));
        }
        if !seen.insert(file.as_str()) {
            return Err(bad(file, "is named twice"));
        }
        found.push(match resolve(repo, Path::new(file)) {
            Ok(Some(path)) => match path.symlink_metadata() {
                Ok(meta) if meta.is_file() => Found::File,
                Ok(meta) if meta.is_dir() => return Err(bad(file, "is a directory")),
                Ok(_) => return Err(bad(file, "is no regular file")),
                Err(error) => return Err(bad(file, &error.to_string())),
            },
            Ok(None) => Found::Missing,
            Err(why) => return Err(bad(file, &why)),
        });
    }
    Ok(found)
}

/// Why a path can't name a test, from its text alone.
pub(crate) fn fault_of_path(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("is empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Some("is too long");
    }
    if path.contains('\0') {
        return Some("contains a NUL");
    }
    if path.starts_with('/') {
        return Some("is absolute");
    }
    path.split('/').find_map(|part| match part {
        "" => Some("isn't normalised: it has an empty component"),
        "." => Some("isn't normalised: it has the component ."),
        ".." => Some("has the component .."),
        _ => None,
    })
}

/// Follows links by hand and never out of the tree: none when nothing is there.
fn resolve(root: &Path, path: &Path) -> Result<Option<PathBuf>, String> {
    const MOST_LINKS: usize = 40;
    let outside = || "leads out of the tree through a link".to_owned();
    let mut waiting: Vec<PathBuf> = path.iter().rev().map(PathBuf::from).collect();
    let mut inside: Vec<PathBuf> = Vec::new();
    let mut links = 0;
    while let Some(part) = waiting.pop() {
        match part.components().next() {
            Some(Component::Normal(_)) => {}
            Some(Component::CurDir) | None => continue,
            Some(Component::ParentDir) => {
                inside.pop().ok_or_else(outside)?;
                continue;
            }
            Some(Component::RootDir | Component::Prefix(_)) => return Err(outside()),
        }
        inside.push(part);
        let here = root.join(inside.iter().collect::<PathBuf>());
        match here.symlink_metadata() {
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                if links > MOST_LINKS {
                    return Err("has too many links".to_owned());
                }
                let target = here.read_link().map_err(|error| error.to_string())?;
                inside.pop();
                waiting.extend(target.iter().rev().map(PathBuf::from));
            }
            Ok(meta) if !meta.is_dir() && !waiting.is_empty() => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(Some(root.join(inside.iter().collect::<PathBuf>())))
}

/// The profile's rules, compiled.
pub(crate) struct Rules(Vec<(GlobMatcher, Vec<String>)>);

impl Rules {
    /// Compiles them.
    ///
    /// # Errors
    /// `bad-rule`.
    pub(crate) fn compile(rules: &[Rule]) -> Result<Self, Refusal> {
        rules
            .iter()
            .map(|rule| {
                let bad = |why: String| refuse("bad-rule", format!("the rule for {:?}: {why}", rule.pattern));
                let glob = Glob::new(&rule.pattern).map_err(|error| bad(error.to_string()))?;
                if rule.run.first().is_none_or(String::is_empty) {
                    return Err(bad("it runs nothing".to_owned()));
                }
                if rule.run.iter().any(|argument| argument.contains('\0')) {
                    return Err(bad("an argument contains a NUL".to_owned()));
                }
                Ok((glob.compile_matcher(), rule.run.clone()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The argv of the first rule that matches.
    pub(crate) fn argv(&self, file: &str) -> Option<Vec<String>> {
        let (_, run) = self.0.iter().find(|(glob, _)| glob.is_match(file))?;
        Some(run.iter().map(|argument| argument.replace("{file}", file)).collect())
    }
}

/// The profile's variables must be ones that can be set.
///
/// # Errors
/// `bad-env`.
pub(crate) fn variables(env: &BTreeMap<String, String>) -> Result<(), Refusal> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(refuse("bad-env", format!("{name:?} can't be an environment variable")));
        }
        if name.starts_with("WARM_") {
            return Err(refuse("bad-env", format!("{name}: names that begin with WARM_ are the worker's own")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_paths_pass_and_all_others_say_why() {
        for good in ["a", "a/b.sh", "..a", "a..", "a/...", "-x", "a b", "ä/ö.py"] {
            assert_eq!(fault_of_path(good), None, "{good}");
        }
        for bad in ["", "/", "/a", "a/", "a//b", ".", "./a", "a/.", "..", "../a", "a/../b", "a/..", "a\0b"] {
            assert!(fault_of_path(bad).is_some(), "{bad:?}");
        }
        assert!(fault_of_path(&"a".repeat(MAX_PATH_BYTES + 1)).is_some());
    }

    #[test]
    fn links_are_followed_only_inside_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, root.join(at)).unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/t.sh"), "").unwrap();
        link("a/b/t.sh", "in");
        link("../t.sh", "a/b/up");
        link("b/t.sh", "a/down");
        link("a", "dir");
        link("/etc/passwd", "abs");
        link("../../etc/passwd", "rel");
        link("/nowhere/at/all", "dangling-out");
        link("nowhere", "dangling-in");
        link("loop", "loop");
        link("a/../../x", "sly");
        let at = |path: &str| resolve(root, Path::new(path));
        for good in ["a/b/t.sh", "in", "a/down", "dir/b/t.sh", "dir/down"] {
            assert_eq!(at(good), Ok(Some(root.join("a/b/t.sh"))), "{good}");
        }
        assert_eq!(at("a/b/up"), Ok(None));
        for missing in ["nope", "a/nope/x", "a/b/t.sh/x", "dangling-in"] {
            assert_eq!(at(missing), Ok(None), "{missing}");
        }
        for bad in ["abs", "rel", "dangling-out", "loop", "sly"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_matching_rule_wins_and_file_is_replaced_inside_arguments() {
        let rule = |pattern: &str, run: &[&str]| Rule {
            pattern: pattern.to_owned(),
            run: run.iter().map(|&argument| argument.to_owned()).collect(),
        };
        let rules =
            Rules::compile(&[rule("*.sh", &["sh", "{file}"]), rule("*", &["x", "--in={file},{file}"])]).unwrap();
        assert_eq!(rules.argv("deep/a.sh").unwrap(), ["sh", "deep/a.sh"]);
        assert_eq!(rules.argv("a.py").unwrap(), ["x", "--in=a.py,a.py"]);
        assert!(Rules::compile(&[]).unwrap().argv("a").is_none());
        for bad in [rule("[", &["x"]), rule("*", &[]), rule("*", &[""]), rule("*", &["a", "b\0"])] {
            assert_eq!(Rules::compile(&[bad]).err().unwrap().code, "bad-rule");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_never_leaves_the_tree(path in "[a-z./\\x00]{0,12}") {
            if fault_of_path(&path).is_none() {
                prop_assert!(Path::new(&path).components().all(|part| matches!(part, Component::Normal(_))));
                let again: PathBuf = Path::new(&path).iter().collect();
                prop_assert_eq!(again.to_str(), Some(path.as_str()));
            }
        }
    }
}
