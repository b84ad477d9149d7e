//! One fenced warm replay from request to verdict, and what keeps workers standing.
//!
//! A replay policy drives a replay; this crate is the host that it drives through. It holds every lease as a capability,
//! spends it where the policy asks, checks the pod before and after, and settles whatever a policy leaves behind: a lease
//! that was dropped, leaked, trapped over or outlived by its daemon ends in quarantine, never idle.
//!
//! What is durable, and when:
//! - the replay's record is written before anything is leased, so that a dead daemon's leases can be found by run and
//!   attempt (`settlement`);
//! - a worker's record (`standing`) is written before its pod exists, so that no pod is left without somebody who
//!   answers for it;
//! - the ledger's row is the truth about a lease; nothing in memory is believed over it.

mod checks;
mod exec;
mod git;
mod input;
mod instance;
mod journal;
mod judge;
mod keeper;
mod key;
mod lease;
mod live;
mod policy_host;
mod profile;
mod record;
mod run;
mod service;
mod services;
mod session;
mod settlement;
mod standing;
mod view;

pub use git::{Git, GitError};
pub use instance::{Instance, is_alive, living};
pub use judge::Judge;
pub use keeper::keep_standing;
pub use key::source_key;
pub use live::Running;
pub use profile::{Profile, Tier};
pub use service::Driver;
pub use services::{Grants, MayWrite, Services};
pub use settlement::{settle_dead, watch};
pub use standing::Standing;
