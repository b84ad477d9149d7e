//! Replay policies. Each misbehaves in a request; none can finalize, quarantine or prepare.

use std::hint::black_box;
use std::marker::PhantomData;
use warmhold_sdk::replay::{
    Candidate, Host, Lease, Outcome, ReplayInput, ReplayPolicy, Target, control_text, transport_text,
};
use warmhold_sdk::serde_json::{Value, json};
use warmhold_sdk::{Identity, Policy};

/// What happens with a lease.
pub trait Misdeed: Default {
    /// The policy's name.
    const NAME: &'static str;

    /// Has a lease of the first candidate that fits.
    fn with<H: Host>(
        host: &H,
        held: H::Lease,
        input: &ReplayInput,
        of: &Candidate,
        candidates: &[Candidate],
    ) -> Outcome<H::Lease>;
}

/// A replay policy of one misdeed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hostile<M>(PhantomData<M>);

impl<M: Misdeed> Policy for Hostile<M> {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity(M::NAME, env!("CARGO_PKG_VERSION"), "hostile: for tests")
    }
}

impl<M: Misdeed> ReplayPolicy for Hostile<M> {
    fn request<H: Host>(&self, host: &H, input: &ReplayInput, candidates: &[Candidate]) -> Outcome<H::Lease> {
        let Some(of) = candidates.iter().find(|of| of.spec.cut_sha == input.cut_sha) else {
            return Outcome::fallback("no-candidate", None);
        };
        match host.acquire(&of.host, &of.spec.key, &input.run_id, &input.attempt_id, 60_000) {
            Ok(held) => M::with(host, held, input, of, candidates),
            Err(error) => Outcome::fallback("lease-unavailable", control_text(&error)),
        }
    }

    fn finalize<H: Host>(&self, _host: &H, _held: H::Lease, _of: &Candidate) -> Result<(), String> {
        Err("hostile: never finalizes".to_owned())
    }

    fn quarantine<H: Host>(&self, _host: &H, _held: H::Lease, _of: &Candidate, _reason: &str) -> Result<(), String> {
        Err("hostile: never quarantines".to_owned())
    }

    fn prepare<H: Host>(&self, _host: &H, _of: &Candidate) -> Result<String, String> {
        Err("hostile: never prepares".to_owned())
    }
}

fn target(of: &Candidate) -> Target {
    Target { context: of.spec.context.clone(), namespace: of.spec.namespace.clone() }
}

fn command(input: &ReplayInput, of: &Candidate, now: u64) -> Value {
    let key = &of.spec.key;
    json!({
        "protocol": input.protocol, "runId": input.run_id, "attemptId": input.attempt_id, "cutSha": input.cut_sha,
        "envProfile": input.env_profile, "deadlineAt": input.deadline_at, "requestedAt": now, "files": input.files,
        "key": {
            "context": key.context, "imageDigest": key.image_digest,
            "lockHash": key.lock_hash, "architecture": key.architecture,
        },
        "workerId": of.spec.worker_id,
    })
}

/// Runs the files and gives the worker back as clean, whatever its verdict says. The host refuses what isn't proven.
#[derive(Clone, Copy, Debug, Default)]
pub struct SanitizeUnclean;

impl Misdeed for SanitizeUnclean {
    const NAME: &'static str = "sanitize-unclean";

    fn with<H: Host>(
        host: &H,
        held: H::Lease,
        input: &ReplayInput,
        of: &Candidate,
        _: &[Candidate],
    ) -> Outcome<H::Lease> {
        let ran = host.exec(&held, &target(of), &of.spec.name, &command(input, of, host.now()), input.deadline_at);
        let released = held.release();
        let sanitized = held.sanitize();
        let told = |result: Result<(), _>| result.map_or_else(|error| control_text(&error), |()| "accepted".to_owned());
        let ran = ran.map_or_else(|error| transport_text(&error), |_| "verdict".to_owned());
        Outcome::fallback(
            "invalid-result",
            format!("exec: {ran}; release: {}; sanitize: {}", told(released), told(sanitized)),
        )
    }
}

/// Names another pod than the lease's: another candidate's, or one that nobody gave it.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherPod;

impl Misdeed for OtherPod {
    const NAME: &'static str = "other-pod";

    fn with<H: Host>(
        host: &H,
        held: H::Lease,
        input: &ReplayInput,
        of: &Candidate,
        candidates: &[Candidate],
    ) -> Outcome<H::Lease> {
        let other = candidates.iter().map(|other| other.spec.name.as_str()).find(|name| *name != of.spec.name);
        let pod = other.unwrap_or("somebody-elses-pod");
        let ran = host.exec(&held, &target(of), pod, &command(input, of, host.now()), input.deadline_at);
        let ran = ran.map_or_else(|error| transport_text(&error), |_| "it ran".to_owned());
        Outcome::fallback("pod-replaced", format!("exec in {pod}: {ran}"))
    }
}

/// Keeps its lease where no destructor ever comes, and says that there is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepLease;

impl Misdeed for KeepLease {
    const NAME: &'static str = "keep-lease";

    fn with<H: Host>(_: &H, held: H::Lease, _: &ReplayInput, _: &Candidate, _: &[Candidate]) -> Outcome<H::Lease> {
        std::mem::forget(held);
        Outcome::fallback("lease-unavailable", "hostile: the lease is kept".to_owned())
    }
}

/// Drops its lease without a verdict.
#[derive(Clone, Copy, Debug, Default)]
pub struct DropLease;

impl Misdeed for DropLease {
    const NAME: &'static str = "drop-lease";

    fn with<H: Host>(_: &H, held: H::Lease, _: &ReplayInput, _: &Candidate, _: &[Candidate]) -> Outcome<H::Lease> {
        drop(held);
        Outcome::fallback("lease-unavailable", "hostile: the lease was dropped".to_owned())
    }
}

/// Takes a lease and never answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopForever;

impl Misdeed for LoopForever {
    const NAME: &'static str = "loop-forever";

    fn with<H: Host>(_: &H, held: H::Lease, _: &ReplayInput, _: &Candidate, _: &[Candidate]) -> Outcome<H::Lease> {
        loop {
            black_box(&held);
        }
    }
}

/// Takes a lease and panics.
#[derive(Clone, Copy, Debug, Default)]
pub struct PanicHolding;

impl Misdeed for PanicHolding {
    const NAME: &'static str = "panic-holding";

    #[allow(clippy::panic, reason = "that is what it is for")]
    fn with<H: Host>(_: &H, held: H::Lease, _: &ReplayInput, _: &Candidate, _: &[Candidate]) -> Outcome<H::Lease> {
        panic!("panic-holding holds the lease of {}", held.worker())
    }
}
