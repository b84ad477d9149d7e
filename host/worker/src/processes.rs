//! The processes of a request: found in the table by their user and by their descent, ended until none is left.

use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// How long ending them may take. A process that hangs in the kernel can outlast any patience.
const PATIENCE: Duration = Duration::from_secs(10);

/// As much of a status as holds its first ten lines, whatever the process is called.
const BEGINNING: usize = 1024;

#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    uids: Vec<u32>,
    zombie: bool,
    name: String,
}

/// Every process that `/proc` shows.
fn table() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may be gone by now, which is what we want of it.
        processes.extend(process(pid));
    }
    Ok(processes)
}

/// One process, if there is one. What counts is at the beginning of its status, so one read is enough; a reader who wants
/// it all has to ask again and again, since `/proc` tells no lengths, and there may be thousands of processes.
fn process(pid: i32) -> Option<Process> {
    let mut status = [0; BEGINNING];
    let length = std::fs::File::open(format!("/proc/{pid}/status")).and_then(|mut file| file.read(&mut status)).ok()?;
    parse(pid, &String::from_utf8_lossy(status.get(..length)?))
}

/// Fields that the process itself can't write come after its name, and a newline in the name is escaped.
fn parse(pid: i32, status: &str) -> Option<Process> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some(Process {
        pid,
        parent: field("PPid:")?.parse().ok()?,
        uids: field("Uid:")?.split_whitespace().filter_map(|uid| uid.parse().ok()).collect(),
        zombie: field("State:")?.starts_with(['Z', 'X']),
        name: field("Name:")?.to_owned(),
    })
}

/// The live processes of a request: those of its user, and all that descend from this process. Orphans descend from
/// this process because it is a subreaper.
fn of_request(uid: Option<u32>) -> io::Result<Vec<Process>> {
    let table = table()?;
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let parents: HashMap<i32, i32> = table.iter().map(|process| (process.pid, process.parent)).collect();
    let descends = |pid: i32| {
        let mut seen = HashSet::new();
        let mut here = pid;
        // The table isn't taken in one moment: a chain of parents may lead in a circle.
        while let Some(&parent) = parents.get(&here) {
            if parent == own {
                return true;
            }
            if !seen.insert(parent) {
                return false;
            }
            here = parent;
        }
        false
    };
    let mut found = table;
    found.retain(|process| {
        process.pid != own
            && !process.zombie
            && (uid.is_some_and(|uid| process.uids.contains(&uid)) || descends(process.pid))
    });
    Ok(found)
}

/// What lives of a request or of its user, in words; empty when nothing does but the helper that cleans for it.
///
/// # Errors
/// When the table can't be read.
pub(crate) fn living(uid: Option<u32>, helper: Option<Pid>) -> io::Result<Vec<String>> {
    let helper = helper.map(|helper| helper.as_raw_nonzero().get());
    let found = of_request(uid)?.into_iter().filter(|process| Some(process.pid) != helper);
    Ok(found.map(|process| format!("process {} ({})", process.pid, process.name)).collect())
}

/// Whether the table shows this process with this user: a `/proc` that hides processes would prove nothing.
pub(crate) fn visible(pid: Pid, uid: u32) -> bool {
    process(pid.as_raw_nonzero().get()).is_some_and(|process| process.uids.contains(&uid))
}

/// Ends all processes that descend from this one and takes their exit statuses, until there is none; with them goes what
/// else the table shows of their user.
///
/// `stubborn` is called when they survive several rounds: they fork faster than they are found, and only one signal to
/// all processes of their user at once ends them.
///
/// # Errors
/// What is still there, one line each.
pub(crate) fn end_all(uid: Option<u32>, mut stubborn: impl FnMut()) -> Result<(), Vec<String>> {
    let began = Instant::now();
    let mut round: u32 = 0;
    loop {
        // Orphans come to this process, so having no child means that nothing descends from it: the kernel's own proof,
        // and far cheaper than the table.
        if !reap() {
            return Ok(());
        }
        let left = of_request(uid).map_err(|error| vec![format!("the process table: {error}")])?;
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(left.iter().map(|left| format!("process {} ({}) lives on", left.pid, left.name)).collect());
        }
        for process in &left {
            end(process.pid);
        }
        if round % 20 == 3 {
            stubborn();
        }
        // Dying takes the kernel a moment; longer ones don't deserve a busy core.
        std::thread::sleep(Duration::from_millis(u64::from(round.min(20))));
        round += 1;
    }
}

/// Ends what a killed worker left: it descends from nobody here, only its user tells. Bounded; whoever asks trusts
/// nothing afterwards in any case.
pub(crate) fn end_leftovers(uid: Option<u32>) {
    for _ in 0..100 {
        if of_request(uid).is_ok_and(|left| left.is_empty()) {
            return;
        }
        end_once(uid);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One round of ending, from a thread that must not take exit statuses.
pub(crate) fn end_once(uid: Option<u32>) {
    for process in of_request(uid).unwrap_or_default() {
        end(process.pid);
    }
}

fn end(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have gone by itself.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Takes the statuses of all dead children; whether any child is left.
fn reap() -> bool {
    // Children that tell their end by another signal than usual would be passed over otherwise.
    let all = WaitOptions::NOHANG | WaitOptions::from_bits_retain(libc::__WALL.unsigned_abs());
    loop {
        match rustix::process::wait(all) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_and_a_name_cannot_forge_one() {
        let process = parse(7, "Name:\tPPid:\\n1\nState:\tS (sleeping)\nPPid:\t3\nUid:\t1\t2\t3\t4\n").unwrap();
        assert_eq!((process.parent, process.uids, process.zombie), (3, vec![1, 2, 3, 4], false));
        assert!(parse(7, "Name:\tx\nState:\tZ (zombie)\nPPid:\t3\nUid:\t1 1 1 1\n").unwrap().zombie);
        assert!(parse(7, "").is_none());
    }
}
