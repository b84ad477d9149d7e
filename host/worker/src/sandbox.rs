//! Landlock, for workers that aren't root: their tests run as the daemon's own user and could otherwise read its tokens
//! and write to the base tree. Landlock only ever allows, so hiding a directory means allowing all its neighbours.

use crate::helper::Sandbox;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use std::path::{Path, PathBuf};

/// The newest interface that this knows; an older kernel gives what it has.
const KNOWN: ABI = ABI::V6;

/// Restricts this process and all that come from it.
///
/// # Errors
/// A sentence, when the kernel gives nothing at all or refuses.
pub(crate) fn restrict(sandbox: &Sandbox) -> Result<(), String> {
    let wrong = |error: &dyn std::fmt::Display| format!("Landlock refused: {error}");
    let all = AccessFs::from_all(KNOWN);
    let devices = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
        .and_then(|rules| {
            rules
                .add_rules(path_beneath_rules(visible(Path::new("/"), &sandbox.hide), AccessFs::from_read(KNOWN)))?
                .add_rules(path_beneath_rules(["/dev"], devices))?
                .add_rules(path_beneath_rules(&sandbox.write, all))?
                .restrict_self()
        })
        .map_err(|error| wrong(&error))?;
    match rules.ruleset {
        RulesetStatus::NotEnforced => {
            Err("this kernel has no Landlock: the tests can read what the worker's user can".to_owned())
        }
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

/// The fewest paths that cover all of `directory` but what is hidden.
fn visible(directory: &Path, hide: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        if hide.iter().any(|hidden| path.starts_with(hidden)) {
            continue;
        }
        if !hide.iter().any(|hidden| hidden.starts_with(&path)) {
            found.push(path);
            continue;
        }
        // A directory that can't be listed can't be read by the tests either.
        waiting.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_hidden_is_visible() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for path in ["a/b/c", "a/b/d", "a/e", "f"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        let mut found = visible(root, &[root.join("a/b/c"), root.join("f")]);
        found.sort();
        assert_eq!(found, [root.join("a/b/d"), root.join("a/e")]);
        assert_eq!(visible(root, &[]), [root]);
        assert!(visible(root, &[root.to_owned()]).is_empty());
    }
}
