//! The durable ledger of resources and the fence around it.
//!
//! Knows no HTTP and no WebAssembly: who decides is a [`Decider`], who may write is a [`Primary`]. A change goes through
//! [`Ledger::apply`]: it waits in a queue, is decided on the writer's thread inside SQLite's transaction, judged by the
//! [`fence`], and answered when it is durable. Reads have connections of their own and wait for nobody.

mod answers;
mod backup;
mod check;
mod draft;
mod error;
pub mod fence;
mod file_system;
pub mod json;
mod ledger;
mod mirror;
mod operation;
mod queue;
mod reader;
mod row;
mod rules;
mod schema;
mod stats;
mod still;
mod store;
mod transfer;
mod turnstile;
mod violation;
mod worker;
mod writer;

pub use backup::{BackedUp, backup};
pub use check::{Checked, Part, check};
pub use draft::CopyError;
pub use error::{ApplyError, ReadError};
pub use fence::{Bounds, Violation};
pub use file_system::refused as refused_file_system;
pub use ledger::{Ledger, Options};
pub use operation::*;
pub use reader::{Page, Position, Record, RowFilter};
pub use row::*;
pub use rules::{RowFault, is_blank};
pub use schema::{Inspection, OpenError};
pub use stats::{Observer, Stats};
pub use store::Expect;
pub use transfer::{Counted, ImportError, Target, export, import, rehearse_import};
pub use worker::*;

#[cfg(test)]
mod tests;
