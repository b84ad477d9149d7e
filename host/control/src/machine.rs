//! Names of machines.

use serde::Serialize;
use std::fmt;

/// The most characters that the holder of the primary document may have.
const HOLDER_CHARACTERS: usize = 32;

/// A machine's name: a letter or digit, then letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct MachineName(String);

/// The text isn't a machine's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} can't name a machine: begin with a letter or digit, go on with letters, digits, '.', '_' and '-'")]
pub struct MachineNameError {
    /// What was given.
    pub name: String,
}

impl MachineNameError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "invalid-machine"
    }
}

impl MachineName {
    /// The name, if it is one.
    ///
    /// # Errors
    /// It has other characters, or none.
    pub fn parse(name: &str) -> Result<Self, MachineNameError> {
        let mut bytes = name.bytes();
        let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if first && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) {
            Ok(Self(name.to_owned()))
        } else {
            Err(MachineNameError { name: name.to_owned() })
        }
    }

    /// A name made from a host's name, such that it can also hold the primary document: lower case, what doesn't fit
    /// becomes `-`, at most 32 characters. The result must be kept: ownership of rows hashes it.
    #[must_use]
    pub fn fit(host: &str) -> Self {
        let fitted: String = host
            .chars()
            .map(|c| c.to_ascii_lowercase())
            .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
            .skip_while(|c| *c == '-')
            .take(HOLDER_CHARACTERS)
            .collect();
        let fitted = fitted.trim_end_matches('-');
        Self(if fitted.is_empty() { "machine".to_owned() } else { fitted.to_owned() })
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this machine could ever hold the primary document.
    #[must_use]
    pub fn can_hold_primary(&self) -> bool {
        is_holder(&self.0)
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text can stand as holder in the primary document: `[a-z0-9][a-z0-9-]{0,31}`.
#[must_use]
pub fn is_holder(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= HOLDER_CHARACTERS
        && bytes.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names() {
        for good in ["m", "M1", "0", "host.example", "a_b-c.d", &"x".repeat(300)] {
            assert!(MachineName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "-a", ".a", "_a", "a b", "a/b", "ü", "aü", "a\n", "a:b", "\u{ff11}"] {
            assert!(MachineName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(MachineName::parse("m1").unwrap().can_hold_primary());
        assert!(!MachineName::parse("M1").unwrap().can_hold_primary());
        assert!(!MachineName::parse("a.b").unwrap().can_hold_primary());
        assert!(is_holder(&"a".repeat(32)) && !is_holder(&"a".repeat(33)) && !is_holder("") && !is_holder("-a"));
    }

    #[test]
    fn host_names_are_made_fit() {
        assert_eq!(MachineName::fit("Build-07.Example.COM").as_str(), "build-07-example-com");
        assert_eq!(MachineName::fit("").as_str(), "machine");
        assert_eq!(MachineName::fit("...").as_str(), "machine");
        assert_eq!(MachineName::fit("-ü-x").as_str(), "x");
    }

    proptest! {
        #[test]
        fn every_fitted_name_is_a_name_and_may_hold_the_primary(host in ".{0,80}") {
            let name = MachineName::fit(&host);
            prop_assert!(name.can_hold_primary(), "{name}");
            prop_assert_eq!(MachineName::parse(name.as_str()).unwrap(), name);
        }
    }
}
