//! Differences as they are found, and the path to each.

use serde_json::Value;
use warmhold_sdk::cut;
use warmhold_sdk::manifest::{Difference, difference};

/// More than a person reads; a pod that differs everywhere must not fill the host's memory.
const MOST: usize = 64;
/// A longer value is shown as a text of its beginning.
const LONGEST: usize = 1024;

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Differences {
    drift: Vec<Difference>,
    harmless: Vec<Difference>,
    untold: usize,
}

impl Differences {
    pub(super) fn drift(&mut self, path: &Path, want: &Value, got: &Value) {
        if self.drift.len() < MOST {
            self.drift.push(difference(path.text(), &shown(want), &shown(got)));
        } else {
            self.untold += 1;
        }
    }

    pub(super) fn harmless(&mut self, path: &Path, want: &Value, got: &Value) {
        if self.harmless.len() < MOST {
            self.harmless.push(difference(path.text(), &shown(want), &shown(got)));
        }
    }

    pub(super) fn into_result(mut self) -> Result<Vec<Difference>, Vec<Difference>> {
        if self.drift.is_empty() {
            return Ok(self.harmless);
        }
        if self.untold > 0 {
            let rest = Value::from(format!("and {} differences more", self.untold));
            self.drift.push(difference("$", &Value::Null, &rest));
        }
        Err(self.drift)
    }
}

fn shown(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= LONGEST { value.clone() } else { Value::from(format!("{}…", cut(&text, LONGEST))) }
}

/// A path into JSON: `$.spec.containers[0].image`, `$.metadata.labels["a/b"]`.
#[derive(Clone, Debug)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn root() -> Self {
        Self("$".to_owned())
    }

    pub(super) fn key(&self, key: &str) -> Self {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if plain {
            Self(format!("{}.{key}", self.0))
        } else {
            Self(format!("{}[{}]", self.0, Value::from(cut(key, LONGEST))))
        }
    }

    pub(super) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}
