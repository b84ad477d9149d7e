//! The configuration's profiles as the replay crate uses them, and where their pods live.

use crate::config::{Backend, Config, Profile, Source};
use crate::error::CliError;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use warmhold_replay as replay;

/// A black hole would have to be waited for: an address that is never routed fails at once where there is no network.
const NO_ROUTE: &str = "http://192.0.2.1:80/";

/// The worker's program and what identifies it.
pub(super) struct WorkerBinary {
    pub(super) path: PathBuf,
    /// `sha256:` and 64 hex digits.
    pub(super) digest: String,
}

/// Finds the worker's program: as configured, else beside this one.
pub(super) fn worker_binary(config: &Config) -> Result<WorkerBinary, CliError> {
    let path = match &config.daemon.worker_binary {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(|error| CliError::usage("no-worker-binary", format!("this program's own path: {error}")))?
            .with_file_name("warmhold-worker"),
    };
    let digest = digest_of(&path).map_err(|error| {
        CliError::usage("no-worker-binary", format!("the worker's program {}: {error}", path.display()))
            .with_help("install warmhold-worker beside warmhold, or name it as `worker-binary` in [daemon]")
    })?;
    Ok(WorkerBinary { path, digest })
}

fn digest_of(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut HashWriter(&mut hash))?;
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Every profile, by name. `listen` is the address that really is listened on.
pub(super) fn profiles(
    config: &Config,
    worker: &WorkerBinary,
    listen: SocketAddr,
) -> BTreeMap<String, Arc<replay::Profile>> {
    config
        .profiles
        .iter()
        .filter_map(|(name, profile)| Some((name.clone(), Arc::new(convert(config, profile, worker, listen)?))))
        .collect()
}

fn convert(config: &Config, profile: &Profile, worker: &WorkerBinary, listen: SocketAddr) -> Option<replay::Profile> {
    let (context, namespace) = profile.target();
    // A cluster's profile never comes here: the start refuses it.
    let Backend::Local = &profile.backend else { return None };
    let source = match &profile.source {
        Some(Source::Path(path)) => path.to_string_lossy().into_owned(),
        Some(Source::Url(url)) => url.clone(),
        // Preparing says so; everything else of the daemon works without.
        None => String::new(),
    };
    Some(replay::Profile {
        name: profile.name.clone(),
        context: context.to_owned(),
        namespace: namespace.to_owned(),
        node: Some(config.daemon.machine.clone()),
        image: format!("warmhold.dev/local@{}", worker.digest),
        image_digest: worker.digest.clone(),
        architecture: architecture().to_owned(),
        source,
        source_mirror: None,
        lock_files: profile.lock_files.clone(),
        install: profile.install.clone(),
        tiers: profile
            .tiers
            .iter()
            .map(|tier| replay::Tier {
                name: tier.name.clone(),
                memory: Some(quantity(tier.memory)),
                quota: tier.quota,
            })
            .collect(),
        standing: profile.standing,
        host_probe: profile.host_probe.clone().unwrap_or_else(|| format!("http://{listen}/healthz")),
        prod_probe: profile.prod_probe.clone().unwrap_or_else(|| NO_ROUTE.to_owned()),
        ttl: profile.ttl,
        idle_ttl: profile.idle_ttl,
        transport_limit: profile.transport_limit,
        env: profile.env.clone(),
        rules: profile.tests.clone(),
        hide: vec![config.root.to_string_lossy().into_owned()],
        private_network: true,
    })
}

/// Bytes as a Kubernetes quantity.
fn quantity(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(GIB) => format!("{}Gi", bytes / GIB),
        _ if bytes > 0 && bytes.is_multiple_of(MIB) => format!("{}Mi", bytes / MIB),
        _ => bytes.to_string(),
    }
}

/// As registries name it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn sizes_are_quantities_without_a_rest() {
        assert_eq!(quantity(2 << 30), "2Gi");
        assert_eq!(quantity(512 << 20), "512Mi");
        assert_eq!(quantity((1 << 20) + 1), "1048577");
    }
}
