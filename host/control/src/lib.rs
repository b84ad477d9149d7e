//! The control plane over HTTP: who may ask what, in which order it is checked, and how an answer looks.
//!
//! What a caller may do to a row is the lease policy's decision, made inside the ledger's transaction; this crate knows
//! tokens, the primary document, the form of requests and the shape of answers. Replays, workers and policies are
//! behind three traits in [`api`] that the daemon implements.

pub mod api;
mod error;
mod files;
mod http;
mod listen;
mod machine;
pub mod primary;
mod request_id;
mod server;
mod tokens;

pub use error::{ApiError, Help};
pub use http::{Control, ControlOptions, Figures, RequestLimits, description};
pub use listen::{DEFAULT_PORT, ListenAddress, ListenError};
pub use machine::{MachineName, MachineNameError, is_holder};
pub use server::{BindError, Server, ServerLimits};
pub use tokens::{IssuedToken, MachineTokens, Tokens, TokensError};
