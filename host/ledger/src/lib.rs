//! The durable ledger of resources and the fence around it.
//!
//! Knows no HTTP and no WebAssembly: who decides is a [`Decider`], who may write is a [`Primary`].

mod operation;
mod row;

pub use operation::*;
pub use row::*;
