//! One container of a pod as a process: its argv, environment, directory and limit, with paths as they are here.
//!
//! There is no mount namespace: what a manifest says of `/workspace/repo` is said of the volume's directory instead.

use super::manifest::strings;
use super::place::{Place, root};
use super::quantity;
use crate::PodsError;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The program that stands for the binary of this name, which lies in no PATH.
const WORKER: &str = "warmhold-worker";

/// What a container's process is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    /// Bytes.
    pub(crate) memory: Option<u64>,
    mounts: Vec<(String, PathBuf)>,
    worker: PathBuf,
}

/// What the machine gives to every container.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// The worker's binary.
    pub(crate) worker: PathBuf,
    /// The PATH.
    pub(crate) path: String,
}

impl Container {
    /// Reads it from a live pod's `spec.containers` or `spec.initContainers`.
    ///
    /// # Errors
    /// What isn't as it was admitted: somebody changed the pod's file.
    pub(crate) fn read(spec: &Value, pod: &Value, place: &Place, machine: &Machine) -> Result<Self, PodsError> {
        let changed = |what: &str| PodsError::Failed(format!("{}: {what}", place.pod_file().display()));
        let name = spec.get("name").and_then(Value::as_str).ok_or_else(|| changed("a container without a name"))?;
        let mut container = Self {
            name: name.to_owned(),
            argv: Vec::new(),
            env: vec![("PATH".to_owned(), machine.path.clone())],
            cwd: place.directory.clone(),
            memory: spec.pointer("/resources/limits/memory").and_then(Value::as_str).and_then(quantity::bytes),
            mounts: mounts(spec, pod, place)?,
            worker: machine.worker.clone(),
        };
        let mut argv = strings(spec.get("command")).ok_or_else(|| changed("a command that is no list of strings"))?;
        argv.extend(strings(spec.get("args")).unwrap_or_default());
        container.argv = container.program(&argv);
        for entry in spec.get("env").and_then(Value::as_array).into_iter().flatten() {
            let field = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
            let (key, value) = (field("name").to_owned(), container.rewrite(field("value")));
            // The last one of a name counts, PATH too.
            container.env.retain(|(existing, _)| *existing != key);
            container.env.push((key, value));
        }
        if let Some(cwd) = spec.get("workingDir").and_then(Value::as_str) {
            container.cwd = PathBuf::from(container.rewrite(cwd));
        }
        Ok(container)
    }

    /// By its name among the pod's containers (not the init containers).
    pub(crate) fn find(name: &str, pod: &Value, place: &Place, machine: &Machine) -> Result<Option<Self>, PodsError> {
        list(pod, "containers")
            .find(|spec| spec.get("name").and_then(Value::as_str) == Some(name))
            .map(|spec| Self::read(spec, pod, place, machine))
            .transpose()
    }

    /// An argv as it is here.
    pub(crate) fn program(&self, argv: &[String]) -> Vec<String> {
        let mut argv: Vec<String> = argv.iter().map(|argument| self.rewrite(argument)).collect();
        if let Some(first) = argv.first_mut()
            && first == WORKER
        {
            *first = self.worker.display().to_string();
        }
        argv
    }

    fn rewrite(&self, text: &str) -> String {
        for (path, directory) in &self.mounts {
            if let Some(rest) = text.strip_prefix(path.as_str())
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return format!("{}{rest}", directory.display());
            }
        }
        text.to_owned()
    }
}

/// The containers of `spec.containers` or `spec.initContainers`.
pub(crate) fn list<'a>(pod: &'a Value, which: &str) -> impl Iterator<Item = &'a Value> {
    pod.get("spec").and_then(|spec| spec.get(which)).and_then(Value::as_array).into_iter().flatten()
}

/// Mount paths and the directories they stand for, the longest path first. Makes what an emptyDir's subPath needs.
fn mounts(spec: &Value, pod: &Value, place: &Place) -> Result<Vec<(String, PathBuf)>, PodsError> {
    let mut mounts = Vec::new();
    for mount in spec.get("volumeMounts").and_then(Value::as_array).into_iter().flatten() {
        let field = |key: &str| mount.get(key).and_then(Value::as_str).unwrap_or_default();
        let volume =
            list(pod, "volumes").find(|volume| volume.get("name").and_then(Value::as_str) == Some(field("name")));
        let host = volume.and_then(|volume| volume.pointer("/hostPath/path")).and_then(Value::as_str);
        let base = match host {
            Some(path) => PathBuf::from(path),
            None => {
                super::place::check_label("volume", field("name"))?;
                place.volume(field("name"))
            }
        };
        let sub = field("subPath");
        if sub.starts_with('/') || sub.split('/').any(|part| part == "..") {
            return Err(PodsError::Failed(format!("a subPath `{sub}` leads out of its volume")));
        }
        let directory = if sub.is_empty() { base } else { base.join(sub) };
        if host.is_none() {
            make(&directory)?;
        }
        mounts.push((field("mountPath").trim_end_matches('/').to_owned(), directory));
    }
    mounts.retain(|(path, _)| !path.is_empty());
    mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    Ok(mounts)
}

/// The tests' own user must be able to read what an emptyDir holds; who may write in it is for the worker to say.
fn make(directory: &Path) -> Result<(), PodsError> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = if root() { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
        .map_err(|error| PodsError::io(&format!("making {}", directory.display()), &error))
}
