//! `policy check`: what the daemon would find out at a load, without a daemon.

use super::output::{print, print_json};
use crate::cli::Slot;
use crate::error::{CliError, Exit};
use crate::term::harmless;
use serde_json::json;
use std::path::Path;
use warmhold_plugin::{
    Checked, EngineOptions, LeaseKind, Limits, LoadError, ManifestKind, PolicyEngine, ReplayKind, World, check,
    world_of,
};

pub(super) fn run(file: &Path, slot: Option<Slot>, settings: Option<&Path>, json: bool) -> Result<Exit, CliError> {
    let component = super::policy::read(file)?;
    let settings = match settings {
        None => "{}".to_owned(),
        Some(path) => std::fs::read_to_string(path).map_err(|error| {
            CliError::usage("unreadable", format!("{}: {error}", path.display()))
                .with_help("name a file with the settings as a JSON object")
        })?,
    };
    let engine = PolicyEngine::new(&EngineOptions::default()).map_err(|error| {
        CliError::no(error.code(), error.to_string()).with_help("`warmhold doctor` looks at this machine")
    })?;
    let world = match slot {
        Some(slot) => world(slot),
        None => guess(&engine, &component)?,
    };
    let limits = Limits::of(world);
    let checked = match world {
        World::Lease => check::<LeaseKind>(&engine, &component, &settings, &limits),
        World::Manifest => check::<ManifestKind>(&engine, &component, &settings, &limits),
        World::Replay => check::<ReplayKind>(&engine, &component, &settings, &limits),
    };
    let checked = checked.map_err(|error| refused(&error))?;
    if json {
        print_json(&facts(&checked))?;
    } else {
        print(&format!(
            "{}: {} {} is a good {} policy (sha256:{})\n",
            file.display(),
            harmless(&checked.about.name),
            harmless(&checked.about.version),
            checked.world.slot(),
            checked.digest
        ))?;
    }
    Ok(Exit::Done)
}

fn world(slot: Slot) -> World {
    match slot {
        Slot::Lease => World::Lease,
        Slot::Manifest => World::Manifest,
        Slot::Replay => World::Replay,
    }
}

/// The world by what the component exports. Its size is judged by the largest of the limits here, and by its own later.
fn guess(engine: &PolicyEngine, component: &[u8]) -> Result<World, CliError> {
    let limits = World::ALL
        .into_iter()
        .map(Limits::of)
        .max_by_key(|limits| limits.component)
        .unwrap_or(Limits::of(World::Lease));
    world_of(engine, component, &limits).map_err(|error| refused(&error))?.ok_or_else(|| {
        CliError::no("policy-no-world", "this component exports none of the worlds of a policy").with_help(
            "build it for lease-policy, manifest-policy or replay-policy; --slot tells what it lacks for one of them",
        )
    })
}

fn facts(checked: &Checked) -> serde_json::Value {
    json!({
        "slot": checked.world.slot(), "name": checked.about.name, "version": checked.about.version,
        "summary": checked.about.summary, "digest": checked.digest, "wasi": checked.wasi,
    })
}

fn refused(error: &LoadError) -> CliError {
    let message = format!("{}\n  expected: {}\n  found: {}", error.what(), error.expected(), harmless(&error.found()));
    CliError::no(error.code(), message).with_help(error.fix())
}
