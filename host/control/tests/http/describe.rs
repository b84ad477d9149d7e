//! The interface's own description.

use super::*;

const PATH: &str = "/v1/openapi.json";

#[tokio::test]
async fn the_description_is_for_anyone() {
    let (_root, running) = serving().await;
    let reply = ask(running.address, "GET", PATH).send().await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
    assert!(reply.header("x-request-id").is_some() && reply.header("x-primary-generation").is_some());
    let document = reply.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."), "{}", document["openapi"]);
    assert!(document["paths"][PATH]["get"].is_object(), "it describes itself");
    // Known paths alone are described, and a token is no help to find others.
    let member = running.token("member");
    for (method, path) in [("POST", PATH), ("HEAD", PATH), ("GET", "/v1/openapi.json/"), ("GET", "/openapi.json")] {
        assert_eq!(ask(running.address, method, path).with(&member).send().await.status, 404, "{method} {path}");
    }
}

#[tokio::test]
async fn the_description_is_sent_once() {
    let (_root, running) = serving().await;
    let first = ask(running.address, "GET", PATH).send().await;
    let etag = first.header("etag").unwrap();
    assert_eq!(first.header("cache-control"), Some("no-cache"));
    for known in [etag.to_owned(), format!("\"other\", W/{etag}"), "*".to_owned()] {
        let again = ask(running.address, "GET", PATH).header("if-none-match", &known).send().await;
        assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, Some(etag)), "{known}");
    }
    for other in ["\"other\"", "", etag.trim_matches('"')] {
        let again = ask(running.address, "GET", PATH).header("if-none-match", other).send().await;
        assert_eq!((again.status, &again.body), (200, &first.body), "{other:?}");
    }
}
