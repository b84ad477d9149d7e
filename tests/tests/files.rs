//! The daemon's own files: damaged, of a newer version, on a full disk, not writable.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use warmhold_tests::{Client, Site, items, text, until};

/// Every file below a folder with its bytes, but for SQLite's index of its log, which holds nothing of its own.
fn bytes_of(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(bytes_of(&path)?);
        } else if !path.to_string_lossy().ends_with("-shm") {
            all.insert(path.clone(), fs::read(path)?);
        }
    }
    Ok(all)
}

/// A start that must be refused: exit 2, this code, words that help, and not a byte of the root changed.
fn refused(site: &Site, code: &str, words: &[&str]) -> Result<()> {
    let before = bytes_of(&site.root())?;
    for _ in 0..2 {
        let ran = site.run(&["serve", "--listen", "127.0.0.1:0"])?;
        assert_eq!(ran.code, 2, "{code}: {ran:?}");
        assert!(ran.stderr.contains(&format!("error[{code}]: ")), "{code}: {ran:?}");
        for word in words {
            assert!(ran.stderr.contains(word), "{word}: {ran:?}");
        }
        assert!(ran.stdout.is_empty(), "it never said that it serves: {ran:?}");
        let after = bytes_of(&site.root())?;
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before), "{code}");
        for (path, bytes) in &before {
            assert!(after.get(path) == Some(bytes), "{code}: {} was changed", path.display());
        }
    }
    Ok(())
}

#[test]
fn what_is_damaged_or_newer_is_left_as_it_is() -> Result<()> {
    let site = Site::for_test()?;
    let daemon = site.serve()?;
    site.prepare(1)?;
    let replay = site.run(&["replay", "--json", "tests/words.sh"])?.json()?;
    // Enough for several pages.
    for n in 0..300 {
        let row = json!({"id": format!("row-{n}"), "kind": "image", "machine": "m", "name": "n", "ttlMs": 3_600_000,
            "attrs": {"text": "x".repeat(500)}});
        let answer = site.ask(&daemon, "member", "POST", "/v1/resources/register", Some(&row))?;
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    }
    assert_eq!(daemon.stop()?.code(), Some(0));
    let ledger = site.root().join("control/ledger.sqlite3");
    let good = fs::read(&ledger)?;
    assert!(good.len() > 100_000, "{}", good.len());
    assert_eq!(fs::metadata(&ledger)?.permissions().mode() & 0o777, 0o600);

    let mut newer = good.clone();
    newer.get_mut(60..64).context("no header")?.copy_from_slice(&999_u32.to_be_bytes());
    fs::write(&ledger, newer)?;
    refused(&site, "ledger-newer", &["999", "newer"])?;

    let mut foreign = good.clone();
    foreign.get_mut(68..72).context("no header")?.copy_from_slice(&7_u32.to_be_bytes());
    fs::write(&ledger, foreign)?;
    refused(&site, "ledger-foreign", &["another"])?;

    let half = good.get(..good.len() / 2).context("short")?.to_vec();
    let mut hole = good.clone();
    let middle = hole.len() / 2 / 4096 * 4096;
    hole.get_mut(middle..middle + 4096).context("short")?.fill(0xa5);
    let mut head = good.clone();
    head.get_mut(..16).context("short")?.fill(b'?');
    for (what, bytes) in [("half", half), ("a hole", hole), ("its head", head), ("text", b"not a ledger\n".to_vec())] {
        fs::write(&ledger, bytes)?;
        refused(&site, "ledger-damaged", &["backup"]).with_context(|| what.to_owned())?;
    }

    // The right file put back, everything is there.
    fs::write(&ledger, &good)?;
    let tokens = site.root().join("control/tokens.json");
    let right = fs::read(&tokens)?;
    for wrong in ["", "{", "{}", r#"{"admin": "short", "member": "x", "query": "y"}"#] {
        fs::write(&tokens, wrong)?;
        refused(&site, "tokens-malformed", &["tokens.json", "help:"])?;
    }
    let value: Value = serde_json::from_slice(&right)?;
    let same = json!({"admin": value["admin"], "member": value["admin"], "query": value["query"]});
    fs::write(&tokens, same.to_string())?;
    refused(&site, "tokens-duplicate", &["tokens.json", "help:"])?;
    fs::write(&tokens, &right)?;
    let daemon = site.serve()?;
    assert_eq!(site.run(&["replays", "show", text(&replay["id"]), "--json"])?.json()?, replay);
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);

    // Moved away under the running daemon: writes are refused, not lost, and it says why.
    let aside = ledger.with_extension("aside");
    fs::rename(&ledger, &aside)?;
    let row = json!({"id": "late", "kind": "image", "machine": "m", "name": "n", "ttlMs": 1000, "attrs": {}});
    let answer = site.ask(&daemon, "member", "POST", "/v1/resources/register", Some(&row))?;
    assert_eq!((answer.status, answer.error()), (503, "ledger-lock-lost"), "{answer:?}");
    fs::rename(&aside, &ledger)?;
    until("it goes on with the file that is back", || {
        let answer = site.ask(&daemon, "member", "POST", "/v1/resources/register", Some(&row))?;
        Ok(matches!(answer.status, 200 | 201).then_some(()))
    })?;
    drop(daemon);

    // What the client reads of the root may be damaged too.
    fs::write(site.root().join("control/daemon.json"), "{")?;
    let ran = site.run(&["worker", "list"])?;
    assert_eq!((ran.code, ran.stderr.contains("error[damaged-file]")), (2, true), "{ran:?}");
    Ok(())
}

#[test]
fn a_root_that_cannot_be_one() -> Result<()> {
    let site = Site::for_test()?;
    fs::write(site.folder().join("file"), "")?;
    for root in ["file", "file/below", "/proc/warmhold"] {
        let root = site.folder().join(root);
        let root = root.to_string_lossy();
        let ran = site.run(&["serve", "--listen", "127.0.0.1:0", "--root", &root])?;
        assert_eq!(ran.code, 2, "{root}: {ran:?}");
        assert!(ran.stderr.contains("error[") && ran.stderr.contains("help: "), "{root}: {ran:?}");
        assert!(ran.stderr.contains(&*root), "{root}: {ran:?}");
    }
    // The folder of pods can't be made: told before anything else is done.
    site.configure(&format!("[daemon]\npods = \"{}/file/pods\"\n", site.folder().display()))?;
    let ran = site.run(&["serve", "--listen", "127.0.0.1:0"])?;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("error[") && ran.stderr.contains("pods") && ran.stderr.contains("help: "), "{ran:?}");
    Ok(())
}

/// Takes all that is left of the disk.
fn fill(root: &Path) -> Result<PathBuf> {
    use std::io::Write as _;
    let filler = root.join("filler");
    let mut file = fs::File::create(&filler)?;
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    Ok(filler)
}

#[test]
fn a_full_disk() -> Result<()> {
    let site = Site::for_test()?;
    if !site.small_disk()? {
        println!("skipped: only root mounts a small disk");
        return Ok(());
    }
    let daemon = site.serve()?;
    site.prepare(2)?;
    let kept = site.run(&["replay", "--json", "--keep", "tests/words.sh"])?.json()?;
    let client = Client::new(&daemon.url, &site.token("member")?);
    let register = |id: &str| {
        let row = json!({"id": id, "kind": "image", "machine": "m", "name": "n", "ttlMs": 3_600_000,
            "attrs": {"text": "x".repeat(5000)}});
        client.request("POST", "/v1/resources/register", Some(&row), &[])
    };
    let head = site.repository.head()?;
    let ask = |run: &str| json!({"files": ["tests/words.sh"], "cutSha": head, "runId": run});

    let filler = fill(&site.root())?;
    // What fits into space that the files already have is still written; what doesn't is refused, and is not there.
    let (mut kept_rows, mut refused_rows) = (Vec::new(), Vec::new());
    for n in 0..400 {
        let id = format!("row-{n}");
        let answer = register(&id)?;
        match answer.status {
            200 | 201 => kept_rows.push(id),
            503 => {
                assert!(matches!(answer.error(), "uncertain" | "ledger-failed"), "{answer:?}");
                refused_rows.push((id, answer.error() == "uncertain"));
            }
            _ => panic!("{answer:?}"),
        }
        if refused_rows.len() == 5 {
            break;
        }
    }
    assert!(!refused_rows.is_empty(), "the disk is full");
    let answer = client.request("POST", "/v1/replays", Some(&ask("while-full")), &[])?;
    assert!(answer.status == 503 || text(&answer.json["state"]) == "fallback", "{answer:?}");
    let loaded = site.run(&["policy", "load", "lease", &site.programs.policy("most-recent")?.to_string_lossy()])?;
    assert_eq!((loaded.code, loaded.stderr.contains("error[policy-storage]")), (1, true), "{loaded:?}");
    // Reading goes on, and so does the daemon.
    for path in ["/healthz", "/v1/workers", "/v1/policies", "/v1/resources", "/v1/replays"] {
        assert_eq!(client.request("GET", path, None, &[])?.status, 200, "{path}");
    }

    fs::remove_file(filler)?;
    let id = text(&kept["id"]).to_owned();
    until("the kept replay is finalized", || Ok((site.run(&["replays", "finalize", &id])?.code == 0).then_some(())))?;
    assert!(matches!(register("after")?.status, 200 | 201));
    until("it replays again", || {
        let ran = site.run(&["replay", "tests/words.sh"])?;
        Ok((ran.code == 0).then_some(()))
    })?;
    let check = |client: &Client| -> Result<()> {
        let listed = client.request("GET", "/v1/resources", None, &[])?.json;
        let ids: Vec<&str> = items(&listed["resources"]).iter().map(|row| text(&row["id"])).collect();
        for id in &kept_rows {
            assert!(ids.contains(&id.as_str()), "{id} was acknowledged and is gone");
        }
        for (id, uncertain) in &refused_rows {
            assert!(*uncertain || !ids.contains(&id.as_str()), "{id} was refused and is there");
        }
        Ok(())
    };
    check(&client)?;

    // And all of it is still so for the next daemon.
    daemon.kill()?;
    let daemon = site.serve()?;
    check(&Client::new(&daemon.url, &site.token("member")?))?;
    for replay in items(&site.run(&["replays", "list", "--json"])?.json()?) {
        assert!(matches!(text(&replay["state"]), "finalized" | "fallback" | "quarantined"), "{replay}");
    }
    for worker in site.workers()? {
        assert!(matches!(text(&worker["state"]), "idle" | "quarantined"), "{worker}");
    }
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}
