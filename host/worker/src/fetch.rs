//! Clones a repository at one commit, with nothing of the user's or the system's git configuration in play.

use crate::{USAGE, remove, report};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

/// What to fetch and where to put it.
#[derive(Debug)]
pub(crate) struct Request {
    source: OsString,
    cut: String,
    into: PathBuf,
}

impl Request {
    /// Reads `--source S --cut SHA --into DIR`, in any order.
    ///
    /// # Errors
    /// What is wrong, in a sentence.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut source, mut cut, mut into) = (None, None, None);
        while let Some(name) = arguments.next() {
            let slot = match name.to_str() {
                Some("--source") => &mut source,
                Some("--cut") => &mut cut,
                Some("--into") => &mut into,
                _ => return Err(format!("fetch doesn't know {}", name.to_string_lossy())),
            };
            let value = arguments.next().ok_or_else(|| format!("{} needs a value", name.to_string_lossy()))?;
            if slot.replace(value).is_some() {
                return Err(format!("{} is given twice", name.to_string_lossy()));
            }
        }
        let source = source.filter(|source| !source.is_empty()).ok_or("fetch needs --source")?;
        if source.to_string_lossy().starts_with('-') {
            return Err("a source can't begin with a dash".to_owned());
        }
        let cut = cut.ok_or("fetch needs --cut")?.into_string().unwrap_or_default();
        if cut.len() != 40 || !cut.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err("--cut must be a whole commit id, 40 lower-case hex digits".to_owned());
        }
        Ok(Self { source, cut, into: PathBuf::from(into.ok_or("fetch needs --into")?) })
    }
}

/// Present in trees that this program made, and only they are ever replaced.
const MARK: &str = ".git/warmhold-fetch";

/// Why nothing was fetched.
struct Failure {
    code: &'static str,
    message: String,
    help: &'static str,
}

/// Fetches, and says how it went by the exit status.
pub(crate) fn fetch(request: &Request) -> ExitCode {
    let failure = match begin(&request.into) {
        Ok(()) => match fill(request) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => {
                // Half a tree must not be taken for a whole one, and the next try needs an empty place.
                let _ = remove::empty(&request.into);
                failure
            }
        },
        Err(failure) => failure,
    };
    report(failure.code, &failure.message, failure.help);
    ExitCode::from(if failure.code == "usage" { USAGE } else { 1 })
}

/// Makes an empty directory; an earlier fetch is thrown away, since its tree may have been changed since.
fn begin(into: &Path) -> Result<(), Failure> {
    let failed = |message: String| Failure { code: "io", message, help: "" };
    if into.join(MARK).exists() {
        remove::empty(into).map_err(failed)?;
    }
    fs::create_dir_all(into).map_err(|error| failed(format!("{}: {error}", into.display())))?;
    let mut entries = fs::read_dir(into).map_err(|error| failed(format!("{}: {error}", into.display())))?;
    if entries.next().is_some() {
        return Err(Failure {
            code: "not-empty",
            message: format!("{} isn't empty and wasn't made by fetch", into.display()),
            help: "give a directory that is empty or doesn't exist",
        });
    }
    Ok(())
}

fn fill(request: &Request) -> Result<(), Failure> {
    let Request { source, cut, into } = request;
    let failed =
        |what: &str, words: String| Failure { code: "fetch-failed", message: format!("{what}: {words}"), help: "" };
    git(into, ["init", "--quiet", "--template=", "--initial-branch=cut", "."])?
        .map_err(|words| failed("a repository can't be made", words))?;
    fs::write(into.join(MARK), "made by warmhold-worker fetch\n").map_err(|error| failed(MARK, error.to_string()))?;
    let from = |first: &[&'static str], last: &[&OsStr]| -> Vec<OsString> {
        // A local repository of another owner is read by a second git, which doesn't hear this one's `-c`.
        let reader = "--upload-pack=git -c safe.directory=* upload-pack";
        let first = first.iter().map(OsString::from).chain([OsString::from(reader), OsString::from("--")]);
        first.chain([source.clone()]).chain(last.iter().map(OsString::from)).collect()
    };
    git(into, from(&["ls-remote", "--quiet"], &[]))?.map_err(|words| Failure {
        code: "no-repository",
        message: format!("{} can't be read as a git repository: {words}", source.to_string_lossy()),
        help: "give the path or URL of a git repository that this user may read",
    })?;
    let quiet = &["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"];
    let exact = git(into, from(quiet, &[OsStr::new(cut)]))?;
    if exact.is_err() {
        // Old servers give only what a reference names.
        git(into, from(quiet, &[OsStr::new("+refs/*:refs/fetched/*")]))?
            .map_err(|words| failed("the fetch failed", words))?;
    }
    let commit = format!("{cut}^{{commit}}");
    git(into, ["cat-file", "-e", commit.as_str()])?.map_err(|_| Failure {
        code: "unknown-commit",
        message: format!("{} has no commit {cut}", source.to_string_lossy()),
        help: "commit (and push) it to that repository first",
    })?;
    git(into, ["checkout", "--quiet", "--force", "--detach", cut])?
        .map_err(|words| failed("the checkout failed", words))?;
    let head = git(into, ["rev-parse", "HEAD"])?.map_err(|words| failed("the result can't be checked", words))?;
    if head.trim() == cut { Ok(()) } else { Err(failed("the result is wrong", format!("HEAD is {}", head.trim()))) }
}

/// Runs git in a directory: its output, or its words when it fails.
fn git<I: IntoIterator<Item: AsRef<OsStr>>>(directory: &Path, arguments: I) -> Result<Result<String, String>, Failure> {
    let settings = [
        "safe.directory=*",
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "gc.auto=0",
        "maintenance.auto=false",
        "submodule.recurse=false",
        "credential.helper=",
        "protocol.ext.allow=never",
        "advice.detachedHead=false",
    ];
    let mut command = Command::new("git");
    for setting in settings {
        command.args(["-c", setting]);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let output = command
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ASKPASS", "true")
        .env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
        .env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap_or(directory))
        .stdin(Stdio::null())
        .output();
    let Output { status, stdout, stderr } = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure {
            code: "no-git",
            message: "the program git isn't on the PATH".to_owned(),
            help: "use an image that has git",
        },
        _ => Failure { code: "fetch-failed", message: format!("git can't be started: {error}"), help: "" },
    })?;
    if status.success() {
        return Ok(Ok(String::from_utf8_lossy(&stdout).into_owned()));
    }
    let words = String::from_utf8_lossy(&stderr);
    let mut lines = words.lines().filter(|line| !line.trim().is_empty());
    let first = lines.find(|line| line.starts_with("fatal:") || line.starts_with("error:"));
    let first = first.or_else(|| words.lines().next()).unwrap_or("git said nothing");
    Ok(Err(first.chars().take(300).collect()))
}
