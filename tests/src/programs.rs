//! Where the built programs and policies are.

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

/// The checkout.
#[must_use]
pub fn workspace() -> &'static Path {
    // This crate lies right below it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// The two programs and the policies, as `./x build` leaves them.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `warmhold`.
    pub warmhold: PathBuf,
    /// `warmhold-worker`.
    pub worker: PathBuf,
    /// The folder of components.
    pub policies: PathBuf,
}

impl Programs {
    /// Of one build, `debug` or `release`; those in the folder `WARMHOLD_PROGRAMS` where that is set, so that programs of
    /// another build can be tried.
    ///
    /// # Errors
    /// Something isn't built.
    pub fn of(build: &str) -> Result<Self> {
        let target = workspace().join("target");
        let folder = std::env::var_os("WARMHOLD_PROGRAMS").map_or_else(|| target.join(build), PathBuf::from);
        let programs = Self {
            warmhold: folder.join("warmhold"),
            worker: folder.join("warmhold-worker"),
            policies: target.join("policies"),
        };
        for file in [&programs.warmhold, &programs.worker] {
            if !file.is_file() {
                bail!(
                    "{} isn't built; run ./x build{}",
                    file.display(),
                    if build == "release" { " --release" } else { "" }
                );
            }
        }
        Ok(programs)
    }

    /// A component, by its name without `.wasm`.
    ///
    /// # Errors
    /// It isn't built.
    pub fn policy(&self, name: &str) -> Result<PathBuf> {
        let path = self.policies.join(format!("{name}.wasm"));
        std::fs::metadata(&path).with_context(|| format!("{} isn't built; run ./x build", path.display()))?;
        Ok(path)
    }
}
