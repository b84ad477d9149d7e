//! Reads, on connections of their own: none of them waits for a write.

use crate::error::ReadError;
use crate::row::{Kind, Row};
use crate::schema::{open_reader, row_of};
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, ToSql};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Connections that are kept when nobody reads.
const KEPT: usize = 4;

/// A place in the order of registration. A row keeps its place for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// Which rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFilter {
    /// Of this kind.
    pub kind: Option<Kind>,
    /// Of this machine.
    pub machine: Option<String>,
    /// With this name.
    pub name: Option<String>,
}

impl RowFilter {
    /// The question for one page: rows after ?1, at most ?2, then the filter's values in the order of its fields. What
    /// isn't asked for isn't in it, so that an index can answer.
    pub(crate) fn sql(&self) -> String {
        let mut sql = "SELECT position, id, kind, machine, name, owner, endpoint, attrs, observed_at, ttl_ms, seq \
             FROM row WHERE position > ?1"
            .to_owned();
        // A name is nearly unique, so its index finds the least; the unary plus keeps the others from being chosen.
        let by_name = self.name.is_some();
        let fields = [("kind", self.kind.is_some()), ("machine", self.machine.is_some()), ("name", by_name)];
        for (index, (field, _)) in fields.into_iter().filter(|(_, asked)| *asked).enumerate() {
            let plus = if by_name && field != "name" { "+" } else { "" };
            // Writing to a String can't fail.
            let _ = write!(sql, " AND {plus}{field} = ?{}", index + 3);
        }
        sql + " ORDER BY position LIMIT ?2"
    }
}

/// Some rows in order of registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// Where to go on; none at the end. Pages are read one by one: together they are no snapshot.
    pub next: Option<Position>,
}

/// A document of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Unique within its kind.
    pub id: String,
    /// The number of its last change, for the next compare-and-set.
    pub seq: u64,
    /// What it says.
    pub body: serde_json::Value,
}

pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), idle: Mutex::default() }
    }

    /// Lends a connection; one that failed isn't used again.
    fn read<T>(&self, act: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, ReadError> {
        let kept = self.idle.lock().pop();
        let connection = match kept {
            Some(connection) => connection,
            None => open_reader(&self.path)?,
        };
        let result = act(&connection)?;
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(connection);
        }
        Ok(result)
    }

    pub(crate) fn close(&self) {
        self.idle.lock().clear();
    }

    pub(crate) fn free_space(&self) -> Result<u64, ReadError> {
        // The folder, not the file: nobody but SQLite opens that, and its folder lies on the same file system.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let found = rustix::fs::statvfs(folder).map_err(|error| ReadError(error.to_string().into()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    pub(crate) fn row(&self, id: &str) -> Result<Option<Row>, ReadError> {
        self.read(|connection| {
            connection
                .prepare_cached(
                    "SELECT position, id, kind, machine, name, owner, endpoint, attrs, observed_at, ttl_ms, seq \
                     FROM row WHERE id = ?1",
                )?
                .query_row([id], |columns| row_of(columns).map(|(row, ..)| row))
                .optional()
        })
    }

    pub(crate) fn rows(&self, filter: &RowFilter, after: Option<Position>, limit: usize) -> Result<Page, ReadError> {
        let after = after.map_or(0, |position| i64::try_from(position.0).unwrap_or(i64::MAX));
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&filter.sql())?;
            let kind = filter.kind.map(Kind::as_str);
            let limit_rows = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut values: Vec<&dyn ToSql> = vec![&after, &limit_rows];
            values.extend(kind.as_ref().map(|kind| kind as &dyn ToSql));
            values.extend(filter.machine.as_ref().map(|machine| machine as &dyn ToSql));
            values.extend(filter.name.as_ref().map(|name| name as &dyn ToSql));
            let mut found = statement.query(values.as_slice())?;
            let mut page = Page::default();
            while let Some(columns) = found.next()? {
                let (row, position, _) = row_of(columns)?;
                page.rows.push(row);
                page.next = Some(Position(position));
            }
            if page.rows.len() < limit {
                page.next = None;
            }
            Ok(page)
        })
    }

    pub(crate) fn record(&self, kind: &str, id: &str) -> Result<Option<Record>, ReadError> {
        let found = self.read(|connection| {
            connection
                .prepare_cached("SELECT id, seq, body FROM record WHERE kind = ?1 AND id = ?2")?
                .query_row([kind, id], |columns| Ok((columns.get(0)?, columns.get(1)?, columns.get(2)?)))
                .optional()
        })?;
        found.map(record).transpose()
    }

    pub(crate) fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, ReadError> {
        let found: Vec<(String, i64, String)> = self.read(|connection| {
            connection
                .prepare_cached(
                    "SELECT id, seq, body FROM record WHERE kind = ?1 AND (?2 IS NULL OR id > ?2) ORDER BY id LIMIT ?3",
                )?
                .query_map(rusqlite::params![kind, after, i64::try_from(limit).unwrap_or(i64::MAX)], |columns| {
                    Ok((columns.get(0)?, columns.get(1)?, columns.get(2)?))
                })?
                .collect()
        })?;
        found.into_iter().map(record).collect()
    }
}

fn record((id, seq, body): (String, i64, String)) -> Result<Record, ReadError> {
    let damaged = |what: String| ReadError(format!("the record {id:?} is damaged: {what}").into());
    let seq = u64::try_from(seq).map_err(|error| damaged(error.to_string()))?;
    let body = serde_json::from_str(&body).map_err(|error| damaged(error.to_string()))?;
    Ok(Record { id, seq, body })
}
