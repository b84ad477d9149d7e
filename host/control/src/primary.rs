//! Which machine may write.
//!
//! A small JSON document names the holder. Reading it has three results, and two of them must not be mixed up: *absent*
//! may be claimed, *unmeasured* (there, but unreadable or not understood) may not be touched by anybody here.

mod change;
mod document;
mod source;

pub use change::{Change, ChangeError, Changed};
pub use document::{Document, Look, Reading, State, look, read};
pub use source::PrimarySource;
