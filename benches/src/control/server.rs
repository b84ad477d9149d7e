//! Servers in processes of their own: the hidden parts, and how they are started.

use super::native::Native;
use super::seed;
use anyhow::{Context as _, Result, bail, ensure};
use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderValue, Response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use warmhold_control::api::{
    Policies, PolicySlot, PolicyView, PrepareAsk, Prepared, ReplayAsk, ReplayRun, ReplayView, Replays, Settle,
    WorkerView, Workers,
};
use warmhold_control::primary::PrimarySource;
use warmhold_control::{
    ApiError, Control, ControlOptions, ListenAddress, MachineName, RequestLimits, Server, ServerLimits, Tokens,
};
use warmhold_ledger::{Caller, Ledger, Options};
use warmhold_tests::{Daemon, Programs};

/// The hidden part of this program that serves; it is told which in the way that the daemon is.
pub(crate) const SERVE: &str = "serve";

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// The daemon.
    Ours,
    /// The same control plane and ledger; the policy's code is called natively.
    Native,
    /// The same connections, and nothing behind them.
    Constant,
    /// etcd with as many keys as we have rows.
    Etcd,
}

impl Who {
    /// Everyone that ours can be compared with.
    pub(super) const OTHERS: [Self; 3] = [Self::Native, Self::Constant, Self::Etcd];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Native => "native",
            Self::Constant => "constant",
            Self::Etcd => "etcd",
        }
    }
}

/// A server that runs; killed when it is dropped.
pub(super) struct Running {
    process: Process,
    pub(super) who: Who,
    pub(super) address: SocketAddr,
    /// etcd asks for none.
    pub(super) access: seed::Access,
}

enum Process {
    Daemon(Daemon),
    #[cfg(feature = "etcd")]
    Etcd(super::etcd::Etcd),
}

impl Running {
    /// Fills a new root, or etcd, with rows and starts a server on it.
    pub(super) fn start(who: Who, folder: &Path, rows: usize) -> Result<Self> {
        if who == Who::Etcd {
            return Self::etcd(folder, rows);
        }
        let name = format!("{}-{rows}", who.name());
        let root = folder.join(&name);
        let access = seed::root(&root)?;
        if who != Who::Constant {
            seed::ledger(&root.join("control").join("ledger.sqlite3"), rows)?;
        }
        let log = folder.join(format!("{name}.log"));
        let daemon = match who {
            Who::Ours => {
                let program = Programs::of("release")?.warmhold;
                Daemon::start(&program, &root, folder, &["--listen", "127.0.0.1:0"], &log)?
            }
            _ => Daemon::start(&std::env::current_exe()?, &root, folder, &[who.name()], &log)?,
        };
        let address = daemon.url.strip_prefix("http://").context("no address")?.parse()?;
        Ok(Self { process: Process::Daemon(daemon), who, address, access })
    }

    #[cfg(feature = "etcd")]
    fn etcd(folder: &Path, rows: usize) -> Result<Self> {
        let etcd = super::etcd::Etcd::start(folder, rows)?;
        let address = etcd.address;
        Ok(Self { process: Process::Etcd(etcd), who: Who::Etcd, address, access: seed::Access::default() })
    }

    #[cfg(not(feature = "etcd"))]
    fn etcd(_: &Path, _: usize) -> Result<Self> {
        bail!("this program was built without a client for etcd; ./x bench builds it with one")
    }

    pub(super) fn pid(&self) -> u32 {
        match &self.process {
            Process::Daemon(daemon) => daemon.pid(),
            #[cfg(feature = "etcd")]
            Process::Etcd(etcd) => etcd.pid(),
        }
    }

    /// The hidden part that makes load for it.
    pub(super) fn load(&self) -> &'static str {
        match &self.process {
            Process::Daemon(_) => super::load::LOAD,
            #[cfg(feature = "etcd")]
            Process::Etcd(_) => super::etcd::LOAD,
        }
    }

    /// Ends it as an operator does.
    pub(super) fn stop(self) -> Result<()> {
        match self.process {
            Process::Daemon(daemon) => {
                let log = daemon.log();
                let status = daemon.stop()?;
                ensure!(status.success(), "{} ended with {status}:\n{log}", self.who.name());
            }
            // It ends by the signal itself, which is no success in a shell's eyes.
            #[cfg(feature = "etcd")]
            Process::Etcd(etcd) => {
                etcd.stop()?;
            }
        }
        Ok(())
    }
}

/// The hidden part: serves a root until SIGTERM.
pub(crate) fn run(root: &Path, who: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listen: ListenAddress = "127.0.0.1:0".parse()?;
        let server = Server::bind(listen, ServerLimits::default())?;
        match who {
            "native" => native(server, root).await,
            "constant" => constant(server).await,
            other => bail!("there is no server {other:?}"),
        }
    })
}

async fn stop() {
    match signal(SignalKind::terminate()) {
        Ok(mut term) => {
            term.recv().await;
        }
        // It is killed in the end.
        Err(_) => std::future::pending().await,
    }
}

async fn native(server: Server, root: &Path) -> Result<()> {
    let tokens = Tokens::open(root)?;
    let primary = Arc::new(PrimarySource::own(root, MachineName::parse(seed::MACHINE)?)?);
    let path = root.join("control").join("ledger.sqlite3");
    let ledger = Ledger::open(&path, Options::new(Arc::new(Native::default()), Arc::clone(&primary) as _))?;
    let control = Control::new(ControlOptions {
        ledger: ledger.clone(),
        tokens,
        primary,
        require_primary: false,
        replays: Arc::new(Nothing),
        workers: Arc::new(Nothing),
        policies: Arc::new(Nothing),
        limits: RequestLimits::default(),
    });
    println!("serves at http://{}", server.address()?);
    server.serve(control, stop()).await;
    ledger.close().await;
    Ok(())
}

async fn constant(server: Server) -> Result<()> {
    println!("serves at http://{}", server.address()?);
    let answers = Arc::new(Constants::new());
    let respond = move |request: axum::http::Request<hyper::body::Incoming>, _| {
        let answers = Arc::clone(&answers);
        async move {
            let (head, body) = request.into_parts();
            // A client that is gone hears nothing, whatever is answered.
            let _ = body.collect().await;
            answers.to(head.uri.path())
        }
    };
    server.serve_with(respond, stop()).await;
    Ok(())
}

/// Answers of the same size as the real ones, with the same headers.
struct Constants {
    leased: Bytes,
    sanitizing: Bytes,
    idle: Bytes,
}

impl Constants {
    fn new() -> Self {
        let lease = "00000000-0000-4000-a000-000000000000";
        let row = |state: &str, lease: &str| Bytes::from(seed::row_json(0, state, 1000, lease));
        Self { leased: row("leased", lease), sanitizing: row("sanitizing", lease), idle: row("idle", "") }
    }

    fn to(&self, path: &str) -> Response<Body> {
        let body = if path.ends_with("/sanitize") {
            &self.idle
        } else if path.ends_with("/release") {
            &self.sanitizing
        } else {
            &self.leased
        };
        let mut response = Response::new(Body::from(body.clone()));
        let headers = response.headers_mut();
        for (name, value) in [
            ("content-type", "application/json"),
            ("cache-control", "no-store"),
            ("x-request-id", "00000000-0000-4000-8000-000000000000"),
            ("x-primary-generation", "1"),
            (
                "x-warmhold-policy",
                "lease-policy@sha256:0000000000000000000000000000000000000000000000000000000000000000#1",
            ),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// No replays, no standing workers, no policies to load: nobody asks for them here.
struct Nothing;

#[async_trait]
impl Replays for Nothing {
    async fn start(&self, _: &Caller, _: ReplayAsk) -> Result<ReplayRun, ApiError> {
        Err(ApiError::internal())
    }

    async fn list(&self, _: Option<&str>, _: usize) -> Result<Vec<ReplayView>, ApiError> {
        Ok(Vec::new())
    }

    async fn get(&self, _: &str) -> Result<Option<ReplayView>, ApiError> {
        Ok(None)
    }

    async fn settle(&self, _: &Caller, _: &str, _: Settle) -> Result<ReplayView, ApiError> {
        Err(ApiError::internal())
    }
}

#[async_trait]
impl Workers for Nothing {
    async fn prepare(&self, _: PrepareAsk) -> Result<Vec<Prepared>, ApiError> {
        Err(ApiError::internal())
    }

    async fn list(&self) -> Result<Vec<WorkerView>, ApiError> {
        Ok(Vec::new())
    }

    async fn remove(&self, _: &str) -> Result<Option<WorkerView>, ApiError> {
        Ok(None)
    }

    async fn quarantine(&self, _: &str, _: &str) -> Result<Option<WorkerView>, ApiError> {
        Ok(None)
    }
}

#[async_trait]
impl Policies for Nothing {
    async fn list(&self) -> Result<Vec<PolicyView>, ApiError> {
        Ok(Vec::new())
    }

    async fn load(&self, _: PolicySlot, _: Bytes) -> Result<PolicyView, ApiError> {
        Err(ApiError::internal())
    }

    async fn rollback(&self, _: PolicySlot) -> Result<PolicyView, ApiError> {
        Err(ApiError::internal())
    }
}
