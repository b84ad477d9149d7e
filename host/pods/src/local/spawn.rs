//! How a process of a pod is started: in a session of its own, in its control group, with nothing of ours.

#![allow(
    unsafe_code,
    reason = "a new session, the control group and closed descriptors must be in place before the program runs, and the \
              standard library offers only `pre_exec` for that"
)]

use super::cgroup::Group;
use rustix::process::{Resource, Rlimit, setrlimit, setsid};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What is started.
pub(crate) struct Program<'a> {
    pub(crate) argv: &'a [String],
    /// The whole environment.
    pub(crate) env: &'a [(String, String)],
    pub(crate) cwd: &'a Path,
    /// A control group that it joins.
    pub(crate) cgroup: Option<&'a Group>,
    /// A limit on its data segment, for want of a control group that limits memory.
    pub(crate) data_limit: Option<u64>,
}

/// Makes the command; the caller gives it its streams and starts it.
///
/// # Errors
/// An empty argv, or a control group that can't be joined.
pub(crate) fn command(program: &Program<'_>) -> io::Result<Command> {
    let (first, rest) =
        program.argv.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty argv"))?;
    let mut command = Command::new(first);
    command.args(rest).env_clear().envs(program.env.iter().map(|(key, value)| (key, value))).current_dir(program.cwd);
    let groups: Vec<File> = program
        .cgroup
        .map(|group| group.paths().map(joining).collect::<io::Result<_>>())
        .transpose()?
        .unwrap_or_default();
    let data_limit = program.data_limit;
    let highest = highest_descriptor();
    // SAFETY: the closure runs between fork and exec of a process that may have other threads. It allocates nothing and
    // takes no lock: each call in it is one system call, made by rustix without libc. The borrowed descriptor is used for
    // one call, and a number that isn't open is `EBADF`.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            for group in &groups {
                // 0 is the writer itself, in both versions of control groups. After fork it has one thread.
                rustix::io::write(group.as_fd(), b"0")?;
            }
            if let Some(limit) = data_limit {
                setrlimit(Resource::Data, Rlimit { current: Some(limit), maximum: Some(limit) })?;
            }
            // Ours are all closed on exec already; this is for what we were started with ourselves.
            for raw in 3..=highest {
                let fd = BorrowedFd::borrow_raw(raw);
                let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
            }
            Ok(())
        });
    }
    Ok(command)
}

/// The file through which a process joins a group. Version 1 can move single threads: that is the whole of a process that
/// has just been forked, and spares it a grace period of the kernel's (12 ms), for which moving a process waits.
fn joining(group: &Path) -> io::Result<File> {
    let open = |name: &str| OpenOptions::new().write(true).open(group.join(name));
    match open("tasks") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open("cgroup.procs"),
        opened => opened,
    }
}

/// The highest descriptor that is open now. What others open after this is closed on exec by the standard library.
fn highest_descriptor() -> i32 {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(1024)
}
