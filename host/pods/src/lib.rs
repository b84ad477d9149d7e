//! Where workers live: pods behind one trait.
//!
//! [`Backend`] is what the rest of the host knows: pods as an API server shows them (JSON), created, looked at, patched
//! and deleted under a precondition on their UID, and [`Backend::exec`], the way into one. How bytes come back from a
//! worker and when they are believed is the same for every backend ([`collect`]).
//!
//! [`local::LocalBackend`] keeps pods as private directories and processes of this machine.

mod backend;
mod error;
mod exec;
pub mod local;
mod transport;
mod verify;

pub use backend::{Backend, Changes, MetadataPatch, Target};
pub use error::{ExecError, PodsError};
pub use exec::{Artifact, CarrierExit, ExecReply, ExecRequest, Limits, Progress, ProgressSink, Received, ReceivedFile};
pub use transport::collect;

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
