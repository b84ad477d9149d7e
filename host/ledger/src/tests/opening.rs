//! What may be opened, and what is left as it is.

use super::support::*;
use crate::*;
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A ledger with some rows, whose log still holds them: it wasn't closed in order.
async fn left_open(case: &Case) -> Vec<(String, Vec<u8>)> {
    let ledger = case.open();
    for n in 0..20 {
        ledger.done(plain(instance(&format!("i{n}")))).await;
    }
    let copy = case.folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for suffix in ["", "-wal"] {
        let name = format!("ledger.sqlite3{suffix}");
        fs::copy(case.path().with_file_name(&name), copy.join(&name)).unwrap();
    }
    ledger.close().await;
    fs::remove_dir_all(case.folder.path().join("control")).unwrap();
    fs::rename(&copy, case.folder.path().join("control")).unwrap();
    let files = bytes(&case.path());
    assert!(files.iter().any(|(name, bytes)| name.ends_with("-wal") && bytes.len() > 4096));
    files
}

fn refused(case: &Case) -> (&'static str, String) {
    match Ledger::open(&case.path(), case.options()) {
        Ok(_) => panic!("it was opened"),
        Err(error) => (error.code(), error.to_string()),
    }
}

/// But for the turnstile, which has no bytes.
fn assert_untouched(case: &Case, before: &[(String, Vec<u8>)]) {
    let after: Vec<_> = bytes(&case.path()).into_iter().filter(|(name, _)| !name.ends_with("-turn")).collect();
    let before: Vec<_> = before.iter().filter(|(name, _)| !name.ends_with("-turn")).cloned().collect();
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    assert!(after == before, "the files' bytes have changed");
}

#[tokio::test]
async fn files_are_private_and_loose_ones_are_tightened() {
    let case = Case::new();
    let ledger = case.open();
    ledger.done(plain(instance("i"))).await;
    let folder = case.path().parent().unwrap().to_owned();
    let private = || {
        assert_eq!(mode(&folder), 0o700);
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        for file in &files {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        files.len()
    };
    assert_eq!(private(), 4, "the ledger, its log, its shared memory, the turnstile");
    ledger.close().await;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let ledger = case.open();
    ledger.done(plain(instance("j"))).await;
    private();
    ledger.close().await;
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    let case = Case::new();
    left_open(&case).await;
    let ledger = case.open();
    assert_eq!(ledger.rows(&RowFilter::default(), None, 100).unwrap().rows.len(), 20);
    ledger.done(plain(beat("i7", "{}"))).await;
    ledger.close().await;
    // After an orderly end the file alone is the whole ledger.
    fs::remove_file(case.path().with_file_name("ledger.sqlite3-wal")).unwrap_or_default();
    let ledger = case.open();
    assert_eq!(ledger.rows(&RowFilter::default(), None, 100).unwrap().rows.len(), 20);
    ledger.close().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    for newer_in_log in [false, true] {
        let case = Case::new();
        let ledger = case.open();
        ledger.done(plain(instance("i"))).await;
        ledger.close().await;
        let writer = Connection::open(case.path()).unwrap();
        writer.pragma_update(None, "user_version", 99).unwrap();
        let copy = case.folder.path().join("copy");
        fs::create_dir(&copy).unwrap();
        for suffix in ["", "-wal"] {
            // A copy, since SQLite would fold the log into the file when the connection is closed.
            let name = format!("ledger.sqlite3{suffix}");
            fs::copy(case.path().with_file_name(&name), copy.join(&name)).unwrap();
        }
        drop(writer);
        if newer_in_log {
            fs::remove_dir_all(case.folder.path().join("control")).unwrap();
            fs::rename(&copy, case.folder.path().join("control")).unwrap();
        }
        let before = bytes(&case.path());
        let (code, message) = refused(&case);
        assert_eq!(code, "ledger-newer");
        assert!(message.contains("schema 99") && message.contains("newer"), "{message}");
        assert_untouched(&case, &before);
    }
}

type Damage = fn(&mut Vec<u8>);

#[tokio::test]
async fn a_damaged_file_is_refused_and_left_alone() {
    // Each of these is done to a file whose log still holds commits.
    let damages: [(&str, Damage); 4] = [
        ("no database", |bytes| bytes[..16].copy_from_slice(b"not a database!!")),
        ("pages overwritten", |bytes| bytes[4096..].fill(0xa5)),
        ("cut", |bytes| bytes.truncate(5000)),
        ("zeroes", |bytes| bytes.fill(0)),
    ];
    for (what, damage) in damages {
        let case = Case::new();
        left_open(&case).await;
        // Fold the log into the file, so that the damage is not hidden by it, and keep a log with one commit.
        let ledger = case.open();
        ledger.close().await;
        let ledger = case.open();
        ledger.done(plain(instance("in-log"))).await;
        let wal = fs::read(case.path().with_file_name("ledger.sqlite3-wal")).unwrap();
        assert!(!wal.is_empty());
        let mut file = fs::read(case.path()).unwrap();
        ledger.close().await;
        damage(&mut file);
        fs::remove_dir_all(case.path().parent().unwrap()).unwrap();
        fs::create_dir(case.path().parent().unwrap()).unwrap();
        fs::write(case.path(), &file).unwrap();
        fs::write(case.path().with_file_name("ledger.sqlite3-wal"), &wal).unwrap();
        let before = bytes(&case.path());
        let (code, message) = refused(&case);
        assert_eq!(code, "ledger-damaged", "{what}: {message}");
        assert!(message.contains("left as it is"), "{message}");
        assert_untouched(&case, &before);
    }
}

#[tokio::test]
async fn rows_that_make_no_sense_are_damage() {
    for sql in [
        "UPDATE row SET attrs = '[1]'",
        "UPDATE row SET attrs = '{\"a\":1,\"a\":2}'",
        "UPDATE row SET kind = 'unheard-of'",
        "UPDATE row SET observed_at = -1",
        "PRAGMA user_version = -3",
    ] {
        let case = Case::new();
        let ledger = case.open();
        ledger.done(plain(instance("i"))).await;
        ledger.close().await;
        Connection::open(case.path()).unwrap().execute_batch(sql).unwrap();
        let before = bytes(&case.path());
        assert_eq!(refused(&case).0, "ledger-damaged", "{sql}");
        assert_untouched(&case, &before);
    }
}

#[tokio::test]
async fn another_programs_database_is_refused_and_an_empty_file_is_a_new_ledger() {
    let case = Case::new();
    fs::create_dir(case.path().parent().unwrap()).unwrap();
    Connection::open(case.path()).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let before = bytes(&case.path());
    assert_eq!(refused(&case).0, "ledger-foreign");
    assert_untouched(&case, &before);
    fs::write(case.path(), b"").unwrap();
    let ledger = case.open();
    ledger.done(plain(instance("i"))).await;
    ledger.close().await;
}

#[tokio::test]
async fn what_the_system_refuses_is_told() {
    let case = Case::new();
    fs::write(case.folder.path().join("control"), b"a file").unwrap();
    let (code, message) = refused(&case);
    assert!(code == "ledger-io" && message.contains("control"), "{code} {message}");
    // A file system that nobody can make a ledger on.
    let Err(error) = Ledger::open(Path::new("/proc/self/ledger/x.sqlite3"), case.options()) else { panic!() };
    assert_eq!(error.code(), "ledger-io");
}

#[tokio::test]
async fn many_may_open_it_at_once() {
    let case = Case::new();
    let openers: Vec<_> = (0..4)
        .map(|_| {
            let (path, options) = (case.path(), case.options());
            std::thread::spawn(move || Ledger::open(&path, options).unwrap())
        })
        .collect();
    let ledgers: Vec<_> = openers.into_iter().map(|opener| opener.join().unwrap()).collect();
    for (n, ledger) in ledgers.iter().enumerate() {
        ledger.done(plain(instance(&format!("i{n}")))).await;
    }
    for ledger in ledgers {
        assert_eq!(ledger.rows(&RowFilter::default(), None, 10).unwrap().rows.len(), 4);
        ledger.close().await;
    }
}

#[tokio::test]
async fn the_path_may_have_any_name() {
    use std::os::unix::ffi::OsStringExt;
    let case = Case::new();
    for name in [&b"a b?c#d%20e&f=g"[..], b"\xfc\xe4 not UTF-8", "\u{6f22}".as_bytes(), b"file:x?mode=memory"] {
        let path = case.folder.path().join(std::ffi::OsString::from_vec(name.to_vec())).join("l?x.db");
        let ledger = Ledger::open(&path, case.options()).unwrap();
        ledger.done(plain(instance("i"))).await;
        ledger.close().await;
        assert!(path.exists(), "{}", path.display());
        let ledger = Ledger::open(&path, case.options()).unwrap();
        assert!(ledger.row("i").unwrap().is_some());
        ledger.close().await;
    }
}

#[tokio::test]
async fn a_look_changes_nothing_and_needs_no_pause() {
    let case = Case::new();
    assert_eq!(Ledger::inspect(&case.path()).unwrap(), None);
    assert!(!case.path().parent().unwrap().exists());
    let ledger = case.open();
    ledger.done(plain(instance("i"))).await;
    ledger.put_record("k", "r", Expect::Any, 1.into()).await.unwrap();
    let found = Inspection { schema: 2, rows: 1, records: 1 };
    assert_eq!(Ledger::inspect(&case.path()).unwrap(), Some(found));
    ledger.done(plain(beat("i", "{}"))).await;
    ledger.close().await;
    let before = bytes(&case.path());
    assert_eq!(Ledger::inspect(&case.path()).unwrap(), Some(found));
    assert_untouched(&case, &before);
    let mut file = fs::read(case.path()).unwrap();
    file.truncate(5000);
    fs::write(case.path(), file).unwrap();
    assert_eq!(Ledger::inspect(&case.path()).unwrap_err().code(), "ledger-damaged");
}
