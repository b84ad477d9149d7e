//! A daemon as a process.

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to serve on a slow machine.
const START: Duration = Duration::from_secs(60);

/// A running daemon; killed when it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
    /// Its address.
    pub url: String,
}

impl Daemon {
    /// Starts one and waits until it serves.
    ///
    /// # Errors
    /// It ended before it served; its log is in the error.
    pub fn start(program: &Path, root: &Path, folder: &Path, arguments: &[&str], log: &Path) -> Result<Self> {
        let out = log.with_extension("out");
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg("--root")
            .arg(root)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::options().create(true).append(true).open(log)?);
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let began = Instant::now();
        loop {
            let said = std::fs::read_to_string(&out).unwrap_or_default();
            if let Some(url) =
                said.lines().find_map(|line| line.split_whitespace().find(|word| word.starts_with("http://")))
            {
                return Ok(Self { child, log: log.to_owned(), url: url.trim_end_matches(['/', '.', ',']).to_owned() });
            }
            if let Some(status) = child.try_wait()? {
                bail!("the daemon ended with {status}:\n{}", std::fs::read_to_string(log).unwrap_or_default());
            }
            if began.elapsed() > START {
                let _ = child.kill();
                let _ = child.wait();
                bail!("the daemon doesn't serve:\n{}", std::fs::read_to_string(log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// It is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills it as a power cut would, and waits until it is gone.
    ///
    /// # Errors
    /// What the system answers.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and answers how it did.
    ///
    /// # Errors
    /// It is still there after 60 s.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > START {
                bail!("the daemon doesn't end:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
