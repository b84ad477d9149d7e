//! A slot: the place of one policy, with the generation that serves in it.
//!
//! A swap is one pointer store. Calls take the pointer when they begin and finish with what they took, so a load
//! neither waits for them nor disturbs them. The built-in policy is always ready: when every other generation is bad, it
//! serves.
//!
//! Going back, by an operator or by itself after faults, goes to what served before, never forward: what an operator
//! rolled back from does not come back unless it is loaded again, and what had faults comes after what had none.
//!
//! Several processes may have a slot on one directory. What the directory says counts: [`Slot::refresh`] follows it.

use crate::engine::{Inner, Place, PolicyEngine};
use crate::fault::PolicyFault;
use crate::generation::{Generation, Identity, Origin, Record, describe, tag};
use crate::limits::Limits;
use crate::load::{self, About, LoadError, Loaded};
use crate::store::{Entry, Standing, State, Store};
use crate::world::World;
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use wasmtime::component::Component;

/// Settings of a policy that has none.
const NO_SETTINGS: &str = "{}";

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::lease::LeaseKind {}
    impl Sealed for crate::manifest::ManifestKind {}
    impl Sealed for crate::replay::ReplayKind {}
}

/// What differs between the worlds in loading a policy. Implemented here only.
pub trait Kind: sealed::Sealed + Send + Sync + 'static {
    /// The world.
    const WORLD: World;
    /// A compiled policy that is matched with its imports.
    type Program: Clone + Send + Sync + std::fmt::Debug + 'static;

    /// Matches a component with the host's functions.
    #[doc(hidden)]
    fn link(inner: &Inner, component: &Component) -> wasmtime::Result<Self::Program>;
    /// Asks who it is.
    #[doc(hidden)]
    fn identify(
        inner: &Inner,
        program: &Self::Program,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<About, PolicyFault>;
    /// Asks what it thinks of its settings.
    #[doc(hidden)]
    fn check_settings(
        inner: &Inner,
        program: &Self::Program,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), Vec<String>>, PolicyFault>;
    /// Gives it one harmless call.
    #[doc(hidden)]
    fn self_test(
        inner: &Inner,
        program: &Self::Program,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Result<(), String>, PolicyFault>;
}

/// How a slot is opened.
#[derive(Clone, Debug)]
pub struct SlotOptions {
    /// Where its generations are kept, its own directory (`ROOT/policies/SLOT`).
    pub dir: PathBuf,
    /// The component that is compiled into the daemon.
    pub built_in: Cow<'static, [u8]>,
    /// The policy's settings, JSON text of an object.
    pub settings: String,
    /// What each call may use.
    pub limits: Limits,
    /// After how many faults in a row of one exported function the last good generation comes back.
    pub faults_to_roll_back: NonZeroU32,
}

/// The place of one policy.
pub struct Slot<K: Kind> {
    engine: PolicyEngine,
    serving: ArcSwap<Generation<K::Program>>,
    built_in: Arc<Generation<K::Program>>,
    /// Generations that are ready, by number; the others of the state are compiled when they are wanted.
    ready: RwLock<BTreeMap<u64, Arc<Generation<K::Program>>>>,
    /// The state as this process last saw it.
    state: Mutex<State>,
    store: Store,
    limits: Limits,
    faults_to_roll_back: u32,
    notes: Mutex<Vec<String>>,
    /// One load at a time.
    loading: Mutex<()>,
    /// The state says that another generation serves, but it was not ready when that was found out.
    behind: AtomicBool,
}

impl<K: Kind> std::fmt::Debug for Slot<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("world", &K::WORLD)
            .field("serving", self.serving.load().tag())
            .finish_non_exhaustive()
    }
}

/// One generation in a [`Status`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GenerationStatus {
    /// `NAME@sha256:DIGEST#GENERATION`.
    pub tag: String,
    /// The policy's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it says of itself.
    pub summary: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// Its number in this slot.
    pub number: u64,
    /// Whether it serves, could, or is bad.
    pub state: Standing,
    /// Whether it is compiled into the daemon.
    pub built_in: bool,
    /// Why it is bad.
    pub why: Option<String>,
    /// An operator rolled back from it: it does not come back unless it is loaded again.
    pub declined: bool,
    /// Calls since this process started.
    pub calls: u64,
    /// Faults since this process started.
    pub faults: u64,
    /// The first of them.
    pub first_fault: Option<String>,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// `lease`, `manifest` or `replay`.
    pub slot: &'static str,
    /// The tag of the generation that serves.
    pub serving: String,
    /// Every generation that is remembered, by number.
    pub generations: Vec<GenerationStatus>,
    /// What went wrong when the slot was opened, or since: for people.
    pub notes: Vec<String>,
}

/// Why nothing was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RollbackError {
    /// No other generation is good.
    #[error("there is no other good generation of the {0} policy; load one with `warmhold policy load {0} FILE`")]
    Nothing(&'static str),
    /// It was done, but could not be written: after a restart the former one would serve.
    #[error(
        "the {slot} policy was rolled back to {tag}, but that can't be kept: {detail}; free space in the root, and do it again"
    )]
    Storage {
        /// The slot.
        slot: &'static str,
        /// What serves.
        tag: String,
        /// What failed.
        detail: String,
    },
}

impl RollbackError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Nothing(_) => "policy-nothing-to-roll-back-to",
            Self::Storage { .. } => "policy-storage",
        }
    }
}

fn storage(error: &io::Error) -> LoadError {
    LoadError::Storage { detail: error.to_string() }
}

impl<K: Kind> Slot<K> {
    /// Opens a slot: the generation that served before a restart serves again, under its number.
    ///
    /// What can't be had again (a component that is damaged or fails now) is told in [`Status::notes`], and the last
    /// good generation, in the end the built-in one, serves instead. Takes as long as compiling what the cache lacks;
    /// don't call it on a runtime's thread.
    ///
    /// # Errors
    /// When the directory can't be used, or the built-in policy itself is refused: with faults in its settings, for
    /// instance.
    pub fn open(engine: &PolicyEngine, options: SlotOptions) -> Result<Self, LoadError> {
        let SlotOptions { dir, built_in, settings, limits, faults_to_roll_back } = options;
        let store = Store::open(&dir).map_err(|error| storage(&error))?;
        let (before, (), note) = store.change(0, |_| Ok(())).map_err(|error| storage(&error))?;
        let mut notes: Vec<String> = note.into_iter().collect();

        // The last resort first: without it nothing can go wrong safely. Settings that are made for a loaded policy may
        // mean nothing to it; then it has none.
        let custom = before.serving().is_some_and(|entry| !entry.built_in);
        let (resort, resort_settings) = match load::load::<K>(engine.inner(), &built_in, &settings, &limits) {
            Ok(loaded) => (loaded, settings.clone()),
            Err(LoadError::Settings { .. }) if custom => {
                (load::load::<K>(engine.inner(), &built_in, NO_SETTINGS, &limits)?, NO_SETTINGS.to_owned())
            }
            Err(error) => return Err(error),
        };
        let (state, number, _) = store
            .change(0, |state| Ok(built_in_number(state, &resort, &resort_settings)))
            .map_err(|error| storage(&error))?;
        let built_in = Arc::new(generation::<K>(resort, &resort_settings, limits, number, Origin::BuiltIn));

        let slot = Self {
            engine: engine.clone(),
            serving: ArcSwap::new(Arc::clone(&built_in)),
            ready: RwLock::new(BTreeMap::from([(number, Arc::clone(&built_in))])),
            built_in,
            state: Mutex::new(state),
            store,
            limits,
            faults_to_roll_back: faults_to_roll_back.get(),
            notes: Mutex::new(Vec::new()),
            loading: Mutex::new(()),
            behind: AtomicBool::new(false),
        };
        slot.restore(&settings, &mut notes);
        *slot.notes.lock() = notes;
        Ok(slot)
    }

    /// Lets what served before serve again, or what is nearest to it.
    fn restore(&self, settings: &str, notes: &mut Vec<String>) {
        let entry = self.state.lock().serving().cloned();
        let Some(entry) = entry.filter(|entry| !entry.built_in) else {
            let number = self.built_in.number;
            let _ = self.point(&self.built_in, notes, |state| state.serve(number));
            return;
        };
        match self.revive(&entry) {
            Ok(generation) if entry.settings == settings => {
                self.serving.store(generation);
            }
            // The configuration has other settings now: the same component is another generation.
            Ok(generation) => match self.adopt_settings(&entry, settings) {
                Ok(()) => {}
                Err(error) => {
                    notes.push(format!(
                        "{} refuses the configured settings and keeps its former ones: {error}",
                        entry.name
                    ));
                    self.serving.store(generation);
                }
            },
            Err(error) => {
                let why = format!("could not serve again after a restart: {error}");
                notes.push(format!("{} {why}", tag(&entry.name, &entry.digest, entry.number)));
                self.ready_next(entry.number, notes);
                self.replace(&entry_tag(&entry), entry.number, &why, notes);
            }
        }
        self.ready_next(self.serving.load().number, notes);
    }

    /// Makes ready what would follow this generation: it is wanted in the middle of a decision.
    fn ready_next(&self, number: u64, notes: &mut Vec<String>) {
        let next = self.state.lock().successors(number, self.built_in.number);
        for number in next {
            if self.get(number, notes).is_some() {
                break;
            }
        }
    }

    /// Loads the component of an entry under a new number, with other settings.
    fn adopt_settings(&self, entry: &Entry, settings: &str) -> Result<(), LoadError> {
        let bytes = self.bytes(entry)?;
        self.install(&bytes, settings).map(|_| ())
    }

    fn bytes(&self, entry: &Entry) -> Result<Vec<u8>, LoadError> {
        self.store.component(&entry.digest, self.limits.component.get()).map_err(|error| storage(&error))
    }

    /// A remembered generation that is ready under its own number.
    fn is_ready(&self, entry: &Entry) -> Option<Arc<Generation<K::Program>>> {
        // A state that somebody removed begins at one again: a number alone is not enough.
        let same = |ready: &&Arc<Generation<K::Program>>| *ready.digest == *entry.digest;
        self.ready.read().get(&entry.number).filter(same).cloned()
    }

    /// A remembered generation, ready to serve under its own number.
    fn revive(&self, entry: &Entry) -> Result<Arc<Generation<K::Program>>, LoadError> {
        if let Some(ready) = self.is_ready(entry) {
            return Ok(ready);
        }
        let (loaded, origin) = if entry.built_in && *self.built_in.digest == *entry.digest {
            // The built-in component is not kept in the directory, but it is here, whatever its settings.
            let loaded = loaded(&self.built_in);
            load::accepts_settings::<K>(self.engine.inner(), &loaded, &entry.settings, &self.limits)?;
            (loaded, Origin::BuiltIn)
        } else {
            let bytes = self.bytes(entry)?;
            (load::load::<K>(self.engine.inner(), &bytes, &entry.settings, &self.limits)?, Origin::Loaded)
        };
        let revived = Arc::new(generation::<K>(loaded, &entry.settings, self.limits, entry.number, origin));
        self.ready.write().insert(entry.number, Arc::clone(&revived));
        Ok(revived)
    }

    /// Looks whether another process changed the state since, and lets serve what it says. Answers whether another
    /// generation serves now.
    ///
    /// Cheap when nothing changed: one look at a file. Otherwise it may compile; don't call it on a runtime's thread.
    /// Every second is often enough.
    ///
    /// # Errors
    /// When the state can't be read, or what it says can't serve here; what served goes on serving then, until the state
    /// changes again.
    pub fn refresh(&self) -> Result<bool, LoadError> {
        if !self.behind.load(Acquire) && !self.store.changed() {
            return Ok(false);
        }
        let _turn = self.loading.lock();
        self.follow()
    }

    /// [`Slot::refresh`] for one that has the turn.
    fn follow(&self) -> Result<bool, LoadError> {
        if !self.behind.swap(false, AcqRel) && !self.store.changed() {
            return Ok(false);
        }
        let entry = {
            let mut state = self.state.lock();
            let (now, (), note) =
                self.store.change(self.built_in.number, |_| Ok(())).map_err(|error| storage(&error))?;
            self.note(note.into_iter().collect());
            *state = now;
            state.serving().cloned()
        };
        let serving = self.serving.load_full();
        let Some(entry) = entry.filter(|entry| !is(&serving, entry)) else { return Ok(false) };
        let next = self.revive(&entry)?;
        {
            let state = self.state.lock();
            if !state.serving().is_some_and(|entry| is(&next, entry)) {
                // It failed, or was replaced, while it was made ready.
                self.behind.store(true, Release);
                return Ok(false);
            }
            self.serving.store(Arc::clone(&next));
        }
        tracing::info!(policy = %next.tag(), slot = K::WORLD.slot(), "another process changed it; serves now");
        let mut notes = Vec::new();
        self.ready_next(next.number, &mut notes);
        self.note(notes);
        Ok(true)
    }

    /// [`Slot::follow`], before something that matters more than its failure.
    fn try_follow(&self) {
        if let Err(error) = self.follow() {
            self.note(vec![format!("what another process let serve can't serve here: {error}")]);
        }
    }

    /// Loads a policy and lets it serve. Calls in flight finish with the one they began with.
    ///
    /// What serves already, with the same settings, is answered as it is: no generation is made that would differ by its
    /// number alone, and whose rollback would change nothing.
    ///
    /// Compiles on this thread; don't call it on a runtime's thread. Loads take turns.
    ///
    /// # Errors
    /// Why it was refused; the one that served goes on serving.
    pub fn load(&self, bytes: &[u8], settings: &str) -> Result<Arc<Generation<K::Program>>, LoadError> {
        let _turn = self.loading.lock();
        self.try_follow();
        let serving = self.serving.load_full();
        if *serving.settings == *settings && *serving.digest == *load::digest(bytes) {
            return Ok(serving);
        }
        self.install(bytes, settings)
    }

    /// Gives what serves other settings: the same component as a new generation. Nothing happens when they are the same.
    ///
    /// # Errors
    /// When the policy refuses them; it goes on with its own.
    pub fn reconfigure(&self, settings: &str) -> Result<Arc<Generation<K::Program>>, LoadError> {
        let _turn = self.loading.lock();
        self.try_follow();
        let serving = self.serving.load_full();
        if &*serving.settings == settings {
            return Ok(serving);
        }
        if serving.origin == Origin::BuiltIn {
            let loaded = loaded(&serving);
            load::accepts_settings::<K>(self.engine.inner(), &loaded, settings, &self.limits)?;
            return self.enrol(loaded, settings, Origin::BuiltIn, |_| Ok(()));
        }
        let entry = self.state.lock().entry_mut(serving.number).cloned();
        let entry =
            entry.ok_or_else(|| LoadError::Storage { detail: "the generation is not remembered".to_owned() })?;
        let bytes = self.bytes(&entry)?;
        self.install(&bytes, settings)
    }

    fn install(&self, bytes: &[u8], settings: &str) -> Result<Arc<Generation<K::Program>>, LoadError> {
        let loaded = load::load::<K>(self.engine.inner(), bytes, settings, &self.limits)?;
        let digest = loaded.digest.clone();
        self.enrol(loaded, settings, Origin::Loaded, |store| store.keep(&digest, bytes))
    }

    /// Gives a good policy its number, remembers it, and points to it.
    fn enrol(
        &self,
        loaded: Loaded<K::Program>,
        settings: &str,
        origin: Origin,
        keep: impl FnOnce(&Store) -> io::Result<()>,
    ) -> Result<Arc<Generation<K::Program>>, LoadError> {
        let mut state = self.state.lock();
        let changed = self.store.change(self.built_in.number, |state| {
            keep(&self.store)?;
            self.count_faults(state);
            let number = add(state, &loaded, settings, origin == Origin::BuiltIn);
            state.serve(number);
            Ok(number)
        });
        let (now, number, note) = changed.map_err(|error| storage(&error))?;
        self.notes.lock().extend(note);
        *state = now;
        let generation = Arc::new(generation::<K>(loaded, settings, self.limits, number, origin));
        let mut ready = self.ready.write();
        ready.insert(number, Arc::clone(&generation));
        let remembered = |number: &u64| state.generations.iter().any(|entry| entry.number == *number);
        ready.retain(|number, _| *number == self.built_in.number || remembered(number));
        drop(ready);
        self.serving.store(Arc::clone(&generation));
        tracing::info!(policy = %generation.tag(), slot = K::WORLD.slot(), "serves now");
        Ok(generation)
    }

    /// Lets serve what served before the one that serves. That one is kept, but does not come back by another rollback
    /// or by itself: only when it is loaded again. Those that had faults come after those that had none, and the
    /// built-in one is the end.
    ///
    /// # Errors
    /// When nothing good served before, or it could not be written down.
    pub fn rollback(&self) -> Result<Arc<Generation<K::Program>>, RollbackError> {
        let _turn = self.loading.lock();
        self.try_follow();
        let serving = self.serving.load_full();
        let mut candidates = {
            let mut state = self.state.lock();
            self.count_faults(&mut state);
            state.successors(serving.number, self.built_in.number)
        };
        if serving.number != self.built_in.number && !candidates.contains(&self.built_in.number) {
            candidates.push(self.built_in.number);
        }
        let mut notes = Vec::new();
        for number in candidates {
            let Some(next) = self.get(number, &mut notes) else { continue };
            let kept = self.point(&next, &mut notes, |state| {
                self.count_faults(state);
                if let Some(entry) = state.entry_mut(serving.number) {
                    entry.declined = true;
                }
                state.serve(number);
            });
            self.ready_next(number, &mut notes);
            self.notes.lock().append(&mut notes);
            return match kept {
                Ok(()) => Ok(next),
                Err(error) => Err(RollbackError::Storage {
                    slot: K::WORLD.slot(),
                    tag: next.tag().to_string(),
                    detail: error.to_string(),
                }),
            };
        }
        self.notes.lock().append(&mut notes);
        Err(RollbackError::Nothing(K::WORLD.slot()))
    }

    /// A generation by number, made ready if it has to be.
    fn get(&self, number: u64, notes: &mut Vec<String>) -> Option<Arc<Generation<K::Program>>> {
        if number == self.built_in.number {
            return Some(Arc::clone(&self.built_in));
        }
        let entry = self.state.lock().entry_mut(number).cloned()?;
        match self.revive(&entry) {
            Ok(generation) => Some(generation),
            Err(error) => {
                notes.push(format!("{} can't be rolled back to: {error}", entry_tag(&entry)));
                None
            }
        }
    }

    /// Writes down the faults that this process counted.
    fn count_faults(&self, state: &mut State) {
        let ready = self.ready.read();
        for entry in &mut state.generations {
            if let Some(ready) = ready.get(&entry.number).filter(|ready| is(ready, entry)) {
                entry.faults = entry.faults.max(ready.record.faults());
            }
        }
    }

    /// Points to a generation and writes down that it serves. It serves even when that can't be written. `change` is
    /// asked once more when that fails, for what this process remembers.
    fn point(
        &self,
        generation: &Arc<Generation<K::Program>>,
        notes: &mut Vec<String>,
        change: impl Fn(&mut State),
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        self.serving.store(Arc::clone(generation));
        match self.store.change(self.built_in.number, |state| {
            change(state);
            Ok(())
        }) {
            Ok((now, (), note)) => {
                notes.extend(note);
                *state = now;
                Ok(())
            }
            Err(error) => {
                change(&mut state);
                notes.push(format!("that {} serves could not be written down: {error}", generation.tag()));
                Err(error)
            }
        }
    }

    /// Takes a bad generation from its place. Only what is ready can follow: this may be in the middle of a decision.
    /// When another process let something else serve meanwhile, that stays, and is followed.
    fn replace(&self, bad_tag: &str, bad: u64, why: &str, notes: &mut Vec<String>) {
        let mut state = self.state.lock();
        let ready = self.ready.read().clone();
        let change = |state: &mut State| {
            self.count_faults(state);
            let mut next = state.successors(bad, self.built_in.number).into_iter();
            let next = next.find(|number| ready.contains_key(number)).unwrap_or(self.built_in.number);
            if let Some(entry) = state.entry_mut(bad) {
                entry.standing = Standing::Bad;
                entry.why = Some(crate::call::cut(why, 600));
                state.history.retain(|number| *number != bad);
            }
            if state.serving().is_none() {
                state.serve(next);
            }
        };
        let written = self.store.change(self.built_in.number, |state| {
            change(state);
            Ok(())
        });
        let failed = match written {
            Ok((now, (), note)) => {
                notes.extend(note);
                *state = now;
                None
            }
            Err(error) => {
                change(&mut state);
                Some(error)
            }
        };
        let says = state.serving().cloned();
        let next = says.as_ref().and_then(|entry| self.is_ready(entry));
        // What is not ready is made so by the next refresh; meanwhile the built-in one serves.
        self.behind.store(says.is_some() && next.is_none(), Release);
        let next = next.unwrap_or_else(|| Arc::clone(&self.built_in));
        self.serving.store(Arc::clone(&next));
        drop(state);
        tracing::error!(policy = bad_tag, next = %next.tag(), slot = K::WORLD.slot(), why, "a policy is taken from its place");
        notes.push(format!("{bad_tag} was taken from its place ({why}); {} serves", next.tag()));
        if let Some(error) = failed {
            notes.push(format!("that {} serves could not be written down: {error}", next.tag()));
        }
    }

    /// The host found that an answer of this policy broke its rules: that counts like a trap.
    ///
    /// `tag` is what the decision was answered with; a generation that is gone counts no more. It counts for the function
    /// that answered last, so it must be reported before the next call begins.
    pub fn report_violation(&self, tag: &str, what: &str) {
        let generation = self.ready.read().values().find(|generation| &**generation.tag() == tag).cloned();
        if let Some(generation) = generation {
            let faults = generation.record.violated(what);
            tracing::warn!(policy = tag, what, faults, "a policy's answer broke the host's rules");
            self.judge(&generation, faults, what);
        }
    }

    /// Takes the generation from its place if it had too many faults in a row.
    fn judge(&self, generation: &Arc<Generation<K::Program>>, faults: u32, what: &str) {
        if faults < self.faults_to_roll_back || generation.number == self.built_in.number {
            return;
        }
        // Only the first of several calls that fail at once finds it serving.
        let serving = self.serving.load();
        if !Arc::ptr_eq(&serving, generation) {
            return;
        }
        let swapped = self.serving.compare_and_swap(&*serving, Arc::clone(&self.built_in));
        if Arc::ptr_eq(&swapped, generation) {
            let mut notes = Vec::new();
            let why = format!("{faults} faults in a row, the last: {what}");
            self.replace(generation.tag(), generation.number, &why, &mut notes);
            self.note(notes);
        }
    }

    fn note(&self, mut new: Vec<String>) {
        let mut notes = self.notes.lock();
        notes.append(&mut new);
        // Enough for people; a slot that goes wrong for weeks must not grow.
        let spare = notes.len().saturating_sub(32);
        notes.drain(..spare);
    }

    /// What serves now.
    #[must_use]
    pub fn serving(&self) -> Arc<Generation<K::Program>> {
        self.serving.load_full()
    }

    /// The engine of this slot.
    #[must_use]
    pub fn engine(&self) -> &PolicyEngine {
        &self.engine
    }

    /// The limits of its calls.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether a component was taken from its place here, and has not served since: something that watches a file
    /// should not load it again by itself.
    #[must_use]
    pub fn is_bad(&self, digest: &str) -> bool {
        let state = self.state.lock();
        let of = |standing: Standing| {
            state
                .generations
                .iter()
                .filter(move |e| e.digest == digest && e.standing == standing)
                .map(|e| e.number)
                .max()
        };
        of(Standing::Bad) > of(Standing::Serving).max(of(Standing::Kept))
    }

    /// Everything that the slot holds.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.state.lock();
        let serving = self.serving.load_full();
        let ready = self.ready.read();
        let mut generations: Vec<_> = state
            .generations
            .iter()
            .map(|entry| {
                let record = ready.get(&entry.number).map(|generation| &generation.record);
                GenerationStatus {
                    tag: entry_tag(entry),
                    name: entry.name.clone(),
                    version: entry.version.clone(),
                    summary: entry.summary.clone(),
                    digest: entry.digest.clone(),
                    number: entry.number,
                    // What this process does, not what another that shares the directory wrote down last.
                    state: match entry.standing {
                        _ if entry.number == serving.number => Standing::Serving,
                        Standing::Serving => Standing::Kept,
                        standing => standing,
                    },
                    built_in: entry.built_in,
                    why: entry.why.clone(),
                    declined: entry.declined,
                    calls: record.map_or(0, Record::calls),
                    faults: record.map_or(0, Record::faults),
                    first_fault: record.and_then(Record::first_fault),
                }
            })
            .collect();
        generations.sort_by_key(|generation| generation.number);
        Status {
            slot: K::WORLD.slot(),
            serving: serving.tag().to_string(),
            generations,
            notes: self.notes.lock().clone(),
        }
    }

    /// One synchronous call with what serves.
    pub(crate) fn call<R>(
        &self,
        function: &'static str,
        body: impl FnOnce(&Inner, &Generation<K::Program>) -> Result<R, PolicyFault>,
    ) -> Result<R, PolicyFault> {
        let generation = self.serving.load_full();
        let place = self.begin(&generation, function)?;
        let result = body(self.engine.inner(), &generation);
        drop(place);
        self.settle(&generation, function, result)
    }

    /// A place in the pool for a call of this generation, which [`Slot::settle`] ends.
    pub(crate) fn begin(
        &self,
        generation: &Generation<K::Program>,
        function: &'static str,
    ) -> Result<Place<'_>, PolicyFault> {
        let refused = |cause| PolicyFault { tag: generation.tag().to_string(), function, cause, message: None };
        let place = self.engine.inner().enter(K::WORLD).map_err(refused)?;
        generation.record.begin(function);
        Ok(place)
    }

    /// Counts how a call ended.
    pub(crate) fn settle<R>(
        &self,
        generation: &Arc<Generation<K::Program>>,
        function: &'static str,
        result: Result<R, PolicyFault>,
    ) -> Result<R, PolicyFault> {
        match &result {
            Ok(_) => generation.record.succeeded(function),
            Err(fault) if fault.cause.blames_policy() => {
                let what = describe(fault);
                let faults = generation.record.faulted(function, &what);
                self.judge(generation, faults, &what);
            }
            Err(_) => {}
        }
        result
    }
}

fn entry_tag(entry: &Entry) -> String {
    tag(&entry.name, &entry.digest, entry.number).to_string()
}

/// Whether an entry is of this generation.
fn is<P>(generation: &Generation<P>, entry: &Entry) -> bool {
    generation.number == entry.number && *generation.digest == *entry.digest
}

/// A generation's program as if it had just been loaded.
fn loaded<P: Clone>(generation: &Generation<P>) -> Loaded<P> {
    Loaded {
        about: About {
            name: generation.name.to_string(),
            version: generation.version.to_string(),
            summary: generation.summary.to_string(),
        },
        digest: generation.digest.to_string(),
        wasi: false,
        program: generation.program.clone(),
    }
}

/// The number of the built-in policy: the one it had, if it is the same with the same settings.
fn built_in_number<P>(state: &mut State, loaded: &Loaded<P>, settings: &str) -> u64 {
    let same = |entry: &&mut Entry| {
        entry.built_in && entry.digest == loaded.digest && entry.settings == settings && entry.standing != Standing::Bad
    };
    if let Some(entry) = state.generations.iter_mut().filter(same).max_by_key(|entry| entry.number) {
        return entry.number;
    }
    // Another release's built-in policy is gone with its program: it can't serve again.
    let served = state.serving().is_some_and(|entry| entry.built_in);
    state.generations.retain(|entry| !entry.built_in);
    let number = add(state, loaded, settings, true);
    if served || state.serving().is_none() {
        state.serve(number);
    }
    number
}

fn add<P>(state: &mut State, loaded: &Loaded<P>, settings: &str, built_in: bool) -> u64 {
    let number = state.next;
    state.next = number.saturating_add(1);
    state.generations.push(Entry {
        number,
        digest: loaded.digest.clone(),
        name: loaded.about.name.clone(),
        version: loaded.about.version.clone(),
        summary: loaded.about.summary.clone(),
        settings: settings.to_owned(),
        built_in,
        standing: Standing::Kept,
        why: None,
        declined: false,
        faults: 0,
    });
    number
}

fn generation<K: Kind>(
    loaded: Loaded<K::Program>,
    settings: &str,
    limits: Limits,
    number: u64,
    origin: Origin,
) -> Generation<K::Program> {
    let settings: Arc<str> = settings.into();
    Generation {
        identity: Identity { tag: tag(&loaded.about.name, &loaded.digest, number), settings: Arc::clone(&settings) },
        digest: loaded.digest.into(),
        name: loaded.about.name.into(),
        version: loaded.about.version.into(),
        summary: loaded.about.summary.into(),
        world: K::WORLD,
        number,
        settings,
        limits,
        origin,
        program: loaded.program,
        record: Record::default(),
    }
}
