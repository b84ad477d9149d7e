//! Every limit is hit by a policy that does what it is against, and the next call is as if nothing had been.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::indexing_slicing, clippy::string_slice, reason = "and so does an index that is not there")]

mod support;

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use support::guest::Guest;
use support::*;
use warmhold_plugin::*;

const ENDLESS: &str = "(loop $l (br $l))";
/// Grows the memory page by page, and traps when it gets no more.
const HOARD: &str = "(loop $l (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable)) (br $l))";

fn n32(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn n(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

struct Trial {
    slot: ManifestSlot,
    _dir: tempfile::TempDir,
}

/// A slot with a policy that does this in `render`.
fn trial(render: &'static str, change: impl FnOnce(&mut Limits)) -> Trial {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), World::Manifest, Guest { render, ..Guest::default() }.build());
    change(&mut options.limits);
    Trial { slot: ManifestSlot::open(&engine(), options).unwrap(), _dir: dir }
}

fn spec() -> PodSpec {
    PodSpec {
        name: "pod".into(),
        namespace: "default".into(),
        context: "local".into(),
        worker_id: "w".into(),
        image: "image".into(),
        node: None,
        cut_sha: "0".repeat(40),
        key: key(),
        memory_limit: None,
        host_probe_url: "http://127.0.0.1:1/".into(),
        prod_probe_url: "http://127.0.0.1:2/".into(),
        source_mirror: None,
        source: "source".into(),
        install: vec![],
    }
}

/// What a load says of a policy that misbehaves in its self-test.
fn refused(render: &'static str, change: impl FnOnce(&mut Limits)) -> Cause {
    let mut limits = Limits::of(World::Manifest);
    change(&mut limits);
    let bytes = Guest { render, ..Guest::default() }.build();
    match check::<ManifestKind>(&engine(), &bytes, "{}", &limits) {
        Err(LoadError::Faulted(fault)) => fault.cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_written_guest_answers() {
    let trial = trial("", |_| ());
    let answered = trial.slot.render(&spec()).unwrap();
    assert_eq!(answered.answer.unwrap(), "{\"pad\":\"......................\"}");
    assert_eq!(trial.slot.verify(&spec(), "{}").unwrap().answer, Ok(vec![]));
    assert!(answered.policy.starts_with("written@sha256:") && answered.policy.ends_with("#1"), "{}", answered.policy);
}

#[test]
fn an_endless_loop_meets_its_deadline() {
    assert_eq!(refused(ENDLESS, |limits| limits.guest_ms = n32(3)), Cause::Deadline { limit_ms: 30 });
}

#[test]
fn a_loop_in_the_lease_world_meets_its_deadline_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let slot = LeaseSlot::open(&engine(), options(dir.path(), World::Lease, built("endless-loop"))).unwrap();
    let view: Arc<dyn LedgerView> = Arc::new(Workers::idle(1));
    for n in 0..3 {
        let start = std::time::Instant::now();
        let fault = slot.decide(Arc::clone(&view), &moment(n), &member(), &acquire()).unwrap_err();
        assert_eq!(fault.cause, Cause::Deadline { limit_ms: Limits::of(World::Lease).guest_ms.get() });
        assert!(start.elapsed().as_secs() < 20, "it ended by its deadline and not by chance");
        // Another function of the same policy has its whole time.
        let fine = LeaseRequest::Heartbeat { id: "nothing".into(), attrs: None };
        slot.decide(Arc::clone(&view), &moment(n), &member(), &fine).unwrap().verdict.unwrap_err();
    }
    assert_eq!(Arc::strong_count(&view), 1);
}

#[test]
fn the_wall_clock_ends_what_guest_time_would_not() {
    let cause = refused(ENDLESS, |limits| {
        limits.guest_ms = n32(1_000_000);
        limits.wall_ms = n32(20);
    });
    assert_eq!(cause, Cause::WallClock { limit_ms: 20 });
}

#[test]
fn a_memory_bomb_is_told_as_memory() {
    let Cause::Memory { wanted, allowed } = refused(HOARD, |limits| limits.memory = n(4 << 20)) else { panic!() };
    assert_eq!(allowed, 4 << 20);
    assert!(wanted > allowed && wanted < allowed + (2 << 20), "{wanted}");
}

#[test]
fn a_memory_that_is_too_large_from_the_start_is_told_as_memory() {
    let bytes = Guest { pages: 100, ..Guest::default() }.build();
    let limits = Limits { memory: n(1 << 20), ..Limits::of(World::Manifest) };
    let Err(LoadError::Faulted(fault)) = check::<ManifestKind>(&engine(), &bytes, "{}", &limits) else { panic!() };
    assert_eq!(fault.cause, Cause::Memory { wanted: 100 * 65536, allowed: 1 << 20 });
}

#[test]
fn a_guest_that_lives_with_a_refused_growth_goes_on() {
    let trial = trial("(drop (memory.grow (i32.const 1000)))", |limits| limits.memory = n(1 << 20));
    trial.slot.render(&spec()).unwrap().answer.unwrap();
}

#[test]
fn a_table_bomb_is_told_as_table() {
    let cause = refused(
        "(loop $l (if (i32.eq (table.grow $table (ref.null func) (i32.const 100)) (i32.const -1)) (then unreachable)) (br $l))",
        |limits| limits.table_elements = n(1000),
    );
    assert_eq!(cause, Cause::Table { wanted: 1004, allowed: 1000 });
}

#[test]
fn too_many_parts_are_told_as_instances() {
    for change in [(|limits: &mut Limits| limits.instances = n(1)) as fn(&mut Limits), |limits| limits.tables = n(1)] {
        let mut limits = Limits::of(World::Lease);
        change(&mut limits);
        match check::<LeaseKind>(&engine(), &built("lease-policy"), "{}", &limits) {
            Err(LoadError::Faulted(fault)) => assert_eq!(fault.code(), "policy-instances", "{fault}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_recursion_without_end_is_told_as_such() {
    assert_eq!(refused("(drop (call $deeper (i32.const 0)))", |_| ()), Cause::StackOverflow);
}

#[test]
fn an_exit_is_told_with_its_status() {
    assert_eq!(refused("(call $exit (i32.const 1))", |_| ()), Cause::Exit(1));
    assert_eq!(refused("(call $exit (i32.const 0))", |_| ()), Cause::Exit(0));
}

#[test]
fn a_trap_is_told_with_its_code() {
    assert_eq!(refused("unreachable", |_| ()), Cause::Trap("wasm `unreachable` instruction executed".into()));
    assert_eq!(
        refused("(drop (i32.div_u (i32.const 1) (local.get $a)))", |_| ()),
        Cause::Trap("integer divide by zero".into())
    );
}

#[test]
fn too_many_calls_of_the_host_are_told() {
    let cause = refused("(loop $l (drop (call $now)) (br $l))", |limits| limits.host_calls = n32(100));
    assert_eq!(cause, Cause::HostCalls { allowed: 100 });
}

#[test]
fn too_many_handles_are_told() {
    let cause = refused("(loop $l (drop (call $get-stderr)) (br $l))", |limits| limits.handles = n(10));
    assert_eq!(cause, Cause::Handles { allowed: 10 });
}

#[test]
fn bytes_to_the_host_add_up() {
    let say = "(loop $l (call $write (call $get-stderr) (i32.const 128) (i32.const 24) (i32.const 512)) (br $l))";
    let cause = refused(say, |limits| {
        limits.host_bytes = n(1000);
        limits.handles = n(100_000);
    });
    assert_eq!(cause, Cause::HostBytes { allowed: 1000 });
}

#[test]
fn too_many_bytes_at_once_are_told_as_the_same() {
    // A list of 4,096 bytes in one call: the engine refuses to copy them.
    let cause =
        refused("(call $write (call $get-stderr) (i32.const 128) (i32.const 4096) (i32.const 512))", |limits| {
            limits.host_bytes = n(1000);
        });
    assert_eq!(cause, Cause::HostBytes { allowed: 1000 });
    // And in an answer: 60 KiB of JSON, where 1,000 bytes may go.
    let answer = "(i32.store8 (i32.const 384) (i32.const 0)) (i32.store (i32.const 388) (i32.const 0)) \
                  (i32.store (i32.const 392) (i32.const 60000)) (return (i32.const 384))";
    assert_eq!(refused(answer, |limits| limits.host_bytes = n(1000)), Cause::HostBytes { allowed: 1000 });
}

#[test]
fn rows_of_the_ledger_count_as_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), World::Lease, built("lease-policy"));
    options.limits.host_bytes = n(2000);
    let slot = LeaseSlot::open(&engine(), options).unwrap();
    let mut rows = Workers::idle(1);
    rows.0[0].endpoint = Some("x".repeat(4000));
    let fault = slot.decide(Arc::new(rows), &moment(0), &member(), &acquire()).unwrap_err();
    assert_eq!(fault.cause, Cause::HostBytes { allowed: 2000 });
}

#[test]
fn something_malformed_is_told() {
    let bad_pointer = "(i32.store8 (i32.const 384) (i32.const 0)) (i32.store (i32.const 388) (i32.const -4)) \
                       (i32.store (i32.const 392) (i32.const 4)) (return (i32.const 384))";
    assert_eq!(refused(bad_pointer, |_| ()).code(), "policy-malformed");
    let not_utf8 = "(i32.store8 (i32.const 4100) (i32.const 255))";
    assert_eq!(refused(not_utf8, |_| ()).code(), "policy-malformed");
}

#[test]
fn the_guests_last_words_are_kept() {
    let bytes = Guest {
        render: "(call $write (call $get-stderr) (i32.const 128) (i32.const 24) (i32.const 512)) unreachable",
        ..Guest::default()
    }
    .build();
    match check::<ManifestKind>(&engine(), &bytes, "{}", &Limits::of(World::Manifest)) {
        Err(LoadError::Faulted(fault)) => {
            assert_eq!(fault.message.as_deref(), Some("last words of the guest"));
            assert_eq!(fault.code(), "policy-trap");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_panic_of_the_sdk_is_told_in_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let slot = LeaseSlot::open(&engine(), options(dir.path(), World::Lease, built("panic"))).unwrap();
    let fault = slot.decide(Arc::new(EmptyLedger), &moment(7), &member(), &acquire()).unwrap_err();
    assert_eq!(fault.code(), "policy-trap");
    assert!(fault.message.as_deref().unwrap().contains("panic was asked at 1700000000007"), "{fault}");
    assert!(fault.to_string().contains(&**slot.serving().tag()), "{fault}");
}

#[test]
fn hostile_lease_policies_are_stopped_each_by_its_limit() {
    for (name, code) in [
        ("memory-bomb", "policy-memory"),
        ("deep-recursion", "policy-stack-overflow"),
        ("log-flood", "policy-host-bytes"),
        ("endless-loop", "policy-deadline"),
        ("panic", "policy-trap"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), World::Lease, built(name));
        // Time enough to reach the limit that is meant, in a debug build on a busy machine.
        if code != "policy-deadline" {
            options.limits.guest_ms = n32(2000);
            options.limits.wall_ms = n32(20_000);
        }
        let slot = LeaseSlot::open(&engine(), options).unwrap();
        let fault = slot.decide(Arc::new(Workers::idle(1)), &moment(0), &member(), &acquire()).unwrap_err();
        assert_eq!(fault.code(), code, "{name}: {fault}");
    }
}

#[test]
fn a_component_that_is_too_large_is_not_even_looked_at() {
    let limits = Limits { component: n(1000), ..Limits::of(World::Lease) };
    let error = check::<LeaseKind>(&engine(), &built("lease-policy"), "{}", &limits).unwrap_err();
    assert_eq!(error.code(), "policy-too-large");
}

#[test]
fn a_trap_poisons_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let slot = LeaseSlot::open(&engine(), options(dir.path(), World::Lease, built("panic"))).unwrap();
    let view: Arc<dyn LedgerView> = Arc::new(Workers::idle(1));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..50 {
                    slot.decide(Arc::clone(&view), &moment(n), &member(), &acquire()).unwrap_err();
                    let fine = LeaseRequest::RemoveResource { id: "nothing".into() };
                    let decided = slot.decide(Arc::clone(&view), &moment(n), &member(), &fine).unwrap();
                    assert_eq!(decided.verdict, Err(Refusal::NotFound));
                }
            });
        }
    });
}
