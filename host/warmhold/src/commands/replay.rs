//! `replay`: asks for one and shows it while it runs.

use super::output::{print, print_json, view};
use super::{connect, repository};
use crate::cli::{Global, ReplayArgs};
use crate::client::{Lines, Role, Streamed, refusal, view};
use crate::error::{CliError, Exit};
use crate::term::{Paint, harmless, span};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::time::Duration;

/// So much of a failing test's output is shown.
const SHOWN_LINES: usize = 20;
const SHOWN_LINE_CHARS: usize = 200;

/// How much longer than its own deadline a replay's answer may take: the worker is cleaned and given back first.
const SETTLING: Duration = Duration::from_secs(60);

pub(super) fn run(global: &Global, args: &ReplayArgs) -> Result<Exit, CliError> {
    let (cut, files) = repository::resolve(args.cut.as_deref(), &args.files)?;
    let baseline = match &args.baseline {
        Some(name) => Some(repository::resolve(Some(name), &[])?.0),
        None => None,
    };
    if args.cut.is_none()
        && let Some(repository) = repository::Repository::here()
    {
        warn_of_changes(&repository.changed(&files), &cut);
    }
    let client = connect(global, Role::Member)?;
    let run_id = args.run.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let mut ask = json!({
        "files": files, "cutSha": cut, "runId": run_id, "attemptId": args.attempt,
        "deadlineMs": u64::try_from(args.deadline.as_millis()).unwrap_or(u64::MAX), "keep": args.keep,
    });
    for (name, value) in [("baselineSha", &baseline), ("profile", &args.profile)] {
        if let (Some(value), Some(fields)) = (value, ask.as_object_mut()) {
            fields.insert(name.to_owned(), Value::from(value.as_str()));
        }
    }
    let replay = match client.stream("/v1/replays", &ask, args.deadline + SETTLING)? {
        Streamed::Whole(replay) => replay,
        Streamed::Events(lines) => follow(lines, args.json, &run_id)?,
    };
    let seen: view::Replay = view(&replay)?;
    if args.json {
        print_json(&replay)?;
    } else {
        print(&verdict(&seen, Paint::stdout()))?;
    }
    ending(&seen)
}

fn warn_of_changes(changed: &[String], cut: &str) {
    let paint = Paint::stderr();
    for file in changed {
        let short: String = cut.chars().take(10).collect();
        eprintln!(
            "{} {} isn't as in the commit; the replay runs it as of {short}",
            paint.yellow("warning:"),
            harmless(file)
        );
    }
    if !changed.is_empty() {
        eprintln!("{} commit first to replay what lies in the work tree", paint.cyan("help:"));
    }
}

/// Shows events until the result, and answers it.
fn follow(mut lines: Lines, quiet: bool, run_id: &str) -> Result<Value, CliError> {
    let mut shown = Progress { paint: Paint::stdout(), quiet, heads: HashMap::new() };
    loop {
        let event = match lines.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => return Err(lost("the stream ended", run_id)),
            Err(why) => return Err(lost(&why, run_id)),
        };
        match event.get("event").and_then(Value::as_str) {
            Some("result") => return Ok(result_of(event)),
            Some("error") => {
                let status = event.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
                return Err(refusal(status.unwrap_or(503), Some(&event)));
            }
            Some("state") => shown.state(&view(&event)?),
            Some("output") => shown.output(&event),
            Some("file") => shown.file(&view(&event)?)?,
            // A newer daemon may have more to say.
            _ => {}
        }
    }
}

/// The replay of a result event: under `replay`, or the event itself.
fn result_of(mut event: Value) -> Value {
    if let Some(fields) = event.as_object_mut() {
        if let Some(replay) = fields.get_mut("replay").filter(|replay| replay.is_object()) {
            return replay.take();
        }
        fields.shift_remove("event");
    }
    event
}

fn lost(why: &str, run_id: &str) -> CliError {
    CliError::unreachable("connection-lost", format!("the daemon went away in the middle of the replay: {why}"))
        .with_help(format!(
            "once it runs again, `warmhold replay --run {run_id}` with the same files answers what became of it"
        ))
}

/// What has been shown so far, and the output that is held back until it is known whether the file fails.
struct Progress {
    paint: Paint,
    quiet: bool,
    heads: HashMap<String, Head>,
}

/// The first lines of a file's output.
#[derive(Default)]
struct Head {
    lines: Vec<String>,
    /// The line before its end has come, by stream.
    open: HashMap<String, String>,
    more: bool,
}

impl Progress {
    fn state(&self, step: &view::Step) {
        if self.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let note = step.note.as_deref().map(|note| format!(": {}", harmless(note))).unwrap_or_default();
        eprintln!("{}", Paint::stderr().dim(&format!("… {}{note}", harmless(&step.state))));
    }

    fn output(&mut self, event: &Value) {
        let text = |name| event.get(name).and_then(Value::as_str).unwrap_or_default();
        if !self.quiet {
            self.heads.entry(text("file").to_owned()).or_default().push(text("stream"), text("text"));
        }
    }

    fn file(&mut self, file: &view::File) -> Result<(), CliError> {
        if self.quiet {
            return Ok(());
        }
        let head = self.heads.remove(&file.file);
        let mut text = file_line(file, self.paint);
        if let Some(head) = head.filter(|_| !file.passed()) {
            text.push_str(&head.finish(self.paint));
        }
        print(&text)
    }
}

impl Head {
    fn push(&mut self, stream: &str, text: &str) {
        for piece in text.split_inclusive('\n') {
            if self.lines.len() >= SHOWN_LINES {
                self.more = true;
                return;
            }
            let open = self.open.entry(stream.to_owned()).or_default();
            // Far more than is shown of a line, and yet bounded.
            if open.len() < 4 * SHOWN_LINE_CHARS {
                open.push_str(piece.trim_end_matches('\n'));
            }
            if piece.ends_with('\n') {
                let line = std::mem::take(open);
                self.lines.push(line);
            }
        }
    }

    fn finish(mut self, paint: Paint) -> String {
        let mut rest: Vec<_> = self.open.drain().filter(|(_, line)| !line.is_empty()).collect();
        rest.sort();
        for (_, line) in rest {
            if self.lines.len() < SHOWN_LINES { self.lines.push(line) } else { self.more = true }
        }
        if self.more {
            self.lines.push("…".to_owned());
        }
        self.lines
            .iter()
            .map(|line| {
                let line: String = harmless(line).chars().take(SHOWN_LINE_CHARS).collect();
                format!("      {} {line}\n", paint.dim("|"))
            })
            .collect()
    }
}

pub(super) fn file_line(file: &view::File, paint: Paint) -> String {
    let (mark, ending) = if file.passed() {
        (paint.green("ok  "), String::new())
    } else {
        (paint.red("FAIL"), format!("{}, ", file.ending()))
    };
    let line =
        format!("{mark}  {}  {}\n", harmless(&file.file), paint.dim(&format!("({ending}{})", span(file.duration_ms))));
    match &file.detail {
        Some(detail) => format!("{line}      {} {}\n", paint.dim("|"), harmless(detail)),
        None => line,
    }
}

/// The last lines: what came of it, where it ran and how far the tests were kept apart.
fn verdict(replay: &view::Replay, paint: Paint) -> String {
    let mut text = String::new();
    if replay.outcome.as_deref() == Some("observed") {
        let failed = replay.files.iter().filter(|file| !file.passed()).count();
        let total = replay.files.len();
        let line = if replay.passed {
            paint.green(&format!("passed: {total} of {total}"))
        } else {
            paint.red(&format!("failed: {failed} of {total}"))
        };
        let place = replay
            .worker
            .as_ref()
            .map(|worker| format!(" in {} (generation {})", harmless(&worker.id), worker.generation));
        text.push_str(&format!("{line}{}, {}\n", place.unwrap_or_default(), settled(&replay.state)));
    }
    if let Some(isolation) = replay.isolation.as_ref().filter(|isolation| isolation.level != "full") {
        let why: Vec<_> = isolation.why.iter().map(|why| harmless(why)).collect();
        text.push_str(&format!(
            "{} {}\n",
            paint.yellow(&format!("isolation {}:", harmless(&isolation.level))),
            why.join("; ")
        ));
    }
    if replay.state == "observed" {
        let id = harmless(&replay.id);
        text.push_str(&format!("settle it: warmhold replays finalize {id}, or warmhold replays quarantine {id}\n"));
    }
    text
}

fn settled(state: &str) -> String {
    match state {
        "finalized" => "the worker was cleaned and given back".to_owned(),
        "observed" => "the worker stays leased until you settle it".to_owned(),
        "quarantined" => "the worker was taken out of use".to_owned(),
        other => harmless(other),
    }
}

/// Exit 0 when all passed and the worker's verdict stands; else an error that says why not.
fn ending(replay: &view::Replay) -> Result<Exit, CliError> {
    let reason = replay.reason.as_deref().map(harmless);
    let detail = replay.detail.as_deref().map(harmless);
    if replay.outcome.as_deref() != Some("observed") {
        let reason = reason.unwrap_or_else(|| harmless(&replay.state));
        let why = detail.unwrap_or_else(|| reason.clone());
        let error = CliError::no(&reason, format!("no result: {why}"));
        return Err(match reason.as_str() {
            // The daemon's words for a cut without a worker; any other want of a candidate is the request's own.
            "no-candidate" if why.contains(" is prepared for cut ") => {
                error.with_help(format!("warmhold worker prepare --cut {}", harmless(&replay.cut_sha)))
            }
            "no-candidate" => error.with_help("correct the request: files of the commit, relative to the repository"),
            "lease-unavailable" => error.with_help(
                "`warmhold worker list` shows who is free; wait, or fill places with `warmhold worker prepare`",
            ),
            "policy-failed" => {
                error.with_help("`warmhold policy list` shows faults; `warmhold policy rollback SLOT` takes one back")
            }
            _ => error.with_help(format!(
                "run the tests in another way; `warmhold replays show {}` tells more",
                harmless(&replay.id)
            )),
        });
    }
    if replay.state == "quarantined" {
        let reason = reason.unwrap_or_else(|| "quarantined".to_owned());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        return Err(CliError::no(&reason, format!("the worker could not be given back: {reason}{detail}"))
            .with_help("the result above was observed; `warmhold worker prepare` fills the worker's place again"));
    }
    Ok(if replay.passed { Exit::Done } else { Exit::No })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_output_is_bounded_and_keeps_streams_apart() {
        let mut head = Head::default();
        head.push("stdout", "one\ntw");
        head.push("stderr", "oops\n");
        head.push("stdout", "o\nlast");
        assert_eq!(head.finish(Paint::none()), "      | one\n      | oops\n      | two\n      | last\n");

        let mut head = Head::default();
        head.push("stdout", &"x".repeat(10_000));
        head.push("stdout", &"line\n".repeat(1_000));
        let shown = head.finish(Paint::none());
        assert_eq!(shown.lines().count(), SHOWN_LINES + 1);
        assert!(shown.ends_with("| …\n"));
        assert!(shown.lines().all(|line| line.chars().count() <= SHOWN_LINE_CHARS + 8), "{shown}");
    }

    #[test]
    fn a_result_is_the_same_however_it_is_wrapped() {
        let replay = json!({"id": "r", "passed": true});
        assert_eq!(result_of(json!({"event": "result", "replay": replay})), replay);
        assert_eq!(result_of(json!({"event": "result", "id": "r", "passed": true})), replay);
    }

    #[test]
    fn only_an_observation_that_stands_and_passed_is_a_yes() {
        let replay = |outcome: &str, state: &str, passed| view::Replay {
            outcome: Some(outcome.into()),
            state: state.into(),
            passed,
            ..view::Replay::default()
        };
        assert_eq!(ending(&replay("observed", "finalized", true)), Ok(Exit::Done));
        assert_eq!(ending(&replay("observed", "observed", true)), Ok(Exit::Done));
        assert_eq!(ending(&replay("observed", "finalized", false)), Ok(Exit::No));
        assert_eq!(ending(&replay("observed", "quarantined", true)).expect_err("no").exit, Exit::No);
        assert_eq!(ending(&replay("fallback", "fallback", true)).expect_err("no").exit, Exit::No);
        assert_eq!(ending(&view::Replay { passed: true, ..view::Replay::default() }).expect_err("no").exit, Exit::No);
    }
}
