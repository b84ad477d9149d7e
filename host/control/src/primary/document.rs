//! The primary document and its reading.

use crate::files::{self, Content};
use crate::machine::is_holder;
use serde::{Serialize, Serializer};
use serde_json::{Map, Number, Value};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The largest whole number that every reader of JSON keeps exact.
pub(super) const MAX_GENERATION: u64 = (1 << 53) - 1;

/// Whether the holder came to it, or is coming.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds.
    Held,
    /// It is to hold, and has not accepted yet. It may write all the same: whoever is `holder` may.
    HandingOff {
        /// Who held before, and may take it back.
        from: Option<String>,
    },
}

/// A document that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The machine that may write: `[a-z0-9][a-z0-9-]{0,31}`.
    pub holder: String,
    /// Rises by one with every change; 1 or more.
    pub generation: u64,
    /// See [`State`].
    pub state: State,
    /// When it was last written, by the clock of the machine that wrote it; so nothing ever expires by it.
    pub renewed_at: Number,
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Map::new();
        map.insert("holder".into(), self.holder.clone().into());
        map.insert("generation".into(), self.generation.into());
        match &self.state {
            State::Held => {
                map.insert("state".into(), "held".into());
            }
            State::HandingOff { from } => {
                map.insert("state".into(), "handing-off".into());
                if let Some(from) = from {
                    map.insert("from".into(), from.clone().into());
                }
            }
        }
        map.insert("renewedAt".into(), Value::Number(self.renewed_at.clone()));
        map.serialize(serializer)
    }
}

/// What reading the document came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It says this.
    Present(Document),
    /// There is none.
    Absent,
    /// There is something, and nothing is known: why, for a person.
    Unmeasured(String),
}

/// Reads the document now.
#[must_use]
pub fn read(path: &Path) -> Reading {
    read_kept(path).0
}

/// A reading, and when what it was made from was last changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// What it says.
    pub reading: Reading,
    /// How long ago the file was last changed, by this machine's clock and its file system's; None where there is no
    /// file, or it can't be told. A file from the future has age 0.
    pub age: Option<Duration>,
}

/// Reads the document now, and says how old the file is. Nothing expires by that age: it is for a person.
#[must_use]
pub fn look(path: &Path) -> Look {
    let changed = std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let age = changed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
    Look { reading: read(path), age }
}

/// Reads the document, and keeps what the reading was made from.
pub(super) fn read_kept(path: &Path) -> (Reading, Option<Content>) {
    match files::read(path) {
        Ok(None) => (Reading::Absent, None),
        Ok(Some(content)) => (parse(&content.bytes).map_or_else(Reading::Unmeasured, Reading::Present), Some(content)),
        Err(error) => (Reading::Unmeasured(error.to_string()), None),
    }
}

/// The document in these bytes, or what is wrong with them.
pub(super) fn parse(bytes: &[u8]) -> Result<Document, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("no JSON: {error}"))?;
    let Value::Object(fields) = value else { return Err("not an object".to_owned()) };
    if fields.contains_key("expiresAt") {
        return Err("expiresAt isn't allowed: nothing expires by another machine's clock".to_owned());
    }
    let holder = name(&fields, "holder")?.ok_or("holder is missing")?;
    let generation = fields
        .get("generation")
        .and_then(whole)
        .filter(|generation| (1..=MAX_GENERATION).contains(generation))
        .ok_or("generation isn't a whole number of 1 or more")?;
    let from = name(&fields, "from")?;
    let state = match (fields.get("state").and_then(Value::as_str), from) {
        (Some("held"), None) => State::Held,
        (Some("held"), Some(_)) => return Err("from is allowed only while handing off".to_owned()),
        (Some("handing-off"), Some(from)) if from == holder => return Err("from is the holder itself".to_owned()),
        (Some("handing-off"), from) => State::HandingOff { from },
        _ => return Err("state is neither held nor handing-off".to_owned()),
    };
    let renewed_at = match fields.get("renewedAt") {
        Some(Value::Number(number)) if number.as_f64().is_some_and(|at| at.is_finite() && at >= 0.0) => number.clone(),
        _ => return Err("renewedAt isn't a time in milliseconds".to_owned()),
    };
    Ok(Document { holder, generation, state, renewed_at })
}

fn name(fields: &Map<String, Value>, field: &str) -> Result<Option<String>, String> {
    match fields.get(field) {
        None => Ok(None),
        Some(Value::String(name)) if is_holder(name) => Ok(Some(name.clone())),
        Some(_) => Err(format!("{field} isn't a machine's name (a-z, 0-9 and '-', at most 32)")),
    }
}

/// A whole number however it is written: 7, 7.0 and 70e-1 are one value.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: whole and within 2^53")]
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_f64()?;
    (number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_counts_as_a_document() {
        let plain = parse(br#"{"holder":"m1","generation":7,"state":"held","renewedAt":1}"#).unwrap();
        assert_eq!((plain.holder.as_str(), plain.generation, &plain.state), ("m1", 7, &State::Held));
        for good in [
            r#"{"holder":"m1","generation":7.0,"state":"held","renewedAt":1.5,"note":"other fields are left alone"}"#,
            r#"{"holder":"m1","generation":1,"state":"handing-off","from":"m2","renewedAt":0}"#,
            r#"{"holder":"m1","generation":9007199254740991,"state":"handing-off","renewedAt":0}"#,
        ] {
            let document = parse(good.as_bytes()).unwrap();
            assert_eq!(parse(&serde_json::to_vec(&document).unwrap()).unwrap(), document);
        }
    }

    #[test]
    fn what_does_not() {
        for bad in [
            "",
            "null",
            "[]",
            "{",
            r#"{"generation":7,"state":"held","renewedAt":1}"#,
            r#"{"holder":"M1","generation":7,"state":"held","renewedAt":1}"#,
            r#"{"holder":"m.1","generation":7,"state":"held","renewedAt":1}"#,
            r#"{"holder":"-m","generation":7,"state":"held","renewedAt":1}"#,
            r#"{"holder":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","generation":7,"state":"held","renewedAt":1}"#,
            r#"{"holder":7,"generation":7,"state":"held","renewedAt":1}"#,
            r#"{"holder":"m1","generation":0,"state":"held","renewedAt":1}"#,
            r#"{"holder":"m1","generation":-1,"state":"held","renewedAt":1}"#,
            r#"{"holder":"m1","generation":1.5,"state":"held","renewedAt":1}"#,
            r#"{"holder":"m1","generation":"7","state":"held","renewedAt":1}"#,
            r#"{"holder":"m1","generation":9007199254740992,"state":"held","renewedAt":1}"#,
            r#"{"holder":"m1","generation":7,"state":"free","renewedAt":1}"#,
            r#"{"holder":"m1","generation":7,"renewedAt":1}"#,
            r#"{"holder":"m1","generation":7,"state":"held"}"#,
            r#"{"holder":"m1","generation":7,"state":"held","renewedAt":"now"}"#,
            r#"{"holder":"m1","generation":7,"state":"held","renewedAt":1,"from":"m2"}"#,
            r#"{"holder":"m1","generation":7,"state":"handing-off","renewedAt":1,"from":"m1"}"#,
            r#"{"holder":"m1","generation":7,"state":"handing-off","renewedAt":1,"from":null}"#,
            r#"{"holder":"m1","generation":7,"state":"held","renewedAt":1,"expiresAt":9}"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn absent_is_not_unmeasured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("primary.json");
        assert_eq!(read(&path), Reading::Absent);
        std::fs::write(&path, "").unwrap();
        assert!(matches!(read(&path), Reading::Unmeasured(_)));
        assert!(matches!(read(folder.path()), Reading::Unmeasured(_)), "a folder is something");
        assert!(matches!(read(&path.join("x")), Reading::Unmeasured(_)), "a path through a file says nothing");
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn what_is_understood_keeps_its_rules(
            holder in "[a-zA-Z0-9-]{0,3}", from in proptest::option::of("[a-c]{1,2}"), generation in -2_i64..3,
            state in prop_oneof![Just("held"), Just("handing-off"), Just("x")],
        ) {
            let mut fields = serde_json::json!(
                {"holder": holder, "generation": generation, "state": state, "renewedAt": 5});
            if let Some(from) = &from {
                fields["from"] = from.clone().into();
            }
            if let Ok(document) = parse(fields.to_string().as_bytes()) {
                prop_assert!(is_holder(&document.holder) && document.generation >= 1);
                prop_assert_eq!(matches!(document.state, State::Held), state == "held");
                prop_assert!(from.is_none() || (state == "handing-off" && from.as_deref() != Some(&holder)));
            }
        }
    }
}
