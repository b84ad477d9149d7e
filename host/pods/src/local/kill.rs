//! Ending everything of a pod or of one request, and proving it.

use super::cgroup::Group;
use super::process::{self, Identity, Process};
use rustix::process::Signal;
use std::collections::HashSet;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Where there is no control group, how many looks in a row have to find nothing: one alone misses what is young when the
/// table is read and gone when it is looked up.
const LOOKS: u32 = 5;
/// How many processes are kept for a message.
const KEPT: usize = 64;
/// How long the helper that kills as another user may take.
const HELPER: Duration = Duration::from_secs(5);
/// How many passes there are at least: with many processes on a busy machine one look alone may take a second.
const PASSES: u32 = 8;

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
        let mut table = process::all();
        let grouped: HashSet<i32> = self.group.as_ref().map(Group::processes).unwrap_or_default().into_iter().collect();
        // What came since the table was read.
        let known: HashSet<i32> = table.iter().map(|found| found.pid).collect();
        table.extend(grouped.difference(&known).copied().filter_map(Process::read));
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

    /// Kills until it is proven that nothing is left, and answers what was seen of it. The control group is gone then:
    /// its removal is the proof.
    ///
    /// # Errors
    /// What is left when `patience` is over.
    pub(crate) fn kill(&self, patience: Duration) -> Result<Vec<Process>, Left> {
        let end = Instant::now() + patience;
        let mut seen: Vec<Process> = Vec::new();
        let (mut pass, mut quiet): (u32, u32) = (0, 0);
        if self.group.is_none() {
            // Only what stands still is sure to be seen.
            self.signal_as_user("STOP");
        }
        loop {
            // Not at once: a helper costs more than most ends need. Once in any case where no group proves anything.
            if pass == 1 || (pass > 1 && (self.group.is_some() || quiet == 0)) {
                self.signal_as_user("KILL");
            }
            let found = self.find();
            for process in &found {
                let known = seen.iter().any(|known| known.pid == process.pid && known.start == process.start);
                if !known && seen.len() < KEPT {
                    seen.push(process.clone());
                }
            }
            quiet = if found.is_empty() { quiet + 1 } else { 0 };
            let proven = found.is_empty()
                && match &self.group {
                    Some(group) => group.remove(),
                    None => quiet >= LOOKS,
                };
            if proven {
                return Ok(seen);
            }
            if Instant::now() >= end && pass >= PASSES {
                return Err(Left { processes: found, group: self.group.clone() });
            }
            if let Some(group) = &self.group {
                group.kill();
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

    /// Sends a signal to everything of the user in one step: a signal of this user to everybody reaches its own processes
    /// alone, and the kernel lets none of them make a new one meanwhile.
    fn signal_as_user(&self, signal: &str) {
        let Some(uid) = self.uid.filter(|uid| *uid != 0 && rustix::process::geteuid().is_root()) else { return };
        let mut helper = Command::new("/bin/sh");
        helper.args(["-c", "kill -s \"$0\" -- -1", signal]).env_clear().current_dir("/").uid(uid).gid(uid);
        helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut helper = match helper.spawn() {
            Ok(helper) => helper,
            Err(error) => {
                tracing::warn!(uid, %error, "no helper to end the processes of a pod's user");
                return;
            }
        };
        // The user's own processes can stop it.
        let end = Instant::now() + HELPER;
        while matches!(helper.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                let _ = helper.kill();
                let _ = helper.wait();
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What doesn't end, or can't be proven to have ended.
#[derive(Debug)]
pub(crate) struct Left {
    processes: Vec<Process>,
    group: Option<Group>,
}

impl fmt::Display for Left {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) if self.processes.is_empty() => {
                write!(to, "whatever keeps the control group {} busy", group.path.display())
            }
            None if self.processes.is_empty() => to.write_str("processes that come and go too fast to be listed"),
            _ => to.write_str(&describe(&self.processes)),
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
