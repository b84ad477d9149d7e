//! Runs tests in the pod and proves what it did.

fn main() {}
