//! The values that requests and rows are made of, as the description shows them.
//!
//! None of these types holds anything: each stands for a check in `fields` (or beside its route), and says the same in
//! JSON Schema.

use super::ports;
use serde_json::Value;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};
use warmhold_ledger::Kind;

/// Above this, doubles no longer tell whole numbers apart.
const MAX_SAFE: usize = (1 << 53) - 1;
/// The longest time to live of a worker.
const DAY_MS: usize = 86_400_000;

/// A text with something beside white space, as `fields::text` judges it. Regular expressions differ in what `\s` is, so
/// it is spelled out.
pub(super) const NOT_BLANK: &str =
    r"[^\u0009-\u000D\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF]";

/// See [`fields::is_worker_id`](super::fields::is_worker_id).
pub(super) const WORKER_ID: &str = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,95}$";

/// A type that is described here.
macro_rules! described {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)+) => {$(
        $(#[doc = $doc])+
        pub(super) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let schema: ObjectBuilder = $schema;
                // The documentation of the type is the description of the schema.
                schema.description(Some(concat!($($doc),+).trim())).into()
            }
        }

        impl ToSchema for $name {}
    )+};
}

described! {
    /// A text that holds more than white space.
    Text = text().pattern(Some(NOT_BLANK));
    /// A text that isn't empty.
    Given = text().min_length(Some(1));
    /// A worker's id.
    WorkerId = text().pattern(Some(WORKER_ID)).max_length(Some(96));
    /// Milliseconds; a whole number, however it is written (`6e4` is one).
    WorkerTtl = whole(1, DAY_MS);
    /// The generation of a lease.
    LeaseGeneration = whole(1, MAX_SAFE);
    /// Milliseconds, above 0.
    PortTtl = number().exclusive_minimum(Some(0.0));
    /// Milliseconds.
    Ttl = number().minimum(Some(0.0));
    /// A port that is leased out.
    Port = whole(ports::FIRST.into(), ports::LAST.into());
    /// An object with whatever fields.
    JsonObject = ObjectBuilder::new()
        .additional_properties(Some(AdditionalProperties::FreeForm(true)));
    /// What a row is.
    KindName = kinds(|_| true);
    /// What a row is that has no routes of its own.
    FreeKind = kinds(|kind| !matches!(kind, Kind::PortLease | Kind::PodWorkerLease));
}

pub(super) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn number() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Number)
}

/// The schema of a whole number within bounds.
pub(super) fn whole(least: usize, most: usize) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
}

fn kinds(keep: impl Fn(&Kind) -> bool) -> ObjectBuilder {
    text().enum_values(Some(Kind::ALL.iter().filter(|kind| keep(kind)).map(|kind| Value::from(kind.as_str()))))
}

#[cfg(test)]
mod tests {
    use super::super::fields;
    use super::*;
    use serde_json::json;

    /// The characters between the brackets of [`NOT_BLANK`].
    fn blank(c: u32) -> bool {
        let class = NOT_BLANK.trim_start_matches("[^").trim_end_matches(']');
        let points = |text: &str| u32::from_str_radix(text.trim_start_matches("\\u"), 16).unwrap();
        let mut rest = class;
        while !rest.is_empty() {
            let (first, after) = rest.split_at(6);
            let (last, after) = after.strip_prefix('-').map_or((first, after), |after| after.split_at(6));
            if (points(first)..=points(last)).contains(&c) {
                return true;
            }
            rest = after;
        }
        false
    }

    #[test]
    fn what_is_described_as_blank_is_refused_as_blank() {
        for c in (0..=0x0010_FFFF).filter_map(char::from_u32) {
            let fields = json!({"a": c.to_string()});
            let taken = fields::text(fields.as_object().unwrap(), "a").is_some();
            assert_eq!(taken, !blank(c.into()), "{c:?} U+{:04X}", u32::from(c));
        }
    }
}
