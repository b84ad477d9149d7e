//! Fields of a request, judged as the original's language does.

use serde_json::{Map, Value};
use std::sync::Arc;
pub(super) use warmhold_ledger::is_worker_id;
use warmhold_ledger::{WorkerKey, is_blank, json};

/// The largest time to live of a worker or a port, and the clip for ports.
pub(super) const MAX_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// Above this, doubles no longer tell whole numbers apart.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

/// A text that holds more than white space.
pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str).filter(|text| !is_blank(text))
}

/// Absent, or a text that holds more than white space. Null isn't absent.
pub(super) fn optional_text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<Option<&'a str>> {
    if fields.contains_key(name) { text(fields, name).map(Some) } else { Some(None) }
}

/// A finite number.
pub(super) fn number(fields: &Map<String, Value>, name: &str) -> Option<f64> {
    fields.get(name).and_then(Value::as_f64).filter(|number| number.is_finite())
}

/// A whole number of at least `least` and at most `most`, however it is written (`1.0` and `6e4` are whole).
pub(super) fn whole(value: &Value, least: u64, most: u64) -> Option<u64> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=MAX_SAFE).contains(number))?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: whole and within 2^53")]
    let number = number as u64;
    (least..=most).contains(&number).then_some(number)
}

/// A worker's time to live: 1 ms to 24 h, never clipped.
pub(super) fn worker_ttl(fields: &Map<String, Value>) -> Option<u64> {
    whole(fields.get("ttlMs")?, 1, MAX_TTL_MS)
}

/// A worker's key: its four texts, and the whole object in canonical text.
pub(super) fn worker_key(fields: &Map<String, Value>) -> Option<(WorkerKey, Arc<str>)> {
    let object = fields.get("key")?.as_object()?;
    let part = |name| text(object, name).map(str::to_owned);
    let key = WorkerKey {
        context: part("context")?,
        image_digest: part("imageDigest")?,
        lock_hash: part("lockHash")?,
        architecture: part("architecture")?,
    };
    Some((key, json::object_to_text(object).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn texts() {
        let fields = object(&json!({"a": "x", "b": " \t\u{feff}\u{a0}", "c": "", "d": null, "e": 1, "f": "\u{85}"}));
        assert_eq!(text(&fields, "a"), Some("x"));
        assert_eq!(text(&fields, "f"), Some("\u{85}"));
        for name in ["b", "c", "d", "e", "z"] {
            assert_eq!(text(&fields, name), None, "{name}");
        }
        assert_eq!(optional_text(&fields, "a"), Some(Some("x")));
        assert_eq!(optional_text(&fields, "z"), Some(None));
        assert_eq!(optional_text(&fields, "d"), None);
    }

    #[test]
    fn whole_numbers_however_they_are_written() {
        for (text, expected) in [
            ("1", Some(1)),
            ("1.0", Some(1)),
            ("6e4", Some(60_000)),
            ("86400000", Some(86_400_000)),
            ("86400001", None),
            ("0", None),
            ("-0", None),
            ("-1", None),
            ("1.5", None),
            ("1e400", None),
            ("12345678901234567890", None),
            ("\"1\"", None),
            ("null", None),
            ("true", None),
            ("[1]", None),
        ] {
            let fields = json::parse_object(format!("{{\"ttlMs\":{text}}}"), json::Duplicates::LastWins).unwrap();
            assert_eq!(worker_ttl(&fields), expected, "{text}");
        }
    }

    #[test]
    fn keys_keep_what_else_they_hold() {
        let fields = object(&json!({"key": {"context": "c", "imageDigest": "i", "extra": [1], "lockHash": "l",
            "architecture": "a"}}));
        let (key, text) = worker_key(&fields).unwrap();
        assert_eq!(key.lock_hash, "l");
        assert_eq!(&*text, r#"{"context":"c","imageDigest":"i","extra":[1],"lockHash":"l","architecture":"a"}"#);
        for bad in [
            json!(null),
            json!([]),
            json!({}),
            json!("x"),
            json!({"context": " ", "imageDigest": "i", "lockHash": "l", "architecture": "a"}),
            json!({"context": "c", "imageDigest": "i", "lockHash": 5, "architecture": "a"}),
        ] {
            assert_eq!(worker_key(&object(&json!({"key": bad}))), None);
        }
        assert_eq!(worker_key(&Map::new()), None);
    }

    proptest! {
        #[test]
        fn worker_ids(id in "[a-zA-Z0-9._ü/-]{0,100}") {
            let plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
            let expected = plain && !id.is_empty() && id.len() <= 96 && id.as_bytes()[0].is_ascii_alphanumeric();
            prop_assert_eq!(is_worker_id(&id), expected);
        }
    }
}
