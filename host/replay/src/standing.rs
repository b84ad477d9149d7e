//! Standing workers: filling slots, retiring what is used up, and what an operator may do to one.
//!
//! A slot is a pod's name. A pod is removed only while its UID is in a row of this machine that is quarantined, or idle
//! and expired: the ledger says so, never the pod. What a failed preparation made is therefore registered and quarantined
//! first, by the host, and is then like any other used-up worker.

use crate::checks::{self, ContainerIdentity};
use crate::git::{Git, GitError};
use crate::key::source_key;
use crate::live::now_ms;
use crate::policy_host::PolicyHost;
use crate::profile::{Profile, Tier};
use crate::record::{PodSpec, RETIRED, WORKERS, WorkerRecord, WorkerState};
use crate::services::Services;
use crate::session::{ControlError, Purpose, Session, key_json, to_ledger_key, whole};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use warmhold_control::ApiError;
use warmhold_control::api::{PrepareAsk, Prepared, WorkerView, Workers};
use warmhold_ledger::{ApplyError, Guard, Meant, Operation, Refusal, Row, Submission, WorkerDraft};
use warmhold_pods::{Backend, PodsError, Target};
use warmhold_protocol::WorkerKey;

/// More in one call is a typing error.
const MAX_COUNT: u32 = 64;

/// A slot while it is filled.
pub(crate) struct Preparation {
    record: Mutex<WorkerRecord>,
    registered: AtomicBool,
    /// What the host knows about the last thing that failed, in more words than the interface has.
    note: Mutex<Option<String>>,
}

impl Preparation {
    pub(crate) fn new(record: WorkerRecord) -> Self {
        Self { record: Mutex::new(record), registered: AtomicBool::new(false), note: Mutex::new(None) }
    }

    pub(crate) fn note(&self, what: String) {
        *self.note.lock() = Some(what);
    }

    pub(crate) fn record(&self) -> WorkerRecord {
        self.record.lock().clone()
    }

    pub(crate) fn target(&self) -> Target {
        target(&self.record.lock().spec)
    }

    /// The pod is made and has this UID.
    pub(crate) fn made(&self, uid: &str) {
        self.record.lock().pod_uid = Some(uid.to_owned());
    }

    /// This is the container that everything later is compared with.
    pub(crate) fn saw_container(&self, container: ContainerIdentity) {
        let mut record = self.record.lock();
        record.container_id = Some(container.id);
        record.restart_count = container.restarts;
    }

    /// The worker's row is written.
    pub(crate) fn registered(&self) {
        self.registered.store(true, Ordering::Release);
    }

    fn enter(&self, state: WorkerState) -> WorkerRecord {
        let mut record = self.record.lock();
        record.state = state;
        record.clone()
    }
}

pub(crate) fn target(spec: &PodSpec) -> Target {
    Target { context: spec.context.clone(), namespace: spec.namespace.clone() }
}

/// Keeps this machine's standing workers. Clones are the same.
#[derive(Clone)]
pub struct Standing {
    services: Arc<Services>,
    /// Slots that this daemon fills just now; other daemons collide on the pod's name.
    filling: Arc<Mutex<HashSet<String>>>,
}

/// Takes a slot out of `filling` when its preparation is over, however it ends.
struct Filling<'a>(&'a Standing, String);

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.0.filling.lock().remove(&self.1);
    }
}

impl Standing {
    /// For these services.
    #[must_use]
    pub fn new(services: Arc<Services>) -> Self {
        Self { services, filling: Arc::default() }
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Fills one slot of a tier; the reason when it can't.
    async fn fill(&self, profile: &Arc<Profile>, backend: &Arc<dyn Backend>, tier: &Tier, spec: PodSpec) -> Prepared {
        let (slot, _filling) = match self.free_slot(profile, backend, tier, &spec.key).await {
            Ok(free) => free,
            Err(reason) => {
                return Prepared {
                    worker_id: String::new(),
                    pod: String::new(),
                    pod_uid: String::new(),
                    prepared: false,
                    reason: Some(reason),
                };
            }
        };
        let machine = &self.services.machine;
        let suffix: String = uuid::Uuid::new_v4().simple().to_string().chars().take(8).collect();
        let worker_id = format!("w-{machine}-{}-{slot}-{suffix}", tier.name);
        let spec = PodSpec { name: Profile::pod_name(machine, &tier.name, slot), worker_id: worker_id.clone(), ..spec };
        let preparation = Arc::new(Preparation::new(WorkerRecord {
            worker_id: worker_id.clone(),
            profile: profile.name.clone(),
            machine: machine.clone(),
            tier: tier.name.clone(),
            slot,
            spec,
            state: WorkerState::Preparing,
            instance: self.services.instance.id().to_owned(),
            pod_uid: None,
            container_id: None,
            restart_count: 0,
            created_at: now_ms(),
        }));
        let failure = match self.make(profile, backend, &preparation).await {
            Ok(()) => None,
            Err(reason) => {
                if let Err(error) = abandon(&self.services, backend, &preparation.record()).await {
                    // Its record says `preparing`: the next start of a daemon finishes this.
                    tracing::warn!(worker = %worker_id, %error, "a failed preparation isn't cleared away yet");
                }
                Some(reason)
            }
        };
        let record = preparation.record();
        Prepared {
            worker_id,
            pod: record.spec.name,
            pod_uid: record.pod_uid.unwrap_or_default(),
            prepared: failure.is_none(),
            reason: failure,
        }
    }

    async fn make(
        &self,
        profile: &Arc<Profile>,
        backend: &Arc<dyn Backend>,
        preparation: &Arc<Preparation>,
    ) -> Result<(), String> {
        let record = preparation.record();
        self.services.save_worker(&record).await.map_err(|error| error.to_string())?;
        let session = Session {
            services: Arc::clone(&self.services),
            caller: self.services.machine_caller.clone(),
            profile: Arc::clone(profile),
            backend: Arc::clone(backend),
            workers: Vec::new(),
            purpose: Purpose::Prepare(Arc::clone(preparation)),
        };
        let host = Arc::new(PolicyHost::new(session));
        let end = self.services.replay.prepare(host, Arc::default(), &record.to_wit()).await;
        match end.outcome {
            Ok(Ok(_)) if preparation.registered.load(Ordering::Acquire) => {
                let record = preparation.enter(WorkerState::Standing);
                self.services.save_worker(&record).await.map_err(|error| error.to_string())
            }
            Ok(Ok(_)) => Err("the replay policy says that it is prepared, and registered nothing".to_owned()),
            Ok(Err(reason)) => Err(match preparation.note.lock().take() {
                Some(note) => format!("{reason}: {note}"),
                None => reason,
            }),
            Err(fault) => Err(format!("the replay policy failed: {fault}")),
        }
    }

    /// Workers with this key that stand already: asking for so many again makes no more. An idle one whose pod isn't
    /// what was prepared (after a reboot, say) is taken out here rather than by the next replay.
    pub(crate) async fn ready(
        &self,
        profile: &Profile,
        backend: &Arc<dyn Backend>,
        key: &WorkerKey,
    ) -> Result<Vec<Prepared>, String> {
        let rows = self.services.worker_rows(Some(self.services.machine.clone())).await?;
        let mut standing: Vec<WorkerRecord> = self.services.records(WORKERS).await?;
        standing.retain(|worker| {
            worker.profile == profile.name && worker.state == WorkerState::Standing && worker.spec.key == *key
        });
        standing.sort_by(|a, b| (&a.tier, a.slot).cmp(&(&b.tier, b.slot)));
        let mut ready = Vec::new();
        for worker in standing {
            let Some(row) = rows.iter().find(|row| row.name == worker.worker_id) else { continue };
            match Facts::of(row).state.as_str() {
                "leased" | "sanitizing" => {}
                "idle" if !row.expired(now_ms()) => {
                    let fault = match backend.get_pod(&target(&worker.spec), &worker.spec.name).await {
                        Ok(pod) => checks::identity(&worker, None, &pod).err().map(|fault| fault.reason()),
                        Err(PodsError::NotFound(_)) => Some("pod-gone"),
                        Err(error) => return Err(error.to_string()),
                    };
                    if let Some(reason) = fault {
                        let out = self.services.quarantine_worker(&worker.worker_id, reason, Meant::Idle).await;
                        tracing::warn!(worker = %worker.worker_id, reason, ok = out.is_ok(), "its pod isn't what was prepared");
                        continue;
                    }
                }
                _ => continue,
            }
            ready.push(Prepared {
                worker_id: worker.worker_id,
                pod: worker.spec.name,
                pod_uid: worker.pod_uid.unwrap_or_default(),
                prepared: true,
                reason: None,
            });
        }
        Ok(ready)
    }

    /// A slot that nobody uses, emptied if what was in it is used up, or if it idles with another key: who asks for a
    /// commit's workers is done with those of an older one.
    async fn free_slot(
        &self,
        profile: &Profile,
        backend: &Arc<dyn Backend>,
        tier: &Tier,
        key: &WorkerKey,
    ) -> Result<(u32, Filling<'_>), String> {
        let at = Target { context: profile.context.clone(), namespace: profile.namespace.clone() };
        let pods = backend.list_pods(&at).await.map_err(|error| error.to_string())?;
        let rows = self.services.worker_rows(Some(self.services.machine.clone())).await?;
        let mut taken = Vec::new();
        let mut superseded: Vec<(u64, u32, Filling<'_>, &Row, String)> = Vec::new();
        for slot in 1..=tier.quota {
            let name = Profile::pod_name(&self.services.machine, &tier.name, slot);
            if !self.filling.lock().insert(name.clone()) {
                taken.push(format!("{name} is being prepared"));
                continue;
            }
            let filling = Filling(self, name.clone());
            let pod = pods.iter().find(|pod| pod.pointer("/metadata/name").and_then(Value::as_str) == Some(&name));
            let Some(pod) = pod else {
                self.retire_gone(&name).await?;
                return Ok((slot, filling));
            };
            let uid = checks::uid(pod).unwrap_or_default().to_owned();
            match rows.iter().find(|row| Facts::of(row).pod_uid.as_deref() == Some(&uid)) {
                None => taken.push(format!("{name} is a pod that no row of this machine knows: it is never removed")),
                Some(row) if used_up(row) => match self.retire(backend, &at, &name, &uid).await {
                    Ok(()) => return Ok((slot, filling)),
                    Err(error) => taken.push(format!("{name} is used up and can't be removed: {error}")),
                },
                Some(row) if Facts::of(row).state == "idle" && !has_key(row, key) => {
                    superseded.push((row.observed_at, slot, filling, row, uid));
                }
                Some(row) => taken.push(format!("{name} has worker {}, {}", row.name, Facts::of(row).state)),
            }
        }
        // The one that idles longest goes first. Out of the ledger first: from then on nobody can lease it.
        superseded.sort_by_key(|(since, ..)| *since);
        for (_, slot, filling, row, uid) in superseded {
            let name = Profile::pod_name(&self.services.machine, &tier.name, slot);
            let cleared = async {
                self.services
                    .quarantine_worker(&row.name, "superseded", Meant::Idle)
                    .await
                    .map_err(|error| error.to_string())?;
                self.retire(backend, &at, &name, &uid).await
            };
            match cleared.await {
                Ok(()) => return Ok((slot, filling)),
                Err(error) => taken.push(format!("{name} has worker {} of another commit: {error}", row.name)),
            }
        }
        Err(format!(
            "no slot of tier {} is free ({}); raise `quota` in [profile.{}.tiers.{}], or take a worker away with `warmhold worker remove ID`",
            tier.name,
            if taken.is_empty() { "its quota is 0".to_owned() } else { taken.join("; ") },
            profile.name,
            tier.name
        ))
    }

    /// Removes a pod whose row says that it is used up.
    async fn retire(&self, backend: &Arc<dyn Backend>, at: &Target, name: &str, uid: &str) -> Result<(), String> {
        match backend.delete_pod(at, name, uid).await {
            // Another pod has the name by now: the one that was meant is gone.
            Ok(()) | Err(PodsError::Conflict(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        for record in self.services.records::<WorkerRecord>(WORKERS).await? {
            if record.pod_uid.as_deref() == Some(uid) {
                self.services.retire_worker(&record).await?;
            }
        }
        Ok(())
    }

    /// Retires workers of an empty slot: their pod is gone, however it went.
    async fn retire_gone(&self, name: &str) -> Result<(), String> {
        for record in self.services.records::<WorkerRecord>(WORKERS).await? {
            if record.spec.name != name || record.state != WorkerState::Standing {
                continue;
            }
            let meant = self.services.quarantine_worker(&record.worker_id, "pod-gone", Meant::Idle).await;
            match meant {
                Ok(()) => self.services.retire_worker(&record).await?,
                // Leased: its replay finds out and settles it.
                Err(error) => tracing::debug!(worker = %record.worker_id, %error, "its pod is gone; it is in use"),
            }
        }
        Ok(())
    }

    async fn find(&self, id: &str) -> Result<Option<(Row, Option<WorkerRecord>)>, ApiError> {
        let row_id = format!("pod-worker-lease:{id}");
        let row = self.services.read(move |ledger| ledger.row(&row_id)).await.map_err(|error| unreadable(&error))?;
        let Some(row) = row else { return Ok(None) };
        let id = id.to_owned();
        let record = self
            .services
            .read(move |ledger| match ledger.get_record(WORKERS, &id)? {
                Some(record) => Ok(Some(record)),
                None => ledger.get_record(RETIRED, &id),
            })
            .await
            .map_err(|error| unreadable(&error))?;
        Ok(Some((row, record.and_then(|record| serde_json::from_value(record.body).ok()))))
    }

    async fn view_again(&self, id: &str) -> Result<Option<WorkerView>, ApiError> {
        Ok(self.find(id).await?.map(|(row, record)| view(&row, record.as_ref())))
    }
}

#[async_trait]
impl Workers for Standing {
    async fn prepare(&self, ask: PrepareAsk) -> Result<Vec<Prepared>, ApiError> {
        let count = ask.count.unwrap_or(1);
        if count == 0 || count > MAX_COUNT {
            return Err(ApiError::bad_request("invalid-count", format!("count is 1 to {MAX_COUNT}, not {count}")));
        }
        let Some((profile, backend)) = self.services.profile(ask.profile.as_deref()) else {
            let named = ask.profile.map_or_else(
                || "several profiles are configured, and none is named".to_owned(),
                |name| format!("there is no profile {name:?}"),
            );
            let known: Vec<&str> = self.services.profiles.keys().map(String::as_str).collect();
            return Err(ApiError::bad_request("unknown-profile", named)
                .with_help(format!("name one with --profile: {}", known.join(", "))));
        };
        let Some(tier) = profile.tiers.first() else {
            return Err(ApiError::conflict("no-tier", format!("profile {} has no tier", profile.name)));
        };
        if let Err(code) = (self.services.may_write)().await {
            return Err(ApiError::conflict(code, "this machine may not write workers now")
                .with_help("workers need a primary document, held by this machine: see `--primary-lease` of serve"));
        }
        if profile.source.is_empty() {
            return Err(ApiError::conflict("no-source", format!("profile {} has no source repository", profile.name))
                .with_help("start the daemon in a git work tree, or set `source` of the profile in warmhold.toml"));
        }
        let commit = Git::new(&profile.source)
            .commit(ask.cut.as_deref().unwrap_or("HEAD"))
            .await
            .map_err(|error| git_error(&error))?;
        let key = source_key(&profile, &commit).await.map_err(|error| git_error(&error))?;
        let spec = PodSpec {
            name: String::new(),
            namespace: profile.namespace.clone(),
            context: profile.context.clone(),
            worker_id: String::new(),
            image: profile.image.clone(),
            node: profile.node.clone(),
            cut_sha: commit,
            key,
            memory_limit: tier.memory.clone(),
            host_probe_url: profile.host_probe.clone(),
            prod_probe_url: profile.prod_probe.clone(),
            source_mirror: profile.source_mirror.clone(),
            source: profile.source.clone(),
            install: profile.install.clone(),
        };
        let mut ready = self.ready(&profile, &backend, &spec.key).await.map_err(|error| unreadable(&error))?;
        ready.truncate(count as usize);
        let lacking = (count as usize).saturating_sub(ready.len());
        let slots = (0..lacking).map(|_| self.fill(&profile, &backend, tier, spec.clone()));
        ready.extend(futures::future::join_all(slots).await);
        Ok(ready)
    }

    async fn list(&self) -> Result<Vec<WorkerView>, ApiError> {
        let rows = self.services.worker_rows(None).await.map_err(|error| unreadable(&error))?;
        let records = self.services.records::<WorkerRecord>(WORKERS).await.map_err(|error| unreadable(&error))?;
        let by_id: HashMap<&str, &WorkerRecord> =
            records.iter().map(|record| (record.worker_id.as_str(), record)).collect();
        let retired = self.services.records::<WorkerRecord>(RETIRED).await.map_err(|error| unreadable(&error))?;
        let retired: HashSet<&str> = retired.iter().map(|record| record.worker_id.as_str()).collect();
        Ok(rows
            .iter()
            .filter(|row| !retired.contains(row.name.as_str()))
            .map(|row| view(row, by_id.get(row.name.as_str()).copied()))
            .collect())
    }

    async fn remove(&self, id: &str) -> Result<Option<WorkerView>, ApiError> {
        let Some((row, record)) = self.find(id).await? else { return Ok(None) };
        let Some(record) = record.filter(|_| row.machine == self.services.machine) else {
            return Err(ApiError::conflict("another-machine", format!("worker {id} isn't one of this daemon's")));
        };
        match Facts::of(&row).state.as_str() {
            "quarantined" => {}
            "idle" => {
                self.services.quarantine_worker(id, "removed", Meant::Idle).await.map_err(control_error)?;
            }
            state => {
                return Err(ApiError::conflict("worker-in-use", format!("worker {id} is {state}"))
                    .with_help(format!("wait for its replay, or take it out first: warmhold worker quarantine {id}")));
            }
        }
        let Some((_, backend)) = self.services.profile(Some(&record.profile)) else {
            return Err(ApiError::conflict("unknown-profile", format!("its profile {} is gone", record.profile))
                .with_help("put the profile back into warmhold.toml, then remove the worker"));
        };
        let uid = record.pod_uid.clone().unwrap_or_default();
        self.retire(&backend, &target(&record.spec), &record.spec.name, &uid)
            .await
            .map_err(|error| ApiError::unavailable("pod-not-removed", error))?;
        self.view_again(id).await
    }

    async fn quarantine(&self, id: &str, reason: &str) -> Result<Option<WorkerView>, ApiError> {
        let Some((row, record)) = self.find(id).await? else { return Ok(None) };
        if Facts::of(&row).state == "quarantined" {
            return Err(ApiError::conflict("already-quarantined", format!("worker {id} is quarantined already")));
        }
        self.services.quarantine_worker(id, reason, Meant::Any).await.map_err(control_error)?;
        if let Some(record) = record {
            self.services.mark(&record, reason).await;
        }
        self.view_again(id).await
    }
}

/// Clears away what a preparation made that isn't a standing worker: registered if it isn't yet, quarantined, removed.
pub(crate) async fn abandon(
    services: &Arc<Services>,
    backend: &Arc<dyn Backend>,
    record: &WorkerRecord,
) -> Result<(), String> {
    let at = target(&record.spec);
    let uid = match &record.pod_uid {
        Some(uid) => Some(uid.clone()),
        // The daemon may have died between the pod and its record. The worker's id is fresh and was never shown to
        // anybody but the pod's creator: a pod that carries it is the one that this record was written for.
        None => match backend.get_pod(&at, &record.spec.name).await {
            Ok(pod) => {
                let carried = pod.pointer("/metadata/annotations/warmhold.dev~1worker-id").and_then(Value::as_str);
                checks::uid(&pod).filter(|_| carried == Some(&record.worker_id)).map(str::to_owned)
            }
            Err(PodsError::NotFound(_)) => None,
            Err(error) => return Err(error.to_string()),
        },
    };
    if let Some(uid) = uid {
        let draft = WorkerDraft {
            worker_id: record.worker_id.clone(),
            machine: record.machine.clone(),
            key: to_ledger_key(&record.spec.key),
            key_json: key_json(&record.spec.key).to_string().into(),
            pod_uid: Some(uid.clone()),
            ttl_ms: 1,
        };
        let submission = Submission {
            operation: Operation::RegisterWorker(draft),
            caller: services.machine_caller.clone(),
            guard: Guard { worker_route: true, seen_generation: None },
            deadline: std::time::Instant::now() + crate::session::CONTROL_LIMIT,
        };
        match services.ledger.apply(submission).await {
            Ok(_) | Err(ApplyError::Refused(Refusal::WorkerIdUsed, _)) => {}
            Err(error) => return Err(error.to_string()),
        }
        services
            .quarantine_worker(&record.worker_id, "preparation-failed", Meant::Any)
            .await
            .map_err(|error| error.to_string())?;
        backend.delete_pod(&at, &record.spec.name, &uid).await.map_err(|error| error.to_string())?;
    }
    services.retire_worker(record).await
}

/// What a worker's row says in its attributes.
pub(crate) struct Facts {
    pub(crate) state: String,
    pub(crate) generation: u64,
    pub(crate) pod_uid: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) lease_id: Option<String>,
    pub(crate) lease_owner: Option<String>,
    pub(crate) run_id: Option<String>,
    pub(crate) attempt_id: Option<String>,
}

impl Facts {
    pub(crate) fn of(row: &Row) -> Self {
        let attrs: Value = serde_json::from_str(&row.attrs).unwrap_or_default();
        let text = |name: &str| attrs.get(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            state: text("state").unwrap_or_default(),
            generation: attrs.get("generation").and_then(whole).unwrap_or_default(),
            pod_uid: text("podUid"),
            reason: text("reason"),
            lease_id: text("leaseId"),
            lease_owner: text("leaseOwner"),
            run_id: text("runId"),
            attempt_id: text("attemptId"),
        }
    }
}

fn has_key(row: &Row, key: &WorkerKey) -> bool {
    let attrs: Value = serde_json::from_str(&row.attrs).unwrap_or_default();
    attrs.get("key").and_then(|key| serde_json::from_value::<WorkerKey>(key.clone()).ok()).as_ref() == Some(key)
}

/// Whether a worker's pod may be removed.
fn used_up(row: &Row) -> bool {
    match Facts::of(row).state.as_str() {
        "quarantined" => true,
        "idle" => row.expired(now_ms()),
        _ => false,
    }
}

fn view(row: &Row, record: Option<&WorkerRecord>) -> WorkerView {
    let facts = Facts::of(row);
    let now = now_ms();
    WorkerView {
        worker_id: row.name.clone(),
        machine: row.machine.clone(),
        tier: record.map(|record| record.tier.clone()),
        slot: record.map(|record| record.slot),
        cut_sha: record.map(|record| record.spec.cut_sha.clone()),
        state: facts.state,
        generation: facts.generation,
        pod_uid: facts.pod_uid,
        age_ms: row.age_ms(now),
        expired: row.expired(now),
        reason: facts.reason,
    }
}

pub(crate) fn unreadable(error: &str) -> ApiError {
    tracing::error!(%error, "the ledger can't be read");
    ApiError::unavailable("ledger-unreadable", "the ledger can't be read; the daemon's log has the cause")
}

pub(crate) fn control_error(error: ControlError) -> ApiError {
    match error {
        ControlError::Refused(status, code) => {
            let status = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::CONFLICT);
            ApiError::new(status, code, "the ledger refuses")
        }
        ControlError::Unreachable(why) => ApiError::unavailable("ledger-unavailable", why).with_retry_after(1),
    }
}

fn git_error(error: &GitError) -> ApiError {
    match error {
        GitError::UnknownCommit { .. } => ApiError::bad_request("unknown-cut", error.to_string())
            .with_help("commit it in the profile's source, or name another commit"),
        _ => ApiError::conflict("source-unreadable", error.to_string())
            .with_help("the profile's `source` must be a git repository that this daemon can read"),
    }
}
