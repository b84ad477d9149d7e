//! `ledger`: the ledger's file, out, in, checked and copied. These work beside daemons that go on, through SQLite's own
//! locks and the writers' turn.

use super::output::{print, print_json};
use crate::cli::{Global, LedgerCommand};
use crate::error::{CliError, Exit};
use crate::term::{Paint, harmless};
use serde_json::json;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use warmhold_ledger::{
    Bounds, Checked, CopyError, Counted, ImportError, OpenError, Target, backup, check, export, import, rehearse_import,
};

/// The most bytes that are read as a `ledger.json`: it is held in memory while it is judged.
const LARGEST: u64 = 4 << 30;

pub(super) fn run(global: &Global, command: &LedgerCommand) -> Result<Exit, CliError> {
    super::only_here(global, "the ledger's file is worked on")?;
    let root = super::root(global)?;
    let ledger = root.join("control").join("ledger.sqlite3");
    match command {
        LedgerCommand::Export { file, force, json } => out(&ledger, file, *force, *json),
        LedgerCommand::Import { file, dry_run, json } => into(&ledger, file, *dry_run, *json),
        LedgerCommand::Check { file, json } => checked(file.as_ref().unwrap_or(&ledger), *json),
        LedgerCommand::Backup { file, force, json } => copy(&ledger, file, *force, *json),
    }
}

fn out(ledger: &Path, file: &Path, force: bool, json: bool) -> Result<Exit, CliError> {
    if file != Path::new("-") {
        let counted = export(ledger, Target::File { path: file, replace: force }).map_err(|error| not_taken(&error))?;
        if json {
            print_json(&json!({"file": file.to_string_lossy(), "rows": counted.rows, "kinds": counted.kinds}))?;
        } else {
            print(&format!("{}: {}\n", file.display(), rows(&counted)))?;
        }
        return Ok(Exit::Done);
    }
    let mut stdout = std::io::stdout().lock();
    match export(ledger, Target::Stream(&mut stdout)) {
        // A reader that has gone away has read enough.
        Err(CopyError::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(error) => Err(not_taken(&error)),
        Ok(_) => Ok(Exit::Done),
    }
}

fn not_taken(error: &CopyError) -> CliError {
    let help = match error {
        CopyError::Absent { .. } => {
            "name the daemon's root with --root; a ledger is made by `warmhold serve` or `ledger import`"
        }
        CopyError::Ledger(error) => return not_opened(error),
        CopyError::Exists { .. } => "name another file, or replace this one with --force",
        CopyError::InUse { .. } => "name another file",
        CopyError::Io { .. } => "name a place that this user may write, with enough room",
    };
    CliError::usage(error.code(), error.to_string()).with_help(help)
}

fn not_opened(error: &OpenError) -> CliError {
    let help = match error {
        OpenError::Damaged { .. } => "restore a backup: docs/operating.md says how",
        OpenError::Foreign { .. } => "name the ledger of a daemon's root",
        OpenError::NewerSchema { .. } => "use the version that wrote it, or a newer one",
        OpenError::Busy { .. } => "try again when the other process is done",
        OpenError::NetworkFileSystem { .. } => "keep the root on a local disk",
        OpenError::Io { .. } | OpenError::Sqlite { .. } => {
            "run this as the daemon's user, and name its root with --root"
        }
    };
    CliError::usage(error.code(), error.to_string()).with_help(help)
}

fn rows(counted: &Counted) -> String {
    let kinds: Vec<_> = counted.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    format!("{}{kinds}", count(counted.rows, "row"))
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn into(ledger: &Path, file: &Path, dry_run: bool, json: bool) -> Result<Exit, CliError> {
    let text = text(file)?;
    let bounds = Bounds::default();
    let done = if dry_run { rehearse_import(ledger, &text, &bounds) } else { import(ledger, &text, &bounds) };
    let counted = done.map_err(|error| {
        let help = match &error {
            ImportError::NotJson(_) => {
                "it must be one JSON list of rows, as `warmhold ledger export` and the original write it"
            }
            ImportError::Row { .. } => "mend that row in a copy of the file, and try it with --dry-run",
            ImportError::NotEmpty { .. } => {
                "import into a new root (--root DIR). Rows can't be replaced: a worker's id is used once, for ever"
            }
            ImportError::Ledger(error) => return not_opened(error),
            ImportError::Storage(_) => "make room, or see what the system's log says about the disk; then try again",
            ImportError::Uncertain(_) => "`warmhold ledger check` says how many rows there are: all of them, or none",
        };
        CliError::no(error.code(), error.to_string()).with_help(help)
    })?;
    if json {
        print_json(&json!({
            "ledger": ledger.to_string_lossy(), "dryRun": dry_run, "rows": counted.rows, "kinds": counted.kinds,
        }))?;
    } else if dry_run {
        print(&format!("would import {}; nothing was changed\n", rows(&counted)))?;
    } else {
        print(&format!("imported {}\n", rows(&counted)))?;
    }
    Ok(Exit::Done)
}

fn text(file: &Path) -> Result<Vec<u8>, CliError> {
    let mut text = Vec::new();
    let (name, read) = if file == Path::new("-") {
        (PathBuf::from("standard input"), std::io::stdin().lock().take(LARGEST + 1).read_to_end(&mut text))
    } else {
        let read = std::fs::File::open(file).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text));
        (file.to_owned(), read)
    };
    let unreadable = |why: String| {
        CliError::usage("file-unreadable", format!("{}: {why}", name.display()))
            .with_help("name a ledger.json that this user may read, or `-` for standard input")
    };
    match read {
        Err(error) => Err(unreadable(error.to_string())),
        Ok(_) if text.len() as u64 > LARGEST => Err(unreadable("larger than 4 GiB".to_owned())),
        Ok(_) => Ok(text),
    }
}

fn checked(ledger: &Path, json: bool) -> Result<Exit, CliError> {
    let checked = check(ledger, &Bounds::default()).map_err(|error| match &error {
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            not_taken(&CopyError::Absent { path: ledger.to_owned() })
        }
        // Damage is what a check is for: the answer is no.
        OpenError::Damaged { .. } | OpenError::Foreign { .. } | OpenError::NewerSchema { .. } => {
            CliError { exit: Exit::No, ..not_opened(&error) }
        }
        _ => not_opened(&error),
    })?;
    if json {
        print_json(&facts(ledger, &checked))?;
    } else {
        print(&lines(&checked))?;
    }
    Ok(if checked.sound() { Exit::Done } else { Exit::No })
}

fn facts(ledger: &Path, checked: &Checked) -> serde_json::Value {
    let parts: Vec<_> = checked
        .parts
        .iter()
        .map(|part| json!({"name": part.name, "found": part.found, "faults": part.faults, "count": part.count}))
        .collect();
    json!({
        "ledger": ledger.to_string_lossy(), "sound": checked.sound(), "schema": checked.schema, "rows": checked.rows,
        "kinds": checked.kinds, "records": checked.records, "parts": parts,
    })
}

fn lines(checked: &Checked) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    for part in &checked.parts {
        let mark = if part.count == 0 { paint.green("ok  ") } else { paint.red("FAIL") };
        text.push_str(&format!("{mark}  {:<10}  {}\n", part.name, harmless(&part.found)));
        for fault in &part.faults {
            text.push_str(&format!("      {}\n", harmless(fault)));
        }
        let untold = part.count.saturating_sub(part.faults.len() as u64);
        if untold > 0 {
            text.push_str(&format!("      and {untold} more\n"));
        }
    }
    let faults: u64 = checked.parts.iter().map(|part| part.count).sum();
    let verdict = if faults == 0 { "nothing is wrong".to_owned() } else { count(faults, "fault") };
    text.push_str(&format!("{}, {}: {verdict}\n", count(checked.rows, "row"), count(checked.records, "record")));
    text
}

fn copy(ledger: &Path, file: &Path, force: bool, json: bool) -> Result<Exit, CliError> {
    let copied = backup(ledger, file, force).map_err(|error| not_taken(&error))?;
    if json {
        print_json(&json!({
            "file": file.to_string_lossy(), "bytes": copied.bytes, "rows": copied.rows, "records": copied.records,
        }))?;
    } else {
        let name = file.display();
        let (rows, records) = (count(copied.rows, "row"), count(copied.records, "record"));
        print(&format!("{name}: {rows}, {records}, {} bytes\n", copied.bytes))?;
    }
    Ok(Exit::Done)
}
