//! `[policy.lease]`, `[policy.manifest]`, `[policy.replay]`: which component fills each slot, with which limits.

use super::resolve;
use super::walk::Table;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The three slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// `[policy.lease]`.
    pub lease: PolicySlot,
    /// `[policy.manifest]`.
    pub manifest: PolicySlot,
    /// `[policy.replay]`.
    pub replay: PolicySlot,
}

/// One slot. A limit that isn't configured is the engine's for this world.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySlot {
    /// `file`: the component; none: the built-in one.
    pub file: Option<PathBuf>,
    /// `settings`: a JSON object; the policy itself checks it when it is loaded.
    pub settings: serde_json::Value,
    /// `memory`: bytes of linear memory for a call.
    pub memory: Option<u64>,
    /// `deadline`: the guest's own time for a call.
    pub deadline: Option<Duration>,
    /// `wall`: wall time for a call, waiting for the host included.
    pub wall: Option<Duration>,
    /// `faults-to-roll-back`: so many in a row bring the last good generation back.
    pub faults_to_roll_back: u32,
    /// `watch`: load the file again when it changes.
    pub watch: bool,
}

impl Default for PolicySlot {
    fn default() -> Self {
        Self {
            file: None,
            settings: serde_json::Value::Object(serde_json::Map::new()),
            memory: None,
            deadline: None,
            wall: None,
            faults_to_roll_back: 3,
            watch: false,
        }
    }
}

pub(super) fn read(table: Table<'_, '_>, root: &Path) -> Policies {
    let policies = Policies {
        lease: slot(table.table("lease"), root),
        manifest: slot(table.table("manifest"), root),
        replay: slot(table.table("replay"), root),
    };
    table.finish();
    policies
}

fn slot(table: Table<'_, '_>, root: &Path) -> PolicySlot {
    let default = PolicySlot::default();
    let file = table.text("file", "the path of a component").map(|item| {
        let path = resolve(root, &item.value);
        if !path.is_file() {
            table.walk.fault(
                &item.key,
                Some(&item.span),
                format!("there is no file {}", path.display()),
                "correct the path, or leave `file` out for the built-in policy",
            );
        }
        path
    });
    let deadline = table.duration("deadline", Duration::from_millis(1)..=Duration::from_secs(3600));
    let wall = table.duration("wall", Duration::from_millis(1)..=Duration::from_secs(3600));
    if let (Some(deadline), Some(wall)) = (&deadline, &wall)
        && wall.value < deadline.value
    {
        table.walk.fault(
            &wall.key,
            Some(&wall.span),
            "is shorter than `deadline`, which is a part of it",
            "write a longer `wall` or a shorter `deadline`",
        );
    }
    let watch = table.flag("watch");
    if watch == Some(true) && file.is_none() {
        table.walk.fault(
            &table.key("watch"),
            None,
            "there is no `file` to watch",
            "name a `file`, or leave `watch` out",
        );
    }
    let slot = PolicySlot {
        file,
        settings: table.json("settings").unwrap_or(default.settings),
        memory: table.size("memory", 64 << 10..=4 << 30).map(|item| item.value),
        deadline: deadline.map(|item| item.value),
        wall: wall.map(|item| item.value),
        faults_to_roll_back: table
            .number("faults-to-roll-back", 1..=1000)
            .map_or(default.faults_to_roll_back, |item| item.value),
        watch: watch.unwrap_or(default.watch),
    };
    table.finish();
    slot
}
