//! Policies that do what a policy must not. Each is loaded by a test, or by a person who wants to see what the host does.
//!
//! What they do is in here, so that it can be run natively too; each file in `components/` makes one component of one.

pub mod lease;
pub mod replay;
