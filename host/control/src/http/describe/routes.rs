//! Each route in words and types. A route that isn't described here doesn't compile.

use super::operation::{JSON, Shapes, Told, in_header, in_path, in_query, inline};
use super::refusals::Refusals;
use super::{headers, operation};
use crate::api::{PolicySlot, PolicyView, PrepareAsk, Prepared, ReplayAsk, ReplayEvent, ReplayView, WorkerView};
use crate::error::RefusalBody;
use crate::http::replays::{LONGEST_LIST, LastLine, Mismatch, NDJSON};
use crate::http::resources::{Heartbeat, RegisterResource};
use crate::http::route::Route;
use crate::http::rows::{Resources, StoredRow, WorkerRow};
use crate::http::values::{Given, Port, WorkerId, text, whole};
use crate::http::workers::{AcquireWorker, HeldLease, RegisterWorker, TakeOut};
use crate::http::{checks, ports};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AllOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required, ResponseBuilder, Schema};
use warmhold_ledger::{Scope, TransitionKind};

/// What a route of this kind takes and answers.
pub(super) fn told(route: &Route, shapes: &mut Shapes) -> Told {
    match route {
        Route::Alive => open("Whether the process lives").gives_text("It does.", ok()),
        Route::Ready => {
            Told::new("Whether it can serve", Refusals::default().reads().internal().with(503, &["disk-full", "primary-unknown", "policy-missing"]))
                .notes("The ledger can be read and written, its disk has room, the primary is known where it must be, and each slot has a policy.")
                .gives_text("It can.", ok())
        }
        Route::Metrics => open("Figures for Prometheus")
            .notes("On this machine nobody is asked for a token.")
            .gives_text("Prometheus' text format.", text()),
        Route::Description => Told::new("This document", Refusals::default().internal())
            .parameter(in_header("if-none-match", "ETags that the caller has.", text()).required(Required::False))
            .answers(200, {
                let content = ContentBuilder::new().schema(Some(ObjectBuilder::new()));
                let answer = ResponseBuilder::new().description("OpenAPI 3.1.").content(JSON, content.build());
                headers::on_kept(headers::on_every(answer))
            })
            .answers(304, {
                let answer = ResponseBuilder::new().description("It is still the same.");
                headers::on_kept(headers::on_every(answer))
            }),
        Route::Primary => open("Who the primary is")
            .gives("As this daemon read it last; both are null while it isn't known.", shapes.of::<checks::Primary>()),
        Route::Resources | Route::Register | Route::Heartbeat(_) | Route::Remove(_) => resources(route, shapes),
        Route::LeasePort | Route::RenewPort(_) | Route::ReleasePort(_) => leased_ports(route, shapes),
        Route::RegisterWorker | Route::AcquireWorker | Route::Transition(..) => leased_workers(route, shapes),
        Route::PrepareWorkers | Route::ListWorkers | Route::RemoveWorker(_) | Route::QuarantineWorker(_) => {
            standing_workers(route, shapes)
        }
        Route::StartReplay
        | Route::ListReplays
        | Route::ShowReplay(_)
        | Route::FinalizeReplay(_)
        | Route::QuarantineReplay(_) => replays(route, shapes),
        Route::ListPolicies | Route::LoadPolicy(_) | Route::RollBackPolicy(_) => policies(route, shapes),
    }
}

/// The heading under which a route stands.
pub(super) fn tag(route: &Route) -> &'static str {
    match route {
        Route::Alive | Route::Ready | Route::Metrics | Route::Description | Route::Primary => "daemon",
        Route::Resources | Route::Register | Route::Heartbeat(_) | Route::Remove(_) => "resources",
        Route::LeasePort | Route::RenewPort(_) | Route::ReleasePort(_) => "ports",
        Route::RegisterWorker | Route::AcquireWorker | Route::Transition(..) => "leases of workers",
        Route::PrepareWorkers | Route::ListWorkers | Route::RemoveWorker(_) | Route::QuarantineWorker(_) => {
            "standing workers"
        }
        Route::StartReplay
        | Route::ListReplays
        | Route::ShowReplay(_)
        | Route::FinalizeReplay(_)
        | Route::QuarantineReplay(_) => "replays",
        Route::ListPolicies | Route::LoadPolicy(_) | Route::RollBackPolicy(_) => "policies",
    }
}

fn open(summary: &'static str) -> Told {
    Told::new(summary, Refusals::default())
}

fn ok() -> ObjectBuilder {
    text().enum_values(Some(["ok\n"]))
}

fn resources(route: &Route, shapes: &mut Shapes) -> Told {
    let id = || in_path("id", "The row's id, percent-encoded.", inline::<Given>());
    let own = &["port-lease-requires-allocator", "pod-worker-requires-allocator", "machine-scope"];
    match route {
        Route::Register => Told::new(
            "Insert or replace one's own row",
            Refusals::default().decided().with(400, &["invalid-record"]).with(403, own),
        )
        .takes(shapes.of::<RegisterResource>(), true)
        .decides("The row.", shapes.of::<StoredRow>())
        .leads_to("heartbeat", &[("id", "/id")])
        .leads_to("remove", &[("id", "/id")]),
        Route::Heartbeat(_) => Told::new(
            "Say that one's own row still counts",
            Refusals::default().decided().with(400, &["invalid-heartbeat", "invalid-id"]).with(403, own),
        )
        .parameter(id())
        .takes(shapes.of::<Heartbeat>(), true)
        .decides("The row; its time begins anew.", shapes.of::<StoredRow>()),
        Route::Remove(_) => {
            Told::new("Remove one's own row", Refusals::default().decided().with(400, &["invalid-id"]).with(403, own))
                .parameter(id())
                .removes("It is gone.")
        }
        _ => Told::new("List what is where", Refusals::default().reads())
            .notes("Expired rows stay. A list is read in pieces, so it isn't a snapshot. An empty parameter is none.")
            .parameter(in_query("kind", "Only rows of this kind; there are none of a kind that doesn't exist.", text()))
            .parameter(in_query("machine", "Only rows of this machine.", text()))
            .parameter(in_query("name", "Only rows of this name.", text()))
            .gives("The rows.", shapes.of::<Resources>()),
    }
}

fn leased_ports(route: &Route, shapes: &mut Shapes) -> Told {
    let held = |told: Told| {
        told.parameter(in_path("port", "The port.", inline::<Port>())).parameter(in_header(
            "x-port-lease-id",
            "`lease.attrs.leaseId`, as leasing answered it.",
            text().pattern(Some("^[!-~]+$")),
        ))
    };
    let refusals =
        || Refusals::default().decided().with(400, &["invalid-port", "missing-lease-id"]).with(403, &["machine-scope"]);
    match route {
        Route::LeasePort => Told::new(
            "Lease the lowest free port",
            Refusals::default().decided().with(400, &["invalid-port-lease"]).with(403, &["machine-scope"]),
        )
        .takes(shapes.of::<ports::LeasePort>(), true)
        .decides("The port, and its lease.", shapes.of::<ports::LeasedPort>())
        .leads_to("renewPort", &[("port", "/port"), ("x-port-lease-id", "/lease/attrs/leaseId")])
        .leads_to("releasePort", &[("port", "/port"), ("x-port-lease-id", "/lease/attrs/leaseId")]),
        Route::RenewPort(_) => held(Told::new("Renew a port's lease", refusals()))
            .decides("The row without its lease; its time begins anew.", shapes.of::<StoredRow>()),
        _ => held(Told::new("Give a port back", refusals())).removes("It is free."),
    }
}

fn leased_workers(route: &Route, shapes: &mut Shapes) -> Told {
    let refusals = || Refusals::default().worker().with(400, &["invalid-pod-worker-lease"]);
    let asked = |told: Told, schema| told.takes(schema, true);
    let row = shapes.of::<WorkerRow>();
    let transition = |summary, roles: &'static [Scope], shapes: &mut Shapes| {
        let refusals = refusals().with(400, &["invalid-worker-id"]).with(403, &["worker-scope", "machine-scope"]);
        let told = Told::new(summary, refusals).callers(roles).parameter(in_path(
            "workerId",
            "The worker.",
            inline::<WorkerId>(),
        ));
        told.takes(shapes.of::<HeldLease>(), true)
    };
    match route {
        Route::RegisterWorker => {
            let refusals =
                refusals().with(400, &["invalid-worker-key"]).with(403, &["worker-host-required", "machine-scope"]);
            let told = Told::new("Register a worker", refusals).callers(&[Scope::Machine]);
            asked(told, shapes.of::<RegisterWorker>()).decides("The row: idle, generation 0.", row)
        }
        Route::AcquireWorker => {
            let refusals = refusals().with(400, &["invalid-worker-key"]).with(403, &["worker-consumer-required"]);
            let told = Told::new("Lease an idle worker", refusals).callers(&[Scope::Member]);
            asked(told, shapes.of::<AcquireWorker>())
                .decides("The row: leased, its generation one higher.", row)
                .leads_to("renewWorker", &[("workerId", "/name")])
                .leads_to("releaseWorker", &[("workerId", "/name")])
                .leads_to("quarantineWorker", &[("workerId", "/name")])
        }
        Route::Transition(_, TransitionKind::Renew) => {
            transition("Renew the lease of a worker", &[Scope::Member], shapes)
                .decides("The row; its time begins anew.", row)
        }
        Route::Transition(_, TransitionKind::Release) => {
            transition("Give a worker back", &[Scope::Member], shapes).decides("The row: sanitizing.", row)
        }
        Route::Transition(_, TransitionKind::Sanitize) => {
            transition("Say that a worker is clean", &[Scope::Machine], shapes)
                .decides("The row: idle, without a lease.", row)
        }
        _ => transition("Take a leased worker out", &[Scope::Member, Scope::Machine], shapes)
            .decides("The row: quarantined, for good.", row),
    }
}

fn standing_workers(route: &Route, shapes: &mut Shapes) -> Told {
    // Where the workers are another control plane's, that one may refuse in its own words.
    let refusals = || Refusals::default().internal().waits().and_others(&[400, 403, 404, 409, 413, 429, 503]);
    let worker = || in_path("workerId", "The worker.", inline::<WorkerId>());
    match route {
        Route::PrepareWorkers => Told::new(
            "See to it that workers stand for a commit",
            refusals()
                .with(400, &["invalid-prepare", "invalid-count", "unknown-profile", "unknown-cut"])
                .with(409, &["no-tier", "no-source", "source-unreadable", "primary-unmeasured"])
                .with(503, &["ledger-unreadable", "ledger-unavailable"]),
        )
        .notes("Answers when each is ready or has failed: 200 even if none could be prepared.")
        .takes(shapes.of::<PrepareAsk>(), false)
        .gives("What became of each.", shapes.list_of::<Prepared>()),
        Route::RemoveWorker(_) => Told::new(
            "Retire a worker and remove its pod",
            refusals()
                .with(400, &["invalid-worker-id"])
                .with(404, &["not-found"])
                .with(409, &["worker-in-use", "another-machine", "unknown-profile"])
                .with(503, &["pod-not-removed", "ledger-unreadable", "ledger-unavailable"]),
        )
        .parameter(worker())
        .gives("The worker as it was.", shapes.of::<WorkerView>()),
        Route::QuarantineWorker(_) => Told::new(
            "Take a worker out, an idle one too",
            refusals()
                .with(400, &["invalid-worker-id", "invalid-quarantine"])
                .with(404, &["not-found"])
                .with(409, &["already-quarantined"])
                .with(503, &["ledger-unreadable", "ledger-unavailable"]),
        )
        .parameter(worker())
        .takes(shapes.of::<TakeOut>(), false)
        .gives("The worker.", shapes.of::<WorkerView>()),
        _ => Told::new(
            "List the standing workers",
            Refusals::default().internal().waits().and_others(&[503]).with(503, &["ledger-unreadable"]),
        )
        .gives("The workers; null for what only another machine knows.", shapes.list_of::<WorkerView>()),
    }
}

fn replays(route: &Route, shapes: &mut Shapes) -> Told {
    let id = || in_path("id", "The replay, percent-encoded.", inline::<Given>());
    let read = || Refusals::default().internal().waits().and_others(&[503]).with(503, &["ledger-unreadable"]);
    let settle = || {
        read()
            .with(400, &["invalid-id"])
            .with(403, &["not-owner"])
            .with(404, &["not-found"])
            .with(409, &["not-observed", "another-daemon", "sanitize-unavailable"])
            .with(503, &["quarantine-pending"])
            .and_others(&[409])
    };
    match route {
        Route::StartReplay => {
            let lines = lines(shapes);
            let replay = shapes.of::<ReplayView>();
            let refusals = read()
                .with(400, &["invalid-replay", "unknown-profile"])
                .with(409, &["run-attempt-used"])
                .with(503, &["too-many-replays", "stopping", "closing"])
                .and_others(&[409, 413]);
            let answer = ResponseBuilder::new()
                .description(
                    "When it has ended (or is observed, with `keep`), also when tests failed or nothing could be run. \
                     Or, where `accept` names `application/x-ndjson`, its events at once, one a line.",
                )
                .content(JSON, ContentBuilder::new().schema(Some(replay)).build())
                .content(NDJSON, ContentBuilder::new().schema(Some(lines)).build());
            Told::new("Replay tests in a warm worker", refusals)
                .notes(
                    "Asked again with the same run and attempt it answers the same replay. A client that goes away \
                     cancels nothing.",
                )
                .takes(shapes.of::<ReplayAsk>(), true)
                .answers(200, headers::on_decided(headers::on_every(answer)))
                .leads_to("showReplay", &[("id", "/id")])
                .leads_to("finalizeReplay", &[("id", "/id")])
                .leads_to("quarantineReplay", &[("id", "/id")])
        }
        Route::ShowReplay(_) => Told::new("Show a replay", read().with(400, &["invalid-id"]).with(404, &["not-found"]))
            .parameter(id())
            .gives("The replay.", shapes.of::<ReplayView>()),
        Route::FinalizeReplay(_) => Told::new("Accept an observed replay", settle())
            .parameter(id())
            .decides("The replay; its worker is clean and idle.", shapes.of::<ReplayView>()),
        Route::QuarantineReplay(_) => {
            Told::new("Reject an observed replay", settle().with(400, &["invalid-quarantine"]))
                .parameter(id())
                .takes(shapes.of::<Mismatch>(), false)
                .decides("The replay; its worker never serves again.", shapes.of::<ReplayView>())
        }
        _ => Told::new("List replays, newest first", read().with(400, &["invalid-query"]))
            .parameter(in_query("before", "Only those older than the one with this id.", text()))
            .parameter(in_query("limit", "How many at most; 100 unless it says else.", whole(1, LONGEST_LIST)))
            .gives("The replays.", shapes.list_of::<ReplayView>()),
    }
}

/// The whole of a stream of lines, as the list of its lines.
fn lines(shapes: &mut Shapes) -> RefOr<Schema> {
    let event = ObjectBuilder::new().property("event", text().enum_values(Some(["error"]))).required("event");
    let error = AllOfBuilder::new().item(Ref::from_schema_name(RefusalBody::name())).item(event);
    let line = OneOfBuilder::new().item(shapes.of::<ReplayEvent>()).item(shapes.of::<LastLine>()).item(error);
    let line = line.description(Some("One line: progress, or as the last one the result or a refusal."));
    shapes.0.insert("ReplayLine".to_owned(), line.into());
    ArrayBuilder::new().items(Ref::from_schema_name("ReplayLine")).into()
}

fn policies(route: &Route, shapes: &mut Shapes) -> Told {
    let slot = || in_path("slot", "Which of the policies.", inline::<PolicySlot>());
    match route {
        Route::LoadPolicy(_) => Told::new(
            "Load a policy",
            Refusals::default()
                .internal()
                // No slot has another name.
                .with(404, &["not-found"])
                .with(413, &["policy-too-large"])
                .with(422, &[])
                .with(503, &["policy-load-busy", "policy-storage"])
                .and_others(&[422, 500, 503]),
        )
        .notes(
            "A component that is refused changes nothing; `error` then begins with `policy-`, and `expected`, `found` \
             and `fix` say how to mend it. Its content type isn't looked at.",
        )
        .parameter(slot())
        .takes_bytes("application/octet-stream", "The component.")
        .gives("What serves now.", shapes.of::<PolicyView>()),
        Route::RollBackPolicy(_) => Told::new(
            "Return to the policy before",
            Refusals::default()
                .internal()
                .with(404, &["not-found"])
                .with(409, &["policy-nothing-to-roll-back-to", "policy-storage"])
                .and_others(&[409]),
        )
        .parameter(slot())
        .gives("What serves now.", shapes.of::<PolicyView>()),
        _ => Told::new("List the policies", Refusals::default().internal().waits())
            .gives("Each slot's, those that serve first.", operation::Shapes::list_of::<PolicyView>(shapes)),
    }
}
