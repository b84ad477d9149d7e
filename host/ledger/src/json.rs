//! JSON as ECMAScript reads and prints it, in one canonical form.
//!
//! Numbers are doubles: `12345678901234567890` comes back as `12345678901234567000`, `1e400` as `null`, `-0` as `0`.
//! A number that is whole and at most 2^53 is kept as an integer, so that `1`, `1.0` and `1e0` are one value and compare
//! equal. Members keep their order, but those whose names are array indices come first and in numeric order, as in every
//! JavaScript object. A lone surrogate is refused: no Unicode text can hold it.

use serde_json::{Map, Number, Value};
use std::fmt::Write as _;

/// How deeply arrays and objects may be nested.
pub const MAX_DEPTH: usize = 128;

/// What to make of a name that occurs twice in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// The last value wins and keeps the first one's place: what clients of the original are used to.
    LastWins,
    /// Refused: two readers of such a text could see two things.
    Refuse,
}

/// Why a text is no JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {at}: {fault}")]
pub struct JsonError {
    /// Where, in bytes from the start.
    pub at: usize,
    /// What is wrong there.
    pub fault: Fault,
}

/// See [`JsonError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are no UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// The text ends too early.
    #[error("the text ends in the middle of a value")]
    UnexpectedEnd,
    /// Something else was expected.
    #[error("{0}")]
    Unexpected(&'static str),
    /// Nested more than [`MAX_DEPTH`] deep.
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Half a surrogate pair.
    #[error("a lone surrogate")]
    LoneSurrogate,
    /// A name occurs twice, and that was not allowed.
    #[error("the name {0:?} occurs twice")]
    Duplicate(String),
}

/// Reads one JSON text.
///
/// # Errors
/// See [`JsonError`]; anything after the value but white space is an error too.
pub fn parse(text: impl AsRef<[u8]>, duplicates: Duplicates) -> Result<Value, JsonError> {
    let mut parser = Parser::of(text.as_ref(), duplicates)?;
    let value = parser.value(0)?;
    parser.end()?;
    Ok(value)
}

/// Reads one JSON text that must be an object.
///
/// # Errors
/// See [`parse`].
pub fn parse_object(text: impl AsRef<[u8]>, duplicates: Duplicates) -> Result<Map<String, Value>, JsonError> {
    match parse(text, duplicates)? {
        Value::Object(map) => Ok(map),
        _ => Err(JsonError { at: 0, fault: Fault::Unexpected("an object was expected") }),
    }
}

/// The values of one JSON array, read one after the other, so that a long list never is a tree of values.
pub struct Items<'a> {
    parser: Parser<'a>,
    begun: bool,
    ended: bool,
}

impl<'a> Items<'a> {
    /// Reads the values of this text.
    ///
    /// # Errors
    /// It is no array.
    pub fn of(text: &'a [u8], duplicates: Duplicates) -> Result<Self, JsonError> {
        let mut parser = Parser::of(text, duplicates)?;
        // A row holds attributes, and those may be as deep as anywhere else.
        parser.depth += 1;
        parser.space();
        if !parser.take(b'[') {
            return Err(parser.unexpected("an array was expected"));
        }
        Ok(Self { parser, begun: false, ended: false })
    }

    fn item(&mut self) -> Result<Option<Value>, JsonError> {
        self.parser.space();
        if self.parser.take(b']') {
            self.parser.end()?;
            return Ok(None);
        }
        if self.begun && !self.parser.take(b',') {
            return Err(self.parser.unexpected("a comma or ] was expected"));
        }
        self.begun = true;
        self.parser.value(0).map(Some)
    }
}

impl Iterator for Items<'_> {
    type Item = Result<Value, JsonError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.item().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// The canonical text of a value, however it was made.
#[must_use]
pub fn to_text(value: &Value) -> String {
    let mut out = String::with_capacity(128);
    write_value(&mut out, value);
    out
}

/// The canonical text of an object.
#[must_use]
pub fn object_to_text(map: &Map<String, Value>) -> String {
    let mut out = String::with_capacity(128);
    write_object(&mut out, map);
    out
}

/// The one form of a number: an integer where it is whole and exact, a double elsewhere, null where it isn't finite.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "checked: whole and within 2^53")]
pub fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return Value::Number(Number::from(value as i64));
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// 2^53: every whole number up to here is a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => write_object(out, map),
    }
}

fn write_object(out: &mut String, map: &Map<String, Value>) {
    out.push('{');
    let mut first = true;
    let mut member = |out: &mut String, name: &str, value: &Value| {
        if !first {
            out.push(',');
        }
        first = false;
        write_string(out, name);
        out.push(':');
        write_value(out, value);
    };
    // Most objects have no such names, and are already in order where they were parsed here.
    let mut indices: Vec<(u32, &String, &Value)> =
        map.iter().filter_map(|(name, value)| array_index(name).map(|index| (index, name, value))).collect();
    indices.sort_unstable_by_key(|(index, ..)| *index);
    for (_, name, value) in &indices {
        member(out, name, value);
    }
    for (name, value) in map {
        if indices.is_empty() || array_index(name).is_none() {
            member(out, name, value);
        }
    }
    out.push('}');
}

fn write_number(out: &mut String, number: &Number) {
    match number.as_f64() {
        Some(0.0) => out.push('0'),
        Some(value) if value.is_finite() => out.push_str(ryu_js::Buffer::new().format_finite(value)),
        _ => out.push_str("null"),
    }
}

pub(crate) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c < ' ' => {
                // Writing to a String can't fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The array index that a name is, if it is one: a canonical decimal number below 2^32 - 1.
fn array_index(name: &str) -> Option<u32> {
    let digits = name.as_bytes();
    let canonical = !digits.is_empty()
        && digits.len() <= 10
        && digits.iter().all(u8::is_ascii_digit)
        && (digits.len() == 1 || digits.first() != Some(&b'0'));
    if !canonical {
        return None;
    }
    name.parse().ok().filter(|index| *index != u32::MAX)
}

/// Puts names that are array indices first, so that the order of a parsed object is already its printed one.
fn order(map: Map<String, Value>) -> Map<String, Value> {
    if !map.keys().any(|name| array_index(name).is_some()) {
        return map;
    }
    let (mut indices, rest): (Vec<_>, Vec<_>) = map.into_iter().partition(|(name, _)| array_index(name).is_some());
    indices.sort_unstable_by_key(|(name, _)| array_index(name));
    indices.into_iter().chain(rest).collect()
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    duplicates: Duplicates,
    /// How deep values may be nested.
    depth: usize,
}

impl<'a> Parser<'a> {
    fn of(bytes: &'a [u8], duplicates: Duplicates) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes).map_err(|e| JsonError { at: e.valid_up_to(), fault: Fault::NotUtf8 })?;
        Ok(Self { text, bytes, at: 0, duplicates, depth: MAX_DEPTH })
    }

    /// Nothing but white space may be left.
    fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.at < self.bytes.len() {
            return Err(self.unexpected("something follows the value"));
        }
        Ok(())
    }

    fn fail(&self, fault: Fault) -> JsonError {
        JsonError { at: self.at, fault }
    }

    fn unexpected(&self, expected: &'static str) -> JsonError {
        let fault = if self.at < self.bytes.len() { Fault::Unexpected(expected) } else { Fault::UnexpectedEnd };
        self.fail(fault)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.space();
        match self.peek() {
            Some(b'{' | b'[') if depth >= self.depth => Err(self.fail(Fault::TooDeep)),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.unexpected("a value was expected")),
        }
    }

    fn word(&mut self, word: &'static str, value: Value) -> Result<Value, JsonError> {
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            self.at += word.len();
            return Ok(value);
        }
        Err(self.unexpected("true, false or null was expected"))
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.unexpected("a comma or ] was expected"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut map = Map::new();
        self.space();
        if self.take(b'}') {
            return Ok(Value::Object(map));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a name in quotes was expected"));
            }
            let begin = self.at;
            let name = self.string()?;
            self.space();
            if !self.take(b':') {
                return Err(self.unexpected("a colon was expected"));
            }
            let value = self.value(depth + 1)?;
            if self.duplicates == Duplicates::Refuse && map.contains_key(&name) {
                return Err(JsonError { at: begin, fault: Fault::Duplicate(name) });
            }
            map.insert(name, value);
            self.space();
            if self.take(b'}') {
                return Ok(Value::Object(order(map)));
            }
            if !self.take(b',') {
                return Err(self.unexpected("a comma or } was expected"));
            }
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.unexpected("a digit was expected"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let begin = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        // What the grammar allows, Rust reads, correctly rounded; beyond the largest double it gives an infinity.
        let token = self.text.get(begin..self.at).unwrap_or_default();
        token.parse().map(number).map_err(|_| self.unexpected("a number was expected"))
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let begin = self.at;
            while matches!(self.peek(), Some(byte) if byte != b'"' && byte != b'\\' && byte >= b' ') {
                self.at += 1;
            }
            // Cut at ASCII bytes alone, so always on a boundary.
            out.push_str(self.text.get(begin..self.at).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(self.unexpected("a control character in a string must be escaped")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let plain = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.unexpected("an unknown escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode(&mut self) -> Result<char, JsonError> {
        let begin = self.at;
        let lone = JsonError { at: begin, fault: Fault::LoneSurrogate };
        let first = self.hex4()?;
        if let Some(c) = char::from_u32(first) {
            return Ok(c);
        }
        if first >= 0xdc00 || !(self.take(b'\\') && self.take(b'u')) {
            return Err(lone);
        }
        let second = self.hex4()?;
        if !(0xdc00..=0xdfff).contains(&second) {
            return Err(lone);
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or(lone)
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            value = value * 16 + digit.ok_or_else(|| self.unexpected("four hex digits were expected"))?;
            self.at += 1;
        }
        Ok(value)
    }
}
