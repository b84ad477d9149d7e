//! The few system calls for which no safe wrapper exists. All the unsafe code of this program is here.
#![allow(unsafe_code, reason = "each call says why it is sound; everything else uses safe wrappers")]

use rustix::thread::UnshareFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Closes every descriptor but the three standard ones: whatever the starter leaked must not reach a test.
///
/// Call it before anything was opened.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn close_inherited() -> io::Result<()> {
    // SAFETY: called first thing in `main`, when no Rust object owns a descriptor above 2.
    if unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    // Kernels before 5.9 and some sandboxes lack the call.
    let listed: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in listed {
        // SAFETY: as above; the directory's own descriptor is closed already, and closing it again is only an error.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

const MOST_SIGNAL: i32 = 64;

/// Gives every signal its default action. Ignored signals survive exec, so a test would inherit what the daemon
/// ignores. The signal mask is reset by the standard library.
pub(crate) fn default_signals() {
    // A kernel's `sigaction` of zeros is the default action, no flags and no mask; none is larger than this.
    let default = [0_u64; 4];
    for signal in 1..=libc::c_long::from(MOST_SIGNAL) {
        let none = std::ptr::null_mut::<u64>();
        // The C library's own call keeps two signals for itself.
        // SAFETY: the action installs no handler and outlives the call, nothing is written back, and the mask's size is
        // the kernel's; it refuses the signals that can't be changed.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, 8_usize) };
    }
}

/// Leaves namespaces, for this thread and the processes that it starts.
///
/// # Errors
/// What the kernel answers, EPERM where the caller may not.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    let flags = flags & (UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUSER);
    // SAFETY: the flag that makes the call unsafe (a private table of descriptors) can't be among these.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Makes a detached mount read-only and shows its files as owned by whom the user namespace says.
///
/// # Errors
/// What the kernel answers; some file systems and old kernels can't.
pub(crate) fn map_owners(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?,
    };
    set_attributes(mount, &attributes, 0)
}

/// Sets and clears attributes (`MOUNT_ATTR_…`) of a mount; with `AT_RECURSIVE` in `flags`, of all below it too.
///
/// # Errors
/// What the kernel answers: EINVAL where no mount begins, ENOSYS before Linux 5.12.
pub(crate) fn mount_attributes(mount: BorrowedFd<'_>, set: u64, clear: u64, flags: libc::c_uint) -> io::Result<()> {
    set_attributes(mount, &libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 }, flags)
}

fn set_attributes(mount: BorrowedFd<'_>, attributes: &libc::mount_attr, flags: libc::c_uint) -> io::Result<()> {
    let flags = flags | libc::AT_EMPTY_PATH.unsigned_abs();
    // SAFETY: the descriptors live through the call, the path is empty and ends with a NUL, and the size is that of the
    // structure, which the kernel only reads.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Calls `keyctl` with arguments that are numbers: no operation that takes a pointer may be asked for, other than with 0.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn keyctl(operation: libc::c_int, first: libc::c_int, second: libc::c_int, third: usize) -> io::Result<i64> {
    let (operation, first, second) =
        (libc::c_long::from(operation), libc::c_long::from(first), libc::c_long::from(second));
    // SAFETY: no memory is passed; a null pointer with a length of 0 is never written to.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, operation, first, second, third, 0_usize) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
