//! Making a pod: its directory and files at once, under the lock; then its init containers, one after the other, by a
//! thread that holds the creation's own lock as long as it lives.

use super::container::{Container, list};
use super::kill::Scope;
use super::place::{Lock, Place, folder_with, lock, open_mode, root};
use super::process::{Identity, boot_id};
use super::settle::{PATIENCE, limits};
use super::spawn::{self, Program};
use super::state::Local;
use super::status::{self, Exit};
use super::{Inner, manifest, time};
use crate::PodsError;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The most of an init container's output that is kept, in bytes.
const LOG_LIMIT: usize = 1024 * 1024;
/// The most of it that goes into a message.
const TAIL: usize = 2048;

/// Makes the pod, and answers it as it is before anything ran in it.
pub(super) fn create(inner: &Arc<Inner>, place: Place, namespace: &str, manifest: &Value) -> Result<Value, PodsError> {
    let uid = uuid::Uuid::new_v4().to_string();
    let mut pod = manifest::admit(manifest, namespace, &inner.machine, &uid, &time::now())?;
    let status = status::pending(&pod);
    if let Some(object) = pod.as_object_mut() {
        object.insert("status".to_owned(), status);
    }
    let guard = place.lock()?;
    if inner.settle(&place)?.is_some() {
        return Err(PodsError::Conflict(format!("a pod `{}` exists already", place.name)));
    }
    let failed = |error: io::Error| PodsError::io(&format!("making {}", place.directory.display()), &error);
    match fs::create_dir(&place.directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(PodsError::Conflict(format!("a pod `{}` exists already", place.name)));
        }
        other => other.map_err(failed)?,
    }
    let mut local = Local {
        pod_uid: uid.clone(),
        request_uid: None,
        boot: boot_id().to_owned(),
        group: None,
        deleting: false,
        processes: BTreeMap::new(),
    };
    let creation = match fill(inner, &place, &mut pod, &mut local) {
        Ok(creation) => creation,
        Err(error) => {
            // Nothing ran. What can't be removed now is recognised later: it has no pod.json.
            let _ = fs::remove_file(place.pod_file());
            let _ = inner.discard(&place, Some(&local));
            return Err(error);
        }
    };
    drop(guard);
    let (inner, name) = (Arc::clone(inner), place.name.clone());
    let thread = thread::Builder::new().name("pod-create".to_owned());
    let started = thread.spawn(move || {
        if let Err(error) = initialise(&inner, &place, &uid) {
            tracing::warn!(pod = %place.name, %error, "the pod can't be completed");
            // On a full disk this fails too: then whoever looks next says that the creation was interrupted.
            let _ = fail(&place, &uid, &format!("the pod can't be completed: {error}"));
        }
        drop(creation);
    });
    // Without the thread the creation's lock is free, and whoever looks next says that it was interrupted.
    started.map_err(|error| PodsError::io(&format!("starting the pod `{name}`"), &error))?;
    Ok(pod)
}

/// Directories and files; answers the creation's lock.
fn fill(inner: &Inner, place: &Place, pod: &mut Value, local: &mut Local) -> Result<Lock, PodsError> {
    let failed = |error: io::Error| PodsError::io(&format!("making {}", place.directory.display()), &error);
    folder_mode(place)?;
    folder_with(&place.directory.join("volumes"), open_mode()).map_err(failed)?;
    folder_with(&place.directory.join("logs"), 0o700).map_err(failed)?;
    for volume in list(pod, "volumes") {
        let name = volume.get("name").and_then(Value::as_str).unwrap_or_default();
        if let Some(path) = volume.pointer("/hostPath/path").and_then(Value::as_str) {
            let kind = volume.pointer("/hostPath/type").and_then(Value::as_str).unwrap_or_default();
            let fits = match kind {
                "Directory" => fs::metadata(path).is_ok_and(|found| found.is_dir()),
                "File" => fs::metadata(path).is_ok_and(|found| found.is_file()),
                _ => fs::metadata(path).is_ok(),
            };
            if !fits {
                let kind = if kind.is_empty() { "file or directory" } else { kind };
                return Err(PodsError::Failed(format!(
                    "the volume `{name}` needs a {kind} at {path}, and there is none"
                )));
            }
        } else {
            folder_with(&place.volume(name), if root() { 0o755 } else { 0o700 }).map_err(failed)?;
        }
    }
    // Every container is read once before anything runs, so that a fault of the last one is told at once.
    for which in ["initContainers", "containers"] {
        for spec in list(pod, which) {
            Container::read(spec, pod, place, &inner.programs)?;
        }
    }
    let creation = lock(&place.creation_file()).map_err(failed)?;
    if let Some(users) = &inner.users {
        let uid = users.take(&place.directory, &local.pod_uid);
        local.request_uid = Some(uid.map_err(|error| PodsError::io("taking a user for the pod's requests", &error))?);
    }
    local.group = inner.group(&local.pod_uid);
    // Before it is made: whoever finds this pod half made finds the group too.
    place.write_local(local)?;
    let made = local.group.clone().and_then(|group| inner.make(group));
    if made != local.group {
        local.group = made;
        place.write_local(local)?;
    }
    place.write_pod(pod)?;
    Ok(creation)
}

fn folder_mode(place: &Place) -> Result<(), PodsError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&place.directory, fs::Permissions::from_mode(open_mode()))
        .map_err(|error| PodsError::io(&format!("making {}", place.directory.display()), &error))
}

/// Runs the init containers, then starts the others. Ends early, without an error, when the pod is deleted meanwhile.
fn initialise(inner: &Inner, place: &Place, uid: &str) -> Result<(), PodsError> {
    let names: Vec<String> = {
        let Some((pod, _)) = open(place, uid)? else { return Ok(()) };
        list(&pod, "initContainers").filter_map(|spec| spec.get("name")?.as_str().map(str::to_owned)).collect()
    };
    for name in names {
        let outcome = run_init(inner, place, uid, &name);
        let guard = place.lock()?;
        let Some((mut pod, mut local)) = open(place, uid)? else { return Ok(()) };
        local.processes.remove(&name);
        let failure = match outcome {
            Ok(None) => return Ok(()),
            Ok(Some(Ended { exit, tail })) => {
                let message = if exit == Exit::Code(0) { "" } else { tail.as_str() };
                if let Some(container) = status::container(&mut pod, "initContainerStatuses", &name) {
                    status::terminated(container, exit, message, true);
                }
                match exit {
                    Exit::Code(0) => None,
                    Exit::Code(code) => {
                        Some(format!("the init container `{name}` exited with {code}{}", quoted(&tail)))
                    }
                    Exit::Signal(signal) => {
                        Some(format!("signal {signal} ended the init container `{name}`{}", quoted(&tail)))
                    }
                    Exit::Unknown => Some(format!("the init container `{name}` ended{}", quoted(&tail))),
                }
            }
            Err(error) => {
                if let Some(container) = status::container(&mut pod, "initContainerStatuses", &name) {
                    status::waiting(container, "RunContainerError", &error.to_string());
                }
                Some(format!("the init container `{name}`: {error}"))
            }
        };
        if let Some(failure) = &failure {
            status::set_phase(&mut pod, "Failed", Some(("InitFailed", failure)));
        }
        status::touch(&mut pod);
        place.write_local(&local)?;
        place.write_pod(&pod)?;
        drop(guard);
        if failure.is_some() {
            return Ok(());
        }
    }
    let _guard = place.lock()?;
    let Some((mut pod, mut local)) = open(place, uid)? else { return Ok(()) };
    status::set_condition(&mut pod, "Initialized", true);
    let names: Vec<String> =
        list(&pod, "containers").filter_map(|spec| spec.get("name")?.as_str().map(str::to_owned)).collect();
    inner.start_containers(place, &mut pod, &mut local, &names)
}

fn fail(place: &Place, uid: &str, why: &str) -> Result<(), PodsError> {
    let _guard = place.lock()?;
    let Some((mut pod, local)) = open(place, uid)? else { return Ok(()) };
    if let Err(left) = local.whole(place).kill(PATIENCE) {
        tracing::warn!(pod = %place.name, %left, "what a failed creation left doesn't end");
    }
    status::set_phase(&mut pod, "Failed", Some(("InitFailed", why)));
    status::touch(&mut pod);
    place.write_pod(&pod)
}

/// The pod and its local state, as long as it is the one that is being made. Read under the lock where it is then changed.
fn open(place: &Place, uid: &str) -> Result<Option<(Value, Local)>, PodsError> {
    let (Some(pod), Some(local)) = (place.read_pod()?, place.read_local()?) else { return Ok(None) };
    let pending = pod.pointer("/status/phase").and_then(Value::as_str) == Some("Pending");
    Ok((local.pod_uid == uid && !local.deleting && pending).then_some((pod, local)))
}

struct Ended {
    exit: Exit,
    tail: String,
}

/// Runs one init container to its end; none when the pod is being deleted.
fn run_init(inner: &Inner, place: &Place, uid: &str, name: &str) -> Result<Option<Ended>, PodsError> {
    let failed = |error: io::Error| PodsError::io(&format!("starting the init container `{name}`"), &error);
    let guard = place.lock()?;
    let Some((mut pod, mut local)) = open(place, uid)? else { return Ok(None) };
    let spec =
        list(&pod, "initContainers").find(|spec| spec.get("name").and_then(Value::as_str) == Some(name)).cloned();
    let Some(spec) = spec else { return Ok(None) };
    let container = Container::read(&spec, &pod, place, &inner.programs)?;
    let (group, data_limit) = limits(&container, &local)?;
    let program =
        Program { argv: &container.argv, env: &container.env, cwd: &container.cwd, cgroup: group.as_ref(), data_limit };
    let log = File::create(place.log(name)).map_err(failed)?;
    let (reader, writer) = io::pipe().map_err(failed)?;
    let mut command = spawn::command(&program).map_err(failed)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = command.spawn().map_err(failed)?;
    // The command holds the pipe's writing end, which must be the child's alone.
    drop(command);
    let output =
        thread::Builder::new().name("pod-init-log".to_owned()).spawn(move || keep(reader, log)).map_err(failed);
    let recorded = Identity::of(child.id()).map_err(failed).and_then(|identity| {
        local.processes.insert(name.to_owned(), identity);
        if let Some(container) = status::container(&mut pod, "initContainerStatuses", name) {
            status::running(container, &status::container_id(), true);
        }
        status::touch(&mut pod);
        place.write_local(&local)?;
        place.write_pod(&pod)
    });
    drop(guard);
    let (output, limit) = match (output, recorded) {
        (Ok(output), Ok(())) => (output, Instant::now() + inner.init_limit),
        (Err(error), _) | (_, Err(error)) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    let exit = wait(&mut child, limit).map_err(failed)?;
    let ended = {
        // Whatever it left in the background ends with it; no other container of the pod runs yet. Under the lock, and
        // only while the pod is this one: else it was removed, everything of it has ended, and a new pod may have its
        // directory and its user.
        let _guard = place.lock()?;
        match open(place, uid)? {
            Some(_) => Scope { group: local.container_group(name), ..local.whole(place) }.kill(PATIENCE).map(drop),
            None => Ok(()),
        }
    };
    if exit.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    // Only when all is over: what doesn't end may hold the output open for ever.
    ended.map_err(|left| PodsError::TimedOut(format!("what it left doesn't end: {left}")))?;
    let tail = output.join().unwrap_or_default();
    match exit {
        Some(exit) => Ok(Some(Ended { exit: exit.into(), tail })),
        None => {
            let seconds = inner.init_limit.as_secs_f64();
            Err(PodsError::TimedOut(format!("it didn't end within {seconds} s{}", quoted(&tail))))
        }
    }
}

fn wait(child: &mut std::process::Child, limit: Instant) -> io::Result<Option<std::process::ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(exit) = child.try_wait()? {
            return Ok(Some(exit));
        }
        if Instant::now() >= limit {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Writes the beginning of the output to the log and answers its end. Reads to the end in any case: a process that can't
/// write would stand still.
fn keep(mut from: impl Read, mut log: File) -> String {
    let mut tail = VecDeque::with_capacity(TAIL);
    let mut room = LOG_LIMIT;
    let mut chunk = [0; 8192];
    while let Ok(length) = from.read(&mut chunk) {
        let Some(bytes) = chunk.get(..length).filter(|bytes| !bytes.is_empty()) else { break };
        let kept = bytes.get(..room.min(length)).unwrap_or_default();
        room -= kept.len();
        // A full disk costs the log, not the container.
        let _ = log.write_all(kept);
        tail.extend(bytes);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
    let (a, b) = tail.as_slices();
    clean(&[a, b].concat())
}

/// Text for a person's terminal: no control characters but line ends, nothing half.
pub(super) fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String = text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
    text.trim().to_owned()
}

/// Something that was written, after a message.
pub(super) fn quoted(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!("; the end of its output:\n{tail}") }
}
