//! `ROOT/warmhold.toml`: typed, with defaults, and every fault of it at once.
//!
//! No file is a configuration too: then everything has its default. Paths are absolute or relative to the root.

mod control;
mod daemon;
mod fault;
mod grants;
pub mod machine;
mod policy;
mod profile;
mod rules;
#[cfg(test)]
mod tests;
mod units;
pub(crate) mod walk;

pub use control::{Control, is_control_url};
pub use daemon::{DEFAULT_POD_PATH, Daemon, HttpLimits, Primary};
pub use fault::{ConfigFaults, Fault};
pub use grants::{Grant, Grants, LOCAL_CONTEXT, LOCAL_NAMESPACE, VERBS};
pub use policy::{Policies, PolicySlot};
pub use profile::{Backend, DEFAULT_PROFILE, Kubectl, Profile, Source, Tier};
pub use rules::built_in as built_in_rules;
pub use units::{format_duration, format_size, parse_duration, parse_size};

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::DeTable;
use walk::{Table, Walk};

/// The largest file that is read as a configuration.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What the daemon runs with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The root that it was read for.
    pub root: PathBuf,
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// `[daemon]`.
    pub daemon: Daemon,
    /// `[policy.*]`.
    pub policy: Policies,
    /// `[profile.*]`, by name; at least one.
    pub profiles: BTreeMap<String, Profile>,
    /// `[control]`; none: this daemon's own.
    pub control: Option<Control>,
    /// `[grants.*]`.
    pub grants: Grants,
}

/// What the command line says instead of the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--config`: this file instead of `ROOT/warmhold.toml`; it must exist.
    pub file: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--machine`.
    pub machine: Option<String>,
    /// `--primary-lease` or `--no-primary`.
    pub primary: Option<Primary>,
    /// `--require-primary`.
    pub require_primary: bool,
}

impl Config {
    /// Reads `ROOT/warmhold.toml`, or the defaults when there is none. Nothing is written.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load(root: &Path) -> Result<Self, ConfigFaults> {
        Self::load_with(root, &Overrides::default())
    }

    /// As [`Config::load`], with the command line's own values in place of the file's.
    ///
    /// # Errors
    /// Every fault of the file and of those values.
    pub fn load_with(root: &Path, over: &Overrides) -> Result<Self, ConfigFaults> {
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let file = over.file.clone().unwrap_or_else(|| root.join("warmhold.toml"));
        let text = match read_file(&file) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && over.file.is_none() => None,
            Err(error) => {
                let fault = Fault {
                    key: String::new(),
                    line: None,
                    what: format!("it can't be read: {error}"),
                    help: "make it a readable UTF-8 file of at most 1 MiB".to_owned(),
                };
                return Err(ConfigFaults { file, faults: vec![fault] });
            }
        };
        let tree = git_tree(Path::new("."));
        parse(text.as_deref().unwrap_or_default(), &root, over, tree.as_deref())
            .map(|config| Self { file: text.is_some().then(|| file.clone()), ..config })
            .map_err(|faults| ConfigFaults { file, faults })
    }

    /// The profile that is meant when none is named: the only one, or `local`.
    #[must_use]
    pub fn default_profile(&self) -> Option<&Profile> {
        match self.profiles.len() {
            1 => self.profiles.values().next(),
            _ => self.profiles.get(DEFAULT_PROFILE),
        }
    }
}

fn read_file(file: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    // One byte more than the limit, so that a file at the limit is told from one beyond.
    let read = std::fs::File::open(file)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(text)
}

fn parse(text: &str, root: &Path, over: &Overrides, tree: Option<&Path>) -> Result<Config, Vec<Fault>> {
    let walk = Walk::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            let span: Option<Range<usize>> = error.span();
            let what = format!("this is no TOML: {}", error.message().replace('\n', ", "));
            walk.fault(
                "",
                span.as_ref(),
                what,
                "correct the line; strings need quotes, and each key stands once in its table",
            );
        }
        return Err(walk.into_faults());
    }
    let config = {
        let table = Table::root(&walk, document.get_ref());
        let daemon = daemon::read(table.table("daemon"), root, over);
        let policy = policy::read(table.table("policy"), root);
        let profile_table = table.table("profile");
        let profiles = profile::read_all(&profile_table, root, tree);
        let control = control::read(table.table("control"));
        let grants = grants::read(table.table("grants"));
        profile::check_grants(&profile_table, &profiles, &grants);
        table.finish();
        Config { root: root.to_owned(), file: None, daemon, policy, profiles, control, grants }
    };
    match walk.into_faults() {
        faults if faults.is_empty() => Ok(config),
        faults => Err(faults),
    }
}

/// An absolute path as it is, any other from the root.
fn resolve(root: &Path, path: &str) -> PathBuf {
    root.join(path)
}

/// The top folder of the git work tree that `at` lies in; none outside of one, or without git.
#[must_use]
pub fn git_tree(at: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let output = std::process::Command::new("git")
        .args(["rev-parse", "--show-toplevel"])
        .current_dir(at)
        .stdin(std::process::Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let mut path = output.stdout;
    if path.last() == Some(&b'\n') {
        path.pop();
    }
    (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(path)))
}
