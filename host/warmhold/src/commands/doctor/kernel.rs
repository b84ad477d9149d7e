//! What this machine's kernel offers to keep tests apart.

use super::Check;
use std::path::Path;

pub(super) fn check() -> Vec<Check> {
    let root = rustix::process::geteuid().is_root();
    vec![user(root), overlay(root), namespaces(root), landlock(root), memory()]
}

fn user(root: bool) -> Check {
    if root {
        Check::ok("user", "root: each request gets a user of its own")
    } else {
        Check::warn(
            "user",
            "not root: tests run as this user, and isolation is reduced",
            "run serve as root where tests must be kept apart from the daemon's own files",
        )
    }
}

fn overlay(root: bool) -> Check {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let name = "overlay";
    if known.lines().any(|line| line.split_whitespace().next_back() == Some("overlay")) {
        Check::ok(name, if root { "known to the kernel" } else { "known to the kernel; mounting it may need root" })
    } else {
        Check::warn(
            name,
            "the kernel has no overlay file system, so that each request copies the tree",
            "modprobe overlay",
        )
    }
}

fn namespaces(root: bool) -> Check {
    let name = "namespaces";
    let missing: Vec<_> = ["mnt", "net", "pid", "user"]
        .into_iter()
        .filter(|kind| !Path::new("/proc/self/ns").join(kind).exists())
        .collect();
    if !missing.is_empty() {
        let detail = format!("the kernel lacks {}", missing.join(", "));
        return Check::warn(name, detail, "run on a kernel with namespaces: without them isolation is reduced");
    }
    let allowed = ["/proc/sys/user/max_net_namespaces", "/proc/sys/user/max_user_namespaces"]
        .into_iter()
        .all(|file| std::fs::read_to_string(file).map_or(true, |limit| limit.trim() != "0"));
    let restricted = !root
        && ["/proc/sys/kernel/unprivileged_userns_clone", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"]
            .into_iter()
            .zip(["0", "1"])
            .any(|(file, closed)| std::fs::read_to_string(file).is_ok_and(|value| value.trim() == closed));
    if allowed && !restricted {
        Check::ok(name, "mount, network, process and user namespaces are there")
    } else {
        Check::warn(
            name,
            "this user may make none, so that the network can't be proven closed",
            "run serve as root, or allow user namespaces (sysctl)",
        )
    }
}

fn landlock(root: bool) -> Check {
    let name = "landlock";
    match std::fs::read_to_string("/sys/kernel/security/lsm") {
        Ok(modules) if modules.split(',').any(|module| module.trim() == "landlock") => Check::ok(name, "active"),
        _ if root => Check::ok(name, "not needed: tests run under users of their own"),
        Ok(_) => Check::warn(
            name,
            "isn't active, so that tests could read the daemon's tokens",
            "boot with lsm=landlock,…, or run serve as root",
        ),
        Err(_) => Check::warn(
            name,
            "can't tell whether it is active (/sys/kernel/security isn't mounted)",
            "the isolation line of a replay tells; or run serve as root",
        ),
    }
}

fn memory() -> Check {
    let writable = ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs"]
        .into_iter()
        .any(|file| rustix::fs::access(file, rustix::fs::Access::WRITE_OK).is_ok());
    if writable {
        Check::ok("memory limits", "by cgroups")
    } else {
        Check::warn(
            "memory limits",
            "cgroups can't be written, so that a limit counts for each process alone",
            "delegate a cgroup to this user, or run serve as root",
        )
    }
}
