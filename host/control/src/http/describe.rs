//! `GET /v1/openapi.json`: the interface, described by the types that serve it.
//!
//! The paths are those of the table of routes, the shapes those of the types that are read and written, and the refusals
//! stand beside the routes that give them. Made once, at the first request, and served from memory.

mod headers;
mod operation;
mod refusals;
mod routes;

use super::answer::Answer;
use super::exchange::Exchange;
use super::route::{Access, Entry, Route, TABLE};
use crate::error::{ApiError, RefusalBody};
use http::{Method, header};
use operation::Shapes;
use sha2::{Digest, Sha256};
use std::sync::OnceLock;
use utoipa::openapi::path::{HttpMethod, Operation, Paths};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder};
use warmhold_ledger::Scope;

/// The document as it is sent.
struct Document {
    text: Vec<u8>,
    etag: String,
}

/// `GET /v1/openapi.json`.
pub(super) fn show(exchange: &Exchange) -> Result<Answer, ApiError> {
    let document = DOCUMENT.get_or_init(write).as_ref().ok_or_else(ApiError::internal)?;
    let known = exchange.head.headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|value| value.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
    if known.any(|tag| tag == document.etag || tag == "*") {
        return Ok(Answer::unchanged(&document.etag));
    }
    Ok(Answer::constant_json(&document.text, &document.etag))
}

/// What `GET /v1/openapi.json` answers: the interface in OpenAPI 3.1. None where it can't be written, which the log tells.
#[must_use]
pub fn description() -> Option<&'static [u8]> {
    DOCUMENT.get_or_init(write).as_ref().map(|document| document.text.as_slice())
}

static DOCUMENT: OnceLock<Option<Document>> = OnceLock::new();

fn write() -> Option<Document> {
    match serde_json::to_vec(&document()) {
        Ok(text) => {
            let digest = Sha256::digest(&text);
            let etag = digest.iter().take(16).fold("\"".to_owned(), |etag, byte| etag + &format!("{byte:02x}")) + "\"";
            Some(Document { text, etag })
        }
        Err(error) => {
            tracing::error!(%error, "the description of the interface can't be written");
            None
        }
    }
}

fn document() -> OpenApi {
    let mut shapes = Shapes::default();
    shapes.of::<RefusalBody>();
    let mut paths = Paths::new();
    for entry in &TABLE {
        if let Some((method, operation)) = describe(entry, &mut shapes) {
            paths.add_path_operation(entry.path(), vec![method], operation);
        }
    }
    let mut components = headers::define(ComponentsBuilder::new()).schemas_from_iter(shapes.0);
    for (scope, description) in [
        (Scope::Admin, "The admin token of `ROOT/control/tokens.json`."),
        (Scope::Member, "The member token of `ROOT/control/tokens.json`."),
        (Scope::Query, "The query token of `ROOT/control/tokens.json`; it only reads."),
        (Scope::Machine, "A machine's own token, as `warmhold token issue MACHINE` prints it."),
    ] {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some(description.to_owned());
        components = components.security_scheme(name(scope), SecurityScheme::Http(scheme));
    }
    let about = |name, description| TagBuilder::new().name(name).description(Some(description)).build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Warmhold")
                .version(env!("CARGO_PKG_VERSION"))
                .license(Some(LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build()))
                .description(Some(
                    "Warm worker pods, leased with fencing, and replays of tests in them. Every refusal is an object with \
                     a stable code in `error`. Paths are taken as they are sent; what isn't listed here is 404 \
                     `not-found`, whatever the method and the token.",
                )),
        )
        .tags(Some([
            about("daemon", "Whether it serves, and how."),
            about("resources", "A registry of what is where."),
            about("ports", "Leases of ports, for resources."),
            about("leases of workers", "Workers that clients register, lease and give back."),
            about("standing workers", "The daemon's own workers."),
            about("replays", "Tests, run in a standing worker."),
            about("policies", "The components that decide."),
        ]))
        .paths(paths)
        .components(Some(components.build()))
        .build()
}

fn describe(entry: &Entry, shapes: &mut Shapes) -> Option<(HttpMethod, Operation)> {
    let method = match entry.method {
        Method::GET => HttpMethod::Get,
        Method::POST => HttpMethod::Post,
        Method::DELETE => HttpMethod::Delete,
        _ => return None,
    };
    let route = entry.sample()?;
    let mut told = routes::told(&route, shapes);
    // The server's own, on any connection.
    told.refusals = told
        .refusals
        .with(408, &["request-timeout"])
        .with(431, &["head-too-large"])
        .with(503, &["too-many-connections", "closing"]);
    let access = route.access();
    let mut security = Vec::new();
    if access == Access::Local {
        security.push(SecurityRequirement::default());
    }
    if access != Access::Anyone {
        told.refusals = told.refusals.with(401, &["unauthorized"]).with(503, &["tokens-unreadable"]);
        let admitted = [Scope::Admin, Scope::Member, Scope::Query, Scope::Machine];
        let admitted = admitted.into_iter().filter(|scope| access.admits(*scope));
        if admitted.clone().count() < 4 {
            told.refusals = told.refusals.with(403, &["forbidden"]);
        }
        let callers = admitted.filter(|scope| told.callers.is_none_or(|callers| callers.contains(scope)));
        security.extend(callers.map(|scope| SecurityRequirement::new(name(scope), [""; 0])));
    }
    if route.needs_primary() {
        told.refusals = told.refusals.with(409, &["not-primary"]);
    }
    let operation =
        told.operation().operation_id(Some(operation_id(&route))).tag(routes::tag(&route)).securities(Some(security));
    Some((method, operation.build()))
}

fn name(scope: Scope) -> &'static str {
    match scope {
        Scope::Admin => "admin",
        Scope::Member => "member",
        Scope::Query => "query",
        Scope::Machine => "machine",
    }
}

/// The route's name, as programs write names.
fn operation_id(route: &Route) -> String {
    let mut id = String::new();
    for word in route.name().split('-') {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if !id.is_empty() => id.extend(first.to_uppercase()),
            Some(first) => id.push(first),
            None => {}
        }
        id.push_str(letters.as_str());
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::{BTreeMap, BTreeSet};

    fn written() -> Value {
        serde_json::from_slice(&write().unwrap().text).unwrap()
    }

    fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
        document["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
            let operations = item.as_object().unwrap().iter();
            operations.map(move |(method, operation)| (format!("{} {path}", method.to_uppercase()), operation))
        })
    }

    #[test]
    fn what_is_described_is_what_is_served() {
        let document = written();
        let described: BTreeSet<String> = operations(&document).map(|(operation, _)| operation).collect();
        let served: BTreeSet<String> = TABLE.iter().map(|entry| format!("{} {}", entry.method, entry.path())).collect();
        assert_eq!(described, served);
        assert_eq!(served.len(), TABLE.len(), "two routes have one path");
    }

    #[test]
    fn each_operation_is_whole() {
        let document = written();
        let mut ids = BTreeSet::new();
        for (operation, told) in operations(&document) {
            assert!(ids.insert(told["operationId"].as_str().unwrap()), "{operation}: its id is another one's");
            assert!(!told["summary"].as_str().unwrap().is_empty(), "{operation}");
            let (_, path) = operation.split_once(' ').unwrap();
            let in_path = path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
            let parameters = told["parameters"].as_array().cloned().unwrap_or_default();
            let described = parameters.iter().filter(|parameter| parameter["in"] == "path");
            let described: Vec<&str> = described.map(|parameter| parameter["name"].as_str().unwrap()).collect();
            assert_eq!(described, in_path.collect::<Vec<_>>(), "{operation}");
            let answers = told["responses"].as_object().unwrap();
            assert!(answers.keys().any(|status| status.starts_with('2')), "{operation}");
            assert_eq!(told["security"].as_array().unwrap().is_empty(), !answers.contains_key("401"), "{operation}");
        }
    }

    #[test]
    fn links_lead_somewhere() {
        let document = written();
        let parameters: BTreeMap<&str, Vec<&str>> = operations(&document)
            .map(|(_, told)| {
                let parameters = told["parameters"].as_array().map_or(&[][..], Vec::as_slice);
                let names = parameters.iter().map(|parameter| parameter["name"].as_str().unwrap());
                (told["operationId"].as_str().unwrap(), names.collect())
            })
            .collect();
        let mut count = 0;
        for (operation, told) in operations(&document) {
            for link in told["responses"]["200"]["links"].as_object().into_iter().flat_map(|links| links.values()) {
                let known = parameters.get(link["operationId"].as_str().unwrap()).unwrap();
                let given: Vec<&str> = link["parameters"].as_object().unwrap().keys().map(String::as_str).collect();
                assert!(given.iter().all(|name| known.contains(name)), "{operation}: {link}");
                count += 1;
            }
        }
        assert!(count > 5, "{count}");
    }

    #[test]
    fn what_is_referred_to_is_there() {
        fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = written();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }
}
