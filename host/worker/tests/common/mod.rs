//! A pod for tests: real directories, the real worker as a process, real scripts.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use warmhold_protocol::{
    Command, ENV_PROFILE, Frame, FrameReader, Isolation, PROTOCOL, Probes, Rule, Stream, Verdict, WorkerKey, env,
    write_command,
};

pub(crate) const CUT: &str = "0123456789abcdef0123456789abcdef01234567";

pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// How the worker is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// As the tests themselves are.
    Own,
    /// Root with the four capabilities that a pod's container has.
    Pod,
    /// A user who may nothing.
    User,
}

pub(crate) struct Pod {
    home: PathBuf,
    /// Removed at the end; none where the test has made the place itself.
    _dir: Option<TempDir>,
    pub(crate) uid: u32,
    pub(crate) power: Power,
    pub(crate) variables: Vec<(String, String)>,
}

/// A user of its own for each pod (and the next id for its worker, where that isn't root), so that tests that run at once don't take each other's processes for leftovers.
fn fresh_uid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    200_000 + (std::process::id() % 20_000) * 100 + NEXT.fetch_add(2, Ordering::SeqCst) % 100
}

impl Pod {
    pub(crate) fn new() -> Self {
        Self::with(Power::Own)
    }

    pub(crate) fn with(power: Power) -> Self {
        let dir = tempfile::Builder::new().prefix("warmhold-worker-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let home = dir.path().to_owned();
        Self::make(home, Some(dir), power)
    }

    /// In a directory of the test's own, which exists.
    pub(crate) fn at(home: &Path, power: Power) -> Self {
        Self::make(home.to_owned(), None, power)
    }

    fn make(home: PathBuf, dir: Option<TempDir>, power: Power) -> Self {
        let pod = Self { home, _dir: dir, uid: fresh_uid(), power, variables: Vec::new() };
        fs::create_dir(pod.repo()).unwrap();
        fs::create_dir(pod.data()).unwrap();
        if power == Power::User {
            std::os::unix::fs::chown(pod.data(), Some(pod.uid + 1), Some(pod.uid + 1)).unwrap();
        }
        pod
    }

    pub(crate) fn path(&self) -> &Path {
        &self.home
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.home.join("repo")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// A file of the base tree.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.repo().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn key(&self) -> WorkerKey {
        WorkerKey {
            context: "local".to_owned(),
            image_digest: format!("sha256:{}", "a".repeat(64)),
            lock_hash: "b".repeat(64),
            architecture: "amd64".to_owned(),
        }
    }

    pub(crate) fn command(&self, files: &[&str]) -> Command {
        let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let rule = |pattern: &str, run: &[&str]| Rule {
            pattern: pattern.to_owned(),
            run: run.iter().map(|&argument| argument.to_owned()).collect(),
        };
        Command {
            protocol: PROTOCOL,
            lease_id: "lease-1".to_owned(),
            generation: 1,
            nonce: "7f3c9a1e5b8d2046".to_owned(),
            pod_uid: "pod-1".to_owned(),
            worker_id: "worker-1".to_owned(),
            key: self.key(),
            run_id: "run-1".to_owned(),
            attempt_id: "1".to_owned(),
            cut_sha: CUT.to_owned(),
            baseline_sha: None,
            env_profile: ENV_PROFILE.to_owned(),
            requested_at: now,
            deadline_at: now + 60_000,
            budget_ms: 60_000,
            files: files.iter().map(|&file| file.to_owned()).collect(),
            rules: vec![
                rule("*.sh", &["sh", "{file}"]),
                rule("*.py", &["/usr/bin/python3", "{file}"]),
                rule("*.mjs", &["node", "--test", "{file}"]),
            ],
            env: BTreeMap::new(),
            stream_limit: 64 * 1024 * 1024,
            probes: Probes::default(),
            isolation: Isolation { uid: Some(self.uid), private_network: true, hide: Vec::new() },
        }
    }

    /// Starts the worker and gives it the command.
    pub(crate) fn start(&self, command: &Command) -> Running {
        let mut running = self.start_silent();
        write_command(running.stdin.as_mut().unwrap(), command).unwrap();
        running
    }

    /// Starts the worker and says nothing yet.
    pub(crate) fn start_silent(&self) -> Running {
        let worker = env!("CARGO_BIN_EXE_warmhold-worker");
        let mut process = match self.power {
            Power::Own => Process::new(worker),
            Power::Pod => {
                let mut process = Process::new("setpriv");
                process.args(["--bounding-set=-all,+chown,+setuid,+setgid,+kill", "--inh-caps=-all", worker]);
                process
            }
            Power::User => {
                // The build's own directory may be closed to others.
                let copy = self.path().join("warmhold-worker");
                if !copy.exists() {
                    // By another process: one that this one forks meanwhile would hold the file open for writing, and
                    // the kernel starts no such file.
                    assert!(Process::new("cp").arg(worker).arg(&copy).status().unwrap().success());
                }
                let mut process = Process::new(copy);
                process.uid(self.uid + 1).gid(self.uid + 1);
                process
            }
        };
        let mut child = process
            .arg("run")
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SECRET", "must not be inherited")
            .env(env::WORKER_ID, "worker-1")
            .env(env::CUT, CUT)
            .env(env::KEY, serde_json::to_string(&self.key()).unwrap())
            .env(env::REPO, self.repo())
            .env(env::DATA, self.data())
            .envs(self.variables.clone())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running { stdin: child.stdin.take(), frames: FrameReader::default(), reply: Reply::default(), child }
    }

    pub(crate) fn run(&self, command: &Command) -> Reply {
        self.start(command).finish()
    }

    /// Runs one script and gives its verdict.
    pub(crate) fn script(&self, name: &str, text: &str) -> Reply {
        self.file(name, text);
        self.run(&self.command(&[name]))
    }

    /// What the worker must have left behind: nothing.
    pub(crate) fn assert_empty(&self) {
        let left: Vec<_> =
            fs::read_dir(self.data().join("requests")).map_or_else(|_| Vec::new(), |all| all.flatten().collect());
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(processes_of(self.uid), Vec::<String>::new());
    }
}

/// Live processes of a user.
pub(crate) fn processes_of(uid: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let uid_line = format!("\nUid:\t{uid}\t");
        if status.contains(&uid_line) && !status.contains("\nState:\tZ") {
            found.push(status.lines().next().unwrap().to_owned());
        }
    }
    found
}

/// All that a worker said.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) verdict: Option<Verdict>,
    pub(crate) begun: Vec<u32>,
    pub(crate) streams: BTreeMap<(u32, bool), Vec<u8>>,
    pub(crate) artifacts: BTreeMap<(u32, String), Vec<u8>>,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stderr: String,
}

impl Reply {
    pub(crate) fn verdict(&self) -> &Verdict {
        self.verdict.as_ref().unwrap_or_else(|| panic!("no verdict; {:?}; {}", self.status, self.stderr))
    }

    pub(crate) fn stdout(&self, file: u32) -> String {
        String::from_utf8_lossy(self.streams.get(&(file, false)).map_or(&[][..], Vec::as_slice)).into_owned()
    }

    pub(crate) fn stderr_of(&self, file: u32) -> String {
        String::from_utf8_lossy(self.streams.get(&(file, true)).map_or(&[][..], Vec::as_slice)).into_owned()
    }

    /// One file that exited 0 in a worker that is clean.
    pub(crate) fn assert_passed(&self) -> &Verdict {
        let verdict = self.verdict();
        let said = format!("{verdict:#?}\n{}\n{}", self.stdout(0), self.stderr_of(0));
        assert!(verdict.passed() && verdict.clean, "{said}");
        verdict
    }

    pub(crate) fn refusal(&self) -> &str {
        let verdict = self.verdict();
        assert!(self.begun.is_empty() && verdict.files.is_empty(), "{verdict:?}");
        &verdict.refused.as_ref().unwrap_or_else(|| panic!("{verdict:?}")).code
    }
}

pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    frames: FrameReader,
    pub(crate) reply: Reply,
}

impl Running {
    /// The next frame, kept; false at the end of the stream.
    pub(crate) fn step(&mut self) -> bool {
        let out = self.child.stdout.as_mut().unwrap();
        match self.frames.read_from(out).unwrap() {
            None => return false,
            Some(Frame::Begin { file }) => self.reply.begun.push(file),
            Some(Frame::Output { file, stream, bytes }) => {
                self.reply.streams.entry((file, stream == Stream::Stderr)).or_default().extend(bytes);
            }
            Some(Frame::Artifact { file, suffix, bytes }) => {
                self.reply.artifacts.entry((file, suffix)).or_default().extend(bytes);
            }
            Some(Frame::Verdict(verdict)) => {
                assert!(self.reply.verdict.is_none(), "two verdicts");
                self.reply.verdict = Some(*verdict);
            }
        }
        true
    }

    /// Reads until the text has come out of the first file.
    pub(crate) fn until(&mut self, text: &str) {
        while !self.reply.stdout(0).contains(text) {
            assert!(self.step(), "{text} never came: {:?}", self.reply);
        }
    }

    pub(crate) fn finish(mut self) -> Reply {
        while self.step() {
            assert!(self.reply.verdict.is_none() || self.frames.is_empty(), "something follows the verdict");
        }
        BufReader::new(self.child.stderr.take().unwrap()).read_to_string(&mut self.reply.stderr).unwrap();
        self.reply.status = Some(self.child.wait().unwrap());
        drop(self.stdin.take());
        check_digests(&self.reply);
        self.reply
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }
}

/// Every stream and artifact is what the verdict says.
fn check_digests(reply: &Reply) {
    use sha2::{Digest, Sha256};
    let hash = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let Some(verdict) = &reply.verdict else { return };
    let mut artifacts = 0;
    for (index, file) in (0_u32..).zip(&verdict.files) {
        for (stderr, digest) in [(false, &file.stdout), (true, &file.stderr)] {
            let bytes = reply.streams.get(&(index, stderr)).map_or(&[][..], Vec::as_slice);
            assert_eq!((bytes.len() as u64, hash(bytes)), (digest.bytes, digest.sha256.clone()), "{}", file.file);
        }
        for artifact in &file.artifacts {
            let bytes = &reply.artifacts[&(index, artifact.suffix.clone())];
            assert_eq!((bytes.len() as u64, hash(bytes)), (artifact.digest.bytes, artifact.digest.sha256.clone()));
            artifacts += 1;
        }
    }
    assert_eq!(artifacts, reply.artifacts.len());
}
