//! The built-in lease policy: the standard behaviour and nothing else.
//!
//! What that is lies in the sdk (`warmhold_sdk::lease::standard`), where an author's own policy starts from; what it must
//! do is told by the tests of this crate.

use warmhold_sdk::lease::LeasePolicy;
use warmhold_sdk::{Identity, Policy};

/// The worker that was registered first serves first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standard;

impl Policy for Standard {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity("lease-policy", env!("CARGO_PKG_VERSION"), "the idle worker that was registered first")
    }
}

impl LeasePolicy for Standard {}

warmhold_sdk::lease_policy!(Standard);
