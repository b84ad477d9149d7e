//! Whether an answer is one that the description of the interface declares: its status, its headers, its content type
//! and, of a refusal, its code.

use super::client::Reply;
use serde_json::Value;
use std::sync::OnceLock;

fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::from_slice(warmhold_control::description().unwrap()).unwrap())
}

/// Headers that HTTP itself brings, or that are the same on every answer.
const PLAIN: [&str; 6] = ["content-type", "content-length", "transfer-encoding", "date", "connection", "cache-control"];

/// Fails the test if the answer of a route isn't declared. What has no route has no declaration.
pub fn check(method: &str, target: &str, reply: &Reply) {
    let path = target.split('?').next().unwrap_or_default();
    let Some(operation) = operation(method, path) else { return };
    let asked = format!("{method} {target}");
    let answer = &operation["responses"][reply.status.to_string()];
    assert!(answer.is_object(), "{asked}: {} isn't declared", reply.status);
    let headers = answer["headers"].as_object().unwrap();
    for (name, _) in &reply.headers {
        assert!(PLAIN.contains(&name.as_str()) || headers.contains_key(name), "{asked}: {name} isn't declared");
    }
    for (name, header) in headers {
        let required = resolve(header)["required"] == true;
        assert!(!required || reply.header(name).is_some(), "{asked}: {} without {name}", reply.status);
    }
    let Some(kind) = reply.header("content-type") else {
        // 431: of a head that is too large even to be read.
        let bodiless = answer.get("content").is_none() || reply.status == 431;
        assert!(bodiless && reply.body.is_empty(), "{asked}: {} without a type", reply.status);
        return;
    };
    let content = &answer["content"][kind.split(';').next().unwrap_or_default()];
    assert!(content.is_object(), "{asked}: {kind} isn't declared");
    if reply.status >= 400 {
        let code = &content["schema"]["allOf"][1]["properties"]["error"];
        let closed = code["enum"].as_array();
        let found = reply.json()["error"].clone();
        assert!(closed.is_none_or(|codes| codes.contains(&found)), "{asked}: {} {found} isn't declared", reply.status);
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let fits = |template: &str| {
        let (expected, found) = (template.split('/'), path.split('/'));
        expected.clone().count() == found.clone().count()
            && expected
                .zip(found)
                .all(|(expected, found)| expected == found || (expected.starts_with('{') && !found.is_empty()))
    };
    let paths = document()["paths"].as_object()?;
    paths.iter().filter(|(template, _)| fits(template)).find_map(|(_, item)| item.get(method.to_lowercase()))
}

fn resolve(value: &'static Value) -> &'static Value {
    let reference = value["$ref"].as_str().unwrap_or_default();
    document().pointer(reference.trim_start_matches('#')).unwrap_or(value)
}
