//! Lists: filters, order, and many rows.

use super::*;

async fn ids(running: &Running, query: &str) -> Vec<String> {
    let path = format!("/v1/resources{query}");
    let reply = ask(running.address, "GET", &path).with(&running.token("query")).send().await;
    assert_eq!((reply.status, reply.whole), (200, true), "{path}");
    let list = reply.json();
    list["resources"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn filters_and_order() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    for (id, kind, machine, name) in
        [("c", "image", "m1", "x"), ("a", "instance", "m2", "x"), ("b", "instance", "m1", "n ü")]
    {
        let mut body = record(id);
        (body["kind"], body["machine"], body["name"]) = (json!(kind), json!(machine), json!(name));
        assert_eq!(post(&running, &member, "/v1/resources/register", body).await.status, 200);
    }
    // Written again, a row keeps its place.
    assert_eq!(post(&running, &member, "/v1/resources/c/heartbeat", json!({})).await.status, 200);
    assert_eq!(ids(&running, "").await, ["c", "a", "b"]);
    assert_eq!(ids(&running, "?kind=instance").await, ["a", "b"]);
    assert_eq!(ids(&running, "?machine=m1&name=x").await, ["c"]);
    assert_eq!(ids(&running, "?name=n+%C3%BC&kind=").await, ["b"]);
    assert_eq!(ids(&running, "?name=x&name=n").await, ["c", "a"], "the first one counts");
    assert!(ids(&running, "?kind=bogus").await.is_empty());
    assert!(ids(&running, "?machine=M1").await.is_empty());
}

#[tokio::test]
async fn a_long_list_comes_whole() {
    let (_root, running) = serving().await;
    let member = running.token("member");
    let registered = futures::future::join_all((0..600).map(|n| {
        let (running, member) = (&running, &member);
        async move { post(running, member, "/v1/resources/register", record(&format!("r{n:03}"))).await.status }
    }));
    assert!(registered.await.iter().all(|status| *status == 200));
    for (query, expected) in [("", 600), ("?kind=instance", 600), ("?kind=image", 0)] {
        let mut found = ids(&running, query).await;
        assert_eq!(found.len(), expected);
        found.sort();
        found.dedup();
        assert_eq!(found.len(), expected, "each once");
    }
    for count in [256, 512] {
        let machine = format!("exactly-{count}");
        let registered = futures::future::join_all((0..count).map(|n| {
            let (running, member, machine) = (&running, &member, &machine);
            async move {
                let mut body = record(&format!("{machine}-{n}"));
                body["machine"] = json!(machine);
                post(running, member, "/v1/resources/register", body).await.status
            }
        }));
        assert!(registered.await.iter().all(|status| *status == 200));
        assert_eq!(ids(&running, &format!("?machine={machine}")).await.len(), count);
    }
}
