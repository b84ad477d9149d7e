//! What every component does before its policy is called.

use crate::log::{MAX_LINE_BYTES, cut};
use std::fmt::Write as _;

/// A trap has no text: without this, a policy that panics dies silently. The message goes through the world's own log,
/// since nothing else leaves a component that has no WASI.
pub(crate) fn install_panic_hook(write: fn(&str)) {
    std::panic::set_hook(Box::new(move |info| {
        let payload = info.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a panic without a text");
        write(cut(&panic_line(message, info.location()), MAX_LINE_BYTES));
    }));
}

/// The place comes first: a long message must not cut it off.
fn panic_line(message: &str, location: Option<&std::panic::Location<'_>>) -> String {
    let mut line = String::from("panicked");
    if let Some(location) = location {
        let _ = write!(line, " at {}:{}", location.file(), location.line());
    }
    line.push_str(": ");
    line.push_str(cut(message, MAX_LINE_BYTES));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_survives_a_long_message() {
        let line = panic_line(&"x".repeat(100_000), Some(std::panic::Location::caller()));
        assert!(line.starts_with("panicked at "), "{}", cut(&line, 80));
        assert!(line.len() < 2 * MAX_LINE_BYTES);
        assert_eq!(panic_line("no", None), "panicked: no");
    }
}
