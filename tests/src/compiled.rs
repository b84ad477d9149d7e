//! Compiled policies, shared by the tests' roots: compiling them anew for each root would be most of what a suite costs.
//!
//! The daemon trusts an entry only for the component, engine and settings that it was made from, so an old one is of no
//! consequence.

use crate::programs::workspace;
use anyhow::Result;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// More than a few builds' worth is thrown away.
const ENTRIES: usize = 64;

fn shared() -> PathBuf {
    workspace().join("target/tmp/compiled-policies")
}

/// Gives a new root what others compiled.
pub(crate) fn seed(root: &Path) -> Result<()> {
    let cache = root.join("cache");
    if cache.exists() || !shared().is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&cache)?;
    copy_new(&shared(), &cache)
}

/// Keeps what a root compiled for others.
pub(crate) fn keep(root: &Path) -> Result<()> {
    let shared = shared();
    if fs::read_dir(&shared).is_ok_and(|entries| entries.count() > ENTRIES) {
        let _ = fs::remove_dir_all(&shared);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&shared)?;
    copy_new(&root.join("cache"), &shared)
}

fn copy_new(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let whole = entry.path().extension().is_some_and(|extension| extension == "cwasm" || extension == "sha256");
        let target = to.join(entry.file_name());
        if !whole || target.exists() {
            continue;
        }
        // Several tests do this at once: nobody sees half a file.
        let part = tempfile::Builder::new().prefix(".part-").tempfile_in(to)?;
        fs::copy(entry.path(), part.path())?;
        part.persist(target)?;
    }
    Ok(())
}
