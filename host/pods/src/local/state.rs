//! What only this machine knows of a pod, `local.json`. None of it is in the live pod: an API server wouldn't show it.

use super::cgroup::Group;
use super::kill::Scope;
use super::place::Place;
use super::process::{Identity, boot_id};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Local {
    /// Whose this is.
    pub(crate) pod_uid: String,
    /// The user of the pod's requests, where the backend may give out users.
    pub(crate) request_uid: Option<u32>,
    /// The boot in which the user and the group were made.
    pub(crate) boot: String,
    /// The pod's control group; each container has one in it.
    pub(crate) group: Option<Group>,
    /// Set before a deletion touches anything: whoever finds it finishes the deletion.
    #[serde(default)]
    pub(crate) deleting: bool,
    /// By container, the process that runs or ran last.
    pub(crate) processes: BTreeMap<String, Identity>,
}

impl Local {
    /// Everything of the pod.
    pub(crate) fn whole(&self, place: &Place) -> Scope {
        Scope {
            roots: self.processes.values().cloned().collect(),
            group: self.group.clone(),
            // After a reboot the user may be another pod's.
            uid: self.request_uid.filter(|_| self.boot == boot_id()),
            directory: Some(place.directory.clone()),
            spare: Vec::new(),
        }
    }

    /// The control group of one container.
    pub(crate) fn container_group(&self, container: &str) -> Option<Group> {
        self.group.as_ref().map(|group| group.below(container))
    }
}
