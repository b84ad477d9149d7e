//! One request, from the command to the verdict.

use crate::artifacts::{self, Allowance};
use crate::beside::beside;
use crate::check::{self, Found, Rules, refuse};
use crate::data::Data;
use crate::execute::Ready;
use crate::helper::{Action, Helper, Order, Sandbox, checked};
use crate::identity::Identity;
use crate::network::{self, Reached};
use crate::output::Output;
use crate::snapshot::Snapshot;
use crate::tree::Place;
use crate::user::Powers;
use crate::watch::{GONE, Watch};
use crate::{USAGE, clean, execute, memory, processes, report, shared, sys};
use rustix::thread::UnshareFlags;
use std::collections::BTreeMap;
use std::io;
use std::process::{ExitCode, Stdio};
use std::time::Instant;
use warmhold_protocol::{
    Command, FileReason, FileResult, Frame, IsolationLevel, IsolationReport, PROTOCOL, Refusal, Verdict, read_command,
};

/// What a running request is made of.
pub(crate) struct Session<'a> {
    pub(crate) command: &'a Command,
    pub(crate) out: &'a mut Output,
    pub(crate) watch: &'a Watch,
    pub(crate) place: &'a Place,
    pub(crate) uid: Option<u32>,
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) deadline: Instant,
}

impl Session<'_> {
    /// Ends all processes of the request.
    ///
    /// # Errors
    /// What is still there.
    pub(crate) fn end_processes(&self) -> Result<(), Vec<String>> {
        clean::end_processes(self.uid)
    }

    fn abandoned(&self) -> bool {
        self.watch.gone() || self.out.failed()
    }
}

/// The command `run`.
pub(crate) fn run() -> ExitCode {
    if let Err(error) = harden() {
        report("io", &format!("this process can't be protected from its tests: {error}"), "");
        return ExitCode::from(USAGE);
    }
    let identity = match Identity::from_env() {
        Ok(identity) => identity,
        Err(message) => {
            report(
                "identity",
                &message,
                "the pod's manifest sets WARM_WORKER_ID, WARM_CUT, WARM_KEY, WARM_REPO and WARM_DATA",
            );
            return ExitCode::from(USAGE);
        }
    };
    let command = match read_command(io::stdin().lock()) {
        Ok(command) => command,
        Err(error) => {
            report("command", &error.to_string(), "the host writes one framed command to standard input");
            return ExitCode::from(USAGE);
        }
    };
    let arrived = Instant::now();
    let mut out = match Output::stdout() {
        Ok(out) => out,
        Err(error) => {
            report("io", &format!("standard output: {error}"), "");
            return ExitCode::from(USAGE);
        }
    };
    let mut verdict = blank(&command, &identity);
    let before = memory::kills();
    // Kept to the end, and with it the worker's lock: the next request must not begin before this one has answered.
    let request = Request::accept(&command, &identity, arrived);
    match &request {
        Ok(request) => {
            if !request.serve(&mut out, &mut verdict) {
                return ExitCode::from(GONE);
            }
        }
        Err(refused) => {
            verdict.clean = refused.unclean.is_empty();
            verdict.unclean.clone_from(&refused.unclean);
            verdict.refused = Some(refused.refusal.clone());
        }
    }
    verdict.oom_kills = memory::kills().unwrap_or(0).saturating_sub(before.unwrap_or(0));
    out.frame(&Frame::Verdict(Box::new(verdict)));
    out.flush();
    if out.failed() { ExitCode::from(GONE) } else { ExitCode::SUCCESS }
}

/// Nobody may look into this process, nothing that its starter left open reaches a test, and orphans come home.
fn harden() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    sys::close_inherited()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

fn blank(command: &Command, identity: &Identity) -> Verdict {
    Verdict {
        protocol: PROTOCOL,
        lease_id: command.lease_id.clone(),
        generation: command.generation,
        nonce: command.nonce.clone(),
        pod_uid: command.pod_uid.clone(),
        worker_id: identity.worker_id.clone(),
        key: identity.key.clone(),
        cut_sha: identity.cut.clone(),
        refused: None,
        files: Vec::new(),
        isolation: IsolationReport { level: IsolationLevel::Reduced, why: vec!["nothing ran".to_owned()] },
        clean: false,
        unclean: Vec::new(),
        oom_kills: 0,
    }
}

/// A refusal, and what is wrong with the worker beyond it.
struct Refused {
    refusal: Refusal,
    unclean: Vec<String>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        // A second request in one worker means that somebody's lease isn't what it should be.
        let unclean = if refusal.code == "busy" { vec![refusal.message.clone()] } else { Vec::new() };
        Self { refusal, unclean }
    }
}

/// A command that may run.
struct Request<'a> {
    command: &'a Command,
    identity: &'a Identity,
    data: Data,
    looked: Looked,
}

/// What a request finds before anything of it exists.
struct Looked {
    found: Vec<Found>,
    rules: Rules,
    deadline: Instant,
    powers: Powers,
    uid: Option<u32>,
    base: Snapshot,
}

impl Looked {
    fn around(command: &Command, identity: &Identity, data: &Data, arrived: Instant) -> Result<Self, Refused> {
        let left = check::time_left(command)?;
        let deadline = arrived + left.saturating_sub(check::reserve(left));
        let found = check::files(command, &identity.repo)?;
        let rules = Rules::compile(&command.rules)?;
        check::variables(&command.env)?;
        let powers = Powers::own();
        let uid = powers.uid(command.isolation.uid);
        if uid.is_some_and(|uid| uid == 0 || uid == u32::MAX) {
            return Err(refuse("bad-isolation", "tests can't run as root").into());
        }
        // Looking at a large tree takes as long as looking at everything else.
        let (base, left) = beside(|| Snapshot::take(&identity.repo), || left_behind(data, uid));
        let left = left?;
        if !left.is_empty() {
            // What an earlier request left is ended, but the worker isn't trusted any more.
            processes::end_leftovers(uid);
            let refusal = refuse("unclean", "an earlier request left something; replace this worker");
            return Err(Refused { refusal, unclean: left });
        }
        let base = base.map_err(|error| refuse("io", format!("the base tree: {error}")))?;
        Ok(Self { found, rules, deadline, powers, uid, base })
    }
}

impl<'a> Request<'a> {
    /// All that is looked at before anything of the request exists. The order is contract.
    fn accept(command: &'a Command, identity: &'a Identity, arrived: Instant) -> Result<Self, Refused> {
        check::identity(command, identity)?;
        let data = Data::open(&identity.data)?;
        data.admit(command.generation)?;
        // From here on the generation is spent, whatever is found. Writing that down waits for the disk.
        let (kept, looked) =
            beside(|| data.remember(command.generation), || Looked::around(command, identity, &data, arrived));
        kept.map_err(|error| {
            let place = identity.data.display();
            refuse("io", format!("generation {} can't be kept in {place}: {error}", command.generation))
        })?;
        Ok(Self { command, identity, data, looked: looked? })
    }

    /// Runs it and fills in the verdict; false when the host has gone and no verdict is wanted.
    fn serve(&self, out: &mut Output, verdict: &mut Verdict) -> bool {
        let watch = Watch::begin(self.looked.deadline, self.looked.uid).and_then(|watch| {
            out.give_up_on(watch.wake_for_others()?);
            Ok(watch)
        });
        let watch = match watch {
            Ok(watch) => watch,
            Err(error) => {
                verdict.refused = Some(refuse("io", format!("standard input can't be watched: {error}")));
                verdict.clean = true;
                return true;
            }
        };
        if let Err(refusal) = self.probe_host() {
            verdict.refused = Some(refusal);
            verdict.clean = true;
            return true;
        }
        let mut why = Vec::new();
        let network = self.close_network();
        let requests = self.data.requests();
        let plain = self.looked.base.belongs_to(0);
        let base = (self.identity.repo.as_path(), plain);
        let (place, made) =
            Place::make(&requests, self.command.generation, self.looked.uid, base, self.looked.powers.namespaces);
        let sandbox = self.sandbox(&place);
        let mut unclean = Vec::new();
        let mut session = Session {
            command: self.command,
            out,
            watch: &watch,
            place: &place,
            uid: self.looked.uid,
            sandbox,
            deadline: self.looked.deadline,
        };
        let ready = made.map_err(|error| refuse("io", error)).and_then(|()| {
            // The first test's process gets ready while another one proves what it will have; it becomes the test only then.
            let env = self.environment(session.place);
            let first = self.first(&session, &env);
            match self.prove(&session, &network, &mut why) {
                Ok(()) => Ok((env, first)),
                Err(refusal) => {
                    first.into_iter().filter_map(|(_, ready)| ready.ok()).for_each(Ready::end);
                    Err(refusal)
                }
            }
        });
        match ready {
            Err(refusal) => verdict.refused = Some(refusal),
            Ok((env, first)) => {
                let level = if why.is_empty() { IsolationLevel::Full } else { IsolationLevel::Reduced };
                verdict.isolation = IsolationReport { level, why };
                verdict.files = self.files(&mut session, &env, first, &mut unclean);
            }
        }
        let abandoned = session.abandoned();
        unclean.extend(clean::clean(&place, self.looked.uid, &self.looked.base, &self.identity.repo));
        unclean.dedup();
        verdict.clean = unclean.is_empty();
        verdict.unclean = unclean;
        !(abandoned || watch.gone())
    }

    fn probe_of(&self, asked: Option<&String>, own: Option<&String>) -> Option<String> {
        asked.or(own).filter(|url| !url.is_empty()).cloned()
    }

    /// The host must answer while the network is still there.
    fn probe_host(&self) -> Result<(), Refusal> {
        let url = self.probe_of(self.command.probes.host.as_ref(), self.identity.host_probe.as_ref());
        let Some(url) = url else { return Ok(()) };
        match network::probe(&url, network::HOST_PATIENCE) {
            Ok(Reached::Answered) => Ok(()),
            Ok(Reached::Connected) => {
                Err(refuse("host-probe-failed", format!("{url} is reached but doesn't speak HTTP")))
            }
            Ok(Reached::No(why)) => Err(refuse("host-probe-failed", format!("{url}: {why}"))),
            Err(why) => Err(refuse("host-probe-failed", why)),
        }
    }

    /// Leaves the network where that is wanted and permitted; else why it didn't.
    fn close_network(&self) -> Result<(), String> {
        if self.looked.powers.namespaces && self.looked.uid.is_some() {
            // What tests share through System V objects or message queues then ends with them; without this it is looked
            // for afterwards.
            let _ = sys::unshare(UnshareFlags::NEWIPC);
        }
        if !self.command.isolation.private_network {
            return Err("no private network was asked for".to_owned());
        }
        sys::unshare(UnshareFlags::NEWNET)
            .and_then(|()| network::loopback_up())
            .map_err(|error| format!("a private network can't be had here ({error})"))
    }

    /// Where the tests can't have a user of their own, Landlock keeps them to their directories.
    fn sandbox(&self, place: &Place) -> Option<Sandbox> {
        if self.looked.uid.is_some() {
            return None;
        }
        let hide = self.command.isolation.hide.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
        Some(Sandbox { hide, write: place.writable() })
    }

    /// Proves from inside what the tests will have: their user, their directories and a closed network.
    fn prove(&self, session: &Session<'_>, network: &Result<(), String>, why: &mut Vec<String>) -> Result<(), Refusal> {
        let closed = network.is_ok();
        let probe = self.probe_of(self.command.probes.prod.as_ref(), self.identity.prod_probe.as_ref());
        let probed = probe.is_some();
        let action = Action::Check { tree: session.place.tree(), write: session.place.writable(), probe, closed };
        let order = Order { uid: session.uid, sandbox: session.sandbox.clone(), action };
        let io = |error: String| refuse("io", error);
        let mut helper =
            Helper::start(&order, Stdio::null(), Stdio::null()).map_err(|error| io(format!("a helper: {error}")))?;
        let answer = match helper.answer().map_err(|error| error.to_string()).and_then(checked) {
            Ok(answer) => answer,
            Err(error) => {
                helper.end();
                return Err(io(error));
            }
        };
        let seen = session.uid.is_none_or(|uid| processes::visible(helper.pid, uid));
        helper.end();
        if !seen {
            return Err(io("/proc hides the tests' processes, so nothing could be proven about them".to_owned()));
        }
        match answer.probe {
            Some(Reached::Answered | Reached::Connected) => {
                return Err(refuse("prod-probe-answered", "production can be reached from where the tests would run"));
            }
            Some(Reached::No(_)) | None => {}
        }
        if session.uid.is_none() {
            why.push("the worker isn't root with the needed capabilities: the tests run as its own user".to_owned());
        }
        why.extend(answer.notes);
        // Either proves it: a network without a way out, or a production probe that found none.
        if let Err(missing) = network
            && !probed
        {
            why.push(format!("{missing} and no production probe is set: nothing proves the network closed"));
        }
        Ok(())
    }

    /// The process of the first file, when that is one that can run.
    fn first(&self, session: &Session<'_>, env: &BTreeMap<String, String>) -> Option<(u32, Result<Ready, String>)> {
        let name = self.command.files.first()?;
        let found = self.looked.found.first().is_some_and(|found| *found != Found::Missing);
        let argv = self.looked.rules.argv(name).filter(|_| found)?;
        Some((0, Ready::begin(session, 0, argv, env)))
    }

    /// Every file in order.
    fn files(
        &self,
        session: &mut Session<'_>,
        env: &BTreeMap<String, String>,
        mut first: Option<(u32, Result<Ready, String>)>,
        unclean: &mut Vec<String>,
    ) -> Vec<FileResult> {
        let mut allowance = Allowance { count: artifacts::MOST, bytes: artifacts::MOST_BYTES };
        let mut results = Vec::with_capacity(self.command.files.len());
        for (index, (name, found)) in (0_u32..).zip(self.command.files.iter().zip(&self.looked.found)) {
            results.push(if *found == Found::Missing {
                execute::not_run(name, FileReason::Missing, "the cut has no such file")
            } else if !unclean.is_empty() {
                execute::not_run(name, FileReason::NotRun, "an earlier file left processes that can't be ended")
            } else if session.abandoned() || self.looked.deadline <= Instant::now() {
                execute::not_run(name, FileReason::NotRun, "no time was left")
            } else if let Some(argv) = self.looked.rules.argv(name) {
                let ready = match first.take_if(|(of, _)| *of == index) {
                    Some((_, ready)) => ready,
                    None => Ready::begin(session, index, argv, env),
                };
                let (mut result, ended) = execute::file(session, index, name, ready);
                unclean.extend(ended.err().unwrap_or_default());
                if unclean.is_empty() {
                    collect(session, index, &mut result, &mut allowance, unclean);
                }
                result
            } else {
                execute::not_run(name, FileReason::NoRule, "no rule of the profile matches this path")
            });
        }
        // Its file wasn't run after all.
        first.into_iter().filter_map(|(_, ready)| ready.ok()).for_each(Ready::end);
        results
    }

    /// All that a test finds in its environment.
    fn environment(&self, place: &Place) -> BTreeMap<String, String> {
        let mut env = BTreeMap::from([("PATH".to_owned(), self.identity.path.clone())]);
        env.extend(self.command.env.clone());
        let fixed = [("TZ", "UTC"), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8")];
        env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let directories = [
            ("HOME", "state"),
            ("TMPDIR", "tmp"),
            ("XDG_STATE_HOME", "state"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_CACHE_HOME", "cache"),
            ("XDG_DATA_HOME", "data"),
            ("XDG_RUNTIME_DIR", "runtime"),
            ("WARM_ARTIFACTS", "artifacts"),
        ];
        let path = |name: &str| place.own(name).to_string_lossy().into_owned();
        env.extend(directories.map(|(name, directory)| (name.to_owned(), path(directory))));
        env.extend(self.command.baseline_sha.clone().map(|sha| ("WARM_BASELINE_SHA".to_owned(), sha)));
        env
    }
}

/// What is there of an earlier request, in words.
fn left_behind(data: &Data, uid: Option<u32>) -> Result<Vec<String>, Refusal> {
    let io = |what: &str, error: io::Error| refuse("io", format!("{what}: {error}"));
    let mut left = data.leftovers().map_err(|error| io("leftovers", error))?;
    left.extend(processes::living(uid, None).map_err(|error| io("the process table", error))?);
    left.extend(uid.map(shared::left_by).unwrap_or_default());
    Ok(left)
}

fn collect(
    session: &mut Session<'_>,
    index: u32,
    result: &mut FileResult,
    allowance: &mut Allowance,
    unclean: &mut Vec<String>,
) {
    match artifacts::collect(&session.place.own("artifacts"), session.uid, index, allowance, session.out) {
        Ok((artifacts, notes)) => {
            result.artifacts = artifacts;
            let told = result.detail.take().into_iter().chain(notes).collect::<Vec<_>>().join("; ");
            result.detail = (!told.is_empty()).then_some(told);
        }
        Err(error) => unclean.push(format!("the artifacts of {}: {error}", result.file)),
    }
    session.out.flush();
}
