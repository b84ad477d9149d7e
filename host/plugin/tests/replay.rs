//! Replay policies: whatever becomes of a call, the host knows which leases are unsettled.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::indexing_slicing, clippy::string_slice, reason = "and so does an index that is not there")]

mod support;

use async_trait::async_trait;
use parking_lot::Mutex;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::*;
use warmhold_plugin::*;

/// A host that gives leases and refuses the rest, after a while.
#[derive(Default)]
struct Fake {
    given: AtomicU64,
    asked: Mutex<Vec<String>>,
    /// How long acquiring takes.
    slow: Duration,
    /// Never answers `get-pod`.
    hangs: bool,
}

impl Fake {
    fn note(&self, what: &str) {
        self.asked.lock().push(what.to_owned());
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

#[async_trait]
impl ReplayHost for Fake {
    async fn acquire(
        &self,
        _machine: String,
        _key: WorkerKey,
        _run_id: String,
        _attempt_id: String,
        _ttl_ms: u64,
    ) -> Result<LeaseHandle, ControlError> {
        self.note("acquire");
        tokio::time::sleep(self.slow).await;
        Ok(LeaseHandle(self.given.fetch_add(1, Ordering::Relaxed) + 1))
    }

    fn lease(&self, handle: LeaseHandle) -> Option<LeaseFacts> {
        Some(LeaseFacts {
            id: format!("lease-{}", handle.0),
            worker: "w".into(),
            generation: 1,
            run_id: "run".into(),
            attempt_id: "attempt".into(),
            pod_uid: Some("uid".into()),
            key: key(),
        })
    }

    async fn renew(&self, _handle: LeaseHandle, _ttl_ms: u64) -> Result<(), ControlError> {
        self.note("renew");
        Ok(())
    }

    async fn release(&self, _handle: LeaseHandle) -> Result<Settlement, ControlError> {
        self.note("release");
        Ok(Settlement::Open)
    }

    async fn sanitize(&self, _handle: LeaseHandle) -> Result<(), ControlError> {
        self.note("sanitize");
        Ok(())
    }

    async fn quarantine(&self, _handle: LeaseHandle, reason: String) -> Result<(), ControlError> {
        self.note(&format!("quarantine {reason}"));
        Ok(())
    }

    async fn worker_rows(&self, _machine: String, _worker_id: String) -> Result<String, ControlError> {
        Ok("[]".into())
    }

    async fn register(
        &self,
        _machine: String,
        _worker_id: String,
        _pod_uid: String,
        _key: WorkerKey,
        _ttl_ms: u64,
    ) -> Result<String, ControlError> {
        Err(ControlError::Unreachable("no".into()))
    }

    async fn context_known(&self, _context: String) -> Result<(), ClusterError> {
        Ok(())
    }

    async fn get_pod(&self, _at: Target, _name: String) -> Result<String, ClusterError> {
        self.note("get-pod");
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Err(ClusterError::NotFound)
    }

    async fn list_pods(&self, _at: Target) -> Result<Vec<String>, ClusterError> {
        Ok(vec![])
    }

    async fn get_node(&self, _context: String, _name: String) -> Result<String, ClusterError> {
        Err(ClusterError::NotFound)
    }

    async fn create_pod(&self, _at: Target, _manifest: String) -> Result<String, ClusterError> {
        Err(ClusterError::Denied("no".into()))
    }

    async fn wait_ready(&self, _at: Target, _name: String, _seconds: u32) -> Result<(), ClusterError> {
        Err(ClusterError::TimedOut)
    }

    async fn patch_metadata(
        &self,
        _holding: LeaseHandle,
        _at: Target,
        _pod: String,
        _labels: String,
        _annotations: String,
    ) -> Result<(), ClusterError> {
        self.note("patch");
        Ok(())
    }

    async fn exec(
        &self,
        _holding: LeaseHandle,
        _at: Target,
        _pod: String,
        _command: String,
        _deadline: u64,
    ) -> Result<Reply, TransportError> {
        self.note("exec");
        Err(TransportError::TimedOut)
    }

    async fn render(&self, _spec: PodSpec) -> Result<String, Vec<String>> {
        Ok("{}".into())
    }

    async fn verify(&self, _spec: PodSpec, _live: String) -> Result<Vec<Difference>, Vec<Difference>> {
        Ok(vec![])
    }

    fn now(&self) -> u64 {
        1_700_000_000_000
    }
}

fn candidate() -> Candidate {
    Candidate {
        host: "m".into(),
        tier: "small".into(),
        spec: PodSpec {
            name: "pod".into(),
            namespace: "default".into(),
            context: "local".into(),
            worker_id: "w".into(),
            image: format!("example.invalid/worker@sha256:{}", "1".repeat(64)),
            node: None,
            cut_sha: "a".repeat(40),
            key: key(),
            memory_limit: None,
            host_probe_url: "http://127.0.0.1:1/".into(),
            prod_probe_url: "http://127.0.0.1:2/".into(),
            source_mirror: None,
            source: "https://example.invalid/r.git".into(),
            install: vec![],
        },
    }
}

fn input() -> ReplayInput {
    ReplayInput {
        protocol: 1,
        run_id: "run".into(),
        attempt_id: "attempt".into(),
        cut_sha: "a".repeat(40),
        baseline_sha: None,
        env_profile: "gate-v1".into(),
        deadline_at: 1_700_000_060_000,
        files: vec!["tests/a.sh".into()],
    }
}

fn slot(policy: &str, change: impl FnOnce(&mut Limits)) -> (tempfile::TempDir, Arc<ReplaySlot>) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), World::Replay, built(policy));
    change(&mut options.limits);
    let slot = ReplaySlot::open(&engine(), options).unwrap();
    (dir, Arc::new(slot))
}

/// One request, in a task of its own as a daemon does it.
async fn request(slot: &Arc<ReplaySlot>, host: Arc<Fake>) -> CallEnd<ReplayOutcome> {
    let slot = Arc::clone(slot);
    tokio::spawn(async move { slot.request(host, Arc::new(LeaseRegistry::new()), &input(), &[candidate()]).await })
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_are_dropped_kept_or_held_in_a_trap_are_unsettled() {
    for policy in ["drop-lease", "keep-lease", "panic-holding"] {
        let (_dir, slot) = slot(policy, |_| ());
        let end = request(&slot, Arc::default()).await;
        assert_eq!(end.unsettled, [LeaseHandle(1)], "{policy}");
        assert!(end.policy.starts_with(policy.trim_start_matches("")), "{}", end.policy);
        match (policy, end.outcome) {
            ("panic-holding", Err(fault)) => {
                assert_eq!(fault.code(), "policy-trap");
                assert!(fault.message.unwrap().contains("holds the lease of w"));
            }
            (_, Ok(ReplayOutcome::Fallback(fallback))) => assert_eq!(fallback.reason, "lease-unavailable"),
            (_, other) => panic!("{policy}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_meets_its_guest_time_though_it_yields() {
    let (_dir, slot) = slot("loop-forever", |limits| limits.guest_ms = NonZeroU32::new(30).unwrap());
    let end = request(&slot, Arc::default()).await;
    assert_eq!(end.outcome.unwrap_err().cause, Cause::Deadline { limit_ms: 30 });
    assert_eq!(end.unsettled, [LeaseHandle(1)]);
}

#[tokio::test]
async fn a_loop_leaves_the_thread_to_others() {
    let (_dir, slot) = slot("loop-forever", |limits| limits.guest_ms = NonZeroU32::new(300).unwrap());
    let mut call = std::pin::pin!(request(&slot, Arc::default()));
    let mut turns = 0;
    // One thread for both: the other task gets its turns only when the guest yields.
    let end = loop {
        tokio::select! {
            end = &mut call => break end,
            () = tokio::time::sleep(Duration::from_millis(1)) => turns += 1,
        }
    };
    assert_eq!(end.outcome.unwrap_err().code(), "policy-deadline");
    assert!(turns > 5, "{turns}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_the_host_is_not_guest_time_but_wall_clock() {
    let limits = |limits: &mut Limits| {
        limits.guest_ms = NonZeroU32::new(200).unwrap();
        limits.wall_ms = NonZeroU32::new(60_000).unwrap();
    };
    let (_dir, slot) = slot("drop-lease", limits);
    let host = Arc::new(Fake { slow: Duration::from_millis(600), ..Fake::default() });
    assert!(request(&slot, host).await.outcome.is_ok(), "it waited longer than it may compute");

    let (_dir, slot) = self::slot("warm-replay", |limits| limits.wall_ms = NonZeroU32::new(300).unwrap());
    let host = Arc::new(Fake { hangs: true, ..Fake::default() });
    let end = request(&slot, Arc::clone(&host)).await;
    assert_eq!(end.outcome.unwrap_err().cause, Cause::WallClock { limit_ms: 300 });
    assert_eq!(end.unsettled, [LeaseHandle(1)], "{:?}", host.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_leaves_its_leases_in_the_registry() {
    let (_dir, slot) = slot("warm-replay", |_| ());
    let (host, leases) = (Arc::new(Fake { hangs: true, ..Fake::default() }), Arc::new(LeaseRegistry::new()));
    let task = tokio::spawn({
        let (slot, host, leases) = (Arc::clone(&slot), Arc::clone(&host), Arc::clone(&leases));
        async move { slot.request(host, leases, &input(), &[candidate()]).await }
    });
    while !host.asked().contains(&"get-pod".to_owned()) {
        assert!(!task.is_finished(), "{:?} {:?}", host.asked(), task.await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(leases.unsettled(), [LeaseHandle(1)]);
    assert_eq!(Arc::strong_count(&host), 1, "nothing of the call is left");
    // The place in the pool was given back, and the policy is not blamed.
    assert_eq!(slot.status().generations[0].faults, 0);
    for _ in 0..slot.engine().places(World::Replay) + 5 {
        let end = slot.request(Arc::new(Fake::default()), Arc::default(), &input(), &[]).await;
        assert!(end.outcome.is_ok(), "{:?}", end.outcome);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_the_policy_quarantines_is_settled() {
    let (_dir, slot) = slot("warm-replay", |_| ());
    let host = Arc::new(Fake::default());
    let end = request(&slot, Arc::clone(&host)).await;
    let Ok(ReplayOutcome::Fallback(fallback)) = end.outcome else { panic!("{:?}", end.outcome) };
    assert!(host.asked().iter().any(|asked| asked.starts_with("quarantine ")), "{:?} {fallback:?}", host.asked());
    assert_eq!(end.unsettled, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_lent_and_only_released_is_unsettled_and_a_sanitized_one_is_not() {
    let (_dir, slot) = slot("warm-replay", |_| ());
    let host = Arc::new(Fake::default());
    let lent = LeaseHandle(77);
    let end = slot.finalize(host.clone(), Arc::default(), lent, &candidate()).await;
    let asked = host.asked();
    assert!(asked.contains(&"release".to_owned()), "{asked:?}");
    let settled = asked.iter().any(|asked| asked == "sanitize" || asked.starts_with("quarantine"));
    assert_eq!(end.unsettled, if settled { vec![] } else { vec![lent] }, "{asked:?} {:?}", end.outcome);

    let (_dir, slot) = self::slot("keep-lease", |_| ());
    let end = slot.finalize(Arc::new(Fake::default()), Arc::default(), lent, &candidate()).await;
    assert_eq!(end.unsettled, [lent], "it did nothing with it");
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_that_wait_do_not_take_the_places_of_decisions() {
    let engine = engine();
    let dir = tempfile::tempdir().unwrap();
    let replays =
        Arc::new(ReplaySlot::open(&engine, options(dir.path(), World::Replay, built("warm-replay"))).unwrap());
    let leases = LeaseSlot::open(&engine, options(dir.path(), World::Lease, built("lease-policy"))).unwrap();
    let host = Arc::new(Fake { hangs: true, ..Fake::default() });
    let places = engine.places(World::Replay);
    let tasks: Vec<_> = (0..places)
        .map(|_| {
            let (slot, host) = (Arc::clone(&replays), Arc::clone(&host));
            tokio::spawn(async move { slot.request(host, Arc::default(), &input(), &[candidate()]).await })
        })
        .collect();
    while host.asked().iter().filter(|asked| *asked == "get-pod").count() < places as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let end = replays.request(Arc::new(Fake::default()), Arc::default(), &input(), &[candidate()]).await;
    assert_eq!(end.outcome.unwrap_err().cause, Cause::PoolFull { world: World::Replay, places });
    assert_eq!(replays.status().generations[0].faults, 0, "a full pool is not the policy's fault");
    for n in 0..50 {
        leases.decide(Arc::new(Workers::idle(1)), &moment(n), &member(), &acquire()).unwrap().verdict.unwrap();
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}
