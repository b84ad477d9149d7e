//! Standard output: JSON for scripts, text for people.

use crate::error::CliError;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Write;

/// Writes text. A reader that has gone away (`| head`) has read enough.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes one JSON value.
pub(super) fn print_json(value: &Value) -> Result<(), CliError> {
    print(&format!("{value:#}\n"))
}

/// The answer as what people are shown of it.
pub(super) fn view<T: DeserializeOwned>(value: &Value) -> Result<T, CliError> {
    T::deserialize(value).map_err(|error| {
        CliError::no("bad-answer", format!("the daemon's answer can't be understood: {error}"))
            .with_help("is the daemon of another version? `--json` prints the answer as it is")
    })
}
