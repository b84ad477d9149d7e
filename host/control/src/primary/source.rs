//! The document as a running daemon sees it.
//!
//! Three ways to look: the *cached* view answers most requests and is read anew when the document's stamp differs (a
//! stat at each request) or after 10 s; the *fresh* view is read for each worker route, and neither fills the cache nor
//! shares another's read; the *fence* is read by the ledger's writer inside its transaction and stated once more
//! before the commit.

use super::change::{Change, ChangeError};
use super::document::{Reading, read_kept};
use crate::files::{Content, Stamp};
use crate::machine::MachineName;
use parking_lot::{Mutex, RwLock};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use warmhold_ledger::{Primary, PrimaryView};

/// How old a cached view may be when the document's stamp stays the same.
const MAX_AGE: Duration = Duration::from_secs(10);
/// How long a look at a document on a file system that may block takes at most; then it reads as unknown.
const LOOK: Duration = Duration::from_secs(5);
/// So many looks at such a document at the same time. When it hangs each of them holds a thread.
const LOOKS: usize = 16;

/// A view and what it was read from.
struct Measured {
    view: PrimaryView,
    /// When, by this machine's own steady clock.
    at: Instant,
    seen: Seen,
}

/// What a reading was made from. A kept content holds its file open, so that its stamp stays its own.
enum Seen {
    Nothing,
    Content(Box<Content>),
    /// It couldn't even be opened; never equal to anything.
    Unknown,
}

impl Seen {
    fn still_at(&self, path: &Path) -> bool {
        match (self, Stamp::at(path)) {
            (Self::Nothing, Ok(None)) => true,
            (Self::Content(content), Ok(Some(stamp))) => content.stamp == stamp,
            _ => false,
        }
    }
}

/// Where this daemon learns who may write; shared by the server and the ledger.
pub struct PrimarySource {
    document: Option<PathBuf>,
    machine: MachineName,
    /// Turns at a document that may lie on a file system that blocks for long; None where it can't.
    foreign: Option<Arc<Semaphore>>,
    /// A look at it doesn't end: until it does, nothing is known, and nobody else waits for the same.
    hangs: AtomicBool,
    /// See [`LOOK`].
    patience: Duration,
    cached: RwLock<Option<Arc<Measured>>>,
    /// Held while one reader fills the cache; the others wait for its result.
    filling: tokio::sync::Mutex<()>,
    fenced: Mutex<Option<Seen>>,
    last_good: Mutex<Option<Instant>>,
    /// Why it couldn't be measured when that was last told.
    told: Mutex<Option<String>>,
}

impl std::fmt::Debug for PrimarySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrimarySource")
            .field("document", &self.document)
            .field("machine", &self.machine)
            .finish_non_exhaustive()
    }
}

impl PrimarySource {
    /// None is configured: everything but worker routes may be written, and those answer `primary-unmeasured`.
    #[must_use]
    pub fn none(machine: MachineName) -> Self {
        Self::new(None, machine, false)
    }

    /// The daemon's own document, `ROOT/control/primary.json`, claimed now when there is none. One that another machine
    /// holds, or that can't be understood, is left alone: then this daemon writes no worker rows.
    ///
    /// # Errors
    /// It is absent and can't be claimed, for example since the machine's name can't hold it.
    pub fn own(root: &Path, machine: MachineName) -> Result<Self, ChangeError> {
        let folder = root.join("control");
        let path = folder.join("primary.json");
        crate::files::private_directory(&folder).map_err(|source| ChangeError::Io { path: folder, source })?;
        match Change::Claim.make(&path, &machine) {
            // Somebody else may have claimed it in between; the views will tell.
            Ok(_) | Err(ChangeError::Held { .. } | ChangeError::Unmeasured { .. } | ChangeError::Raced { .. }) => {
                Ok(Self::new(Some(path), machine, false))
            }
            Err(error) => Err(error),
        }
    }

    /// Another document, which this daemon only reads.
    ///
    /// # Errors
    /// The machine's name could never hold it.
    pub fn external(document: PathBuf, machine: MachineName) -> Result<Self, ChangeError> {
        if !machine.can_hold_primary() {
            return Err(ChangeError::Name { name: machine.as_str().to_owned() });
        }
        Ok(Self::new(Some(document), machine, true))
    }

    fn new(document: Option<PathBuf>, machine: MachineName, foreign: bool) -> Self {
        Self {
            document,
            machine,
            hangs: AtomicBool::new(false),
            patience: LOOK,
            foreign: foreign.then(|| Arc::new(Semaphore::new(LOOKS))),
            cached: RwLock::new(None),
            filling: tokio::sync::Mutex::new(()),
            fenced: Mutex::new(None),
            last_good: Mutex::new(None),
            told: Mutex::new(None),
        }
    }

    /// This machine.
    #[must_use]
    pub fn machine(&self) -> &MachineName {
        &self.machine
    }

    /// The document's path; None when none is configured.
    #[must_use]
    pub fn document(&self) -> Option<&Path> {
        self.document.as_deref()
    }

    /// How long ago the document was last read and understood, by this machine's own clock.
    #[must_use]
    pub fn last_good_age(&self) -> Option<Duration> {
        self.last_good.lock().map(|at| at.elapsed())
    }

    /// The cached view; None when no document is configured.
    pub async fn view(self: &Arc<Self>) -> Option<PrimaryView> {
        self.document.as_ref()?;
        if let Some(view) = self.look(|source| source.cached_view()).await {
            return Some(view);
        }
        let _filling = self.filling.lock().await;
        self.look(|source| {
            // Whoever waited finds what the one before has read.
            source.cached_view().or_else(|| source.fill())
        })
        .await
    }

    /// The document as it is now; None when none is configured.
    pub async fn fresh(self: &Arc<Self>) -> Option<PrimaryView> {
        self.document.as_ref()?;
        self.look(|source| source.measure().map(|measured| measured.view)).await
    }

    /// Looks at the file system: at once where it is this machine's own small file, else on a thread that may block. A look
    /// that takes too long finds that nothing is known.
    async fn look(
        self: &Arc<Self>,
        look: impl FnOnce(&Self) -> Option<PrimaryView> + Send + 'static,
    ) -> Option<PrimaryView> {
        let Some(turns) = &self.foreign else { return look(self) };
        if self.hangs.load(Ordering::SeqCst) {
            return Some(unknown());
        }
        let source = Arc::clone(self);
        // True from when a thread has been given the look until it comes back.
        let looks = Arc::new(AtomicBool::new(false));
        let looking = Arc::clone(&looks);
        let looked = async {
            let turn = Arc::clone(turns).acquire_owned().await;
            looking.store(true, Ordering::SeqCst);
            tokio::task::spawn_blocking(move || {
                let view = look(&source);
                looking.store(false, Ordering::SeqCst);
                source.hangs.store(false, Ordering::SeqCst);
                drop(turn);
                view
            })
            .await
        };
        match tokio::time::timeout(self.patience, looked).await {
            // It fails only when the runtime ends; then nobody waits for the answer.
            Ok(looked) => looked.unwrap_or_else(|_| Some(unknown())),
            Err(_) => {
                self.tell(&format!("it can't be read within {} s", self.patience.as_secs_f32()));
                self.hangs.store(true, Ordering::SeqCst);
                // In this order, or a look that came back just now would have said so before it could be heard.
                if !looks.load(Ordering::SeqCst) {
                    self.hangs.store(false, Ordering::SeqCst);
                }
                Some(unknown())
            }
        }
    }

    /// Logs why the document can't be measured. Every worker route reads it anew: the same fault is told once.
    fn tell(&self, why: &str) {
        let Some(document) = self.document() else { return };
        if self.told.lock().replace(why.to_owned()).as_deref() != Some(why) {
            tracing::warn!(document = %document.display(), why, "the primary document can't be measured");
        }
    }

    fn cached_view(&self) -> Option<PrimaryView> {
        let path = self.document.as_deref()?;
        let measured = self.cached.read().clone()?;
        (measured.at.elapsed() < MAX_AGE && measured.seen.still_at(path)).then(|| measured.view.clone())
    }

    fn fill(&self) -> Option<PrimaryView> {
        let measured = Arc::new(self.measure()?);
        let view = measured.view.clone();
        *self.cached.write() = Some(measured);
        Some(view)
    }

    fn measure(&self) -> Option<Measured> {
        let path = self.document.as_deref()?;
        let at = Instant::now();
        let (reading, content) = read_kept(path);
        let seen = match (&reading, content) {
            (_, Some(content)) => Seen::Content(Box::new(content)),
            (Reading::Absent, None) => Seen::Nothing,
            _ => Seen::Unknown,
        };
        let view = match reading {
            Reading::Present(document) => {
                *self.last_good.lock() = Some(at);
                *self.told.lock() = None;
                PrimaryView {
                    held_here: document.holder == self.machine.as_str(),
                    holder: Some(document.holder),
                    generation: Some(document.generation),
                    known: true,
                }
            }
            Reading::Absent => unknown(),
            Reading::Unmeasured(why) => {
                self.tell(&why);
                unknown()
            }
        };
        Some(Measured { view, at, seen })
    }
}

impl Primary for PrimarySource {
    fn read(&self) -> Option<PrimaryView> {
        let measured = self.measure()?;
        *self.fenced.lock() = Some(measured.seen);
        Some(measured.view)
    }

    fn unchanged(&self) -> bool {
        match (self.document.as_deref(), &*self.fenced.lock()) {
            (Some(path), Some(seen)) => seen.still_at(path),
            (None, _) => true,
            (Some(_), None) => false,
        }
    }
}

fn unknown() -> PrimaryView {
    PrimaryView { holder: None, generation: None, held_here: false, known: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(holder: &str, generation: u64) -> String {
        format!(r#"{{"holder":"{holder}","generation":{generation},"state":"held","renewedAt":1}}"#)
    }

    fn replace(path: &Path, text: &str) {
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, path).unwrap();
    }

    fn m1() -> MachineName {
        MachineName::parse("m1").unwrap()
    }

    #[tokio::test]
    async fn every_change_is_seen_at_once_by_every_view() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease.json");
        for foreign in [true, false] {
            let source = Arc::new(PrimarySource::new(Some(path.clone()), m1(), foreign));
            assert_eq!(source.view().await, Some(unknown()));
            for generation in 1..50 {
                let holder = if generation % 2 == 0 { "m1" } else { "m2" };
                replace(&path, &doc(holder, generation));
                let expected = PrimaryView {
                    holder: Some(holder.into()),
                    generation: Some(generation),
                    held_here: holder == "m1",
                    known: true,
                };
                assert_eq!(source.view().await.as_ref(), Some(&expected));
                assert_eq!(source.fresh().await.as_ref(), Some(&expected));
                assert_eq!(source.read().as_ref(), Some(&expected));
                assert!(source.unchanged());
            }
            replace(&path, &doc("m1", 99));
            assert!(!source.unchanged());
            source.read();
            std::fs::write(&path, "{").unwrap();
            assert!(!source.unchanged());
            assert_eq!(source.view().await, Some(unknown()));
            source.read();
            std::fs::remove_file(&path).unwrap();
            assert!(!source.unchanged());
            assert_eq!(source.view().await, Some(unknown()));
            source.read();
            assert!(source.unchanged(), "still absent");
            replace(&path, &doc("m1", 100));
            assert!(!source.unchanged(), "and now not");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[tokio::test]
    async fn none_is_configured() {
        let source = Arc::new(PrimarySource::none(m1()));
        assert_eq!((source.view().await, source.fresh().await, source.read()), (None, None, None));
        assert!(source.unchanged());
        assert_eq!(source.last_good_age(), None);
    }

    #[tokio::test]
    async fn the_own_document_is_claimed_once_and_then_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let source = Arc::new(PrimarySource::own(folder.path(), m1()).unwrap());
        let view = source.view().await.unwrap();
        assert_eq!((view.held_here, view.generation), (true, Some(1)));
        assert!(source.last_good_age().is_some());
        let path = folder.path().join("control/primary.json");
        let before = std::fs::read(&path).unwrap();
        PrimarySource::own(folder.path(), m1()).unwrap();
        let m2 = Arc::new(PrimarySource::own(folder.path(), MachineName::parse("m2").unwrap()).unwrap());
        assert!(!m2.view().await.unwrap().held_here);
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::write(&path, "broken").unwrap();
        let source = Arc::new(PrimarySource::own(folder.path(), m1()).unwrap());
        assert!(!source.view().await.unwrap().known);
        assert_eq!(std::fs::read(&path).unwrap(), b"broken");
    }

    #[test]
    fn a_name_that_could_never_hold_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let name = MachineName::parse("M1").unwrap();
        let path = folder.path().join("x");
        assert_eq!(PrimarySource::external(path, name.clone()).unwrap_err().code(), "invalid-holder");
        assert_eq!(PrimarySource::own(folder.path(), name).unwrap_err().code(), "invalid-holder");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_document_that_hangs_is_unknown_until_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease.json");
        replace(&path, &doc("m1", 3));
        let mut source = PrimarySource::external(path, m1()).unwrap();
        source.patience = Duration::from_millis(50);
        let source = Arc::new(source);
        assert!(source.view().await.unwrap().known);
        // A file system that doesn't answer, which no test can have: a look that doesn't end.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let hanging = source.look(move |source| {
            let _ = wait.recv();
            source.cached_view()
        });
        assert_eq!(hanging.await, Some(unknown()));
        for _ in 0..100 {
            assert_eq!((source.view().await, source.fresh().await), (Some(unknown()), Some(unknown())));
        }
        go.send(()).unwrap();
        while !source.view().await.unwrap().known {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(source.fresh().await.unwrap().held_here);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_readers_at_once_agree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease.json");
        replace(&path, &doc("m1", 3));
        let source = Arc::new(PrimarySource::external(path, m1()).unwrap());
        let readers: Vec<_> = (0..64)
            .map(|_| {
                let source = Arc::clone(&source);
                tokio::spawn(async move { source.view().await })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await.unwrap().unwrap().generation, Some(3));
        }
    }
}
