//! What the host asks of a place where pods live.

use crate::{ExecError, ExecReply, ExecRequest, PodsError};
use async_trait::async_trait;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A namespace of a context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The cluster, as the configuration names it; `local` for local pods.
    pub context: String,
    /// The namespace in it.
    pub namespace: String,
}

/// New values for keys of a map of labels or annotations; none removes the key.
pub type Changes = BTreeMap<String, Option<String>>;

/// A change of a pod's labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataPatch {
    /// The pod must have this UID, checked together with the change: else [`PodsError::Conflict`].
    pub expected_uid: String,
    /// See [`Changes`].
    pub labels: Changes,
    /// See [`Changes`].
    pub annotations: Changes,
}

impl MetadataPatch {
    /// Reads changes as the policies' interface gives them: an object of strings, null removes.
    ///
    /// # Errors
    /// [`PodsError::Failed`] naming the first key whose value is neither.
    pub fn changes(from: &Value) -> Result<Changes, PodsError> {
        let Some(object) = from.as_object() else {
            return match from {
                Value::Null => Ok(Changes::new()),
                _ => Err(PodsError::Failed("labels and annotations are given as an object".to_owned())),
            };
        };
        object
            .iter()
            .map(|(key, value)| match value {
                Value::Null => Ok((key.clone(), None)),
                Value::String(text) => Ok((key.clone(), Some(text.clone()))),
                _ => Err(PodsError::Failed(format!("`{key}` must be a string, or null to remove it"))),
            })
            .collect()
    }
}

/// A place where pods live. All pods are JSON as an API server shows them.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Whether this backend knows the context, without contacting anything in it.
    ///
    /// # Errors
    /// [`PodsError::UnknownContext`].
    async fn context_known(&self, context: &str) -> Result<(), PodsError>;

    /// The live pod.
    ///
    /// # Errors
    /// [`PodsError::NotFound`] and the others.
    async fn get_pod(&self, at: &Target, name: &str) -> Result<Value, PodsError>;

    /// Every pod of the namespace, by name.
    ///
    /// # Errors
    /// See [`PodsError`]; an empty namespace isn't one.
    async fn list_pods(&self, at: &Target) -> Result<Vec<Value>, PodsError>;

    /// The node that pods name as `spec.nodeName`.
    ///
    /// # Errors
    /// [`PodsError::NotFound`] and the others.
    async fn get_node(&self, context: &str, name: &str) -> Result<Value, PodsError>;

    /// Creates a pod and answers it as it then is, not yet ready: its init containers run from here on.
    ///
    /// # Errors
    /// [`PodsError::Conflict`] when the name is taken; of two creators one gets it.
    async fn create_pod(&self, at: &Target, manifest: &Value) -> Result<Value, PodsError>;

    /// Waits until the pod is Ready.
    ///
    /// # Errors
    /// [`PodsError::TimedOut`] with what the pod was waiting for; [`PodsError::Failed`] as soon as it is known that it
    /// can't become ready (an init step failed: its last lines); [`PodsError::NotFound`].
    async fn wait_ready(&self, at: &Target, name: &str, limit: Duration) -> Result<(), PodsError>;

    /// Changes labels and annotations, and answers the pod after it.
    ///
    /// # Errors
    /// [`PodsError::Conflict`] when the pod has another UID; nothing is changed then.
    async fn patch_metadata(&self, at: &Target, name: &str, patch: &MetadataPatch) -> Result<Value, PodsError>;

    /// Removes the pod and everything of it; done when it answers. A pod that is already gone is success.
    ///
    /// # Errors
    /// [`PodsError::Conflict`] when the pod has another UID; nothing is removed then.
    async fn delete_pod(&self, at: &Target, name: &str, expected_uid: &str) -> Result<(), PodsError>;

    /// Runs one command in the pod whose UID it names. A future that is dropped ends what it started.
    ///
    /// # Errors
    /// See [`ExecError`]: after most of them nothing is known of the pod.
    async fn exec(&self, request: ExecRequest) -> Result<ExecReply, ExecError>;

    /// The user id that the tests of this pod's requests are to run under, where the backend gives each pod one of its
    /// own; none where it doesn't (or can't, without root).
    async fn request_uid(&self, _at: &Target, _name: &str) -> Option<u32> {
        None
    }
}
