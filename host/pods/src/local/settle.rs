//! Looking at a pod: what has happened to its processes is written into it first, and what was interrupted is finished.

use super::container::{Container, list};
use super::kill::{Left, Scope};
use super::place::{Place, is_locked};
use super::process::{Identity, boot_id};
use super::spawn::{self, Program};
use super::state::Local;
use super::status::{self, Exit};
use super::{Inner, uid};
use crate::PodsError;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

/// How long what a container left may take to die.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

impl Inner {
    /// The live pod; none when there is none.
    pub(super) fn look(&self, place: &Place) -> Result<Option<Value>, PodsError> {
        if !place.exists() {
            return Ok(None);
        }
        // Most looks find everything as it was, and need no lock for that: files are replaced in one step.
        if let (Some(pod), Some(local)) = (place.read_pod()?, place.read_local()?)
            && steady(&pod, &local, place)
        {
            return Ok(Some(pod));
        }
        let _lock = place.lock()?;
        self.settle(place)
    }

    /// The same, by who holds the pod's lock.
    pub(super) fn settle(&self, place: &Place) -> Result<Option<Value>, PodsError> {
        if !place.exists() {
            return Ok(None);
        }
        let local = place.read_local()?;
        if let Some(local) = &local
            && local.deleting
        {
            self.finish_deletion(place, local)?;
            return Ok(None);
        }
        let pod = match place.read_pod()? {
            Some(pod) => pod,
            // A creator writes this file before it lets go of the lock, and starts nothing before.
            None => {
                match &local {
                    Some(local) => self.finish_deletion(place, local)?,
                    None => self.discard(place, None)?,
                }
                return Ok(None);
            }
        };
        let Some(mut local) = local else {
            return Err(PodsError::Failed(format!(
                "{} is missing: nobody knows which processes are this pod's; end them by hand and remove the directory",
                place.directory.join("local.json").display()
            )));
        };
        if steady(&pod, &local, place) {
            return Ok(Some(pod));
        }
        match phase(&pod) {
            "Pending" => self.interrupted(place, pod, &local),
            _ => self.restart(place, pod, &mut local),
        }
        .map(Some)
    }

    /// Whoever made the pod is gone before it was complete.
    fn interrupted(&self, place: &Place, mut pod: Value, local: &Local) -> Result<Value, PodsError> {
        if let Err(left) = local.whole(place).kill(PATIENCE) {
            tracing::warn!(pod = %place.name, %left, "init processes that won't die");
        }
        let message = "its creation was interrupted; remove the worker and prepare it again";
        status::set_phase(&mut pod, "Failed", Some(("Interrupted", message)));
        status::touch(&mut pod);
        place.write_pod(&pod)?;
        Ok(pod)
    }

    /// A container whose process is gone gets a new one, with another id and one more restart, as a kubelet does it.
    fn restart(&self, place: &Place, mut pod: Value, local: &mut Local) -> Result<Value, PodsError> {
        let names: Vec<String> = list(&pod, "containers")
            .filter_map(|spec| spec.get("name").and_then(Value::as_str))
            .filter(|name| !runs(&pod, local, name))
            .map(str::to_owned)
            .collect();
        let stuck = |left: Left| {
            PodsError::TimedOut(format!(
                "a container of the pod `{}` ended, and what it left doesn't end: {left}",
                place.name
            ))
        };
        // What the last process left would reach into the container's next life.
        if names.len() == list(&pod, "containers").count() {
            local.whole(place).kill(PATIENCE).map_err(stuck)?;
        } else {
            for name in &names {
                let roots = local.processes.get(name).cloned().into_iter().collect();
                let scope = Scope { roots, group: local.container_group(name), ..Scope::default() };
                scope.kill(PATIENCE).map_err(stuck)?;
            }
        }
        for name in &names {
            let exit = self.reap(local.processes.get(name).map(|process| process.pid)).unwrap_or(Exit::Unknown);
            if let Some(container) = status::container(&mut pod, "containerStatuses", name) {
                let ran = container.get("state").is_some_and(|state| state.get("running").is_some());
                if ran {
                    status::terminated(container, exit, "", false);
                    let last = container.get("state").cloned().unwrap_or_else(|| json!({}));
                    container.insert("lastState".to_owned(), last);
                    let count = container.get("restartCount").and_then(Value::as_u64).unwrap_or(0);
                    container.insert("restartCount".to_owned(), json!(count.saturating_add(1)));
                }
            }
        }
        set_ready(&mut pod, false);
        status::touch(&mut pod);
        place.write_pod(&pod)?;
        self.renew(place, local);
        self.start_containers(place, &mut pod, local, &names)?;
        Ok(pod)
    }

    /// After a reboot the user may be somebody else's by now, and the control group is gone; it may be gone without one,
    /// when whoever manages the machine's groups removed it.
    fn renew(&self, place: &Place, local: &mut Local) {
        if local.boot != boot_id() {
            boot_id().clone_into(&mut local.boot);
            local.request_uid = self.users.as_ref().and_then(|users| {
                users
                    .take(&place.directory, &local.pod_uid)
                    .inspect_err(|error| tracing::warn!(pod = %place.name, %error, "no user for the pod's requests"))
                    .ok()
            });
            local.group = None;
        }
        if local.group.as_ref().is_none_or(|group| !group.path.is_dir()) {
            local.group = self.group(&local.pod_uid).and_then(|group| self.make(group));
        }
    }

    /// Starts these containers and writes down what became of them. Called under the pod's lock.
    ///
    /// A container that can't be started is shown as waiting with the reason, which isn't an error here.
    pub(super) fn start_containers(
        &self,
        place: &Place,
        pod: &mut Value,
        local: &mut Local,
        names: &[String],
    ) -> Result<(), PodsError> {
        for name in names {
            let started = Container::find(name, pod, place, &self.programs)
                .and_then(|found| found.ok_or_else(|| PodsError::NotFound(format!("the container `{name}`"))))
                .and_then(|container| self.start(&container, local));
            match started {
                Ok((identity, id)) => {
                    local.processes.insert(name.clone(), identity);
                    if let Some(container) = status::container(pod, "containerStatuses", name) {
                        status::running(container, &id, false);
                    }
                }
                Err(error) => {
                    local.processes.remove(name);
                    if let Some(container) = status::container(pod, "containerStatuses", name) {
                        status::waiting(container, "RunContainerError", &error.to_string());
                    }
                }
            }
        }
        // The process first: should this be the last thing that we do, the next look finds it running and not yet ready,
        // and starts the container again.
        place.write_local(local)?;
        status::set_phase(pod, "Running", None);
        let all = list(pod, "containers").all(|spec| {
            spec.get("name").and_then(Value::as_str).is_some_and(|name| local.processes.contains_key(name))
        });
        set_ready(pod, all);
        status::touch(pod);
        place.write_pod(pod)
    }

    fn start(&self, container: &Container, local: &Local) -> Result<(Identity, String), PodsError> {
        let (group, data_limit) = limits(container, local)?;
        let program = Program {
            argv: &container.argv,
            env: &container.env,
            cwd: &container.cwd,
            cgroup: group.as_ref(),
            data_limit,
        };
        let what = || format!("starting the container `{}`", container.name);
        let mut command = spawn::command(&program).map_err(|error| PodsError::io(&what(), &error))?;
        // It outlives this process, so it can't write to a pipe of ours; a file would grow without end.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| PodsError::io(&what(), &error))?;
        let identity = match Identity::of(child.id()) {
            Ok(identity) => identity,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(PodsError::io(&what(), &error));
            }
        };
        self.children().insert(identity.pid, child);
        Ok((identity, status::container_id()))
    }
}

/// The container's control group with its limit, and the limit that each process needs where there is none.
pub(super) fn limits(
    container: &Container,
    local: &Local,
) -> Result<(Option<super::cgroup::Group>, Option<u64>), PodsError> {
    let Some(parent) = &local.group else { return Ok((None, container.memory)) };
    let group = parent
        .child(&container.name)
        .map_err(|error| PodsError::io(&format!("the control group of `{}`", container.name), &error))?;
    let Some(bytes) = container.memory else { return Ok((Some(group), None)) };
    match group.limit_memory(bytes) {
        Ok(()) => Ok((Some(group), None)),
        // A group that can't limit is still a mark.
        Err(_) => Ok((Some(group), Some(bytes))),
    }
}

/// Whether there is nothing to do.
fn steady(pod: &Value, local: &Local, place: &Place) -> bool {
    if local.deleting {
        return false;
    }
    // A pod that is shown as going isn't given new life.
    if phase(pod) == "Failed" || pod.pointer("/metadata/deletionTimestamp").is_some() {
        return true;
    }
    if phase(pod) == "Pending" {
        return is_locked(&place.creation_file());
    }
    // Somebody wrote another pod's identity into the file: it is shown as it is, and nothing is done for it.
    uid(pod) != local.pod_uid
        || list(pod, "containers")
            .all(|spec| spec.get("name").and_then(Value::as_str).is_some_and(|name| runs(pod, local, name)))
}

/// Whether the container's process runs and the pod says so. Conditions are nobody's business here: who changed one by
/// hand sees it stand.
fn runs(pod: &Value, local: &Local, name: &str) -> bool {
    let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let told = statuses.into_iter().flatten().any(|status| {
        status.get("name").and_then(Value::as_str) == Some(name) && status.pointer("/state/running").is_some()
    });
    told && local.processes.get(name).is_some_and(Identity::alive)
}

fn phase(pod: &Value) -> &str {
    pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
}

fn set_ready(pod: &mut Value, ready: bool) {
    status::set_condition(pod, "Ready", ready);
    status::set_condition(pod, "ContainersReady", ready);
}

/// What a pod that isn't ready waits for or failed of, for a person.
pub(super) fn explain(pod: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(message) = pod.pointer("/status/message").and_then(Value::as_str) {
        parts.push(message.to_owned());
    }
    for which in ["initContainerStatuses", "containerStatuses"] {
        let statuses = pod.pointer(&format!("/status/{which}")).and_then(Value::as_array);
        for container in statuses.into_iter().flatten() {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let text = |path: &str| container.pointer(path).and_then(Value::as_str).unwrap_or_default();
            if container.pointer("/state/running").is_some() && which == "initContainerStatuses" {
                parts.push(format!("the init container `{name}` runs"));
            } else if !text("/state/waiting/message").is_empty() {
                parts.push(format!("the container `{name}`: {}", text("/state/waiting/message")));
            }
        }
    }
    if parts.is_empty() { "its containers haven't started".to_owned() } else { parts.join("; ") }
}
