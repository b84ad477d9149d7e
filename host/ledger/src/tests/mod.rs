//! Behaviour of the whole ledger, with real files and real processes.

mod check;
mod copies;
mod durability;
mod fence;
mod gate;
mod group;
mod json;
mod opening;
mod policy;
mod processes;
mod reads;
mod routes;
mod support;
mod transfer;
