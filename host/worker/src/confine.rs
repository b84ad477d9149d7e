//! What a request sees of the machine in its own mount namespace: everything read-only, fresh places where every user
//! may write, and none of the other pods. What a test writes anywhere but in its own directories ends with the request.

use crate::{shared, sys};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// File systems of the kernel's own that keep nothing of a test: the worker and terminals need to write there.
const LIVE: [&str; 2] = ["/proc", "/dev/pts"];

/// Half a gibibyte and a hundred thousand entries for each of the shared places. What is in them counts as the pod's
/// memory.
const FRESH: &std::ffi::CStr = c"mode=1777,size=512m,nr_inodes=100k";
/// For a place that only holds what is put back into it.
const EMPTY: &std::ffi::CStr = c"mode=0711,size=1m,nr_inodes=1k";

/// Where a pod of this machine has its volumes.
const VOLUMES: &str = "volumes";

/// Changes the mounts of this thread's namespace, which must be private. `data` stays writable for whom its modes let.
///
/// # Errors
/// What the kernel answers; the namespace is then in between and must be left.
pub(crate) fn confine(data: &Path, repo: &Path) -> io::Result<()> {
    let (data, repo) = (data.canonicalize()?, repo.canonicalize()?);
    let mut kept = Vec::new();
    let mut covers: Vec<(PathBuf, &std::ffi::CStr)> = Vec::new();
    for directory in shared::files() {
        if let Ok(directory) = directory.canonicalize()
            && directory.is_dir()
        {
            covers.push((directory, FRESH));
        }
    }
    if let Some((pods, volumes)) = pods(&data, &repo) {
        kept.push((volumes.to_owned(), clone(volumes)?));
        covers.push((pods.to_owned(), EMPTY));
    } else {
        kept.push((repo.clone(), clone(&repo)?));
    }
    for (_, mount) in &kept {
        sys::mount_attributes(mount.as_fd(), libc::MOUNT_ATTR_RDONLY, 0, 0)?;
    }
    // Last, because it may lie in what was kept before it.
    kept.push((data.clone(), clone(&data)?));

    let recursive = libc::c_uint::try_from(libc::AT_RECURSIVE).map_err(io::Error::other)?;
    sys::mount_attributes(place(Path::new("/"))?.as_fd(), libc::MOUNT_ATTR_RDONLY, 0, recursive)?;
    for live in LIVE {
        // Not every image has each of them as a mount.
        let _ = place(Path::new(live))
            .and_then(|place| sys::mount_attributes(place.as_fd(), 0, libc::MOUNT_ATTR_RDONLY, 0));
    }
    let mut covered: Vec<PathBuf> = Vec::new();
    for (directory, options) in covers {
        if covered.iter().any(|above| directory.starts_with(above)) {
            continue;
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", &directory, "tmpfs", flags, options)?;
        covered.push(directory);
    }
    let hidden = |path: &Path| covered.iter().any(|cover| path.starts_with(cover));
    for (path, mount) in kept {
        if hidden(&path) && !path.exists() {
            DirBuilder::new().recursive(true).mode(0o711).create(&path)?;
        }
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&mount, c"", CWD, &path, flags)?;
    }
    Ok(())
}

/// The folder of all pods and this pod's volumes, where the paths are those of a pod of this machine:
/// `PODS/NAMESPACE/POD/volumes/…`.
fn pods<'a>(data: &'a Path, repo: &Path) -> Option<(&'a Path, &'a Path)> {
    let volumes = data.ancestors().find(|above| repo.starts_with(above))?;
    let pods = volumes.ancestors().nth(3)?;
    (volumes.file_name()? == VOLUMES && pods.parent().is_some() && fs::metadata(pods).is_ok())
        .then_some((pods, volumes))
}

/// A mount of a directory that is nowhere yet.
fn clone(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(rustix::mount::open_tree(CWD, directory, flags)?)
}

fn place(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_pods_is_known_by_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = dir.path().join("pods/warm/one/volumes");
        fs::create_dir_all(&volumes).unwrap();
        let (data, repo) = (volumes.join("runtime-data"), volumes.join("workspace/repo"));
        assert_eq!(pods(&data, &repo), Some((dir.path().join("pods").as_path(), volumes.as_path())));
        assert_eq!(pods(Path::new("/workspace/data"), Path::new("/workspace/repo")), None);
        assert_eq!(pods(Path::new("/a/volumes/data"), Path::new("/a/volumes/repo")), None);
        assert_eq!(
            pods(Path::new("/a/b/volumes/data"), Path::new("/a/b/volumes/repo")),
            None,
            "not all of the machine"
        );
    }
}
