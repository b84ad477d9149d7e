//! What a slot remembers across restarts: its generations, which of them serves, and the next number.
//!
//! `DIR/state.json`, written whole, and the components by their digest beside it. Several daemons may share the
//! directory: each change is made under a lock and on what is in the file then, so that no number is given twice.

use crate::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Generations that are remembered besides the one that serves; older ones are forgotten, their components removed.
const REMEMBERED: usize = 16;
/// The state's largest size that is read.
const STATE_BYTES: u64 = 16 << 20;

/// What became of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It decides.
    Serving,
    /// It could serve again.
    Kept,
    /// It was taken from its place for its faults.
    Bad,
}

/// One generation as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) digest: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) summary: String,
    /// JSON text.
    pub(crate) settings: String,
    pub(crate) built_in: bool,
    pub(crate) standing: Standing,
    /// Why it is bad.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// The file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct State {
    /// The format's version.
    pub(crate) format: u32,
    /// The number of the next generation.
    pub(crate) next: u64,
    pub(crate) generations: Vec<Entry>,
}

impl Default for State {
    fn default() -> Self {
        Self { format: FORMAT, next: 1, generations: Vec::new() }
    }
}

const FORMAT: u32 = 1;

impl State {
    pub(crate) fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.generations.iter_mut().find(|entry| entry.number == number)
    }

    pub(crate) fn serving(&self) -> Option<&Entry> {
        self.generations.iter().find(|entry| entry.standing == Standing::Serving)
    }

    /// One generation serves, the one that did is kept unless it is bad.
    pub(crate) fn serve(&mut self, number: u64) {
        for entry in &mut self.generations {
            if entry.number == number {
                entry.standing = Standing::Serving;
                entry.why = None;
            } else if entry.standing == Standing::Serving {
                entry.standing = Standing::Kept;
            }
        }
    }

    /// The numbers that could serve instead of `number`, best first: the latest good one before it, then the others.
    pub(crate) fn successors(&self, number: u64) -> Vec<u64> {
        let mut good: Vec<_> =
            self.generations.iter().filter(|e| e.standing == Standing::Kept && e.number != number).collect();
        good.sort_by_key(|entry| (entry.number > number, std::cmp::Reverse(entry.number)));
        good.into_iter().map(|entry| entry.number).collect()
    }

    /// Forgets what is too old. The built-in one that serves as the last resort stays.
    fn forget(&mut self, last_resort: u64) {
        let mut spare = self.generations.len().saturating_sub(REMEMBERED);
        self.generations.retain(|entry| {
            let stays = spare == 0 || entry.standing == Standing::Serving || entry.number == last_resort;
            if !stays {
                spare -= 1;
            }
            stays
        });
    }
}

/// A slot's directory.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
}

impl Store {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        files::private_dir(dir)?;
        files::private_dir(&dir.join("components"))?;
        files::sweep(dir);
        files::sweep(&dir.join("components"));
        Ok(Self { dir: dir.to_owned() })
    }

    fn state_path(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    fn component_path(&self, digest: &str) -> PathBuf {
        self.dir.join("components").join(format!("{digest}.wasm"))
    }

    /// The state, and what is to be told about it. A state that can't be read is put aside, not overwritten: numbers go
    /// on from the time in seconds, which is more than any slot has loaded.
    fn read(&self) -> (State, Option<String>) {
        let path = self.state_path();
        let why = match files::read_private(&path, STATE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (State::default(), None),
            Err(error) => error.to_string(),
            Ok(bytes) => match serde_json::from_slice::<State>(&bytes) {
                Ok(state) if state.format == FORMAT => return (state, None),
                Ok(state) => format!("it has format {}, this program knows {FORMAT}", state.format),
                Err(error) => error.to_string(),
            },
        };
        let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let next = seconds.map_or(1 << 32, |time| time.as_secs());
        let aside = path.with_extension(format!("{next}.damaged"));
        let moved = std::fs::rename(&path, &aside);
        let note = format!(
            "{} could not be read ({why}); {}, and the built-in policy serves",
            path.display(),
            match moved {
                Ok(()) => format!("it was put aside as {}", aside.display()),
                Err(error) => format!("it could not be put aside either ({error})"),
            }
        );
        (State { next, ..State::default() }, Some(note))
    }

    /// Changes the state under the lock: `change` sees what is in the file now.
    pub(crate) fn change<R>(
        &self,
        last_resort: u64,
        change: impl FnOnce(&mut State) -> io::Result<R>,
    ) -> io::Result<(State, R, Option<String>)> {
        let _lock = files::lock(&self.dir)?;
        let (mut state, note) = self.read();
        let before = state.clone();
        let result = change(&mut state)?;
        if state != before || note.is_some() {
            state.forget(last_resort);
            let text = serde_json::to_vec_pretty(&state).map_err(io::Error::other)?;
            files::replace(&self.state_path(), &text)?;
            self.prune(&state);
        }
        Ok((state, result, note))
    }

    /// A component's bytes, checked against its digest.
    pub(crate) fn component(&self, digest: &str, limit: usize) -> io::Result<Vec<u8>> {
        let bytes = files::read_private(&self.component_path(digest), limit as u64)?;
        if crate::load::digest(&bytes) != digest {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file's bytes don't have its digest"));
        }
        Ok(bytes)
    }

    /// Keeps a component. Only within [`Store::change`]: another writer removes what no generation names.
    pub(crate) fn keep(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        files::replace(&self.component_path(digest), bytes)
    }

    /// Removes components that no generation names.
    fn prune(&self, state: &State) {
        let named: BTreeSet<_> = state.generations.iter().map(|entry| format!("{}.wasm", entry.digest)).collect();
        let Ok(entries) = std::fs::read_dir(self.dir.join("components")) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".wasm") && !named.contains(&*name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
