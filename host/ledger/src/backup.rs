//! A copy of the ledger while it is in use.
//!
//! SQLite's own copying, all pages in one step: the step is one read transaction, so a busy writer neither waits nor
//! makes it begin anew, and the copy is the ledger as it was at one moment.

use crate::draft::{CopyError, Draft};
use crate::schema::{self, OpenError};
use crate::still::Still;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the copy waits for whoever recovers or locks the file.
const PATIENCE: Duration = Duration::from_secs(15);

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// Bytes of the copy.
    pub bytes: u64,
    /// Rows in it.
    pub rows: u64,
    /// Records in it.
    pub records: u64,
}

/// Copies the ledger to `to`, a file of mode 0600 that is there whole or not at all. With `replace` a file that is there
/// is replaced, but never a ledger's own.
///
/// # Errors
/// See [`CopyError`]; nothing was left behind.
pub fn backup(path: &Path, to: &Path, replace: bool) -> Result<BackedUp, CopyError> {
    let io = |source| CopyError::writing(to, source);
    if !path.exists() {
        return Err(CopyError::Absent { path: path.to_owned() });
    }
    let draft = Draft::from_ledger(path, to, replace)?;
    let still = Still::open(path)?;
    let failed = |source| OpenError::sqlite(path, source);
    let open = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut copy = Connection::open_with_flags(draft.path(), open).map_err(failed)?;
    // Nobody else sees the draft, and it is thrown away on any failure: a journal would only be left behind.
    copy.pragma_update(None, "journal_mode", "OFF").map_err(failed)?;
    copy_into(&still, &mut copy).map_err(|error| not_copied(path, to, error))?;
    drop(copy);
    drop(still);
    let checked = schema::inspect(draft.path())?;
    let bytes = std::fs::metadata(draft.path()).map_err(io)?.len();
    draft.publish().map_err(io)?;
    Ok(BackedUp { bytes, rows: checked.rows, records: checked.records })
}

/// Copies all pages as of one moment.
pub(crate) fn copy_into(still: &Still, copy: &mut Connection) -> rusqlite::Result<()> {
    let end = Instant::now() + PATIENCE;
    let backup = Backup::new(still.connection(), copy)?;
    loop {
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            _ if Instant::now() >= end => {
                let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(busy, None));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Why a copy isn't whole: there is no room for it, or something is wrong with the ledger.
pub(crate) fn not_copied(ledger: &Path, to: &Path, error: rusqlite::Error) -> CopyError {
    if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
        return CopyError::writing(to, std::io::ErrorKind::StorageFull.into());
    }
    OpenError::sqlite(ledger, error).into()
}
