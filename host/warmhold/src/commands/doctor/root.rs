//! The root: who may read it, and what it lies on.

use super::Check;
use crate::config::{Config, Primary};
use rustix::process::geteuid;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// File systems that are shared over a network: locks and syncs there aren't what the ledger counts on.
const NETWORK: [(u64, &str); 10] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x5346_414f, "AFS"),
    (0x0102_1997, "9P"),
];

/// Below this a ledger and a few workspaces may not fit.
const LOW_SPACE: u64 = 1 << 30;

pub(super) fn check(root: &Path) -> Vec<Check> {
    let mut checks = vec![folder(root)];
    if let Some(existing) = root.ancestors().find(|folder| folder.is_dir()) {
        checks.extend(file_system(existing));
    }
    checks.extend(files(&root.join("control")));
    checks
}

fn folder(root: &Path) -> Check {
    let name = "root";
    let shown = root.display();
    match std::fs::metadata(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Check::ok(name, format!("{shown} isn't there yet; serve makes it"))
        }
        Err(error) => Check::fail(name, format!("{shown}: {error}"), "run this as the user of the daemon"),
        Ok(found) if !found.is_dir() => {
            Check::fail(name, format!("{shown} is no folder"), "name another one with --root")
        }
        Ok(found) if found.uid() != geteuid().as_raw() => Check::fail(
            name,
            format!("{shown} belongs to user {}, and this is user {}", found.uid(), geteuid().as_raw()),
            "run this as the user of the daemon, or name another root",
        ),
        Ok(found) if found.permissions().mode() & 0o077 != 0 => Check::warn(
            name,
            format!("{shown} has mode {:04o}, so others can look into it", found.permissions().mode() & 0o7777),
            format!("chmod 700 {shown}"),
        ),
        Ok(_) => Check::ok(name, format!("{shown}, for its owner alone")),
    }
}

fn file_system(folder: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    let name = "file system";
    match rustix::fs::statfs(folder) {
        Err(error) => {
            checks.push(Check::fail(name, format!("{}: {error}", folder.display()), "make the folder reachable"))
        }
        Ok(found) => {
            // The kernel's magic numbers have 32 bits; some platforms sign-extend them.
            let kind = u64::try_from(found.f_type & 0xffff_ffff).unwrap_or_default();
            match NETWORK.into_iter().find(|(magic, _)| *magic == kind) {
                Some((_, shared)) => checks.push(Check::fail(
                    name,
                    format!("{} lies on {shared}, where the ledger's locks don't hold", folder.display()),
                    "put the root on a local disk",
                )),
                None => {
                    checks.push(Check::ok(name, format!("{} lies on a local one (type {kind:#x})", folder.display())))
                }
            }
        }
    }
    if let Ok(found) = rustix::fs::statvfs(folder) {
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let shown = format!("{} MiB free", free >> 20);
        checks.push(if free < LOW_SPACE {
            Check::warn("disk space", shown, "make room: a write that finds none is refused")
        } else {
            Check::ok("disk space", shown)
        });
    }
    checks
}

/// Whatever lies in `control` is a credential or worth as much as one.
fn files(control: &Path) -> Vec<Check> {
    let Ok(entries) = std::fs::read_dir(control) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let mode = entry.metadata().ok()?.permissions().mode() & 0o7777;
            (mode & 0o077 != 0).then(|| {
                let shown = entry.path().display().to_string();
                let fix = format!("chmod go= {shown}");
                Check::fail("control files", format!("{shown} has mode {mode:04o}, so others can use it"), fix)
            })
        })
        .collect()
}

/// Documents that the configuration names.
pub(super) fn documents(config: &Config) -> Vec<Check> {
    let Primary::File(file) = &config.daemon.primary else { return Vec::new() };
    let name = "primary";
    let parsed = std::fs::read_to_string(file)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).map_err(|error| error.to_string()));
    vec![match parsed {
        Ok(document) => {
            let holder = document.get("holder").and_then(serde_json::Value::as_str).unwrap_or("nobody");
            Check::ok(name, format!("{} names {holder}", file.display()))
        }
        Err(error) => Check::warn(
            name,
            format!("{}: {error}", file.display()),
            "until the document is there, writes to workers are refused",
        ),
    }]
}
