//! Short words for what tests look at in JSON.

use serde_json::Value;

/// A text; empty for everything else.
#[must_use]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The items of a list; none for everything else.
#[must_use]
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The states that a replay went through.
#[must_use]
pub fn states(replay: &Value) -> Vec<&str> {
    let history = replay.get("history").map(items).unwrap_or_default();
    history.iter().filter_map(|step| step.get("state")).map(text).collect()
}
