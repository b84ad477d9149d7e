//! Figures for whoever watches the daemon, in Prometheus' text format.

use super::answer::Answer;
use super::exchange::Exchange;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Bounds of the buckets of a request's duration, in seconds.
const BUCKETS: [f64; 12] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// What has been answered since the start. Labels are routes, statuses and codes: none of them is a client's to choose.
#[derive(Default)]
pub(super) struct Metrics {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    answers: BTreeMap<(&'static str, u16), u64>,
    refusals: BTreeMap<Cow<'static, str>, u64>,
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
}

impl Metrics {
    pub(super) fn count(&self, route: &'static str, answer: &Answer, took: Duration) {
        let took = took.as_secs_f64();
        let mut counts = self.counts.lock();
        *counts.answers.entry((route, answer.status.as_u16())).or_default() += 1;
        if let Some(code) = &answer.code {
            match counts.refusals.get_mut(code) {
                Some(count) => *count += 1,
                None => {
                    counts.refusals.insert(code.clone(), 1);
                }
            }
        }
        counts.seconds += took;
        for (bucket, bound) in counts.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(took <= bound);
        }
    }

    fn text(&self) -> String {
        let counts = self.counts.lock();
        let mut out = String::new();
        head(&mut out, "warmhold_http_answers_total", "counter", "Answers by route and status.");
        // Writing to a String can't fail, here and below.
        for ((route, status), count) in &counts.answers {
            let _ = writeln!(out, "warmhold_http_answers_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        head(&mut out, "warmhold_http_refusals_total", "counter", "Refusals by code.");
        for (code, count) in &counts.refusals {
            let _ = writeln!(out, "warmhold_http_refusals_total{{code=\"{code}\"}} {count}");
        }
        head(&mut out, "warmhold_http_request_seconds", "histogram", "From a request's head to its answer's.");
        for (bound, count) in BUCKETS.iter().zip(counts.buckets) {
            let _ = writeln!(out, "warmhold_http_request_seconds_bucket{{le=\"{bound}\"}} {count}");
        }
        let all: u64 = counts.answers.values().sum();
        let _ = writeln!(out, "warmhold_http_request_seconds_bucket{{le=\"+Inf\"}} {all}");
        let _ = writeln!(out, "warmhold_http_request_seconds_sum {}", counts.seconds);
        let _ = writeln!(out, "warmhold_http_request_seconds_count {all}");
        out
    }
}

/// `GET /metrics`.
pub(super) fn show(exchange: &Exchange) -> Answer {
    let mut out = exchange.control.metrics.text();
    let stats = exchange.control.options.ledger.stats();
    for (name, kind, help, value) in [
        ("warmhold_ledger_commits_total", "counter", "Commits; each costs one sync.", stats.commits),
        ("warmhold_ledger_writes_total", "counter", "Changes in them.", stats.writes),
        ("warmhold_ledger_uncertain_total", "counter", "Requests whose commit failed.", stats.uncertain),
        ("warmhold_ledger_rows", "gauge", "Rows in memory.", stats.rows),
        ("warmhold_ledger_waiting", "gauge", "Writes that wait now.", stats.waiting),
    ] {
        head(&mut out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    }
    Answer::metrics(out)
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
