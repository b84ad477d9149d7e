//! Control groups: a pod's memory limits, and a mark that none of its processes can take off.
//!
//! A pod has a group below our own, each container one in it, each request one in its container's. Where none can be made
//! (no root, a read-only tree) there are none, and memory is limited by the data segment instead.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// One group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    pub(crate) path: PathBuf,
    /// The unified hierarchy.
    pub(crate) v2: bool,
}

impl Group {
    /// A group below this process's own in the hierarchy that controls memory; none where that isn't possible.
    pub(crate) fn below_own(name: &str) -> Option<Self> {
        let own = own()?;
        if own.v2 && !own.delegates_memory() {
            return None;
        }
        own.child(name).ok()
    }

    /// Makes a group below this one.
    pub(crate) fn child(&self, name: &str) -> io::Result<Self> {
        let path = self.path.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { path, v2: self.v2 }),
        }
    }

    /// Limits the memory of everything in it and below, in bytes; swap isn't a way around it.
    pub(crate) fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        if self.v2 {
            fs::write(self.path.join("memory.max"), bytes.to_string())?;
            let _ = fs::write(self.path.join("memory.swap.max"), "0");
        } else {
            fs::write(self.path.join("memory.limit_in_bytes"), bytes.to_string())?;
            let _ = fs::write(self.path.join("memory.memsw.limit_in_bytes"), bytes.to_string());
        }
        Ok(())
    }

    /// On the unified hierarchy children have a memory controller only when their parent says so, and the parent may only
    /// say so while no process is in it.
    pub(crate) fn delegates_memory(&self) -> bool {
        let control = self.path.join("cgroup.subtree_control");
        let has =
            || fs::read_to_string(&control).is_ok_and(|text| text.split_whitespace().any(|word| word == "memory"));
        has() || (fs::write(&control, "+memory").is_ok() && has())
    }

    /// Everything in it and below.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        each(&self.path, &mut |path| {
            let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        });
        found
    }

    /// Kills everything in it and below in one step, where the kernel can; elsewhere the caller does it one by one.
    pub(crate) fn kill(&self) {
        if self.v2 {
            let _ = fs::write(self.path.join("cgroup.kill"), "1");
        }
    }

    /// The groups directly below whose name begins so.
    pub(crate) fn children(&self, prefix: &str) -> Vec<Self> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| Self { path: entry.path(), v2: self.v2 })
            .collect()
    }

    /// Removes it and everything below. A group whose last process has just ended may be busy for a moment.
    pub(crate) fn remove(&self) {
        let mut paths = Vec::new();
        each(&self.path, &mut |path| paths.push(path.to_owned()));
        for path in paths.iter().rev() {
            for _ in 0..50 {
                match fs::remove_dir(path) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        thread::sleep(Duration::from_millis(2))
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Parents before their children.
fn each(path: &Path, act: &mut impl FnMut(&Path)) {
    if !path.is_dir() {
        return;
    }
    act(path);
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            each(&entry.path(), act);
        }
    }
}

/// This process's own group: version 1's memory hierarchy where there is one, else the unified one.
fn own() -> Option<Group> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    locate(&membership, &mounts)
}

fn locate(membership: &str, mounts: &str) -> Option<Group> {
    let mut v1 = None;
    let mut v2 = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            v2 = Some(path);
        } else if controllers.split(',').any(|name| name == "memory") {
            v1 = Some(path);
        }
    }
    let (path, is_v2) = v1.map(|path| (path, false)).or_else(|| v2.map(|path| (path, true)))?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        let fits =
            if is_v2 { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|o| o == "memory") };
        if !fits {
            return None;
        }
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Group { path: Path::new(point).join(below), v2: is_v2 })
    })
}

#[cfg(test)]
mod tests {
    use super::locate;
    use std::path::Path;

    #[test]
    fn finds_its_own_group_in_both_versions_and_below_a_mounted_part() {
        let v1 = "5:devices:/\n4:cpu,memory:/a/b\n0::/c\n";
        let mounts = "30 20 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      31 20 0:2 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,cpu,memory\n";
        let found = locate(v1, mounts).unwrap();
        assert_eq!((found.path.as_path(), found.v2), (Path::new("/sys/fs/cgroup/memory/a/b"), false));
        let found = locate("0::/c\n", mounts).unwrap();
        assert_eq!((found.path.as_path(), found.v2), (Path::new("/sys/fs/cgroup/unified/c"), true));
        let part = "31 20 0:2 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(locate("0::/a/b\n", part).unwrap().path, Path::new("/sys/fs/cgroup/b"));
        assert!(locate("0::/elsewhere\n", part).is_none());
        assert!(locate("", "").is_none());
    }
}
