//! Behaviour of the whole ledger, with real files and real processes.

mod policy;
mod routes;
mod support;
