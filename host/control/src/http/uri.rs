//! Percent-encoding, read as a browser does.

use form_urlencoded::parse;

/// What `decodeURIComponent` makes of a segment; None where that would throw: a `%` without two hex digits, or bytes
/// that aren't UTF-8.
pub(super) fn decode(segment: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = digit(bytes.next()?)?;
            let low = digit(bytes.next()?)?;
            decoded.push(high << 4 | low);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

/// The first value of a query parameter; None where it is missing or empty.
pub(super) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    given(query, name).filter(|value| !value.is_empty())
}

/// The first value of a query parameter, an empty one too; None where it is missing.
pub(super) fn given(query: Option<&str>, name: &str) -> Option<String> {
    parse(query?.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    #[test]
    fn segments() {
        assert_eq!(decode("a%2Fb%20c%3f").as_deref(), Some("a/b c?"));
        assert_eq!(decode("w%31").as_deref(), Some("w1"));
        assert_eq!(decode("%C3%BC+").as_deref(), Some("ü+"), "a plus is a plus in a path");
        assert_eq!(decode("").as_deref(), Some(""));
        for bad in ["%", "%1", "%zz", "%%41", "a%2", "%+1", "%C3", "%FF", "%ED%A0%80", "%C0%80"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn parameters() {
        assert_eq!(parameter(Some("name=n%20%C3%BC+x&name=y"), "name").as_deref(), Some("n ü x"));
        assert_eq!(parameter(Some("name=&name=y"), "name"), None);
        assert_eq!(parameter(Some("n%61me=x"), "name").as_deref(), Some("x"));
        assert_eq!(parameter(Some("kind"), "kind"), None);
        assert_eq!(parameter(None, "kind"), None);
        assert_eq!(parameter(Some("kind=%FF%zz"), "kind").as_deref(), Some("\u{fffd}%zz"));
    }

    proptest! {
        #[test]
        fn whatever_is_encoded_comes_back(text in ".{0,40}", every: bool) {
            let encoded = text.bytes().fold(String::new(), |mut out, byte| {
                if every || !byte.is_ascii_alphanumeric() {
                    write!(out, "%{byte:02X}").unwrap();
                } else {
                    out.push(byte as char);
                }
                out
            });
            prop_assert_eq!(decode(&encoded), Some(text));
        }

        #[test]
        fn no_text_does_harm(text in "[%0-9a-fg\u{fc}]{0,20}") {
            let _ = decode(&text);
            let _ = parameter(Some(&text), "a");
        }
    }
}
