//! A request's process in a pod, from its start to the proof that nothing of it is left.

use super::cgroup::Group;
use super::container::Container;
use super::create::{clean, quoted};
use super::kill::{Scope, describe};
use super::place::{Lock, Place, try_lock};
use super::process::Identity;
use super::settle::limits;
use super::spawn::{self, Program};
use super::{Inner, uid};
use crate::exec::CarrierExit;
use crate::transport::collect;
use crate::{ExecError, ExecReply, ExecRequest, PodsError};
use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::time::{Instant, timeout, timeout_at};
use warmhold_protocol::{Command, write_command};

/// The most of the worker's own standard error that is kept for people, in bytes.
const TAIL: usize = 4096;
/// How long processes that were killed may take to go.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the worker may take to end after its last word.
const FAREWELL: Duration = Duration::from_secs(5);

type Tail = Arc<Mutex<VecDeque<u8>>>;

pub(super) async fn exec(inner: &Arc<Inner>, request: ExecRequest) -> Result<ExecReply, ExecError> {
    if Instant::now() >= request.deadline {
        return Err(ExecError::TimedOut("nothing was left of the deadline; nothing was started".to_owned()));
    }
    let started = {
        let (inner, request) = (Arc::clone(inner), request.clone());
        tokio::task::spawn_blocking(move || start(&inner, &request)).await
    };
    let mut running =
        started.unwrap_or_else(|error| Err(ExecError::Failed(format!("starting the worker: {error}"))))?;
    let tail = Tail::default();
    let conversation = timeout_at(request.deadline, converse(&mut running, &request, &tail)).await;
    let said = || quoted(&tail_text(&tail));
    let outcome = match conversation {
        Ok(outcome) => outcome,
        Err(_) => {
            let left = running.end().await;
            return Err(ExecError::TimedOut("the deadline came before the verdict; the request was killed".to_owned())
                .also(&left)
                .also(said().trim_start_matches("; ")));
        }
    };
    // Whatever the stream says, the worker ends now: its standard input is closed.
    let exit = match timeout_at(request.deadline.min(Instant::now() + FAREWELL), running.child.wait()).await {
        Ok(Ok(exit)) => Some(exit),
        _ => None,
    };
    let left = running.end().await;
    match outcome {
        Ok((mut verdict, files)) => {
            if !left.is_empty() {
                verdict.clean = false;
                verdict.unclean.push(format!("the host found that {left}"));
            }
            if exit.is_none() {
                verdict.clean = false;
                verdict.unclean.push("the worker didn't end after its verdict; the host killed it".to_owned());
            }
            Ok(ExecReply { verdict, files, exit: exit.and_then(carrier) })
        }
        Err(error) => {
            let error = match (error, exit.and_then(carrier)) {
                (ExecError::NoVerdict(text) | ExecError::Truncated(text), Some(CarrierExit::Signal(signal))) => {
                    ExecError::Killed(format!("signal {signal}; {text}"))
                }
                (ExecError::NoVerdict(text), Some(CarrierExit::Code(code))) => {
                    ExecError::NoVerdict(format!("{text}; the worker's exit status was {code}"))
                }
                (error, _) => error,
            };
            Err(error.also(&left).also(said().trim_start_matches("; ")))
        }
    }
}

/// A started request. Dropped, it is killed.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    remains: Remains,
    /// Held as long as anything of the request may run.
    turn: Option<Lock>,
    over: bool,
}

impl Running {
    /// Kills what is left and answers what was, in words; empty when there was nothing.
    ///
    /// What still runs when the worker has ended by itself was left by it.
    async fn end(&mut self) -> String {
        drop(self.stdin.take());
        let (remains, own) = (self.remains.clone(), self.child.id());
        let swept = tokio::task::spawn_blocking(move || remains.sweep(own)).await;
        let _ = timeout(PATIENCE, self.child.wait()).await;
        self.over = true;
        let swept = swept.unwrap_or_else(|error| format!("nobody could look for its processes: {error}"));
        if !swept.is_empty() && swept.contains(STUCK) {
            // The next request must not start beside it.
            tracing::error!(left = %swept, "a request's processes don't end");
        }
        self.turn = None;
        swept
    }
}

const STUCK: &str = "don't end";

/// Where to look for what is left of a request.
#[derive(Clone)]
struct Remains {
    place: Place,
    pod_uid: String,
    scope: Scope,
}

impl Remains {
    /// Ends everything of the request. `own` is its first process, where it still runs: that one isn't worth a word.
    fn sweep(&self, own: Option<u32>) -> String {
        // The control group is the whole proof where there is one: nothing of a pod can leave it, and it can't be removed
        // while anything runs in it. The other marks are looked at only when something is there, or when there is no
        // group.
        match &self.scope.group {
            Some(group) if own.is_none() && group.remove() => String::new(),
            _ => self.end_all(own),
        }
    }

    fn end_all(&self, own: Option<u32>) -> String {
        let guard = self.place.lock();
        let local = self.place.read_local();
        let ours = guard.is_ok() && local.is_ok_and(|local| local.is_some_and(|local| local.pod_uid == self.pod_uid));
        // A pod that was removed under the request took everything of it along, and a new one may have its directory and
        // its user by now: then only what nobody else can have is looked at.
        let scope = if ours {
            self.scope.clone()
        } else {
            Scope { roots: self.scope.roots.clone(), group: self.scope.group.clone(), ..Scope::default() }
        };
        match scope.kill(PATIENCE) {
            Err(left) => format!("these processes of the request {STUCK}: {left}"),
            Ok(_) if own.is_some() => String::new(),
            Ok(found) if !found.is_empty() => {
                format!("processes of the request were left, and were killed: {}", describe(&found))
            }
            Ok(_) if scope.group.is_some() && ours => {
                "processes of the request were left, too fast to be listed, and were killed".to_owned()
            }
            Ok(_) => String::new(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // The caller went away in the middle. A thread of its own: the runtime may be going away too.
        let (remains, own, turn) = (self.remains.clone(), self.child.id(), self.turn.take());
        let _ = self.child.start_kill();
        let act = move || {
            remains.sweep(own);
            drop(turn);
        };
        if let Err(error) = std::thread::Builder::new().name("request-end".to_owned()).spawn(act) {
            tracing::error!(%error, "no thread to end a request; its first process was killed");
        }
    }
}

/// Everything up to the worker that waits for its command.
fn start(inner: &Inner, request: &ExecRequest) -> Result<Running, ExecError> {
    let failed = |error: PodsError| ExecError::Failed(error.to_string());
    super::known(&request.target.context).map_err(failed)?;
    let place = Place::new(&inner.root, &request.target.namespace, &request.pod).map_err(failed)?;
    let wrong = |text: String| ExecError::WrongPod(text);
    let pod =
        inner.look(&place).map_err(failed)?.ok_or_else(|| wrong(format!("the pod `{}` doesn't exist", place.name)))?;
    if uid(&pod) != request.command.pod_uid {
        return Err(wrong(format!(
            "the pod `{}` has the UID {}, the lease is for {}",
            place.name,
            uid(&pod),
            request.command.pod_uid
        )));
    }
    // Under the lock: the pod can't be deleted between the last look and the process that then is in its group.
    let guard = place.lock().map_err(failed)?;
    let local =
        place.read_local().map_err(failed)?.filter(|local| local.pod_uid == request.command.pod_uid && !local.deleting);
    let local = local.ok_or_else(|| wrong(format!("the pod `{}` is being removed", place.name)))?;
    let container = Container::find(&request.container, &pod, &place, &inner.programs).map_err(failed)?;
    let container = container.ok_or_else(|| {
        ExecError::Failed(format!("the pod `{}` has no container `{}`", place.name, request.container))
    })?;
    if !local.processes.get(&container.name).is_some_and(Identity::alive) {
        return Err(ExecError::Failed(format!(
            "the container `{}` of the pod `{}` doesn't run",
            container.name, place.name
        )));
    }
    let turn = turn(&place)?;
    let (parent, data_limit) = limits(&container, &local).map_err(failed)?;
    let spare: Vec<Identity> = local.processes.values().cloned().collect();
    let mut scope =
        Scope { uid: local.request_uid, directory: Some(place.directory.clone()), spare, ..Scope::default() };
    clear(&place, parent.as_ref(), &scope)?;
    let group = parent
        .map(|parent| parent.child(&format!("request-{}", uuid::Uuid::new_v4().simple())))
        .transpose()
        .map_err(|error| ExecError::Failed(format!("a control group for the request: {error}")))?;
    scope.group = group.clone();
    let argv = container.program(&request.argv);
    let program = Program { argv: &argv, env: &container.env, cwd: &container.cwd, cgroup: group.as_ref(), data_limit };
    let spawned = spawn::command(&program).and_then(|mut command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        tokio::process::Command::from(command).spawn()
    });
    let failed_start = |text: String| {
        if let Some(group) = &group {
            group.remove();
        }
        ExecError::Failed(text)
    };
    let mut child = spawned.map_err(|error| {
        failed_start(format!("starting `{}`: {error}", argv.first().map(String::as_str).unwrap_or_default()))
    })?;
    if let Some(root) = child.id().and_then(|pid| Identity::of(pid).ok()) {
        scope.roots.push(root);
    }
    drop(guard);
    let stdin = child.stdin.take();
    let remains = Remains { place, pod_uid: local.pod_uid, scope };
    Ok(Running { child, stdin, remains, turn: Some(turn), over: false })
}

/// One request at a time, whatever the ledger says.
fn turn(place: &Place) -> Result<Lock, ExecError> {
    let path = place.request_file();
    match try_lock(&path) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(ExecError::Failed(format!("another request runs in the pod `{}`", place.name))),
        Err(error) => Err(ExecError::Failed(format!("locking {}: {error}", path.display()))),
    }
}

/// Nobody runs a request here now; what an earlier one left (its daemon was killed) ends before the next one starts.
fn clear(place: &Place, parent: Option<&Group>, scope: &Scope) -> Result<(), ExecError> {
    let scopes = match parent {
        Some(parent) => {
            let old = parent.children("request-").into_iter();
            old.map(|group| Scope { group: Some(group), ..scope.clone() }).collect()
        }
        None => vec![scope.clone()],
    };
    for scope in scopes {
        scope.kill(PATIENCE).map_err(|left| {
            ExecError::Failed(format!("an earlier request's processes in the pod `{}` don't end: {left}", place.name))
        })?;
    }
    Ok(())
}

/// Sends the command and takes in the reply. Standard input stays open until the reply is complete: its end would tell
/// the worker that nobody waits any more.
async fn converse(
    running: &mut Running,
    request: &ExecRequest,
    tail: &Tail,
) -> Result<(warmhold_protocol::Verdict, Vec<crate::ReceivedFile>), ExecError> {
    let gone = || ExecError::Failed("the worker has no streams".to_owned());
    let stdout = running.child.stdout.take().ok_or_else(gone)?;
    let stderr = running.child.stderr.take().ok_or_else(gone)?;
    // On its own: whoever inherits the worker's standard error may keep it open for longer than the reply takes.
    let drain = tokio::spawn(drain(stderr, Arc::clone(tail)));
    let stdin = running.stdin.as_mut().ok_or_else(gone)?;
    let reply = collect(stdout, &request.command, &request.sink, &request.limits, request.progress.as_ref());
    let (sent, reply) = tokio::join!(send(stdin, &request.command), reply);
    drop(running.stdin.take());
    if reply.is_err() {
        // What it had to say of its own end.
        let _ = timeout(Duration::from_millis(200), drain).await;
    } else {
        drain.abort();
    }
    match (sent, reply) {
        // A worker that doesn't read its command to the end and yet proves its reply has none to answer.
        (Err(error), Ok(_)) => Err(ExecError::Failed(format!("the command could not be sent: {error}"))),
        (_, reply) => reply,
    }
}

async fn send(stdin: &mut ChildStdin, command: &Command) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    write_command(&mut bytes, command)?;
    stdin.write_all(&bytes).await?;
    stdin.flush().await
}

async fn drain(mut from: impl AsyncRead + Unpin, tail: Tail) {
    let mut chunk = vec![0; 8192];
    while let Ok(length) = from.read(&mut chunk).await {
        let Some(bytes) = chunk.get(..length).filter(|bytes| !bytes.is_empty()) else { break };
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(bytes);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

fn tail_text(tail: &Tail) -> String {
    let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    let (a, b) = tail.as_slices();
    clean(&[a, b].concat())
}

fn carrier(exit: std::process::ExitStatus) -> Option<CarrierExit> {
    use std::os::unix::process::ExitStatusExt;
    exit.code().map(CarrierExit::Code).or_else(|| exit.signal().map(CarrierExit::Signal))
}
