//! `[profile.NAME]`: where workers of a kind run and how tests run in them.

use super::grants::{Grants, LOCAL_CONTEXT, LOCAL_NAMESPACE, VERBS};
use super::walk::{Item, Table, Walk};
use super::{resolve, rules};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use warmhold_protocol::Rule;

/// The profile that is there when none is configured.
pub const DEFAULT_PROFILE: &str = "local";

/// A worker's ttl is a whole number of milliseconds up to a day.
const TTL_MAX: Duration = Duration::from_secs(86_400);

/// The worker's pod is named `warm-MACHINE-TIER-SLOT`, which must fit the 63 characters of a label.
const TIER_NAME_MAX: usize = 16;

/// One profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// `backend`, with what belongs to it.
    pub backend: Backend,
    /// `source`: the git repository. None: it isn't configured, and the daemon wasn't started in a git tree, so that
    /// no worker can be prepared for this profile.
    pub source: Option<Source>,
    /// `lock-files`: paths in the repository; they and the install argv make two sources differ.
    pub lock_files: Vec<String>,
    /// `install`: the argv of the install step; empty: none.
    pub install: Vec<String>,
    /// `tiers`, in the order of the file; at least one.
    pub tiers: Vec<Tier>,
    /// `standing`: so many workers are kept ready without being asked, at most the quota of all tiers.
    pub standing: u32,
    /// `host-probe`: must answer before isolation.
    pub host_probe: Option<String>,
    /// `prod-probe`: must not answer once the tests may run.
    pub prod_probe: Option<String>,
    /// `ttl` of a lease.
    pub ttl: Duration,
    /// `idle-ttl`: how long an idle worker counts.
    pub idle_ttl: Duration,
    /// `transport-limit`: the longest one run in a pod may take.
    pub transport_limit: Duration,
    /// `env`: the tests' own fixed variables.
    pub env: BTreeMap<String, String>,
    /// `[[profile.NAME.test]]` and the built-in rules; the first that matches wins.
    pub tests: Vec<Rule>,
}

/// A git repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of this machine.
    Path(PathBuf),
    /// An address that git can fetch from.
    Url(String),
}

/// Some workers of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// `[a-z0-9][a-z0-9-]{0,15}`.
    pub name: String,
    /// `memory`: the limit of a worker in bytes.
    pub memory: u64,
    /// `quota`: workers of this tier a host.
    pub quota: u32,
}

/// Where pods run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Processes of this machine.
    Local,
    /// A cluster.
    Kubectl(Kubectl),
}

/// What a profile of a cluster names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubectl {
    /// `context` of the kubeconfig.
    pub context: String,
    /// `namespace`.
    pub namespace: String,
    /// `node` that the pods are bound to.
    pub node: String,
    /// `image` of the pods, with `warmhold-worker` in it.
    pub image: String,
    /// `source-mirror`: a folder of the node with the repository in it.
    pub source_mirror: Option<PathBuf>,
}

impl Profile {
    /// The context and the namespace of its pods.
    #[must_use]
    pub fn target(&self) -> (&str, &str) {
        match &self.backend {
            Backend::Local => (LOCAL_CONTEXT, LOCAL_NAMESPACE),
            Backend::Kubectl(kubectl) => (&kubectl.context, &kubectl.namespace),
        }
    }
}

pub(super) fn read_all(table: &Table<'_, '_>, root: &Path, tree: Option<&Path>) -> BTreeMap<String, Profile> {
    let mut profiles = BTreeMap::new();
    for (name, profile) in table.named_tables() {
        if !is_dns_label(name.value, 32) {
            let help = "a profile's name is at most 32 of a-z, 0-9 and hyphen, no hyphen first or last";
            table.walk.fault(&name.key, Some(&name.span), format!("`{}` is no profile name", name.value), help);
        }
        profiles.insert(name.value.to_owned(), read(profile, name.value, root, tree));
    }
    if profiles.is_empty() {
        let walk = Walk::new("");
        let nothing = toml::de::DeTable::new();
        let profile = read(Table::root(&walk, &nothing), DEFAULT_PROFILE, root, tree);
        profiles.insert(DEFAULT_PROFILE.to_owned(), profile);
    }
    profiles
}

fn read(table: Table<'_, '_>, name: &str, root: &Path, tree: Option<&Path>) -> Profile {
    let backend = backend(&table, root);
    let tiers = tiers(&table);
    let quota: u32 = tiers.iter().map(|tier| tier.quota).fold(0, u32::saturating_add);
    let ttl = table.duration("ttl", Duration::from_secs(1)..=TTL_MAX);
    let transport_limit = table.duration("transport-limit", Duration::from_secs(1)..=Duration::from_secs(3600));
    let ttl_value = ttl.as_ref().map_or(Duration::from_secs(600), |item| item.value);
    let limit_value = transport_limit.as_ref().map_or(Duration::from_secs(120), |item| item.value);
    if ttl_value <= limit_value {
        let (key, span) = match (&ttl, &transport_limit) {
            (Some(item), _) | (None, Some(item)) => (item.key.clone(), Some(&item.span)),
            (None, None) => (table.key("ttl"), None),
        };
        let what = "a lease must outlive the run that it covers, and `ttl` isn't longer than `transport-limit`";
        table.walk.fault(&key, span, what, "write a longer `ttl` or a shorter `transport-limit`");
    }
    let profile = Profile {
        name: name.to_owned(),
        source: source(&table, &backend, root, tree),
        lock_files: lock_files(&table),
        install: install(&table),
        standing: table.number("standing", 0..=quota).map_or(0, |item| item.value),
        host_probe: probe(&table, "host-probe"),
        prod_probe: probe(&table, "prod-probe"),
        ttl: ttl_value,
        idle_ttl: table.duration("idle-ttl", Duration::from_secs(1)..=TTL_MAX).map_or(TTL_MAX, |item| item.value),
        transport_limit: limit_value,
        env: env(&table),
        tests: rules::read(&table),
        backend,
        tiers,
    };
    table.finish();
    profile
}

fn backend(table: &Table<'_, '_>, root: &Path) -> Backend {
    let kind = table.text("backend", "\"local\" or \"kubectl\"");
    let context = table.text("context", "the name of a context");
    let namespace = table.text("namespace", "the name of a namespace");
    let node = table.text("node", "the name of a node");
    let image = table.text("image", "the name of an image");
    let mirror = table.text("source-mirror", "an absolute folder of the node");
    let walk = table.walk;
    match kind.as_ref().map_or("local", |item| item.value.as_str()) {
        "kubectl" => {
            for (name, value) in [("context", &context), ("namespace", &namespace), ("node", &node), ("image", &image)]
            {
                if value.is_none() && !table.has(name) {
                    let span = kind.as_ref().map(|item| &item.span);
                    walk.fault(
                        &table.key(name),
                        span,
                        "is missing, and pods in a cluster need it",
                        format!("write `{name} = \"…\"`"),
                    );
                }
            }
            if let Some(item) = &namespace
                && !is_dns_label(&item.value, 63)
            {
                walk.fault(
                    &item.key,
                    Some(&item.span),
                    format!("`{}` is no namespace", item.value),
                    "at most 63 of a-z, 0-9 and hyphen, no hyphen first or last",
                );
            }
            if let Some(item) = &mirror
                && !is_normal(Path::new(&item.value))
            {
                walk.fault(
                    &item.key,
                    Some(&item.span),
                    "is no absolute and normal path",
                    "write a folder of the node such as \"/srv/mirror\", without `.` or `..`",
                );
            }
            let text = |item: Option<Item<String>>| item.map(|item| item.value).unwrap_or_default();
            Backend::Kubectl(Kubectl {
                context: text(context),
                namespace: text(namespace),
                node: text(node),
                image: text(image),
                source_mirror: mirror.map(|item| resolve(root, &item.value)),
            })
        }
        "local" => {
            for item in [context, namespace, node, image, mirror].into_iter().flatten() {
                walk.fault(
                    &item.key,
                    Some(&item.span),
                    "belongs to pods in a cluster, and this profile's are local",
                    "set backend = \"kubectl\", or leave it out",
                );
            }
            Backend::Local
        }
        other => {
            let what = format!("`{other}` is no backend");
            walk.fault(
                &table.key("backend"),
                kind.as_ref().map(|item| &item.span),
                what,
                "write \"local\" or \"kubectl\"",
            );
            Backend::Local
        }
    }
}

fn source(table: &Table<'_, '_>, backend: &Backend, root: &Path, tree: Option<&Path>) -> Option<Source> {
    let Some(item) = table.text("source", "the path of a git repository") else {
        return tree.map(|tree| Source::Path(tree.to_owned()));
    };
    if is_git_address(&item.value) {
        if *backend == Backend::Local {
            let help = "clone it, and name the clone's path";
            table.walk.fault(
                &item.key,
                Some(&item.span),
                "local pods take their source from a repository of this machine",
                help,
            );
        }
        return Some(Source::Url(item.value));
    }
    let path = resolve(root, &item.value);
    // A work tree holds `.git` (a folder, or a file in a linked one); a bare repository holds HEAD and objects.
    let bare = path.join("HEAD").is_file() && path.join("objects").is_dir();
    if !bare && !path.join(".git").exists() {
        let what = format!("{} is no git repository", path.display());
        table.walk.fault(
            &item.key,
            Some(&item.span),
            what,
            "name the top folder of a git work tree, or a bare repository",
        );
    }
    Some(Source::Path(path))
}

/// `https://…`, `ssh://…`, or `user@host:path`.
fn is_git_address(text: &str) -> bool {
    text.contains("://")
        || text.split_once(':').is_some_and(|(before, _)| before.contains('@') && !before.contains('/'))
}

fn lock_files(table: &Table<'_, '_>) -> Vec<String> {
    let Some(item) = table.texts("lock-files", "an array of paths in the repository") else { return Vec::new() };
    for path in &item.value {
        let relative = !path.is_empty()
            && Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !relative {
            let what = format!("`{path}` is no path inside the repository");
            table.walk.fault(
                &item.key,
                Some(&item.span),
                what,
                "write paths relative to the repository's top, without `.` or `..`",
            );
        }
    }
    item.value
}

fn install(table: &Table<'_, '_>) -> Vec<String> {
    let Some(item) = table.texts("install", "an argv such as [\"npm\", \"ci\"]") else { return Vec::new() };
    if item.value.first().is_some_and(|program| program.trim().is_empty()) {
        table.walk.fault(&item.key, Some(&item.span), "has a blank program", "write an argv such as [\"npm\", \"ci\"]");
    }
    item.value
}

fn tiers(table: &Table<'_, '_>) -> Vec<Tier> {
    let tiers = table.table("tiers");
    let mut found = Vec::new();
    for (name, tier) in tiers.named_tables() {
        if !is_dns_label(name.value, TIER_NAME_MAX) {
            let help =
                format!("a tier's name is at most {TIER_NAME_MAX} of a-z, 0-9 and hyphen, no hyphen first or last");
            table.walk.fault(&name.key, Some(&name.span), format!("`{}` is no tier name", name.value), help);
        }
        let memory = tier.size("memory", 16 << 20..=1 << 44);
        if memory.is_none() && !tier.has("memory") {
            let help = format!("write `{} = {{ memory = \"2GiB\", quota = 2 }}`", name.value);
            table.walk.fault(&tier.key("memory"), Some(&name.span), "is missing", help);
        }
        let quota = tier.number("quota", 1..=999).map_or(1, |item| item.value);
        tier.finish();
        found.push(Tier { name: name.value.to_owned(), memory: memory.map_or(2 << 30, |item| item.value), quota });
    }
    if found.is_empty() {
        found.push(Tier { name: "lite".to_owned(), memory: 2 << 30, quota: 2 });
    }
    found
}

/// `http://IP:PORT/path`: the worker is static and resolves no names.
fn probe(table: &Table<'_, '_>, name: &'static str) -> Option<String> {
    let item = table.text(name, "a URL such as \"http://10.0.0.1:8080/healthz\"")?;
    let address = item.value.strip_prefix("http://").map(|rest| rest.split('/').next().unwrap_or_default());
    if !address.is_some_and(|address| address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() > 0)) {
        let what = format!("`{}` is no probe: the worker resolves no names", item.value);
        table.walk.fault(
            &item.key,
            Some(&item.span),
            what,
            "write http, an IP address and a port, such as \"http://10.0.0.1:8080/healthz\"",
        );
    }
    Some(item.value)
}

fn env(table: &Table<'_, '_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for item in table.table("env").named_texts() {
        let (name, value) = item.value;
        let fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !fits {
            table.walk.fault(
                &item.key,
                Some(&item.span),
                format!("`{name}` is no variable's name"),
                "letters, digits and underscores, no digit first",
            );
        } else if name.starts_with("WARM_") {
            table.walk.fault(
                &item.key,
                Some(&item.span),
                "begins with WARM_, which tells the worker who it is",
                "choose another name",
            );
        } else if value.contains('\0') {
            table.walk.fault(&item.key, Some(&item.span), "holds a zero byte", "no variable can hold one");
        }
        env.insert(name.to_owned(), value);
    }
    env
}

/// A profile that the replay policy may not reach would fail at every replay; better to say so now.
pub(super) fn check_grants(table: &Table<'_, '_>, profiles: &BTreeMap<String, Profile>, grants: &Grants) {
    for profile in profiles.values() {
        let (context, namespace) = profile.target();
        if context.is_empty() || namespace.is_empty() {
            continue;
        }
        let missing: Vec<_> =
            VERBS.into_iter().filter(|verb| !grants.replay.allows(context, namespace, verb)).collect();
        if !missing.is_empty() {
            let what = format!(
                "the replay policy has no grant for {} in context `{context}`, namespace `{namespace}`",
                if missing.len() == VERBS.len() { "anything".to_owned() } else { missing.join(", ") }
            );
            let help = format!(
                "add to [grants.replay]: contexts = [\"{context}\"], namespaces = [\"{namespace}\"], verbs = [{}]",
                VERBS.map(|verb| format!("\"{verb}\"")).join(", ")
            );
            table.walk.fault(&table.key(&profile.name), None, what, help);
        }
    }
}

fn is_dns_label(name: &str, max: usize) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= max && name.starts_with(inner) && name.ends_with(inner) && name.chars().all(|c| inner(c) || c == '-')
}

fn is_normal(path: &Path) -> bool {
    path.is_absolute()
        && path.components().skip(1).all(|part| matches!(part, std::path::Component::Normal(_)))
        // `components` hides `.` and doubled slashes, which the API server doesn't.
        && !path.to_string_lossy().split('/').skip(1).any(|part| matches!(part, "" | "." | ".."))
}
