//! The three slots: opened from the configuration, loaded over HTTP, read again on a hang-up or when a file changes.

use crate::cli::ServeArgs;
use crate::config::{Config, PolicySlot as SlotConfig};
use crate::error::CliError;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use warmhold_control::ApiError;
use warmhold_control::api::{Policies, PolicySlot, PolicyState, PolicyView};
use warmhold_plugin::{
    EngineOptions, Kind, LeaseSlot, Limits, LoadError, ManifestSlot, PolicyEngine, ReplaySlot, Slot, SlotOptions,
    Standing, Status, World,
};

/// How often a watched file is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often another daemon's loads are looked for.
const FOLLOW: Duration = Duration::from_secs(1);

const LEASE: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/policies/lease-policy.wasm"));
const MANIFEST: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/policies/pod-manifest.wasm"));
const REPLAY: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/policies/warm-replay.wasm"));

/// What was last read of a configured file, so that the same isn't loaded again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// The three slots.
pub(super) struct Slots {
    pub(super) lease: Arc<LeaseSlot>,
    pub(super) manifest: Arc<ManifestSlot>,
    pub(super) replay: Arc<ReplaySlot>,
    /// The settings of each slot as configured, for policies that are loaded over HTTP.
    settings: Mutex<HashMap<PolicySlot, String>>,
    seen: Mutex<HashMap<PolicySlot, Stamp>>,
}

impl Slots {
    /// Opens the slots: what served before a restart serves again, then the configured files are loaded where they
    /// differ from it.
    pub(super) async fn open(config: &Config) -> Result<Self, CliError> {
        let engine = PolicyEngine::new(&EngineOptions { cache_dir: Some(config.root.join("cache")) })
            .map_err(|error| CliError::no(error.code(), error.to_string()))?;
        let folder = config.root.join("policies");
        let policy = config.policy.clone();
        let opened = tokio::task::spawn_blocking(move || {
            Ok(Self {
                lease: open(&engine, &folder, World::Lease, LEASE, &policy.lease)?,
                manifest: open(&engine, &folder, World::Manifest, MANIFEST, &policy.manifest)?,
                replay: open(&engine, &folder, World::Replay, REPLAY, &policy.replay)?,
                settings: Mutex::new(settings(&policy)),
                seen: Mutex::default(),
            })
        })
        .await
        .map_err(|error| CliError::no("policy-load-host", error.to_string()))?;
        let slots = opened.map_err(|(slot, error): (World, LoadError)| load_error(slot.slot(), &error))?;
        for slot in PolicySlot::ALL {
            for note in slots.status(slot).notes {
                tracing::warn!(slot = slot.as_str(), note, "policies");
            }
            if let Some(file) = &configured(config, slot).file {
                slots.load_file(slot, file, true).await?;
            }
        }
        Ok(slots)
    }

    fn status(&self, slot: PolicySlot) -> Status {
        match slot {
            PolicySlot::Lease => self.lease.status(),
            PolicySlot::Manifest => self.manifest.status(),
            PolicySlot::Replay => self.replay.status(),
        }
    }

    /// Loads a configured file unless it already serves. A file that its own faults took from its place isn't loaded
    /// again by itself, unless the daemon was just started with it.
    async fn load_file(&self, slot: PolicySlot, file: &Path, starting: bool) -> Result<(), CliError> {
        let path = file.to_owned();
        let limit = self.limits(slot).component.get() as u64;
        let read = tokio::task::spawn_blocking(move || read_bounded(&path, limit)).await;
        let (bytes, stamp) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                return Err(CliError::usage("policy-unreadable", format!("{}: {error}", file.display()))
                    .with_help("make it readable for the daemon's user"));
            }
            Err(error) => return Err(CliError::no("policy-load-host", error.to_string())),
        };
        self.seen.lock().insert(slot, stamp);
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if self.view(slot).is_some_and(|serving| serving.digest == digest) || (!starting && self.is_bad(slot, &digest))
        {
            return Ok(());
        }
        match self.load(slot, Bytes::from(bytes)).await {
            Ok(loaded) => {
                tracing::info!(slot = slot.as_str(), policy = %loaded.name, generation = loaded.generation, file = %file.display(), "loaded");
                Ok(())
            }
            Err(error) => {
                let help = error.help.unwrap_or_default();
                Err(CliError::usage(&error.code, format!("{}: {}", file.display(), error.message)).with_help(help))
            }
        }
    }

    /// SIGHUP: settings and files as the configuration has them now. What is wrong is logged; what serves goes on.
    pub(super) async fn reload(&self, args: &ServeArgs, started: &Config) {
        let config = match Config::load_with(&started.root, &args.overrides()) {
            Ok(config) => config,
            Err(faults) => {
                tracing::error!(%faults, "the configuration isn't read again");
                return;
            }
        };
        *self.settings.lock() = settings(&config.policy);
        for slot in PolicySlot::ALL {
            let wanted = configured(&config, slot);
            if let Err(error) = self.reconfigure(slot, wanted.settings.to_string()).await {
                let found = error.extra.as_ref().and_then(|extra| extra.get("found")).map(ToString::to_string);
                tracing::error!(slot = slot.as_str(), error = %error.message, found, "its settings stay as they were");
            }
            if let Some(file) = &wanted.file
                && let Err(error) = self.load_file(slot, file, false).await
            {
                tracing::error!(slot = slot.as_str(), %error, "the policy stays as it was");
            }
        }
        if (&config.daemon, &config.profiles, &config.grants) != (&started.daemon, &started.profiles, &started.grants) {
            tracing::warn!(
                "[daemon], [profile] or [grants] changed: that takes effect when the daemon is started again"
            );
        }
        tracing::info!("policies and their settings are read again");
    }

    /// Looks at watched files until it is dropped. A file that changes while it is looked at is left for the next look.
    pub(super) async fn watch(self: Arc<Self>, config: Config) {
        let watched: Vec<(PolicySlot, PathBuf)> = PolicySlot::ALL
            .into_iter()
            .filter_map(|slot| {
                let configured = configured(&config, slot);
                Some((slot, configured.file.clone().filter(|_| configured.watch)?))
            })
            .collect();
        let mut last: HashMap<PolicySlot, Option<Stamp>> = HashMap::new();
        while !watched.is_empty() {
            tokio::time::sleep(LOOK).await;
            for (slot, file) in &watched {
                let now = tokio::fs::metadata(file).await.ok().map(|found| stamp(&found));
                let quiet = last.insert(*slot, now.clone()) == Some(now.clone());
                let Some(now) = now.filter(|now| quiet && self.seen.lock().get(slot) != Some(now)) else { continue };
                // Whatever comes of it: this content is looked at once.
                self.seen.lock().insert(*slot, now);
                if let Err(error) = self.load_file(*slot, file, false).await {
                    tracing::error!(slot = slot.as_str(), %error, "the watched policy isn't loaded");
                }
            }
        }
    }

    /// Follows what another daemon on this root loads, until it is dropped.
    pub(super) async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(FOLLOW).await;
            let slots = Arc::clone(&self);
            let followed = tokio::task::spawn_blocking(move || {
                [slots.lease.refresh(), slots.manifest.refresh(), slots.replay.refresh()]
            })
            .await;
            for error in followed.into_iter().flatten().filter_map(Result::err) {
                tracing::error!(%error, "what another daemon on this root serves can't serve here");
            }
        }
    }

    fn limits(&self, slot: PolicySlot) -> Limits {
        match slot {
            PolicySlot::Lease => *self.lease.limits(),
            PolicySlot::Manifest => *self.manifest.limits(),
            PolicySlot::Replay => *self.replay.limits(),
        }
    }

    fn is_bad(&self, slot: PolicySlot, digest: &str) -> bool {
        match slot {
            PolicySlot::Lease => self.lease.is_bad(digest),
            PolicySlot::Manifest => self.manifest.is_bad(digest),
            PolicySlot::Replay => self.replay.is_bad(digest),
        }
    }

    /// What serves in a slot.
    fn view(&self, slot: PolicySlot) -> Option<PolicyView> {
        views(slot, &self.status(slot)).into_iter().find(|view| view.state == PolicyState::Serving)
    }

    async fn reconfigure(&self, slot: PolicySlot, settings: String) -> Result<(), ApiError> {
        match slot {
            PolicySlot::Lease => blocking(&self.lease, move |slot| slot.reconfigure(&settings).map(drop)).await,
            PolicySlot::Manifest => blocking(&self.manifest, move |slot| slot.reconfigure(&settings).map(drop)).await,
            PolicySlot::Replay => blocking(&self.replay, move |slot| slot.reconfigure(&settings).map(drop)).await,
        }
    }

    fn serving(&self, slot: PolicySlot) -> Result<PolicyView, ApiError> {
        self.view(slot).ok_or_else(ApiError::internal)
    }
}

#[async_trait]
impl Policies for Slots {
    async fn list(&self) -> Result<Vec<PolicyView>, ApiError> {
        Ok(PolicySlot::ALL.into_iter().flat_map(|slot| views(slot, &self.status(slot))).collect())
    }

    async fn load(&self, slot: PolicySlot, component: Bytes) -> Result<PolicyView, ApiError> {
        let settings = self.settings.lock().get(&slot).cloned().unwrap_or_else(|| "{}".to_owned());
        match slot {
            PolicySlot::Lease => blocking(&self.lease, move |slot| slot.load(&component, &settings).map(drop)).await,
            PolicySlot::Manifest => {
                blocking(&self.manifest, move |slot| slot.load(&component, &settings).map(drop)).await
            }
            PolicySlot::Replay => blocking(&self.replay, move |slot| slot.load(&component, &settings).map(drop)).await,
        }?;
        self.serving(slot)
    }

    async fn rollback(&self, slot: PolicySlot) -> Result<PolicyView, ApiError> {
        let done = match slot {
            PolicySlot::Lease => rolled_back(&self.lease).await,
            PolicySlot::Manifest => rolled_back(&self.manifest).await,
            PolicySlot::Replay => rolled_back(&self.replay).await,
        };
        done?;
        self.serving(slot)
    }
}

/// Compiling takes a core for a while: never on a thread that serves.
async fn blocking<K: Kind>(
    slot: &Arc<Slot<K>>,
    act: impl FnOnce(&Slot<K>) -> Result<(), LoadError> + Send + 'static,
) -> Result<(), ApiError> {
    let slot = Arc::clone(slot);
    match tokio::task::spawn_blocking(move || act(&slot)).await {
        Ok(done) => done.map_err(|error| refused(&error)),
        Err(error) => {
            tracing::error!(%error, "loading a policy");
            Err(ApiError::internal())
        }
    }
}

async fn rolled_back<K: Kind>(slot: &Arc<Slot<K>>) -> Result<(), ApiError> {
    let slot = Arc::clone(slot);
    match tokio::task::spawn_blocking(move || slot.rollback().map(drop)).await {
        Ok(done) => done.map_err(|error| ApiError::conflict(error.code(), error.to_string())),
        Err(error) => {
            tracing::error!(%error, "rolling a policy back");
            Err(ApiError::internal())
        }
    }
}

fn refused(error: &LoadError) -> ApiError {
    let status = match error {
        LoadError::Busy | LoadError::Storage { .. } => http::StatusCode::SERVICE_UNAVAILABLE,
        LoadError::Host { .. } => http::StatusCode::INTERNAL_SERVER_ERROR,
        LoadError::TooLarge { .. } => http::StatusCode::PAYLOAD_TOO_LARGE,
        _ => http::StatusCode::UNPROCESSABLE_ENTITY,
    };
    ApiError::new(status, error.code(), error.what())
        .with_help(error.fix())
        .with("expected", error.expected())
        .with("found", error.found())
        .with("fix", error.fix())
}

fn load_error(slot: &str, error: &LoadError) -> CliError {
    CliError::usage(
        error.code(),
        format!("the {slot} policy: {}: expected {}, found {}", error.what(), error.expected(), error.found()),
    )
    .with_help(error.fix())
}

fn configured(config: &Config, slot: PolicySlot) -> &SlotConfig {
    match slot {
        PolicySlot::Lease => &config.policy.lease,
        PolicySlot::Manifest => &config.policy.manifest,
        PolicySlot::Replay => &config.policy.replay,
    }
}

fn settings(policy: &crate::config::Policies) -> HashMap<PolicySlot, String> {
    HashMap::from([
        (PolicySlot::Lease, policy.lease.settings.to_string()),
        (PolicySlot::Manifest, policy.manifest.settings.to_string()),
        (PolicySlot::Replay, policy.replay.settings.to_string()),
    ])
}

fn open<K: Kind>(
    engine: &PolicyEngine,
    folder: &Path,
    world: World,
    built_in: &'static [u8],
    config: &SlotConfig,
) -> Result<Arc<Slot<K>>, (World, LoadError)> {
    let options = SlotOptions {
        dir: folder.join(world.slot()),
        built_in: built_in.into(),
        settings: config.settings.to_string(),
        limits: limits(world, config),
        faults_to_roll_back: NonZeroU32::new(config.faults_to_roll_back).unwrap_or(NonZeroU32::MIN),
    };
    Slot::open(engine, options).map(Arc::new).map_err(|error| (world, error))
}

fn limits(world: World, config: &SlotConfig) -> Limits {
    let default = Limits::of(world);
    let millis = |time: Duration| NonZeroU32::new(u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    Limits {
        memory: config
            .memory
            .and_then(|bytes| NonZeroUsize::new(usize::try_from(bytes).unwrap_or(usize::MAX)))
            .unwrap_or(default.memory),
        guest_ms: config.deadline.and_then(millis).unwrap_or(default.guest_ms),
        wall_ms: config.wall.and_then(millis).unwrap_or(default.wall_ms),
        ..default
    }
}

/// Reads a whole file, and no more than a policy may have.
fn read_bounded(path: &Path, limit: u64) -> std::io::Result<(Vec<u8>, Stamp)> {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    // A pipe without a writer must not hold the start up.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    // One byte more than the limit: the load then says that it is too large.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes, stamp(&found)))
}

fn stamp(found: &std::fs::Metadata) -> Stamp {
    Stamp { modified: found.modified().ok(), bytes: found.len() }
}

/// What serves first, then the others, the latest first.
fn views(slot: PolicySlot, status: &Status) -> Vec<PolicyView> {
    let mut views: Vec<PolicyView> = status
        .generations
        .iter()
        .rev()
        .map(|generation| PolicyView {
            slot,
            name: generation.name.clone(),
            version: generation.version.clone(),
            digest: generation.digest.clone(),
            generation: generation.number,
            state: match generation.state {
                Standing::Serving => PolicyState::Serving,
                Standing::Kept => PolicyState::Kept,
                Standing::Bad => PolicyState::Bad,
            },
            calls: generation.calls,
            faults: generation.faults,
            first_fault: generation.first_fault.clone().or_else(|| generation.why.clone()),
        })
        .collect();
    views.sort_by_key(|view| view.state != PolicyState::Serving);
    views
}
