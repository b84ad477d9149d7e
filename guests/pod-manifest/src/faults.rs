//! What is wrong with a pod's spec: everything at once, each with its field.

use crate::quantity::Quantity;
use crate::settings::{Settings, is_label_value};
use std::net::{Ipv4Addr, Ipv6Addr};
use warmhold_sdk::manifest::PodSpec;

/// Every fault; none: the spec can be rendered.
#[must_use]
pub fn of(spec: &PodSpec, settings: &Settings) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |holds: bool, fault: &str| {
        if !holds {
            faults.push(fault.to_owned());
        }
    };

    check(is_dns_label(&spec.name), "name: must be a DNS label (a-z, 0-9 and -, at most 63)");
    check(is_dns_label(&spec.namespace), "namespace: must be a DNS label (a-z, 0-9 and -, at most 63)");
    check(is_word(&spec.context), "context: must be one word without spaces");
    check(
        is_worker_id(&spec.worker_id),
        "worker-id: must be letters, digits, . _ - with a letter or digit at both ends, at most 63 (it is a label)",
    );
    check(is_word(&spec.image), "image: must be an image's name without spaces");
    // A node of a cluster; of local pods it is this machine, under the name that the daemon knows it by.
    let is_node = |node: &str| is_subdomain(node) || (spec.context == LOCAL && is_machine(node));
    check(
        spec.node.as_deref().is_none_or(is_node),
        "node: must be a DNS name (a-z, 0-9, - and ., at most 253), or a machine's name for local pods",
    );
    check(is_hex(&spec.cut_sha, 40), "cut-sha: must be 40 lower-case hex digits");

    check(is_word(&spec.key.context), "key.context: must be one word without spaces");
    check(spec.key.context == spec.context, "key.context: must be the spec's context");
    check(
        spec.key.image_digest.strip_prefix("sha256:").is_some_and(|digest| is_hex(digest, 64)),
        "key.image-digest: must be sha256: and 64 lower-case hex digits",
    );
    check(is_word(&spec.key.lock_hash), "key.lock-hash: must be one word without spaces");
    check(is_word(&spec.key.architecture), "key.architecture: must be one word, such as amd64 or arm64");

    if let Some(limit) = &spec.memory_limit {
        let wanted = Quantity::parse(limit).filter(|limit| limit.is_positive());
        check(wanted.is_some(), "memory-limit: must be a quantity above zero, such as 2Gi, or none");
        if let (Some(wanted), Some(known)) = (wanted, &settings.memory_limits) {
            let known_limit = known.iter().any(|known| Quantity::parse(known) == Some(wanted));
            check(known_limit, &format!("memory-limit: must be one of {}, or none", known.join(", ")));
        }
    }
    for (field, probe) in [("host-probe-url", &spec.host_probe_url), ("prod-probe-url", &spec.prod_probe_url)] {
        check(
            probe.is_empty() || is_probe(probe),
            &format!(
                "{field}: must be http://HOST[:PORT]/PATH with a name or an address and nothing else, or empty for none"
            ),
        );
    }

    if let Some(mirror) = &spec.source_mirror {
        check(
            is_normal_path(mirror),
            "source-mirror: must be an absolute path without . .. // and without / at its end",
        );
        check(spec.node.is_some(), "source-mirror: needs a node, since it is a directory of one");
    }
    check(
        !spec.source.trim().is_empty() && !spec.source.chars().any(char::is_control),
        "source: must be a git address or a path, on one line",
    );
    check(
        spec.source_mirror.is_some() || !is_in_mirror(&spec.source),
        "source: a relative path is one in the mirror, and there is no source-mirror",
    );
    check(!spec.source.starts_with('-'), "source: must not begin with -");
    check(!is_in_mirror(&spec.source) || !has_parent(&spec.source), "source: a path in the mirror must not hold ..");
    check(spec.install.iter().all(|word| !word.is_empty()), "install: must not hold an empty argument");
    check(spec.install.iter().all(|word| !word.contains('\0')), "install: must not hold a NUL");
    faults
}

/// The context of pods that are processes of this machine.
const LOCAL: &str = "local";

fn is_machine(text: &str) -> bool {
    text.len() <= 253
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Whether a source names a place in the mirror: neither an address nor an absolute path.
#[must_use]
pub fn is_in_mirror(source: &str) -> bool {
    // `user@host:path` and `https://…` are addresses.
    !source.starts_with('/') && !source.contains(':')
}

fn has_parent(source: &str) -> bool {
    source.split('/').any(|part| part == "..")
}

fn is_dns_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c != '-');
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_worker_id(text: &str) -> bool {
    !text.is_empty() && is_label_value(text)
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.len() <= 1024 && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_normal_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
        && !path.chars().any(char::is_control)
}

fn is_probe(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let Some((authority, path)) = rest.split_once('/') else { return false };
    let plain =
        |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '#' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}');
    is_authority(authority) && path.chars().all(plain)
}

fn is_authority(authority: &str) -> bool {
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if let Some(rest) = authority.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        let port_holds = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return address.parse::<Ipv6Addr>().is_ok() && port_holds;
    }
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    // A name of digits and dots alone is an address, and then it has to be one.
    let numeric = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let host_holds = if numeric { host.parse::<Ipv4Addr>().is_ok() } else { is_subdomain(host) };
    host_holds && port.is_none_or(is_port)
}
