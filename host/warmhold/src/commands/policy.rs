//! `policy`: what the daemon decides with.

use super::connect;
use super::output::{print, print_json, view};
use super::replays::items;
use crate::cli::{Global, PolicyCommand};
use crate::client::{Role, view};
use crate::error::{CliError, Exit};
use crate::term::{Paint, harmless, table};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Compiling a large component takes its time.
const LOAD: Duration = Duration::from_secs(300);

/// The largest file that is sent; the daemon's own limit is lower.
const MAX_POLICY_BYTES: u64 = 1 << 30;

pub(super) fn run(global: &Global, command: &PolicyCommand) -> Result<Exit, CliError> {
    match command {
        PolicyCommand::Check { file, slot, settings, json } => {
            return super::policy_check::run(file, *slot, settings.as_deref(), *json);
        }
        PolicyCommand::Load { slot, file, json } => {
            let component = read(file)?;
            let path = format!("/v1/policies/{}", slot.as_str());
            let answer = connect(global, Role::Admin)?.post_bytes(&path, &component, LOAD).map_err(refused)?;
            shown(&answer, "serves now", *json)?;
        }
        PolicyCommand::List(args) => {
            let answer = items(&connect(global, Role::Query)?.get("/v1/policies")?, "policies");
            if args.json {
                print_json(&answer)?;
            } else {
                print(&rows(&view::<Vec<view::Policy>>(&answer)?, Paint::stdout()))?;
            }
        }
        PolicyCommand::Rollback { slot, json } => {
            let path = format!("/v1/policies/{}/rollback", slot.as_str());
            let answer = connect(global, Role::Admin)?.post(&path, &json!({}), LOAD)?;
            shown(&answer, "serves again", *json)?;
        }
    }
    Ok(Exit::Done)
}

/// What is wrong with the component is an answer, whatever its status; a wrong token stays wrong usage.
fn refused(error: CliError) -> CliError {
    match (error.exit, error.code.as_str()) {
        (Exit::Usage, "unauthorized" | "forbidden") => error,
        (Exit::Usage, _) => CliError { exit: Exit::No, ..error },
        _ => error,
    }
}

/// The whole file, as it is at one moment: the daemon refuses what was cut short.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, CliError> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| {
        CliError::usage("unreadable", format!("{}: {error}", file.display()))
            .with_help("name the file of a component (.wasm)")
    };
    let mut component = Vec::new();
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened.take(MAX_POLICY_BYTES + 1).read_to_end(&mut component).map_err(failed)?;
    if component.len() as u64 > MAX_POLICY_BYTES {
        return Err(CliError::usage("too-large", format!("{} is larger than any component may be", file.display()))
            .with_help("build it in release mode, without debug information"));
    }
    Ok(component)
}

fn shown(answer: &Value, what: &str, json: bool) -> Result<(), CliError> {
    if json {
        return print_json(answer);
    }
    let policy: view::Policy = view(answer)?;
    print(&format!(
        "{}: {} {} {what} as generation {} ({})\n",
        harmless(&policy.slot),
        harmless(&policy.name),
        harmless(&policy.version),
        policy.generation,
        short(&policy.digest)
    ))
}

fn short(digest: &str) -> String {
    let digits = digest.strip_prefix("sha256:").unwrap_or(digest);
    format!("sha256:{}", harmless(digits).chars().take(12).collect::<String>())
}

fn rows(policies: &[view::Policy], paint: Paint) -> String {
    let mut rows = vec![
        ["SLOT", "STATE", "NAME", "VERSION", "GENERATION", "DIGEST", "CALLS", "FAULTS", "FIRST FAULT"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for policy in policies {
        rows.push(vec![
            harmless(&policy.slot),
            harmless(&policy.state),
            harmless(&policy.name),
            harmless(&policy.version),
            policy.generation.to_string(),
            short(&policy.digest),
            policy.calls.to_string(),
            policy.faults.to_string(),
            policy
                .first_fault
                .as_deref()
                .map(|fault| harmless(fault.lines().next().unwrap_or_default()))
                .unwrap_or_default(),
        ]);
    }
    // Whole lines are coloured, after the columns are laid out: colours have no width.
    table(&rows)
        .lines()
        .zip(std::iter::once(None).chain(policies.iter().map(Some)))
        .map(|(line, policy)| match policy.map(|policy| policy.state.as_str()) {
            Some("bad") => format!("{}\n", paint.red(line)),
            Some("kept") => format!("{}\n", paint.dim(line)),
            _ => format!("{line}\n"),
        })
        .collect()
}
