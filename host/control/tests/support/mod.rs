//! A real server on loopback over a real ledger, with the standard policy called natively.
#![allow(dead_code, unreachable_pub, reason = "each test uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the support of tests, which end at once where something isn't as they need it"
)]

pub mod client;
pub mod decider;
pub mod declared;
pub mod services;

use services::{MemoryPolicies, MemoryReplays, MemoryWorkers};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use warmhold_control::primary::PrimarySource;
use warmhold_control::{
    Control, ControlOptions, Figures, ListenAddress, MachineName, MachineTokens, RequestLimits, Server, ServerLimits,
    Tokens,
};
use warmhold_ledger::{Ledger, Options, Primary};

/// Which primary document a server has.
#[derive(Clone, Debug, Default)]
pub enum Document {
    /// None.
    #[default]
    None,
    /// Its own.
    Own,
    /// This file.
    File(PathBuf),
}

/// How a server is to be.
#[derive(Clone, Default)]
pub struct Setup {
    pub document: Document,
    pub require_primary: bool,
    pub limits: RequestLimits,
    pub server: ServerLimits,
    pub machine: Option<String>,
    pub address: Option<ListenAddress>,
    /// What the ledger asks instead of the document's own fence.
    pub fence: Option<Arc<dyn Primary>>,
    pub decider: Option<Arc<dyn warmhold_ledger::Decider>>,
    /// How many writes may wait, where the ledger's own figure isn't meant.
    pub queue: Option<usize>,
}

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    pub root: PathBuf,
    pub ledger: Ledger,
    pub control: Arc<Control>,
    pub replays: Arc<MemoryReplays>,
    pub workers: Arc<MemoryWorkers>,
    pub policies: Arc<MemoryPolicies>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<usize>,
}

impl Running {
    /// Starts a server on this root.
    pub async fn start(root: &Path, setup: Setup) -> Self {
        let machine = MachineName::parse(setup.machine.as_deref().unwrap_or("m1")).unwrap();
        let tokens = Tokens::open(root).unwrap();
        let primary = Arc::new(match setup.document {
            Document::None => PrimarySource::none(machine),
            Document::Own => PrimarySource::own(root, machine).unwrap(),
            Document::File(file) => PrimarySource::external(file, machine).unwrap(),
        });
        let decider = setup.decider.unwrap_or_else(|| Arc::new(decider::Native));
        let fence = setup.fence.unwrap_or_else(|| Arc::clone(&primary) as Arc<dyn Primary>);
        let mut options = Options::new(decider, fence);
        options.queue = setup.queue.unwrap_or(options.queue);
        let figures = Figures::new();
        options.observer = Arc::clone(&figures) as _;
        let ledger = Ledger::open(&root.join("control/ledger.sqlite3"), options).unwrap();
        let replays = Arc::new(MemoryReplays::default());
        let workers = Arc::new(MemoryWorkers::default());
        let policies = Arc::new(MemoryPolicies::default());
        let control = ControlOptions {
            ledger: ledger.clone(),
            tokens,
            primary,
            require_primary: setup.require_primary,
            replays: Arc::clone(&replays) as _,
            workers: Arc::clone(&workers) as _,
            policies: Arc::clone(&policies) as _,
            limits: setup.limits,
        };
        let control = Control::with_figures(control, figures);
        let address = setup.address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let server = Server::bind(address, setup.server).unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.serve(Arc::clone(&control), async move {
            let _ = stopped.await;
        }));
        Self { address, root: root.to_owned(), ledger, control, replays, workers, policies, stop, serving }
    }

    /// A scope token, as its user reads it.
    pub fn token(&self, name: &str) -> String {
        let text = std::fs::read(self.root.join("control/tokens.json")).unwrap();
        let tokens: serde_json::Value = serde_json::from_slice(&text).unwrap();
        tokens[name].as_str().unwrap().to_owned()
    }

    /// A new token for a machine.
    pub fn issue(&self, machine: &str) -> String {
        MachineTokens::of(&self.root).issue(&MachineName::parse(machine).unwrap()).unwrap()
    }

    /// Stops it as SIGTERM does; answers how many connections had to be cut off.
    pub async fn stop(self) -> usize {
        let _ = self.stop.send(());
        let cut = self.serving.await.unwrap();
        self.ledger.close().await;
        cut
    }
}
