//! Generations: swapping under load, coming back by themselves, surviving restarts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::indexing_slicing, clippy::string_slice, reason = "and so does an index that is not there")]

mod support;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::guest::Guest;
use support::*;
use warmhold_plugin::*;

fn lease(dir: &tempfile::TempDir, engine: &PolicyEngine) -> LeaseSlot {
    LeaseSlot::open(engine, options(dir.path(), World::Lease, built("lease-policy"))).unwrap()
}

fn state(status: &Status, number: u64) -> Standing {
    status.generations.iter().find(|generation| generation.number == number).unwrap().state
}

#[test]
fn a_swap_under_concurrent_calls_loses_none_and_each_names_who_decided() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let first = slot.serving().tag().to_string();
    let stop = AtomicBool::new(false);
    let mut rows = Workers::idle(3);
    rows.0[2].observed_at += 1000;
    let view: Arc<dyn LedgerView> = Arc::new(rows);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = std::collections::BTreeMap::new();
                    let mut last = false;
                    while !last {
                        // One more call after it was told to stop: that one began after the swap.
                        last = stop.load(Ordering::SeqCst);
                        let decided = slot.decide(Arc::clone(&view), &moment(5000), &member(), &acquire()).unwrap();
                        let chosen = decided.verdict.unwrap().put[0].id.clone();
                        let by = seen.entry(decided.policy.to_string()).or_insert_with(|| chosen.clone());
                        assert_eq!(*by, chosen, "one policy decides in one way");
                    }
                    seen
                })
            })
            .collect();
        let loaded = slot.load(&built("most-recent"), "{}").unwrap();
        assert_eq!(loaded.number, 2);
        let after = slot.decide(Arc::clone(&view), &moment(5000), &member(), &acquire()).unwrap();
        assert_eq!(&*after.policy, &**loaded.tag(), "the answer names the new one at once");
        stop.store(true, Ordering::SeqCst);
        for call in calls {
            let seen = call.join().unwrap();
            assert_eq!(seen.get(&**loaded.tag()).map(String::as_str), Some("pod-worker:w2"), "{seen:?}");
            assert!(seen.keys().all(|tag| *tag == first || **tag == **loaded.tag()), "{seen:?}");
        }
    });
    assert_eq!(Arc::strong_count(&view), 1);
}

#[test]
fn three_traps_in_a_row_of_one_function_bring_the_last_good_one_back_whatever_else_succeeds() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let good = slot.load(&built("most-recent"), "{}").unwrap();
    let bad = slot.load(&built("panic"), "{}").unwrap();
    let view: Arc<dyn LedgerView> = Arc::new(Workers::idle(1));
    let trap = || slot.decide(Arc::clone(&view), &moment(0), &member(), &acquire()).unwrap_err();
    let fine = || {
        let request = LeaseRequest::Heartbeat { id: "nothing".into(), attrs: None };
        slot.decide(Arc::clone(&view), &moment(0), &member(), &request).unwrap()
    };
    trap();
    fine();
    trap();
    assert_eq!(slot.serving().number, bad.number);
    fine();
    trap();
    assert_eq!(slot.serving().number, good.number);
    assert_eq!(&*fine().policy, &**good.tag());
    let status = slot.status();
    assert_eq!((state(&status, bad.number), state(&status, good.number)), (Standing::Bad, Standing::Serving));
    let shown = status.generations.iter().find(|generation| generation.number == bad.number).unwrap();
    assert!(shown.why.as_deref().unwrap().contains("3 faults in a row"), "{shown:?}");
    assert!(shown.first_fault.as_deref().unwrap().contains("panic was asked"), "{shown:?}");
    assert_eq!(shown.faults, 3);
    assert!(slot.is_bad(&bad.digest) && !slot.is_bad(&good.digest));

    // The next bad one falls to the same place, and a bad one never comes back by itself.
    slot.load(&built("memory-bomb"), "{}").unwrap();
    for _ in 0..3 {
        trap();
    }
    assert_eq!(slot.serving().number, good.number);
}

#[test]
fn violations_bring_the_last_good_one_back_although_every_call_succeeds() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let bad = slot.load(&built("forged-owner"), "{}").unwrap();
    for n in 1..=3 {
        assert_eq!(slot.serving().number, bad.number, "after {} violations", n - 1);
        let decided = slot.decide(Arc::new(Workers::idle(1)), &moment(0), &member(), &acquire()).unwrap();
        decided.verdict.unwrap();
        slot.report_violation(&decided.policy, "the owner was changed");
    }
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    slot.report_violation(bad.tag(), "late");
    slot.report_violation("nobody@sha256:0#9", "unknown");
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
}

#[test]
fn how_many_faults_is_configured_and_the_built_in_policy_stays_whatever_it_does() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let options =
        SlotOptions { faults_to_roll_back: NonZeroU32::MIN, ..options(dir.path(), World::Lease, built("panic")) };
    let slot = LeaseSlot::open(&engine, options).unwrap();
    for _ in 0..5 {
        slot.decide(Arc::new(EmptyLedger), &moment(0), &member(), &acquire()).unwrap_err();
    }
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    slot.load(&built("endless-loop"), "{}").unwrap();
    slot.decide(Arc::new(EmptyLedger), &moment(0), &member(), &acquire()).unwrap_err();
    assert_eq!(slot.serving().origin, Origin::BuiltIn, "one fault was enough");
}

#[test]
fn faults_of_many_threads_at_once_replace_once() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let good = slot.load(&built("most-recent"), "{}").unwrap();
    slot.load(&built("panic"), "{}").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let _ = slot.decide(Arc::new(Workers::idle(1)), &moment(0), &member(), &acquire());
                }
            });
        }
    });
    assert_eq!(slot.serving().number, good.number);
    assert_eq!(slot.status().notes.len(), 1, "{:?}", slot.status().notes);
}

#[test]
fn a_refused_load_changes_nothing() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let before = slot.status();
    for bytes in [b"".to_vec(), built("pod-manifest"), built("lease-policy")[..5000].to_vec()] {
        slot.load(&bytes, "{}").unwrap_err();
    }
    slot.load(&built("most-recent"), "{\"unknown\":true}").unwrap_err();
    assert_eq!(slot.status(), before);
    assert_eq!(slot.load(&built("most-recent"), "{}").unwrap().number, 2, "a refused load has no number");
}

#[test]
fn what_serves_survives_a_restart_with_its_number_and_no_number_comes_twice() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let loaded = {
        let slot = lease(&dir, &engine);
        assert_eq!(slot.serving().number, 1);
        slot.load(&built("panic"), "{}").unwrap();
        slot.load(&built("most-recent"), "{}").unwrap().tag().to_string()
    };
    let slot = lease(&dir, &engine);
    assert_eq!(&**slot.serving().tag(), loaded);
    assert_eq!(slot.status().notes, Vec::<String>::new());
    assert_eq!(slot.rollback().unwrap().number, 2);
    assert_eq!(slot.rollback().unwrap().origin, Origin::BuiltIn);
    assert_eq!(slot.load(&built("most-recent"), "{}").unwrap().number, 4);
    drop(slot);
    assert_eq!(lease(&dir, &engine).serving().number, 4);
}

#[test]
fn a_bad_one_stays_bad_after_a_restart() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let bad = slot.load(&built("panic"), "{}").unwrap();
    for _ in 0..3 {
        slot.decide(Arc::new(EmptyLedger), &moment(0), &member(), &acquire()).unwrap_err();
    }
    drop(slot);
    let slot = lease(&dir, &engine);
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    assert_eq!(state(&slot.status(), bad.number), Standing::Bad);
    assert!(slot.is_bad(&bad.digest));
    assert_eq!(slot.rollback().unwrap_err().code(), "policy-nothing-to-roll-back-to");
}

#[test]
fn a_damaged_component_is_told_and_the_one_before_serves() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let loaded = slot.load(&built("most-recent"), "{}").unwrap();
    drop(slot);
    let file = dir.path().join("policies/lease/components").join(format!("{}.wasm", loaded.digest));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let slot = lease(&dir, &engine);
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    let notes = slot.status().notes;
    assert!(notes.iter().any(|note| note.contains("don't have its digest")), "{notes:?}");
}

#[test]
fn a_damaged_state_is_put_aside_and_its_numbers_are_not_used_again() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    slot.load(&built("most-recent"), "{}").unwrap();
    drop(slot);
    let folder = dir.path().join("policies/lease");
    std::fs::write(folder.join("state.json"), "{\"format\":1,\"next\":").unwrap();
    let slot = lease(&dir, &engine);
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    assert!(slot.serving().number > 1_000_000, "{}", slot.serving().number);
    assert!(slot.status().notes[0].contains("put aside"), "{:?}", slot.status().notes);
    let aside =
        std::fs::read_dir(&folder).unwrap().flatten().any(|e| e.file_name().to_string_lossy().ends_with(".damaged"));
    assert!(aside, "what was there is not lost");
}

#[test]
fn two_daemons_on_one_directory_give_no_number_twice() {
    let (dir, one, two) = (tempfile::tempdir().unwrap(), engine(), engine());
    let (a, b) = (lease(&dir, &one), lease(&dir, &two));
    let mut numbers = vec![];
    for _ in 0..3 {
        numbers.push(a.load(&built("most-recent"), "{}").unwrap().number);
        numbers.push(b.load(&built("panic"), "{}").unwrap().number);
    }
    assert_eq!(numbers, [2, 3, 4, 5, 6, 7]);
    assert_eq!(a.serving().number, 6, "it does not look by itself");
    drop((a, b));
    assert_eq!(lease(&dir, &one).serving().number, 7, "the last writer wins");
}

#[test]
fn other_settings_are_another_generation() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine();
    let with = |settings: &str| SlotOptions {
        settings: settings.to_owned(),
        ..options(dir.path(), World::Manifest, Guest::default().build())
    };
    let slot = ManifestSlot::open(&engine, with("{}")).unwrap();
    slot.load(&Guest { name: "other", ..Guest::default() }.build(), "{}").unwrap();
    let same = slot.reconfigure("{}").unwrap();
    assert_eq!(same.number, 2);
    let changed = slot.reconfigure("{\"a\":1}").unwrap();
    assert_eq!((changed.number, &*changed.settings, &*changed.digest), (3, "{\"a\":1}", &*same.digest));
    slot.reconfigure("[]").unwrap_err();
    assert_eq!(slot.serving().number, 3);
    drop(slot);
    let slot = ManifestSlot::open(&engine, with("{\"a\":2}")).unwrap();
    let serving = slot.serving();
    assert_eq!((&*serving.name, &*serving.settings), ("other", "{\"a\":2}"));
    assert!(serving.number > 3, "{}", serving.number);
}

#[test]
fn rolling_back_and_on_again() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    assert_eq!(slot.rollback().unwrap_err().code(), "policy-nothing-to-roll-back-to");
    let loaded = slot.load(&built("most-recent"), "{}").unwrap();
    assert_eq!(slot.rollback().unwrap().origin, Origin::BuiltIn);
    let status = slot.status();
    assert_eq!(state(&status, loaded.number), Standing::Kept);
    assert_eq!(status.serving, slot.serving().tag().to_string());
}

#[test]
fn a_rollback_never_returns_to_what_an_operator_declined() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let manifest = || options(dir.path(), World::Manifest, Guest::default().build());
    let slot = ManifestSlot::open(&engine, manifest()).unwrap();
    let load = |name| slot.load(&Guest { name, ..Guest::default() }.build(), "{}").unwrap().number;
    assert_eq!([load("b"), load("c"), load("d")], [2, 3, 4]);
    assert_eq!(slot.rollback().unwrap().number, 3);
    assert_eq!(load("e"), 5);
    assert_eq!(slot.rollback().unwrap().number, 3, "4 was declined");
    let shown = slot.status().generations.into_iter().find(|generation| generation.number == 4).unwrap();
    assert_eq!((shown.state, shown.declined), (Standing::Kept, true));
    drop(slot);
    // It is remembered, and the end is the end.
    let slot = ManifestSlot::open(&engine, manifest()).unwrap();
    assert_eq!([slot.rollback().unwrap().number, slot.rollback().unwrap().number], [2, 1]);
    assert_eq!(slot.rollback().unwrap_err().code(), "policy-nothing-to-roll-back-to");
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    // What is loaded again is as good as new.
    let again = slot.load(&Guest { name: "d", ..Guest::default() }.build(), "{}").unwrap();
    assert_eq!(again.number, 6);
    slot.load(&Guest { name: "f", ..Guest::default() }.build(), "{}").unwrap();
    assert_eq!(slot.rollback().unwrap().number, again.number);
}

#[test]
fn one_that_had_faults_is_not_preferred_to_one_that_had_none() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let good = slot.load(&built("most-recent"), "{}").unwrap();
    let faulty = slot.load(&built("panic"), "{}").unwrap();
    let trap = || slot.decide(Arc::new(Workers::idle(1)), &moment(0), &member(), &acquire()).unwrap_err();
    trap();
    slot.load(&built("memory-bomb"), "{}").unwrap();
    assert_eq!(state(&slot.status(), faulty.number), Standing::Kept);
    for _ in 0..3 {
        trap();
    }
    assert_eq!(slot.serving().number, good.number, "the one with a fault is passed over");
    assert_eq!(slot.rollback().unwrap().origin, Origin::BuiltIn);
}

#[test]
fn loading_what_serves_changes_nothing_so_that_a_rollback_does_something() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let built_in = slot.serving();
    assert_eq!(slot.load(&built("lease-policy"), "{}").unwrap().number, built_in.number);
    let first = slot.load(&built("most-recent"), "{}").unwrap();
    let before = slot.status();
    assert_eq!(slot.load(&built("most-recent"), "{}").unwrap().tag(), first.tag());
    assert_eq!(slot.status(), before);
    assert_eq!(slot.rollback().unwrap().number, built_in.number);
}

#[test]
fn a_load_through_one_process_reaches_the_other() {
    let (dir, one, two) = (tempfile::tempdir().unwrap(), engine(), engine());
    let (a, b) = (lease(&dir, &one), lease(&dir, &two));
    assert!(!a.refresh().unwrap() && !b.refresh().unwrap(), "nothing happened yet");
    let loaded = a.load(&built("most-recent"), "{}").unwrap();
    assert!(!a.refresh().unwrap(), "its own doing is no news");
    assert!(b.refresh().unwrap());
    assert_eq!(b.serving().tag(), loaded.tag());
    assert!(!b.refresh().unwrap());
    let decided = b.decide(Arc::new(Workers::idle(1)), &moment(0), &member(), &acquire()).unwrap();
    assert_eq!(&*decided.policy, &**loaded.tag());
    assert_eq!(b.rollback().unwrap().origin, Origin::BuiltIn);
    assert!(a.refresh().unwrap());
    assert_eq!(a.serving().origin, Origin::BuiltIn);
    let shown = a.status().generations.into_iter().find(|generation| generation.number == loaded.number).unwrap();
    assert!(shown.declined, "each shows what the other did");
}

#[test]
fn a_fault_in_one_process_does_not_undo_a_newer_load_through_another() {
    let (dir, one, two) = (tempfile::tempdir().unwrap(), engine(), engine());
    let (a, b) = (lease(&dir, &one), lease(&dir, &two));
    let bad = a.load(&built("panic"), "{}").unwrap();
    assert!(b.refresh().unwrap());
    let newer = b.load(&built("most-recent"), "{}").unwrap();
    for _ in 0..3 {
        a.decide(Arc::new(EmptyLedger), &moment(0), &member(), &acquire()).unwrap_err();
    }
    assert_eq!(a.serving().origin, Origin::BuiltIn, "the newer one is not ready in the middle of a decision");
    assert!(a.refresh().unwrap());
    assert_eq!(a.serving().tag(), newer.tag());
    assert!(!b.refresh().unwrap(), "nothing else serves there");
    assert_eq!(b.serving().number, newer.number);
    assert_eq!(state(&b.status(), bad.number), Standing::Bad, "and the fault is known to both");
    drop((a, b));
    assert_eq!(lease(&dir, &one).serving().number, newer.number);
}

#[test]
fn a_built_in_policy_with_other_settings_reaches_the_other_process() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let open = || ManifestSlot::open(&engine, options(dir.path(), World::Manifest, Guest::default().build())).unwrap();
    let (a, b) = (open(), open());
    let changed = a.reconfigure("{\"a\":1}").unwrap();
    assert!(b.refresh().unwrap());
    assert_eq!((b.serving().tag(), &*b.serving().settings), (changed.tag(), "{\"a\":1}"));
    assert_eq!(b.serving().origin, Origin::BuiltIn);
}

#[test]
fn what_cant_serve_here_leaves_what_serves() {
    let (dir, one, two) = (tempfile::tempdir().unwrap(), engine(), engine());
    let (a, b) = (lease(&dir, &one), lease(&dir, &two));
    let loaded = a.load(&built("most-recent"), "{}").unwrap();
    let file = dir.path().join("policies/lease/components").join(format!("{}.wasm", loaded.digest));
    std::fs::remove_file(file).unwrap();
    assert_eq!(b.refresh().unwrap_err().code(), "policy-storage");
    assert_eq!(b.serving().origin, Origin::BuiltIn);
    assert!(!b.refresh().unwrap(), "it is tried once, not every second");
    assert_eq!(a.serving().number, loaded.number);
}

/// A pipe that nobody writes would hold the start up for ever.
#[test]
fn pipes_in_the_place_of_files_hold_nothing_up() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let loaded = slot.load(&built("most-recent"), "{}").unwrap();
    drop(slot);
    let folder = dir.path().join("policies/lease");
    let pipe = |path: &std::path::Path| {
        std::fs::remove_file(path).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    pipe(&folder.join("components").join(format!("{}.wasm", loaded.digest)));
    let slot = lease(&dir, &engine);
    assert_eq!(slot.serving().origin, Origin::BuiltIn);
    let notes = slot.status().notes;
    assert!(notes.iter().any(|note| note.contains("not a regular file")), "{notes:?}");
    drop(slot);
    pipe(&folder.join("state.json"));
    let slot = lease(&dir, &engine);
    let notes = slot.status().notes;
    assert!(notes[0].contains("not a regular file") && notes[0].contains("put aside"), "{notes:?}");
    drop(slot);
    pipe(&folder.join("lock"));
    let error = LeaseSlot::open(&engine, options(dir.path(), World::Lease, built("lease-policy"))).unwrap_err();
    assert_eq!(error.code(), "policy-storage");
}

#[test]
fn old_generations_are_forgotten_with_their_components() {
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = ManifestSlot::open(&engine, options(dir.path(), World::Manifest, Guest::default().build())).unwrap();
    for n in 0..20 {
        let name: &'static str = Box::leak(format!("n{n}").into_boxed_str());
        slot.load(&Guest { name, ..Guest::default() }.build(), "{}").unwrap();
    }
    let status = slot.status();
    assert_eq!(status.generations.len(), 16);
    assert!(status.generations[0].built_in, "the last resort stays");
    let files = std::fs::read_dir(dir.path().join("policies/manifest/components")).unwrap().count();
    assert_eq!(files, 15);
}

#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, engine) = (tempfile::tempdir().unwrap(), engine());
    let slot = lease(&dir, &engine);
    let loaded = slot.load(&built("most-recent"), "{}").unwrap();
    let folder = dir.path().join("policies/lease");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("state.json")), 0o600);
    assert_eq!(mode(&folder.join("components").join(format!("{}.wasm", loaded.digest))), 0o600);
}
