//! Which request goes where, and what it needs.
//!
//! Paths are compared as they were sent: an encoded slash never begins a new segment, and nothing is tidied up before.
//! What isn't listed here doesn't exist, whatever token is shown.

use crate::api::PolicySlot;
use crate::error::Help;
use http::Method;
use warmhold_ledger::{Scope, TransitionKind};

/// A route with the segments of its path that vary, still percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Description,
    Primary,
    Alive,
    Ready,
    Metrics,
    Resources,
    Register,
    Heartbeat(String),
    Remove(String),
    LeasePort,
    RenewPort(String),
    ReleasePort(String),
    RegisterWorker,
    AcquireWorker,
    Transition(String, TransitionKind),
    PrepareWorkers,
    ListWorkers,
    RemoveWorker(String),
    QuarantineWorker(String),
    StartReplay,
    ListReplays,
    ShowReplay(String),
    FinalizeReplay(String),
    QuarantineReplay(String),
    ListPolicies,
    LoadPolicy(PolicySlot),
    RollBackPolicy(PolicySlot),
}

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// No token is looked at.
    Anyone,
    /// Anybody on this machine; any valid token from elsewhere.
    Local,
    /// Any valid token.
    Known,
    /// Any but the query token.
    Writers,
    /// The member's or a machine's token.
    Leasers,
    /// The member's token.
    Member,
    /// The admin's token.
    Admin,
}

impl Access {
    pub(super) fn admits(self, scope: Scope) -> bool {
        match self {
            Self::Anyone | Self::Local | Self::Known => true,
            Self::Writers => scope != Scope::Query,
            Self::Leasers => matches!(scope, Scope::Member | Scope::Machine),
            Self::Member => scope == Scope::Member,
            Self::Admin => scope == Scope::Admin,
        }
    }

    /// Who that is, for a person.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Anyone => "anyone",
            Self::Local | Self::Known => "any valid token",
            Self::Writers => "any token but the query token",
            Self::Leasers => "the member token or a machine's token",
            Self::Member => "the member token",
            Self::Admin => "the admin token",
        }
    }
}

/// One line of the table of routes.
pub(super) struct Entry {
    /// With which method.
    pub(super) method: Method,
    /// The path's segments; one that begins with `{` stands for any text, and there is at most one of them.
    segments: &'static [&'static str],
    /// The route, given the segment that varies; None where that can't be.
    make: fn(&str) -> Option<Route>,
}

impl Entry {
    const fn new(method: Method, segments: &'static [&'static str], make: fn(&str) -> Option<Route>) -> Self {
        Self { method, segments, make }
    }

    /// The path as the description writes it: `/v1/resources/{id}`.
    pub(super) fn path(&self) -> String {
        self.segments.iter().fold(String::new(), |path, segment| path + "/" + segment)
    }

    /// One route of this line, for what all of them have in common.
    pub(super) fn sample(&self) -> Option<Route> {
        [PolicySlot::Lease.as_str(), "x"].into_iter().find_map(self.make)
    }

    fn matches(&self, segments: &[&str]) -> Option<Route> {
        if self.segments.len() != segments.len() {
            return None;
        }
        let mut varying = "";
        for (expected, found) in self.segments.iter().zip(segments) {
            if name_of(expected).is_some() {
                varying = found;
            } else if expected != found {
                return None;
            }
        }
        (self.make)(varying)
    }
}

fn name_of(segment: &'static str) -> Option<&'static str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

/// Every route there is. The description of the interface is made from the same table.
pub(super) static TABLE: [Entry; 30] = [
    Entry::new(Method::GET, &["healthz"], |_| Some(Route::Alive)),
    Entry::new(Method::GET, &["readyz"], |_| Some(Route::Ready)),
    Entry::new(Method::GET, &["metrics"], |_| Some(Route::Metrics)),
    Entry::new(Method::GET, &["v1", "openapi.json"], |_| Some(Route::Description)),
    Entry::new(Method::GET, &["v1", "primary"], |_| Some(Route::Primary)),
    Entry::new(Method::GET, &["v1", "resources"], |_| Some(Route::Resources)),
    Entry::new(Method::POST, &["v1", "resources", "register"], |_| Some(Route::Register)),
    Entry::new(Method::POST, &["v1", "resources", "{id}", "heartbeat"], |id| Some(Route::Heartbeat(id.to_owned()))),
    Entry::new(Method::DELETE, &["v1", "resources", "{id}"], |id| Some(Route::Remove(id.to_owned()))),
    Entry::new(Method::POST, &["v1", "leases", "port"], |_| Some(Route::LeasePort)),
    Entry::new(Method::POST, &["v1", "leases", "port", "{port}", "heartbeat"], |port| {
        Some(Route::RenewPort(port.to_owned()))
    }),
    Entry::new(Method::DELETE, &["v1", "leases", "port", "{port}"], |port| Some(Route::ReleasePort(port.to_owned()))),
    Entry::new(Method::POST, &["v1", "workers", "pod"], |_| Some(Route::RegisterWorker)),
    Entry::new(Method::POST, &["v1", "leases", "pod-worker"], |_| Some(Route::AcquireWorker)),
    Entry::new(Method::POST, &["v1", "leases", "pod-worker", "{workerId}", "renew"], |worker| {
        Some(Route::Transition(worker.to_owned(), TransitionKind::Renew))
    }),
    Entry::new(Method::POST, &["v1", "leases", "pod-worker", "{workerId}", "release"], |worker| {
        Some(Route::Transition(worker.to_owned(), TransitionKind::Release))
    }),
    Entry::new(Method::POST, &["v1", "leases", "pod-worker", "{workerId}", "sanitize"], |worker| {
        Some(Route::Transition(worker.to_owned(), TransitionKind::Sanitize))
    }),
    Entry::new(Method::POST, &["v1", "leases", "pod-worker", "{workerId}", "quarantine"], |worker| {
        Some(Route::Transition(worker.to_owned(), TransitionKind::Quarantine))
    }),
    Entry::new(Method::POST, &["v1", "workers", "prepare"], |_| Some(Route::PrepareWorkers)),
    Entry::new(Method::GET, &["v1", "workers"], |_| Some(Route::ListWorkers)),
    Entry::new(Method::POST, &["v1", "workers", "{workerId}", "remove"], |worker| {
        Some(Route::RemoveWorker(worker.to_owned()))
    }),
    Entry::new(Method::POST, &["v1", "workers", "{workerId}", "quarantine"], |worker| {
        Some(Route::QuarantineWorker(worker.to_owned()))
    }),
    Entry::new(Method::POST, &["v1", "replays"], |_| Some(Route::StartReplay)),
    Entry::new(Method::GET, &["v1", "replays"], |_| Some(Route::ListReplays)),
    Entry::new(Method::GET, &["v1", "replays", "{id}"], |id| Some(Route::ShowReplay(id.to_owned()))),
    Entry::new(Method::POST, &["v1", "replays", "{id}", "finalize"], |id| Some(Route::FinalizeReplay(id.to_owned()))),
    Entry::new(Method::POST, &["v1", "replays", "{id}", "quarantine"], |id| {
        Some(Route::QuarantineReplay(id.to_owned()))
    }),
    Entry::new(Method::GET, &["v1", "policies"], |_| Some(Route::ListPolicies)),
    Entry::new(Method::POST, &["v1", "policies", "{slot}"], |slot| PolicySlot::from_name(slot).map(Route::LoadPolicy)),
    Entry::new(Method::POST, &["v1", "policies", "{slot}", "rollback"], |slot| {
        PolicySlot::from_name(slot).map(Route::RollBackPolicy)
    }),
];

impl Route {
    /// The route of a request, if there is one, and its place in the table.
    pub(super) fn find(method: &Method, path: &str) -> Option<(usize, Self)> {
        let path = path.strip_prefix('/')?;
        let mut segments = [""; 5];
        let mut count = 0;
        for segment in path.split('/') {
            *segments.get_mut(count)? = segment;
            count += 1;
        }
        let segments = segments.get(..count)?;
        if segments.iter().any(|segment| segment.is_empty()) {
            return None;
        }
        TABLE
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.method == *method)
            .find_map(|(place, entry)| entry.matches(segments).map(|route| (place, route)))
    }

    /// Who may use it.
    pub(super) fn access(&self) -> Access {
        match self {
            Self::Description | Self::Primary | Self::Alive | Self::Ready => Access::Anyone,
            Self::Metrics => Access::Local,
            Self::Resources | Self::ListWorkers | Self::ListReplays | Self::ShowReplay(_) | Self::ListPolicies => {
                Access::Known
            }
            Self::Register | Self::Heartbeat(_) | Self::Remove(_) => Access::Writers,
            Self::LeasePort
            | Self::RenewPort(_)
            | Self::ReleasePort(_)
            | Self::RegisterWorker
            | Self::AcquireWorker
            | Self::Transition(..) => Access::Leasers,
            Self::StartReplay | Self::FinalizeReplay(_) | Self::QuarantineReplay(_) => Access::Member,
            Self::PrepareWorkers
            | Self::RemoveWorker(_)
            | Self::QuarantineWorker(_)
            | Self::LoadPolicy(_)
            | Self::RollBackPolicy(_) => Access::Admin,
        }
    }

    /// Whether it is refused while another machine is the primary. Policies are this daemon's own, and the settling of
    /// a replay takes nothing from the primary: it ends what was begun.
    pub(super) fn needs_primary(&self) -> bool {
        match self.access() {
            Access::Anyone | Access::Local | Access::Known => false,
            Access::Writers | Access::Leasers => true,
            Access::Member => matches!(self, Self::StartReplay),
            Access::Admin => !matches!(self, Self::LoadPolicy(_) | Self::RollBackPolicy(_)),
        }
    }

    /// How a refusal looks: routes of the original answer no fields that its clients don't expect.
    pub(super) fn help(&self) -> Help {
        match self.access() {
            Access::Writers | Access::Leasers => Help::InMessage,
            Access::Anyone | Access::Known if matches!(self, Self::Primary | Self::Resources) => Help::InMessage,
            _ => Help::Field,
        }
    }

    /// A name for logs, which holds nothing that a client chose.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Description => "openapi",
            Self::Primary => "primary",
            Self::Alive => "alive",
            Self::Ready => "ready",
            Self::Metrics => "metrics",
            Self::Resources => "resources",
            Self::Register => "register",
            Self::Heartbeat(_) => "heartbeat",
            Self::Remove(_) => "remove",
            Self::LeasePort => "lease-port",
            Self::RenewPort(_) => "renew-port",
            Self::ReleasePort(_) => "release-port",
            Self::RegisterWorker => "register-worker",
            Self::AcquireWorker => "acquire-worker",
            Self::Transition(_, TransitionKind::Renew) => "renew-worker",
            Self::Transition(_, TransitionKind::Release) => "release-worker",
            Self::Transition(_, TransitionKind::Sanitize) => "sanitize-worker",
            Self::Transition(_, TransitionKind::Quarantine) => "quarantine-worker",
            Self::PrepareWorkers => "prepare-workers",
            Self::ListWorkers => "list-workers",
            Self::RemoveWorker(_) => "remove-worker",
            Self::QuarantineWorker(_) => "take-out-worker",
            Self::StartReplay => "start-replay",
            Self::ListReplays => "list-replays",
            Self::ShowReplay(_) => "show-replay",
            Self::FinalizeReplay(_) => "finalize-replay",
            Self::QuarantineReplay(_) => "quarantine-replay",
            Self::ListPolicies => "list-policies",
            Self::LoadPolicy(_) => "load-policy",
            Self::RollBackPolicy(_) => "roll-back-policy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_taken_as_they_are() {
        let of = |method: &Method, path| Route::find(method, path).map(|(_, route)| route);
        let get = |path| of(&Method::GET, path);
        let post = |path| of(&Method::POST, path);
        assert_eq!(get("/v1/resources"), Some(Route::Resources));
        assert_eq!(post("/v1/resources/a%2Fb/heartbeat"), Some(Route::Heartbeat("a%2Fb".into())));
        assert_eq!(post("/v1/resources/register"), Some(Route::Register));
        assert_eq!(of(&Method::DELETE, "/v1/resources/register"), Some(Route::Remove("register".into())));
        for unknown in [
            "",
            "/",
            "v1/resources",
            "/v1/resources/",
            "//v1/resources",
            "/v1//resources",
            "/V1/resources",
            "/v1/resources/x/y/z/a/b",
            "/v1/./resources",
            "/v1/policies/bogus",
            "/v1/leases/pod-worker/w1/steal",
            "/v1/resources//heartbeat",
        ] {
            assert_eq!((get(unknown), post(unknown)), (None, None), "{unknown}");
        }
        for entry in &TABLE {
            assert!(entry.sample().is_some(), "{}", entry.path());
            let varying = entry.segments.iter().filter(|segment| name_of(segment).is_some()).count();
            assert!(varying < 2, "{}: which of them goes to the route?", entry.path());
        }
        for method in [Method::PUT, Method::PATCH, Method::HEAD, Method::OPTIONS, Method::TRACE] {
            assert_eq!(of(&method, "/v1/resources"), None, "{method}");
        }
    }

    proptest! {
        #[test]
        fn no_path_does_harm(path in "(/?[a-z0-9%/.-]{0,12}){0,8}") {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                let _ = Route::find(&method, &path);
            }
        }
    }
}
