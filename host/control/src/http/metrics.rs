//! `GET /metrics`: the figures in Prometheus' text format, with what others know at this moment.

use super::answer::Answer;
use super::exchange::Exchange;
use super::{Control, within};
use crate::api::{PolicyState, PolicyView};
use crate::error::ApiError;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use warmhold_ledger::Stats;

/// Answers the question.
pub(super) async fn show(exchange: &Exchange) -> Result<Answer, ApiError> {
    let Control { options, figures, reads, .. } = &*exchange.control;
    // Whoever looks when something is wrong sees the rest all the same.
    let free = reads.read(|ledger| ledger.free_space()).await.ok();
    let policies = within(options.limits.read_time, options.policies.list()).await.unwrap_or_default();
    let text = gathered(&options.ledger.stats(), free, &policies).and_then(|moment| {
        let mut families = figures.registry.gather();
        families.extend(moment.gather());
        TextEncoder::new().encode_to_string(&families)
    });
    text.map(Answer::metrics).map_err(|error| {
        tracing::error!(%error, "the figures can't be written");
        ApiError::internal()
    })
}

/// What is asked for only now: figures that somebody else keeps.
fn gathered(stats: &Stats, free: Option<u64>, policies: &[PolicyView]) -> prometheus::Result<Registry> {
    let moment = Registry::new();
    for (name, help, value) in [
        ("warmhold_ledger_commits_total", "Commits; each costs one sync.", stats.commits),
        ("warmhold_ledger_writes_total", "Changes in them.", stats.writes),
        ("warmhold_ledger_unchanged_total", "Writes that were answered without a change.", stats.unchanged),
        ("warmhold_ledger_uncertain_total", "Writes whose commit failed.", stats.uncertain),
        ("warmhold_ledger_read_whole_total", "How often all rows were read anew.", stats.read_whole),
        ("warmhold_ledger_read_changes_total", "How often another process's changes were read.", stats.read_changes),
    ] {
        let counter = IntCounter::new(name, help)?;
        counter.inc_by(value);
        moment.register(Box::new(counter))?;
    }
    for (name, help, value) in [
        ("warmhold_ledger_rows", "Rows in memory.", Some(stats.rows)),
        ("warmhold_ledger_waiting", "Writes that wait now.", Some(stats.waiting)),
        (
            "warmhold_ledger_failing",
            "1 while the last thing that was to be written wasn't.",
            Some(stats.failing.into()),
        ),
        ("warmhold_ledger_free_bytes", "What may still be written on the ledger's disk.", free),
    ] {
        if let Some(value) = value {
            let gauge = IntGauge::new(name, help)?;
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            moment.register(Box::new(gauge))?;
        }
    }
    let labels = &["slot", "policy"];
    let calls = IntCounterVec::new(Opts::new("warmhold_policy_calls_total", "Calls of a policy."), labels)?;
    let faults = IntCounterVec::new(Opts::new("warmhold_policy_faults_total", "Calls that were its fault."), labels)?;
    let serving = IntGaugeVec::new(Opts::new("warmhold_policy_serving", "1 for the policy that serves."), labels)?;
    for policy in policies {
        let tag = format!("{}@sha256:{}#{}", policy.name, policy.digest, policy.generation);
        let labels = [policy.slot.as_str(), tag.as_str()];
        calls.with_label_values(&labels).inc_by(policy.calls);
        faults.with_label_values(&labels).inc_by(policy.faults);
        serving.with_label_values(&labels).set((policy.state == PolicyState::Serving).into());
    }
    moment.register(Box::new(calls))?;
    moment.register(Box::new(faults))?;
    moment.register(Box::new(serving))?;
    let build = IntGaugeVec::new(Opts::new("warmhold_build_info", "1, with the daemon's version."), &["version"])?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    moment.register(Box::new(build))?;
    Ok(moment)
}
