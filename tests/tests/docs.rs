//! `docs/http.md` as its reader meets it: one session in bash against a real daemon, and every route in it.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use warmhold_tests::{Client, Site, workspace};

/// What stands in the page for whatever differs from one time to the next.
const VARIES: char = '…';

/// One block of commands, and what the page says that they print.
struct Step {
    line: usize,
    commands: String,
    shown: Option<String>,
}

fn page() -> Result<String> {
    std::fs::read_to_string(workspace().join("docs/http.md")).context("docs/http.md")
}

/// The blocks of a page: a block of `sh`, and the block of another kind that stands right below it.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = page.lines().enumerate();
    // Whether nothing but empty lines has come since the last block of commands.
    let mut below = false;
    while let Some((number, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            below &= line.trim().is_empty();
            continue;
        };
        let text =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect::<Vec<_>>().join("\n");
        if kind == "sh" {
            steps.push(Step { line: number + 1, commands: text, shown: None });
        } else if let Some(step) = steps.last_mut().filter(|_| below) {
            step.shown = Some(text);
        }
        below = kind == "sh";
    }
    steps
}

/// Whether a text is what is shown, where `…` stands for any text within a line.
fn is_as_shown(shown: &str, text: &str) -> bool {
    let (shown, text) = (shown.trim_end().lines(), text.trim_end().lines());
    shown.clone().count() == text.clone().count() && shown.zip(text).all(|(shown, text)| line_is_as_shown(shown, text))
}

fn line_is_as_shown(shown: &str, text: &str) -> bool {
    let mut parts = shown.split(VARIES);
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// The whole page as a script that says where each block ends.
fn script(steps: &[Step]) -> String {
    let mut script = "set -e\n".to_owned();
    for step in steps {
        script.push_str(&step.commands);
        script.push_str(&format!("\nprintf '\\n{}\\n'\n", mark(step)));
    }
    script
}

fn mark(step: &Step) -> String {
    format!("--- the block at line {} is done ---", step.line)
}

/// Where the page's reader works: an empty root, the example as a repository, the programs on the path.
fn desk(site: &Site) -> Result<Command> {
    let home = site.folder().join("home");
    let root = home.join(".local/state/warmhold");
    std::fs::create_dir_all(&root)?;
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o700))?;
    // The page's daemon takes the usual port. A test must not.
    std::fs::write(root.join("warmhold.toml"), "[daemon]\nlisten = \"127.0.0.1:0\"\n")?;
    let programs = site.programs.warmhold.parent().map(PathBuf::from).context("the programs lie in no folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .env("HOME", &home)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("CHECKOUT", workspace())
        .env_remove("XDG_STATE_HOME")
        .env_remove("WARMHOLD_TOKEN")
        .current_dir(&site.repository.path)
        .stdin(Stdio::null());
    Ok(command)
}

#[test]
fn a_reader_who_types_the_page_sees_what_it_shows() -> Result<()> {
    let page = page()?;
    let steps = steps(&page);
    let site = Site::new("debug")?;
    // Into files: a daemon that a failed session leaves behind would hold a pipe open, and with it the test.
    let (out, err) = (site.folder().join("printed"), site.folder().join("said"));
    let status = desk(&site)?
        .arg("-c")
        .arg(script(&steps))
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .status()
        .context("bash can't be started")?;
    let (printed, said) = (std::fs::read_to_string(out)?, std::fs::read_to_string(err)?);
    let log = std::fs::read_to_string(site.repository.path.join("serve.log")).unwrap_or_default();
    let mut rest = printed.as_str();
    for step in &steps {
        let line = step.line;
        let Some((printed, after)) = rest.split_once(&format!("\n{}\n", mark(step))) else {
            anyhow::bail!("the block at line {line} ended the session with {status}:\n{rest}\n{said}\n{log}");
        };
        rest = after;
        if let Some(shown) = &step.shown {
            ensure!(
                is_as_shown(shown, printed),
                "the block at line {line} shows\n{shown}\nand printed\n{printed}\n{log}"
            );
        } else {
            ensure!(printed.trim().is_empty(), "the block at line {line} shows nothing and printed\n{printed}\n{log}");
        }
    }
    ensure!(status.success(), "{status}: {said}");
    Ok(())
}

/// A method and the segments of a path; None is one that varies.
type Route = (String, Vec<Option<String>>);

fn route(method: &str, path: &str, varies: impl Fn(&str) -> bool) -> Route {
    let path = path.split('?').next().unwrap_or_default();
    let segments = path.trim_start_matches('/').split('/');
    (method.to_owned(), segments.map(|segment| (!varies(segment)).then(|| segment.to_owned())).collect())
}

/// The routes that the description names.
fn described(document: &Value) -> BTreeSet<Route> {
    let paths = document.get("paths").and_then(Value::as_object).into_iter().flatten();
    let operations = paths.flat_map(|(path, item)| {
        item.as_object()
            .into_iter()
            .flatten()
            .map(move |(method, _)| route(&method.to_uppercase(), path, |segment| segment.starts_with('{')))
    });
    operations.collect()
}

/// The routes that stand in the page's tables.
fn tabled(page: &str) -> BTreeSet<Route> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()?.split_once(" /"));
    rows.map(|(method, path)| route(method, path, |segment| segment.chars().all(|c| c.is_ascii_uppercase()))).collect()
}

/// The requests that the page's commands make.
fn asked(page: &str) -> BTreeSet<Route> {
    let commands = steps(page)
        .into_iter()
        .flat_map(|step| step.commands.split("curl ").skip(1).map(str::to_owned).collect::<Vec<_>>());
    let requests = commands.filter_map(|command| {
        let (before, after) = command.split_once("\"$URL/")?;
        let path = after.split('"').next()?.to_owned();
        let method = before.split_once("-X ").and_then(|(_, method)| method.split(' ').next()).map(str::to_owned);
        let with_body = before.contains(" -d ") || before.contains(" --data-binary ");
        Some((method.unwrap_or_else(|| if with_body { "POST" } else { "GET" }.to_owned()), path))
    });
    requests.map(|(method, path)| route(&method, &path, |_| false)).collect()
}

fn covers(route: &Route, request: &Route) -> bool {
    let ((method, path), (asked, target)) = (route, request);
    method == asked
        && path.len() == target.len()
        && path.iter().zip(target).all(|(segment, found)| segment.is_none() || segment == found)
}

#[test]
fn every_route_is_in_the_page_with_a_command() -> Result<()> {
    let page = page()?;
    let site = Site::for_test()?;
    let daemon = site.serve()?;
    let document = Client::anonymous(&daemon.url).request("GET", "/v1/openapi.json", None, &[])?;
    ensure!(document.status == 200, "{}", document.text);
    let described = described(&document.json);
    ensure!(described.len() >= 30, "{described:?}");
    let tabled = tabled(&page);
    let missing: Vec<_> = described.symmetric_difference(&tabled).collect();
    ensure!(missing.is_empty(), "in the description or in the page's tables, but not in both: {missing:?}");
    let asked = asked(&page);
    let unasked: Vec<_> =
        described.iter().filter(|route| !asked.iter().any(|request| covers(route, request))).collect();
    ensure!(unasked.is_empty(), "no command of the page uses {unasked:?}");
    Ok(())
}

#[test]
fn what_is_shown_is_compared_by_line_and_by_what_stands_still() {
    for (shown, text, same) in [
        ("a", "a\n", true),
        ("a", "b", false),
        ("a", "a\nb", false),
        ("a\nb", "a\nb\n\n", true),
        ("…", "anything", true),
        ("{\"id\":\"…\",\"n\":1}", "{\"id\":\"x-7\",\"n\":1}", true),
        ("{\"id\":\"…\",\"n\":1}", "{\"id\":\"x-7\",\"n\":2}", false),
        ("…b…d", "abcd", true),
        ("…b…d", "acbd", true),
        ("…b…d", "acd", false),
        ("a…", "b", false),
    ] {
        assert_eq!(is_as_shown(shown, text), same, "{shown} {text}");
    }
    let found =
        steps("```sh\none\n```\n\n```json\n1\n```\ntext\n```json\n2\n```\n```sh\ntwo\n```\ntext\n```text\n3\n```\n");
    let found: Vec<_> = found.iter().map(|step| (step.line, step.commands.as_str(), step.shown.as_deref())).collect();
    assert_eq!(found, [(1, "one", Some("1")), (12, "two", None)]);
}
