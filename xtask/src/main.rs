//! Builds guests, runs benches.

fn main() {}
