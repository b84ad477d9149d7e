//! Small helpers around `serde_json`: JSON travels as text, and a policy never trusts its shape.

use serde_json::{Map, Value};

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
}
