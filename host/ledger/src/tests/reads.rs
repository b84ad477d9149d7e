//! Reads wait for nobody, and show what is durable.

use super::gate::gated;
use super::support::*;
use crate::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_read_goes_past_a_write_that_stands_still() {
    let case = Case::new();
    let (ledger, gate) = gated(&case);
    let before = ledger.done(plain(instance("i"))).await;
    let held = gate.arm();
    let beating = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.done(plain(beat("i", "{\"new\":true}"))).await }
    });
    held.entered();
    // The writer has the lock and doesn't move.
    assert_eq!(ledger.row("i").unwrap().as_ref(), Some(before.as_ref()));
    assert_eq!(ledger.rows(&RowFilter::default(), None, 10).unwrap().rows, [before.as_ref().clone()]);
    assert_eq!(ledger.list_records("k", None, 10).unwrap(), []);
    held.go();
    let after = beating.await.unwrap();
    assert_eq!(ledger.row("i").unwrap().as_ref(), Some(after.as_ref()));
    ledger.close().await;
}

#[tokio::test]
async fn pages_follow_the_order_of_registration() {
    let case = Case::new();
    let ledger = case.open();
    for id in ["z", "m", "a", "k", "b"] {
        ledger.done(plain(instance(id))).await;
    }
    ledger.done(plain(port("elsewhere"))).await;
    let read = |filter: &RowFilter, limit: usize| {
        let (mut ids, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let page = ledger.rows(filter, after, limit).unwrap();
            pages += 1;
            ids.extend(page.rows.into_iter().map(|row| row.id));
            after = page.next;
            if after.is_none() {
                return (ids.join(" "), pages);
            }
        }
    };
    let all = RowFilter::default();
    assert_eq!(read(&all, 100), ("z m a k b port-lease:31450".to_owned(), 1));
    assert_eq!(read(&all, 2), ("z m a k b port-lease:31450".to_owned(), 4));
    // A row that is written again keeps its place; one that comes back has a new one.
    ledger.done(plain(instance("m"))).await;
    ledger.apply(plain(Operation::Remove { id: "z".into() })).await.unwrap();
    ledger.done(plain(instance("z"))).await;
    assert_eq!(read(&all, 4).0, "m a k b port-lease:31450 z");
    let ports = RowFilter { kind: Some(Kind::PortLease), ..RowFilter::default() };
    assert_eq!(read(&ports, 10).0, "port-lease:31450");
    let here = RowFilter { machine: Some("local".into()), name: Some("svc".into()), ..RowFilter::default() };
    assert_eq!(read(&here, 3).0, "m a k b z");
    let nobody = RowFilter { machine: Some("' OR 1=1".into()), ..RowFilter::default() };
    assert_eq!(read(&nobody, 3).0, "");
    ledger.close().await;
}

#[tokio::test]
async fn every_filter_is_answered_by_an_index_in_order() {
    let case = Case::new();
    case.open().close().await;
    let connection = rusqlite::Connection::open(case.path()).unwrap();
    let plan = |filter: &RowFilter| -> String {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {}", filter.sql())).unwrap();
        // The values don't matter for the plan: none are bound.
        let mut lines = statement.raw_query();
        let mut plan = String::new();
        while let Some(line) = lines.next().unwrap() {
            plan += &line.get::<_, String>(3).unwrap();
            plan += "; ";
        }
        plan
    };
    let text = || Some("x".to_owned());
    let kind = Some(Kind::PodWorkerLease);
    for (kind, machine, name, index) in [
        (kind, None, None, "row_kind "),
        (None, text(), None, "row_machine "),
        (kind, text(), None, "row_kind_machine "),
        (None, None, text(), "row_name "),
        (kind, None, text(), "row_name "),
        (None, text(), text(), "row_name "),
        (kind, text(), text(), "row_name "),
    ] {
        let plan = plan(&RowFilter { kind, machine, name });
        assert!(plan.contains(&format!("USING INDEX {index}")), "{plan}");
        assert!(plan.contains("rowid>?") && !plan.contains("SORT") && !plan.contains("SCAN"), "{plan}");
    }
    assert!(plan(&RowFilter::default()).contains("USING INTEGER PRIMARY KEY (rowid>?)"));
}

#[tokio::test]
async fn a_row_that_moves_is_found_where_it_is() {
    let case = Case::new();
    let ledger = case.open();
    let draft = |kind, machine: &str, name: &str| {
        Operation::Register(RowDraft {
            id: "i".into(),
            kind,
            machine: machine.into(),
            name: name.into(),
            endpoint: None,
            attrs: "{}".into(),
            ttl_ms: 1.0,
        })
    };
    let found = |kind, machine: &str, name: &str| {
        let (kind, machine, name) = (Some(kind), Some(machine.to_owned()), Some(name.to_owned()));
        let filters = [
            RowFilter { kind, machine: machine.clone(), name: name.clone() },
            RowFilter { kind, machine: machine.clone(), name: None },
            RowFilter { kind, machine: None, name: None },
            RowFilter { kind: None, machine, name: None },
            RowFilter { kind: None, machine: None, name },
        ];
        filters.map(|filter| ledger.rows(&filter, None, 9).unwrap().rows.len())
    };
    ledger.done(plain(draft(Kind::Instance, "a", "n"))).await;
    assert_eq!(found(Kind::Instance, "a", "n"), [1; 5]);
    ledger.done(plain(draft(Kind::Image, "b", "o"))).await;
    assert_eq!(found(Kind::Instance, "a", "n"), [0; 5]);
    assert_eq!(found(Kind::Image, "b", "o"), [1; 5]);
    ledger.done(plain(beat("i", "{\"x\":1}"))).await;
    assert_eq!(found(Kind::Image, "b", "o"), [1; 5]);
    ledger.close().await;
}

#[tokio::test]
async fn a_ledger_of_the_first_schema_is_brought_up_to_date() {
    let case = Case::new();
    let ledger = case.open();
    ledger.done(plain(instance("i"))).await;
    ledger.close().await;
    rusqlite::Connection::open(case.path())
        .unwrap()
        .execute_batch(
            "DROP INDEX row_kind; DROP INDEX row_machine; DROP INDEX row_kind_machine; DROP INDEX row_name; \
             PRAGMA user_version = 1",
        )
        .unwrap();
    let ledger = case.open();
    let instances = RowFilter { kind: Some(Kind::Instance), ..RowFilter::default() };
    assert_eq!(ledger.rows(&instances, None, 9).unwrap().rows.len(), 1);
    ledger.close().await;
    assert_eq!(Ledger::inspect(&case.path()).unwrap().unwrap().schema, 2);
}

#[tokio::test]
async fn the_view_pages_and_finds() {
    use crate::mirror::Mirror;
    use std::sync::Arc;
    let mut mirror = Mirror::default();
    let case = Case::new();
    let ledger = case.open();
    for (position, id) in ["w3", "w1", "w2"].into_iter().enumerate() {
        mirror.put(ledger.done(worker(worker_draft(id), machine("m1"))).await, position as u64 + 1);
    }
    mirror.put(ledger.done(plain(instance("i"))).await, 9);
    let names = |rows: Vec<Arc<Row>>| rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!(names(mirror.page(Kind::PodWorkerLease, None, 2)), "w1 w2");
    assert_eq!(names(mirror.page(Kind::PodWorkerLease, Some("pod-worker-lease:w2"), 2)), "w3");
    assert_eq!(names(mirror.page(Kind::Image, None, 2)), "");
    assert_eq!(names(mirror.idle_workers(&key(), None, 1_000_000, 2)), "w3 w1");
    assert_eq!(names(mirror.idle_workers(&key(), Some("m2"), 1_000_000, 2)), "");
    assert_eq!(names(mirror.idle_workers(&key(), None, 1_060_000, 2)), "");
    // From the future: age 0.
    assert_eq!(names(mirror.idle_workers(&key(), Some("m1"), 0, 9)), "w3 w1 w2");
    mirror.remove("pod-worker-lease:w3");
    assert_eq!(names(mirror.idle_workers(&key(), None, 1_000_000, 9)), "w1 w2");
    assert!(mirror.get("pod-worker-lease:w3").is_none() && mirror.get("i").is_some());
    ledger.close().await;
}
