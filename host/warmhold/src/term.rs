//! What a terminal gets and a pipe doesn't, and how foreign text is made harmless.

use std::io::IsTerminal;

/// Colours, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Colours for standard output, if it wants any.
    #[must_use]
    pub fn stdout() -> Self {
        Self::for_stream(&std::io::stdout())
    }

    /// Colours for standard error, if it wants any.
    #[must_use]
    pub fn stderr() -> Self {
        Self::for_stream(&std::io::stderr())
    }

    /// No colours.
    #[must_use]
    pub fn none() -> Self {
        Self { on: false }
    }

    fn for_stream(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let on = stream.is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        Self { on }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// For what went well.
    #[must_use]
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// For what went wrong.
    #[must_use]
    pub fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// For what deserves a look.
    #[must_use]
    pub fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// For ways out.
    #[must_use]
    pub fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }

    /// For what can be read past.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }
}

/// Text from a test or from another machine, without anything that could steer the terminal: escape sequences are left
/// out, tabs stay, every other control character becomes U+FFFD.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' if chars.peek() == Some(&'[') => {
                chars.next();
                while chars.next().is_some_and(|c| !('\x40'..='\x7e').contains(&c)) {}
            }
            '\t' => shown.push(c),
            c if c.is_control() => shown.push('\u{fffd}'),
            c => shown.push(c),
        }
    }
    shown
}

/// Columns of equal width, two spaces between them; the last one is as long as it is.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (index, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(index) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// How long something took or is old, for a person: `12 ms`, `3.4 s`, `5 min`, `7 h`, `2 d`.
#[must_use]
pub fn span(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        60_000..7_200_000 => format!("{} min", millis / 60_000),
        7_200_000..172_800_000 => format!("{} h", millis / 3_600_000),
        _ => format!("{} d", millis / 86_400_000),
    }
}

/// A moment in milliseconds since the epoch, as `2026-01-31 12:34:56.789 UTC`.
#[must_use]
pub fn moment(millis: u64) -> String {
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // Days since 0000-03-01, so that the leap day is the last of its year; 400 years have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second, milli) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{milli:03} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(harmless("\x1b[31mred\x1b[0m\tdone"), "red\tdone");
        assert_eq!(harmless("a\rb\x07c\x1b]0;title\x07"), "a\u{fffd}b\u{fffd}c\u{fffd}]0;title\u{fffd}");
        assert_eq!(harmless("cut \x1b[3"), "cut ");
    }

    #[test]
    fn columns_line_up_without_trailing_spaces() {
        let rows = [vec!["a".into(), "bbb".into()], vec!["ccc".into(), "d".into()], vec!["e".into(), String::new()]];
        assert_eq!(table(&rows), "a    bbb\nccc  d\ne\n");
    }

    #[test]
    fn moments_are_calendar_dates() {
        assert_eq!(moment(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00:00.000 UTC");
        assert_eq!(moment(1_735_689_599_999), "2024-12-31 23:59:59.999 UTC");
        assert_eq!(moment(1_772_323_200_000), "2026-03-01 00:00:00.000 UTC");
    }

    #[test]
    fn spans_keep_to_one_unit() {
        let shown: Vec<_> = [999, 1_250, 61_000, 7_200_000, 200_000_000].into_iter().map(span).collect();
        assert_eq!(shown, ["999 ms", "1.2 s", "1 min", "2 h", "2 d"]);
    }
}
