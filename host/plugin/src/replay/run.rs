//! Calls of a replay policy.

use super::host::{HeldLease, LeaseFacts, ReplayHost, Settlement};
use super::imports::ReplayCall;
use super::registry::{LeaseHandle, LeaseRegistry};
use super::{ClusterError, ControlError, Fallback, ReplayInput, Reply, Target, TransportError};
use crate::bindings::replay as bindings;
use crate::bindings::replay::exports::warmhold::policy::replay::Outcome;
use crate::call::{self, CallState, Frame, Host, Waits};
use crate::engine::Inner;
use crate::fault::{Cause, PolicyFault};
use crate::generation::{Generation, Identity};
use crate::limits::Limits;
use crate::meter::Mode;
use crate::slot::{Kind, Slot};
use crate::world::World;
use crate::{Candidate, Difference, PodSpec, WorkerKey};
use std::sync::Arc;
use wasmtime::Store;
use wasmtime::component::{Component, Resource};

/// How a replay ended, in its policy's view.
#[derive(Clone, Debug)]
pub enum ReplayOutcome {
    /// It ran. The lease is still fenced and is the caller's again.
    Observed {
        /// The lease.
        held: LeaseHandle,
        /// JSON text.
        evidence: String,
    },
    /// It didn't, and nothing is held.
    Fallback(Fallback),
    /// The worker could not even be quarantined.
    Failed(String),
}

/// The end of a call: what it answered, and what it left behind.
#[derive(Debug)]
pub struct CallEnd<T> {
    /// The answer, or why there is none.
    pub outcome: Result<T, PolicyFault>,
    /// Leases that the guest was given and that are neither settled nor handed back. Quarantine each of them.
    pub unsettled: Vec<LeaseHandle>,
    /// `NAME@sha256:DIGEST#GENERATION`.
    pub policy: Arc<str>,
}

/// Replay policies, as a [`Kind`].
#[derive(Debug)]
pub struct ReplayKind;

/// A replay policy, compiled and matched with its imports.
#[derive(Clone)]
pub struct ReplayProgram(bindings::ReplayPolicyPre<Host<ReplayCall>>);

impl std::fmt::Debug for ReplayProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplayProgram")
    }
}

/// The slot of the replay policy.
pub type ReplaySlot = Slot<ReplayKind>;

type Guest = Store<Host<ReplayCall>>;

/// One call and its arguments. (A closure over borrowed arguments could not be shown to be `Send`, and the caller spawns
/// these futures.)
enum Ask<'a> {
    Identify,
    CheckSettings,
    Request(&'a ReplayInput, &'a [Candidate]),
    Finalize(LeaseHandle, &'a Candidate),
    Quarantine(LeaseHandle, &'a Candidate, &'a str),
    Prepare(&'a Candidate),
}

/// What was answered.
enum Answer {
    About(crate::load::About),
    Settings(Result<(), Vec<String>>),
    Outcome(ReplayOutcome),
    Done(Result<(), String>),
    Prepared(Result<String, String>),
}

impl Ask<'_> {
    fn function(&self) -> &'static str {
        match self {
            Self::Identify => "identify",
            Self::CheckSettings => "check-settings",
            Self::Request(..) => "request",
            Self::Finalize(..) => "finalize",
            Self::Quarantine(..) => "quarantine",
            Self::Prepare(..) => "prepare",
        }
    }

    async fn put(self, program: &ReplayProgram, settings: &str, store: &mut Guest) -> wasmtime::Result<Answer> {
        let policy = program.0.instantiate_async(&mut *store).await?;
        store.data_mut().call.made = true;
        let about = policy.warmhold_policy_about();
        let replay = policy.warmhold_policy_replay();
        Ok(match self {
            Self::Identify => {
                let about = about.call_identify(store).await?;
                Answer::About(crate::load::About { name: about.name, version: about.version, summary: about.summary })
            }
            Self::CheckSettings => Answer::Settings(about.call_check_settings(store, &settings.to_owned()).await?),
            Self::Request(input, candidates) => {
                let outcome = replay.call_request(&mut *store, input, candidates).await?;
                Answer::Outcome(match outcome {
                    Outcome::Observed(observation) => {
                        // Ours again: out of the guest's table, and handed back as it is, still fenced.
                        let host = store.data_mut();
                        let held = host.call.table.delete(observation.held)?.0;
                        host.own.leases.settle(held);
                        ReplayOutcome::Observed { held, evidence: observation.evidence }
                    }
                    Outcome::Fallback(fallback) => ReplayOutcome::Fallback(fallback),
                    Outcome::Failed(why) => ReplayOutcome::Failed(why),
                })
            }
            Self::Finalize(held, of) => {
                let held = lend(store, held)?;
                Answer::Done(replay.call_finalize(store, held, of).await?)
            }
            Self::Quarantine(held, of, reason) => {
                let held = lend(store, held)?;
                Answer::Done(replay.call_quarantine(store, held, of, reason).await?)
            }
            Self::Prepare(of) => Answer::Prepared(replay.call_prepare(store, of).await?),
        })
    }
}

/// Puts a lease into the guest's table for one call.
fn lend(store: &mut Guest, handle: LeaseHandle) -> wasmtime::Result<Resource<HeldLease>> {
    store.data_mut().call.push(HeldLease(handle))
}

/// A function's answer is of the type of its question, by the code above.
fn other<R>() -> wasmtime::Result<R> {
    Err(Cause::Host("an answer to another question".to_owned()).trap())
}

impl ReplaySlot {
    /// Drives one replay.
    ///
    /// `leases` must be a fresh registry. The future may be dropped at any time: no code of the guest runs again, and
    /// `leases` then tells what is unsettled.
    pub async fn request(
        &self,
        host: Arc<dyn ReplayHost>,
        leases: Arc<LeaseRegistry>,
        input: &ReplayInput,
        candidates: &[Candidate],
    ) -> CallEnd<ReplayOutcome> {
        let ask = Ask::Request(input, candidates);
        let take = |answer| if let Answer::Outcome(outcome) = answer { Ok(outcome) } else { other() };
        self.drive(host, leases, ask, take).await
    }

    /// Gives an observed replay's worker back: release and sanitize. `Err` inside is the policy's own words.
    pub async fn finalize(
        &self,
        host: Arc<dyn ReplayHost>,
        leases: Arc<LeaseRegistry>,
        held: LeaseHandle,
        of: &Candidate,
    ) -> CallEnd<Result<(), String>> {
        leases.give(held);
        let take = |answer| if let Answer::Done(done) = answer { Ok(done) } else { other() };
        self.drive(host, leases, Ask::Finalize(held, of), take).await
    }

    /// Quarantines an observed replay's worker. `Err` inside is the policy's own words.
    pub async fn quarantine(
        &self,
        host: Arc<dyn ReplayHost>,
        leases: Arc<LeaseRegistry>,
        held: LeaseHandle,
        of: &Candidate,
        reason: &str,
    ) -> CallEnd<Result<(), String>> {
        leases.give(held);
        let take = |answer| if let Answer::Done(done) = answer { Ok(done) } else { other() };
        self.drive(host, leases, Ask::Quarantine(held, of, reason), take).await
    }

    /// Prepares a standing worker; what it says when done, or why it could not.
    pub async fn prepare(
        &self,
        host: Arc<dyn ReplayHost>,
        leases: Arc<LeaseRegistry>,
        of: &Candidate,
    ) -> CallEnd<Result<String, String>> {
        let take = |answer| if let Answer::Prepared(prepared) = answer { Ok(prepared) } else { other() };
        self.drive(host, leases, Ask::Prepare(of), take).await
    }

    async fn drive<R>(
        &self,
        host: Arc<dyn ReplayHost>,
        leases: Arc<LeaseRegistry>,
        ask: Ask<'_>,
        take: fn(Answer) -> wasmtime::Result<R>,
    ) -> CallEnd<R> {
        let generation = self.serving();
        let registry = Arc::clone(&leases);
        let outcome = self.drive_with(&generation, ReplayCall { host, leases }, ask, take).await;
        CallEnd { outcome, unsettled: registry.unsettled(), policy: Arc::clone(generation.tag()) }
    }

    async fn drive_with<R>(
        &self,
        generation: &Arc<Generation<ReplayProgram>>,
        own: ReplayCall,
        ask: Ask<'_>,
        take: fn(Answer) -> wasmtime::Result<R>,
    ) -> Result<R, PolicyFault> {
        let function = ask.function();
        let place = self.begin(generation, function)?;
        let Generation { program, identity, limits, .. } = &**generation;
        let result = drive(self.engine().inner(), program, identity, limits, Waits::OnHost, own, ask, take).await;
        drop(place);
        self.settle(generation, function, result)
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of a generation, and those of a call")]
async fn drive<R>(
    inner: &Inner,
    program: &ReplayProgram,
    identity: &Identity,
    limits: &Limits,
    waits: Waits,
    own: ReplayCall,
    ask: Ask<'_>,
    take: fn(Answer) -> wasmtime::Result<R>,
) -> Result<R, PolicyFault> {
    let function = ask.function();
    let now_ms = own.host.now();
    let frame = Frame { now_ms, seed: format!("{}:{now_ms}", identity.tag) };
    let host = Host { call: CallState::new(identity, limits, frame), own };
    let mut store = call::store(&inner.engine, host, Mode::Async);
    let meter = Arc::clone(&store.data().call.meter);
    let answer = call::watch(&meter, limits, waits, ask.put(program, &identity.settings, &mut store)).await;
    call::finish(&mut store, identity, function, answer.and_then(take))
}

impl Kind for ReplayKind {
    const WORLD: World = World::Replay;
    type Program = ReplayProgram;

    fn link(inner: &Inner, component: &Component) -> wasmtime::Result<ReplayProgram> {
        Ok(ReplayProgram(bindings::ReplayPolicyPre::new(inner.replay.instantiate_pre(component)?)?))
    }

    fn identify(
        inner: &Inner,
        program: &ReplayProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<crate::load::About, PolicyFault> {
        let take = |answer| if let Answer::About(about) = answer { Ok(about) } else { other() };
        question(inner, program, identity, limits, Ask::Identify, take)
    }

    fn check_settings(
        inner: &Inner,
        program: &ReplayProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), Vec<String>>, PolicyFault> {
        let take = |answer| if let Answer::Settings(settings) = answer { Ok(settings) } else { other() };
        question(inner, program, identity, limits, Ask::CheckSettings, take)
    }

    /// Asks for a replay without a candidate, of a host that refuses everything: nothing can have been observed.
    fn self_test(
        inner: &Inner,
        program: &ReplayProgram,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), String>, PolicyFault> {
        let input = ReplayInput {
            protocol: 1,
            run_id: "self-test".to_owned(),
            attempt_id: "self-test".to_owned(),
            cut_sha: "0".repeat(40),
            baseline_sha: None,
            env_profile: "gate-v1".to_owned(),
            deadline_at: Nobody.now() + 60_000,
            files: vec!["tests/self-test.sh".to_owned()],
        };
        let take = |answer| if let Answer::Outcome(outcome) = answer { Ok(outcome) } else { other() };
        Ok(match question(inner, program, identity, limits, Ask::Request(&input, &[]), take)? {
            ReplayOutcome::Fallback(_) | ReplayOutcome::Failed(_) => Ok(()),
            ReplayOutcome::Observed { .. } => {
                Err("asked for a replay without a worker, it says that it observed one".to_owned())
            }
        })
    }
}

/// One question of a load. Its host answers at once, so no runtime is needed and this thread sees to it alone.
fn question<R>(
    inner: &Inner,
    program: &ReplayProgram,
    identity: &Identity,
    limits: &Limits,
    ask: Ask<'_>,
    take: fn(Answer) -> wasmtime::Result<R>,
) -> Result<R, PolicyFault> {
    let own = ReplayCall { host: Arc::new(Nobody), leases: Arc::default() };
    block_on(drive(inner, program, identity, limits, Waits::Never, own, ask, take))
}

/// Polls a future on this thread until it is done. It only ever gives way to let others run, so there is nothing to
/// wait for between two polls. (A runtime's own `block_on` panics on a thread of a runtime.)
fn block_on<R>(future: impl Future<Output = R>) -> R {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        std::thread::yield_now();
    }
}

/// The host of a load's questions: refuses everything at once.
struct Nobody;

const LOADING: &str = "the policy is being loaded; there is nothing to be had yet";

fn refused() -> ControlError {
    ControlError::Unreachable(LOADING.to_owned())
}

fn denied() -> ClusterError {
    ClusterError::Denied(LOADING.to_owned())
}

#[async_trait::async_trait]
impl ReplayHost for Nobody {
    async fn acquire(
        &self,
        _machine: String,
        _key: WorkerKey,
        _run_id: String,
        _attempt_id: String,
        _ttl_ms: u64,
    ) -> Result<LeaseHandle, ControlError> {
        Err(refused())
    }

    fn lease(&self, _handle: LeaseHandle) -> Option<LeaseFacts> {
        None
    }

    async fn renew(&self, _handle: LeaseHandle, _ttl_ms: u64) -> Result<(), ControlError> {
        Err(refused())
    }

    async fn release(&self, _handle: LeaseHandle) -> Result<Settlement, ControlError> {
        Err(refused())
    }

    async fn sanitize(&self, _handle: LeaseHandle) -> Result<(), ControlError> {
        Err(refused())
    }

    async fn quarantine(&self, _handle: LeaseHandle, _reason: String) -> Result<(), ControlError> {
        Err(refused())
    }

    async fn worker_rows(&self, _machine: String, _worker_id: String) -> Result<String, ControlError> {
        Err(refused())
    }

    async fn register(
        &self,
        _machine: String,
        _worker_id: String,
        _pod_uid: String,
        _key: WorkerKey,
        _ttl_ms: u64,
    ) -> Result<String, ControlError> {
        Err(refused())
    }

    async fn context_known(&self, _context: String) -> Result<(), ClusterError> {
        Err(denied())
    }

    async fn get_pod(&self, _at: Target, _name: String) -> Result<String, ClusterError> {
        Err(denied())
    }

    async fn list_pods(&self, _at: Target) -> Result<Vec<String>, ClusterError> {
        Err(denied())
    }

    async fn get_node(&self, _context: String, _name: String) -> Result<String, ClusterError> {
        Err(denied())
    }

    async fn create_pod(&self, _at: Target, _manifest: String) -> Result<String, ClusterError> {
        Err(denied())
    }

    async fn wait_ready(&self, _at: Target, _name: String, _seconds: u32) -> Result<(), ClusterError> {
        Err(denied())
    }

    async fn patch_metadata(
        &self,
        _holding: LeaseHandle,
        _at: Target,
        _pod: String,
        _labels: String,
        _annotations: String,
    ) -> Result<(), ClusterError> {
        Err(denied())
    }

    async fn exec(
        &self,
        _holding: LeaseHandle,
        _at: Target,
        _pod: String,
        _command: String,
        _deadline: u64,
    ) -> Result<Reply, TransportError> {
        Err(TransportError::Failed(LOADING.to_owned()))
    }

    async fn render(&self, _spec: PodSpec) -> Result<String, Vec<String>> {
        Err(vec![LOADING.to_owned()])
    }

    async fn verify(&self, _spec: PodSpec, _live: String) -> Result<Vec<Difference>, Vec<Difference>> {
        Err(Vec::new())
    }

    fn now(&self) -> u64 {
        1_700_000_000_000
    }
}
