//! The machine's name: it is hashed into the ownership of every row, so it must not change by itself.

use std::io;
use std::path::{Path, PathBuf};
use warmhold_control::MachineName;

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
/// root, the first one's. Makes `ROOT/control` (0700) when it isn't there.
///
/// # Errors
/// The file can't be written.
pub fn keep(root: &Path, name: &str) -> io::Result<String> {
    use std::io::Write as _;
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let path = kept_path(root);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root.join("control"))?;
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
    MachineName::fit(&rustix::system::uname().nodename().to_string_lossy()).as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_kept() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(kept(root.path()).expect("readable"), None);
        assert_eq!(keep(root.path(), "one").expect("kept"), "one");
        assert_eq!(keep(root.path(), "two").expect("kept"), "one");
        assert_eq!(kept(root.path()).expect("readable").as_deref(), Some("one"));
        assert_eq!(std::fs::read_dir(root.path().join("control")).expect("listed").count(), 1, "no draft is left");
    }
}
