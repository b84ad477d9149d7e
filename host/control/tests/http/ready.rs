//! Whether the daemon is ready, and what it does when it is to end. A disk that is full has a test of its own.

use super::*;

async fn ready(running: &Running) -> Reply {
    ask(running.address, "GET", "/readyz").send().await
}

#[tokio::test]
async fn a_primary_that_is_required_must_be_known() {
    for required in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("primary.json");
        let setup = Setup { document: Document::File(document.clone()), require_primary: required, ..Setup::default() };
        let running = Running::start(&folder.path().join("root"), setup).await;
        let unknown = ready(&running).await;
        if required {
            assert_eq!(unknown.refusal(), (503, "primary-unknown".into()));
        } else {
            assert_eq!(unknown.status, 200);
        }
        // Another machine's: what may be asked of this one is answered.
        std::fs::write(&document, r#"{"holder":"m2","generation":1,"state":"held","renewedAt":1}"#).unwrap();
        assert_eq!(ready(&running).await.status, 200);
        std::fs::write(&document, "{").unwrap();
        assert_eq!(ready(&running).await.status, if required { 503 } else { 200 });
    }
}

#[tokio::test]
async fn a_server_that_is_to_end_begins_no_change() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    assert_eq!(post(&running, &member, "/v1/resources/register", record("i1")).await.status, 200);
    running.control.stop();
    assert_eq!(ready(&running).await.refusal(), (503, "closing".into()));
    let refused = post(&running, &member, "/v1/resources/register", record("i2")).await;
    assert_eq!(refused.refusal(), (503, "closing".into()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    // What runs still needs to be asked about, and workers look whether their host is there.
    assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200);
    let list = ask(running.address, "GET", "/v1/resources").with(&member).send().await.json();
    assert_eq!(list["resources"].as_array().unwrap().len(), 1);
}
