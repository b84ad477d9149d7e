//! Control groups: a pod's memory limits, and a mark that none of its processes can take off.
//!
//! A pod has a group below our own, each container one in it, each request one in its container's. Where none can be made
//! (no root, a read-only tree) there are none, and memory is limited by the data segment instead.
//!
//! A group is also the proof that nothing is left: the kernel refuses to remove one in which anything runs, however fast
//! that makes new processes and ends its old ones. A look at the process table can't prove that.

use super::process::Process;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The most processes and threads that a pod may have at once: enough for any test, and too few to stop the machine.
const MOST_PROCESSES: &str = "4096";

/// One group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    pub(crate) path: PathBuf,
    /// The unified hierarchy.
    pub(crate) v2: bool,
    /// In version 1 each controller has a hierarchy of its own: its groups in the other ones that are of use here, which
    /// are those that freeze and that limit the number of processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) also: Vec<PathBuf>,
}

impl Group {
    /// The group that this process may make below its own in the hierarchy that controls memory; none where that isn't
    /// possible. Nothing is made yet, so that it can be written down before.
    pub(crate) fn below_own(name: &str) -> Option<Self> {
        let own = own()?;
        if own.v2 && !own.delegates_memory() {
            return None;
        }
        Some(own.below(name))
    }

    /// The group of this name below this one, whether it exists or not.
    pub(crate) fn below(&self, name: &str) -> Self {
        Self { path: self.path.join(name), v2: self.v2, also: self.also.iter().map(|path| path.join(name)).collect() }
    }

    /// Makes a group below this one.
    pub(crate) fn child(&self, name: &str) -> io::Result<Self> {
        self.below(name).made()
    }

    /// Makes it where it doesn't exist; without what the other hierarchies refuse.
    pub(crate) fn made(mut self) -> io::Result<Self> {
        let make = |path: &Path| match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        make(&self.path)?;
        self.also.retain(|path| make(path).is_ok());
        Ok(self)
    }

    /// Limits the number of processes in it and below, where the kernel can.
    pub(crate) fn limit_processes(&self) {
        for path in self.paths() {
            if path.join("pids.max").exists() {
                let _ = fs::write(path.join("pids.max"), MOST_PROCESSES);
            }
        }
    }

    /// Its directories in all hierarchies. The first one is the one that proves.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.path.as_path()).chain(self.also.iter().map(PathBuf::as_path))
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
        // One by one: a controller that isn't there would take the other one along.
        let _ = fs::write(&control, "+pids");
        has() || (fs::write(&control, "+memory").is_ok() && has())
    }

    /// Everything in it and below.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        for path in self.paths() {
            each(path, &mut |path| {
                let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            });
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Kills everything in it and below: in one step where the kernel can, else while all of it stands still. Where
    /// neither is possible nothing is done, and the caller does it one by one.
    pub(crate) fn kill(&self) {
        if self.v2 && fs::write(self.path.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        let Some(freezer) = self.freezer() else { return };
        if fs::write(&freezer.switch, freezer.freeze).is_ok() {
            for _ in 0..50 {
                if fs::read_to_string(&freezer.state).is_ok_and(|text| text.lines().any(|line| line == freezer.frozen))
                {
                    break;
                }
                thread::sleep(Duration::from_millis(2));
            }
            // What is born meanwhile stands still too, so none is missed; they die when they may go on.
            for process in self.processes().into_iter().filter(|pid| *pid > 1).filter_map(Process::read) {
                process.signal(Signal::KILL);
            }
        }
        let _ = fs::write(&freezer.switch, freezer.thaw);
    }

    fn freezer(&self) -> Option<Freezer> {
        if self.v2 {
            let (switch, state) = (self.path.join("cgroup.freeze"), self.path.join("cgroup.events"));
            return switch.exists().then_some(Freezer { switch, state, freeze: "1", thaw: "0", frozen: "frozen 1" });
        }
        let switch = self.also.iter().map(|path| path.join("freezer.state")).find(|switch| switch.exists())?;
        Some(Freezer { state: switch.clone(), switch, freeze: "FROZEN", thaw: "THAWED", frozen: "FROZEN" })
    }

    /// The groups directly below whose name begins so.
    pub(crate) fn children(&self, prefix: &str) -> Vec<Self> {
        let mut names: Vec<String> = self
            .paths()
            .flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        names.iter().map(|name| self.below(name)).collect()
    }

    /// Removes it and everything below, and answers whether it is gone: then nothing runs that was in it.
    ///
    /// A group whose last process has just ended may be busy for a moment, so this is tried for a moment too.
    pub(crate) fn remove(&self) -> bool {
        for _ in 0..50 {
            // The first one first: while anything runs the others are still of use.
            if self.paths().all(remove_tree) {
                return true;
            }
            if !self.processes().is_empty() {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

/// How a group is made to stand still.
struct Freezer {
    switch: PathBuf,
    state: PathBuf,
    freeze: &'static str,
    thaw: &'static str,
    /// The line of the state that says that it does.
    frozen: &'static str,
}

/// Whether the directory is gone, with everything below.
fn remove_tree(path: &Path) -> bool {
    let mut paths = Vec::new();
    each(path, &mut |path| paths.push(path.to_owned()));
    for path in paths.iter().rev() {
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return false,
            _ => {}
        }
    }
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
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
    let mut group = locate(&membership, &mounts, "memory").or_else(|| locate(&membership, &mounts, ""))?;
    if !group.v2 {
        let others = ["freezer", "pids"].iter().filter_map(|controller| locate(&membership, &mounts, controller));
        group.also = others.map(|other| other.path).filter(|path| *path != group.path).collect();
        group.also.dedup();
    }
    Some(group)
}

/// This process's group in version 1's hierarchy with this controller; in the unified one for none.
fn locate(membership: &str, mounts: &str, controller: &str) -> Option<Group> {
    let has = |names: &str| names.split(',').any(|name| name == controller);
    let v2 = controller.is_empty();
    let path = membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        has(controllers).then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        let fits = if v2 { kind == "cgroup2" } else { kind == "cgroup" && has(options) };
        if !fits {
            return None;
        }
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Group { path: Path::new(point).join(below), v2, also: Vec::new() })
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
        let found = locate(v1, mounts, "memory").unwrap();
        assert_eq!((found.path.as_path(), found.v2), (Path::new("/sys/fs/cgroup/memory/a/b"), false));
        let found = locate("0::/c\n", mounts, "").unwrap();
        assert_eq!((found.path.as_path(), found.v2), (Path::new("/sys/fs/cgroup/unified/c"), true));
        assert!(locate("0::/c\n", mounts, "memory").is_none());
        let part = "31 20 0:2 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(locate("0::/a/b\n", part, "").unwrap().path, Path::new("/sys/fs/cgroup/b"));
        assert!(locate("0::/elsewhere\n", part, "").is_none());
        assert!(locate("", "", "memory").is_none());
    }
}
