//! Where a live pod differs from the rendered one, and which differences do no harm.
//!
//! What was rendered must be there as it is. What an API server adds by itself is on a list ([`defaults`]); whatever else
//! is in the pod's spec is drift, known to us or not. In metadata, labels and annotations of others are none of ours:
//! they are told, and do no harm.

mod defaults;
mod differences;

use crate::names::PROVENANCE;
use crate::quantity::Quantity;
use differences::{Differences, Path};
use serde_json::{Map, Value};
use warmhold_sdk::manifest::Difference;

/// Compares a live pod with the rendered one: the differences that do no harm.
///
/// # Errors
/// The differences that are drift.
pub fn compare(rendered: &Value, live: &Value) -> Result<Vec<Difference>, Vec<Difference>> {
    let mut found = Differences::default();
    let root = Path::root();
    for key in ["apiVersion", "kind"] {
        // The items of a list have neither.
        if live.get(key).is_some() {
            equal(&mut found, &root.key(key), field(rendered, key), field(live, key));
        }
    }
    metadata(&mut found, &root.key("metadata"), field(rendered, "metadata"), field(live, "metadata"));
    pod(&mut found, &root.key("spec"), field(rendered, "spec"), field(live, "spec"));
    found.into_result()
}

fn field<'a>(value: &'a Value, key: &str) -> &'a Value {
    value.get(key).unwrap_or(&Value::Null)
}

/// A field that an API server may show as null or as an empty list means the same as none.
fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn metadata(found: &mut Differences, path: &Path, want: &Value, got: &Value) {
    for key in ["name", "namespace"] {
        equal(found, &path.key(key), field(want, key), field(got, key));
    }
    for key in ["labels", "annotations"] {
        ours_within(found, &path.key(key), field(want, key), field(got, key));
    }
    for (key, value) in got.as_object().into_iter().flatten() {
        match key.as_str() {
            // A pod that is going away, or that goes away with another object, is no place to run anything.
            "deletionTimestamp" | "ownerReferences" if !is_absent(value) => {
                found.drift(&path.key(key), &Value::Null, value)
            }
            "name" | "namespace" | "labels" | "annotations" => {}
            key if defaults::METADATA.contains(&key) => {}
            _ if is_absent(value) => {}
            _ => found.harmless(&path.key(key), &Value::Null, value),
        }
    }
}

/// Ours must be there; others' are told.
fn ours_within(found: &mut Differences, path: &Path, want: &Value, got: &Value) {
    for (key, value) in want.as_object().into_iter().flatten() {
        equal(found, &path.key(key), value, field(got, key));
    }
    for (key, value) in got.as_object().into_iter().flatten() {
        if want.get(key).is_none() && !PROVENANCE.contains(&key.as_str()) {
            found.harmless(&path.key(key), &Value::Null, value);
        }
    }
}

fn pod(found: &mut Differences, path: &Path, want: &Value, got: &Value) {
    let (Some(want), Some(got)) = (want.as_object(), got.as_object()) else {
        return found.drift(path, want, got);
    };
    for (key, value) in want {
        let (path, live) = (path.key(key), got.get(key).unwrap_or(&Value::Null));
        match key.as_str() {
            "containers" | "initContainers" => named(found, &path, value, live, container),
            "volumes" => named(found, &path, value, live, equal),
            "tolerations" => equal(
                found,
                &path,
                &defaults::without_default_tolerations(value),
                &defaults::without_default_tolerations(live),
            ),
            _ => equal(found, &path, value, live),
        }
    }
    for (key, value) in got.iter().filter(|(key, _)| !want.contains_key(*key)) {
        let added_by_server = match key.as_str() {
            "tolerations" => is_absent(&defaults::without_default_tolerations(value)),
            // Without a node in the spec, the scheduler chooses one.
            "nodeName" => true,
            key => defaults::of_pod(key).is_some_and(|default| default == *value),
        };
        if !added_by_server && !is_absent(value) {
            found.drift(&path.key(key), &Value::Null, value);
        }
    }
}

fn container(found: &mut Differences, path: &Path, want: &Value, got: &Value) {
    let (Some(want), Some(got)) = (want.as_object(), got.as_object()) else {
        return found.drift(path, want, got);
    };
    for (key, value) in want {
        let (path, live) = (path.key(key), got.get(key).unwrap_or(&Value::Null));
        match key.as_str() {
            "resources" => resources(found, &path, value, live),
            "env" => named(found, &path, value, live, equal),
            _ => equal(found, &path, value, live),
        }
    }
    for (key, value) in got.iter().filter(|(key, _)| !want.contains_key(*key)) {
        let added_by_server = defaults::of_container(key).is_some_and(|default| default == *value);
        if !added_by_server && !is_absent(value) {
            found.drift(&path.key(key), &Value::Null, value);
        }
    }
}

/// Limits and requests by what they stand for. A request that wasn't asked for is what the limit says: the API server
/// fills it in.
fn resources(found: &mut Differences, path: &Path, want: &Value, got: &Value) {
    let mut want = want.clone();
    let limits: Map<String, Value> = field(&want, "limits").as_object().cloned().unwrap_or_default();
    if let Some(requests) = want.get_mut("requests").and_then(Value::as_object_mut) {
        for (name, limit) in limits {
            if got.get("requests").is_some_and(|requests| requests.get(&name).is_some()) {
                requests.entry(name).or_insert(limit);
            }
        }
    }
    for key in keys(&want, got) {
        let (path, want, got) = (path.key(key), field(&want, key), field(got, key));
        if !matches!(key, "limits" | "requests") {
            equal(found, &path, want, got);
            continue;
        }
        for name in keys(want, got) {
            let (want, got) = (field(want, name), field(got, name));
            let quantity = |value: &Value| value.as_str().and_then(Quantity::parse);
            let same = match (quantity(want), quantity(got)) {
                (Some(want), Some(got)) => want == got,
                _ => want == got,
            };
            if !same {
                found.drift(&path.key(name), want, got);
            }
        }
    }
}

/// The keys of both, each once, those of `want` first.
fn keys<'a>(want: &'a Value, got: &'a Value) -> Vec<&'a str> {
    let of = |value: &'a Value| value.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str));
    let added = of(got).filter(|key| want.get(key).is_none());
    of(want).chain(added).collect()
}

/// Lists whose items have names. Their order counts (init containers run in it, variables are expanded in it), but an
/// item more shouldn't make all that follow it look different.
fn named(
    found: &mut Differences,
    path: &Path,
    want: &Value,
    got: &Value,
    item: fn(&mut Differences, &Path, &Value, &Value),
) {
    let (Some(want_items), Some(got_items)) = (want.as_array(), got.as_array()) else {
        return equal(found, path, want, got);
    };
    let mut order = Vec::new();
    for (n, want) in want_items.iter().enumerate() {
        match got_items.iter().position(|got| field(got, "name") == field(want, "name")) {
            Some(at) => {
                order.push(at);
                item(found, &path.index(at), want, got_items.get(at).unwrap_or(&Value::Null));
            }
            None => found.drift(&path.index(n), want, &Value::Null),
        }
    }
    for (n, got) in got_items.iter().enumerate().filter(|(n, _)| !order.contains(n)) {
        found.drift(&path.index(n), &Value::Null, got);
    }
    if !order.is_sorted() {
        let names = |items: &[Value]| items.iter().map(|item| field(item, "name").clone()).collect::<Value>();
        found.drift(path, &names(want_items), &names(got_items));
    }
}

/// Everything must be equal; the places where it isn't are told one by one.
fn equal(found: &mut Differences, path: &Path, want: &Value, got: &Value) {
    match (want, got) {
        (Value::Object(_), Value::Object(_)) => {
            for key in keys(want, got) {
                equal(found, &path.key(key), field(want, key), field(got, key));
            }
        }
        (Value::Array(want), Value::Array(got)) => {
            for n in 0..want.len().max(got.len()) {
                let of = |items: &'_ [Value]| items.get(n).cloned().unwrap_or_default();
                equal(found, &path.index(n), &of(want), &of(got));
            }
        }
        (want, got) if want == got || (is_absent(want) && is_absent(got)) => {}
        (want, got) => found.drift(path, want, got),
    }
}
