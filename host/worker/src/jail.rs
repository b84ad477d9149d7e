//! The helper: reads its order, gives up all that the order doesn't leave it, and does the one thing asked.
//!
//! The order comes as one line of JSON on standard input, which is a socket; the answer goes back over it. A test gets
//! neither: by then standard input is `/dev/null` and the socket closes on exec, which tells the caller that it began.

use crate::helper::{Action, Answer, GO, Order};
use crate::network;
use crate::{artifacts, keyrings, remove, sandbox, shared, sys};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Runs the order on standard input.
pub(crate) fn jail() -> ExitCode {
    let channel = match prepare() {
        Ok(channel) => channel,
        Err(error) => {
            crate::report("jail", &format!("this command is the worker's own: {error}"), "use warmhold-worker run");
            return ExitCode::from(2);
        }
    };
    let mut line = String::new();
    let mut reader = BufReader::new(&channel);
    let read = reader.read_line(&mut line).map_err(|error| error.to_string());
    let order: Result<Order, String> =
        read.and_then(|_| serde_json::from_str(&line).map_err(|error| error.to_string()));
    let answer = order.and_then(|order| obey(order, &channel));
    let answer = answer.unwrap_or_else(|error| Answer { error: Some(error), ..Answer::default() });
    match say(&channel, &answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn say(mut channel: &File, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    channel.write_all(&line)
}

/// Nothing of the caller's may be left, and nobody may look into this process.
fn prepare() -> io::Result<File> {
    sys::close_inherited()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let channel = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    rustix::process::setsid()?;
    Ok(File::from(channel))
}

fn obey(order: Order, channel: &File) -> Result<Answer, String> {
    if matches!(order.action, Action::Exec { .. }) {
        // The kernel should choose a test before the worker. Only root may still write here afterwards.
        let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    }
    let uid = order.uid;
    if matches!(order.action, Action::Users) {
        // The caller may look at this process's namespaces only while it can be looked at; it knows nothing.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
            .map_err(|error| error.to_string())?;
        sys::unshare(UnshareFlags::NEWUSER).map_err(|error| error.to_string())?;
        linger(channel, &Answer::default())
    }
    become_user(uid)?;
    // As the user already, or the keyring would be none of its own.
    keyrings::fresh_session();
    let mut notes = Vec::new();
    if let Some(wanted) = &order.sandbox {
        // The check tells that there is none; the tests then run with what there is, and the verdict says so.
        notes.extend(sandbox::restrict(wanted).err());
    }
    match order.action {
        Action::Check { tree, write, probe, closed } => {
            check(uid, &tree, &write, order.sandbox.is_some())?;
            if closed {
                network::closed()?;
            }
            let patience = network::PROD_PATIENCE;
            let probe = probe.map(|url| network::probe(&url, patience)).transpose()?;
            // The caller looks for this process in the table before it lets it go.
            linger(channel, &Answer { notes, probe, error: None })
        }
        Action::Exec { argv, directory, env } => {
            // Getting ready takes longer than starting, and needs nothing that the caller still has to find out.
            say(channel, &Answer::default()).map_err(|error| error.to_string())?;
            let mut told = [0];
            let mut from = channel;
            match from.read(&mut told) {
                Ok(1) if told == [GO] => Err(exec(&argv, &directory, &env)),
                _ => std::process::exit(0),
            }
        }
        Action::Collect { directory, file, count, bytes } => {
            let notes = artifacts::send(&directory, file, count, bytes)?;
            remove::empty(&directory)?;
            Ok(Answer { notes, ..Answer::default() })
        }
        Action::Wipe { directories, shared } => {
            Ok(Answer { notes: wipe(uid, &directories, &shared), ..Answer::default() })
        }
        Action::Users => Ok(Answer::default()),
        Action::End => {
            if uid.is_some() {
                // `kill(-1)`: all that this user may signal, which are its own; no fork can slip through.
                let _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
            }
            Ok(Answer::default())
        }
    }
}

/// Answers, and stays until the caller has done its part.
fn linger(channel: &File, answer: &Answer) -> ! {
    if say(channel, answer).is_ok() {
        let mut waste = [0];
        let mut channel = channel;
        let _ = channel.read(&mut waste);
    }
    std::process::exit(0)
}

/// Becomes the user and gives up every privilege for good.
fn become_user(uid: Option<u32>) -> Result<(), String> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    // The bounding set takes a capability that a pod hasn't; no_new_privs makes it meaningless anyway.
    for capability in CapabilitySet::all().iter() {
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    if let Some(uid) = uid {
        let (user, group) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(uid));
        rustix::thread::set_thread_groups(&[]).map_err(failed("setgroups"))?;
        rustix::thread::set_thread_res_gid(group, group, group).map_err(failed("setgid"))?;
        rustix::thread::set_thread_res_uid(user, user, user).map_err(failed("setuid"))?;
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(failed("capset"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    // Only a help when the worker is ended from outside; the next request looks for itself.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    // A dump would be a file of the test's memory wherever the host puts such files.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    Ok(())
}

/// Reads from the kernel what this process has become, and tries its directories; `restricted`: it has a sandbox.
fn check(uid: Option<u32>, tree: &Path, write: &[PathBuf], restricted: bool) -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| format!("/proc/self/status: {error}"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    if let Some(uid) = uid {
        let want = format!("{uid}\t{uid}\t{uid}\t{uid}");
        if field("Uid:") != want || field("Gid:") != want || !field("Groups:").is_empty() {
            return Err(format!("the tests would not run as user {uid}: the kernel says {}", field("Uid:")));
        }
    }
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        if field(set).bytes().any(|digit| digit != b'0') {
            return Err(format!("the tests would have capabilities: {set} {}", field(set)));
        }
    }
    if field("NoNewPrivs:") != "1" {
        return Err("the tests could gain privileges".to_owned());
    }
    std::env::set_current_dir(tree).map_err(|error| {
        format!("the tests can't enter {}: {error}; each directory above it must be searchable by all", tree.display())
    })?;
    for directory in write {
        let tried = if restricted {
            // The kernel's answer about permissions leaves such restrictions out.
            let file = directory.join(".writable");
            File::create(&file).and_then(|_| std::fs::remove_file(&file))
        } else {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(CWD, directory, access, AtFlags::empty()).map_err(io::Error::from)
        };
        tried.map_err(|error| format!("the tests can't write to {}: {error}", directory.display()))?;
    }
    Ok(())
}

/// Becomes the test; returns only when it can't.
fn exec(argv: &[String], directory: &Path, env: &BTreeMap<String, String>) -> String {
    let Some((program, arguments)) = argv.split_first() else { return "the rule runs nothing".to_owned() };
    if let Err(error) = std::env::set_current_dir(directory) {
        return format!("{}: {error}", directory.display());
    }
    sys::default_signals();
    let error = Command::new(program).args(arguments).env_clear().envs(env).exec();
    format!("{program}: {error}")
}

/// Empties the request's directories and takes the user's entries out of the shared ones.
fn wipe(uid: Option<u32>, directories: &[PathBuf], shared: &[PathBuf]) -> Vec<String> {
    let own = directories.iter().filter_map(|directory| remove::empty(directory).err());
    // Without a user of its own, the request's entries can't be told from the worker's user's.
    let others = shared
        .iter()
        .filter_map(|directory| Some((directory, uid?)))
        .flat_map(|(directory, uid)| shared::owned(directory, uid))
        .filter_map(|path| remove::entry(&path).err());
    // Without a user of its own these are the worker's user's.
    let keys = uid.map(keyrings::clear).unwrap_or_default();
    own.chain(others).chain(keys).collect()
}
