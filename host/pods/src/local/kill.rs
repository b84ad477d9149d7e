//! Ending everything of a pod or of one request, and proving it.

use super::cgroup::Group;
use super::process::{self, Identity, Process};
use rustix::process::Signal;
use std::collections::HashSet;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Which processes are meant. Each mark alone is enough; what one misses another finds: a process can leave its parent
/// and its session, but not its control group, nor (but for root) its user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// These, their sessions and their descendants.
    pub(crate) roots: Vec<Identity>,
    /// Everything in this control group and below it.
    pub(crate) group: Option<Group>,
    /// Everything of this user, who has no other business.
    pub(crate) uid: Option<u32>,
    /// Everything whose environment names a path in here.
    pub(crate) directory: Option<PathBuf>,
    /// But not these and their descendants (a request's scope spares the container).
    pub(crate) spare: Vec<Identity>,
}

impl Scope {
    /// What runs of it now.
    pub(crate) fn find(&self) -> Vec<Process> {
        let table = process::all();
        let grouped: HashSet<i32> = self.group.as_ref().map(Group::processes).unwrap_or_default().into_iter().collect();
        let sessions: HashSet<i32> =
            self.roots.iter().filter(|root| root.boot == process::boot_id()).map(|root| root.pid).collect();
        let family = descendants(&table, &self.roots);
        let spared = descendants(&table, &self.spare);
        let this = i32::try_from(std::process::id()).unwrap_or_default();
        table
            .into_iter()
            .filter(|found| found.pid != this && found.pid != 1 && found.runs() && !spared.contains(&found.pid))
            .filter(|found| {
                grouped.contains(&found.pid)
                    || family.contains(&found.pid)
                    // A session's number can't be given to a new process while the session has one, and a new process
                    // with it would have to be started by us.
                    || (sessions.contains(&found.session) && self.session_is_ours(found))
                    || self.uid.is_some_and(|uid| found.has_user(uid))
                    || self.directory.as_ref().is_some_and(|directory| found.names(directory))
            })
            .collect()
    }

    /// Whether the process is not older than the root that made its session.
    fn session_is_ours(&self, found: &Process) -> bool {
        self.roots.iter().any(|root| {
            root.pid == found.session
                && found.start >= root.start
                && Process::read(root.pid).is_none_or(|leader| leader.start == root.start)
        })
    }

    /// Kills until nothing is left, and answers what still is when `patience` is over.
    pub(crate) fn kill(&self, patience: Duration) -> Vec<Process> {
        let end = Instant::now() + patience;
        let mut pass: u32 = 0;
        loop {
            if let Some(group) = &self.group {
                group.kill();
            }
            let found = self.find();
            if found.is_empty() {
                return found;
            }
            if Instant::now() >= end {
                return found;
            }
            if pass >= 2 {
                // It makes new ones as fast as they die: stop all of them first.
                found.iter().for_each(|process| process.signal(Signal::STOP));
            }
            found.iter().for_each(|process| process.signal(Signal::KILL));
            pass += 1;
            thread::sleep(Duration::from_millis(if pass < 5 { 2 } else { 20 }));
        }
    }
}

/// For a message: which processes.
pub(crate) fn describe(processes: &[Process]) -> String {
    let shown: Vec<String> =
        processes.iter().take(5).map(|process| format!("{} ({})", process.pid, process.name.escape_debug())).collect();
    let more = processes.len().saturating_sub(shown.len());
    let text = shown.join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

fn descendants(table: &[Process], roots: &[Identity]) -> HashSet<i32> {
    let mut family: HashSet<i32> = table
        .iter()
        .filter(|found| {
            roots
                .iter()
                .any(|root| root.pid == found.pid && root.start == found.start && root.boot == process::boot_id())
        })
        .map(|found| found.pid)
        .collect();
    loop {
        let before = family.len();
        for found in table {
            if family.contains(&found.parent) {
                family.insert(found.pid);
            }
        }
        if family.len() == before {
            return family;
        }
    }
}
