//! Programs that the daemon and the tests need.

use super::Check;
use crate::config::{Backend, Config, Kubectl, Profile, Source, built_in_rules};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) fn check(config: &Config) -> Vec<Check> {
    let mut checks = vec![git(), worker(config)];
    checks.extend(config.profiles.values().filter_map(source));
    checks.extend(programs(config));
    let clusters: Vec<_> = config
        .profiles
        .values()
        .filter_map(|profile| match &profile.backend {
            Backend::Kubectl(kubectl) => Some(kubectl),
            Backend::Local => None,
        })
        .collect();
    if !clusters.is_empty() {
        let kubectl = kubectl();
        let usable = kubectl.fix.is_none();
        checks.push(kubectl);
        checks.extend(clusters.into_iter().filter(|_| usable).map(context));
    }
    checks
}

/// What a program prints; none when it can't be run or fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn git() -> Check {
    match output("git", &["--version"]) {
        Some(version) => Check::ok("git", version),
        None => Check::fail("git", "it can't be run", "install git: workers take their source from it"),
    }
}

fn worker(config: &Config) -> Check {
    let beside =
        || std::env::current_exe().ok().and_then(|exe| exe.parent().map(|folder| folder.join("warmhold-worker")));
    let name = "worker binary";
    let fix = "build it (`./x build`) and put it beside warmhold, or name it with daemon.worker-binary";
    match config.daemon.worker_binary.clone().or_else(beside) {
        Some(path) if is_program(&path) => Check::ok(name, path.display().to_string()),
        Some(path) => Check::fail(name, format!("{} is no program", path.display()), fix),
        None => Check::fail(name, "it isn't configured, and where warmhold itself lies can't be told", fix),
    }
}

fn source(profile: &Profile) -> Option<Check> {
    let name = format!("profile {}", profile.name);
    match &profile.source {
        None => Some(Check::warn(
            &name,
            "has no source: the current folder is in no git work tree",
            format!("start serve in the repository, or set profile.{}.source", profile.name),
        )),
        Some(Source::Path(path)) => {
            let at = path.to_str()?;
            Some(match output("git", &["-C", at, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"]) {
                Some(sha) => Check::ok(&name, format!("{at} at {}", sha.chars().take(10).collect::<String>())),
                None => Check::warn(
                    &name,
                    format!("{at} has no commit that can be read"),
                    "commit something, or make it readable for this user",
                ),
            })
        }
        Some(Source::Url(_)) => None,
    }
}

/// The programs of the rules, in the PATH that local pods get.
fn programs(config: &Config) -> Vec<Check> {
    let built_in = built_in_rules();
    // By program: whether a rule of the user's own needs it, and a pattern that does.
    let mut needed: BTreeMap<&str, (bool, &str)> = BTreeMap::new();
    for profile in config.profiles.values().filter(|profile| profile.backend == Backend::Local) {
        for rule in &profile.tests {
            let Some(program) = rule.run.first().filter(|program| !program.contains("{file}")) else { continue };
            let own = !built_in.contains(rule);
            let entry = needed.entry(program).or_insert((own, &rule.pattern));
            if own && !entry.0 {
                *entry = (own, &rule.pattern);
            }
        }
    }
    needed
        .into_iter()
        .map(|(program, (own, pattern))| {
            let name = format!("program {program}");
            match find(program, &config.daemon.pod_path) {
                Some(path) => Check::ok(&name, path.display().to_string()),
                None => {
                    let detail =
                        format!("isn't in {}, and tests that match `{pattern}` need it", config.daemon.pod_path);
                    let fix = "install it there, or extend daemon.pod-path";
                    if own { Check::fail(&name, detail, fix) } else { Check::warn(&name, detail, fix) }
                }
            }
        })
        .collect()
}

fn find(program: &str, path: &str) -> Option<PathBuf> {
    if program.contains('/') {
        // Relative ones lie in the source tree, which isn't here.
        let program = PathBuf::from(program);
        return (program.is_relative() || is_program(&program)).then_some(program);
    }
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn kubectl() -> Check {
    match output("kubectl", &["version", "--client", "--output=json"]) {
        Some(text) => {
            let version = serde_json::from_str::<serde_json::Value>(&text)
                .ok()
                .and_then(|version| Some(version.get("clientVersion")?.get("gitVersion")?.as_str()?.to_owned()));
            Check::ok("kubectl", version.unwrap_or_else(|| "of an unknown version".to_owned()))
        }
        None => Check::fail("kubectl", "it can't be run, and a profile needs it", "install kubectl"),
    }
}

fn context(kubectl: &Kubectl) -> Check {
    let name = format!("context {}", kubectl.context);
    match output("kubectl", &["config", "get-contexts", &kubectl.context, "--no-headers", "--output=name"]) {
        Some(_) => Check::ok(&name, "kubectl knows it"),
        None => Check::fail(&name, "kubectl doesn't know it", "kubectl config get-contexts shows those it knows"),
    }
}
