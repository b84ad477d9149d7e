//! `machine-tokens.json`: who may speak for which machine.

use super::{Hash, TokensError, equal, hash, hex, is_token, random_token};
use crate::files::{self, Content, Lock, Replace, Stamp};
use crate::machine::MachineName;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    machines: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    sha256: String,
    issued_at: u64,
}

/// That a machine has a token, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuedToken {
    /// The machine.
    pub machine: MachineName,
    /// When its token was issued, milliseconds since the Unix epoch.
    pub issued_at: u64,
}

/// The hashes as they were at one stamp of the file.
struct Loaded {
    hashes: Vec<(Hash, MachineName)>,
    /// Held open, so that the stamp can't come back for other content.
    content: Option<Content>,
}

impl Loaded {
    fn stamp(&self) -> Option<Stamp> {
        self.content.as_ref().map(|content| content.stamp)
    }
}

/// The machines' tokens of one root. The daemon asks it, commands change it; any number of processes may do so at once.
pub struct MachineTokens {
    path: PathBuf,
    loaded: RwLock<Option<Arc<Loaded>>>,
}

impl std::fmt::Debug for MachineTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineTokens").field("path", &self.path).finish_non_exhaustive()
    }
}

impl MachineTokens {
    /// Of this root; nothing is read or made yet.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self { path: root.join("control").join("machine-tokens.json"), loaded: RwLock::new(None) }
    }

    /// A new token for a machine; the one it had before is worthless at once. This is the only time that it is shown.
    ///
    /// # Errors
    /// The file is malformed or can't be written; then the old token still counts.
    pub fn issue(&self, machine: &MachineName) -> Result<String, TokensError> {
        let token = random_token().map_err(TokensError::io(&self.path))?;
        let entry = Entry { sha256: hex(&hash(&token)), issued_at: now() };
        self.change(|stored| stored.machines.insert(machine.as_str().to_owned(), entry))?;
        Ok(token)
    }

    /// Takes a machine's token away; says whether it had one.
    ///
    /// # Errors
    /// The file is malformed or can't be written; then the token still counts.
    pub fn revoke(&self, machine: &MachineName) -> Result<bool, TokensError> {
        Ok(self.change(|stored| stored.machines.remove(machine.as_str()))?.is_some())
    }

    /// Every machine that has a token, by name.
    ///
    /// # Errors
    /// The file is malformed or can't be read.
    pub fn list(&self) -> Result<Vec<IssuedToken>, TokensError> {
        self.stored()?
            .0
            .machines
            .into_iter()
            .map(|(name, entry)| Ok(IssuedToken { machine: MachineName::parse(&name)?, issued_at: entry.issued_at }))
            .collect()
    }

    /// Reads the file once, so that a malformed one is known at the start, and tightens its mode.
    pub(super) fn check(&self) -> Result<(), TokensError> {
        let loose = self.load()?.content.as_ref().is_some_and(|content| content.mode & 0o077 != 0);
        if loose {
            files::tighten(&self.path).map_err(TokensError::io(&self.path))?;
        }
        Ok(())
    }

    /// The machine whose token has this hash, as the file stands now.
    pub(super) fn machine_of(&self, shown: &Hash) -> Result<Option<MachineName>, TokensError> {
        let stamp = Stamp::at(&self.path).map_err(TokensError::io(&self.path))?;
        let known = self.loaded.read().clone().filter(|loaded| loaded.stamp() == stamp);
        let loaded = match known {
            Some(loaded) => loaded,
            None => self.load()?,
        };
        // All of them are compared, whichever matches.
        let mut found = None;
        for (hash, machine) in &loaded.hashes {
            if equal(hash, shown) {
                found = Some(machine);
            }
        }
        Ok(found.cloned())
    }

    fn load(&self) -> Result<Arc<Loaded>, TokensError> {
        let (stored, content) = self.stored()?;
        let mut hashes = Vec::with_capacity(stored.machines.len());
        for (name, entry) in &stored.machines {
            let name = MachineName::parse(name)?;
            hashes.push((self.decode(&entry.sha256)?, name));
        }
        let loaded = Arc::new(Loaded { hashes, content });
        *self.loaded.write() = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    fn stored(&self) -> Result<(Stored, Option<Content>), TokensError> {
        let Some(content) = files::read(&self.path).map_err(TokensError::io(&self.path))? else {
            return Ok((Stored::default(), None));
        };
        let stored: Stored = serde_json::from_slice(&content.bytes)
            .map_err(|error| TokensError::malformed(&self.path, error.to_string()))?;
        for (name, entry) in &stored.machines {
            MachineName::parse(name).map_err(|error| TokensError::malformed(&self.path, error.to_string()))?;
            self.decode(&entry.sha256)?;
        }
        Ok((stored, Some(content)))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Stored) -> T) -> Result<T, TokensError> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        files::private_directory(folder).map_err(TokensError::io(folder))?;
        let _lock = Lock::of(&self.path).map_err(TokensError::io(&self.path))?;
        let (mut stored, _) = self.stored()?;
        let changed = change(&mut stored);
        let mut text = serde_json::to_vec_pretty(&stored)
            .map_err(|error| TokensError::malformed(&self.path, error.to_string()))?;
        text.push(b'\n');
        files::write(&self.path, &text, Replace::Existing).map_err(TokensError::io(&self.path))?;
        Ok(changed)
    }

    fn decode(&self, text: &str) -> Result<Hash, TokensError> {
        let malformed = || TokensError::malformed(&self.path, "a sha256 isn't 64 hex digits");
        if !is_token(text) {
            return Err(malformed());
        }
        let mut hash = Hash::default();
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| malformed())?;
        }
        Ok(hash)
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}
