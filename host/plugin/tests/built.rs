//! The policies that `./x build` makes, the built-in ones and the hostile ones, through the public interface.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::indexing_slicing, clippy::string_slice, reason = "and so does an index that is not there")]

mod support;

use std::sync::Arc;
use support::*;
use warmhold_plugin::*;

fn slot(dir: &tempfile::TempDir, built_in: &str) -> LeaseSlot {
    LeaseSlot::open(&engine(), options(dir.path(), World::Lease, built(built_in))).unwrap()
}

#[test]
fn the_built_in_lease_policy_leases_an_idle_worker() {
    let dir = tempfile::tempdir().unwrap();
    let slot = slot(&dir, "lease-policy");
    let view: Arc<dyn LedgerView> = Arc::new(Workers::idle(3));
    let decided = slot.decide(Arc::clone(&view), &moment(5), &member(), &acquire()).unwrap();
    let change = decided.verdict.unwrap();
    assert_eq!(change.put.len(), 1);
    assert_eq!(change.put[0].id, "pod-worker:w0");
    assert!(change.put[0].attrs.contains(&moment(5).fresh_id), "{}", change.put[0].attrs);
    assert_eq!(&*decided.policy, &**slot.serving().tag());
    assert_eq!(Arc::strong_count(&view), 1, "the call holds the view no longer");
}

/// Timings of a decision, for people: `cargo test --release -p warmhold-plugin --test built -- --ignored --nocapture`.
#[test]
#[ignore = "prints timings"]
fn how_long_a_decision_takes() {
    let dir = tempfile::tempdir().unwrap();
    let slot = slot(&dir, "lease-policy");
    let view: Arc<dyn LedgerView> = Arc::new(Workers::idle(1000));
    let mut times: Vec<_> = (0..10_000)
        .map(|n| {
            let start = std::time::Instant::now();
            slot.decide(Arc::clone(&view), &moment(n), &member(), &acquire()).unwrap().verdict.unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    eprintln!("pagemap scan: {:?}", slot.engine().pagemap_scan());
    eprintln!("p50 {:?}, p99 {:?}, max {:?}", times[5000], times[9900], times[9999]);
}
