//! The harness of the whole-system tests, the demo and the benches: a real daemon, a real repository, real processes.
//!
//! Everything of a [`Site`] lies in one temporary folder and is gone when it is dropped: the daemons, the pods that
//! outlive them, their mounts.

mod compiled;
mod daemon;
mod http;
mod json;
mod pod;
mod programs;
mod repository;
mod site;
mod wait;

pub use daemon::Daemon;
pub use http::{Answer, Client};
pub use json::{items, states, text};
pub use pod::Pod;
pub use programs::{Programs, workspace};
pub use repository::Repository;
pub use site::{Ran, Site};
pub use wait::until;
