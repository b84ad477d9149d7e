//! Is the ledger what its writers leave? Read-only, beside daemons that go on.

use crate::fence::Bounds;
use crate::json::{self, Duplicates};
use crate::row::Row;
use crate::rules;
use crate::schema::{self, OpenError, SELECT_ROWS, VERSION, row_of};
use crate::still::Still;
use crate::worker::WORKER_PREFIX;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::path::Path;

/// Most faults of one part that are told one by one; the rest is counted.
const TOLD: usize = 20;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// The schema's version; 0 for a file that is still empty.
    pub schema: i32,
    /// Rows.
    pub rows: u64,
    /// Rows of each kind that there are.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Records of the host.
    pub records: u64,
    /// What was looked at, in order.
    pub parts: Vec<Part>,
}

impl Checked {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn sound(&self) -> bool {
        self.parts.iter().all(|part| part.count == 0)
    }
}

/// One part of the check.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `schema`, `integrity`, `rows`, `numbers`, `tombstones` or `records`.
    pub name: &'static str,
    /// What was found, for a person.
    pub found: String,
    /// What is wrong, the first few.
    pub faults: Vec<String>,
    /// How many things are wrong.
    pub count: u64,
}

impl Part {
    fn new(name: &'static str) -> Self {
        Self { name, found: String::new(), faults: Vec::new(), count: 0 }
    }

    fn fault(&mut self, what: impl Into<String>) {
        self.count += 1;
        if self.faults.len() < TOLD {
            self.faults.push(what.into());
        }
    }

    /// Notes what a look that broke off says, instead of giving up: a damaged file is what this is for.
    fn take<T>(&mut self, result: rusqlite::Result<T>) -> Option<T> {
        result.map_err(|error| self.fault(format!("can't be read: {error}"))).ok()
    }
}

/// Looks at everything that the ledger's file holds, as of one moment, and changes nothing. Daemons may serve it
/// meanwhile: they don't wait, and only their log grows until this ends.
///
/// # Errors
/// The file isn't there, isn't a ledger, or is of a newer version; what is wrong inside a ledger is no error but a
/// finding.
pub fn check(path: &Path, bounds: &Bounds) -> Result<Checked, OpenError> {
    let still = Still::open(path)?;
    let mut checked = Checked { schema: still.schema, ..Checked::default() };
    if still.schema == 0 {
        let mut part = Part::new("schema");
        // A start that died while it made the file leaves this; so does whatever emptied a ledger.
        part.fault("the file is empty: there is no ledger in it, and the next start makes a new one");
        checked.parts.push(part);
        return Ok(checked);
    }
    let connection = still.connection();
    let parts = [
        self::schema(connection, still.schema),
        integrity(connection),
        self::rows(connection, bounds, &mut checked),
        numbers(connection),
        tombstones(connection),
        records(connection, &mut checked.records),
    ];
    checked.parts.extend(parts);
    Ok(checked)
}

fn schema(connection: &Connection, version: i32) -> Part {
    let mut part = Part::new("schema");
    let Some(found) = part.take(schema::parts(connection)) else { return part };
    let Some(right) = part.take(schema::right_parts(version)) else { return part };
    for (name, sql) in &right {
        match found.get(name) {
            None => part.fault(format!("the {} {} is missing", name.0, name.1)),
            Some(found) if found != sql => part.fault(format!("the {} {} isn't as it was made", name.0, name.1)),
            Some(_) => {}
        }
    }
    for (kind, name) in found.keys().filter(|name| !right.contains_key(*name)) {
        part.fault(format!("the {kind} {name} doesn't belong here"));
    }
    let of = |kind: &str| found.keys().filter(|name| name.0 == kind).count();
    let newer = if version < VERSION { "; the next start brings it up to date" } else { "" };
    part.found = format!("version {version}, {} tables, {} indexes{newer}", of("table"), of("index"));
    part
}

fn integrity(connection: &Connection) -> Part {
    let mut part = Part::new("integrity");
    let lines = || -> rusqlite::Result<Vec<String>> {
        connection.prepare("PRAGMA integrity_check")?.query_map([], |line| line.get(0))?.collect()
    };
    for line in part.take(lines()).into_iter().flatten().filter(|line| line != "ok") {
        part.fault(line);
    }
    let foreign = || connection.prepare("PRAGMA foreign_key_check")?.exists([]);
    if part.take(foreign()) == Some(true) {
        part.fault("a row refers to another one that isn't there");
    }
    let pages = part.take(connection.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0)));
    part.found = format!("{} pages read by SQLite", pages.unwrap_or_default());
    part
}

fn rows(connection: &Connection, bounds: &Bounds, checked: &mut Checked) -> Part {
    let mut part = Part::new("rows");
    let mut walk = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare(SELECT_ROWS)?;
        // The least of numbers, so that a row with a bad one is seen too.
        let mut rows = statement.query([i64::MIN, i64::MIN])?;
        while let Some(columns) = rows.next()? {
            checked.rows += 1;
            match row_of(columns) {
                Ok((row, ..)) => {
                    *checked.kinds.entry(row.kind.as_str()).or_default() += 1;
                    if let Err(fault) = judge(&row, bounds) {
                        part.fault(format!("{:?}: {fault}", row.id));
                    }
                }
                Err(error) => {
                    let id: Option<String> = columns.get(1).ok();
                    part.fault(format!("{:?}: {error}", id.unwrap_or_default()));
                }
            }
        }
        Ok(())
    };
    let walked = walk();
    part.take(walked);
    let kinds: Vec<_> = checked.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    part.found = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
    part
}

fn judge(row: &Row, bounds: &Bounds) -> Result<(), String> {
    let attrs =
        json::parse_object(row.attrs.as_ref(), Duplicates::Refuse).map_err(|error| format!("attrs: {error}"))?;
    if json::object_to_text(&attrs) != *row.attrs {
        return Err("attrs aren't in their canonical form".to_owned());
    }
    rules::check(row, &attrs, bounds).map_err(|fault| fault.to_string())
}

/// Numbers of changes are given once, and the counters know the last ones.
fn numbers(connection: &Connection) -> Part {
    let mut part = Part::new("numbers");
    let counter =
        connection.query_row("SELECT count(*), max(seq), max(position), max(forgotten) FROM counter", [], |row| {
            Ok((row.get::<_, i64>(0)?, [row.get(1)?, row.get(2)?, row.get::<_, Option<i64>>(3)?]))
        });
    let Some((lines, counter)) = part.take(counter) else { return part };
    let (1, [Some(seq), Some(position), Some(forgotten)]) = (lines, counter) else {
        part.fault(format!("there are {lines} counters instead of one"));
        return part;
    };
    part.found = format!("last change {seq}, last place {position}, removals forgotten up to {forgotten}");
    if forgotten > seq || forgotten < 0 {
        part.fault(format!("removals are forgotten up to {forgotten}, and the last change is {seq}"));
    }
    let least = |sql: &str| connection.query_row(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
    let all = "SELECT seq FROM row UNION ALL SELECT seq FROM tombstone UNION ALL SELECT seq FROM record";
    let span = least(&format!("SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) FROM ({all})"));
    if let Some((first, last)) = part.take(span)
        && (first < 1 || last > seq)
    {
        part.fault(format!("changes are numbered from {first} to {last}, and the counter is at {seq}"));
    }
    let places = least("SELECT coalesce(min(position), 1), coalesce(max(position), 0) FROM row");
    if let Some((first, last)) = part.take(places)
        && (first < 1 || last > position)
    {
        part.fault(format!("places go from {first} to {last}, and the counter is at {position}"));
    }
    let mut twice = || -> rusqlite::Result<()> {
        let sql = format!("SELECT seq, count(*) FROM ({all}) GROUP BY seq HAVING count(*) > 1");
        let mut statement = connection.prepare(&sql)?;
        let mut found = statement.query([])?;
        while let Some(columns) = found.next()? {
            part.fault(format!(
                "change {} is the number of {} things",
                columns.get::<_, i64>(0)?,
                columns.get::<_, i64>(1)?
            ));
        }
        Ok(())
    };
    let looked = twice();
    part.take(looked);
    part
}

/// A removal is older than the row that took its id, and a worker is never removed.
fn tombstones(connection: &Connection) -> Part {
    let mut part = Part::new("tombstones");
    let mut count = 0_u64;
    let mut walk = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare(
            "SELECT tombstone.seq, tombstone.id, row.seq, counter.forgotten FROM tombstone \
             LEFT JOIN row ON row.id = tombstone.id, counter",
        )?;
        let mut found = statement.query([])?;
        while let Some(columns) = found.next()? {
            count += 1;
            let (seq, id): (i64, String) = (columns.get(0)?, columns.get(1)?);
            let (row, forgotten): (Option<i64>, i64) = (columns.get(2)?, columns.get(3)?);
            if row.is_some_and(|row| row <= seq) {
                part.fault(format!("{id:?}: removed by change {seq}, and still there"));
            }
            if seq <= forgotten {
                part.fault(format!("{id:?}: removed by change {seq}, which is forgotten"));
            }
            if id.starts_with(WORKER_PREFIX) {
                part.fault(format!("{id:?}: a worker was removed, and its id could be used again"));
            }
        }
        Ok(())
    };
    let walked = walk();
    part.take(walked);
    part.found = format!("{count} removals remembered");
    part
}

fn records(connection: &Connection, count: &mut u64) -> Part {
    let mut part = Part::new("records");
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let mut walk = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare("SELECT kind, id, body FROM record")?;
        let mut found = statement.query([])?;
        while let Some(columns) = found.next()? {
            *count += 1;
            let (kind, id, body): (String, String, String) = (columns.get(0)?, columns.get(1)?, columns.get(2)?);
            if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&body) {
                part.fault(format!("{kind} {id:?}: {error}"));
            }
            *kinds.entry(kind).or_default() += 1;
        }
        Ok(())
    };
    let walked = walk();
    part.take(walked);
    let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    part.found = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
    part
}
