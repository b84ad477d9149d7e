//! `[grants.*]`: what each policy may ask of the cluster. Deny by default.

use super::walk::{Table, nearest};
use std::collections::BTreeSet;

/// The verbs that can be granted, as the `cluster` and `transport` interfaces call them.
pub const VERBS: [&str; 7] = ["create-pod", "exec", "get-node", "get-pod", "list-pods", "patch-metadata", "wait-ready"];

/// The context of local pods.
pub const LOCAL_CONTEXT: &str = "local";

/// The namespace of local pods.
pub const LOCAL_NAMESPACE: &str = "warmhold";

/// What one policy may do, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// `contexts`.
    pub contexts: BTreeSet<String>,
    /// `namespaces`, in each of the contexts.
    pub namespaces: BTreeSet<String>,
    /// `verbs`, see [`VERBS`].
    pub verbs: BTreeSet<String>,
}

/// The grants of the three slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// `[grants.lease]`; nothing when it isn't written.
    pub lease: Grant,
    /// `[grants.manifest]`; nothing when it isn't written.
    pub manifest: Grant,
    /// `[grants.replay]`; local pods alone when it isn't written.
    pub replay: Grant,
}

impl Default for Grants {
    fn default() -> Self {
        Self { lease: Grant::default(), manifest: Grant::default(), replay: Grant::local() }
    }
}

impl Grant {
    /// All that a replay policy needs for local pods, which are this daemon's own.
    #[must_use]
    pub fn local() -> Self {
        Self {
            contexts: [LOCAL_CONTEXT.to_owned()].into(),
            namespaces: [LOCAL_NAMESPACE.to_owned()].into(),
            verbs: VERBS.map(str::to_owned).into(),
        }
    }

    /// Whether this verb may be used there.
    #[must_use]
    pub fn allows(&self, context: &str, namespace: &str, verb: &str) -> bool {
        self.contexts.contains(context) && self.namespaces.contains(namespace) && self.verbs.contains(verb)
    }
}

pub(super) fn read(table: Table<'_, '_>) -> Grants {
    let default = Grants::default();
    let grants = Grants {
        lease: grant(table.table("lease"), default.lease),
        manifest: grant(table.table("manifest"), default.manifest),
        replay: grant(table.table("replay"), default.replay),
    };
    table.finish();
    grants
}

fn grant(table: Table<'_, '_>, default: Grant) -> Grant {
    if !table.is_present() {
        return default;
    }
    let names = |name| -> BTreeSet<String> {
        table.texts(name, "an array of names").map(|item| item.value.into_iter().collect()).unwrap_or_default()
    };
    let (contexts, namespaces) = (names("contexts"), names("namespaces"));
    let verbs = table.texts("verbs", &format!("an array of {}", VERBS.join(", ")));
    for verb in verbs.iter().flat_map(|item| &item.value) {
        if !VERBS.contains(&verb.as_str()) {
            let help = match nearest(verb, &VERBS) {
                Some(right) => format!("did you mean `{right}`?"),
                None => format!("the verbs are: {}", VERBS.join(", ")),
            };
            let span = verbs.as_ref().map(|item| &item.span);
            table.walk.fault(&table.key("verbs"), span, format!("`{verb}` is no verb"), help);
        }
    }
    let grant =
        Grant { contexts, namespaces, verbs: verbs.map(|item| item.value.into_iter().collect()).unwrap_or_default() };
    table.finish();
    grant
}
