//! Walks a parsed file and gathers what is wrong with it, instead of stopping at the first fault.

use super::fault::Fault;
use super::units::{parse_duration, parse_size};
use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text that is walked and the faults found so far.
#[derive(Debug)]
pub(super) struct Walk<'t> {
    text: &'t str,
    faults: RefCell<Vec<Fault>>,
}

impl<'t> Walk<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, faults: RefCell::default() }
    }

    /// Adds a fault; `span` is a range of bytes of the text.
    pub(super) fn fault(
        &self,
        key: &str,
        span: Option<&Range<usize>>,
        what: impl Into<String>,
        help: impl Into<String>,
    ) {
        let line = span.map(|span| {
            let before = self.text.as_bytes().get(..span.start.min(self.text.len())).unwrap_or_default();
            1 + before.iter().filter(|byte| **byte == b'\n').count()
        });
        self.faults.borrow_mut().push(Fault { key: key.to_owned(), line, what: what.into(), help: help.into() });
    }

    /// The faults in the order of the file; those without a line come last.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults.into_inner();
        faults.sort_by_key(|fault| fault.line.unwrap_or(usize::MAX));
        faults
    }
}

/// A value that was read, with its key and place for the checks that follow.
#[derive(Clone, Debug)]
pub(super) struct Item<T> {
    pub(super) key: String,
    pub(super) span: Range<usize>,
    pub(super) value: T,
}

/// A table, or one that isn't there: then everything in it is absent.
#[derive(Debug)]
pub(super) struct Table<'w, 't> {
    pub(super) walk: &'w Walk<'t>,
    path: String,
    entries: Option<&'w DeTable<'t>>,
    /// The keys that somebody asked for. What is left when all was asked for is unknown, and these are the right names.
    asked: RefCell<Vec<&'static str>>,
}

impl<'w, 't> Table<'w, 't> {
    pub(super) fn root(walk: &'w Walk<'t>, entries: &'w DeTable<'t>) -> Self {
        Self { walk, path: String::new(), entries: Some(entries), asked: RefCell::default() }
    }

    fn at(walk: &'w Walk<'t>, path: String, entries: Option<&'w DeTable<'t>>) -> Self {
        Self { walk, path, entries, asked: RefCell::default() }
    }

    /// The whole name of a key of this table.
    pub(super) fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(super) fn is_present(&self) -> bool {
        self.entries.is_some()
    }

    /// Whether the key is written, whatever its value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.is_some_and(|entries| entries.contains_key(name))
    }

    fn get(&self, name: &'static str) -> Option<&'w Spanned<DeValue<'t>>> {
        self.asked.borrow_mut().push(name);
        self.entries?.get(name)
    }

    fn take<T>(
        &self,
        name: &'static str,
        wanted: &str,
        read: impl FnOnce(&'w DeValue<'t>) -> Option<Result<T, String>>,
    ) -> Option<Item<T>> {
        let found = self.get(name)?;
        let (key, span) = (self.key(name), found.span());
        match read(found.get_ref()) {
            Some(Ok(value)) => Some(Item { key, span, value }),
            Some(Err(why)) => {
                self.walk.fault(&key, Some(&span), why, format!("write {wanted}"));
                None
            }
            None => {
                let kind = found.get_ref().type_str();
                self.walk.fault(&key, Some(&span), format!("is {} {kind}", article(kind)), format!("write {wanted}"));
                None
            }
        }
    }

    /// A string that isn't blank.
    pub(super) fn text(&self, name: &'static str, wanted: &str) -> Option<Item<String>> {
        self.take(name, wanted, |value| {
            let text = value.as_str()?;
            Some(if text.trim().is_empty() { Err("is blank".to_owned()) } else { Ok(text.to_owned()) })
        })
    }

    pub(super) fn flag(&self, name: &'static str) -> Option<bool> {
        self.take(name, "true or false", |value| Some(Ok(value.as_bool()?))).map(|item| item.value)
    }

    /// A whole number within bounds.
    pub(super) fn number(&self, name: &'static str, bounds: RangeInclusive<u32>) -> Option<Item<u32>> {
        let wanted = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        self.take(name, &wanted, |value| {
            let number = integer(value)?;
            Some(
                u32::try_from(number)
                    .ok()
                    .filter(|number| bounds.contains(number))
                    .ok_or_else(|| format!("{number} is out of bounds")),
            )
        })
    }

    /// A duration within bounds.
    pub(super) fn duration(&self, name: &'static str, bounds: RangeInclusive<Duration>) -> Option<Item<Duration>> {
        use super::units::format_duration as show;
        let wanted = format!(
            "a duration from {} to {} with its unit, such as \"{}\"",
            show(*bounds.start()),
            show(*bounds.end()),
            show(Duration::from_secs(120).clamp(*bounds.start(), *bounds.end()))
        );
        self.take(name, &wanted, |value| {
            Some(parse_duration(value.as_str()?).map_err(|text| first_clause(&text)).and_then(|duration| {
                if bounds.contains(&duration) {
                    Ok(duration)
                } else {
                    Err(format!("{} is out of bounds", show(duration)))
                }
            }))
        })
    }

    /// A size in bytes within bounds.
    pub(super) fn size(&self, name: &'static str, bounds: RangeInclusive<u64>) -> Option<Item<u64>> {
        use super::units::format_size as show;
        let wanted = format!(
            "a size from {} to {} with its unit, such as \"{}\"",
            show(*bounds.start()),
            show(*bounds.end()),
            show((16 << 20).clamp(*bounds.start(), *bounds.end()))
        );
        self.take(name, &wanted, |value| {
            Some(parse_size(value.as_str()?).map_err(|text| first_clause(&text)).and_then(|size| {
                if bounds.contains(&size) { Ok(size) } else { Err(format!("{} is out of bounds", show(size))) }
            }))
        })
    }

    /// An array of strings.
    pub(super) fn texts(&self, name: &'static str, wanted: &str) -> Option<Item<Vec<String>>> {
        self.take(name, wanted, |value| {
            let array = value.as_array()?;
            Some(
                array
                    .iter()
                    .enumerate()
                    .map(|(index, item)| match item.get_ref().as_str() {
                        Some(text) => Ok(text.to_owned()),
                        None => Err(format!("item {} is no string", index + 1)),
                    })
                    .collect(),
            )
        })
    }

    /// A table of this table; an absent one when there is none.
    pub(super) fn table(&self, name: &'static str) -> Table<'w, 't> {
        let entries = self.take(name, "a table", |value| Some(Ok(value.as_table()?))).map(|item| item.value);
        Self::at(self.walk, self.key(name), entries)
    }

    /// The tables of an array of tables, each with its place.
    pub(super) fn tables(&self, name: &'static str) -> Vec<(Range<usize>, Table<'w, 't>)> {
        let wanted = format!("an array of tables, [[{}]]", self.key(name));
        let Some(array) = self.take(name, &wanted, |value| Some(Ok(value.as_array()?))) else { return Vec::new() };
        let mut found = Vec::new();
        for (index, item) in array.value.iter().enumerate() {
            let key = format!("{}[{index}]", array.key);
            match item.get_ref().as_table() {
                Some(entries) => found.push((item.span(), Self::at(self.walk, key, Some(entries)))),
                None => self.walk.fault(&key, Some(&item.span()), "is no table", format!("write {wanted}")),
            }
        }
        found
    }

    /// Every entry under names that the user chooses, in the order of the file. Such a table has no unknown keys.
    pub(super) fn entries(&self) -> Vec<Item<(&'w str, &'w DeValue<'t>)>> {
        let mut found: Vec<_> = self
            .entries
            .into_iter()
            .flatten()
            .map(|(name, value)| Item {
                key: self.key(name.get_ref()),
                span: name.span(),
                value: (name.get_ref().as_ref(), value.get_ref()),
            })
            .collect();
        found.sort_by_key(|item| item.span.start);
        found
    }

    /// Every entry as a table.
    pub(super) fn named_tables(&self) -> Vec<(Item<&'w str>, Table<'w, 't>)> {
        self.entries()
            .into_iter()
            .filter_map(|Item { key, span, value: (name, value) }| {
                let Some(entries) = value.as_table() else {
                    let kind = value.type_str();
                    self.walk.fault(&key, Some(&span), format!("is {} {kind}", article(kind)), "write a table");
                    return None;
                };
                let table = Self::at(self.walk, key.clone(), Some(entries));
                Some((Item { key, span, value: name }, table))
            })
            .collect()
    }

    /// A table of strings under names that the user chooses.
    pub(super) fn named_texts(&self) -> Vec<Item<(&'w str, String)>> {
        self.entries()
            .into_iter()
            .filter_map(|Item { key, span, value: (name, value) }| {
                let Some(text) = value.as_str() else {
                    let kind = value.type_str();
                    self.walk.fault(&key, Some(&span), format!("is {} {kind}", article(kind)), "write a string");
                    return None;
                };
                Some(Item { key, span, value: (name, text.to_owned()) })
            })
            .collect()
    }

    /// A table of the policy's own, as JSON.
    pub(super) fn json(&self, name: &'static str) -> Option<serde_json::Value> {
        self.take(name, "a table that JSON can hold", |value| {
            value.as_table()?;
            Some(to_json(value))
        })
        .map(|item| item.value)
    }

    /// To be called when every key was asked for: what was never asked for is unknown.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for (name, _) in self.entries.into_iter().flatten() {
            let text = name.get_ref().as_ref();
            if asked.contains(&text) {
                continue;
            }
            let help = match nearest(text, &asked) {
                Some(right) => format!("did you mean `{right}`?"),
                None => format!("the keys here are: {}", asked.join(", ")),
            };
            let what = if self.path.is_empty() { "is no table of this file" } else { "is no key of this table" };
            self.walk.fault(&self.key(text), Some(&name.span()), what, help);
        }
    }
}

/// The name that was meant, when one is near enough to say so.
pub(crate) fn nearest<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    let text = text.to_lowercase().replace('_', "-");
    names
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&text, name), *name))
        .filter(|(distance, name)| *distance <= 1.max(name.chars().count() / 3) || name.starts_with(text.as_str()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with(['a', 'i']) { "an" } else { "a" }
}

/// The help gives the rest.
fn first_clause(text: &str) -> String {
    text.split_once(';').map_or(text, |(first, _)| first).to_owned()
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn to_json(value: &DeValue<'_>) -> Result<serde_json::Value, String> {
    use serde_json::Value;
    Ok(match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Integer(number) => {
            integer(value).map(Value::from).ok_or_else(|| format!("{} does not fit 64 bits", number.as_str()))?
        }
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map(Value::Number)
            .ok_or_else(|| format!("holds {}, which JSON has no number for", number.as_str()))?,
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Datetime(at) => Value::from(at.to_string()),
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|item| to_json(item.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Table(entries) => Value::Object(
            entries
                .iter()
                .map(|(name, item)| Ok((name.get_ref().as_ref().to_owned(), to_json(item.get_ref())?)))
                .collect::<Result<_, String>>()?,
        ),
    })
}
