//! The machine's name: it is hashed into the ownership of every row, so it must not change by itself.

use std::io;
use std::path::{Path, PathBuf};

/// The longest name that a primary document can hold.
const HOLDER_MAX: usize = 32;

/// Whether a token can be issued for this name: `[a-zA-Z0-9][a-zA-Z0-9._-]*`.
#[must_use]
pub fn is_machine_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Whether a primary document can name it as its holder: `[a-z0-9][a-z0-9-]{0,31}`.
#[must_use]
pub fn can_hold_primary(name: &str) -> bool {
    name.len() <= HOLDER_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Makes a host's name fit to hold the primary document: its first label in lower case, all else as hyphens.
#[must_use]
pub fn fit(host: &str) -> String {
    let label = host.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let name: String =
        label.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let name: String = name.trim_start_matches('-').chars().take(HOLDER_MAX).collect();
    let name = name.trim_end_matches('-');
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Where a root keeps the name that was chosen at its first start.
#[must_use]
pub fn kept_path(root: &Path) -> PathBuf {
    root.join("control").join("machine")
}

/// The name that this root was first served under; none before that.
///
/// # Errors
/// The file can't be read.
pub fn kept(root: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(kept_path(root)) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps the name for the next starts, and answers the name that is kept: of two daemons that start at once on a new
/// root, the first one's. The folder `ROOT/control` must be there.
///
/// # Errors
/// The file can't be written.
pub fn keep(root: &Path, name: &str) -> io::Result<String> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = kept_path(root);
    let draft = path.with_file_name(format!("machine.{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    let linked =
        writeln!(file, "{name}").and_then(|()| file.sync_all()).and_then(|()| std::fs::hard_link(&draft, &path));
    std::fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(kept(root)?.unwrap_or_else(|| name.to_owned())),
    }
}

/// The host's name made fit.
#[must_use]
pub fn of_this_host() -> String {
    fit(&rustix::system::uname().nodename().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_host_name_is_made_fit() {
        for (host, name) in [
            ("Build-07.example.org", "build-07"),
            ("my_mac", "my-mac"),
            ("--x--", "x"),
            ("", "localhost"),
            ("名前", "localhost"),
            ("a23456789-123456789-123456789-123456789", "a23456789-123456789-123456789-12"),
        ] {
            assert_eq!(fit(host), name, "{host}");
        }
    }

    #[test]
    fn the_first_name_is_kept() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("control")).expect("control");
        assert_eq!(kept(root.path()).expect("readable"), None);
        assert_eq!(keep(root.path(), "one").expect("kept"), "one");
        assert_eq!(keep(root.path(), "two").expect("kept"), "one");
        assert_eq!(kept(root.path()).expect("readable").as_deref(), Some("one"));
        assert_eq!(std::fs::read_dir(root.path().join("control")).expect("listed").count(), 1, "no draft is left");
    }

    proptest! {
        #[test]
        fn whatever_the_host_is_called_its_name_can_hold_the_primary(host in "\\PC{0,60}") {
            let name = fit(&host);
            prop_assert!(can_hold_primary(&name) && is_machine_name(&name), "{}", name);
        }
    }
}
