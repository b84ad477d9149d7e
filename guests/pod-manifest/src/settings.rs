//! The policy's settings.

use crate::faults::is_subdomain;
use crate::names::PREFIX;
use crate::quantity::Quantity;
use serde_json::{Map, Value};
use warmhold_sdk::{json, unknown_keys};

/// See the crate's documentation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The memory limits that a spec may name; none: any.
    pub memory_limits: Option<Vec<String>>,
    /// Further labels for every pod, in order of their keys.
    pub labels: Vec<(String, String)>,
}

impl Settings {
    /// From JSON text.
    ///
    /// # Errors
    /// Every fault, with its key.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let settings = json::object(text).ok_or_else(|| vec!["settings: not a JSON object".to_owned()])?;
        Self::read(&settings)
    }

    /// From a JSON object.
    ///
    /// # Errors
    /// Every fault, with its key.
    pub fn read(settings: &Map<String, Value>) -> Result<Self, Vec<String>> {
        let mut faults = unknown_keys(settings, &["memory-limits", "labels"]);
        let mut read = Self::default();
        if let Some(limits) = settings.get("memory-limits") {
            match quantities(limits) {
                limits @ Some(_) => read.memory_limits = limits,
                None => {
                    faults.push("memory-limits: must be an array of one or more quantities, such as \"2Gi\"".to_owned())
                }
            }
        }
        if let Some(labels) = settings.get("labels") {
            match labels.as_object() {
                Some(labels) => {
                    for (key, value) in labels {
                        match value.as_str().filter(|value| is_label_value(value) && is_own_label(key)) {
                            Some(value) => read.labels.push((key.clone(), value.to_owned())),
                            None => faults.push(format!(
                                "labels.{key}: must be a label outside {PREFIX} and kubernetes.io/ with a text of at most 63 letters, digits, - _ ."
                            )),
                        }
                    }
                    read.labels.sort();
                }
                None => faults.push("labels: must be an object of texts".to_owned()),
            }
        }
        if faults.is_empty() { Ok(read) } else { Err(faults) }
    }
}

fn quantities(value: &Value) -> Option<Vec<String>> {
    let limits: Vec<String> =
        value.as_array()?.iter().map(|limit| limit.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    let positive = |limit: &String| Quantity::parse(limit).is_some_and(Quantity::is_positive);
    (!limits.is_empty() && limits.iter().all(positive)).then_some(limits)
}

fn is_own_label(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let reserved = |prefix: &str| {
        ["warmhold.dev", "kubernetes.io", "k8s.io"]
            .iter()
            .any(|domain| prefix == *domain || prefix.ends_with(&format!(".{domain}")))
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(|prefix| is_subdomain(prefix) && !reserved(prefix))
}

/// Whether a text may be a label's value: at most 63 letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_lists_every_fault() {
        assert_eq!(Settings::parse("{}").unwrap(), Settings::default());
        let read = Settings::parse(r#"{"memory-limits":["512Mi"],"labels":{"team":"a","b.example/c":"d"}}"#).unwrap();
        assert_eq!(read.memory_limits, Some(vec!["512Mi".to_owned()]));
        assert_eq!(read.labels, [("b.example/c".to_owned(), "d".to_owned()), ("team".to_owned(), "a".to_owned())]);

        let text = r#"{"memory-limit":["2Gi"],"memory-limits":["-1Gi"],"labels":{"warmhold.dev/x":"a","ok":" "}}"#;
        let faults = Settings::parse(text).unwrap_err();
        let keys: Vec<&str> = faults.iter().map(|fault| fault.split(": ").next().unwrap()).collect();
        assert_eq!(keys, ["memory-limit", "memory-limits", "labels.warmhold.dev/x", "labels.ok"]);
        for text in [r#"{"memory-limits":[]}"#, r#"{"memory-limits":"2Gi"}"#, r#"{"labels":[]}"#, "[]", "{"] {
            assert_eq!(Settings::parse(text).unwrap_err().len(), 1, "{text}");
        }
        for key in ["kubernetes.io/a", "app.kubernetes.io/a", "a/b/c", "", "/a", "-a/b"] {
            assert!(!is_own_label(key), "{key}");
        }
    }
}
