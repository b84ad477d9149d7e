//! From bytes to a policy that may serve.
//!
//! Everything is found out here, off the serving path: the whole file is looked at before the compiler sees it, its
//! interfaces are compared with the world's, it is compiled, asked who it is and what it thinks of its settings, and
//! given one call to answer. A load that is refused says what was expected, what was found, and what mends it.

use crate::cache::hex;
use crate::engine::{Inner, PolicyEngine};
use crate::fault::{Cause, PolicyFault};
use crate::generation::{Identity, tag};
use crate::limits::Limits;
use crate::shape::{self, Outline, PACKAGE};
use crate::slot::Kind;
use crate::world::{PACKAGE_VERSION, World};
use sha2::{Digest, Sha256};
use std::fmt;
use wasmtime::component::Component;

/// The longest name of a policy.
const NAME_BYTES: usize = 64;
/// The longest version of a policy.
const VERSION_BYTES: usize = 64;
/// What is kept of a summary.
const SUMMARY_BYTES: usize = 200;
/// Lines about differences that are shown.
const DIFFERENCES: usize = 8;

/// What a policy says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// `[a-z0-9][a-z0-9-]*`, at most 64 bytes: it is part of the tag.
    pub name: String,
    /// At most 64 printable characters without a space.
    pub version: String,
    /// One line.
    pub summary: String,
}

/// A policy that would load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its world.
    pub world: World,
    /// What it says of itself.
    pub about: About,
    /// SHA-256 of the component, hex.
    pub digest: String,
    /// Whether it imports WASI (and so gets an empty one).
    pub wasi: bool,
}

/// Why a policy was not loaded. The one that served goes on serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// Nothing in the file.
    Empty,
    /// More bytes than a component may have.
    TooLarge {
        /// How many it has.
        size: u64,
        /// How many it may have.
        limit: u64,
    },
    /// Not WebAssembly at all.
    NotWasm {
        /// What it looks like.
        looks_like: String,
    },
    /// A core module: the linker's output before it was made a component.
    CoreModule,
    /// It ends in the middle of a section.
    Truncated {
        /// Where the section begins that is cut.
        at: u64,
        /// How many bytes the section still wants.
        missing: u64,
    },
    /// It has a component's header, and is none.
    Invalid {
        /// The validator's words.
        detail: String,
    },
    /// Made for another world.
    WrongWorld {
        /// What the slot is for.
        expected: World,
        /// What it is for, or what it exports.
        found: String,
    },
    /// Made with a version of the interfaces that this host doesn't speak.
    VersionSkew {
        /// What it was made with.
        found: String,
    },
    /// Of the right world, but its interfaces differ.
    Mismatch {
        /// The world.
        world: World,
        /// Each difference in a sentence.
        differences: Vec<String>,
    },
    /// It wants something of its host that there is not.
    UnknownImport {
        /// The world.
        world: World,
        /// What it wants.
        imports: Vec<String>,
    },
    /// Its name, version or summary can't be used.
    BadIdentity {
        /// What is wrong.
        detail: String,
    },
    /// The settings are not the JSON text of an object.
    SettingsNotObject {
        /// Why not.
        detail: String,
    },
    /// The policy finds faults in its settings.
    Settings {
        /// Each fault, in its words.
        faults: Vec<String>,
    },
    /// It failed in a question of the load.
    Faulted(PolicyFault),
    /// It answered the load's self-test, but wrongly.
    SelfTest {
        /// What it did.
        detail: String,
    },
    /// Every place for loading is taken.
    Busy,
    /// The policy could not be kept, so that it would be gone after a restart.
    Storage {
        /// What failed.
        detail: String,
    },
    /// The host's own fault.
    Host {
        /// What failed.
        detail: String,
    },
}

impl LoadError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "policy-empty",
            Self::TooLarge { .. } => "policy-too-large",
            Self::NotWasm { .. } => "policy-not-wasm",
            Self::CoreModule => "policy-core-module",
            Self::Truncated { .. } => "policy-truncated",
            Self::Invalid { .. } => "policy-invalid",
            Self::WrongWorld { .. } => "policy-wrong-world",
            Self::VersionSkew { .. } => "policy-version-skew",
            Self::Mismatch { .. } => "policy-interface-mismatch",
            Self::UnknownImport { .. } => "policy-unknown-import",
            Self::BadIdentity { .. } => "policy-bad-identity",
            Self::SettingsNotObject { .. } => "policy-settings-not-object",
            Self::Settings { .. } => "policy-settings",
            Self::Faulted(_) => "policy-load-fault",
            Self::SelfTest { .. } => "policy-self-test",
            Self::Busy => "policy-load-busy",
            Self::Storage { .. } => "policy-storage",
            Self::Host { .. } => "policy-load-host",
        }
    }

    /// What happened.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::Empty => "the policy's file is empty".to_owned(),
            Self::TooLarge { .. } => "the policy is too large".to_owned(),
            Self::NotWasm { .. } => "this is not WebAssembly".to_owned(),
            Self::CoreModule => "this is a core module, not a component".to_owned(),
            Self::Truncated { .. } => "the policy's file is cut off".to_owned(),
            Self::Invalid { .. } => "this is not a valid component".to_owned(),
            Self::WrongWorld { .. } => "the policy is made for another world".to_owned(),
            Self::VersionSkew { .. } => "the policy was made with another version of the interfaces".to_owned(),
            Self::Mismatch { world, .. } => format!("the policy's interfaces differ from world {world}"),
            Self::UnknownImport { world, .. } => format!("the policy imports what world {world} does not have"),
            Self::BadIdentity { .. } => "the policy's own name or version can't be used".to_owned(),
            Self::SettingsNotObject { .. } => "the settings are not a JSON object".to_owned(),
            Self::Settings { .. } => "the policy finds faults in its settings".to_owned(),
            Self::Faulted(fault) => format!("the policy failed in {} while it was loaded", fault.function),
            Self::SelfTest { .. } => "the policy failed its self-test".to_owned(),
            Self::Busy => "too many policies are being loaded".to_owned(),
            Self::Storage { .. } => "the policy can't be kept".to_owned(),
            Self::Host { .. } => "the host can't load policies".to_owned(),
        }
    }

    /// What would have been right.
    #[must_use]
    pub fn expected(&self) -> String {
        match self {
            Self::Empty | Self::NotWasm { .. } | Self::CoreModule | Self::Invalid { .. } => {
                "a WebAssembly component".to_owned()
            }
            Self::TooLarge { limit, .. } => format!("at most {limit} bytes"),
            Self::Truncated { .. } => "the whole file".to_owned(),
            Self::WrongWorld { expected, .. } => format!("world {expected} of {PACKAGE}@{PACKAGE_VERSION}"),
            Self::VersionSkew { .. } => format!("{PACKAGE}@{PACKAGE_VERSION}"),
            Self::Mismatch { world, .. } | Self::UnknownImport { world, .. } => {
                format!("the imports and exports of world {world} in {PACKAGE}@{PACKAGE_VERSION}, and WASI 0.2")
            }
            Self::BadIdentity { .. } => {
                "a name of a-z, 0-9 and -, and a version without spaces, at most 64 characters each".to_owned()
            }
            Self::SettingsNotObject { .. } => "a JSON object".to_owned(),
            Self::Settings { .. } => "settings that the policy accepts".to_owned(),
            Self::Faulted(_) => "an answer".to_owned(),
            Self::SelfTest { .. } => "a right answer to a harmless question".to_owned(),
            Self::Busy => "a free place".to_owned(),
            Self::Storage { .. } => "a root that can be written".to_owned(),
            Self::Host { .. } => "an engine that works".to_owned(),
        }
    }

    /// What was there instead.
    #[must_use]
    pub fn found(&self) -> String {
        match self {
            Self::Empty => "0 bytes".to_owned(),
            Self::TooLarge { size, .. } => format!("{size} bytes"),
            Self::NotWasm { looks_like } => looks_like.clone(),
            Self::CoreModule => "a core module".to_owned(),
            Self::Truncated { at, missing } => format!("a section at byte {at} that lacks {missing} bytes"),
            Self::WrongWorld { found, .. } => found.clone(),
            Self::VersionSkew { found } => found.clone(),
            Self::Mismatch { differences, .. } => differences.join("; "),
            Self::UnknownImport { imports, .. } => imports.join(", "),
            Self::Settings { faults } => faults.join("; "),
            Self::Faulted(fault) => match &fault.message {
                Some(message) => format!("{}; it said: {message}", fault.cause),
                None => fault.cause.to_string(),
            },
            Self::Busy => "none".to_owned(),
            Self::Invalid { detail }
            | Self::BadIdentity { detail }
            | Self::SettingsNotObject { detail }
            | Self::SelfTest { detail }
            | Self::Storage { detail }
            | Self::Host { detail } => detail.clone(),
        }
    }

    /// What mends it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Empty | Self::Truncated { .. } => {
                "copy the file again, to another name, and rename it when it is whole".to_owned()
            }
            Self::TooLarge { .. } => {
                "build with optimisation for size and strip debug information (`wasm-tools strip FILE -o FILE`)"
                    .to_owned()
            }
            Self::NotWasm { .. } => "give the .wasm file that the build made (`cargo build --release`)".to_owned(),
            Self::CoreModule => {
                "build for wasm32-wasip2, or wrap it: `wasm-tools component new FILE -o OUT`".to_owned()
            }
            Self::Invalid { .. } => "build it again; `wasm-tools validate FILE` says more".to_owned(),
            Self::WrongWorld { expected, found } => match World::ALL.into_iter().find(|w| found == &world_words(*w)) {
                Some(world) => {
                    format!("load it as {} policy: `warmhold policy load {} FILE`", world.slot(), world.slot())
                }
                None => {
                    format!("build it for world {expected} (`wit_bindgen::generate!({{ world: \"{expected}\" }})`)")
                }
            },
            Self::VersionSkew { .. } => {
                format!("build it with the wit/ folder of this release ({PACKAGE}@{PACKAGE_VERSION})")
            }
            Self::Mismatch { .. } => {
                format!("build it with the wit/ folder of this release ({PACKAGE}@{PACKAGE_VERSION}), unchanged")
            }
            Self::UnknownImport { .. } => {
                "build it without what it imports; `wasm-tools component wit FILE` lists its imports".to_owned()
            }
            Self::BadIdentity { .. } => "mend what its `identify` answers".to_owned(),
            Self::SettingsNotObject { .. } | Self::Settings { .. } => {
                "mend the `settings` table of this policy in warmhold.toml".to_owned()
            }
            Self::Faulted(fault) => match fault.cause {
                Cause::Memory { .. } => "let it use less, or raise `memory` of this policy in warmhold.toml".to_owned(),
                Cause::Deadline { .. } => {
                    "let it compute less, or raise `deadline` of this policy in warmhold.toml".to_owned()
                }
                Cause::WallClock { .. } => {
                    "let it wait less, or raise `wall` of this policy in warmhold.toml".to_owned()
                }
                _ => "mend the policy; `warmhold policy check FILE` shows the same without a daemon".to_owned(),
            },
            Self::SelfTest { .. } => {
                "mend the policy; `warmhold policy check FILE` shows the same without a daemon".to_owned()
            }
            Self::Busy => "try again".to_owned(),
            Self::Storage { .. } => "free space in the root, or mend its permissions, and load it again".to_owned(),
            Self::Host { .. } => "see the daemon's log".to_owned(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}; {}", self.what(), self.expected(), self.found(), self.fix())
    }
}

impl std::error::Error for LoadError {}

/// A policy that was found good, before it has a number.
pub(crate) struct Loaded<P> {
    pub(crate) about: About,
    pub(crate) digest: String,
    pub(crate) wasi: bool,
    pub(crate) program: P,
}

/// Finds out whether bytes are a policy of this kind that accepts these settings.
///
/// # Errors
/// Why not.
pub fn check<K: Kind>(
    engine: &PolicyEngine,
    bytes: &[u8],
    settings: &str,
    limits: &Limits,
) -> Result<Checked, LoadError> {
    let loaded = load::<K>(engine.inner(), bytes, settings, limits)?;
    Ok(Checked { world: K::WORLD, about: loaded.about, digest: loaded.digest, wasi: loaded.wasi })
}

/// The world that a component is made for, by its exports; `None` where they are of none.
///
/// # Errors
/// When it is no component.
pub fn world_of(engine: &PolicyEngine, bytes: &[u8], limits: &Limits) -> Result<Option<World>, LoadError> {
    look(bytes, limits)?;
    let component = compile(engine.inner(), bytes, &digest(bytes))?;
    Ok(guess(&shape::found(&engine.inner().engine, &component.component_type())))
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn load<K: Kind>(
    inner: &Inner,
    bytes: &[u8],
    settings: &str,
    limits: &Limits,
) -> Result<Loaded<K::Program>, LoadError> {
    check_settings_text(settings)?;
    look(bytes, limits)?;
    let digest = digest(bytes);
    let component = compile(inner, bytes, &digest)?;
    let outline = shape::found(&inner.engine, &component.component_type());
    fits(K::WORLD, &outline)?;
    let wasi = outline.imports.keys().any(|name| name.starts_with("wasi:"));
    let program = K::link(inner, &component).map_err(|error| LoadError::Mismatch {
        world: K::WORLD,
        differences: vec![crate::call::cut(&format!("{error:#}"), 600)],
    })?;

    let loaded = Loaded { about: About::default(), digest, wasi, program };
    question::<K>(inner, loaded, settings, limits)
}

/// Asks a policy that is compiled who it is, and everything else that must be known before it serves.
fn question<K: Kind>(
    inner: &Inner,
    mut loaded: Loaded<K::Program>,
    settings: &str,
    limits: &Limits,
) -> Result<Loaded<K::Program>, LoadError> {
    let place = inner.enter_load(K::WORLD).map_err(|_| LoadError::Busy)?;
    // Its name is not known yet, and a fault has to call it something.
    let identity = Identity { tag: tag("policy", &loaded.digest, 0), settings: settings.into() };
    let about = K::identify(inner, &loaded.program, &identity, &limits.for_load()).map_err(LoadError::Faulted)?;
    loaded.about = acceptable(about)?;
    drop(place);
    accepts_settings::<K>(inner, &loaded, settings, limits)?;
    Ok(loaded)
}

/// Asks a policy what it thinks of its settings, and gives it one call with them.
pub(crate) fn accepts_settings<K: Kind>(
    inner: &Inner,
    loaded: &Loaded<K::Program>,
    settings: &str,
    limits: &Limits,
) -> Result<(), LoadError> {
    check_settings_text(settings)?;
    let _place = inner.enter_load(K::WORLD).map_err(|_| LoadError::Busy)?;
    let limits = limits.for_load();
    let identity = Identity { tag: tag(&loaded.about.name, &loaded.digest, 0), settings: settings.into() };
    K::check_settings(inner, &loaded.program, &identity, &limits).map_err(LoadError::Faulted)?.map_err(
        |mut faults| {
            faults.truncate(64);
            LoadError::Settings { faults: faults.iter().map(|fault| crate::call::cut(fault, 400)).collect() }
        },
    )?;
    K::self_test(inner, &loaded.program, &identity, &limits)
        .map_err(LoadError::Faulted)?
        .map_err(|detail| LoadError::SelfTest { detail })
}

fn check_settings_text(settings: &str) -> Result<(), LoadError> {
    match serde_json::from_str::<serde_json::Value>(settings) {
        Ok(serde_json::Value::Object(_)) => Ok(()),
        Ok(_) => Err(LoadError::SettingsNotObject { detail: "JSON of another kind".to_owned() }),
        Err(error) => Err(LoadError::SettingsNotObject { detail: error.to_string() }),
    }
}

/// Looks at the whole file before the compiler does: a header, then sections that each say how long they are.
fn look(bytes: &[u8], limits: &Limits) -> Result<(), LoadError> {
    if bytes.is_empty() {
        return Err(LoadError::Empty);
    }
    if bytes.len() > limits.component.get() {
        return Err(LoadError::TooLarge { size: bytes.len() as u64, limit: limits.component.get() as u64 });
    }
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else {
        return Err(LoadError::NotWasm { looks_like: looks_like(bytes) });
    };
    if magic != b"\0asm" {
        return Err(LoadError::NotWasm { looks_like: looks_like(bytes) });
    }
    let Some((version, mut rest)) = rest.split_first_chunk::<4>() else {
        return Err(LoadError::Truncated { at: 4, missing: 4 - rest.len() as u64 });
    };
    match version {
        [1, 0, 0, 0] => return Err(LoadError::CoreModule),
        [0x0d, 0, 1, 0] => {}
        other => return Err(LoadError::Invalid { detail: format!("version {}", hex(other)) }),
    }
    while !rest.is_empty() {
        let at = (bytes.len() - rest.len()) as u64;
        let Some((_, after_id)) = rest.split_first() else { break };
        let (size, body) = match leb(after_id) {
            Leb::Value(size, body) => (size, body),
            Leb::Cut => return Err(LoadError::Truncated { at, missing: 1 }),
            Leb::TooLong => return Err(LoadError::Invalid { detail: format!("a section's size at byte {at}") }),
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        match body.split_at_checked(size) {
            Some((_, next)) => rest = next,
            None => return Err(LoadError::Truncated { at, missing: (size - body.len()) as u64 }),
        }
    }
    Ok(())
}

enum Leb<'a> {
    Value(u32, &'a [u8]),
    Cut,
    TooLong,
}

/// An unsigned number of at most 32 bits in LEB128.
fn leb(bytes: &[u8]) -> Leb<'_> {
    let mut value = 0u64;
    for (n, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return match (u32::try_from(value), bytes.get(n + 1..)) {
                (Ok(value), Some(rest)) => Leb::Value(value, rest),
                _ => Leb::TooLong,
            };
        }
    }
    if bytes.len() < 5 { Leb::Cut } else { Leb::TooLong }
}

/// What bytes look like, for a person who gave the wrong file.
fn looks_like(bytes: &[u8]) -> String {
    let starts = |prefix: &[u8]| bytes.starts_with(prefix);
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"(component") || text.starts_with(b"(module") {
        "WebAssembly as text".to_owned()
    } else if starts(b"\x7fELF") {
        "a program or library of this machine (ELF)".to_owned()
    } else if starts(b"PK\x03\x04") || starts(b"\x1f\x8b") || starts(b"\x28\xb5\x2f\xfd") {
        "a compressed file".to_owned()
    } else if text.starts_with(b"<") {
        "a web page or XML".to_owned()
    } else if text.starts_with(b"#!") || text.starts_with(b"{") || std::str::from_utf8(bytes).is_ok() {
        "text".to_owned()
    } else {
        format!("bytes that begin with {}", hex(bytes.get(..4).unwrap_or(bytes)))
    }
}

/// Compiled code of the cache, or anew.
fn compile(inner: &Inner, bytes: &[u8], digest: &str) -> Result<Component, LoadError> {
    let cached = || inner.cache.as_ref().and_then(|cache| cache.get(&inner.engine, digest));
    if let Some(component) = cached() {
        return Ok(component);
    }
    let _one = inner.compiling.lock();
    if let Some(component) = cached() {
        return Ok(component);
    }
    let component = Component::from_binary(&inner.engine, bytes)
        .map_err(|error| LoadError::Invalid { detail: crate::call::cut(&format!("{error:#}"), 600) })?;
    if let Some(cache) = &inner.cache {
        cache.put(digest, &component);
    }
    Ok(component)
}

fn world_words(world: World) -> String {
    format!("world {world}")
}

/// The world whose own export is there.
fn guess(outline: &Outline) -> Option<World> {
    let exports = |interface: &str| {
        outline.exports.keys().any(|name| shape::split(name).0.strip_prefix(PACKAGE) == Some(interface))
    };
    [(World::Lease, "/leases"), (World::Manifest, "/pod-manifest"), (World::Replay, "/replay")]
        .into_iter()
        .find_map(|(world, interface)| exports(interface).then_some(world))
}

/// Compares what a component has with what a world wants.
fn fits(world: World, found: &Outline) -> Result<(), LoadError> {
    let expected = shape::expected(world).map_err(|detail| LoadError::Host { detail })?;
    let ours = |name: &str| shape::split(name).0.starts_with(PACKAGE);

    // Versions first: with another version everything else differs too, and that would only confuse.
    let skewed: Vec<_> = found
        .exports
        .keys()
        .chain(found.imports.keys())
        .filter(|name| ours(name))
        .filter_map(|name| shape::split(name).1)
        .filter(|version| !shape::compatible(version))
        .map(|version| format!("{PACKAGE}@{version}"))
        .collect();
    if let Some(found) = skewed.into_iter().next() {
        return Err(LoadError::VersionSkew { found });
    }

    match guess(found) {
        Some(other) if other == world => {}
        Some(other) => return Err(LoadError::WrongWorld { expected: world, found: world_words(other) }),
        None => {
            let names: Vec<_> = found.exports.keys().take(DIFFERENCES).map(|name| format!("`{name}`")).collect();
            let found = match names.is_empty() {
                true => "no exports".to_owned(),
                false => format!("exports of no world that this host knows: {}", names.join(", ")),
            };
            return Err(LoadError::WrongWorld { expected: world, found });
        }
    }

    let unknown: Vec<_> = found
        .imports
        .keys()
        .filter(|name| !name.starts_with("wasi:") && !expected.imports.contains_key(shape::split(name).0))
        .map(|name| format!("`{name}`"))
        .take(DIFFERENCES)
        .collect();
    if !unknown.is_empty() {
        return Err(LoadError::UnknownImport { world, imports: unknown });
    }

    let mut differences = Vec::new();
    for (interface, functions) in &expected.exports {
        let have = found.exports.iter().find(|(name, _)| shape::split(name).0 == interface).map(|(_, have)| have);
        let Some(have) = have else {
            differences.push(format!("interface `{interface}` is not exported"));
            continue;
        };
        for (name, signature) in functions {
            match have.get(name) {
                None => differences.push(format!("`{interface}` lacks `{name}`")),
                Some(have) => differences.extend(
                    shape::difference(signature, have).map(|difference| format!("`{interface}.{name}`, {difference}")),
                ),
            }
        }
        // A function more is harmless, but shows which other version it was made with.
        if !differences.is_empty() {
            let more = have.keys().filter(|name| !functions.contains_key(*name));
            differences.extend(more.map(|name| format!("`{interface}` also has `{name}`")));
        }
    }
    for (interface, have) in found.imports.iter().filter(|(name, _)| ours(name)) {
        let Some(functions) = expected.imports.get(shape::split(interface).0) else { continue };
        let interface = shape::split(interface).0;
        for (name, signature) in have {
            match functions.get(name) {
                None => differences.push(format!("it imports `{interface}.{name}`, which does not exist")),
                Some(expected) => differences.extend(
                    shape::difference(expected, signature)
                        .map(|difference| format!("it imports `{interface}.{name}`, {difference}")),
                ),
            }
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    let more = differences.len().saturating_sub(DIFFERENCES);
    differences.truncate(DIFFERENCES);
    if more > 0 {
        differences.push(format!("and {more} more"));
    }
    Err(LoadError::Mismatch { world, differences })
}

/// What a policy says of itself goes into tags, headers and logs.
fn acceptable(about: About) -> Result<About, LoadError> {
    let name = about.name.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    if name.is_empty() || name.len() > NAME_BYTES || name.first() == Some(&b'-') || !name.iter().all(fits) {
        let shown = crate::call::cut(&about.name, NAME_BYTES);
        return Err(LoadError::BadIdentity { detail: format!("the name {shown:?}") });
    }
    let version = about.version.as_bytes();
    if version.is_empty() || version.len() > VERSION_BYTES || !version.iter().all(u8::is_ascii_graphic) {
        let shown = crate::call::cut(&about.version, VERSION_BYTES);
        return Err(LoadError::BadIdentity { detail: format!("the version {shown:?}") });
    }
    let summary = about.summary.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    Ok(About { summary: crate::call::cut(summary.trim(), SUMMARY_BYTES), ..about })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_is_read_or_found_cut() {
        assert!(matches!(leb(&[0x05, 9]), Leb::Value(5, [9])));
        assert!(matches!(leb(&[0x80, 0x01]), Leb::Value(128, [])));
        assert!(matches!(leb(&[0x80]), Leb::Cut));
        assert!(matches!(leb(&[]), Leb::Cut));
        assert!(matches!(leb(&[0xff, 0xff, 0xff, 0xff, 0x7f]), Leb::TooLong));
        assert!(matches!(leb(&[0x80; 9]), Leb::TooLong));
    }

    #[test]
    fn every_world_parses_and_has_what_its_name_promises() {
        for (world, export, import) in [
            (World::Lease, "warmhold:policy/leases", "warmhold:policy/ledger-view"),
            (World::Manifest, "warmhold:policy/pod-manifest", "warmhold:policy/settings"),
            (World::Replay, "warmhold:policy/replay", "warmhold:policy/transport"),
        ] {
            let outline = shape::expected(world).unwrap();
            assert!(!outline.exports[export].is_empty(), "{world}");
            assert!(!outline.imports[import].is_empty(), "{world}");
        }
    }

    proptest! {
        #[test]
        fn looking_at_any_bytes_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), header in 0..3) {
            let header: &[u8] = match header { 0 => b"", 1 => b"\0asm", _ => b"\0asm\x0d\0\x01\0" };
            bytes.splice(0..0, header.iter().copied());
            let _ = look(&bytes, &Limits::of(World::Lease)).map_err(|error| error.to_string());
        }
    }
}
