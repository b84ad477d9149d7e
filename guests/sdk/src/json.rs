//! Small helpers around `serde_json`: JSON travels as text, and a policy never trusts its shape.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;

/// The object that `text` holds, or none when it holds anything else.
#[must_use]
pub fn object(text: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Some(map),
        _ => None,
    }
}

/// A text field.
#[must_use]
pub fn text<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    map.get(key).and_then(Value::as_str)
}

/// A whole number from 0 to 2^53; `6e4` and `60000.0` are whole too, as in JavaScript.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
pub fn whole(value: &Value) -> Option<u64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..=LIMIT).contains(&number)).then_some(number as u64)
    })
}

/// What lies at a path of keys; none when one of them is missing.
#[must_use]
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// Whether an object anywhere in `text` names a key twice. A parser keeps one of the two and says nothing; the host
/// refuses such text.
#[must_use]
pub fn repeats_a_key(text: &str) -> bool {
    serde_json::from_str::<Strict>(text).is_err_and(|error| error.to_string().starts_with(Strict::REPEATED))
}

/// Any JSON value without a repeated key.
struct Strict;

impl Strict {
    const REPEATED: &str = "repeated key";
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if !seen.insert(key) {
                return Err(A::Error::custom(Self::REPEATED));
            }
            entries.next_value::<Self>()?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_shapes() {
        assert!(object("[]").is_none());
        assert!(object("{").is_none());
        assert_eq!(object("{\"a\":1}").unwrap().get("a"), Some(&json!(1)));
        assert_eq!(whole(&json!(60000.0)), Some(60000));
        assert_eq!(whole(&json!(6e4)), Some(60000));
        for value in [json!(1.5), json!(-1), json!("1"), json!(1e300), json!(null)] {
            assert_eq!(whole(&value), None, "{value}");
        }
        assert_eq!(at(&json!({"a": {"b": 2}}), &["a", "b"]), Some(&json!(2)));
        assert_eq!(at(&json!({"a": 1}), &["a", "b"]), None);
    }
    #[test]
    fn finds_repeated_keys() {
        for text in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"b":[],"a":2}}]"#, r#"{"a":1,"\u0061":2}"#] {
            assert!(repeats_a_key(text), "{text}");
        }
        for text in [r#"{"a":{"a":1},"b":[{"a":1},{"a":1}]}"#, "1", "{", r#""repeated key""#] {
            assert!(!repeats_a_key(text), "{text}");
        }
    }
}
