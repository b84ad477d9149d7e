//! A ledger's file as it stands at one moment, for who reads the whole of it beside the daemons that use it.

use crate::ledger::{PATIENCE, beside};
use crate::schema::{self, OpenError};
use crate::turnstile::{Held, Turnstile};
use rusqlite::Connection;
use std::path::Path;

/// Inside one read transaction; nothing is changed by it, not even by its end.
pub(crate) struct Still {
    connection: Connection,
    /// Held to the end where nobody has the file open: it is read without locks, so nobody may begin to write it.
    _turn: Option<Held>,
    /// The schema's version; 0 for a file that is still empty.
    pub(crate) schema: i32,
}

impl Still {
    /// Opens a file that exists. Blocks for as long as another process makes or opens it, at most 15 s.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        // SQLite would wait at a pipe, and find an empty database in a device.
        if !std::fs::metadata(path).map_err(io(path))?.is_file() {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "this is no regular file");
            return Err(io(path)(source));
        }
        // A file without a turnstile is nobody's ledger yet, such as a backup; none is left behind.
        let turnstile = beside(path, "-turn");
        let turn = if turnstile.exists() {
            let held = Turnstile::open(&turnstile).and_then(|turnstile| turnstile.hold(PATIENCE));
            Some(held.map_err(io(&turnstile))?.ok_or_else(|| OpenError::Busy { path: path.to_owned() })?)
        } else {
            None
        };
        let shared = beside(path, "-wal").exists();
        let failed = |source| OpenError::sqlite(path, source);
        let connection = schema::open_inspector(path).map_err(failed)?;
        connection.execute_batch("BEGIN").map_err(failed)?;
        // The first read is what fixes the moment.
        let schema = schema::version(&connection, path)?;
        Ok(Self { connection, _turn: turn.filter(|_| !shared), schema })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}
