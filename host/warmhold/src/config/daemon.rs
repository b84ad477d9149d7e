//! `[daemon]`: where it listens, who it is, and its limits.

use super::machine;
use super::walk::{Item, Table};
use super::{Overrides, resolve};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use warmhold_control::{ListenAddress, ListenError, MachineName, is_holder};

/// Where programs of local pods are looked for: the daemon's own PATH is not inherited.
pub const DEFAULT_POD_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Which document says who is primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Primary {
    /// `ROOT/control/primary.json`, claimed at start when it is absent.
    Own,
    /// Another one, which is only read.
    File(PathBuf),
    /// None: worker routes answer `primary-unmeasured`.
    None,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// `listen`: 127.0.0.1, ::1 or 100.64.0.0/10; port 0 is any free one.
    pub listen: SocketAddr,
    /// `machine`: as configured, else as kept in the root, else the host's name made fit.
    pub machine: String,
    /// Whether the file or the command line names the machine; a name that nobody chose is kept for the next starts.
    pub machine_chosen: bool,
    /// `primary`.
    pub primary: Primary,
    /// `require-primary`: writes are refused while the primary isn't known.
    pub require_primary: bool,
    /// `pods`: the folder of local pods, never inside the root.
    pub pods: PathBuf,
    /// `pod-path`: the PATH in which local pods find programs.
    pub pod_path: String,
    /// `worker-binary`: `warmhold-worker`; beside this program when it isn't configured.
    pub worker_binary: Option<PathBuf>,
    /// Limits of the HTTP server.
    pub http: HttpLimits,
}

/// What one client may ask of the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// `max-connections`: at the same time.
    pub max_connections: u32,
    /// `max-headers`: in one request.
    pub max_headers: u32,
    /// `max-header`: bytes of a request's head.
    pub max_header: u64,
    /// `max-body`: bytes of a request's body, policies apart.
    pub max_body: u64,
    /// `max-policy`: bytes of a policy that is loaded.
    pub max_policy: u64,
    /// `max-bodies`: bytes of all large bodies at the same time.
    pub max_bodies: u64,
    /// `max-waiting-writes`: for their turn at the ledger.
    pub max_waiting_writes: u32,
    /// `min-free-space`: on the ledger's disk, for the daemon to be ready.
    pub min_free_space: u64,
    /// `header-timeout`: until the head of a request is there.
    pub header_timeout: Duration,
    /// `idle-timeout`: for a connection between two requests.
    pub idle_timeout: Duration,
    /// `answer-timeout`: for a client to take in a piece of its answer.
    pub answer_timeout: Duration,
    /// `request-timeout`: for a request, replays and preparations apart; also how long a write waits for its turn.
    pub request_timeout: Duration,
    /// `drain-timeout`: for what is in flight to end when the daemon is told to.
    pub drain_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_headers: 64,
            max_header: 16 << 10,
            max_body: 1 << 20,
            max_policy: 64 << 20,
            max_bodies: 256 << 20,
            max_waiting_writes: 4096,
            min_free_space: 32 << 20,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Daemon {
    /// The name to serve under, kept in the root when nobody chose it: then it is the name of the root's first start,
    /// whatever the host is called by now.
    ///
    /// # Errors
    /// The name can't be kept.
    pub fn keep_machine(&self, root: &Path) -> std::io::Result<String> {
        if self.machine_chosen { Ok(self.machine.clone()) } else { machine::keep(root, &self.machine) }
    }
}

pub(super) fn read(table: Table<'_, '_>, root: &Path, over: &Overrides) -> Daemon {
    let listen = listen(&table, over.listen.as_deref());
    let primary = primary(&table, root, over);
    let require_primary = table.flag("require-primary").unwrap_or(false) || over.require_primary;
    if require_primary && primary == Primary::None {
        table.walk.fault(
            &table.key("require-primary"),
            None,
            "asks for a known primary, and no primary document is configured",
            "name the document with `primary`, or leave `require-primary` out",
        );
    }
    let machine = machine_name(&table, root, over.machine.as_deref(), &primary);
    let machine_chosen = over.machine.is_some() || table.has("machine");
    let pods = pods(&table, root);
    let daemon = Daemon {
        listen,
        machine,
        machine_chosen,
        primary,
        require_primary,
        pods,
        pod_path: table
            .text("pod-path", "absolute folders with colons between them")
            .filter(|item| {
                let absolute = item.value.split(':').all(|folder| folder.starts_with('/'));
                if !absolute {
                    table.walk.fault(
                        &item.key,
                        Some(&item.span),
                        "holds a folder that isn't absolute",
                        "write absolute folders with colons between them",
                    );
                }
                absolute
            })
            .map_or_else(|| DEFAULT_POD_PATH.to_owned(), |item| item.value),
        worker_binary: table
            .text("worker-binary", "the path of warmhold-worker")
            .map(|item| resolve(root, &item.value)),
        http: http(&table),
    };
    table.finish();
    daemon
}

fn http(table: &Table<'_, '_>) -> HttpLimits {
    let default = HttpLimits::default();
    let number = |name, bounds, default| table.number(name, bounds).map_or(default, |item| item.value);
    let size = |name, bounds, default| table.size(name, bounds).map_or(default, |item| item.value);
    let time = |name, default| {
        let bounds = Duration::from_millis(100)..=Duration::from_secs(600);
        table.duration(name, bounds).map_or(default, |item| item.value)
    };
    HttpLimits {
        max_connections: number("max-connections", 1..=65_536, default.max_connections),
        max_headers: number("max-headers", 8..=1000, default.max_headers),
        max_header: size("max-header", 4 << 10..=1 << 20, default.max_header),
        max_body: size("max-body", 64 << 10..=1 << 30, default.max_body),
        max_policy: size("max-policy", 64 << 10..=1 << 30, default.max_policy),
        max_bodies: size("max-bodies", 1 << 20..=64 << 30, default.max_bodies),
        max_waiting_writes: number("max-waiting-writes", 1..=1_000_000, default.max_waiting_writes),
        min_free_space: size("min-free-space", 0..=1 << 40, default.min_free_space),
        header_timeout: time("header-timeout", default.header_timeout),
        idle_timeout: time("idle-timeout", default.idle_timeout),
        answer_timeout: time("answer-timeout", default.answer_timeout),
        request_timeout: time("request-timeout", default.request_timeout),
        drain_timeout: time("drain-timeout", default.drain_timeout),
    }
}

const LISTEN_HELP: &str = "write 127.0.0.1, [::1] or an address of 100.64.0.0/10, a colon and a port";

fn listen(table: &Table<'_, '_>, over: Option<&str>) -> SocketAddr {
    let written = table.text("listen", "an address and a port, such as \"127.0.0.1:31413\"");
    let (key, span, text) = match (over, written) {
        (Some(text), _) => ("--listen".to_owned(), None, text.to_owned()),
        (None, Some(item)) => (item.key, Some(item.span), item.value),
        (None, None) => return default_listen(),
    };
    match text.parse::<ListenAddress>() {
        Ok(address) => address.socket(),
        Err(error) => {
            let what = match error {
                ListenError::Malformed { text } => format!("`{text}` is no address and port"),
                ListenError::Refused { host } => {
                    format!("`{host}` may not be listened on: others could reach it, or it isn't written plainly")
                }
            };
            table.walk.fault(&key, span.as_ref(), what, LISTEN_HELP);
            default_listen()
        }
    }
}

fn default_listen() -> SocketAddr {
    ListenAddress::DEFAULT.socket()
}

fn primary(table: &Table<'_, '_>, root: &Path, over: &Overrides) -> Primary {
    let written = table.text("primary", "\"own\", \"none\" or the path of a document");
    if let Some(primary) = &over.primary {
        return primary.clone();
    }
    match written.as_ref().map(|item| item.value.as_str()) {
        None | Some("own") => Primary::Own,
        Some("none") => Primary::None,
        Some(path) => Primary::File(resolve(root, path)),
    }
}

fn machine_name(table: &Table<'_, '_>, root: &Path, over: Option<&str>, primary: &Primary) -> String {
    let written = table.text("machine", "a name");
    let (key, span, name) = match (over, written) {
        (Some(name), _) => ("--machine".to_owned(), None, name.to_owned()),
        (None, Some(Item { key, span, value })) => (key, Some(span), value),
        (None, None) => match machine::kept(root) {
            Ok(Some(name)) => (table.key("machine"), None, name),
            Ok(None) => return machine::of_this_host(),
            Err(error) => {
                let what =
                    format!("the name that is kept in {} can't be read: {error}", machine::kept_path(root).display());
                table.walk.fault(&table.key("machine"), None, what, "make that file readable for the daemon");
                return machine::of_this_host();
            }
        },
    };
    let fitting = MachineName::fit(&name);
    if MachineName::parse(&name).is_err() {
        table.walk.fault(
            &key,
            span.as_ref(),
            format!("`{name}` is no machine name"),
            format!("letters, digits, dots, underscores and hyphens, a letter or digit first; such as `{fitting}`"),
        );
    } else if *primary != Primary::None && !is_holder(&name) {
        table.walk.fault(
            &key,
            span.as_ref(),
            format!("`{name}` could never hold the primary document"),
            format!(
                "at most 32 of a-z, 0-9 and hyphen, no hyphen first, such as `{fitting}`; or set primary = \"none\""
            ),
        );
    }
    name
}

fn pods(table: &Table<'_, '_>, root: &Path) -> PathBuf {
    let mut beside = root.as_os_str().to_owned();
    beside.push("-pods");
    let beside = PathBuf::from(beside);
    let Some(item) = table.text("pods", "the path of a folder") else {
        return if closed_parent(&beside).is_none() { beside } else { apart(root) };
    };
    let pods = resolve(root, &item.value);
    if pods.starts_with(root) {
        table.walk.fault(
            &item.key,
            Some(&item.span),
            "lies inside the root, which nobody but the daemon may cross, so tests could not run there",
            format!("name a folder outside of it, such as {}", beside.display()),
        );
    } else if let Some(parent) = closed_parent(&pods) {
        table.walk.fault(
            &item.key,
            Some(&item.span),
            format!("can't be reached by the tests' own users: {} isn't searchable by all", parent.display()),
            format!("chmod o+x {}, or name a folder such as {}", parent.display(), apart(root).display()),
        );
    }
    pods
}

/// The first folder above the pods that only some may cross. As root each request has a user of its own, who must get
/// to its pod; else all is one user's, and nothing is in the way.
fn closed_parent(pods: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let closed = |path: &&Path| {
        std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.permissions().mode() & 0o001 == 0)
    };
    pods.ancestors().skip(1).find(closed).map(Path::to_owned)
}

/// A folder that everybody can get to, for a root that lies in somebody's closed home.
fn apart(root: &Path) -> PathBuf {
    use sha2::{Digest as _, Sha256};
    use std::os::unix::ffi::OsStrExt as _;
    let name: String =
        Sha256::digest(root.as_os_str().as_bytes()).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Path::new("/var/lib").join(format!("warmhold-pods-{name}"))
}
