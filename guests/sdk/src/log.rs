//! The log, and the settings that come with it: what every world imports.

use std::cell::RefCell;

/// The host cuts longer lines and says so; [`cut`] does it before, so that nothing large crosses the boundary.
pub const MAX_LINE_BYTES: usize = 1024;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For who looks for something.
    Debug,
    /// What happens in ordinary use.
    Info,
    /// Somebody should look.
    Warn,
    /// Something is broken.
    Error,
}

/// What surrounds a policy in every world.
pub trait Environment {
    /// The policy's settings from the host's configuration, as JSON text of an object.
    fn settings(&self) -> String;
    /// Writes one line. Cut at [`MAX_LINE_BYTES`].
    fn log(&self, level: Level, message: &str, fields: &[(&str, &str)]);
}

/// The longest beginning of `text` that has at most `bytes` bytes.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Implements [`Environment`] over a world's own imports: each world's bindings have types of their own.
macro_rules! environment {
    ($host:ty, $settings:ident, $log:ident) => {
        impl $crate::Environment for $host {
            fn settings(&self) -> String {
                $settings::get()
            }

            fn log(&self, level: $crate::Level, message: &str, fields: &[(&str, &str)]) {
                let level = match level {
                    $crate::Level::Debug => $log::Level::Debug,
                    $crate::Level::Info => $log::Level::Info,
                    $crate::Level::Warn => $log::Level::Warn,
                    $crate::Level::Error => $log::Level::Error,
                };
                let fields: Vec<(String, String)> =
                    fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
                $log::write(level, $crate::cut(message, $crate::MAX_LINE_BYTES), &fields);
            }
        }
    };
}
pub(crate) use environment;

/// Settings that a test gives, and the lines that a policy wrote.
#[derive(Debug, Default)]
pub struct Recorder {
    /// What [`Environment::settings`] answers; empty stands for `{}`.
    pub settings: String,
    lines: RefCell<Vec<(Level, String)>>,
}

impl Recorder {
    /// With these settings (JSON text of an object).
    #[must_use]
    pub fn with_settings(settings: &str) -> Self {
        Self { settings: settings.to_owned(), lines: RefCell::default() }
    }

    /// What was logged so far: level and message, with the fields as ` key=value`.
    #[must_use]
    pub fn lines(&self) -> Vec<(Level, String)> {
        self.lines.borrow().clone()
    }
}

impl Environment for Recorder {
    fn settings(&self) -> String {
        if self.settings.is_empty() { "{}".to_owned() } else { self.settings.clone() }
    }

    fn log(&self, level: Level, message: &str, fields: &[(&str, &str)]) {
        let mut line = cut(message, MAX_LINE_BYTES).to_owned();
        for (key, value) in fields {
            line.push_str(&format!(" {key}={value}"));
        }
        self.lines.borrow_mut().push((level, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_at_a_character() {
        assert_eq!(cut("abc", 10), "abc");
        assert_eq!(cut("abc", 2), "ab");
        // Each has three bytes.
        assert_eq!(cut("漢字", 5), "漢");
        assert_eq!(cut("漢字", 2), "");
    }
}
