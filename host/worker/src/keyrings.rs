//! The kernel's keyrings: a user's own ones outlive every process, so a key in them would reach the next request.

use crate::sys;
use std::io;

/// What `keyctl` calls its operations and the special keyrings (`keyctl(2)`).
const JOIN_SESSION: libc::c_int = 1;
const CLEAR: libc::c_int = 7;
const LINK: libc::c_int = 8;
const READ: libc::c_int = 11;
const GET_PERSISTENT: libc::c_int = 22;
const PROCESS: libc::c_int = -2;
const USER: libc::c_int = -4;
const USER_SESSION: libc::c_int = -5;

/// Leaves the keyring of the session that started the worker: keys of the daemon's user are none of a test's business.
pub(crate) fn fresh_session() {
    // A kernel or a sandbox that has no keyrings has nothing to leave.
    let _ = sys::keyctl(JOIN_SESSION, 0, 0, 0);
}

/// Empties the keyrings of this process's user and looks whether they are empty: what isn't, one line each.
pub(crate) fn clear(uid: u32) -> Vec<String> {
    let mut left = Vec::new();
    for (name, keyring) in
        [("user keyring", Ok(USER)), ("user session keyring", Ok(USER_SESSION)), ("persistent keyring", persistent())]
    {
        let emptied = keyring.and_then(|keyring| {
            sys::keyctl(CLEAR, keyring, 0, 0)?;
            sys::keyctl(READ, keyring, 0, 0)
        });
        match emptied {
            Ok(0) => {}
            Ok(_) => left.push(format!("the {name} of the request's user isn't empty")),
            // No such thing here.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => {}
            // Container runtimes forbid the call, and with it usually all that would make a key.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                let table = std::fs::read_to_string("/proc/key-users").unwrap_or_default();
                if count(&table, uid) > 0 {
                    left.push(format!("the {name} of the request's user can't be emptied: keyctl is forbidden here"));
                }
            }
            Err(error) => left.push(format!("the {name} of the request's user can't be emptied: {error}")),
        }
    }
    // A new one has this link, and each request should find the same.
    let _ = sys::keyctl(LINK, USER, USER_SESSION, 0);
    left
}

fn persistent() -> io::Result<libc::c_int> {
    // -1 is the caller's own; it is linked to the process's keyring so that the caller possesses it.
    let id = sys::keyctl(GET_PERSISTENT, -1, PROCESS, 0)?;
    libc::c_int::try_from(id).map_err(io::Error::other)
}

/// How many keys `/proc/key-users` counts for a user: `UID: USAGE KEYS/INSTANTIATED …`.
fn count(table: &str, uid: u32) -> u64 {
    let own = format!("{uid}:");
    table
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(&own))
        .filter_map(|rest| rest.split_whitespace().nth(1)?.split('/').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_by_user() {
        let table = "    0:    11 10/10 4/1000000 55/25000000\n200003:     4 4/3 3/200 64/20000\n";
        assert_eq!((count(table, 0), count(table, 200_003), count(table, 3), count("", 3)), (10, 4, 0, 0));
    }
}
