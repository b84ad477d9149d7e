//! What a guest says: through `log`, and, where it has WASI, on stdout and stderr.
//!
//! A policy that writes a lot must not fill the host's log or its memory: a line is cut at [`LOG_LINE_BYTES`], only a
//! bounded number of lines a call is kept, and the rest is counted. What it says at level `error` is kept a little
//! longer: after a trap it is all that tells why.

use crate::bindings::lease::warmhold::policy::log::Level;
use crate::call::cut;
use crate::limits::LOG_LINE_BYTES;
use std::num::NonZeroU32;
use std::sync::Arc;

/// How many of the last error lines go into a fault.
const LAST_WORDS: usize = 8;

/// The log of one call, shared with the guest's stdout and stderr.
pub(crate) type SharedLog = Arc<parking_lot::Mutex<LogBook>>;

/// The lines of one call.
#[derive(Debug)]
pub(crate) struct LogBook {
    policy: Arc<str>,
    left: u32,
    dropped: u64,
    errors: std::collections::VecDeque<String>,
    /// Unfinished lines of stdout and stderr.
    partial: [String; 2],
}

/// Where a WASI guest writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

impl LogBook {
    pub(crate) fn new(policy: Arc<str>, lines: NonZeroU32) -> Self {
        Self { policy, left: lines.get(), dropped: 0, errors: Default::default(), partial: Default::default() }
    }

    /// A line of `log.write`, with its fields after it.
    pub(crate) fn write(&mut self, level: Level, message: &str, fields: &[(String, String)]) {
        let mut line = clean(message);
        for (name, value) in fields {
            if line.len() >= LOG_LINE_BYTES {
                break;
            }
            line.push_str(&format!(" {}={}", clean(name), clean(value)));
        }
        self.line(level, line);
    }

    /// Bytes on stdout or stderr; whole lines are kept, the rest waits for its end.
    pub(crate) fn bytes(&mut self, stream: Stream, bytes: &[u8]) {
        let level = match stream {
            Stream::Out => Level::Info,
            Stream::Err => Level::Error,
        };
        for piece in String::from_utf8_lossy(bytes).split_inclusive('\n') {
            let text = clean(piece.trim_end_matches('\n'));
            let [out, err] = &mut self.partial;
            let partial = if stream == Stream::Out { out } else { err };
            // A line without an end doesn't grow without an end.
            if partial.len() < LOG_LINE_BYTES {
                partial.push_str(&text);
            }
            if piece.ends_with('\n') {
                let line = std::mem::take(partial);
                self.line(level, line);
            }
        }
    }

    fn line(&mut self, level: Level, mut line: String) {
        line.truncate(line.floor_char_boundary(LOG_LINE_BYTES));
        if level == Level::Error {
            if self.errors.len() == LAST_WORDS {
                self.errors.pop_front();
            }
            self.errors.push_back(line.clone());
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => {
                self.dropped = self.dropped.saturating_add(1);
                return;
            }
        }
        let policy = &*self.policy;
        match level {
            Level::Debug => tracing::debug!(target: "policy", policy, "{line}"),
            Level::Info => tracing::info!(target: "policy", policy, "{line}"),
            Level::Warn => tracing::warn!(target: "policy", policy, "{line}"),
            Level::Error => tracing::error!(target: "policy", policy, "{line}"),
        }
    }

    /// The call is over: unfinished lines are lines, and what was dropped is told.
    pub(crate) fn close(&mut self) {
        for (stream, level) in [(0, Level::Info), (1, Level::Error)] {
            let line = self.partial.get_mut(stream).map(std::mem::take).unwrap_or_default();
            if !line.is_empty() {
                self.line(level, line);
            }
        }
        if self.dropped > 0 {
            tracing::warn!(target: "policy", policy = &*self.policy, dropped = self.dropped, "more lines than a call may write; the rest was dropped");
        }
    }

    /// How many lines were dropped.
    #[cfg(test)]
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What it said at level `error`.
    pub(crate) fn last_words(&self) -> Option<String> {
        let mut text = String::new();
        for line in &self.errors {
            if !text.is_empty() {
                text.push_str(" / ");
            }
            text.push_str(line);
        }
        (!text.is_empty()).then(|| cut(&text, 2 * LOG_LINE_BYTES))
    }
}

/// One line of plain text: control characters could forge lines of the log or move a terminal's cursor.
fn clean(text: &str) -> String {
    cut(text, LOG_LINE_BYTES).trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(lines: u32) -> LogBook {
        LogBook::new("p@sha256:0#1".into(), NonZeroU32::new(lines).unwrap())
    }

    #[test]
    fn a_line_is_cut_at_a_character() {
        let mut book = book(4);
        book.write(Level::Error, &"é".repeat(5000), &[("k".into(), "v".repeat(5000))]);
        let words = book.last_words().unwrap();
        assert!(words.len() <= LOG_LINE_BYTES && words.len() > LOG_LINE_BYTES - 8, "{}", words.len());
    }

    #[test]
    fn lines_beyond_the_limit_are_counted() {
        let mut book = book(2);
        for n in 0..5 {
            book.write(Level::Info, &n.to_string(), &[]);
        }
        assert_eq!(book.dropped(), 3);
        assert_eq!(book.last_words(), None, "only errors are last words");
    }

    #[test]
    fn last_words_are_the_last() {
        let mut book = book(1);
        for n in 0..20 {
            book.write(Level::Error, &format!("line {n}"), &[]);
        }
        let words = book.last_words().unwrap();
        assert!(words.ends_with("line 19") && !words.contains("line 1 /"), "{words}");
    }

    #[test]
    fn stderr_makes_lines_and_control_characters_make_none() {
        let mut book = book(9);
        book.bytes(Stream::Err, b"thread 'main' pan");
        book.bytes(Stream::Err, b"icked:\n\x1b[31mindex\rout\nlast");
        book.close();
        assert_eq!(book.last_words().unwrap(), "thread 'main' panicked: /  [31mindex out / last");
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        let mut book = book(9);
        for _ in 0..10_000 {
            book.bytes(Stream::Err, &[b'x'; 512]);
        }
        assert!(book.partial.iter().all(|line| line.len() < 2 * LOG_LINE_BYTES));
    }
}
