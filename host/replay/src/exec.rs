//! Spending a lease: one command in the pod that it names, with the host's own checks on both sides.

use crate::checks::PodFault;
use crate::key::hex;
use crate::lease::{LeaseFacts, Proof};
use crate::live::{Live, now_ms};
use crate::record::WorkerRecord;
use crate::session::{Purpose, Session};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use warmhold_control::api::{OutputStream, ReplayEvent, ReplayState};
use warmhold_pods::{ExecError, ExecReply, ExecRequest, Limits, Progress, ProgressSink, Target};
use warmhold_protocol::{Command, ENV_PROFILE, Isolation, PROTOCOL, Probes, Stream, StreamDigest};

/// Each stream of a file is kept up to this; beyond it the worker ends the file.
const STREAM_LIMIT: u64 = 64 * 1024 * 1024;
/// What a worker needs after its deadline to kill, clean and say so.
const GRACE: Duration = Duration::from_secs(8);
/// How much of each stream is told while it runs.
const TOLD: u64 = 8 * 1024;

/// Why an exec has no reply, in the interface's own families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpendError {
    /// The backend's.
    Exec(ExecError),
    /// This pod may never be used again.
    Quarantined,
}

impl From<ExecError> for SpendError {
    fn from(error: ExecError) -> Self {
        Self::Exec(error)
    }
}

fn failed(what: impl Into<String>) -> SpendError {
    SpendError::Exec(ExecError::Failed(what.into()))
}

impl Session {
    /// Runs a policy's command under a lease.
    pub(crate) async fn spend(
        &self,
        handle: u64,
        at: &Target,
        pod: &str,
        wanted: &Value,
        deadline_at: u64,
    ) -> Result<ExecReply, SpendError> {
        let wrong = |text: String| SpendError::Exec(ExecError::WrongPod(text));
        let Purpose::Replay(live) = &self.purpose else { return Err(wrong("there is no replay here".to_owned())) };
        self.granted(at, "exec").map_err(|error| wrong(error.to_string()))?;
        let lease = self.lease(handle).ok_or_else(|| wrong("there is no such lease".to_owned()))?;
        self.leased_pod(&lease, pod).map_err(wrong)?;
        let Some(worker) = self.workers.iter().find(|worker| worker.worker_id == lease.facts.worker_id) else {
            return Err(wrong("the worker isn't one of this call's".to_owned()));
        };
        let mut state = lease.inner.lock().await;
        state.may_spend(Instant::now()).map_err(failed)?;
        if state.proof != Proof::NothingRan {
            // The worker takes each generation once.
            return Err(failed("this lease has been spent"));
        }
        let (marked, checked) =
            tokio::join!(self.services.is_marked(worker), self.check(worker, lease.facts.pod_uid.as_deref()));
        if marked {
            return Err(SpendError::Quarantined);
        }
        if let Err(fault) = checked {
            return Err(self.not_the_pod(worker, &fault).await);
        }
        let record = live.record();
        // The wall clock only turns the caller's deadline into a length; from here on the monotonic one counts.
        let left = Duration::from_millis(record.deadline_at.min(deadline_at).saturating_sub(now_ms()))
            .min(self.profile.transport_limit)
            .min(state.ends.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(SpendError::Exec(ExecError::TimedOut("nothing is left to the deadline".to_owned())));
        }
        let command = self.command(live, &lease.facts, worker, wanted, left).await.map_err(failed)?;
        let sink = self.services.result_folder(&live.id).map_err(|error| failed(error.to_string()))?;
        state.journal.start(lease.facts.pod_uid.as_deref());
        // From here on only a verdict tells what the worker is.
        state.proof = Proof::Unknown;
        let until = now_ms().saturating_add(u64::try_from((left + GRACE).as_millis()).unwrap_or(u64::MAX));
        live.enter(ReplayState::Executing, until, None);
        self.services.save_replay_later(live);
        let request = ExecRequest {
            target: at.clone(),
            pod: pod.to_owned(),
            container: "worker".to_owned(),
            argv: vec!["warmhold-worker".to_owned(), "run".to_owned()],
            progress: Some(teller(live, &command.files)),
            command,
            deadline: tokio::time::Instant::now() + left + GRACE,
            sink,
            limits: Limits::default(),
        };
        let reply = match self.backend.exec(request).await {
            Ok(reply) => reply,
            Err(error) => {
                if let ExecError::WrongPod(_) = error {
                    state.proof = Proof::NothingRan;
                }
                self.services.mark(worker, error.code()).await;
                return Err(error.into());
            }
        };
        if let Err(fault) = self.check(worker, lease.facts.pod_uid.as_deref()).await {
            state.proof = Proof::Dirty(fault.message().to_owned());
            return Err(self.not_the_pod(worker, &fault).await);
        }
        state.proof = proven(&reply);
        live.change(|record| {
            record.isolation = Some(reply.verdict.isolation.clone());
            record.results.extend(reply.verdict.files.iter().cloned());
        });
        Ok(reply)
    }

    async fn not_the_pod(&self, worker: &WorkerRecord, fault: &PodFault) -> SpendError {
        tracing::warn!(worker = %worker.worker_id, reason = fault.reason(), "{}", fault.message());
        match fault {
            PodFault::Replaced(text) => {
                self.services.mark(worker, fault.reason()).await;
                SpendError::Exec(ExecError::WrongPod(text.clone()))
            }
            PodFault::Unready(text) | PodFault::Drift(text) => failed(format!("{}: {text}", fault.reason())),
        }
    }

    /// The command that is sent: the policy chooses the files among those that were asked for; all else is the host's.
    async fn command(
        &self,
        live: &Live,
        lease: &LeaseFacts,
        worker: &WorkerRecord,
        wanted: &Value,
        left: Duration,
    ) -> Result<Command, String> {
        let record = live.record();
        let files = match wanted.get("files") {
            None => record.files.clone(),
            Some(files) => serde_json::from_value::<Vec<String>>(files.clone())
                .map_err(|error| format!("the command's files aren't a list of paths: {error}"))?,
        };
        if files.is_empty() || files.iter().any(|file| !record.files.contains(file)) {
            return Err("the command names files that nobody asked for, or none".to_owned());
        }
        if let Some(version) = wanted.get("protocol").filter(|version| version.as_u64() != Some(u64::from(PROTOCOL))) {
            return Err(format!("the worker speaks protocol {PROTOCOL}, not {version}"));
        }
        let at = Target { context: worker.spec.context.clone(), namespace: worker.spec.namespace.clone() };
        let uid = self.backend.request_uid(&at, &worker.spec.name).await;
        let probe = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Ok(Command {
            protocol: PROTOCOL,
            lease_id: lease.lease_id.clone(),
            generation: lease.generation,
            nonce: nonce(),
            pod_uid: lease.pod_uid.clone().unwrap_or_default(),
            worker_id: lease.worker_id.clone(),
            key: worker.spec.key.clone(),
            run_id: record.run_id.clone(),
            attempt_id: record.attempt_id.clone(),
            cut_sha: record.cut_sha.clone(),
            baseline_sha: record.baseline_sha.clone(),
            env_profile: ENV_PROFILE.to_owned(),
            requested_at: lease.requested_at,
            deadline_at: now_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            budget_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            files,
            rules: self.profile.rules.clone(),
            env: self.profile.env.clone(),
            stream_limit: STREAM_LIMIT,
            probes: Probes { host: probe(&self.profile.host_probe), prod: probe(&self.profile.prod_probe) },
            isolation: Isolation {
                uid,
                private_network: self.profile.private_network,
                hide: self.profile.hide.clone(),
            },
        })
    }
}

/// What a believed verdict proves of the worker.
fn proven(reply: &ExecReply) -> Proof {
    let verdict = &reply.verdict;
    if verdict.clean {
        return Proof::Clean;
    }
    if verdict.refused.is_some() && verdict.unclean.is_empty() {
        return Proof::NothingRan;
    }
    let why = if verdict.unclean.is_empty() { "it doesn't say why".to_owned() } else { verdict.unclean.join("; ") };
    Proof::Dirty(why)
}

/// Tells listeners which file runs and how its output begins.
fn teller(live: &Arc<Live>, files: &[String]) -> ProgressSink {
    let live = Arc::clone(live);
    let files = files.to_vec();
    let told: Mutex<HashMap<(u32, bool), u64>> = Mutex::default();
    Arc::new(move |progress| {
        let Progress::Output { file, stream, bytes, .. } = progress else { return };
        let Some(name) = files.get(file as usize) else { return };
        let take = {
            let mut told = told.lock();
            let so_far = told.entry((file, stream == Stream::Stderr)).or_default();
            let take = TOLD.saturating_sub(*so_far).min(bytes.len() as u64);
            *so_far += take;
            usize::try_from(take).unwrap_or(0)
        };
        if take > 0 {
            let stream = if stream == Stream::Stdout { OutputStream::Stdout } else { OutputStream::Stderr };
            let text = String::from_utf8_lossy(bytes.get(..take).unwrap_or_default()).into_owned();
            live.tell(&ReplayEvent::Output { file: name.clone(), stream, text });
        }
    })
}

/// One digest for all files' streams of a kind: over their lengths and hashes, a line each, in order.
pub(crate) fn summary<'a>(streams: impl Iterator<Item = &'a StreamDigest>) -> StreamDigest {
    let mut hash = Sha256::new();
    let mut bytes = 0;
    for stream in streams {
        bytes += stream.bytes;
        hash.update(format!("{} {}\n", stream.bytes, stream.sha256));
    }
    StreamDigest { bytes, sha256: hex(&hash.finalize()) }
}

/// 122 random bits that no test can know.
fn nonce() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
