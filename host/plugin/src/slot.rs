//! A slot: the place of one policy, with the generation that serves in it.
//!
//! A swap is one pointer store. Calls take the pointer when they begin and finish with what they took, so a load
//! neither waits for them nor disturbs them. The built-in policy is always ready: when every other generation is bad, it
//! serves.

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
    /// After how many faults in a row the last good generation comes back.
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
                self.replace(&entry_tag(&entry), entry.number, &why, notes);
            }
        }
        // What would come back is made ready now: it is wanted in the middle of a decision.
        let next = self.state.lock().clone().successors(self.serving.load().number);
        for number in next {
            let entry = self.state.lock().entry_mut(number).cloned();
            if let Some(entry) = entry.filter(|entry| !entry.built_in) {
                match self.revive(&entry) {
                    Ok(_) => break,
                    Err(error) => notes.push(format!("{} can't be rolled back to: {error}", entry_tag(&entry))),
                }
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

    /// A remembered generation, ready to serve under its own number.
    fn revive(&self, entry: &Entry) -> Result<Arc<Generation<K::Program>>, LoadError> {
        if let Some(ready) = self.ready.read().get(&entry.number) {
            return Ok(Arc::clone(ready));
        }
        let bytes = self.bytes(entry)?;
        let loaded = load::load::<K>(self.engine.inner(), &bytes, &entry.settings, &self.limits)?;
        let revived = Arc::new(generation::<K>(loaded, &entry.settings, self.limits, entry.number, Origin::Loaded));
        self.ready.write().insert(entry.number, Arc::clone(&revived));
        Ok(revived)
    }

    /// Loads a policy and lets it serve. Calls in flight finish with the one they began with.
    ///
    /// Compiles on this thread; don't call it on a runtime's thread. Loads take turns.
    ///
    /// # Errors
    /// Why it was refused; the one that served goes on serving.
    pub fn load(&self, bytes: &[u8], settings: &str) -> Result<Arc<Generation<K::Program>>, LoadError> {
        let _turn = self.loading.lock();
        self.install(bytes, settings)
    }

    /// Gives what serves other settings: the same component as a new generation. Nothing happens when they are the same.
    ///
    /// # Errors
    /// When the policy refuses them; it goes on with its own.
    pub fn reconfigure(&self, settings: &str) -> Result<Arc<Generation<K::Program>>, LoadError> {
        let _turn = self.loading.lock();
        let serving = self.serving.load_full();
        if &*serving.settings == settings {
            return Ok(serving);
        }
        if serving.origin == Origin::BuiltIn {
            let loaded = load::Loaded {
                about: About {
                    name: serving.name.to_string(),
                    version: serving.version.to_string(),
                    summary: serving.summary.to_string(),
                },
                digest: serving.digest.to_string(),
                wasi: false,
                program: serving.program.clone(),
            };
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

    /// Lets the generation before the one that serves serve again; the one that served is kept.
    ///
    /// # Errors
    /// When there is no other good one, or it could not be written down.
    pub fn rollback(&self) -> Result<Arc<Generation<K::Program>>, RollbackError> {
        let _turn = self.loading.lock();
        let serving = self.serving.load_full();
        let mut candidates = self.state.lock().successors(serving.number);
        if serving.number != self.built_in.number && !candidates.contains(&self.built_in.number) {
            candidates.push(self.built_in.number);
        }
        let mut notes = Vec::new();
        for number in candidates {
            let Some(next) = self.get(number, &mut notes) else { continue };
            let kept = self.point(&next, &mut notes, |state| state.serve(number));
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
        if let Some(ready) = self.ready.read().get(&number) {
            return Some(Arc::clone(ready));
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

    /// Points to a generation and writes down that it serves. It serves even when that can't be written.
    fn point(
        &self,
        generation: &Arc<Generation<K::Program>>,
        notes: &mut Vec<String>,
        change: impl FnOnce(&mut State),
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
                notes.push(format!("that {} serves could not be written down: {error}", generation.tag()));
                Err(error)
            }
        }
    }

    /// Takes a bad generation from its place. Only what is ready can follow: this may be in the middle of a decision.
    fn replace(&self, bad_tag: &str, bad: u64, why: &str, notes: &mut Vec<String>) {
        let next = {
            let (state, ready) = (self.state.lock(), self.ready.read());
            let next = state.successors(bad).into_iter().find_map(|number| ready.get(&number).cloned());
            next.unwrap_or_else(|| Arc::clone(&self.built_in))
        };
        let number = next.number;
        tracing::error!(policy = bad_tag, next = %next.tag(), slot = K::WORLD.slot(), why, "a policy is taken from its place");
        notes.push(format!("{bad_tag} was taken from its place ({why}); {} serves", next.tag()));
        let _ = self.point(&next, notes, |state| {
            if let Some(entry) = state.entry_mut(bad) {
                entry.standing = Standing::Bad;
                entry.why = Some(crate::call::cut(why, 600));
            }
            state.serve(number);
        });
    }

    /// The host found that an answer of this policy broke its rules: that counts like a trap.
    ///
    /// `tag` is what the decision was answered with; a generation that is gone counts no more.
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
        self.settle(&generation, result)
    }

    /// A place in the pool for a call of this generation, which [`Slot::settle`] ends.
    pub(crate) fn begin(
        &self,
        generation: &Generation<K::Program>,
        function: &'static str,
    ) -> Result<Place<'_>, PolicyFault> {
        let refused = |cause| PolicyFault { tag: generation.tag().to_string(), function, cause, message: None };
        let place = self.engine.inner().enter(K::WORLD).map_err(refused)?;
        generation.record.begin();
        Ok(place)
    }

    /// Counts how a call ended.
    pub(crate) fn settle<R>(
        &self,
        generation: &Arc<Generation<K::Program>>,
        result: Result<R, PolicyFault>,
    ) -> Result<R, PolicyFault> {
        match &result {
            Ok(_) => generation.record.succeeded(),
            Err(fault) if fault.cause.blames_policy() => {
                let what = describe(fault);
                let faults = generation.record.faulted(&what);
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
