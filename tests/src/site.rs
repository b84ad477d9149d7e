//! A place for one test: root, pods, repository, daemons.

use crate::compiled;
use crate::daemon::Daemon;
use crate::http::{Answer, Client};
use crate::pod::Pod;
use crate::programs::{Programs, workspace};
use crate::repository::Repository;
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A finished command.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its exit code; 128 and the signal where one ended it.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it said beside that.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let status = output.status;
        Self {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Waits for a command that [`Site::spawn`] started.
    ///
    /// # Errors
    /// What the system answers.
    pub fn end_of(child: Child) -> Result<Self> {
        Ok(child.wait_with_output()?.into())
    }

    /// Its output as JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("no JSON: {}\n{}", self.stdout, self.stderr))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    /// Whether compiled policies are shared with other sites.
    shares: bool,
    /// The programs in use.
    pub programs: Programs,
    /// The repository that workers get their source from.
    pub repository: Repository,
}

impl Site {
    /// A site of the debug build that shares compiled policies with other tests' sites.
    ///
    /// # Errors
    /// Something isn't built, or the system refuses.
    pub fn for_test() -> Result<Self> {
        let mut site = Self::new("debug")?;
        site.shares = true;
        Ok(site)
    }

    /// A site whose repository is the example project.
    ///
    /// # Errors
    /// Something isn't built, or the system refuses.
    pub fn new(build: &str) -> Result<Self> {
        Self::with_source(build, &workspace().join("examples/hello-tests"))
    }

    /// A site whose repository is made from a folder.
    ///
    /// # Errors
    /// Something isn't built, or the system refuses.
    pub fn with_source(build: &str, source: &Path) -> Result<Self> {
        let programs = Programs::of(build)?;
        let folder = tempfile::Builder::new().prefix("warmhold-").tempdir()?;
        // The tests' users must be able to cross it on their way to the pods.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711))?;
        let repository = Repository::from_folder(&folder.path().join("repository"), source)?;
        Ok(Self { folder, shares: false, programs, repository })
    }

    /// The folder of everything.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The daemon's root.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Writes `ROOT/warmhold.toml`.
    ///
    /// # Errors
    /// It can't be written.
    pub fn configure(&self, text: &str) -> Result<()> {
        std::fs::create_dir_all(self.root())?;
        std::fs::set_permissions(self.root(), std::fs::Permissions::from_mode(0o700))?;
        std::fs::write(self.root().join("warmhold.toml"), text)?;
        Ok(())
    }

    /// Makes the root a file system of 24 MiB, which is unmounted with the site; false where only root may mount.
    ///
    /// # Errors
    /// The folder can't be made.
    pub fn small_disk(&self) -> Result<bool> {
        if !rustix::process::geteuid().is_root() {
            return Ok(false);
        }
        std::fs::create_dir_all(self.root())?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m,mode=0700", "warmhold-test"])
            .arg(self.root())
            .status()?;
        Ok(mounted.success())
    }

    /// Starts a daemon on a free loopback port.
    ///
    /// # Errors
    /// It doesn't serve.
    pub fn serve(&self) -> Result<Daemon> {
        self.serve_with(&["--listen", "127.0.0.1:0"])
    }

    /// Starts a daemon with arguments of the caller's own.
    ///
    /// # Errors
    /// It doesn't serve.
    pub fn serve_with(&self, arguments: &[&str]) -> Result<Daemon> {
        self.serve_in(&self.repository.path, arguments)
    }

    /// Starts a daemon in a folder, which is its source where it is a git tree.
    ///
    /// # Errors
    /// It doesn't serve.
    pub fn serve_in(&self, folder: &Path, arguments: &[&str]) -> Result<Daemon> {
        let log = self.folder.path().join("daemon.log");
        if self.shares {
            compiled::seed(&self.root())?;
        }
        let daemon = Daemon::start(&self.programs.warmhold, &self.root(), folder, arguments, &log)?;
        if self.shares {
            compiled::keep(&self.root())?;
        }
        Ok(daemon)
    }

    /// A command of `warmhold` in the repository, for this root.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.warmhold);
        command
            .args(arguments)
            .env("WARMHOLD_ROOT", self.root())
            .env_remove("WARMHOLD_TOKEN")
            .current_dir(&self.repository.path)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command of `warmhold` to its end.
    ///
    /// # Errors
    /// It can't be started.
    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        Ok(self.command(arguments).output()?.into())
    }

    /// Starts a command of `warmhold`; [`Ran::end_of`] waits for it.
    ///
    /// # Errors
    /// It can't be started.
    pub fn spawn(&self, arguments: &[&str]) -> Result<Child> {
        Ok(self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// One of the root's tokens: `admin`, `member` or `query`.
    ///
    /// # Errors
    /// There are no tokens yet.
    pub fn token(&self, scope: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.root().join("control/tokens.json"))?;
        let tokens: Value = serde_json::from_str(&text)?;
        tokens.get(scope).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no token for {scope}"))
    }

    /// Asks a daemon over HTTP with one of the root's tokens.
    ///
    /// # Errors
    /// It gives no answer.
    pub fn ask(&self, daemon: &Daemon, scope: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        Client::new(&daemon.url, &self.token(scope)?).request(method, path, body, &[])
    }

    /// Sends bytes to a daemon with one of the root's tokens.
    ///
    /// # Errors
    /// It gives no answer.
    pub fn send(&self, daemon: &Daemon, scope: &str, method: &str, path: &str, body: Vec<u8>) -> Result<Answer> {
        Client::new(&daemon.url, &self.token(scope)?).send(method, path, body, &[])
    }

    /// The workers, as `worker list --json` shows them.
    ///
    /// # Errors
    /// The command fails.
    pub fn workers(&self) -> Result<Vec<Value>> {
        let ran = self.run(&["worker", "list", "--json"])?;
        Ok(ran.json()?.as_array().cloned().unwrap_or_default())
    }

    /// Fills slots, all of which must succeed: what `worker prepare --json` says of each.
    ///
    /// # Errors
    /// One wasn't filled.
    pub fn prepare(&self, count: usize) -> Result<Vec<Value>> {
        let ran = self.run(&["worker", "prepare", "--json", "--count", &count.to_string()])?;
        let prepared = ran.json()?.as_array().cloned().unwrap_or_default();
        anyhow::ensure!(ran.code == 0 && prepared.len() == count, "{count} workers: {ran:?}");
        Ok(prepared)
    }

    /// A worker, as `worker list --json` shows it; null when there is none of this name.
    ///
    /// # Errors
    /// The command fails.
    pub fn worker(&self, id: &str) -> Result<Value> {
        Ok(self.workers()?.into_iter().find(|worker| worker.get("workerId") == Some(&id.into())).unwrap_or_default())
    }

    /// The folder of local pods.
    #[must_use]
    pub fn pods(&self) -> PathBuf {
        self.folder.path().join("root-pods/warmhold")
    }

    /// A local pod by its name.
    #[must_use]
    pub fn pod(&self, name: &str) -> Pod {
        Pod { folder: self.pods().join(name) }
    }

    /// Processes that have to do with this site, but daemons that are still held: pods and what runs in them.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| *pid != std::process::id() && self.concerns(*pid))
            .collect()
    }

    fn concerns(&self, pid: u32) -> bool {
        let marker = self.folder.path().as_os_str().as_bytes();
        let holds = |bytes: &[u8]| bytes.windows(marker.len()).any(|window| window == marker);
        let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        holds(folder.as_os_str().as_bytes()) || holds(&file("cmdline")) || holds(&file("environ"))
    }
}

impl Drop for Site {
    /// Ends what is left of the site, so that its folder can go: pods outlive their daemon on purpose.
    fn drop(&mut self) {
        let began = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() || began.elapsed() > Duration::from_secs(10) {
                break;
            }
            for pid in left {
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        points.reverse();
        for point in points.into_iter().filter(|point| Path::new(point).starts_with(self.folder.path())) {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
