//! Changes of the document, each raising the generation by one.
//!
//! Ours exclude each other by a lock beside the file. A writer that doesn't know the lock is noticed by the file's
//! stamp, taken again right before the replacement; what is absent is only ever claimed by the kernel's own "create, or
//! fail".

use super::document::{Document, MAX_GENERATION, Reading, State, read_kept};
use crate::files::{self, Content, Lock, Replace, Stamp};
use crate::machine::{MachineName, is_holder};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a change waits for another one of ours, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The document stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Something is there that isn't understood, so it may be anybody's.
    #[error("{}: {why}", path.display())]
    Unmeasured {
        /// The document.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is nothing to change.
    #[error("{}: there is no primary document", path.display())]
    Absent {
        /// The document.
        path: PathBuf,
    },
    /// It is held already, so it can't be claimed.
    #[error("{holder} holds the primary document (generation {generation})")]
    Held {
        /// Who.
        holder: String,
        /// Since which generation.
        generation: u64,
    },
    /// Only its holder (or, to take it back, who held before) may do that.
    #[error("{machine} may not change the primary document: {holder} holds it (generation {generation})")]
    NotHolder {
        /// Who tried.
        machine: String,
        /// Who may.
        holder: String,
        /// Since which generation.
        generation: u64,
    },
    /// Handing off again, or claiming, while a hand-off is under way.
    #[error("the primary document is being handed off to {holder}")]
    HandingOff {
        /// To whom.
        holder: String,
    },
    /// There is no hand-off to accept or to take back.
    #[error("the primary document isn't being handed off; {holder} holds it")]
    NotHandingOff {
        /// Who holds it.
        holder: String,
    },
    /// The hand-off doesn't say from whom, so nobody can take it back.
    #[error("the hand-off doesn't name who held before, so it can't be taken back")]
    NoWayBack,
    /// A machine can't hand off to itself.
    #[error("{holder} holds it already; hand off to another machine")]
    ToItself {
        /// The machine.
        holder: String,
    },
    /// No name for a holder.
    #[error("{name:?} can't hold the primary document: a-z, 0-9 and '-', at most 32, not '-' at first")]
    Name {
        /// The name.
        name: String,
    },
    /// The generation can't rise any more.
    #[error("the primary document's generation is as high as it can be")]
    Exhausted,
    /// Another process wrote at the same moment.
    #[error("{}: another process changed it at the same moment; nothing was written", path.display())]
    Raced {
        /// The document.
        path: PathBuf,
    },
    /// Another process holds its lock, and doesn't let go.
    #[error("{}: another process is changing it and doesn't end", path.display())]
    Busy {
        /// The document.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ChangeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unmeasured { .. } => "primary-unmeasured",
            Self::Absent { .. } => "primary-absent",
            Self::Held { .. } => "primary-held",
            Self::NotHolder { .. } => "not-holder",
            Self::HandingOff { .. } => "handing-off",
            Self::NotHandingOff { .. } => "not-handing-off",
            Self::NoWayBack => "no-way-back",
            Self::ToItself { .. } => "hand-off-to-itself",
            Self::Name { .. } => "invalid-holder",
            Self::Exhausted => "generation-exhausted",
            Self::Raced { .. } => "primary-raced",
            Self::Busy { .. } => "primary-busy",
            Self::Io { .. } => "primary-unwritable",
        }
    }
}

/// What a machine may do to the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Takes a document that is absent: this machine holds it, generation 1.
    Claim,
    /// Names another machine as holder, from this one, which held it.
    HandOff {
        /// The other one.
        to: &'a str,
    },
    /// Ends a hand-off to this machine: it holds.
    Accept,
    /// Ends a hand-off the other way: who held before holds again. Either side may say so.
    Revert,
}

/// A change that was made, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// What was there; None when it was absent.
    pub before: Option<Document>,
    /// What is there now. Its generation is higher by one.
    pub after: Document,
}

impl Change<'_> {
    /// Makes the change.
    ///
    /// # Errors
    /// See [`ChangeError`]; nothing was written.
    pub fn make(self, path: &Path, machine: &MachineName) -> Result<Changed, ChangeError> {
        self.make_within(path, machine, PATIENCE)
    }

    fn make_within(self, path: &Path, machine: &MachineName, wait: Duration) -> Result<Changed, ChangeError> {
        self.name_fits(machine)?;
        // Behind a link lies the document that everybody reads: a new file in the link's place would part them.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let _lock = Lock::within(path, wait).map_err(|source| match source.kind() {
            io::ErrorKind::TimedOut => ChangeError::Busy { path: path.to_owned() },
            _ => io_error(path)(source),
        })?;
        let (reading, content) = read_kept(path);
        let changed = self.decide(path, machine, reading)?;
        match content {
            Some(content) => replace(path, &changed.after, &content)?,
            None => write(path, &changed.after, Replace::Nothing)?,
        }
        Ok(changed)
    }

    /// What [`Change::make`] would come to now; writes nothing, and takes no lock.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn rehearse(self, path: &Path, machine: &MachineName) -> Result<Changed, ChangeError> {
        self.name_fits(machine)?;
        self.decide(path, machine, read_kept(path).0)
    }

    /// Whoever is to hold must have a holder's name.
    fn name_fits(self, machine: &MachineName) -> Result<(), ChangeError> {
        match self {
            Self::Claim if !machine.can_hold_primary() => Err(ChangeError::Name { name: machine.as_str().to_owned() }),
            Self::HandOff { to } if !is_holder(to) => Err(ChangeError::Name { name: to.to_owned() }),
            _ => Ok(()),
        }
    }

    fn decide(self, path: &Path, machine: &MachineName, reading: Reading) -> Result<Changed, ChangeError> {
        let now = match (reading, self) {
            (Reading::Unmeasured(why), _) => return Err(ChangeError::Unmeasured { path: path.to_owned(), why }),
            (Reading::Absent, Self::Claim) => {
                return Ok(Changed { before: None, after: next(machine.as_str(), 0, State::Held)? });
            }
            (Reading::Absent, _) => return Err(ChangeError::Absent { path: path.to_owned() }),
            (Reading::Present(Document { holder, generation, .. }), Self::Claim) => {
                return Err(ChangeError::Held { holder, generation });
            }
            (Reading::Present(now), _) => now,
        };
        let own = machine.as_str();
        let holds = now.holder == own;
        let generation = now.generation;
        let after = match (self, &now.state) {
            (Self::Claim, _) => Err(ChangeError::Held { holder: now.holder.clone(), generation }),
            (Self::HandOff { .. } | Self::Accept, _) if !holds => Err(not_holder(machine, &now)),
            (Self::HandOff { .. }, State::HandingOff { .. }) => {
                Err(ChangeError::HandingOff { holder: now.holder.clone() })
            }
            (Self::HandOff { to }, State::Held) if to == own => Err(ChangeError::ToItself { holder: to.to_owned() }),
            (Self::HandOff { to }, State::Held) => {
                next(to, generation, State::HandingOff { from: Some(own.to_owned()) })
            }
            (Self::Accept | Self::Revert, State::Held) => {
                Err(ChangeError::NotHandingOff { holder: now.holder.clone() })
            }
            (Self::Accept, State::HandingOff { .. }) => next(&now.holder, generation, State::Held),
            (Self::Revert, State::HandingOff { from: None }) => Err(ChangeError::NoWayBack),
            (Self::Revert, State::HandingOff { from: Some(from) }) if from == own || holds => {
                next(from, generation, State::Held)
            }
            (Self::Revert, State::HandingOff { .. }) => Err(not_holder(machine, &now)),
        }?;
        Ok(Changed { before: Some(now), after })
    }
}

fn replace(path: &Path, document: &Document, read: &Content) -> Result<(), ChangeError> {
    if Stamp::at(path).map_err(io_error(path))? != Some(read.stamp) {
        return Err(ChangeError::Raced { path: path.to_owned() });
    }
    write(path, document, Replace::Existing)
}

fn write(path: &Path, document: &Document, how: Replace) -> Result<(), ChangeError> {
    let mut text = serde_json::to_vec(document).map_err(|error| io_error(path)(error.into()))?;
    text.push(b'\n');
    files::write(path, &text, how).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            ChangeError::Raced { path: path.to_owned() }
        } else {
            io_error(path)(error)
        }
    })
}

fn next(holder: &str, generation: u64, state: State) -> Result<Document, ChangeError> {
    if generation >= MAX_GENERATION {
        return Err(ChangeError::Exhausted);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let renewed_at = u64::try_from(now).unwrap_or_default().into();
    Ok(Document { holder: holder.to_owned(), generation: generation + 1, state, renewed_at })
}

fn not_holder(machine: &MachineName, now: &Document) -> ChangeError {
    ChangeError::NotHolder {
        machine: machine.as_str().to_owned(),
        holder: now.holder.clone(),
        generation: now.generation,
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ChangeError + '_ {
    move |source| ChangeError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::primary::read;

    fn claim(path: &Path, machine: &MachineName) -> Result<Document, ChangeError> {
        both(Change::Claim, path, machine)
    }

    fn hand_off(path: &Path, machine: &MachineName, to: &str) -> Result<Document, ChangeError> {
        both(Change::HandOff { to }, path, machine)
    }

    fn accept(path: &Path, machine: &MachineName) -> Result<Document, ChangeError> {
        both(Change::Accept, path, machine)
    }

    fn revert(path: &Path, machine: &MachineName) -> Result<Document, ChangeError> {
        both(Change::Revert, path, machine)
    }

    /// Rehearsed, then made: the two agree, and the rehearsal leaves everything as it was.
    fn both(change: Change<'_>, path: &Path, machine: &MachineName) -> Result<Document, ChangeError> {
        let files = || {
            let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
            let mut files: Vec<_> =
                entries.map(|entry| entry.unwrap().path()).map(|path| (std::fs::read(&path).unwrap(), path)).collect();
            files.sort();
            files
        };
        let before = files();
        let rehearsed = change.rehearse(path, machine);
        assert_eq!(files(), before);
        let made = change.make(path, machine);
        let told = |result: &Result<Changed, ChangeError>| match result {
            Ok(changed) => (
                changed.before.clone(),
                changed.after.holder.clone(),
                changed.after.generation.to_string(),
                Some(changed.after.state.clone()),
            ),
            Err(error) => (None, error.code().to_owned(), error.to_string(), None),
        };
        assert_eq!(told(&rehearsed), told(&made));
        made.map(|changed| {
            assert_eq!(changed.after.generation, changed.before.map_or(0, |before| before.generation) + 1);
            changed.after
        })
    }

    fn name(name: &str) -> MachineName {
        MachineName::parse(name).unwrap()
    }

    #[test]
    fn the_whole_way_there_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let (m1, m2, m3) = (name("m1"), name("m2"), name("m3"));
        let code = |result: Result<Document, ChangeError>| result.map_err(|error| error.code()).unwrap_err();
        assert_eq!(code(hand_off(&path, &m1, "m2")), "primary-absent");
        assert_eq!(code(accept(&path, &m1)), "primary-absent");
        assert_eq!(claim(&path, &m1).unwrap().generation, 1);
        assert_eq!(code(claim(&path, &m1)), "primary-held");
        assert_eq!(code(claim(&path, &m2)), "primary-held");
        assert_eq!(code(hand_off(&path, &m2, "m3")), "not-holder");
        assert_eq!(code(hand_off(&path, &m1, "m1")), "hand-off-to-itself");
        assert_eq!(code(hand_off(&path, &m1, "M2")), "invalid-holder");
        assert_eq!(code(accept(&path, &m1)), "not-handing-off");
        assert_eq!(code(revert(&path, &m1)), "not-handing-off");
        let handed = hand_off(&path, &m1, "m2").unwrap();
        assert_eq!(
            (handed.holder.as_str(), handed.generation, &handed.state),
            ("m2", 2, &State::HandingOff { from: Some("m1".into()) })
        );
        assert_eq!(code(hand_off(&path, &m2, "m3")), "handing-off");
        assert_eq!(code(hand_off(&path, &m1, "m3")), "not-holder");
        assert_eq!(code(accept(&path, &m1)), "not-holder");
        assert_eq!(code(revert(&path, &m3)), "not-holder");
        let back = revert(&path, &m1).unwrap();
        assert_eq!((back.holder.as_str(), back.generation, &back.state), ("m1", 3, &State::Held));
        hand_off(&path, &m1, "m2").unwrap();
        let accepted = accept(&path, &m2).unwrap();
        assert_eq!((accepted.holder.as_str(), accepted.generation, &accepted.state), ("m2", 5, &State::Held));
        assert_eq!(read(&path), Reading::Present(accepted));
    }

    #[test]
    fn what_is_not_understood_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let m1 = name("m1");
        for text in ["", "{}", r#"{"holder":"m1","generation":1,"state":"held","renewedAt":1,"expiresAt":2}"#] {
            std::fs::write(&path, text).unwrap();
            for result in [claim(&path, &m1), hand_off(&path, &m1, "m2"), accept(&path, &m1), revert(&path, &m1)] {
                assert_eq!(result.unwrap_err().code(), "primary-unmeasured");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_generation_never_wraps_and_a_hand_off_from_nobody_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let text = format!(r#"{{"holder":"m1","generation":{MAX_GENERATION},"state":"held","renewedAt":1}}"#);
        std::fs::write(&path, text).unwrap();
        assert_eq!(hand_off(&path, &name("m1"), "m2").unwrap_err().code(), "generation-exhausted");
        std::fs::write(&path, r#"{"holder":"m1","generation":4,"state":"handing-off","renewedAt":1}"#).unwrap();
        assert_eq!(revert(&path, &name("m1")).unwrap_err().code(), "no-way-back");
        assert_eq!(accept(&path, &name("m1")).unwrap().generation, 5);
    }

    #[test]
    fn one_of_many_claims_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let won: usize = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..8)
                .map(|n| {
                    let path = &path;
                    scope.spawn(move || usize::from(Change::Claim.make(path, &name(&format!("m{n}"))).is_ok()))
                })
                .collect();
            claims.into_iter().map(|claim| claim.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }

    #[test]
    fn a_writer_that_does_not_know_the_lock_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        claim(&path, &name("m1")).unwrap();
        let foreign = r#"{"holder":"m9","generation":9,"state":"held","renewedAt":1}"#;
        let (_, content) = read_kept(&path);
        std::fs::write(&path, foreign).unwrap();
        let result = replace(&path, &next("m2", 1, State::Held).unwrap(), &content.unwrap());
        assert_eq!(result.unwrap_err().code(), "primary-raced");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
    }

    #[test]
    fn a_link_stays_one_and_its_target_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("p.json"), folder.path().join("link"));
        claim(&path, &name("m1")).unwrap();
        std::os::unix::fs::symlink("p.json", &link).unwrap();
        assert_eq!(hand_off(&link, &name("m1"), "m2").unwrap().generation, 2);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&path), read(&link));
        assert!(!folder.path().join("link.lock").exists(), "one document has one lock");
        // A link to nothing isn't nothing: whoever made it meant something by it.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Change::Claim.make(&link, &name("m1")).unwrap_err().code(), "primary-raced");
    }

    #[test]
    fn who_holds_the_lock_and_does_not_end_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let held = Lock::of(&path).unwrap();
        let claim = || Change::Claim.make_within(&path, &name("m1"), Duration::from_millis(20));
        assert_eq!(claim().unwrap_err().code(), "primary-busy");
        assert_eq!(read(&path), Reading::Absent);
        drop(held);
        assert_eq!(claim().unwrap().after.generation, 1);
    }
}
