//! The handle that everybody else holds.

use crate::answers::Answers;
use crate::error::{ApplyError, ReadError};
use crate::fence::Bounds;
use crate::file_system;
use crate::operation::{Applied, Decider, Meant, Primary, Submission};
use crate::queue::{Done, Outcome, Queue, Task};
use crate::reader::{Page, Position, Readers, Record, RowFilter};
use crate::row::{Instant as Millis, Row};
use crate::schema::{self, Inspection, OpenError};
use crate::stats::{Counters, Observer, Stats, Unobserved};
use crate::store::{Expect, Store};
use crate::turnstile::Turnstile;
use crate::writer::Writer;
use parking_lot::Mutex;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{oneshot, watch};

/// How long the start waits for another process that holds the lock, and [`Ledger::close`] for the last writes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// What a ledger needs to know.
#[derive(Clone)]
pub struct Options {
    /// Who decides.
    pub decider: Arc<dyn Decider>,
    /// Who may write.
    pub primary: Arc<dyn Primary>,
    /// How many writes may wait.
    pub queue: usize,
    /// How long the host's own writes (quarantine, records) may wait for the lock; and how long any write is waited for
    /// beyond its deadline once it has been begun.
    pub wait: Duration,
    /// Limits of what may be written.
    pub bounds: Bounds,
    /// A group of writes is closed when it has been decided on for so long.
    pub group_time: Duration,
    /// A group has at most so many writes.
    pub group_size: usize,
    /// So many changes back removals are remembered, so that another daemon reads only what changed.
    pub tombstones: u64,
    /// The time, asked under the lock.
    pub clock: Arc<dyn Fn() -> Millis + Send + Sync>,
    /// Who is told how long the writer's steps took.
    pub observer: Arc<dyn Observer>,
}

impl Options {
    /// The usual figures: 4,096 waiting writes, 15 s, groups of 10 ms or 1,024 writes, the system's clock.
    #[must_use]
    pub fn new(decider: Arc<dyn Decider>, primary: Arc<dyn Primary>) -> Self {
        Self {
            decider,
            primary,
            queue: 4096,
            wait: PATIENCE,
            bounds: Bounds::default(),
            group_time: Duration::from_millis(10),
            group_size: 1024,
            tombstones: 65_536,
            clock: Arc::new(system_time),
            observer: Arc::new(Unobserved),
        }
    }
}

fn system_time() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The ledger. Clones are one ledger; its file may be open in other processes at the same time.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<Queue>,
    readers: Readers,
    counters: Arc<Counters>,
    wait: Duration,
    /// True once the writer's thread has ended.
    ended: watch::Receiver<bool>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Ledger {
    /// Opens the ledger's file, and makes it where it is missing (file 0600, folder 0700).
    ///
    /// Blocks for as long as another process holds the lock, at most 15 s.
    ///
    /// # Errors
    /// See [`OpenError`]; what is there already is left byte for byte as it is.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        Self::start(open_store(path, options.tombstones)?, path, options)
    }

    /// Looks whether the ledger's file is whole and of a schema that this version knows, and changes nothing; none when
    /// there is no file. May be asked while daemons have it open: their writes go on. Blocks as [`Ledger::open`] does.
    ///
    /// # Errors
    /// Those of [`Ledger::open`].
    pub fn inspect(path: &Path) -> Result<Option<Inspection>, OpenError> {
        let _alone = OPENING.lock();
        if !path.exists() {
            return Ok(None);
        }
        schema::inspect(path).map(Some)
    }

    pub(crate) fn start(store: Store, path: &Path, options: Options) -> Result<Self, OpenError> {
        let queue = Arc::new(Queue::new(options.queue));
        let counters = Arc::new(Counters::default());
        let writer = Writer {
            store,
            queue: Arc::clone(&queue),
            decider: options.decider,
            primary: options.primary,
            bounds: options.bounds,
            group_time: options.group_time,
            group_size: options.group_size.max(1),
            clock: options.clock,
            counters: Arc::clone(&counters),
            observer: options.observer,
            answers: Answers::new(),
        };
        let (end, ended) = watch::channel(false);
        std::thread::Builder::new()
            .name("ledger-writer".to_owned())
            .spawn(move || {
                writer.run();
                // Nobody may be left to hear it.
                let _ = end.send(true);
            })
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self { inner: Arc::new(Inner { queue, readers: Readers::new(path), counters, wait: options.wait, ended }) })
    }

    /// Has a policy decide one operation, and writes what it says, durably.
    ///
    /// Once the writer has it, it is done even if this future is dropped.
    ///
    /// # Errors
    /// See [`ApplyError`]; nothing was written, but for [`ApplyError::Uncertain`].
    pub async fn apply(&self, submission: Submission) -> Result<Applied, ApplyError> {
        let deadline = submission.deadline;
        applied(self.submit(Task::Apply(Box::new(submission)), deadline).await)
    }

    /// Takes a worker out for good, from whatever state it is in. No policy is asked, and no primary is needed: a worker
    /// that can't be trusted must not be leased by whoever may write next.
    ///
    /// # Errors
    /// `not-found` and `already-quarantined` as refusals of the policy `host`, and whatever keeps the ledger from writing.
    pub async fn quarantine(&self, worker_id: &str, reason: &str) -> Result<Applied, ApplyError> {
        self.quarantine_if(worker_id, reason, Meant::Any).await
    }

    /// As [`Ledger::quarantine`], but only while the worker is what was meant: judged under the lock, so that nobody
    /// loses a worker that was leased to them in between.
    ///
    /// # Errors
    /// As [`Ledger::quarantine`]; `conflict` as a refusal of the policy `host` when it is something else by now.
    pub async fn quarantine_if(&self, worker_id: &str, reason: &str, meant: Meant) -> Result<Applied, ApplyError> {
        let task = Task::Quarantine { worker_id: worker_id.to_owned(), reason: reason.to_owned(), meant };
        applied(self.submit(task, Instant::now() + self.inner.wait).await)
    }

    /// Writes a record when it is as expected, and answers its new number.
    ///
    /// # Errors
    /// [`ApplyError::Conflict`] when it isn't, and whatever keeps the ledger from writing.
    pub async fn put_record(
        &self,
        kind: &'static str,
        id: &str,
        expect: Expect,
        body: Value,
    ) -> Result<u64, ApplyError> {
        let body = Some(body.to_string());
        self.record(kind, id, expect, body).await
    }

    /// Removes a record when it is as expected; with [`Expect::Any`] also one that isn't there.
    ///
    /// # Errors
    /// As [`Ledger::put_record`].
    pub async fn remove_record(&self, kind: &'static str, id: &str, expect: Expect) -> Result<(), ApplyError> {
        self.record(kind, id, expect, None).await.map(|_| ())
    }

    async fn record(
        &self,
        kind: &'static str,
        id: &str,
        expect: Expect,
        body: Option<String>,
    ) -> Result<u64, ApplyError> {
        let task = Task::Record { kind, id: id.to_owned(), expect, body };
        match self.submit(task, Instant::now() + self.inner.wait).await? {
            Done::Recorded(seq) => Ok(seq),
            Done::Applied(_) => Err(ApplyError::Uncertain("the writer gave another job's answer".into())),
        }
    }

    async fn submit(&self, task: Task, deadline: Instant) -> Outcome {
        let (ticket, mut result) = self.inner.queue.push(task, deadline)?;
        match tokio::time::timeout_at(deadline.into(), &mut result).await {
            Ok(outcome) => received(outcome),
            Err(_) if self.inner.queue.withdraw(ticket) => Err(ApplyError::Busy),
            // The writer has it: whether it will be durable is not ours to guess, so it is waited for, but not for ever.
            Err(_) => tokio::time::timeout(self.inner.wait, result).await.map_or_else(
                |_| Err(ApplyError::Uncertain("the writer doesn't come to an end with it".into())),
                received,
            ),
        }
    }

    /// One row, as of the last commit.
    ///
    /// Like every read here it blocks for the time that a look into the file takes, and never for a write.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn row(&self, id: &str) -> Result<Option<Row>, ReadError> {
        self.inner.readers.row(id)
    }

    /// Rows in order of registration, at most `limit` after `after`.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn rows(&self, filter: &RowFilter, after: Option<Position>, limit: usize) -> Result<Page, ReadError> {
        self.inner.readers.rows(filter, after, limit)
    }

    /// One record.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn get_record(&self, kind: &str, id: &str) -> Result<Option<Record>, ReadError> {
        self.inner.readers.record(kind, id)
    }

    /// Records of one kind in the order of their ids, at most `limit` after `after`.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn list_records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, ReadError> {
        self.inner.readers.records(kind, after, limit)
    }

    /// Bytes that may still be written where the ledger lies. Blocks as long as the file system takes to say so.
    ///
    /// # Errors
    /// The file system doesn't say.
    pub fn free_space(&self) -> Result<u64, ReadError> {
        self.inner.readers.free_space()
    }

    /// Figures since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters.stats(self.inner.queue.len())
    }

    /// Takes no more writes, finishes those that wait, and folds the log into the file. Waits 15 s at most: the file is
    /// whole in any case.
    pub async fn close(self) {
        self.inner.queue.close();
        let mut ended = self.inner.ended.clone();
        // An error means that the thread is gone, which is as good.
        let _ = tokio::time::timeout(PATIENCE, ended.wait_for(|ended| *ended)).await;
        self.inner.readers.close();
    }
}

fn received(outcome: Result<Outcome, oneshot::error::RecvError>) -> Outcome {
    outcome.unwrap_or_else(|_| Err(ApplyError::Uncertain("the writer failed".into())))
}

fn applied(outcome: Outcome) -> Result<Applied, ApplyError> {
    match outcome? {
        Done::Applied(applied) => Ok(applied),
        Done::Recorded(_) => Err(ApplyError::Uncertain("the writer gave another job's answer".into())),
    }
}

/// One at a time in this process: making the file opens and closes it, which would drop the locks of a connection that
/// had been opened in between.
static OPENING: Mutex<()> = Mutex::new(());

pub(crate) fn open_store(path: &Path, tombstones: u64) -> Result<Store, OpenError> {
    let _alone = OPENING.lock();
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    let f_type = file_system::type_of(path).map_err(io(folder))?;
    if let Some(kind) = file_system::refused(f_type) {
        return Err(OpenError::NetworkFileSystem { path: path.to_owned(), kind });
    }
    make_folder(folder).map_err(io(folder))?;
    // Before the turn is taken: other daemons write while all that they have written is read here.
    if path.exists() {
        schema::inspect(path)?;
    }
    let turnstile = beside(path, "-turn");
    let turnstile = Turnstile::open(&turnstile).map_err(io(&turnstile))?;
    let turn = turnstile.take_within(PATIENCE).map_err(io(path))?;
    let turn = turn.ok_or_else(|| OpenError::Busy { path: path.to_owned() })?;
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(path)(error)),
        _ => {}
    }
    let failed = |source| OpenError::sqlite(path, source);
    let mut connection = schema::open_writer(path).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    schema::migrate(&mut connection, path)?;
    connection.busy_timeout(Duration::ZERO).map_err(failed)?;
    drop(turn);
    for (file, mode) in [
        (folder.to_owned(), 0o700),
        (path.to_owned(), 0o600),
        (beside(path, "-wal"), 0o600),
        (beside(path, "-shm"), 0o600),
        (beside(path, "-turn"), 0o600),
    ] {
        tighten(&file, mode).map_err(io(&file))?;
    }
    Store::new(path, turnstile, connection, tombstones)
}

/// Makes the folder where it is missing, so that it outlives a loss of power as the file in it does.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.exists() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// A file next to the ledger's.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Takes away what others may do with a file; by its name, without opening it.
fn tighten(path: &Path, mode: u32) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.permissions().mode() & 0o777 & !mode != 0 => {
            fs::set_permissions(path, Permissions::from_mode(mode))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
