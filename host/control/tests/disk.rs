//! A ledger on a disk that is full: nothing that was acknowledged is lost, reads go on, and it works again by itself.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends at once where something isn't as it must be; the lint's own exception knows test functions only"
)]

mod support;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::client::{Reply, ask};
use support::{Document, Running, Setup};
use warmhold_control::RequestLimits;

/// A disk of 16 MiB.
struct Small(tempfile::TempDir);

impl Small {
    /// None where this user may mount nothing.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(c"size=16m")) {
            Ok(()) => Some(Self(folder)),
            Err(error) => {
                println!("skipped: a small disk can't be mounted here ({error})");
                None
            }
        }
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    /// Takes all that is free.
    fn fill(&self) -> Ballast {
        let path = self.0.path().join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        let chunk = vec![0_u8; 64 << 10];
        while file.write_all(&chunk).is_ok() {}
        // What is left of the last chunk's room.
        while file.write_all(b"x").is_ok() {}
        Ballast(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// What fills it.
struct Ballast(PathBuf);

impl Ballast {
    fn remove(self) {
        std::fs::remove_file(self.0).unwrap();
    }
}

async fn start(root: &Path, free_space: u64) -> Running {
    let limits = RequestLimits { free_space, ..RequestLimits::default() };
    Running::start(root, Setup { document: Document::Own, limits, ..Setup::default() }).await
}

async fn write(running: &Running, id: &str, bytes: usize) -> Reply {
    let row = json!({"id": id, "kind": "image", "machine": "m1", "name": "n", "ttlMs": 1,
        "attrs": {"text": "x".repeat(bytes)}});
    ask(running.address, "POST", "/v1/resources/register").with(&running.token("member")).json(&row).send().await
}

async fn ids(running: &Running) -> BTreeSet<String> {
    let list = ask(running.address, "GET", "/v1/resources").with(&running.token("query")).send().await;
    assert_eq!((list.status, list.whole), (200, true));
    let list = list.json();
    let id = |row: &Value| row["id"].as_str().unwrap().to_owned();
    list["resources"].as_array().unwrap().iter().map(id).collect()
}

async fn ready(running: &Running) -> Reply {
    ask(running.address, "GET", "/readyz").send().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing_and_is_told() {
    for (free_space, code) in [(1 << 20, "disk-full"), (0, "ledger-failed")] {
        let Some(disk) = Small::new() else { return };
        let running = start(&disk.root(), free_space).await;
        assert_eq!(ready(&running).await.status, 200);
        let (mut kept, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for n in 0..10 {
            assert_eq!(write(&running, &format!("before-{n}"), 1000).await.status, 200);
            kept.insert(format!("before-{n}"));
        }
        let ballast = disk.fill();
        // Some may still fit into room that the ledger has already.
        let mut failures = 0;
        for n in 0.. {
            let id = format!("full-{n}");
            let reply = write(&running, &id, 100_000).await;
            match reply.status {
                200 => {
                    kept.insert(id);
                }
                _ => {
                    match reply.refusal() {
                        (503, code) if code == "ledger-failed" => refused.insert(id),
                        (503, code) if code == "uncertain" => false,
                        other => panic!("{other:?}"),
                    };
                    failures += 1;
                }
            }
            if failures == 10 {
                break;
            }
        }
        assert_eq!(ready(&running).await.refusal(), (503, code.into()));
        assert_eq!(ask(running.address, "GET", "/healthz").send().await.status, 200);
        let now = ids(&running).await;
        assert!(kept.is_subset(&now), "reads go on, and what was acknowledged is there");
        assert!(refused.is_disjoint(&now));
        // Nobody sends anything to a daemon that isn't ready: it finds out by itself that it is.
        ballast.remove();
        while ready(&running).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(write(&running, "after", 100_000).await.status, 200);
        kept.insert("after".to_owned());
        let before = ids(&running).await;
        running.stop().await;
        let running = start(&disk.root(), free_space).await;
        let after = ids(&running).await;
        assert_eq!(after, before);
        assert!(kept.is_subset(&after) && refused.is_disjoint(&after));
        running.stop().await;
    }
}
