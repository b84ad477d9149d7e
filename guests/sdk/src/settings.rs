//! Checking a policy's settings.

use crate::{Policy, json};
use serde_json::{Map, Value};

/// What `check-settings` answers: settings that are no object are a fault of their own.
pub(crate) fn check(policy: &impl Policy, settings: &str) -> Result<(), Vec<String>> {
    let faults = match json::object(settings) {
        Some(settings) => policy.check_settings(&settings),
        None => vec!["settings: not a JSON object".to_owned()],
    };
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// One fault for each key that isn't in `known`, with the nearest known one where it is near.
#[must_use]
pub fn unknown_keys(settings: &Map<String, Value>, known: &[&str]) -> Vec<String> {
    let fault = |key: &String| match known.iter().min_by_key(|name| distance(name, key)) {
        None => format!("{key}: unknown setting; this policy has none"),
        Some(nearest) if distance(nearest, key) <= 2 => format!("{key}: unknown setting; did you mean {nearest}?"),
        Some(_) => format!("{key}: unknown setting; known are {}", known.join(", ")),
    };
    settings.keys().filter(|key| !known.contains(&key.as_str())).map(fault).collect()
}

/// How many letters must be added, removed or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let change = diagonal + usize::from(x != *y);
            diagonal = *cell;
            *cell = change.min(left + 1).min(diagonal + 1);
            left = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_every_unknown_key() {
        let settings = json!({"ttl-ms": 1, "tll-ms": 2, "colour": "red"});
        let faults = unknown_keys(settings.as_object().unwrap(), &["ttl-ms", "wait"]);
        assert_eq!(
            faults,
            ["tll-ms: unknown setting; did you mean ttl-ms?", "colour: unknown setting; known are ttl-ms, wait"]
        );
        assert_eq!(unknown_keys(&Map::new(), &[]), Vec::<String>::new());
        assert_eq!(
            unknown_keys(json!({"a": 1}).as_object().unwrap(), &[]),
            ["a: unknown setting; this policy has none"]
        );
    }

    #[test]
    fn measures() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
