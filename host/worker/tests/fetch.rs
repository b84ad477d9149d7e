//! `warmhold-worker fetch`: a tree at one commit, or a clear error.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository of two commits with a hook that would leave a trace.
fn repository(directory: &Path) -> (String, String) {
    git(directory, &["init", "-q", "-b", "main", "."]);
    fs::write(directory.join("t.sh"), "echo one\n").unwrap();
    git(directory, &["add", "."]);
    git(directory, &["commit", "-q", "-m", "one"]);
    let one = git(directory, &["rev-parse", "HEAD"]);
    fs::write(directory.join("t.sh"), "echo two\n").unwrap();
    git(directory, &["commit", "-q", "-a", "-m", "two"]);
    (one, git(directory, &["rev-parse", "HEAD"]))
}

fn fetch(source: &str, cut: &str, into: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmhold-worker"))
        .args(["fetch", "--source", source, "--cut", cut, "--into"])
        .arg(into)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .output()
        .unwrap()
}

fn assert_error(output: &Output, status: i32, code: &str) {
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{words}");
    assert!(words.starts_with(&format!("error[{code}]: ")), "{words}");
}

#[test]
fn each_commit_can_be_had_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let (one, two) = repository(&source);
    let into = dir.path().join("into");
    for (cut, text) in [(&one, "echo one\n"), (&two, "echo two\n"), (&two, "echo two\n")] {
        let output = fetch(source.to_str().unwrap(), cut, &into);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_to_string(into.join("t.sh")).unwrap(), text);
        assert_eq!(git(&into, &["rev-parse", "HEAD"]), *cut);
        assert_eq!(git(&into, &["status", "--porcelain"]), "");
        // A tree that was changed since isn't kept.
        fs::write(into.join("stray"), "").unwrap();
    }
    assert_eq!(
        fs::read_dir(into.join(".git")).unwrap().flatten().filter(|entry| entry.file_name() == "hooks").count(),
        0
    );
    let url = format!("file://{}", source.display());
    assert!(fetch(&url, &one, &dir.path().join("by-url")).status.success());
}

#[test]
fn a_repository_of_another_owner_can_be_read() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_, two) = repository(dir.path());
    let owned = Command::new("chown").args(["-R", "12345:12345"]).arg(dir.path()).status().unwrap();
    assert!(owned.success());
    let into = tempfile::tempdir().unwrap();
    let output = fetch(dir.path().to_str().unwrap(), &two, into.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(into.path().join("t.sh")).unwrap()) == 0);
}

#[test]
fn faults_are_told_apart_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let (one, _) = repository(&source);
    let text = source.to_str().unwrap();
    let into = dir.path().join("into");
    let unknown = "1".repeat(40);
    assert_error(&fetch(text, &unknown, &into), 1, "unknown-commit");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
    // A tree is no commit.
    let tree = git(&source, &["rev-parse", &format!("{one}^{{tree}}")]);
    assert_error(&fetch(text, &tree, &into), 1, "unknown-commit");
    assert_error(&fetch("/not/there", &one, &into), 1, "no-repository");
    assert_error(&fetch(dir.path().to_str().unwrap(), &one, &into), 1, "no-repository");
    assert_error(&fetch("ext::sh -c true", &one, &into), 1, "no-repository");
    assert!(fetch(text, &one, &into).status.success());
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "").unwrap();
    assert_error(&fetch(text, &one, &full), 1, "not-empty");
    assert!(full.join("mine").exists());
    for cut in ["HEAD", "", "ABCDEF", one.get(..39).unwrap(), &one.to_uppercase().replace(char::is_numeric, "A")] {
        assert_error(&fetch(text, cut, &dir.path().join("x")), 2, "usage");
    }
    assert_error(&fetch("--upload-pack=x", &one, &dir.path().join("x")), 2, "usage");
    let output = Command::new(env!("CARGO_BIN_EXE_warmhold-worker"))
        .args(["fetch", "--source", text, "--cut", &one, "--into"])
        .arg(dir.path().join("y"))
        .env_clear()
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert_error(&output, 1, "no-git");
}

#[test]
fn the_users_configuration_and_the_sources_hooks_are_not_heard() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let (_, two) = repository(&source);
    let trace = dir.path().join("trace");
    let template = dir.path().join("template");
    fs::create_dir_all(template.join("hooks")).unwrap();
    let hook = template.join("hooks/post-checkout");
    fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", trace.display())).unwrap();
    std::os::unix::fs::chown(&hook, None, None).unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let config = format!("[init]\n\ttemplateDir = {0}\n[core]\n\thooksPath = {0}/hooks\n", template.display());
    fs::write(dir.path().join(".gitconfig"), config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warmhold-worker"))
        .args(["fetch", "--source", source.to_str().unwrap(), "--cut", &two, "--into"])
        .arg(dir.path().join("into"))
        .env("HOME", dir.path())
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "core.hooksPath")
        .env("GIT_CONFIG_VALUE_0", template.join("hooks"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!trace.exists());
}

#[test]
fn help_and_version_are_there() {
    let run = |argument: &str| Command::new(env!("CARGO_BIN_EXE_warmhold-worker")).arg(argument).output().unwrap();
    assert!(String::from_utf8_lossy(&run("--help").stdout).contains("Example:"));
    assert!(String::from_utf8_lossy(&run("--version").stdout).starts_with("warmhold-worker "));
    assert_error(&run("nonsense"), 2, "usage");
}
