//! `[control]`: another control plane, with the credentials for it.

use super::walk::{Table, Walk};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use warmhold_control::MachineName;

/// Another control plane that this daemon works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// `url`: scheme, host and port, nothing else.
    pub url: String,
    /// `member-token-file`: an absolute path, mode 0600 or stricter.
    pub member_token_file: PathBuf,
    /// `machine-token-files`: by machine, each an absolute path, mode 0600 or stricter.
    pub machine_token_files: BTreeMap<String, PathBuf>,
}

pub(super) fn read(table: Table<'_, '_>) -> Option<Control> {
    if !table.is_present() {
        return None;
    }
    let url = table.text("url", "a URL such as \"http://100.64.0.7:31413\"");
    let member = table.text("member-token-file", "the absolute path of a file");
    for (name, missing) in [("url", url.is_none()), ("member-token-file", member.is_none())] {
        if missing && !table.has(name) {
            let help = "write it, or leave [control] out to use this daemon's own control plane";
            table.walk.fault(&table.key(name), None, "is missing", help);
        }
    }
    if let Some(item) = &url
        && !is_control_url(&item.value)
    {
        let help = "write scheme, host and port alone, such as \"http://100.64.0.7:31413\"";
        table.walk.fault(
            &item.key,
            Some(&item.span),
            format!("`{}` is no address of a control plane", item.value),
            help,
        );
    }
    if let Some(item) = &member {
        credential(table.walk, &item.key, &item.span, Path::new(&item.value));
    }
    let machines = table.table("machine-token-files");
    let mut machine_token_files = BTreeMap::new();
    for item in machines.named_texts() {
        let (machine, path) = item.value;
        if MachineName::parse(machine).is_err() {
            let help = "letters, digits, dots, underscores and hyphens, a letter or digit first";
            table.walk.fault(&item.key, Some(&item.span), format!("`{machine}` is no machine name"), help);
        }
        let path = PathBuf::from(path);
        credential(table.walk, &item.key, &item.span, &path);
        machine_token_files.insert(machine.to_owned(), path);
    }
    table.finish();
    Some(Control {
        url: url?.value.trim_end_matches('/').to_owned(),
        member_token_file: PathBuf::from(member?.value),
        machine_token_files,
    })
}

/// Whether this is `http://HOST:PORT` or `https://HOST:PORT`, the port optional, without user, path or query.
#[must_use]
pub fn is_control_url(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else { return false };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.rsplit_once(':') {
        // The last colon of `[::1]` belongs to the address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let host_fits = match host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')),
    };
    let port_fits = port
        .is_none_or(|port| port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0));
    host_fits && port_fits
}

/// A file that holds a credential: absolute, a regular file, for its owner alone, and a token in it.
fn credential(walk: &Walk<'_>, key: &str, span: &Range<usize>, path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let shown = path.display();
    let (what, help) = if path.is_relative() {
        (
            format!("`{shown}` is relative, and a file that holds a credential must not depend on where one stands"),
            "write an absolute path".to_owned(),
        )
    } else {
        match std::fs::metadata(path) {
            Err(error) => {
                (format!("{shown} can't be read: {error}"), "write the token into that file, mode 0600".to_owned())
            }
            Ok(found) if !found.is_file() => {
                (format!("{shown} is no file"), "name a file that holds the token".to_owned())
            }
            Ok(found) if found.permissions().mode() & 0o077 != 0 => {
                let mode = found.permissions().mode() & 0o777;
                (
                    format!("{shown} has mode {mode:04o}, so others can read the credential"),
                    format!("chmod 600 {shown}"),
                )
            }
            Ok(found) if found.len() > 4096 => {
                (format!("{shown} is too large for a token"), "a token is 64 hex digits".to_owned())
            }
            Ok(_) => match std::fs::read_to_string(path) {
                Ok(text) if is_token(text.trim_end()) => return,
                Ok(_) => (format!("{shown} holds no token"), "a token is 64 hex digits".to_owned()),
                Err(error) => {
                    (format!("{shown} can't be read: {error}"), "write the token into that file, mode 0600".to_owned())
                }
            },
        }
    };
    walk.fault(key, Some(span), what, help);
}

fn is_token(text: &str) -> bool {
    text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::is_control_url;

    #[test]
    fn an_address_of_a_control_plane_is_scheme_host_and_port_alone() {
        for right in
            ["http://127.0.0.1:31413", "https://control.example", "http://[::1]:80", "http://[::1]", "http://a:1/"]
        {
            assert!(is_control_url(right), "{right}");
        }
        for wrong in [
            "127.0.0.1:1",
            "ftp://a",
            "http://",
            "http://a:0",
            "http://a:99999",
            "http://a:+1",
            "http://a:",
            "http://u@a",
            "http://a/b",
            "http://a?b",
            "http://[1]:1",
            "http://::1",
            "http://a b",
        ] {
            assert!(!is_control_url(wrong), "{wrong}");
        }
    }
}
