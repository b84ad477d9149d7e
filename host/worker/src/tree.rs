//! The private directories of a request and the tree that its tests see: the base tree under a layer of the request's
//! own, so that what they write never reaches the base.

use crate::confine;
use crate::helper::{self, Action, Helper, Order};
use crate::sys;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The directories that belong to the request's user.
const OWN: [&str; 7] = ["state", "tmp", "config", "cache", "data", "runtime", "artifacts"];

/// How long the overlay may stay in use after the last process was ended.
const UNMOUNT_PATIENCE: Duration = Duration::from_millis(300);

/// Where a request lives.
#[derive(Debug)]
pub(crate) struct Place {
    root: PathBuf,
    uid: Option<u32>,
    /// The upper layer where the tree is an overlay; none where it is a copy.
    overlay: bool,
}

impl Place {
    /// Makes the directories and the tree.
    ///
    /// `plain` says that all of the base belongs to this process's own user. With `mounts` the tree is an overlay in a mount namespace of this thread's own; where that can't be had, a copy.
    /// On failure the place is handed back for cleaning all the same.
    pub(crate) fn make(
        requests: &Path,
        generation: u64,
        uid: Option<u32>,
        (base, plain): (&Path, bool),
        mounts: bool,
    ) -> (Self, Result<(), String>) {
        let mut place = Self { root: requests.join(generation.to_string()), uid, overlay: false };
        let made = place.fill(requests, base, plain, mounts);
        (place, made)
    }

    fn fill(&mut self, requests: &Path, base: &Path, plain: bool, mounts: bool) -> Result<(), String> {
        let wrong = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        // Searchable by the request's user, who has nothing to list here.
        let mut crossing = DirBuilder::new();
        crossing.mode(0o711);
        match crossing.create(requests) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(wrong(requests, error)),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&self.root).map_err(|error| wrong(&self.root, error))?;
        if self.uid.is_some() {
            // Other workers' tests run as other users on the same machine. The group lets this request's user cross, and
            // nobody else; it isn't the owner, so that tests can't exchange what is in here.
            lchown(&self.root, None, self.uid)
                .and_then(|()| fs::set_permissions(&self.root, fs::Permissions::from_mode(0o710)))
                .map_err(|error| wrong(&self.root, error))?;
        }
        // Owners other than this process's own user have no place in the map. Early: it gets ready while the directories are made.
        let users = (mounts && plain).then_some(self.uid).flatten().and_then(|uid| Users::start(uid).ok());
        for path in OWN.map(|name| self.own(name)) {
            DirBuilder::new().mode(0o700).create(&path).map_err(|error| wrong(&path, error))?;
            self.give(&path).map_err(|error| wrong(&path, error))?;
        }
        let tree = self.tree();
        fs::create_dir(&tree).map_err(|error| wrong(&tree, error))?;
        let owned = if mounts && let Ok(owned) = self.mount(base, users) {
            self.overlay = true;
            owned
        } else {
            copy(base, &tree)?;
            false
        };
        if self.uid.is_some() && !owned {
            self.give_all(&tree)?;
        }
        Ok(())
    }

    /// Shows the base, read-only and as the request user's own, in another place: copying it up then needs no other
    /// owner, so that a large tree costs nothing until it is written to.
    fn map(&self, base: &Path, users: Users) -> io::Result<PathBuf> {
        let users = users.namespace()?;
        let mapped = self.own("base");
        DirBuilder::new().mode(0o700).create(&mapped)?;
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let shown = rustix::mount::open_tree(rustix::fs::CWD, base, clone)?;
        sys::map_owners(shown.as_fd(), users.as_fd())?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&shown, c"", rustix::fs::CWD, &mapped, flags)?;
        Ok(mapped)
    }

    /// Lays an overlay over the base; whether it belongs to the request's user already.
    fn mount(&self, base: &Path, users: Option<Users>) -> io::Result<bool> {
        let before = File::open("/proc/thread-self/ns/mnt")?;
        own_mounts()?;
        let confined = self.root.ancestors().nth(2).is_some_and(|data| confine::confine(data, base).is_ok());
        if !confined {
            // Half of it would be in the way; without it, what is left in shared places is looked for afterwards.
            rustix::thread::move_into_link_name_space(before.as_fd(), Some(LinkNameSpaceType::Mount))?;
            own_mounts()?;
        }
        let (upper, work) = (self.own("upper"), self.own("work"));
        DirBuilder::new().mode(0o755).create(&upper)?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(fs::metadata(base)?.mode() & 0o777))?;
        DirBuilder::new().mode(0o700).create(&work)?;
        self.give(&upper)?;
        let mapped = users.and_then(|users| self.map(base, users).ok());
        let lower = mapped.as_deref().unwrap_or(base);
        // Copying up only the owner, not the bytes, is what makes giving the tree away cheap.
        let options = |extra: &str| {
            let text = [
                b"lowerdir=",
                &escape(lower)[..],
                b",upperdir=",
                &escape(&upper),
                b",workdir=",
                &escape(&work),
                extra.as_bytes(),
            ];
            CString::new(text.concat())
        };
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let tree = self.tree();
        // Nothing in the tree outlives the request: without `volatile` (Linux 5.10) its end would wait until everything
        // that anybody wrote to this file system is on disk.
        let (fast, cheap, plain) = (options(",metacopy=on,volatile")?, options(",metacopy=on")?, options("")?);
        let mount = |options: &CString| rustix::mount::mount("overlay", &tree, "overlay", flags, options.as_c_str());
        let mounted = mount(&fast).or_else(|_| mount(&cheap)).or_else(|_| mount(&plain));
        if let Err(error) = mounted {
            let _ = fs::remove_dir(&upper);
            let _ = fs::remove_dir(&work);
            return Err(error.into());
        }
        // A second wall: where modes would let a test write to the base by its own path, the mount doesn't.
        if !confined {
            let _ = rustix::mount::mount_bind(base, base)
                .and_then(|()| rustix::mount::mount_remount(base, MountFlags::BIND | MountFlags::RDONLY, c""));
        }
        Ok(mapped.is_some())
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        self.uid.map_or(Ok(()), |uid| lchown(path, Some(uid), Some(uid)))
    }

    /// Children first: a directory that was given away may not be entered any more.
    fn give_all(&self, tree: &Path) -> Result<(), String> {
        let mut paths = vec![tree.to_owned()];
        let mut next = 0;
        while let Some(path) = paths.get(next).cloned() {
            next += 1;
            let wrong = |error: io::Error| format!("{}: {error}", path.display());
            if path.symlink_metadata().map_err(wrong)?.is_dir() {
                for entry in fs::read_dir(&path).map_err(wrong)? {
                    paths.push(entry.map_err(wrong)?.path());
                }
            }
        }
        paths.iter().rev().try_for_each(|path| self.give(path).map_err(|error| format!("{}: {error}", path.display())))
    }

    /// The tree that the tests see.
    pub(crate) fn tree(&self) -> PathBuf {
        self.own("tree")
    }

    /// A directory of the request by its name.
    pub(crate) fn own(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// All directories that tests may write to.
    pub(crate) fn writable(&self) -> Vec<PathBuf> {
        OWN.into_iter().chain(["tree"]).map(|name| self.own(name)).collect()
    }

    /// The directories that hold what tests wrote, once the overlay is gone.
    pub(crate) fn written(&self) -> Vec<PathBuf> {
        OWN.into_iter().chain([if self.overlay { "upper" } else { "tree" }]).map(|name| self.own(name)).collect()
    }

    /// The directory of the request.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Takes the overlay away.
    ///
    /// # Errors
    /// When somebody still holds it; it is then taken out of sight at least.
    pub(crate) fn unmount(&self) -> Result<(), String> {
        if !self.overlay {
            return Ok(());
        }
        let tree = self.tree();
        let began = Instant::now();
        let unmounted = loop {
            match rustix::mount::unmount(&tree, UnmountFlags::empty()) {
                // What held it may just have been ended: the kernel lets go of a dead process's files a little later.
                Err(rustix::io::Errno::BUSY) if began.elapsed() < UNMOUNT_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                unmounted => break unmounted,
            }
        };
        let unmounted = unmounted.map_err(|error| {
            let _ = rustix::mount::unmount(&tree, UnmountFlags::DETACH);
            format!("the overlay {} is still in use: {error}", tree.display())
        });
        // Not there when the base couldn't be mapped.
        let _ = rustix::mount::unmount(self.own("base"), UnmountFlags::DETACH);
        unmounted
    }
}

/// A user namespace in which root stands for the request's user; a helper holds it until it is taken.
struct Users {
    helper: Option<Helper>,
    uid: u32,
}

impl Users {
    /// Starts the helper and doesn't wait for it.
    fn start(uid: u32) -> io::Result<Self> {
        let order = Order { uid: None, sandbox: None, action: Action::Users };
        Ok(Self { helper: Some(Helper::start(&order, Stdio::null(), Stdio::null())?), uid })
    }

    /// Takes the namespace, and ends the helper.
    fn namespace(mut self) -> io::Result<File> {
        let helper = self.helper.as_mut().ok_or(io::ErrorKind::NotFound)?;
        helper::checked(helper.answer()?).map_err(io::Error::other)?;
        let own = |name: &str| format!("/proc/{}/{name}", helper.pid.as_raw_nonzero());
        for map in ["uid_map", "gid_map"] {
            fs::write(own(map), format!("0 {} 1\n", self.uid))?;
        }
        File::open(own("ns/user"))
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        if let Some(helper) = self.helper.take() {
            helper.end();
        }
    }
}

/// Mounts of this thread's own.
fn own_mounts() -> io::Result<()> {
    sys::unshare(UnshareFlags::NEWNS)?;
    Ok(rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// Overlay options are split at commas and colons.
fn escape(path: &Path) -> Vec<u8> {
    path.as_os_str()
        .as_bytes()
        .iter()
        .flat_map(|&byte| if matches!(byte, b',' | b':' | b'\\') { vec![b'\\', byte] } else { vec![byte] })
        .collect()
}

/// Copies a tree: directories, regular files with mode and time, links as they are.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let mut waiting = vec![(from.to_owned(), to.to_owned())];
    let mut modes = Vec::new();
    while let Some((from, to)) = waiting.pop() {
        let wrong = |error: io::Error| format!("copying {}: {error}", from.display());
        for entry in fs::read_dir(&from).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let wrong = |error: io::Error| format!("copying {}: {error}", source.display());
            let meta = entry.metadata().map_err(wrong)?;
            if meta.is_dir() {
                fs::create_dir(&target).map_err(wrong)?;
                waiting.push((source, target));
            } else if meta.is_symlink() {
                let link = fs::read_link(&source).map_err(wrong)?;
                std::os::unix::fs::symlink(link, &target).map_err(wrong)?;
            } else if meta.is_file() {
                fs::copy(&source, &target).map_err(wrong)?;
                let modified = meta.modified().map_err(wrong)?;
                // A file without write permission can't be opened for this; its time isn't worth a failure.
                let _ = File::options().write(true).open(&target).and_then(|file| file.set_modified(modified));
            } else {
                return Err(format!("copying {}: it is neither file, directory nor link", source.display()));
            }
        }
        modes.push((from, to));
    }
    // Last, because a directory may forbid writing.
    for (from, to) in modes.iter().rev() {
        fs::metadata(from)
            .and_then(|meta| fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777)))
            .map_err(|error| format!("copying {}: {error}", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::Powers;

    #[test]
    fn a_copy_keeps_modes_times_and_links() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join("a/b")).unwrap();
        fs::write(from.path().join("a/run"), "x").unwrap();
        fs::set_permissions(from.path().join("a/run"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(from.path().join("a/b"), fs::Permissions::from_mode(0o555)).unwrap();
        std::os::unix::fs::symlink("/nowhere", from.path().join("link")).unwrap();
        copy(from.path(), to.path()).unwrap();
        let (old, new) =
            (fs::metadata(from.path().join("a/run")).unwrap(), fs::metadata(to.path().join("a/run")).unwrap());
        assert_eq!((old.mode(), old.modified().unwrap()), (new.mode(), new.modified().unwrap()));
        assert_eq!(fs::metadata(to.path().join("a/b")).unwrap().mode() & 0o777, 0o555);
        assert_eq!(fs::read_link(to.path().join("link")).unwrap(), Path::new("/nowhere"));
        let socket = std::os::unix::net::UnixListener::bind(from.path().join("socket")).unwrap();
        let other = tempfile::tempdir().unwrap();
        assert!(copy(from.path(), other.path()).unwrap_err().contains("socket"));
        drop(socket);
    }

    #[test]
    fn an_overlay_that_is_held_for_a_moment_longer_is_taken_away_all_the_same() {
        if !Powers::own().namespaces {
            eprintln!("left out: it needs a mount namespace");
            return;
        }
        // The mounts of this test's other threads stay as they are.
        let thread = std::thread::spawn(|| {
            let (data, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            fs::write(base.path().join("file"), "x").unwrap();
            let requests = data.path().join("requests");
            let (place, made) = Place::make(&requests, 1, None, (base.path(), false), true);
            made.unwrap();
            if !place.overlay {
                eprintln!("left out: no overlay can be had here");
                return;
            }
            let held = File::open(place.tree().join("file")).unwrap();
            let holder = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(held);
            });
            let unmounted = place.unmount();
            holder.join().unwrap();
            unmounted.unwrap();
            assert!(!place.tree().join("file").exists());
        });
        thread.join().unwrap();
    }

    #[test]
    fn separators_in_paths_are_escaped() {
        assert_eq!(escape(Path::new("/a,b:c\\d")), b"/a\\,b\\:c\\\\d");
    }
}
