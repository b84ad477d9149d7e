//! The ledger's file: what is in it, and when it may be opened.

use crate::row::{Kind, Row};
use crate::still::Still;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// "warm" in ASCII, as SQLite's application id: another program's database is not taken for an old ledger.
const APPLICATION_ID: i32 = 0x7761_726d;

/// What leads from each version to the next; a file's version is the number of steps that it has seen.
const MIGRATIONS: [&str; 2] = [
    "
CREATE TABLE counter (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  -- The last number that a change was given.
  seq INTEGER NOT NULL,
  -- The last place in the order of registration.
  position INTEGER NOT NULL,
  -- Tombstones up to this number are gone: who has seen less reads everything.
  forgotten INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 0, 0, 0);
CREATE TABLE row (
  position INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  machine TEXT NOT NULL,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  endpoint TEXT,
  attrs TEXT NOT NULL,
  observed_at INTEGER NOT NULL,
  ttl_ms REAL NOT NULL,
  seq INTEGER NOT NULL
) STRICT;
CREATE INDEX row_seq ON row (seq);
CREATE TABLE tombstone (seq INTEGER PRIMARY KEY, id TEXT NOT NULL) STRICT;
CREATE TABLE record (
  kind TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (kind, id)
) STRICT;
",
    // For lists. Each ends with the row's place in the order of registration, as every index does, so a list in that
    // order needs no sorting. An update that leaves kind, machine and name alone doesn't touch them.
    "
CREATE INDEX row_kind ON row (kind);
CREATE INDEX row_machine ON row (machine);
CREATE INDEX row_kind_machine ON row (kind, machine);
CREATE INDEX row_name ON row (name);
",
];

/// The version that this program writes.
#[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "a handful")]
pub(crate) const VERSION: i32 = MIGRATIONS.len() as i32;

/// Why a ledger can't be opened. Nothing was changed, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It would lie on a file system whose locks can't be trusted.
    #[error("{path} is on {kind}, where locks don't hold between machines: put the state directory on a local disk")]
    NetworkFileSystem {
        /// The ledger's file.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
    /// A newer version wrote it.
    #[error(
        "{path} has schema {found}, and this version knows none above {supported}: start the version that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The ledger's file.
        path: PathBuf,
        /// Its schema.
        found: i32,
        /// The newest one that is known here.
        supported: i32,
    },
    /// The file isn't whole.
    #[error(
        "{path} is damaged ({detail}); it was left as it is: restore a backup, or move it and its -wal away together to start anew"
    )]
    Damaged {
        /// The ledger's file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// It is a database of something else.
    #[error("{path} is a database of another program; it was left as it is: name another state directory")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Another process holds the ledger and doesn't let go.
    #[error("{path} is locked by another process: end it, or wait until it is done")]
    Busy {
        /// The ledger's file.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// SQLite refused something.
    #[error("{path}: {source}")]
    Sqlite {
        /// The ledger's file.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
}

impl OpenError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NetworkFileSystem { .. } => "ledger-on-network",
            Self::NewerSchema { .. } => "ledger-newer",
            Self::Damaged { .. } => "ledger-damaged",
            Self::Foreign { .. } => "ledger-foreign",
            Self::Busy { .. } => "ledger-busy",
            Self::Io { .. } | Self::Sqlite { .. } => "ledger-io",
        }
    }

    pub(crate) fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged { path, detail: source.to_string() }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path },
            _ => match source {
                rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
                    Self::Damaged { path, detail: source.to_string() }
                }
                source => Self::Sqlite { path, source },
            },
        }
    }
}

/// What a look at a ledger's file found: it is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The schema's version; 0 for a file that is still empty.
    pub schema: i32,
    /// Rows.
    pub rows: u64,
    /// Records.
    pub records: u64,
}

/// Looks at a file that exists, without changing it, and without holding up who writes it.
///
/// # Errors
/// It may not be opened for writing.
pub(crate) fn inspect(path: &Path) -> Result<Inspection, OpenError> {
    match Still::open(path) {
        // A journal that was left by a crash while the file was being made; only a writer can play it back.
        Err(OpenError::Sqlite { source, .. }) if source.sqlite_error_code() == Some(ErrorCode::ReadOnly) => {
            Ok(Inspection::default())
        }
        still => inspect_still(&still?, path),
    }
}

fn inspect_still(still: &Still, path: &Path) -> Result<Inspection, OpenError> {
    let failed = |source| OpenError::sqlite(path, source);
    let reader = still.connection();
    let mut found = Inspection { schema: still.schema, ..Inspection::default() };
    if found.schema == 0 {
        return Ok(found);
    }
    let verdict: String = reader.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        return Err(OpenError::Damaged { path: path.to_owned(), detail: verdict });
    }
    let mut rows = reader.prepare(SELECT_ROWS).map_err(failed)?;
    let mut rows = rows.query([0, 0]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let (row, ..) = row_of(row).map_err(failed)?;
        crate::json::parse_object(row.attrs.as_ref(), crate::json::Duplicates::Refuse).map_err(|error| {
            OpenError::Damaged { path: path.to_owned(), detail: format!("attributes of {:?}: {error}", row.id) }
        })?;
        found.rows += 1;
    }
    let records: i64 = reader.query_row("SELECT count(*) FROM record", [], |row| row.get(0)).map_err(failed)?;
    found.records = u64::try_from(records).unwrap_or_default();
    Ok(found)
}

/// The schema's version, 0 for a new file.
pub(crate) fn version(connection: &Connection, path: &Path) -> Result<i32, OpenError> {
    let failed = |source| OpenError::sqlite(path, source);
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0)).map_err(failed);
    let (found, application) = (number("PRAGMA user_version")?, number("PRAGMA application_id")?);
    if application == 0 && found == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0 {
        return Ok(0);
    }
    if application != APPLICATION_ID {
        return Err(OpenError::Foreign { path: path.to_owned() });
    }
    if found > VERSION {
        return Err(OpenError::NewerSchema { path: path.to_owned(), found, supported: VERSION });
    }
    if found < 1 {
        return Err(OpenError::Damaged { path: path.to_owned(), detail: format!("schema {found}") });
    }
    Ok(found)
}

/// Makes a new file a ledger, or brings an old one up to date; in one transaction.
pub(crate) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::sqlite(path, source);
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(failed)?;
    let found = version(&transaction, path)?;
    if found < VERSION {
        for step in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
            transaction.execute_batch(step).map_err(failed)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        transaction.pragma_update(None, "user_version", VERSION).map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

/// What a file of this version consists of: each table and index with the statement that makes it.
pub(crate) fn parts(connection: &Connection) -> rusqlite::Result<BTreeMap<(String, String), String>> {
    let mut statement =
        connection.prepare("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")?;
    let parts = statement.query_map([], |part| Ok(((part.get(0)?, part.get(1)?), part.get(2)?)))?;
    parts.collect()
}

/// The same for a file as the migrations make it.
pub(crate) fn right_parts(version: i32) -> rusqlite::Result<BTreeMap<(String, String), String>> {
    let connection = Connection::open_in_memory()?;
    for step in MIGRATIONS.iter().take(usize::try_from(version).unwrap_or_default()) {
        connection.execute_batch(step)?;
    }
    parts(&connection)
}

/// The one connection that writes. Never waits by itself: see the turnstile.
pub(crate) fn open_writer(path: &Path) -> rusqlite::Result<Connection> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // A checkpoint belongs to an orderly end, not to closing a connection that has failed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "trusted_schema", false)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(rusqlite::Error::InvalidParameterName(format!(
            "SQLite can't keep a write-ahead log here ({mode})"
        )));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // What a savepoint would undo is kept in memory: in files (SQLite's default beyond 64 KiB) it cost more writes than the
    // log itself, one file a group.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

/// A connection that reads, and leaves the files as they are when it is closed.
pub(crate) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Only while another process recovers the log; readers wait for nothing else.
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

/// For a look at a file by who holds the turn. Without a log nobody has the file open, and SQLite is told that it can't
/// change: else it would leave an empty log behind. With a log it must take part in the locking.
pub(crate) fn open_inspector(path: &Path) -> rusqlite::Result<Connection> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    if Path::new(&log).exists() {
        return open_reader(path);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(immutable_uri(path), flags)
}

/// The path as SQLite's URI; every byte that could mean something there is escaped.
fn immutable_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => uri.push(char::from(*byte)),
            byte => {
                // Writing to a String can't fail.
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri + "?immutable=1"
}

/// Rows after a position and after a sequence number, in order of registration.
pub(crate) const SELECT_ROWS: &str = "SELECT position, id, kind, machine, name, owner, endpoint, attrs, observed_at, ttl_ms, seq \
     FROM row WHERE position > ?1 AND seq > ?2 ORDER BY position";

/// A row, its position and its sequence number, from the columns of [`SELECT_ROWS`].
pub(crate) fn row_of(columns: &rusqlite::Row<'_>) -> rusqlite::Result<(Row, u64, u64)> {
    let unsigned = |index: usize| {
        let value: i64 = columns.get(index)?;
        u64::try_from(value).map_err(|error| damaged(index, rusqlite::types::Type::Integer, error))
    };
    let kind = columns.get_ref(2)?.as_str()?;
    let row = Row {
        id: columns.get(1)?,
        kind: Kind::from_name(kind)
            .ok_or_else(|| damaged(2, rusqlite::types::Type::Text, format!("unknown kind {kind:?}")))?,
        machine: columns.get(3)?,
        name: columns.get(4)?,
        owner: columns.get(5)?,
        endpoint: columns.get(6)?,
        attrs: columns.get(7)?,
        observed_at: unsigned(8)?,
        ttl_ms: columns.get(9)?,
    };
    Ok((row, unsigned(0)?, unsigned(10)?))
}

fn damaged(
    column: usize,
    of: rusqlite::types::Type,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, of, error.into())
}
