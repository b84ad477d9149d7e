//! The harness of the whole-system tests, the demo and the benches: a real daemon, a real repository, real processes.
//!
//! Everything of a [`Site`] lies in one temporary folder and is gone when it is dropped: the daemons, the pods that
//! outlive them, their mounts.

mod daemon;
mod http;
mod programs;
mod repository;
mod site;

pub use daemon::Daemon;
pub use http::{Answer, Client};
pub use programs::{Programs, workspace};
pub use repository::Repository;
pub use site::{Ran, Site};
