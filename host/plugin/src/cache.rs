//! Compiled policies on disk.
//!
//! An entry's name is the SHA-256 of the component's digest, the engine's version and the engine's settings, so that a
//! stale entry is one that nobody asks for. Its own SHA-256 is in a file apart; an entry is read whole, checked, and
//! those very bytes are deserialised. Whatever is wrong with an entry (damaged, cut, another's, unreadable) makes it a
//! miss: the policy is compiled again. Nothing here ever fails a load.
//!
//! Deserialising trusts its bytes as much as this program's own code, which is why the directory is private and entries
//! that others own or can write are not looked at.

use crate::files;
use sha2::{Digest, Sha256};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Entries that are kept; the least recently written go first.
const ENTRIES: usize = 64;
/// Bytes of all entries together: a Python policy compiles to about 60 MB.
const BYTES: u64 = 512 << 20;
/// The largest entry that is read.
const ENTRY_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    engine: [u8; 32],
}

/// Lets `Hash` feed a cryptographic hash; `finish` is never asked for.
struct Feed(Sha256);

impl Hasher for Feed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Cache {
    pub(crate) fn open(dir: &Path, engine: &Engine) -> io::Result<Self> {
        files::private_dir(dir)?;
        files::sweep(dir);
        let mut feed = Feed(Sha256::new());
        // The engine's hash covers its version, the compiler's settings and what the processor can do.
        engine.precompile_compatibility_hash().hash(&mut feed);
        Ok(Self { dir: dir.to_owned(), engine: feed.0.finalize().into() })
    }

    fn entry(&self, digest: &str) -> PathBuf {
        let key = Sha256::new().chain_update(digest.as_bytes()).chain_update(self.engine).finalize();
        self.dir.join(format!("{}.cwasm", hex(&key)))
    }

    /// The compiled component of this digest, if there is a good entry.
    pub(crate) fn get(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let path = self.entry(digest);
        match self.read(engine, &path) {
            Ok(component) => Some(component),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a compiled policy can't be used; it is compiled again");
                None
            }
        }
    }

    fn read(&self, engine: &Engine, path: &Path) -> io::Result<Component> {
        let bytes = files::read_private(path, ENTRY_BYTES)?;
        let expected = files::read_private(&path.with_extension("sha256"), 64)?;
        if hex(&Sha256::digest(&bytes)).as_bytes() != expected {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its bytes don't have the SHA-256 beside it"));
        }
        deserialize(engine, &bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{error:#}")))
    }

    /// Keeps a compiled component. A disk that is full only means that it is compiled again.
    pub(crate) fn put(&self, digest: &str, component: &Component) {
        let path = self.entry(digest);
        if let Err(error) = self.write(&path, component) {
            tracing::warn!(path = %path.display(), %error, "a compiled policy can't be kept");
        }
    }

    fn write(&self, path: &Path, component: &Component) -> io::Result<()> {
        let bytes = component.serialize().map_err(|error| io::Error::other(format!("{error:#}")))?;
        files::replace(path, &bytes)?;
        files::replace(&path.with_extension("sha256"), hex(&Sha256::digest(&bytes)).as_bytes())?;
        self.prune(path)
    }

    /// Removes the oldest entries beyond the bounds, never the one just written.
    fn prune(&self, keep: &Path) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "cwasm") && path != keep {
                let found = entry.metadata()?;
                entries.push((found.modified()?, found.len(), path));
            }
        }
        entries.sort_by_key(|(written, _, _)| std::cmp::Reverse(*written));
        let (mut count, mut bytes) = (1, std::fs::metadata(keep)?.len());
        for (_, len, path) in entries {
            count += 1;
            bytes = bytes.saturating_add(len);
            if count > ENTRIES || bytes > BYTES {
                let _ = std::fs::remove_file(path.with_extension("sha256"));
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(())
    }
}

#[allow(unsafe_code, reason = "compiled code is machine code; see the safety comment")]
fn deserialize(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the bytes were written by `Component::serialize` of this program: they were read from a file of this user
    // that nobody else can write, in a directory of mode 0700, and these very bytes have the SHA-256 that was written
    // with them. The engine checks its own version and settings in them.
    unsafe { Component::deserialize(engine, bytes) }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
