//! A lease policy that prefers the worker that was used last: its caches are warmest.
//!
//! Everything else is the standard behaviour, which the sdk brings.

use std::cmp::Reverse;
use warmhold_sdk::lease::{Call, LeasePolicy, Row, WorkerRequest};
use warmhold_sdk::{Identity, Policy};

/// More idle workers with one key than any pool has; the host has a limit of its own.
const MANY: u32 = 1000;

/// The policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct MostRecent;

impl Policy for MostRecent {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity("most-recent", env!("CARGO_PKG_VERSION"), "the idle worker that was used last")
    }
}

impl LeasePolicy for MostRecent {
    fn pick_worker(&self, call: &Call<'_>, request: &WorkerRequest) -> Option<Row> {
        // Of two that are equally young, the one that was registered first, as in the standard policy.
        call.idle_workers(request, MANY).into_iter().min_by_key(|row| Reverse(row.observed_at))
    }
}

warmhold_sdk::lease_policy!(MostRecent);

#[cfg(test)]
mod tests {
    use super::*;
    use warmhold_sdk::lease::Operation;
    use warmhold_sdk::lease::harness::{Harness, member};

    #[test]
    fn takes_the_worker_that_was_used_last() {
        let mut harness = Harness::new(MostRecent);
        for (worker, ms) in [("w1", 1000), ("w2", 3000), ("w3", 2000)] {
            harness.now += ms;
            harness.idle_worker(worker, "m1").unwrap();
        }
        let ann = member("ann");
        let order: Vec<String> = (0..3)
            .map(|_| harness.ask(&ann, &Operation::Acquire(harness.request("run"))).unwrap().unwrap().name)
            .collect();
        assert_eq!(order, ["w3", "w2", "w1"]);
    }

    #[test]
    fn of_equals_the_first_registered() {
        let mut harness = Harness::new(MostRecent);
        harness.idle_worker("w2", "m1").unwrap();
        harness.idle_worker("w1", "m1").unwrap();
        let leased = harness.ask(&member("ann"), &Operation::Acquire(harness.request("run"))).unwrap().unwrap();
        assert_eq!(leased.name, "w2");
    }
}
