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
fn three_traps_in_a_row_bring_the_last_good_one_back() {
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
    trap();
    fine();
    trap();
    trap();
    assert_eq!(slot.serving().number, bad.number, "a success in between begins anew");
    trap();
    assert_eq!(slot.serving().number, good.number);
    assert_eq!(&*fine().policy, &**good.tag());
    let status = slot.status();
    assert_eq!((state(&status, bad.number), state(&status, good.number)), (Standing::Bad, Standing::Serving));
    let shown = status.generations.iter().find(|generation| generation.number == bad.number).unwrap();
    assert!(shown.why.as_deref().unwrap().contains("3 faults in a row"), "{shown:?}");
    assert!(shown.first_fault.as_deref().unwrap().contains("panic was asked"), "{shown:?}");
    assert_eq!(shown.faults, 5);
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
    assert_eq!(a.serving().number, 6, "each serves what was loaded into it");
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
