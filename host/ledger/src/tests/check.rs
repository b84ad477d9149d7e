//! What a look at a ledger finds.

use super::support::*;
use super::transfer::{faults, lived_in, owned, sound};
use crate::*;
use rusqlite::Connection;
use std::path::Path;

#[tokio::test]
async fn a_check_finds_what_was_done_to_the_file() {
    let worker = "id = 'pod-worker-lease:w0'";
    for (sql, expected) in [
        ("DROP INDEX row_seq".to_owned(), "schema: the index row_seq is missing"),
        (
            "DROP INDEX row_name; CREATE INDEX row_name ON row (owner)".to_owned(),
            "schema: the index row_name isn't as it was made",
        ),
        (
            "CREATE TRIGGER t AFTER UPDATE ON row BEGIN DELETE FROM record; END".to_owned(),
            "schema: the trigger t doesn't belong",
        ),
        ("UPDATE row SET kind = 'cat' WHERE id = 'z'".to_owned(), "rows: \"z\": "),
        (
            "UPDATE row SET attrs = '{\"a\": 1}' WHERE id = 'z'".to_owned(),
            "rows: \"z\": attrs aren't in their canonical form",
        ),
        ("UPDATE row SET attrs = '{\"a\":1,\"a\":2}' WHERE id = 'z'".to_owned(), "rows: \"z\": attrs: "),
        ("UPDATE row SET observed_at = -1 WHERE id = 'z'".to_owned(), "rows: \"z\": "),
        (
            format!("UPDATE row SET attrs = replace(attrs, '\"generation\":1', '\"generation\":0') WHERE {worker}"),
            "attrs.generation is 0",
        ),
        (format!("UPDATE row SET attrs = replace(attrs, 'leased', 'idle') WHERE {worker}"), "is left of a lease"),
        (format!("UPDATE row SET ttl_ms = 1e9 WHERE {worker}"), "ttlMs isn't a whole number"),
        ("UPDATE row SET position = 99 WHERE id = 'z'".to_owned(), "to 99, and the counter is at 11"),
        ("UPDATE row SET seq = 99 WHERE id = 'z'".to_owned(), "to 99, and the counter is at"),
        ("UPDATE row SET seq = (SELECT max(seq) FROM row)".to_owned(), "is the number of 9 things"),
        ("UPDATE counter SET seq = 3".to_owned(), "and the counter is at 3"),
        ("DELETE FROM counter".to_owned(), "numbers: there are 0 counters"),
        ("UPDATE counter SET forgotten = 1000".to_owned(), "removals are forgotten up to 1000"),
        ("INSERT INTO tombstone SELECT max(seq), 'gone' FROM row".to_owned(), "is the number of 2 things"),
        (
            "UPDATE counter SET seq = seq + 1; INSERT INTO tombstone SELECT seq, 'z' FROM counter".to_owned(),
            "and still there",
        ),
        ("INSERT INTO tombstone VALUES (0, 'pod-worker-lease:x')".to_owned(), "a worker was removed"),
        ("UPDATE record SET body = '{'".to_owned(), "records: replay \"r\": "),
    ] {
        let case = Case::new();
        lived_in(&case).await.close().await;
        sound(&case.path());
        Connection::open(case.path()).unwrap().execute_batch(&sql).unwrap();
        let faults = faults(&case.path());
        assert!(faults.contains(expected), "{sql}: {faults}");
    }
}

#[tokio::test]
async fn a_check_finds_torn_pages_and_refuses_what_is_no_ledger() {
    let case = Case::new();
    let ledger = case.open();
    for n in 0..200 {
        ledger.done(owned(plain(instance(&format!("i{n}"))))).await;
    }
    ledger.close().await;
    assert_eq!(sound(&case.path()).rows, 200);
    let mut file = std::fs::read(case.path()).unwrap();
    let end = file.len();
    file[end - 4096..].fill(0xa5);
    std::fs::write(case.path(), &file).unwrap();
    let found = faults(&case.path());
    assert!(found.contains("integrity: "), "{found}");
    std::fs::write(case.path(), b"not a database, but long enough to be looked at").unwrap();
    assert_eq!(check(&case.path(), &Bounds::default()).unwrap_err().code(), "ledger-damaged");
    std::fs::remove_file(case.path()).unwrap();
    assert_eq!(check(&case.path(), &Bounds::default()).unwrap_err().code(), "ledger-io");
    std::fs::write(case.path(), b"").unwrap();
    let empty = faults(&case.path());
    assert!(empty.contains("schema: the file is empty"), "{empty}");
    for special in [case.folder.path(), Path::new("/dev/null")] {
        assert_eq!(check(special, &Bounds::default()).unwrap_err().code(), "ledger-io");
    }
    Connection::open(case.path()).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert_eq!(check(&case.path(), &Bounds::default()).unwrap_err().code(), "ledger-foreign");
}
