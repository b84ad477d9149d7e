//! The daemon: everything wired together.
//!
//! The order of a start: whatever can be refused is refused before anything is made; the address is taken before the
//! ledger is opened, so that a second daemon by mistake touches nothing of the first; what a dead daemon left is settled
//! before the first request is answered.

mod decider;
mod logging;
mod policies;
mod profiles;

use crate::cli::ServeArgs;
use crate::client::locate::{DaemonFile, daemon_file};
use crate::config::{Config, Primary};
use crate::error::CliError;
use decider::LeaseDecider;
use policies::Slots;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use warmhold_control::primary::PrimarySource;
use warmhold_control::{
    Control, ControlOptions, Figures, ListenAddress, MachineName, RequestLimits, Server, ServerLimits, Tokens,
};
use warmhold_ledger::{Ledger, Options as LedgerOptions};
use warmhold_pods::Backend;
use warmhold_pods::local::{LocalBackend, Options as LocalOptions};
use warmhold_replay::{Driver, Instance, Services, Standing};

/// For the answers of replays that took all of the time to drain.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Files that are open beside the connections: the ledger, pods and their streams.
const FILES: u64 = 512;

/// Runs the daemon in the foreground until it is told to end.
///
/// # Errors
/// It could not start, or ended for a fault.
pub(crate) fn run(args: &ServeArgs, root: &Path) -> Result<(), CliError> {
    let config = Config::load_with(root, &args.overrides()).map_err(|faults| {
        CliError::usage(faults.code(), faults.to_string()).with_help("correct the file, or try `warmhold doctor`")
    })?;
    only_what_is_built(&config)?;
    logging::start();
    allow_files(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::no("no-runtime", format!("no threads can be started: {error}")))?;
    let ended = runtime.block_on(serve(args, config));
    // What still blocks (a read that nobody waits for) must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended
}

/// Says at the start what this version can't do, rather than when somebody waits for it.
fn only_what_is_built(config: &Config) -> Result<(), CliError> {
    if let Some((name, _)) =
        config.profiles.iter().find(|(_, profile)| profile.backend != crate::config::Backend::Local)
    {
        return Err(CliError::usage("no-such-backend", format!("profile {name}: this version has local pods alone"))
            .with_help("set backend = \"local\", or take the profile out of warmhold.toml"));
    }
    let mut tiers = std::collections::HashMap::new();
    for (name, tier) in
        config.profiles.iter().flat_map(|(name, profile)| profile.tiers.iter().map(move |tier| (name, tier)))
    {
        // A slot is a pod's name, and that is made of machine, tier and number.
        if let Some(other) = tiers.insert(&tier.name, name) {
            return Err(CliError::usage(
                "tier-twice",
                format!(
                    "profiles {other} and {name} both have a tier {}: their workers would fight for its slots",
                    tier.name
                ),
            )
            .with_help("give the tiers names of their own in warmhold.toml"));
        }
    }
    if config.control.is_some() {
        return Err(CliError::usage("no-such-control", "[control]: this version serves its own control plane alone")
            .with_help("take [control] out of warmhold.toml"));
    }
    Ok(())
}

async fn serve(args: &ServeArgs, config: Config) -> Result<(), CliError> {
    let mut stop = Stop::listen()?;
    let worker = profiles::worker_binary(&config)?;
    make_root(&config.root)?;
    let name = config.daemon.keep_machine(&config.root).map_err(|error| root_error(&config.root, &error))?;
    let name = MachineName::parse(&name).map_err(|error| CliError::usage(error.code(), error.to_string()))?;
    let tokens = Tokens::open(&config.root)
        .map_err(|error| CliError::usage(error.code(), error.to_string()).with_help(error.help()))?;
    // Who finds the address open finds the tokens too.
    let server = bind(&config)?;
    let address = server.address().map_err(|error| CliError::no("listen-failed", error.to_string()))?;
    let primary = Arc::new(
        match &config.daemon.primary {
            Primary::Own => PrimarySource::own(&config.root, name.clone()),
            Primary::File(path) => PrimarySource::external(path.clone(), name.clone()),
            Primary::None => Ok(PrimarySource::none(name.clone())),
        }
        .map_err(|error| CliError::usage(error.code(), error.to_string()))?,
    );
    // From here on clients wait for this daemon rather than saying that there is none.
    let instance = Instance::begin(&config.root).map_err(|error| root_error(&config.root, &error))?;
    let slots = Arc::new(Slots::open(&config).await?);
    let figures = Figures::new();
    let ledger = open_ledger(&config, &slots, &primary, &figures).await?;
    let services = Arc::new(Services {
        root: config.root.clone(),
        machine: name.to_string(),
        instance,
        ledger: ledger.clone(),
        manifest: warmhold_replay::Judge::new(Arc::clone(&slots.manifest)),
        replay: Arc::clone(&slots.replay),
        backends: backends(&config, &worker)?,
        profiles: profiles::profiles(&config, &worker, address),
        default_profile: config.default_profile().map(|profile| profile.name.clone()).unwrap_or_default(),
        grants: {
            let grant = config.grants.replay.clone();
            Box::new(move |at, verb| grant.allows(&at.context, &at.namespace, verb))
        },
        may_write: {
            let primary = Arc::clone(&primary);
            Box::new(move || {
                let primary = Arc::clone(&primary);
                Box::pin(async move {
                    match primary.fresh().await {
                        None => Err("primary-unmeasured"),
                        Some(view) if view.held_here => Ok(()),
                        Some(_) => Err("not-primary"),
                    }
                })
            })
        },
        machine_caller: Tokens::machine(&name),
        running: warmhold_replay::Running::default(),
        since_pruned: std::sync::atomic::AtomicU32::new(0),
        tasks: TaskTracker::new(),
    });
    if let Err(error) = warmhold_replay::settle_dead(&services).await {
        tracing::warn!(%error, "what a dead daemon left isn't settled yet; it is tried again");
    }
    let url = format!("http://{address}");
    let background = CancellationToken::new();
    let watch = tokio::spawn(warmhold_replay::watch(Arc::clone(&services), background.clone()));
    let following = Arc::clone(&slots).follow();
    let follow = tokio::spawn(background.clone().run_until_cancelled_owned(following));
    let files = tokio::spawn(background.clone().run_until_cancelled_owned(Arc::clone(&slots).watch(config.clone())));
    let driver = Driver::new(Arc::clone(&services));
    let standing = Standing::new(Arc::clone(&services));
    let keeping = warmhold_replay::keep_standing(standing.clone());
    let keeper = tokio::spawn(background.clone().run_until_cancelled_owned(keeping));
    let control = ControlOptions {
        ledger: ledger.clone(),
        tokens,
        primary,
        require_primary: config.daemon.require_primary,
        replays: Arc::new(driver.clone()),
        workers: Arc::new(standing),
        policies: Arc::clone(&slots) as _,
        limits: request_limits(&config),
    };
    let control = Control::with_figures(control, figures);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let mut serving = tokio::spawn(server.serve(Arc::clone(&control), async {
        // A dropped sender means the same.
        let _ = ended.await;
    }));
    announce(&services, &url)?;
    let finding = stay_found(Arc::clone(&services), url.clone());
    let found = tokio::spawn(background.clone().run_until_cancelled_owned(finding));
    println!("warmhold serves {} at {url}", config.root.display());
    stop.wait(args, &config, &slots).await;
    tracing::info!("told to stop: finishing what is in flight");
    let over = tokio::time::Instant::now() + config.daemon.http.drain_timeout;
    control.stop();
    found.abort();
    retract(&config.root, &url);
    // Replays end while the server still answers those who wait for them.
    driver.stop().await;
    drop(end);
    // Whatever the replays have left of it is for the others' answers.
    if tokio::time::timeout_at(over.max(tokio::time::Instant::now() + LAST_ANSWERS), &mut serving).await.is_err() {
        tracing::warn!("requests were cut off: they took longer than drain-timeout");
        serving.abort();
    }
    background.cancel();
    let _ = tokio::join!(watch, files, follow, keeper);
    ledger.close().await;
    Ok(())
}

fn root_error(root: &Path, error: &std::io::Error) -> CliError {
    CliError::usage("root-unusable", format!("{}: {error}", root.display()))
        .with_help("name a folder that this user may make and write, with --root or WARMHOLD_ROOT")
}

fn bind(config: &Config) -> Result<Server, CliError> {
    let address: ListenAddress = config
        .daemon
        .listen
        .to_string()
        .parse()
        .map_err(|error: warmhold_control::ListenError| CliError::usage(error.code(), error.to_string()))?;
    let http = &config.daemon.http;
    let limits = ServerLimits {
        connections: http.max_connections as usize,
        headers: http.max_headers as usize,
        head: usize::try_from(http.max_header).unwrap_or(usize::MAX),
        head_time: http.header_timeout,
        idle_time: http.idle_timeout,
        stall_time: http.answer_timeout,
        drain: http.drain_timeout,
        ..ServerLimits::default()
    };
    Server::bind(address, limits).map_err(|error| {
        CliError::usage(error.code(), error.to_string()).with_help(
            "stop what listens there, or choose another address with --listen ADDR:PORT (port 0 is any free one)",
        )
    })
}

fn request_limits(config: &Config) -> RequestLimits {
    let http = &config.daemon.http;
    RequestLimits {
        body: usize::try_from(http.max_body).unwrap_or(usize::MAX),
        policy: usize::try_from(http.max_policy).unwrap_or(usize::MAX),
        bodies: usize::try_from(http.max_bodies).unwrap_or(usize::MAX),
        body_time: http.request_timeout,
        write_time: http.request_timeout,
        read_time: http.request_timeout,
        free_space: http.min_free_space,
    }
}

/// Raises the limit of open files as far as the connections need: with the usual 1,024 they would run out before their own
/// limit is reached. Where it can't be raised that far, the server gives idle connections back when there are none left.
fn allow_files(config: &Config) {
    let wanted = u64::from(config.daemon.http.max_connections) + FILES;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum });
    if raised.is_err() || current < wanted {
        tracing::warn!(
            wanted,
            "not as many files may be open as max-connections needs: raise the limit (ulimit -n, LimitNOFILE)"
        );
    }
}

fn make_root(root: &Path) -> Result<(), CliError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(|error| root_error(root, &error))
}

/// Opening waits for locks of other daemons, and so has a thread of its own.
async fn open_ledger(
    config: &Config,
    slots: &Slots,
    primary: &Arc<PrimarySource>,
    figures: &Arc<Figures>,
) -> Result<Ledger, CliError> {
    let path = config.root.join("control").join("ledger.sqlite3");
    let decider = Arc::new(LeaseDecider::new(Arc::clone(&slots.lease)));
    let mut options = LedgerOptions::new(decider, Arc::clone(primary) as _);
    options.queue = config.daemon.http.max_waiting_writes as usize;
    options.observer = Arc::clone(figures) as _;
    let opened = tokio::task::spawn_blocking(move || Ledger::open(&path, options)).await;
    opened
        .map_err(|error| CliError::no("ledger-unusable", error.to_string()))?
        .map_err(|error| CliError::usage(error.code(), error.to_string()))
}

fn backends(config: &Config, worker: &profiles::WorkerBinary) -> Result<BTreeMap<String, Arc<dyn Backend>>, CliError> {
    let mut options = LocalOptions::new(config.daemon.pods.clone(), config.daemon.machine.clone(), worker.path.clone());
    options.path.clone_from(&config.daemon.pod_path);
    let local = LocalBackend::open(options).map_err(|error| {
        CliError::usage("pods-unusable", error.to_string())
            .with_help("name another folder for local pods: `pods` in [daemon] of warmhold.toml")
    })?;
    let local: Arc<dyn Backend> = Arc::new(local);
    Ok(config
        .profiles
        .iter()
        .filter(|(_, profile)| profile.backend == crate::config::Backend::Local)
        .map(|(name, _)| (name.clone(), Arc::clone(&local)))
        .collect())
}

/// Writes where the clients of this root find the daemon that started last.
fn announce(services: &Services, url: &str) -> Result<(), CliError> {
    let facts = DaemonFile {
        url: url.to_owned(),
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let text = serde_json::to_string(&facts).unwrap_or_default();
    services
        .instance
        .describe(&text)
        .and_then(|()| write_daemon_file(&services.root, &text))
        .map_err(|error| root_error(&services.root, &error))
}

/// Keeps the file pointing to a daemon that lives: the one that started last may have been killed.
async fn stay_found(services: Arc<Services>, url: String) {
    loop {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let named = std::fs::read(daemon_file(&services.root))
            .ok()
            .and_then(|text| serde_json::from_slice::<DaemonFile>(&text).ok());
        let lives = named.is_some_and(|named| named.url == url || process_lives(named.pid));
        if !lives && let Err(error) = announce(&services, &url) {
            tracing::warn!(error = %error, "clients may not find this daemon");
        }
    }
}

fn process_lives(pid: i32) -> bool {
    rustix::process::Pid::from_raw(pid)
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

fn write_daemon_file(root: &Path, text: &str) -> std::io::Result<()> {
    let file = daemon_file(root);
    let next = file.with_extension(format!("json.{}", std::process::id()));
    let mut out = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
    std::io::Write::write_all(&mut out, text.as_bytes())?;
    std::fs::rename(&next, &file)
}

/// Takes the file away again, if it is still this daemon's; another one that lives on the root takes its place.
fn retract(root: &Path, url: &str) {
    let file = daemon_file(root);
    let ours = std::fs::read(&file)
        .ok()
        .and_then(|text| serde_json::from_slice::<DaemonFile>(&text).ok())
        .is_some_and(|facts| facts.url == url);
    if !ours {
        return;
    }
    let another = warmhold_replay::living(root)
        .into_iter()
        .find(|text| serde_json::from_str::<DaemonFile>(text).is_ok_and(|facts| facts.url != url));
    // Best effort: clients look whether the process lives.
    let _ = match another {
        Some(text) => write_daemon_file(root, &text),
        None => std::fs::remove_file(file),
    };
}

/// The signals that a daemon hears.
struct Stop {
    term: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Stop {
    fn listen() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(|error| CliError::no("no-signals", error.to_string()));
        Ok(Self {
            term: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Returns when it is time to end; a hang-up reads the policies again.
    async fn wait(&mut self, args: &ServeArgs, config: &Config, slots: &Slots) {
        loop {
            tokio::select! {
                _ = self.term.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => slots.reload(args, config).await,
            }
        }
    }
}
