//! `tokens.json`: admin, member and query.

use super::{Hash, TokensError, equal, hash, is_token, random_token};
use crate::files::{self, Lock, Replace};
use serde::{Deserialize, Serialize};
use std::path::Path;
use warmhold_ledger::Scope;

/// The file, as its users read it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    admin: String,
    member: String,
    query: String,
}

/// The hashes of the three tokens; the tokens themselves aren't kept in memory.
pub(super) struct ScopeTokens {
    admin: Hash,
    pub(super) member: Hash,
    query: Hash,
}

impl std::fmt::Debug for ScopeTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScopeTokens")
    }
}

impl ScopeTokens {
    pub(super) fn open(root: &Path) -> Result<Self, TokensError> {
        let folder = root.join("control");
        files::private_directory(&folder).map_err(TokensError::io(&folder))?;
        let path = folder.join("tokens.json");
        // Under a lock: two daemons that start on an empty root must end with the same tokens.
        let _lock = Lock::of(&path).map_err(TokensError::io(&path))?;
        let stored = match files::read(&path).map_err(TokensError::io(&path))? {
            Some(content) => {
                let stored = parse(&path, &content.bytes)?;
                if content.mode & 0o077 != 0 {
                    files::tighten(&path).map_err(TokensError::io(&path))?;
                }
                stored
            }
            None => create(&path).map_err(TokensError::io(&path))?,
        };
        Ok(Self { admin: hash(&stored.admin), member: hash(&stored.member), query: hash(&stored.query) })
    }

    /// Compares with all three, whichever it is.
    pub(super) fn scope_of(&self, shown: &Hash) -> Option<Scope> {
        let admin = equal(&self.admin, shown);
        let member = equal(&self.member, shown);
        let query = equal(&self.query, shown);
        match (admin, member, query) {
            (true, ..) => Some(Scope::Admin),
            (_, true, _) => Some(Scope::Member),
            (.., true) => Some(Scope::Query),
            _ => None,
        }
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Stored, TokensError> {
    // The parser's own message can quote what it read, which may be a token.
    let stored: Stored = serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        TokensError::malformed(
            path,
            format!("not an object of the three texts admin, member and query (line {line}, column {column})"),
        )
    })?;
    let named = [("admin", &stored.admin), ("member", &stored.member), ("query", &stored.query)];
    for (name, token) in named {
        if !is_token(token) {
            return Err(TokensError::malformed(path, format!("{name} isn't 64 hex digits")));
        }
    }
    for [(first, one), (second, other)] in [[named[0], named[1]], [named[0], named[2]], [named[1], named[2]]] {
        if one.eq_ignore_ascii_case(other) {
            return Err(TokensError::Duplicate { path: path.to_owned(), first, second });
        }
    }
    Ok(stored)
}

fn create(path: &Path) -> std::io::Result<Stored> {
    let stored = Stored { admin: random_token()?, member: random_token()?, query: random_token()? };
    let mut text = serde_json::to_vec_pretty(&stored)?;
    text.push(b'\n');
    files::write(path, &text, Replace::Nothing)?;
    Ok(stored)
}
