//! A replay as its callers see it: no owner, no whole lease id, no instance.

use crate::journal::tail;
use crate::record::{LeaseRecord, ReplayRecord};
use warmhold_control::api::{
    ArtifactView, FileView, IsolationLevel as Level, IsolationView, ReplayOutcome, ReplayPolicies, ReplayState,
    ReplayView, ReplayWorker, StreamView,
};
use warmhold_protocol::{FileResult, IsolationLevel, StreamDigest};

/// See the module.
pub(crate) fn view(record: &ReplayRecord) -> ReplayView {
    let over = crate::record::is_final(record.state) || record.state == ReplayState::Observed;
    let outcome = if record.observed { ReplayOutcome::Observed } else { ReplayOutcome::Fallback };
    ReplayView {
        id: record.id.clone(),
        run_id: record.run_id.clone(),
        attempt_id: record.attempt_id.clone(),
        cut_sha: record.cut_sha.clone(),
        state: record.state,
        outcome: over.then_some(outcome),
        reason: record.reason.clone(),
        detail: record.detail.clone(),
        passed: record.passed,
        files: record.results.iter().map(file_view).collect(),
        worker: record.lease.as_ref().map(worker),
        isolation: record.isolation.as_ref().map(|report| IsolationView {
            level: match report.level {
                IsolationLevel::Full => Level::Full,
                IsolationLevel::Reduced => Level::Reduced,
            },
            why: report.why.clone(),
        }),
        policies: ReplayPolicies {
            lease: record.policies.lease.clone().unwrap_or_default(),
            manifest: record.policies.manifest.clone().unwrap_or_default(),
            replay: record.policies.replay.clone().unwrap_or_default(),
        },
        history: record.history.clone(),
    }
}

fn worker(lease: &LeaseRecord) -> ReplayWorker {
    let place = lease.place.as_ref();
    ReplayWorker {
        id: lease.worker_id.clone(),
        machine: lease.machine.clone(),
        tier: place.map(|place| place.tier.clone()).unwrap_or_default(),
        slot: place.map(|place| place.slot).unwrap_or_default(),
        pod: place.map(|place| place.pod.clone()).unwrap_or_default(),
        pod_uid: lease.pod_uid.clone().unwrap_or_default(),
        container_id: lease.container_id.clone().unwrap_or_default(),
        generation: lease.generation,
        lease: tail(&lease.lease_id),
    }
}

/// One file's result.
pub(crate) fn file_view(result: &FileResult) -> FileView {
    let reason = result.reason.and_then(|reason| serde_json::to_value(reason).ok());
    FileView {
        file: result.file.clone(),
        exit: result.exit,
        signal: result.signal,
        reason: reason.as_ref().and_then(|reason| reason.as_str()).map(str::to_owned),
        detail: result.detail.clone(),
        duration_ms: result.duration_ms,
        stdout: stream(&result.stdout),
        stderr: stream(&result.stderr),
        artifacts: result
            .artifacts
            .iter()
            .map(|artifact| ArtifactView {
                suffix: artifact.suffix.clone(),
                bytes: artifact.digest.bytes,
                sha256: artifact.digest.sha256.clone(),
            })
            .collect(),
    }
}

fn stream(digest: &StreamDigest) -> StreamView {
    StreamView { bytes: digest.bytes, sha256: digest.sha256.clone() }
}
