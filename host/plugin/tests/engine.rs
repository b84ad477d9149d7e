//! The engine itself: its one ticker, its cache, and its empty WASI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::indexing_slicing, clippy::string_slice, reason = "and so does an index that is not there")]

mod support;

use std::path::Path;
use support::guest::Guest;
use support::*;
use warmhold_plugin::*;

fn cached(dir: &Path) -> PolicyEngine {
    PolicyEngine::new(&EngineOptions { cache_dir: Some(dir.to_owned()) }).unwrap()
}

fn loads(engine: &PolicyEngine, bytes: &[u8]) -> Checked {
    check::<ManifestKind>(engine, bytes, "{}", &Limits::of(World::Manifest)).unwrap()
}

fn entries(dir: &Path, extension: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

/// In a process of its own, since other tests of this one have engines too.
#[test]
fn there_is_one_ticker_an_engine_and_it_ends_with_it() {
    const CHILD: &str = "WARMHOLD_TEST_TICKER";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "there_is_one_ticker_an_engine_and_it_ends_with_it"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let tickers = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks
            .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c.trim() == "policy-ticker"))
            .count()
    };
    assert_eq!(tickers(), 0);
    let engine = engine();
    let dir = tempfile::tempdir().unwrap();
    let slot = ManifestSlot::open(&engine, options(dir.path(), World::Manifest, Guest::default().build())).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    loads(&engine.clone(), &Guest::default().build());
                }
            });
        }
    });
    assert_eq!(tickers(), 1);
    // It rests, and wakes for the next call's deadline.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let endless = Guest { render: "(loop $l (br $l))", ..Guest::default() }.build();
    let error = check::<ManifestKind>(&engine, &endless, "{}", &Limits::of(World::Manifest)).unwrap_err();
    assert_eq!(error.code(), "policy-load-fault");
    drop(slot);
    drop(engine);
    assert_eq!(tickers(), 0);
}

#[test]
fn compiled_code_is_kept_and_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Guest::default().build();
    loads(&cached(dir.path()), &bytes);
    let before = entries(dir.path(), "cwasm");
    assert_eq!((before.len(), entries(dir.path(), "sha256").len()), (1, 1));
    let written = std::fs::metadata(&before[0]).unwrap().modified().unwrap();
    loads(&cached(dir.path()), &bytes);
    assert_eq!(std::fs::metadata(&before[0]).unwrap().modified().unwrap(), written, "it was not compiled again");
}

#[test]
fn whatever_is_wrong_with_an_entry_makes_it_a_miss() {
    let bytes = Guest::default().build();
    type Damage = fn(&Path, &Path);
    let damage: &[(&str, Damage)] = &[
        ("a bit is turned", |code, _| {
            let mut bytes = std::fs::read(code).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(code, bytes).unwrap();
        }),
        ("it is cut", |code, _| {
            let bytes = std::fs::read(code).unwrap();
            std::fs::write(code, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("it is empty", |code, _| std::fs::write(code, "").unwrap()),
        ("its hash is gone", |_, hash| std::fs::remove_file(hash).unwrap()),
        ("its hash is another's", |_, hash| std::fs::write(hash, "0".repeat(64)).unwrap()),
        ("it is gone", |code, _| std::fs::remove_file(code).unwrap()),
        ("it is a folder", |code, _| {
            std::fs::remove_file(code).unwrap();
            std::fs::create_dir(code).unwrap();
        }),
        ("others can write it", |code, _| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(code, std::fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("it is of another engine, with the right hash", |code, hash| {
            // Bytes that are consistent in themselves, and no compiled code of this engine.
            std::fs::write(code, b"\x7fELF not really").unwrap();
            use sha2::Digest;
            let digest = sha2::Sha256::digest(b"\x7fELF not really");
            std::fs::write(hash, digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let dir = tempfile::tempdir().unwrap();
        loads(&cached(dir.path()), &bytes);
        let code = entries(dir.path(), "cwasm").remove(0);
        damage(&code, &code.with_extension("sha256"));
        let checked = loads(&cached(dir.path()), &bytes);
        assert_eq!(checked.about.name, "written", "{what}");
    }
}

#[test]
fn a_cache_that_cant_be_used_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    std::fs::write(&file, "no folder").unwrap();
    std::os::unix::fs::symlink(dir.path().join("nowhere"), &link).unwrap();
    for path in [&file, &link, &file.join("below")] {
        loads(&cached(path), &Guest::default().build());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "no folder");
}

#[test]
fn the_cache_is_bounded_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let engine = cached(dir.path());
    for n in 0..70 {
        let name: &'static str = Box::leak(format!("n{n}").into_boxed_str());
        loads(&engine, &Guest { name, ..Guest::default() }.build());
    }
    assert_eq!((entries(dir.path(), "cwasm").len(), entries(dir.path(), "sha256").len()), (64, 64));
    for path in entries(dir.path(), "cwasm") {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
}

fn rendered(render: &'static str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Guest { render, ..Guest::default() }.build();
    let slot = ManifestSlot::open(&engine(), options(dir.path(), World::Manifest, bytes)).unwrap();
    let spec = PodSpec {
        name: String::new(),
        namespace: String::new(),
        context: String::new(),
        worker_id: String::new(),
        image: String::new(),
        node: None,
        cut_sha: String::new(),
        key: key(),
        memory_limit: None,
        host_probe_url: String::new(),
        prod_probe_url: String::new(),
        source_mirror: None,
        source: String::new(),
        install: vec![],
    };
    slot.render(&spec).unwrap().answer.unwrap()
}

#[test]
fn a_guest_with_wasi_stays_a_pure_function() {
    let random = "(call $show (i32.const 4104) (call $random))";
    let first = rendered(random);
    assert_ne!(first, "{\"pad\":\"......................\"}");
    assert_eq!(first, rendered(random), "the same call gets the same numbers");
    let two = "(drop (call $random)) (call $show (i32.const 4104) (call $random))";
    assert_ne!(first, rendered(two), "and the next number is another");
    assert_eq!(
        rendered("(call $show (i32.const 4104) (call $now))"),
        "{\"pad\":\"aaaaaaaaaaaaaaaa......\"}",
        "its time stands still"
    );
    let nothing = "(call $env (i32.const 600)) (call $show (i32.const 4104) (i64.load32_u (i32.const 604)))";
    assert_eq!(rendered(nothing), "{\"pad\":\"aaaaaaaaaaaaaaaa......\"}", "it has no environment");
}

/// What a guest writes goes nowhere near a runtime: this would panic on a runtime's thread otherwise.
#[tokio::test]
async fn a_guest_with_wasi_can_print_on_a_runtimes_thread() {
    rendered("(call $write (call $get-stderr) (i32.const 128) (i32.const 24) (i32.const 512))");
}
