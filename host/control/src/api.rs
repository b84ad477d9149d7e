//! The JSON that travels on the routes that the original doesn't have, and the three services behind them.
//!
//! Field names and shapes are the contract with scripts: the same types are printed by the command line with `--json`.
//! Times are milliseconds since the Unix epoch, lengths of time are milliseconds, digests are SHA-256 in hex.

mod policies;
mod replays;
mod workers;

pub use policies::{Policies, PolicySlot, PolicyState, PolicyView};
pub use replays::{
    ArtifactView, FileView, HistoryEntry, IsolationLevel, IsolationView, OutputStream, ReplayAsk, ReplayEvent,
    ReplayOutcome, ReplayPolicies, ReplayRun, ReplayState, ReplayView, ReplayWorker, Replays, Settle, StreamView,
};
pub use workers::{PrepareAsk, Prepared, WorkerView, Workers};
