//! Processes of this machine, as /proc shows them.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// A process that can be told from any other one that ever had or will have its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Clock ticks from boot to its start.
    pub(crate) start: u64,
    /// The boot it belongs to.
    pub(crate) boot: String,
}

impl Identity {
    /// Of a child that was just started and not waited for.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        let start = Process::read(pid).ok_or_else(|| io::Error::other("the process is gone"))?.start;
        Ok(Self { pid, start, boot: boot_id().to_owned() })
    }

    /// Whether it still runs; a zombie doesn't.
    pub(crate) fn alive(&self) -> bool {
        self.boot == boot_id() && Process::read(self.pid).is_some_and(|found| found.start == self.start && found.runs())
    }
}

/// This boot of the machine.
pub(crate) fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned())
}

/// One line of the process table.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) session: i32,
    pub(crate) start: u64,
    pub(crate) state: char,
    /// What it calls itself.
    pub(crate) name: String,
}

impl Process {
    /// None when there is no such process.
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name may hold anything, parentheses too; after the last one come the numbers.
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid,
            state: fields.first()?.chars().next()?,
            parent: i32::try_from(number(1)?).ok()?,
            session: i32::try_from(number(3)?).ok()?,
            start: number(19)?,
            name,
        })
    }

    /// Whether it isn't dead and only waits for its parent to look.
    pub(crate) fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Sends a signal to this very process, not to another one that got its number meanwhile.
    pub(crate) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // The descriptor holds the number: what is read now belongs to it.
        if Self::read(self.pid).is_some_and(|now| now.start == self.start) {
            let _ = pidfd_send_signal(fd, signal);
        }
    }

    /// Whether its real, effective or saved user is this one.
    pub(crate) fn has_user(&self, uid: u32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        line.split_ascii_whitespace().any(|field| field.parse() == Ok(uid))
    }

    /// Whether its environment names a path inside this directory. A person who looks around in it is left alone.
    pub(crate) fn names(&self, directory: &Path) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        let inside = format!("{}/", directory.display());
        environment.split(|byte| *byte == 0).any(|entry| {
            let entry = String::from_utf8_lossy(entry);
            let Some((key, value)) = entry.split_once('=') else { return false };
            value.starts_with(&inside) && !matches!(key, "PWD" | "OLDPWD" | "_")
        })
    }
}

/// Every process there is.
pub(crate) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}
