//! The writer's connection: the right to write, the mirror, and what is written in between.

use crate::fence::Write;
use crate::mirror::Mirror;
use crate::operation::View;
use crate::row::Row;
use crate::schema::{self, OpenError, SELECT_ROWS, row_of};
use crate::turnstile::Turnstile;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the one whose turn it is waits between two looks at the write lock.
const LOOK: Duration = Duration::from_micros(500);

/// What the store couldn't do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("the turnstile: {0}")]
    Turn(std::io::Error),
    #[error("memory and file disagree about {0:?}")]
    Disagrees(String),
    #[error("no transaction is open")]
    NoTransaction,
    #[error("a number is beyond what the file can hold")]
    Range,
}

/// What a record must be before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It must not exist.
    Absent,
    /// It must have this sequence number.
    Seq(u64),
    /// Whatever is there is replaced.
    Any,
}

/// A record's new sequence number, or the one that it has against what was expected.
pub(crate) type Cas = Result<u64, Option<u64>>;

/// How the mirror came to be true again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refresh {
    /// Nobody else has written.
    Held,
    /// Only what changed was read.
    Changed,
    /// Everything was read.
    Whole,
}

/// The ledger as its writer has it.
pub(crate) struct Store {
    path: PathBuf,
    turn: Turnstile,
    /// Device and inode of the file that was opened.
    identity: (u64, u64),
    connection: Option<Connection>,
    mirror: Option<Arc<Mirror>>,
    data_version: i64,
    counter: Counter,
    /// The counter as it was when the transaction began.
    begun: Counter,
    /// How many numbers back tombstones are kept.
    tombstones: u64,
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

/// Numbers that only rise; in the file as of the last commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counter {
    seq: u64,
    position: u64,
    forgotten: u64,
}

impl Store {
    /// Takes over a file that is a ledger already.
    pub(crate) fn new(
        path: &Path,
        turn: Turnstile,
        connection: Connection,
        tombstones: u64,
    ) -> Result<Self, OpenError> {
        let identity = identity(path)
            .ok_or_else(|| OpenError::Io { path: path.to_owned(), source: std::io::ErrorKind::NotFound.into() })?;
        Ok(Self {
            path: path.to_owned(),
            turn,
            identity,
            connection: Some(connection),
            mirror: None,
            data_version: 0,
            counter: Counter::default(),
            begun: Counter::default(),
            tombstones,
            #[cfg(test)]
            faults: faults::Faults::default(),
        })
    }

    /// Takes the turn and the write lock, and makes the mirror true. None when `give_up` said so while the lock was
    /// another's.
    pub(crate) fn begin(&mut self, give_up: impl Fn() -> bool) -> Result<Option<Refresh>, StoreError> {
        if self.connection.is_none() {
            self.connection = Some(schema::open_writer(&self.path)?);
        }
        let turn = self.turn.take().map_err(StoreError::Turn)?;
        loop {
            match self.run("BEGIN IMMEDIATE") {
                Ok(()) => break,
                Err(StoreError::Sqlite(error)) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                    if give_up() {
                        return Ok(None);
                    }
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error),
            }
        }
        drop(turn);
        self.run("SAVEPOINT whole")?;
        let connection = self.connection()?;
        // Inside the transaction: what it says now holds until the end.
        let version: i64 = connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        let refresh = if self.mirror.is_some() && version == self.data_version {
            Refresh::Held
        } else if self.mirror.is_some() && self.read_changes()? {
            Refresh::Changed
        } else {
            self.read_all()?;
            Refresh::Whole
        };
        self.data_version = version;
        self.begun = self.counter;
        Ok(Some(refresh))
    }

    /// The rows as the transaction sees them. A clone must be gone before the next write.
    pub(crate) fn view(&self) -> Result<Arc<Mirror>, StoreError> {
        self.mirror.clone().ok_or(StoreError::NoTransaction)
    }

    /// Whether no clone of the mirror is left; reads everything anew when one is.
    pub(crate) fn reclaim(&mut self) -> Result<bool, StoreError> {
        if self.mirror.as_mut().is_some_and(|mirror| Arc::get_mut(mirror).is_some()) {
            return Ok(true);
        }
        let counter = self.counter;
        self.read_all()?;
        // The file's counter is behind by what this transaction has given out.
        self.counter = counter;
        Ok(false)
    }

    /// Writes one thing under a savepoint of its own.
    pub(crate) fn write(&mut self, write: Write) -> Result<Option<Arc<Row>>, StoreError> {
        self.saved(|store| match write {
            Write::Put(row) => store.put(row).map(Some),
            Write::Remove(id) => store.remove(&id).map(|()| None),
        })
    }

    /// Writes or removes one record under a savepoint of its own.
    pub(crate) fn record(
        &mut self,
        kind: &str,
        id: &str,
        expect: Expect,
        body: Option<&str>,
    ) -> Result<Cas, StoreError> {
        self.saved(|store| {
            let found: Option<u64> = store
                .connection()?
                .prepare_cached("SELECT seq FROM record WHERE kind = ?1 AND id = ?2")?
                .query_row([kind, id], |row| row.get::<_, i64>(0))
                .optional()?
                .map(|seq| u64::try_from(seq).map_err(|_| StoreError::Range))
                .transpose()?;
            let fits = match expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Seq(seq) => found == Some(seq),
            };
            if !fits {
                return Ok(Err(found));
            }
            let seq = store.next_seq();
            let connection = store.connection()?;
            match body {
                Some(body) => connection
                    .prepare_cached(
                        "INSERT INTO record (kind, id, seq, body) VALUES (?1, ?2, ?3, ?4) \
                         ON CONFLICT (kind, id) DO UPDATE SET seq = excluded.seq, body = excluded.body",
                    )?
                    .execute(params![kind, id, signed(seq)?, body])?,
                None => {
                    connection.prepare_cached("DELETE FROM record WHERE kind = ?1 AND id = ?2")?.execute([kind, id])?
                }
            };
            Ok(Ok(seq))
        })
    }

    /// Undoes everything since [`Store::begin`] and keeps the write lock; the mirror is read anew.
    pub(crate) fn restart(&mut self) -> Result<(), StoreError> {
        self.run("ROLLBACK TO whole")?;
        self.mirror = None;
        self.read_all()
    }

    /// Whether the path still leads to the file that was opened. Another file there has other locks: whoever opened that
    /// one doesn't know of ours.
    pub(crate) fn in_place(&self) -> bool {
        identity(&self.path) == Some(self.identity)
    }

    /// Commits. On an error nobody knows whether it is durable; the mirror and the connection are given up.
    pub(crate) fn commit(&mut self) -> Result<(), StoreError> {
        let result = self.try_commit();
        if result.is_err() {
            self.give_up();
        }
        result
    }

    fn try_commit(&mut self) -> Result<(), StoreError> {
        let counter = self.counter;
        let forget = counter.seq.saturating_sub(self.tombstones);
        // In steps: a removal shouldn't cost a deletion of the oldest tombstone each time.
        if forget > counter.forgotten.saturating_add(self.tombstones / 4) {
            self.connection()?.prepare_cached("DELETE FROM tombstone WHERE seq <= ?1")?.execute([signed(forget)?])?;
            self.counter.forgotten = forget;
        }
        let Counter { seq, position, forgotten } = self.counter;
        self.connection()?.prepare_cached("UPDATE counter SET seq = ?1, position = ?2, forgotten = ?3")?.execute([
            signed(seq)?,
            signed(position)?,
            signed(forgotten)?,
        ])?;
        #[cfg(test)]
        self.faults.before_commit()?;
        self.run("COMMIT")?;
        #[cfg(test)]
        self.faults.after_commit()?;
        Ok(())
    }

    /// Ends a transaction that wrote nothing.
    pub(crate) fn end(&mut self) {
        // Numbers that were given out for nothing are another process's to give: what it writes must look newer.
        self.counter = self.begun;
        if self.run("ROLLBACK").is_err() {
            self.give_up();
        }
    }

    /// Drops connection and mirror: everything is opened and read anew.
    pub(crate) fn give_up(&mut self) {
        self.mirror = None;
        self.connection = None;
    }

    /// Whether SQLite has ended the transaction by itself, as it does on some errors.
    pub(crate) fn transaction_lost(&self) -> bool {
        self.connection.as_ref().is_none_or(Connection::is_autocommit)
    }

    /// Folds the log into the file as far as readers allow.
    pub(crate) fn checkpoint(&mut self) -> Result<(), StoreError> {
        if let Some(connection) = &self.connection {
            connection.busy_timeout(Duration::from_millis(200))?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        }
        Ok(())
    }

    /// Rows in memory.
    pub(crate) fn rows(&self) -> usize {
        self.mirror.as_ref().map_or(0, |mirror| mirror.len())
    }

    fn connection(&self) -> Result<&Connection, StoreError> {
        self.connection.as_ref().ok_or(StoreError::NoTransaction)
    }

    /// A statement without parameters and rows, prepared once.
    fn run(&self, sql: &str) -> Result<(), StoreError> {
        self.connection()?.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn saved<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.run("SAVEPOINT one")?;
        let result = act(self);
        if result.is_err() && !self.transaction_lost() {
            self.run("ROLLBACK TO one")?;
        }
        if !self.transaction_lost() {
            self.run("RELEASE one")?;
        }
        result
    }

    fn next_seq(&mut self) -> u64 {
        self.counter.seq += 1;
        self.counter.seq
    }

    fn put(&mut self, row: Row) -> Result<Arc<Row>, StoreError> {
        let known = self.mirror.as_ref().and_then(|mirror| mirror.entry(&row.id));
        let moved = known.is_some_and(|(before, _)| {
            (before.kind, &before.machine, &before.name) != (row.kind, &row.machine, &row.name)
        });
        let known = known.map(|(_, position)| position);
        let seq = signed(self.next_seq())?;
        let position = known.unwrap_or(self.counter.position + 1);
        let (at, observed_at) = (signed(position)?, signed(row.observed_at)?);
        let connection = self.connection()?;
        let written = if moved {
            connection
                .prepare_cached(
                    "UPDATE row SET kind = ?3, machine = ?4, name = ?5, owner = ?6, endpoint = ?7, attrs = ?8, \
                     observed_at = ?9, ttl_ms = ?10, seq = ?11 WHERE position = ?1 AND id = ?2",
                )?
                .execute(params![
                    at,
                    row.id,
                    row.kind.as_str(),
                    row.machine,
                    row.name,
                    row.owner,
                    row.endpoint,
                    row.attrs,
                    observed_at,
                    row.ttl_ms,
                    seq
                ])?
        } else if known.is_some() {
            // A column that is named is rewritten in its indexes, even with the value that it had.
            connection
                .prepare_cached(
                    "UPDATE row SET owner = ?3, endpoint = ?4, attrs = ?5, observed_at = ?6, ttl_ms = ?7, seq = ?8 \
                     WHERE position = ?1 AND id = ?2",
                )?
                .execute(params![at, row.id, row.owner, row.endpoint, row.attrs, observed_at, row.ttl_ms, seq])?
        } else {
            connection
                .prepare_cached(
                    "INSERT INTO row (position, id, kind, machine, name, owner, endpoint, attrs, observed_at, ttl_ms, seq) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                )?
                .execute(params![
                    at, row.id, row.kind.as_str(), row.machine, row.name, row.owner, row.endpoint, row.attrs, observed_at,
                    row.ttl_ms, seq
                ])?
        };
        if written != 1 {
            return Err(StoreError::Disagrees(row.id));
        }
        self.counter.position = self.counter.position.max(position);
        let row = Arc::new(row);
        self.change()?.put(Arc::clone(&row), position);
        Ok(row)
    }

    fn remove(&mut self, id: &str) -> Result<(), StoreError> {
        let seq = signed(self.next_seq())?;
        let connection = self.connection()?;
        let removed = connection.prepare_cached("DELETE FROM row WHERE id = ?1")?.execute([id])?;
        if removed != 1 {
            return Err(StoreError::Disagrees(id.to_owned()));
        }
        connection.prepare_cached("INSERT INTO tombstone (seq, id) VALUES (?1, ?2)")?.execute(params![seq, id])?;
        self.change()?.remove(id);
        Ok(())
    }

    fn change(&mut self) -> Result<&mut Mirror, StoreError> {
        self.mirror.as_mut().and_then(Arc::get_mut).ok_or(StoreError::NoTransaction)
    }

    fn read_counter(&self) -> Result<Counter, StoreError> {
        let found = self
            .connection()?
            .prepare_cached("SELECT seq, position, forgotten FROM counter")?
            .query_row([], |row| Ok([row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?]))?;
        let [seq, position, forgotten] = found.map(u64::try_from);
        let range = |_| StoreError::Range;
        Ok(Counter {
            seq: seq.map_err(range)?,
            position: position.map_err(range)?,
            forgotten: forgotten.map_err(range)?,
        })
    }

    fn read_all(&mut self) -> Result<(), StoreError> {
        self.mirror = None;
        let mut mirror = Mirror::default();
        {
            let mut statement = self.connection()?.prepare_cached(SELECT_ROWS)?;
            let mut rows = statement.query([0, 0])?;
            while let Some(columns) = rows.next()? {
                let (row, position, _) = row_of(columns)?;
                mirror.put(Arc::new(row), position);
            }
        }
        self.counter = self.read_counter()?;
        self.mirror = Some(Arc::new(mirror));
        Ok(())
    }

    /// Reads what others have written since; false when that can't be told and everything must be read.
    fn read_changes(&mut self) -> Result<bool, StoreError> {
        let seen = self.counter.seq;
        let counter = self.read_counter()?;
        let Some(mut mirror) = self.mirror.take() else { return Ok(false) };
        let Some(rows) = Arc::get_mut(&mut mirror) else { return Ok(false) };
        if seen < counter.forgotten || counter.seq < seen {
            return Ok(false);
        }
        {
            let connection = self.connection()?;
            // Removals first: an id that came back since is a row again, and that row is newer.
            let mut gone = connection.prepare_cached("SELECT id FROM tombstone WHERE seq > ?1 ORDER BY seq")?;
            let mut gone = gone.query([signed(seen)?])?;
            while let Some(columns) = gone.next()? {
                rows.remove(columns.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
            }
            let mut changed = connection.prepare_cached(
                "SELECT position, id, kind, machine, name, owner, endpoint, attrs, observed_at, ttl_ms, seq \
                 FROM row WHERE seq > ?1",
            )?;
            let mut changed = changed.query([signed(seen)?])?;
            while let Some(columns) = changed.next()? {
                let (row, position, _) = row_of(columns)?;
                rows.put(Arc::new(row), position);
            }
        }
        self.counter = counter;
        self.mirror = Some(mirror);
        Ok(true)
    }
}

/// Device and inode of a file, without opening it: closing a descriptor would drop SQLite's locks on it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn signed(value: u64) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| StoreError::Range)
}

/// The view's own lookups, for the fence.
pub(crate) fn lookup(view: &Arc<Mirror>) -> impl Fn(&str) -> Option<Arc<Row>> + '_ {
    |id| view.get(id)
}

/// Failures on demand.
#[cfg(test)]
pub(crate) mod faults {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// How many of the next commits fail, and where.
    #[derive(Clone, Default)]
    pub(crate) struct Faults {
        pub(crate) before: Arc<AtomicU32>,
        pub(crate) after: Arc<AtomicU32>,
    }

    impl Faults {
        pub(crate) fn before_commit(&self) -> rusqlite::Result<()> {
            take(&self.before)
        }

        pub(crate) fn after_commit(&self) -> rusqlite::Result<()> {
            take(&self.after)
        }
    }

    fn take(left: &AtomicU32) -> rusqlite::Result<()> {
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC),
                None,
            ));
        }
        Ok(())
    }
}
