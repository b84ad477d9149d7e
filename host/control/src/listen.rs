//! Where the daemon may listen.
//!
//! Tokens travel in the clear, so only addresses that don't leave the machine or its private overlay network are
//! allowed: 127.0.0.1, ::1 and 100.64.0.0/10. They must be written in their one canonical form: a name could resolve
//! to anything, and some programs read `0127.0.0.1` as another address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The port when none is given.
pub const DEFAULT_PORT: u16 = 31413;

/// An address that may be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenAddress(SocketAddr);

/// The address may not be listened on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Not an address and a port.
    #[error("{text:?} isn't ADDRESS:PORT; write for example 127.0.0.1:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}")]
    Malformed {
        /// What was given.
        text: String,
    },
    /// An address, but one that others could reach, or not in its canonical form.
    #[error(
        "{host:?} may not be listened on: tokens would travel in the clear. Allowed are 127.0.0.1, ::1 and 100.64.0.0/10, written plainly"
    )]
    Refused {
        /// The address as it was given.
        host: String,
    },
}

impl ListenError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "invalid-listen",
            Self::Refused { .. } => "listen-refused",
        }
    }
}

impl ListenAddress {
    /// 127.0.0.1 with the default port.
    pub const DEFAULT: Self = Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT));

    /// The address, to be bound.
    #[must_use]
    pub fn socket(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let malformed = || ListenError::Malformed { text: text.to_owned() };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(malformed)?,
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
                if host.contains(':') {
                    return Err(malformed());
                }
                (host, port)
            }
        };
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        let port: u16 = port.parse().map_err(|_| malformed())?;
        let address = allowed(host).ok_or_else(|| ListenError::Refused { host: host.to_owned() })?;
        if text.starts_with('[') != address.is_ipv6() {
            return Err(malformed());
        }
        Ok(Self(SocketAddr::new(address, port)))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The address that a text stands for, if it may be listened on.
fn allowed(host: &str) -> Option<IpAddr> {
    if host == "::1" {
        return Some(IpAddr::V6(Ipv6Addr::LOCALHOST));
    }
    let address: Ipv4Addr = host.parse().ok()?;
    let [first, second, ..] = address.octets();
    let inside = address == Ipv4Addr::LOCALHOST || (first == 100 && second & 0xc0 == 64);
    // The round trip refuses whatever spelling the parser may ever learn.
    (inside && address.to_string() == host).then_some(IpAddr::V4(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn allowed_addresses() {
        for good in ["127.0.0.1:31413", "[::1]:1", "100.64.0.0:80", "100.127.255.255:65535", "127.0.0.1:0"] {
            assert_eq!(good.parse::<ListenAddress>().unwrap().to_string(), good);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for (bad, code) in [
            ("0.0.0.0:31413", "listen-refused"),
            ("localhost:31413", "listen-refused"),
            ("127.0.0.2:31413", "listen-refused"),
            ("127.0.0.01:31413", "listen-refused"),
            ("0127.0.0.1:31413", "listen-refused"),
            ("127.1:31413", "listen-refused"),
            ("100.63.255.255:1", "listen-refused"),
            ("100.128.0.0:1", "listen-refused"),
            ("100.064.0.1:1", "listen-refused"),
            ("192.168.1.1:1", "listen-refused"),
            ("[::]:1", "listen-refused"),
            ("[0:0:0:0:0:0:0:1]:1", "listen-refused"),
            ("[::ffff:127.0.0.1]:1", "listen-refused"),
            (" 127.0.0.1:1", "listen-refused"),
            (":1", "listen-refused"),
            ("::1:1", "invalid-listen"),
            ("[127.0.0.1]:1", "invalid-listen"),
            ("127.0.0.1", "invalid-listen"),
            ("127.0.0.1:", "invalid-listen"),
            ("127.0.0.1:+1", "invalid-listen"),
            ("127.0.0.1:65536", "invalid-listen"),
            ("127.0.0.1:1 ", "invalid-listen"),
            ("", "invalid-listen"),
        ] {
            assert_eq!(bad.parse::<ListenAddress>().map_err(|error| error.code()), Err(code), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_ipv4_address_is_judged_by_its_network(octets: [u8; 4], port: u16) {
            let address = Ipv4Addr::from(octets);
            let inside = octets == [127, 0, 0, 1] || (octets[0] == 100 && (64..128).contains(&octets[1]));
            prop_assert_eq!(format!("{address}:{port}").parse::<ListenAddress>().is_ok(), inside);
        }

        #[test]
        fn no_text_does_harm(text in ".{0,40}") {
            if let Ok(address) = text.parse::<ListenAddress>() {
                prop_assert!(address.socket().ip().is_loopback() || address.to_string().starts_with("100."));
            }
        }
    }
}
