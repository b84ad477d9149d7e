//! What a slot remembers across restarts: its generations, which of them serves, and the next number.
//!
//! `DIR/state.json`, written whole, and the components by their digest beside it. Several daemons may share the
//! directory: each change is made under a lock and on what is in the file then, so that no number is given twice.

use crate::files::{self, Stamp};
use parking_lot::Mutex;
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
    /// Somebody rolled back from it: it does not come back unless it is loaded again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) declined: bool,
    /// Faults that were counted while it served, in whichever process counted most.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) faults: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
    /// Numbers of what served, the one that serves last. Whoever is rolled back from or found bad is gone from it, and
    /// so is what was passed over: going back never leads forward again.
    #[serde(default)]
    pub(crate) history: Vec<u64>,
}

impl Default for State {
    fn default() -> Self {
        Self { format: FORMAT, next: 1, generations: Vec::new(), history: Vec::new() }
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

    /// One generation serves, the one that did is kept unless it is bad. In the history it comes last: after what served
    /// if it is new there, else what came after it is dropped.
    pub(crate) fn serve(&mut self, number: u64) {
        for entry in &mut self.generations {
            if entry.number == number {
                entry.standing = Standing::Serving;
                entry.why = None;
                entry.declined = false;
            } else if entry.standing == Standing::Serving {
                entry.standing = Standing::Kept;
            }
        }
        if let Some(at) = self.history.iter().position(|served| *served == number) {
            self.history.truncate(at);
        }
        if self.entry_mut(number).is_some() {
            self.history.push(number);
        }
    }

    /// The numbers that could serve instead of `number`, best first: what served before it, the latest first, but those
    /// that had faults after those that had none. The last resort counts as having served before all others.
    pub(crate) fn successors(&self, number: u64, last_resort: u64) -> Vec<u64> {
        if number == last_resort {
            return Vec::new();
        }
        let before = self.history.split(|served| *served == number).next().unwrap_or_default();
        let resort = (!before.contains(&last_resort)).then_some(last_resort);
        let mut good: Vec<_> = resort
            .iter()
            .chain(before)
            .rev()
            .filter_map(|number| self.generations.iter().find(|entry| entry.number == *number))
            .filter(|entry| entry.standing == Standing::Kept && !entry.declined || entry.number == last_resort)
            .collect();
        good.sort_by_key(|entry| entry.faults > 0);
        good.into_iter().map(|entry| entry.number).collect()
    }

    /// What is left of the history when an entry is gone, or the file was written before there was one.
    fn mend(&mut self) {
        if self.history.is_empty()
            && let Some(serving) = self.serving().map(|entry| entry.number)
        {
            let served = |entry: &&Entry| entry.standing != Standing::Bad && entry.number <= serving;
            self.history = self.generations.iter().filter(served).map(|entry| entry.number).collect();
            self.history.sort_unstable();
        }
        let known: BTreeSet<_> = self.generations.iter().map(|entry| entry.number).collect();
        self.history.retain(|number| known.contains(number));
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
        self.mend();
    }
}

/// A slot's directory.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    /// The state's file as it was when it was last read or written here.
    seen: Mutex<Option<Stamp>>,
}

impl Store {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        files::private_dir(dir)?;
        files::private_dir(&dir.join("components"))?;
        files::sweep(dir);
        files::sweep(&dir.join("components"));
        Ok(Self { dir: dir.to_owned(), seen: Mutex::new(None) })
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
                Ok(mut state) if state.format == FORMAT => {
                    state.mend();
                    return (state, None);
                }
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

    /// Whether another process wrote the state since it was last read or written here. Costs one look at the file.
    pub(crate) fn changed(&self) -> bool {
        files::stamp(&self.state_path()) != *self.seen.lock()
    }

    /// Changes the state under the lock: `change` sees what is in the file now.
    pub(crate) fn change<R>(
        &self,
        last_resort: u64,
        change: impl FnOnce(&mut State) -> io::Result<R>,
    ) -> io::Result<(State, R, Option<String>)> {
        let _lock = files::lock(&self.dir)?;
        let (mut state, note) = self.read();
        *self.seen.lock() = files::stamp(&self.state_path());
        let before = state.clone();
        let result = change(&mut state)?;
        if state != before || note.is_some() {
            state.forget(last_resort);
            let text = serde_json::to_vec_pretty(&state).map_err(io::Error::other)?;
            files::replace(&self.state_path(), &text)?;
            *self.seen.lock() = files::stamp(&self.state_path());
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(number: u64) -> Entry {
        Entry {
            number,
            digest: format!("{number}"),
            name: "n".to_owned(),
            version: "1".to_owned(),
            summary: String::new(),
            settings: "{}".to_owned(),
            built_in: number == 1,
            standing: Standing::Kept,
            why: None,
            declined: false,
            faults: 0,
        }
    }

    fn load(state: &mut State) -> u64 {
        let number = state.next;
        state.next += 1;
        state.generations.push(entry(number));
        state.serve(number);
        number
    }

    fn roll_back(state: &mut State) -> Option<u64> {
        let serving = state.serving().unwrap().number;
        let next = state.successors(serving, 1).first().copied()?;
        state.entry_mut(serving).unwrap().declined = true;
        state.serve(next);
        Some(next)
    }

    fn state(loads: u64) -> State {
        let mut state = State::default();
        for _ in 0..loads {
            load(&mut state);
        }
        state
    }

    #[test]
    fn rolling_back_goes_down_to_the_built_in_one_and_no_further() {
        let mut state = state(7);
        let went: Vec<_> = std::iter::from_fn(|| roll_back(&mut state)).collect();
        assert_eq!(went, [6, 5, 4, 3, 2, 1]);
        assert!(state.generations.iter().all(|e| e.declined == (e.number != 1)), "declined, and still listed");
    }

    #[test]
    fn what_was_declined_does_not_come_back_after_another_load() {
        let mut state = state(5);
        assert_eq!(roll_back(&mut state), Some(4));
        assert_eq!(load(&mut state), 6);
        assert_eq!(roll_back(&mut state), Some(4), "5 was declined");
    }

    #[test]
    fn one_with_faults_comes_after_those_without() {
        let mut state = state(4);
        state.entry_mut(3).unwrap().faults = 1;
        assert_eq!(state.successors(4, 1), [2, 1, 3]);
        state.entry_mut(3).unwrap().standing = Standing::Bad;
        assert_eq!(state.successors(4, 1), [2, 1]);
        assert_eq!(state.successors(1, 1), Vec::<u64>::new());
    }

    #[test]
    fn another_releases_built_in_policy_counts_as_the_oldest() {
        let mut state = state(3);
        state.generations.retain(|entry| !entry.built_in);
        state.generations.push(Entry { built_in: true, ..entry(4) });
        state.mend();
        assert_eq!((state.history.as_slice(), state.successors(3, 4)), ([2, 3].as_slice(), vec![2, 4]));
    }

    #[test]
    fn a_state_without_a_history_gets_one() {
        let mut state = state(4);
        state.serve(3);
        state.entry_mut(2).unwrap().standing = Standing::Bad;
        let mut json = serde_json::to_value(&state).unwrap();
        json.as_object_mut().unwrap().remove("history");
        let mut read: State = serde_json::from_value(json).unwrap();
        read.mend();
        assert_eq!(read.history, [1, 3]);
    }

    proptest! {
        /// Whatever is loaded, declined and found bad: a rollback leads to what served before, and never to what was
        /// declined or bad.
        #[test]
        fn rolling_back_never_leads_forward(steps in proptest::collection::vec((0..3u8, 0..3u64), 1..60)) {
            let mut state = state(1);
            for (step, faults) in steps {
                let serving = state.serving().unwrap().number;
                state.entry_mut(serving).unwrap().faults = faults;
                match step {
                    0 => {
                        load(&mut state);
                    }
                    1 => {
                        if let Some(next) = roll_back(&mut state) {
                            prop_assert!(next < serving);
                        } else {
                            prop_assert_eq!(serving, 1);
                        }
                    }
                    _ => {
                        if let Some(next) = state.successors(serving, 1).first().copied() {
                            state.entry_mut(serving).unwrap().standing = Standing::Bad;
                            state.serve(next);
                            prop_assert_eq!(state.entry_mut(serving).unwrap().standing, Standing::Bad);
                        }
                    }
                }
                prop_assert_eq!(state.history.last().copied(), state.serving().map(|entry| entry.number));
                let gone = |e: &Entry| e.declined || e.standing == Standing::Bad;
                prop_assert!(state.history.iter().all(|n| !state.generations.iter().any(|e| e.number == *n && gone(e))));
            }
        }
    }
}
