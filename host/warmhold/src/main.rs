//! The daemon and its command line.

fn main() {}
