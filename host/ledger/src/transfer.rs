//! The ledger as one JSON list, the original's `ledger.json`: out of a ledger, and into an empty one.

use crate::backup::{copy_into, not_copied};
use crate::draft::{CopyError, Draft};
use crate::fence::{Bounds, Write as FenceWrite};
use crate::file_system;
use crate::json::{self, Duplicates, Items, JsonError};
use crate::ledger::{PATIENCE, open_store};
use crate::row::{Kind, Row};
use crate::rules::{self, RowFault, fault};
use crate::schema::{OpenError, SELECT_ROWS, row_of};
use crate::still::Still;
use crate::store::{Store, StoreError};
use rusqlite::Connection;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Removals that a ledger remembers; an import makes none.
const TOMBSTONES: u64 = 65_536;

/// The fields of a row in the file, in the order in which they are written.
const FIELDS: [&str; 9] = ["id", "kind", "machine", "name", "owner", "endpoint", "attrs", "observedAt", "ttlMs"];

/// The largest whole number that every reader of JSON keeps exact.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

/// How many rows went out or in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// All of them.
    pub rows: u64,
    /// Those of each kind that there were.
    pub kinds: BTreeMap<&'static str, u64>,
}

impl Counted {
    fn count(&mut self, kind: Kind) {
        self.rows += 1;
        *self.kinds.entry(kind.as_str()).or_default() += 1;
    }
}

/// Where an export goes.
pub enum Target<'a> {
    /// A file of mode 0600 that is there whole or not at all.
    File {
        /// Which.
        path: &'a Path,
        /// Whether one that is there is replaced.
        replace: bool,
    },
    /// Something that is written to, such as standard output.
    Stream(&'a mut dyn Write),
}

/// Writes every row whole, in order of registration, as of one moment.
///
/// The rows are copied first (SQLite's own copying, into a file of its own that has no name), and written from there:
/// whoever reads slowly holds up nobody, and no log grows meanwhile. Takes memory for one row.
///
/// # Errors
/// See [`CopyError`]; a file that was to be written isn't there then.
pub fn export(path: &Path, target: Target<'_>) -> Result<Counted, CopyError> {
    if !path.exists() {
        return Err(CopyError::Absent { path: path.to_owned() });
    }
    let failed = |source| OpenError::sqlite(path, source);
    let still = Still::open(path)?;
    // An empty name is SQLite's for a file that is gone when it is closed.
    let mut copy = Connection::open("").map_err(failed)?;
    if still.schema > 0 {
        // SQLite chooses the folder; this is what both ask for first.
        copy_into(&still, &mut copy).map_err(|error| not_copied(path, &std::env::temp_dir(), error))?;
    }
    let empty = still.schema == 0;
    drop(still);
    let copy = (!empty).then_some(&copy);
    match target {
        Target::Stream(out) => rows_out(path, copy, Path::new("standard output"), out),
        Target::File { path: to, replace } => {
            let io = |source| CopyError::writing(to, source);
            let draft = Draft::from_ledger(path, to, replace)?;
            let mut out = OpenOptions::new().write(true).open(draft.path()).map_err(io)?;
            let counted = rows_out(path, copy, to, &mut out)?;
            draft.publish().map_err(io)?;
            Ok(counted)
        }
    }
}

fn rows_out(path: &Path, rows: Option<&Connection>, name: &Path, out: &mut dyn Write) -> Result<Counted, CopyError> {
    let failed = |source| OpenError::sqlite(path, source);
    let io = |source| CopyError::Io { path: name.to_owned(), source };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut counted = Counted::default();
    out.write_all(b"[").map_err(io)?;
    if let Some(connection) = rows {
        let mut statement = connection.prepare(SELECT_ROWS).map_err(failed)?;
        let mut rows = statement.query([0, 0]).map_err(failed)?;
        let mut text = String::new();
        while let Some(columns) = rows.next().map_err(failed)? {
            let (row, ..) = row_of(columns).map_err(failed)?;
            text.clear();
            if counted.rows > 0 {
                text.push(',');
            }
            write_row(&mut text, &row);
            out.write_all(text.as_bytes()).map_err(io)?;
            counted.count(row.kind);
        }
    }
    out.write_all(b"]").map_err(io)?;
    out.flush().map_err(io)?;
    Ok(counted)
}

fn write_row(out: &mut String, row: &Row) {
    let texts = [("id", row.id.as_str()), ("kind", row.kind.as_str()), ("machine", &row.machine), ("name", &row.name)];
    let texts = texts.into_iter().chain([("owner", row.owner.as_str())]);
    let texts = texts.chain(row.endpoint.as_deref().map(|endpoint| ("endpoint", endpoint)));
    for (index, (field, text)) in texts.enumerate() {
        // Writing to a String can't fail.
        let _ = write!(out, "{}\"{field}\":", if index == 0 { '{' } else { ',' });
        json::write_string(out, text);
    }
    let ttl = json::to_text(&json::number(row.ttl_ms));
    let _ = write!(out, ",\"attrs\":{},\"observedAt\":{},\"ttlMs\":{ttl}}}", row.attrs, row.observed_at);
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file isn't a list in JSON.
    #[error("this is no ledger.json: {0}")]
    NotJson(JsonError),
    /// One row isn't what a row must be.
    #[error("row {index}{}: {fault}; nothing was imported", named(id.as_deref()))]
    Row {
        /// Which, counted from 0 in the file's order.
        index: u64,
        /// Its id, where it has one.
        id: Option<String>,
        /// What is wrong with it.
        fault: RowFault,
    },
    /// The ledger has rows of its own.
    #[error("{} holds {rows} rows already, and rows are imported only into an empty ledger", path.display())]
    NotEmpty {
        /// The ledger's file.
        path: PathBuf,
        /// How many.
        rows: u64,
    },
    /// The ledger can't be opened.
    #[error("{0}")]
    Ledger(#[from] OpenError),
    /// The ledger can't be written, and nothing was.
    #[error("the ledger can't be written, and nothing was: {0}")]
    Storage(String),
    /// The commit failed.
    #[error("the rows may or may not have been kept: {0}")]
    Uncertain(String),
}

fn named(id: Option<&str>) -> String {
    id.map_or_else(String::new, |id| format!(" ({id:?})"))
}

impl ImportError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotJson(_) => "not-a-ledger",
            Self::Row { .. } => "bad-row",
            Self::NotEmpty { .. } => "ledger-not-empty",
            Self::Ledger(error) => error.code(),
            Self::Storage(_) => "ledger-failed",
            Self::Uncertain(_) => "uncertain",
        }
    }
}

/// Puts the rows of a `ledger.json` into a ledger that has none, in their order, all of them or none; the ledger is made
/// where there is none. May be done while daemons serve it: it takes its turn as every writer does.
///
/// # Errors
/// See [`ImportError`].
pub fn import(path: &Path, text: &[u8], bounds: &Bounds) -> Result<Counted, ImportError> {
    let (rows, counted) = read(text, bounds)?;
    // A file that can't be imported must not even make a ledger.
    empty(path)?;
    let mut store = open_store(path, TOMBSTONES)?;
    let end = Instant::now() + PATIENCE;
    let storage = |error: StoreError| ImportError::Storage(error.to_string());
    if store.begin(|| Instant::now() >= end).map_err(storage)?.is_none() {
        return Err(OpenError::Busy { path: path.to_owned() }.into());
    }
    if let Err(error) = rows_in(&mut store, path, rows) {
        store.end();
        return Err(error);
    }
    store.commit().map_err(|error| ImportError::Uncertain(error.to_string()))?;
    if let Err(error) = store.checkpoint() {
        tracing::debug!(%error, "the log is left for the next start to fold in");
    }
    Ok(counted)
}

fn rows_in(store: &mut Store, path: &Path, rows: Vec<Row>) -> Result<(), ImportError> {
    if store.rows() > 0 {
        return Err(ImportError::NotEmpty { path: path.to_owned(), rows: store.rows() as u64 });
    }
    for row in rows {
        store.write(FenceWrite::Put(row)).map_err(|error| ImportError::Storage(error.to_string()))?;
    }
    if store.in_place() { Ok(()) } else { Err(ImportError::Storage("its file was moved or replaced".to_owned())) }
}

/// As [`import`], but writes nothing: what would be imported, or why it would not.
///
/// # Errors
/// See [`ImportError`].
pub fn rehearse_import(path: &Path, text: &[u8], bounds: &Bounds) -> Result<Counted, ImportError> {
    let (_, counted) = read(text, bounds)?;
    empty(path)?;
    Ok(counted)
}

/// Whether the ledger has no rows, or isn't there and may be made.
fn empty(path: &Path) -> Result<(), ImportError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    if let Some(kind) = file_system::refused(file_system::type_of(path).map_err(io)?) {
        return Err(OpenError::NetworkFileSystem { path: path.to_owned(), kind }.into());
    }
    if !path.exists() {
        return Ok(());
    }
    let still = Still::open(path)?;
    if still.schema == 0 {
        return Ok(());
    }
    let count = still.connection().query_row("SELECT count(*) FROM row", [], |row| row.get::<_, i64>(0));
    match u64::try_from(count.map_err(|source| OpenError::sqlite(path, source))?) {
        Ok(0) | Err(_) => Ok(()),
        Ok(rows) => Err(ImportError::NotEmpty { path: path.to_owned(), rows }),
    }
}

/// All rows of the text, each judged, and none twice.
fn read(text: &[u8], bounds: &Bounds) -> Result<(Vec<Row>, Counted), ImportError> {
    let mut rows = Vec::new();
    let mut counted = Counted::default();
    let mut seen: HashMap<String, u64> = HashMap::new();
    let items = Items::of(text, Duplicates::Refuse).map_err(ImportError::NotJson)?;
    for (index, item) in (0_u64..).zip(items) {
        let item = item.map_err(|error| match error.fault {
            json::Fault::Duplicate(_) | json::Fault::LoneSurrogate | json::Fault::TooDeep => {
                ImportError::Row { index, id: None, fault: fault("JSON", format_args!("isn't allowed: {error}")) }
            }
            _ => ImportError::NotJson(error),
        })?;
        let id = item.get("id").and_then(Value::as_str).map(str::to_owned);
        let bad = |fault| ImportError::Row { index, id: id.clone(), fault };
        let row = row(item, bounds).map_err(bad)?;
        if let Some(first) = seen.insert(row.id.clone(), index) {
            return Err(bad(fault("id", format_args!("is the one of row {first} too"))));
        }
        counted.count(row.kind);
        rows.push(row);
    }
    Ok((rows, counted))
}

fn row(item: Value, bounds: &Bounds) -> Result<Row, RowFault> {
    let Value::Object(mut fields) = item else { return Err(fault("it", "isn't an object")) };
    if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(fault(unknown, "isn't a field of a row"));
    }
    let kind = text(&mut fields, "kind")?;
    let names = || Kind::ALL.map(Kind::as_str).join(", ");
    let kind = Kind::from_name(&kind).ok_or_else(|| fault("kind", format_args!("is none of {}", names())))?;
    let endpoint = match fields.get("endpoint") {
        None => None,
        Some(_) => Some(text(&mut fields, "endpoint")?),
    };
    let Some(Value::Object(attrs)) = fields.remove("attrs") else { return Err(fault("attrs", "isn't an object")) };
    let observed_at = number(&fields, "observedAt")?;
    if observed_at.fract() != 0.0 || !(0.0..=MAX_SAFE).contains(&observed_at) {
        return Err(fault("observedAt", "isn't a time in whole milliseconds"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: whole and within 2^53")]
    let observed_at = observed_at as u64;
    let row = Row {
        id: text(&mut fields, "id")?,
        kind,
        machine: text(&mut fields, "machine")?,
        name: text(&mut fields, "name")?,
        owner: text(&mut fields, "owner")?,
        endpoint,
        attrs: Arc::from(json::object_to_text(&attrs)),
        observed_at,
        ttl_ms: number(&fields, "ttlMs")?,
    };
    rules::check(&row, &attrs, bounds)?;
    Ok(row)
}

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<String, RowFault> {
    match fields.get_mut(name).map(Value::take) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(fault(name, "isn't a text")),
        None => Err(fault(name, "is missing")),
    }
}

fn number(fields: &Map<String, Value>, name: &str) -> Result<f64, RowFault> {
    match fields.get(name) {
        Some(value) => value.as_f64().ok_or_else(|| fault(name, "isn't a number")),
        None => Err(fault(name, "is missing")),
    }
}
