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

impl Route {
    /// The route of a request, if there is one.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
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
        let own = |segment: &&str| (*segment).to_owned();
        match *method {
            Method::GET => match segments {
                ["healthz"] => Some(Self::Alive),
                ["readyz"] => Some(Self::Ready),
                ["metrics"] => Some(Self::Metrics),
                ["v1", "primary"] => Some(Self::Primary),
                ["v1", "resources"] => Some(Self::Resources),
                ["v1", "workers"] => Some(Self::ListWorkers),
                ["v1", "replays"] => Some(Self::ListReplays),
                ["v1", "replays", id] => Some(Self::ShowReplay(own(id))),
                ["v1", "policies"] => Some(Self::ListPolicies),
                _ => None,
            },
            Method::DELETE => match segments {
                ["v1", "resources", id] => Some(Self::Remove(own(id))),
                ["v1", "leases", "port", port] => Some(Self::ReleasePort(own(port))),
                _ => None,
            },
            Method::POST => match segments {
                ["v1", "resources", "register"] => Some(Self::Register),
                ["v1", "resources", id, "heartbeat"] => Some(Self::Heartbeat(own(id))),
                ["v1", "leases", "port"] => Some(Self::LeasePort),
                ["v1", "leases", "port", port, "heartbeat"] => Some(Self::RenewPort(own(port))),
                ["v1", "leases", "pod-worker"] => Some(Self::AcquireWorker),
                ["v1", "leases", "pod-worker", worker, action] => {
                    let kind = match *action {
                        "renew" => TransitionKind::Renew,
                        "release" => TransitionKind::Release,
                        "sanitize" => TransitionKind::Sanitize,
                        "quarantine" => TransitionKind::Quarantine,
                        _ => return None,
                    };
                    Some(Self::Transition(own(worker), kind))
                }
                ["v1", "workers", "pod"] => Some(Self::RegisterWorker),
                ["v1", "workers", "prepare"] => Some(Self::PrepareWorkers),
                ["v1", "workers", worker, "remove"] => Some(Self::RemoveWorker(own(worker))),
                ["v1", "workers", worker, "quarantine"] => Some(Self::QuarantineWorker(own(worker))),
                ["v1", "replays"] => Some(Self::StartReplay),
                ["v1", "replays", id, "finalize"] => Some(Self::FinalizeReplay(own(id))),
                ["v1", "replays", id, "quarantine"] => Some(Self::QuarantineReplay(own(id))),
                ["v1", "policies", slot] => PolicySlot::from_name(slot).map(Self::LoadPolicy),
                ["v1", "policies", slot, "rollback"] => PolicySlot::from_name(slot).map(Self::RollBackPolicy),
                _ => None,
            },
            _ => None,
        }
    }

    /// Who may use it.
    pub(super) fn access(&self) -> Access {
        match self {
            Self::Primary | Self::Alive | Self::Ready => Access::Anyone,
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
        let get = |path| Route::of(&Method::GET, path);
        let post = |path| Route::of(&Method::POST, path);
        assert_eq!(get("/v1/resources"), Some(Route::Resources));
        assert_eq!(post("/v1/resources/a%2Fb/heartbeat"), Some(Route::Heartbeat("a%2Fb".into())));
        assert_eq!(post("/v1/resources/register"), Some(Route::Register));
        assert_eq!(Route::of(&Method::DELETE, "/v1/resources/register"), Some(Route::Remove("register".into())));
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
        for method in [Method::PUT, Method::PATCH, Method::HEAD, Method::OPTIONS, Method::TRACE] {
            assert_eq!(Route::of(&method, "/v1/resources"), None, "{method}");
        }
    }

    proptest! {
        #[test]
        fn no_path_does_harm(path in "(/?[a-z0-9%/.-]{0,12}){0,8}") {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                let _ = Route::of(&method, &path);
            }
        }
    }
}
