//! Memory kills that the container's own control group tells of.

use std::path::{Path, PathBuf};

/// How many processes the kernel has ended in this control group for want of memory: none when it can't be told.
pub(crate) fn kills() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    candidates(&groups).iter().find_map(|path| count(path))
}

/// Version 2 in its usual places, then version 1. Inside a container the group's own path may be the mount's root.
fn candidates(groups: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let path = path.trim_start_matches('/');
        let (roots, file): (&[&str], &str) = match controllers {
            "" => (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.events"),
            named if named.split(',').any(|name| name == "memory") => {
                (&["/sys/fs/cgroup/memory"], "memory.oom_control")
            }
            _ => continue,
        };
        for root in roots {
            paths.push(Path::new(root).join(path).join(file));
            paths.push(Path::new(root).join(file));
        }
    }
    paths
}

fn count(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let paths = candidates("4:memory:/pods/a\n1:cpu:/x\n0::/b\n");
        assert!(paths.contains(&PathBuf::from("/sys/fs/cgroup/memory/pods/a/memory.oom_control")));
        assert!(paths.contains(&PathBuf::from("/sys/fs/cgroup/b/memory.events")));
        assert!(candidates("nonsense").is_empty());
    }

    #[test]
    fn the_count_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.events");
        std::fs::write(&file, "low 0\noom 3\noom_kill 2\noom_group_kill 9\n").unwrap();
        assert_eq!(count(&file), Some(2));
        assert_eq!(count(&dir.path().join("none")), None);
    }
}
