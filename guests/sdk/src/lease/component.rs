//! A [`LeasePolicy`] as a component.

use super::{Call, LeasePolicy, Ledger, Operation, TransitionKind, Verdict, decide};
use super::{Moment, PortRequest, RowDraft, Transition, WorkerDraft, WorkerRequest};
use crate::component::install_panic_hook;
use crate::types::{Caller, Row, WorkerKey};
use std::marker::PhantomData;
use warmhold_bindings_lease::exports::warmhold::policy::{about, leases};
use warmhold_bindings_lease::warmhold::policy::{ledger_view, log, settings};

/// Makes a component of a [`LeasePolicy`]; once in a crate of type `cdylib`.
#[macro_export]
macro_rules! lease_policy {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the generated exports of a component are unsafe functions")]
        mod __component {
            #[allow(unused_imports, reason = "the policy may be named by its whole path")]
            use super::*;
            type Component = $crate::lease::component::Exported<$policy>;
            $crate::bindings::lease::export_component!(Component with_types_in $crate::bindings::lease);

            #[global_allocator]
            static ALLOCATOR: $crate::alloc::Bump = $crate::alloc::Bump::new();
        }
    };
}

/// The component's exports, for the macro alone.
#[derive(Debug)]
pub struct Exported<P>(PhantomData<P>);

struct Host;

impl Ledger for Host {
    fn get(&self, id: &str) -> Option<Row> {
        ledger_view::get(id)
    }

    fn idle_workers(&self, key: &WorkerKey, machine: Option<&str>, unexpired_at: u64, limit: u32) -> Vec<Row> {
        ledger_view::idle_workers(key, machine, unexpired_at, limit)
    }

    fn page(&self, kind: &str, after: Option<&str>, limit: u32) -> Vec<Row> {
        ledger_view::page(kind, after, limit)
    }
}

crate::log::environment!(Host, settings, log);

impl<P: LeasePolicy> Exported<P> {
    fn ask(at: &Moment, who: &Caller, operation: &Operation) -> Verdict {
        install_panic_hook(|line| log::write(log::Level::Error, line, &[]));
        decide(&P::default(), &Call { ledger: &Host, at, who, environment: &Host }, operation)
    }
}

impl<P: LeasePolicy> about::Guest for Exported<P> {
    fn identify() -> about::Identity {
        install_panic_hook(|line| log::write(log::Level::Error, line, &[]));
        let crate::Identity { name, version, summary } = P::default().identity();
        about::Identity { name, version, summary }
    }

    fn check_settings(settings: String) -> Result<(), Vec<String>> {
        install_panic_hook(|line| log::write(log::Level::Error, line, &[]));
        crate::settings::check(&P::default(), &settings)
    }
}

impl<P: LeasePolicy> leases::Guest for Exported<P> {
    fn register_resource(at: Moment, who: Caller, draft: RowDraft) -> Verdict {
        Self::ask(&at, &who, &Operation::Register(draft))
    }

    fn heartbeat(at: Moment, who: Caller, id: String, attrs: Option<String>) -> Verdict {
        Self::ask(&at, &who, &Operation::Heartbeat { id, attrs })
    }

    fn remove_resource(at: Moment, who: Caller, id: String) -> Verdict {
        Self::ask(&at, &who, &Operation::Remove { id })
    }

    fn lease_port(at: Moment, who: Caller, request: PortRequest) -> Verdict {
        Self::ask(&at, &who, &Operation::LeasePort(request))
    }

    fn renew_port(at: Moment, who: Caller, port: u16, lease_id: String) -> Verdict {
        Self::ask(&at, &who, &Operation::RenewPort { port, lease_id })
    }

    fn release_port(at: Moment, who: Caller, port: u16, lease_id: String) -> Verdict {
        Self::ask(&at, &who, &Operation::ReleasePort { port, lease_id })
    }

    fn register_worker(at: Moment, who: Caller, draft: WorkerDraft) -> Verdict {
        Self::ask(&at, &who, &Operation::RegisterWorker(draft))
    }

    fn acquire_worker(at: Moment, who: Caller, request: WorkerRequest) -> Verdict {
        Self::ask(&at, &who, &Operation::Acquire(request))
    }

    fn renew_worker(at: Moment, who: Caller, request: Transition) -> Verdict {
        Self::ask(&at, &who, &Operation::Transition(TransitionKind::Renew, request))
    }

    fn release_worker(at: Moment, who: Caller, request: Transition) -> Verdict {
        Self::ask(&at, &who, &Operation::Transition(TransitionKind::Release, request))
    }

    fn sanitize_worker(at: Moment, who: Caller, request: Transition) -> Verdict {
        Self::ask(&at, &who, &Operation::Transition(TransitionKind::Sanitize, request))
    }

    fn quarantine_worker(at: Moment, who: Caller, request: Transition) -> Verdict {
        Self::ask(&at, &who, &Operation::Transition(TransitionKind::Quarantine, request))
    }
}
