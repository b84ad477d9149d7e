//! Copies and looks while the ledger is in use.

use super::support::*;
use super::transfer::{lived_in, owned, sound, text};
use crate::transfer::Target;
use crate::*;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test]
async fn who_looks_holds_up_nobody() {
    let case = Case::new();
    let ledger = lived_in(&case).await;
    let still = crate::still::Still::open(&case.path()).unwrap();
    let rows = || still.connection().query_row("SELECT count(*) FROM row", [], |row| row.get::<_, i64>(0)).unwrap();
    let before = rows();
    ledger.done(owned(plain(instance("meanwhile")))).await;
    // Another daemon may even start, and all that it writes is behind what is looked at.
    let second = case.open();
    second.done(owned(plain(instance("and-more")))).await;
    assert_eq!(rows(), before);
    drop(still);
    assert_eq!(sound(&case.path()).rows, u64::try_from(before).unwrap() + 2);
    second.close().await;
    ledger.close().await;
}

#[tokio::test]
async fn a_look_leaves_nothing_behind() {
    let case = Case::new();
    lived_in(&case).await.close().await;
    let before = bytes(&case.path());
    sound(&case.path());
    text(&case.path());
    let to = case.folder.path().join("copy");
    backup(&case.path(), &to, false).unwrap();
    sound(&to);
    text(&to);
    assert!(bytes(&case.path()) == before, "the ledger's files have changed");
    let mut names: Vec<_> =
        std::fs::read_dir(case.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["control", "copy"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_of_one_moment_however_busy_it_is() {
    let case = Case::new();
    let ledger = case.open();
    ledger.done(owned(plain(instance("last")))).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (ledger, stop) = (ledger.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                ledger.done(owned(plain(instance(&format!("c{n}"))))).await;
                ledger.done(owned(plain(beat("last", &format!("{{\"n\":{n}}}"))))).await;
                n += 1;
            }
            n
        })
    };
    let path = case.path();
    let folder = case.folder.path().to_owned();
    let copies = tokio::task::spawn_blocking(move || {
        let mut copies = Vec::new();
        for n in 0..8 {
            copies.push(text(&path));
            let to = folder.join(format!("backup{n}"));
            let done = backup(&path, &to, false).unwrap();
            assert_eq!(sound(&to).rows, done.rows);
            assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
            copies.push(text(&to));
            sound(&path);
        }
        copies
    })
    .await
    .unwrap();
    stop.store(true, Ordering::SeqCst);
    let written = writing.await.unwrap();
    let mut seen = 0;
    for copy in &copies {
        let rows: Vec<Value> = serde_json::from_str(copy).unwrap();
        let count = rows.len() - 1;
        for (n, row) in rows[1..].iter().enumerate() {
            assert_eq!(row["id"], json!(format!("c{n}")), "a row is missing in between");
        }
        // `last` is written after each row, so it tells of all rows or of all but one.
        let told = rows[0]["attrs"]["n"].as_u64().map_or(0, |n| n as usize + 1);
        assert!(told == count || told + 1 == count, "{told} and {count}");
        assert!(count >= seen, "a later copy holds less");
        seen = count;
    }
    assert!(written >= seen);
    ledger.close().await;
    // A copy is a ledger.
    let restored = Case::new();
    std::fs::create_dir(restored.path().parent().unwrap()).unwrap();
    std::fs::copy(case.folder.path().join("backup7"), restored.path()).unwrap();
    let ledger = restored.open();
    ledger.done(owned(plain(beat("last", "{\"restored\":true}")))).await;
    ledger.close().await;
    sound(&restored.path());
}

#[tokio::test]
async fn a_backup_replaces_nothing_unasked_and_never_a_ledger() {
    let case = Case::new();
    let ledger = lived_in(&case).await;
    let to = case.folder.path().join("copy");
    let code = |to: &Path, replace| backup(&case.path(), to, replace).map_err(|error| error.code());
    std::fs::write(&to, b"precious").unwrap();
    assert_eq!(code(&to, false), Err("file-exists"));
    assert_eq!(std::fs::read(&to).unwrap(), b"precious");
    code(&to, true).unwrap();
    sound(&to);
    assert_eq!(code(&case.path(), true), Err("file-in-use"));
    let link = case.folder.path().join("link");
    std::os::unix::fs::symlink(case.path(), &link).unwrap();
    assert_eq!(code(&link, true), Err("file-in-use"));
    let other = Case::new();
    let running = other.open();
    assert_eq!(code(&other.path(), true), Err("file-in-use"));
    running.close().await;
    assert_eq!(code(case.folder.path(), true), Err("file-unwritable"));
    assert_eq!(code(Path::new("/proc/no/such/place"), false), Err("file-unwritable"));
    assert_eq!(backup(Path::new("/no/ledger"), &to, true).unwrap_err().code(), "ledger-absent");
    let out = case.folder.path().join("out.json");
    export(&case.path(), Target::File { path: &out, replace: false }).unwrap();
    assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), text(&case.path()));
    let again = export(&case.path(), Target::File { path: &out, replace: false });
    assert_eq!(again.unwrap_err().code(), "file-exists");
    export(&case.path(), Target::File { path: &out, replace: true }).unwrap();
    let left: Vec<_> = std::fs::read_dir(case.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".tmp"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    ledger.close().await;
}
