//! `doctor`: what is right, what is wrong, and the way out of it.

mod kernel;
mod root;
mod tools;

use super::output::{print, print_json};
use crate::cli::Global;
use crate::client::{Client, Role, locate, view};
use crate::config::Config;
use crate::error::{CliError, Exit};
use crate::term::{Paint, harmless};
use serde::Serialize;
use serde_json::json;
use std::path::Path;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// As it should be.
    Ok,
    /// Works, with less than it could.
    Warn,
    /// Something that is needed is broken.
    Fail,
}

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// What was looked at.
    name: String,
    status: Status,
    /// What was found.
    detail: String,
    /// The way out, where it isn't as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), status: Status::Ok, detail: detail.into(), fix: None }
    }

    fn warn(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.to_owned(), status: Status::Warn, detail: detail.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.to_owned(), status: Status::Fail, detail: detail.into(), fix: Some(fix.into()) }
    }
}

pub(super) fn run(global: &Global, json: bool) -> Result<Exit, CliError> {
    let root = super::root(global)?;
    let mut checks = Vec::new();
    let config = match Config::load(&root) {
        Ok(config) => {
            let file = config.file.as_ref().map_or_else(
                || format!("no file {}, so the defaults hold", root.join("warmhold.toml").display()),
                |file| file.display().to_string(),
            );
            checks.push(Check::ok("configuration", file));
            Some(config)
        }
        Err(faults) => {
            let file = faults.file.display().to_string();
            for fault in faults.faults {
                let line = fault.line.map(|line| format!(":{line}")).unwrap_or_default();
                checks.push(Check::fail("configuration", format!("{file}{line}: {fault}"), &fault.help));
            }
            None
        }
    };
    checks.extend(root::check(&root));
    if let Some(config) = &config {
        checks.extend(root::documents(config));
        checks.extend(tools::check(config));
    }
    checks.extend(kernel::check());
    checks.extend(daemon(&root, global.url.as_deref()));
    let failed = checks.iter().any(|check| check.status == Status::Fail);
    if json {
        print_json(&json!(checks))?;
    } else {
        print(&checks.iter().map(|check| line(check, Paint::stdout())).collect::<String>())?;
    }
    Ok(if failed { Exit::No } else { Exit::Done })
}

fn line(check: &Check, paint: Paint) -> String {
    let mark = match check.status {
        Status::Ok => paint.green("ok  "),
        Status::Warn => paint.yellow("warn"),
        Status::Fail => paint.red("FAIL"),
    };
    let fix = check.fix.as_ref().map(|fix| format!("; {} {fix}", paint.cyan("fix:"))).unwrap_or_default();
    format!("{mark}  {:<14} {}{fix}\n", check.name, harmless(&check.detail.replace('\n', " ")))
}

/// The daemon and its policies. That none runs is no fault: it may be about to be started for the first time.
fn daemon(root: &Path, url: Option<&str>) -> Vec<Check> {
    let found = locate(root, url, Role::Query).and_then(|endpoint| {
        let address = endpoint.url.clone();
        let client = Client::new(endpoint);
        client.check_alive().map(|()| (client, address))
    });
    let (client, address) = match found {
        Ok(found) => found,
        Err(error) if error.exit == Exit::Unreachable => {
            return vec![Check::warn("daemon", error.message, error.help.unwrap_or_default())];
        }
        Err(error) => return vec![Check::fail("daemon", error.message, error.help.unwrap_or_default())],
    };
    let mut checks = vec![Check::ok("daemon", format!("answers at {address}"))];
    match client
        .get("/v1/policies")
        .and_then(|answer| super::output::view::<Vec<view::Policy>>(&super::replays::items(&answer, "policies")))
    {
        Err(error) => checks.push(Check::fail("policies", error.message, error.help.unwrap_or_default())),
        Ok(policies) => {
            let serving: Vec<_> = policies
                .iter()
                .filter(|policy| policy.state == "serving")
                .map(|policy| format!("{}: {} {}", policy.slot, policy.name, policy.version))
                .collect();
            checks.push(Check::ok("policies", serving.join(", ")));
            for bad in policies.iter().filter(|policy| policy.state == "bad") {
                let detail = format!(
                    "{} generation {} was set aside: {}",
                    bad.name,
                    bad.generation,
                    bad.first_fault.as_deref().unwrap_or("it failed too often")
                );
                checks.push(Check::warn(
                    "policies",
                    detail,
                    format!("load a mended one: warmhold policy load {} FILE", bad.slot),
                ));
            }
        }
    }
    checks
}
