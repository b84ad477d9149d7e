//! Pods without a cluster: private directories and processes of this machine.
//!
//! The pods' files are the truth and are read each time: several daemons may share a root, a daemon may be killed at any
//! moment, and whoever changes a file by hand is found out by the same checks as on a cluster. Every change is made under
//! the pod's own lock. What was interrupted is finished, or shown as failed, by whoever looks next (see `settle`).

mod cgroup;
mod container;
mod create;
mod exec;
mod kill;
mod manifest;
mod place;
mod process;
mod quantity;
mod remove;
mod settle;
mod spawn;
mod state;
mod status;
mod time;
mod users;

use crate::{Backend, ExecError, ExecReply, ExecRequest, MetadataPatch, PodsError, Target};
use async_trait::async_trait;
use container::Machine;
use place::Place;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use users::Users;

/// The only context that this backend knows.
pub const CONTEXT: &str = "local";

/// Settings of [`LocalBackend`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of all pods. As root its parents must be crossable by everybody: tests run as users of their own.
    pub root: PathBuf,
    /// The node's name.
    pub machine: String,
    /// The binary that `warmhold-worker` stands for.
    pub worker: PathBuf,
    /// The PATH of containers.
    pub path: String,
    /// How long one init container may take.
    pub init_limit: Duration,
    /// The first user that is given to a pod's requests. Only root gives out users.
    pub first_user: u32,
    /// The folder in which all daemons of the machine write down which users are given out. It need not survive a
    /// reboot: pods get new users then.
    pub users: PathBuf,
    /// Whether pods may have control groups below this process's own. Where they can't, or may not, memory is limited by
    /// the data segment of each process.
    pub control_groups: bool,
}

impl Options {
    /// The defaults, for a folder of pods, a machine's name and a worker's binary.
    #[must_use]
    pub fn new(root: PathBuf, machine: String, worker: PathBuf) -> Self {
        Self {
            root,
            machine,
            worker,
            path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            init_limit: Duration::from_secs(900),
            first_user: 200_000,
            users: PathBuf::from("/run/warmhold/users"),
            control_groups: true,
        }
    }
}

/// See the module. Clones are the same backend.
#[derive(Clone, Debug)]
pub struct LocalBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    machine: String,
    programs: Machine,
    init_limit: Duration,
    /// None without root.
    users: Option<Users>,
    control_groups: bool,
    /// Containers that this process started: somebody must take their exit status.
    children: Mutex<HashMap<i32, Child>>,
}

impl LocalBackend {
    /// Opens a folder of pods, and makes it where it doesn't exist (its parent must).
    ///
    /// # Errors
    /// When the folder can't be made or the worker's path isn't absolute.
    pub fn open(options: Options) -> Result<Self, PodsError> {
        if !options.worker.is_absolute() {
            return Err(PodsError::Failed(format!("the worker's path {} must be absolute", options.worker.display())));
        }
        place::folder_with(&options.root, place::open_mode())
            .map_err(|error| PodsError::io(&format!("making {}", options.root.display()), &error))?;
        let root = options
            .root
            .canonicalize()
            .map_err(|error| PodsError::io(&format!("looking up {}", options.root.display()), &error))?;
        if place::root() {
            warn_of_closed_parents(&root);
        }
        let users = place::root().then_some(Users { registry: options.users, base: options.first_user });
        Ok(Self {
            inner: Arc::new(Inner {
                root,
                machine: options.machine,
                programs: Machine { worker: options.worker, path: options.path },
                init_limit: options.init_limit,
                users,
                control_groups: options.control_groups,
                children: Mutex::new(HashMap::new()),
            }),
        })
    }

    /// A pod's directory, whether it exists or not.
    ///
    /// # Errors
    /// Names that are no DNS labels.
    pub fn directory(&self, namespace: &str, name: &str) -> Result<PathBuf, PodsError> {
        Ok(Place::new(&self.inner.root, namespace, name)?.directory)
    }

    fn place(&self, at: &Target, name: &str) -> Result<Place, PodsError> {
        known(&at.context)?;
        Place::new(&self.inner.root, &at.namespace, name)
    }

    /// Runs what touches files and processes away from the runtime's own threads.
    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Arc<Inner>) -> Result<T, PodsError> + Send + 'static,
    ) -> Result<T, PodsError> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || act(&inner))
            .await
            .unwrap_or_else(|error| Err(PodsError::Failed(format!("a task on local pods ended: {error}"))))
    }
}

fn known(context: &str) -> Result<(), PodsError> {
    if context == CONTEXT {
        return Ok(());
    }
    let detail = format!("local pods have one context, `{CONTEXT}`");
    Err(PodsError::UnknownContext { context: context.to_owned(), detail })
}

fn warn_of_closed_parents(root: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for folder in root.ancestors().skip(1) {
        if fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 == 0) {
            tracing::warn!(
                folder = %folder.display(),
                "this folder above the pods can't be crossed by other users: tests that run as a user of their own can't \
                 reach their files; choose another folder for pods or `chmod o+x` it"
            );
        }
    }
}

impl Inner {
    /// The children, whatever happened to another thread.
    fn children(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the exit status of a container that ended, if it was this process's child; the rest of the dead too.
    fn reap(&self, pid: Option<i32>) -> Option<status::Exit> {
        let mut found = None;
        self.children().retain(|child_pid, child| match child.try_wait() {
            Ok(Some(exit)) => {
                if Some(*child_pid) == pid {
                    found = Some(exit.into());
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        found
    }

    /// The control group that a pod is to have, not made yet; none where there are none.
    fn group(&self, pod_uid: &str) -> Option<cgroup::Group> {
        self.control_groups.then(|| cgroup::Group::below_own(&format!("warmhold-pod-{pod_uid}")))?
    }

    /// Makes it; none where that fails.
    fn make(&self, group: cgroup::Group) -> Option<cgroup::Group> {
        let group =
            group.made().inspect_err(|error| tracing::debug!(%error, "a pod's control group can't be made")).ok()?;
        if group.v2 && !group.delegates_memory() {
            // It marks the pod's processes all the same; memory is limited for each process then.
            tracing::debug!(group = %group.path.display(), "the control group can't limit memory");
        }
        group.limit_processes();
        Some(group)
    }

    fn get(&self, place: &Place) -> Result<Value, PodsError> {
        self.look(place)?.ok_or_else(|| PodsError::NotFound(format!("the pod `{}`", place.name)))
    }

    fn list(&self, namespace: &str) -> Result<Vec<Value>, PodsError> {
        let folder = self.root.join(namespace);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(PodsError::io(&format!("reading {}", folder.display()), &error)),
        };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let mut pods = Vec::new();
        for name in names {
            if name.starts_with(remove::GONE) {
                remove::tree(&folder.join(&name));
                continue;
            }
            let Ok(place) = Place::new(&self.root, namespace, &name) else { continue };
            match self.look(&place) {
                Ok(Some(pod)) => pods.push(pod),
                Ok(None) => {}
                // It is there and holds its name: a list that left it out would tell a creator that the name is free.
                Err(error) => pods.push(json!({
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": { "name": name, "namespace": namespace },
                    "spec": {},
                    "status": { "phase": "Unknown", "reason": "Damaged", "message": error.to_string() },
                })),
            }
        }
        Ok(pods)
    }

    fn patch(&self, place: &Place, patch: &MetadataPatch) -> Result<Value, PodsError> {
        if !place.exists() {
            return Err(PodsError::NotFound(format!("the pod `{}`", place.name)));
        }
        let _lock = place.lock()?;
        let mut pod = self.settle(place)?.ok_or_else(|| PodsError::NotFound(format!("the pod `{}`", place.name)))?;
        expect_uid(&pod, place, &patch.expected_uid)?;
        let before = pod.clone();
        let metadata = pod.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata =
            metadata.ok_or_else(|| PodsError::Failed(format!("{} has no metadata", place.pod_file().display())))?;
        for (field, changes) in [("labels", &patch.labels), ("annotations", &patch.annotations)] {
            if changes.is_empty() {
                continue;
            }
            let map = metadata.entry(field).or_insert_with(|| Value::Object(Map::new()));
            let map = map.as_object_mut().ok_or_else(|| PodsError::Failed(format!("metadata.{field} is no object")))?;
            for (key, value) in changes {
                match value {
                    Some(value) => drop(map.insert(key.clone(), json!(value))),
                    None => drop(map.shift_remove(key)),
                }
            }
        }
        if pod != before {
            status::touch(&mut pod);
            place.write_pod(&pod)?;
        }
        Ok(pod)
    }
}

/// The precondition of every change.
fn expect_uid(pod: &Value, place: &Place, expected: &str) -> Result<(), PodsError> {
    let uid = uid(pod);
    if uid == expected {
        return Ok(());
    }
    Err(PodsError::Conflict(format!("the pod `{}` has the UID {uid}, not {expected}", place.name)))
}

fn uid(pod: &Value) -> &str {
    pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
}

#[async_trait]
impl Backend for LocalBackend {
    async fn context_known(&self, context: &str) -> Result<(), PodsError> {
        known(context)
    }

    async fn get_pod(&self, at: &Target, name: &str) -> Result<Value, PodsError> {
        let place = self.place(at, name)?;
        self.blocking(move |inner| inner.get(&place)).await
    }

    async fn list_pods(&self, at: &Target) -> Result<Vec<Value>, PodsError> {
        known(&at.context)?;
        place::check_label("namespace", &at.namespace)?;
        let namespace = at.namespace.clone();
        self.blocking(move |inner| inner.list(&namespace)).await
    }

    async fn get_node(&self, context: &str, name: &str) -> Result<Value, PodsError> {
        known(context)?;
        if name != self.inner.machine {
            return Err(PodsError::NotFound(format!("the node `{name}` (this one is `{}`)", self.inner.machine)));
        }
        Ok(status::node(name))
    }

    async fn create_pod(&self, at: &Target, manifest: &Value) -> Result<Value, PodsError> {
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.ok_or_else(|| PodsError::Failed("the manifest has no metadata.name".to_owned()))?;
        let place = self.place(at, name)?;
        let (namespace, manifest) = (at.namespace.clone(), manifest.clone());
        self.blocking(move |inner| create::create(inner, place, &namespace, &manifest)).await
    }

    async fn wait_ready(&self, at: &Target, name: &str, limit: Duration) -> Result<(), PodsError> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(5);
        loop {
            let place = self.place(at, name)?;
            let pod = self.blocking(move |inner| inner.get(&place)).await?;
            if status::has_condition(&pod, "Ready") {
                return Ok(());
            }
            let state = settle::explain(&pod);
            if pod.pointer("/status/phase").and_then(Value::as_str) == Some("Failed") {
                return Err(PodsError::Failed(format!("the pod `{name}` can't become ready: {state}")));
            }
            if Instant::now() >= deadline {
                return Err(PodsError::TimedOut(format!("the pod `{name}` isn't ready: {state}")));
            }
            tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    async fn patch_metadata(&self, at: &Target, name: &str, patch: &MetadataPatch) -> Result<Value, PodsError> {
        let (place, patch) = (self.place(at, name)?, patch.clone());
        self.blocking(move |inner| inner.patch(&place, &patch)).await
    }

    async fn delete_pod(&self, at: &Target, name: &str, expected_uid: &str) -> Result<(), PodsError> {
        let (place, expected) = (self.place(at, name)?, expected_uid.to_owned());
        self.blocking(move |inner| inner.delete(&place, &expected)).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecReply, ExecError> {
        exec::exec(&self.inner, request).await
    }

    async fn request_uid(&self, at: &Target, name: &str) -> Option<u32> {
        let place = self.place(at, name).ok()?;
        self.blocking(move |_| place.read_local()).await.ok()??.request_uid
    }
}
