//! What the host itself looks at before and after it spends a lease, whatever the policy looked at.

use crate::record::WorkerRecord;
use serde_json::Value;

/// Why a pod isn't the one that was prepared. `replaced` marks the pod for good; the others may be another's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodFault {
    /// Another pod, or another container in it: its state is gone.
    Replaced(String),
    /// Not running and ready.
    Unready(String),
    /// It isn't what was rendered.
    Drift(String),
}

impl PodFault {
    /// The reason that a quarantine gives.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Replaced(_) => "pod-replaced",
            Self::Unready(_) => "pod-unready",
            Self::Drift(_) => "key-drift",
        }
    }

    /// For a person.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Replaced(text) | Self::Unready(text) | Self::Drift(text) => text,
        }
    }
}

/// The identity of the running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerIdentity {
    pub(crate) id: String,
    pub(crate) restarts: u64,
}

/// The pod's UID, if it has one.
pub(crate) fn uid(pod: &Value) -> Option<&str> {
    pod.pointer("/metadata/uid")?.as_str().filter(|uid| !uid.is_empty())
}

/// The worker container's identity, if it runs.
pub(crate) fn container(pod: &Value) -> Option<ContainerIdentity> {
    let status = pod
        .pointer("/status/containerStatuses")?
        .as_array()?
        .iter()
        .find(|status| status.get("name").and_then(Value::as_str) == Some("worker"))?;
    let id = status.get("containerID")?.as_str().filter(|id| !id.is_empty())?;
    Some(ContainerIdentity { id: id.to_owned(), restarts: status.get("restartCount")?.as_u64()? })
}

/// Whether the pod is Running and Ready.
pub(crate) fn ready(pod: &Value) -> bool {
    let running = pod.pointer("/status/phase").and_then(Value::as_str) == Some("Running");
    let ready = pod.pointer("/status/conditions").and_then(Value::as_array).is_some_and(|conditions| {
        conditions.iter().any(|condition| {
            condition.get("type").and_then(Value::as_str) == Some("Ready")
                && condition.get("status").and_then(Value::as_str) == Some("True")
        })
    });
    running && ready
}

/// Everything that the host compares without the manifest policy.
///
/// # Errors
/// The first thing that isn't as it was.
pub(crate) fn identity(record: &WorkerRecord, leased_uid: Option<&str>, pod: &Value) -> Result<(), PodFault> {
    let seen = uid(pod).unwrap_or_default();
    let want = record.pod_uid.as_deref().unwrap_or_default();
    if want.is_empty() || seen != want || leased_uid.is_some_and(|leased| leased != seen) {
        return Err(PodFault::Replaced(format!(
            "pod {} has the UID {seen:?}, the lease names {:?} and {want:?} was prepared",
            record.spec.name,
            leased_uid.unwrap_or_default()
        )));
    }
    let metadata = |key: &str| pod.pointer(&format!("/metadata/{key}")).filter(|value| !value.is_null());
    if let Some(when) = metadata("deletionTimestamp") {
        return Err(PodFault::Drift(format!("pod {} is being deleted since {when}", record.spec.name)));
    }
    if metadata("ownerReferences").is_some_and(|owners| owners.as_array().is_none_or(|owners| !owners.is_empty())) {
        return Err(PodFault::Drift(format!("pod {} has an owner", record.spec.name)));
    }
    for place in ["/spec/ephemeralContainers", "/status/ephemeralContainerStatuses"] {
        if pod.pointer(place).and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
            return Err(PodFault::Drift(format!("pod {} got an ephemeral container", record.spec.name)));
        }
    }
    if !ready(pod) {
        return Err(PodFault::Unready(format!("pod {} isn't running and ready", record.spec.name)));
    }
    let Some(now) = container(pod) else {
        return Err(PodFault::Unready(format!("pod {} has no running worker container", record.spec.name)));
    };
    if record.container_id.as_deref() != Some(now.id.as_str()) || record.restart_count != now.restarts {
        return Err(PodFault::Replaced(format!(
            "the container of pod {} is {} (restarts: {}), {} (restarts: {}) was prepared: its state is gone",
            record.spec.name,
            now.id,
            now.restarts,
            record.container_id.as_deref().unwrap_or("none"),
            record.restart_count
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{PodSpec, WorkerState};
    use warmhold_protocol::WorkerKey;

    /// A pod as a real API server showed it.
    fn recorded(name: &str) -> Value {
        let path = format!("{}/../../guests/pod-manifest/tests/data/{name}.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn prepared(pod: &Value) -> WorkerRecord {
        let container = container(pod).unwrap();
        WorkerRecord {
            worker_id: "w".into(),
            profile: "p".into(),
            machine: "m".into(),
            tier: "t".into(),
            slot: 1,
            spec: PodSpec {
                name: "warm-node-a".into(),
                namespace: "warm".into(),
                context: "c".into(),
                worker_id: "w".into(),
                image: "i".into(),
                node: None,
                cut_sha: "0".repeat(40),
                key: WorkerKey {
                    context: "c".into(),
                    image_digest: "d".into(),
                    lock_hash: "l".into(),
                    architecture: "amd64".into(),
                },
                memory_limit: None,
                host_probe_url: String::new(),
                prod_probe_url: String::new(),
                source_mirror: None,
                source: "s".into(),
                install: Vec::new(),
            },
            state: WorkerState::Standing,
            instance: "i".into(),
            pod_uid: uid(pod).map(str::to_owned),
            container_id: Some(container.id),
            restart_count: container.restarts,
            created_at: 0,
        }
    }

    #[test]
    fn recorded_pods_are_told_apart() {
        let record = prepared(&recorded("02-ready"));
        let leased = record.pod_uid.clone();
        let reason = |name: &str| match identity(&record, leased.as_deref(), &recorded(name)) {
            Ok(()) => "the same",
            Err(fault) => fault.reason(),
        };
        // A label of somebody's own and an overwritten annotation are the manifest policy's to judge.
        for (name, want) in [
            ("02-ready", "the same"),
            ("03-foreign-label", "the same"),
            ("04-identity-annotation-changed", "the same"),
            ("01-created", "pod-unready"),
            ("05-container-restarted", "pod-replaced"),
            ("08-ephemeral-container", "key-drift"),
            ("09-owner-reference", "key-drift"),
            ("10-deleting", "key-drift"),
            ("11-recreated-with-token-volume", "pod-replaced"),
        ] {
            assert_eq!(reason(name), want, "{name}");
        }
    }

    #[test]
    fn another_uid_in_the_lease_or_none_prepared_is_another_pod() {
        let pod = recorded("02-ready");
        let mut record = prepared(&pod);
        assert_eq!(identity(&record, Some("another"), &pod).unwrap_err().reason(), "pod-replaced");
        record.pod_uid = None;
        assert_eq!(identity(&record, None, &pod).unwrap_err().reason(), "pod-replaced");
    }

    #[test]
    fn a_pod_of_any_shape_is_judged_without_a_panic() {
        let record = prepared(&recorded("02-ready"));
        for pod in ["null", "[]", "{}", r#"{"metadata":7,"status":{"containerStatuses":"x","conditions":[null]}}"#] {
            assert!(identity(&record, None, &serde_json::from_str(pod).unwrap()).is_err(), "{pod}");
        }
    }
}
