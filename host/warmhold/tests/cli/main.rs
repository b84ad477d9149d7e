//! The command line as a user meets it: the real program, a real server on loopback, real git repositories.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test that stops there has failed, and says why"
)]

mod doctor;
mod help;
mod ledger;
mod policy;
mod primary;
mod reach;
mod replay;
mod replays;
mod server;
mod token;
mod worker;

use serde_json::{Value, json};
use server::Server;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What a command did.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// Checks the exit code, with all that was printed when it is another one.
    #[track_caller]
    fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// A root and a place to stand, alone in the world.
struct World {
    folder: TempDir,
}

const ADMIN: char = 'a';
const MEMBER: char = 'b';
const QUERY: char = 'c';

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["root/control", "cwd", "home"] {
            fs::create_dir_all(folder.path().join(name)).expect("folders");
        }
        Self { folder }
    }

    /// A world whose root names this server as its daemon.
    fn with(server: &Server) -> Self {
        let world = Self::new();
        let token = |c: char| c.to_string().repeat(64);
        world.control("tokens.json", &json!({"admin": token(ADMIN), "member": token(MEMBER), "query": token(QUERY)}));
        world.control("daemon.json", &json!({"url": server.url(), "pid": std::process::id(), "version": "0.1.0"}));
        world
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn cwd(&self) -> PathBuf {
        self.folder.path().join("cwd")
    }

    fn control(&self, name: &str, content: &Value) {
        fs::write(self.root().join("control").join(name), content.to_string()).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmhold"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path().join("home"))
            .env("WARMHOLD_ROOT", self.root())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(self.cwd())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command();
        command.args(arguments);
        ran(&mut command)
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(&self.cwd(), arguments)
    }

    /// Makes the current folder a repository with these files committed, and answers the commit.
    fn commit(&self, files: &[&str]) -> String {
        for file in files {
            let path = self.cwd().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, "exit 0\n").expect("written");
        }
        self.git(&["init", "--quiet"]);
        self.git(&["add", "."]);
        self.git(&["-c", "user.name=t", "-c", "user.email=t@example", "commit", "--quiet", "-m", "first"]);
        self.git(&["rev-parse", "HEAD"])
    }
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("it runs");
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn git(at: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .current_dir(at)
        .args(arguments)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}
