//! Who may ask: the three scope tokens and one token for each machine.
//!
//! `ROOT/control/tokens.json` holds the scope tokens themselves, since their users read them there. Of a machine's
//! token only the SHA-256 is kept, in `ROOT/control/machine-tokens.json`; the command line changes that file while the
//! daemon runs, and the daemon looks at its stamp at every request that shows a machine's token, so that issuing one
//! anew ends the old one at once. No token is ever logged or shown by `Debug`.

mod machines;
mod scopes;

pub use machines::{IssuedToken, MachineTokens};

use crate::machine::{MachineName, MachineNameError};
use scopes::ScopeTokens;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;
use warmhold_ledger::{Caller, Scope};

/// A token's SHA-256.
type Hash = [u8; 32];

/// The tokens can't be read, or mustn't be.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file isn't what it should be. It is never overwritten: somebody may hold the tokens that were in it.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Two scopes have one token, so a reader could write.
    #[error("{}: {first} and {second} have the same token", path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// One scope.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No name for a machine.
    #[error(transparent)]
    Name(#[from] MachineNameError),
}

impl TokensError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "tokens-malformed",
            Self::Duplicate { .. } => "tokens-duplicate",
            Self::Io { .. } => "tokens-unreadable",
            Self::Name(error) => error.code(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self {
            Self::Malformed { .. } | Self::Duplicate { .. } => {
                "put the right file back, or remove it: new tokens are then made, and whoever holds old ones needs them"
            }
            Self::Io { .. } => "the daemon's user must own the folder and be able to write there",
            Self::Name(_) => "choose another name",
        }
    }

    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    fn malformed(path: &Path, why: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), why: why.into() }
    }
}

/// Every token that a daemon knows.
#[derive(Debug)]
pub struct Tokens {
    scopes: ScopeTokens,
    machines: MachineTokens,
}

impl Tokens {
    /// Reads the tokens of a root, makes the scope tokens when there are none, and tightens modes that are too loose.
    ///
    /// # Errors
    /// A file is malformed, two scope tokens are equal, or the system refuses; then nothing was changed.
    pub fn open(root: &Path) -> Result<Self, TokensError> {
        let scopes = ScopeTokens::open(root)?;
        let machines = MachineTokens::of(root);
        machines.check()?;
        Ok(Self { scopes, machines })
    }

    /// Who shows this bearer; None when nobody does.
    ///
    /// # Errors
    /// It is no scope token, and the machines' tokens can't be read now.
    pub fn identify(&self, bearer: &str) -> Result<Option<Caller>, TokensError> {
        let hash = hash(bearer);
        if let Some(scope) = self.scopes.scope_of(&hash) {
            return Ok(Some(Caller { owner: hex(&hash), scope, machine: None }));
        }
        Ok(self.machines.machine_of(&hash)?.map(|machine| Self::machine(&machine)))
    }

    /// The member, for what the daemon does itself.
    #[must_use]
    pub fn member(&self) -> Caller {
        Caller { owner: hex(&self.scopes.member), scope: Scope::Member, machine: None }
    }

    /// A machine, for what the daemon does itself. Its rows belong to its name, not to any one token.
    #[must_use]
    pub fn machine(name: &MachineName) -> Caller {
        Caller {
            owner: hex(&hash(&format!("machine:{name}"))),
            scope: Scope::Machine,
            machine: Some(name.as_str().to_owned()),
        }
    }
}

fn hash(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Equal, in a time that says nothing about where they differ.
fn equal(left: &Hash, right: &Hash) -> bool {
    left.ct_eq(right).into()
}

/// 256 random bits as 64 hex digits.
fn random_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(hex(&bytes))
}

/// Whether a text has the form of a token.
fn is_token(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn stored(root: &Path) -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_slice(&std::fs::read(root.join("control/tokens.json")).unwrap()).unwrap()
    }

    #[test]
    fn scope_tokens_are_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let first = Tokens::open(&root).unwrap();
        let made = stored(&root);
        assert_eq!(made.keys().collect::<Vec<_>>(), ["admin", "member", "query"]);
        assert_eq!(mode(&root.join("control/tokens.json")), 0o600);
        assert_eq!(mode(&root.join("control")), 0o700);
        let again = Tokens::open(&root).unwrap();
        assert_eq!(stored(&root), made);
        for (name, scope) in [("admin", Scope::Admin), ("member", Scope::Member), ("query", Scope::Query)] {
            let token = made[name].as_str().unwrap();
            assert!(is_token(token));
            for tokens in [&first, &again] {
                let caller = tokens.identify(token).unwrap().unwrap();
                assert_eq!((caller.scope, caller.machine), (scope, None));
                assert_eq!(caller.owner, hex(&Sha256::digest(token)));
            }
            assert_eq!(first.identify(token.split_at(63).0).unwrap(), None);
            assert!(!format!("{first:?}").contains(token));
        }
        assert_eq!(first.identify("").unwrap(), None);
        assert_eq!(first.member(), first.identify(made["member"].as_str().unwrap()).unwrap().unwrap());
    }

    #[test]
    fn a_loose_mode_is_tightened() {
        let folder = tempfile::tempdir().unwrap();
        Tokens::open(folder.path()).unwrap();
        let path = folder.path().join("control/tokens.json");
        let before = std::fs::read(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        Tokens::open(folder.path()).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_bad_file_stops_the_start_and_stays_as_it_is() {
        let (a, b, c) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
        for (text, code) in [
            (String::new(), "tokens-malformed"),
            ("[]".into(), "tokens-malformed"),
            ("{}".into(), "tokens-malformed"),
            (format!(r#"{{"admin":"{a}","member":"{b}"}}"#), "tokens-malformed"),
            (format!(r#"{{"admin":"{a}","member":"{b}","query":3}}"#), "tokens-malformed"),
            (format!(r#"{{"admin":"{a}","member":"{b}","query":"c"}}"#), "tokens-malformed"),
            (format!(r#"{{"admin":"{a}","member":"{b}","query":"{c}","x":1}}"#), "tokens-malformed"),
            (format!(r#"{{"admin":"{a}","admin":"{b}","member":"{b}","query":"{c}"}}"#), "tokens-malformed"),
            (format!(r#"{{"admin":"{a}","member":"{b}","query":"{b}"}}"#), "tokens-duplicate"),
            (format!(r#"{{"admin":"{a}","member":"{b}","query":"{}"}}"#, a.to_uppercase()), "tokens-duplicate"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("control")).unwrap();
            let path = folder.path().join("control/tokens.json");
            std::fs::write(&path, &text).unwrap();
            let error = Tokens::open(folder.path()).unwrap_err();
            assert_eq!(error.code(), code, "{text}");
            assert!(error.to_string().contains("tokens.json"), "{error}");
            assert!(![&a, &b, &c].iter().any(|token| error.to_string().contains(*token)), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn two_starts_at_once_agree() {
        let folder = tempfile::tempdir().unwrap();
        let members: Vec<Caller> = std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..8).map(|_| scope.spawn(|| Tokens::open(folder.path()).unwrap().member())).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(members.iter().all(|member| *member == members[0]));
    }

    #[test]
    fn issuing_again_ends_the_old_token_at_once_and_ownership_stays() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Tokens::open(folder.path()).unwrap();
        let command = MachineTokens::of(folder.path());
        let m1 = MachineName::parse("m1").unwrap();
        let m2 = MachineName::parse("m2").unwrap();
        let other = command.issue(&m2).unwrap();
        let mut last: Option<String> = None;
        for _ in 0..20 {
            let token = command.issue(&m1).unwrap();
            if let Some(old) = last.replace(token.clone()) {
                assert_eq!(daemon.identify(&old).unwrap(), None);
            }
            let caller = daemon.identify(&token).unwrap().unwrap();
            assert_eq!((caller.scope, caller.machine.as_deref()), (Scope::Machine, Some("m1")));
            assert_eq!(caller, Tokens::machine(&m1));
        }
        assert_eq!(daemon.identify(&other).unwrap().unwrap().machine.as_deref(), Some("m2"));
        assert_eq!(
            command.list().unwrap().iter().map(|t| t.machine.as_str().to_owned()).collect::<Vec<_>>(),
            ["m1", "m2"]
        );
        assert!(command.revoke(&m1).unwrap());
        assert!(!command.revoke(&m1).unwrap());
        assert_eq!(daemon.identify(&last.unwrap()).unwrap(), None);
        assert!(daemon.identify(&other).unwrap().is_some());
        let file = folder.path().join("control/machine-tokens.json");
        assert_eq!(mode(&file), 0o600);
        assert!(!std::fs::read_to_string(&file).unwrap().contains(&other), "only hashes are stored");
    }

    #[test]
    fn machines_are_shut_out_while_their_file_is_broken_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Tokens::open(folder.path()).unwrap();
        let token = MachineTokens::of(folder.path()).issue(&MachineName::parse("m1").unwrap()).unwrap();
        let path = folder.path().join("control/machine-tokens.json");
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, "{").unwrap();
        assert_eq!(daemon.identify(&token).unwrap_err().code(), "tokens-malformed");
        assert!(daemon.identify(stored(folder.path())["query"].as_str().unwrap()).unwrap().is_some());
        assert_eq!(Tokens::open(folder.path()).unwrap_err().code(), "tokens-malformed");
        assert!(MachineTokens::of(folder.path()).issue(&MachineName::parse("m1").unwrap()).is_err());
        std::fs::write(&path, good).unwrap();
        assert!(daemon.identify(&token).unwrap().is_some());
    }

    #[test]
    fn many_commands_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Tokens::open(folder.path()).unwrap();
        let issued: Vec<(String, String)> = std::thread::scope(|scope| {
            let commands: Vec<_> = (0..8)
                .map(|n| {
                    let root = folder.path();
                    scope.spawn(move || {
                        let name = MachineName::parse(&format!("m{n}")).unwrap();
                        (name.to_string(), MachineTokens::of(root).issue(&name).unwrap())
                    })
                })
                .collect();
            commands.into_iter().map(|command| command.join().unwrap()).collect()
        });
        for (name, token) in issued {
            assert_eq!(daemon.identify(&token).unwrap().unwrap().machine, Some(name));
        }
    }
}
