//! `primary`: which machine may write. These work on the document itself, whether a daemon runs or not; a daemon that
//! runs looks at it with every request.

use super::output::{print, print_json};
use crate::cli::{Global, PrimaryArgs, PrimaryChangeArgs, PrimaryCommand};
use crate::config::{Config, Overrides, Primary};
use crate::error::{CliError, Exit};
use crate::term::span;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use warmhold_control::MachineName;
use warmhold_control::primary::{Change, ChangeError, Changed, Document, Look, Reading, State, look};

pub(super) fn run(global: &Global, command: &PrimaryCommand) -> Result<Exit, CliError> {
    super::only_here(global, "the primary document is read and changed")?;
    match command {
        PrimaryCommand::Show(args) => show(global, args),
        PrimaryCommand::Claim(args) => change(global, args, Change::Claim),
        PrimaryCommand::HandOff { to, change: args } => change(global, args, Change::HandOff { to }),
        PrimaryCommand::Accept(args) => change(global, args, Change::Accept),
        PrimaryCommand::Revert(args) => change(global, args, Change::Revert),
    }
}

/// The document, and who acts on it.
fn target(global: &Global, args: &PrimaryArgs) -> Result<(PathBuf, MachineName), CliError> {
    let (file, machine) = match (&args.file, &args.machine) {
        (Some(file), Some(machine)) => (file.clone(), machine.clone()),
        // A fault of the configuration must not keep anybody from the document, so it is asked only where it is needed.
        (file, machine) => {
            let root = super::root(global)?;
            let overrides = Overrides { machine: machine.clone(), ..Overrides::default() };
            let config = Config::load_with(&root, &overrides)?;
            let file = match (file, config.daemon.primary) {
                (Some(file), _) => file.clone(),
                (None, Primary::File(file)) => file,
                (None, Primary::Own) => root.join("control").join("primary.json"),
                (None, Primary::None) => {
                    return Err(CliError::usage(
                        "no-primary",
                        "the configuration says that there is no primary document",
                    )
                    .with_help("name a document with --file, or set `primary` in warmhold.toml"));
                }
            };
            (file, config.daemon.machine)
        }
    };
    let machine = MachineName::parse(&machine).map_err(|error| {
        CliError::usage(error.code(), error.to_string()).with_help("name the machine that acts with --machine")
    })?;
    Ok((std::path::absolute(&file).unwrap_or(file), machine))
}

fn show(global: &Global, args: &PrimaryArgs) -> Result<Exit, CliError> {
    let (path, machine) = target(global, args)?;
    let Look { reading, age } = look(&path);
    let age = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let measured = !matches!(reading, Reading::Unmeasured(_));
    if args.json {
        let mut facts = Map::new();
        facts.insert("document".into(), json!(path.to_string_lossy()));
        facts.insert("machine".into(), json!(machine));
        match &reading {
            Reading::Present(document) => {
                facts.insert("reading".into(), "present".into());
                facts.insert("heldHere".into(), json!(document.holder == machine.as_str()));
                if let Value::Object(document) = json!(document) {
                    facts.extend(document);
                }
            }
            Reading::Absent => drop(facts.insert("reading".into(), "absent".into())),
            Reading::Unmeasured(why) => {
                facts.insert("reading".into(), "unmeasured".into());
                facts.insert("why".into(), json!(why));
            }
        }
        if let Some(age) = age {
            facts.insert("fileAgeMs".into(), json!(age));
        }
        print_json(&Value::Object(facts))?;
    } else {
        let mut text = match &reading {
            Reading::Present(document) => {
                let here = if document.holder == machine.as_str() { ", this machine" } else { "" };
                format!("{}{here}\n", sentence(document))
            }
            Reading::Absent => "absent: nobody holds it, and it may be claimed\n".to_owned(),
            Reading::Unmeasured(why) => {
                format!("unmeasured: {why}\nNobody here may change it, and no worker's row is written.\n")
            }
        };
        text.push_str(&format!("document  {}\nmachine   {machine}\n", path.display()));
        if let Some(age) = age {
            text.push_str(&format!("changed   {} ago\n", span(age)));
        }
        print(&text)?;
    }
    Ok(if measured { Exit::Done } else { Exit::No })
}

fn sentence(document: &Document) -> String {
    let Document { holder, generation, .. } = document;
    match &document.state {
        State::Held => format!("held by {holder} (generation {generation})"),
        State::HandingOff { from: Some(from) } => {
            format!("handed off by {from}, not yet accepted; {holder} may write (generation {generation})")
        }
        State::HandingOff { from: None } => {
            format!("handed off, not yet accepted; {holder} may write (generation {generation})")
        }
    }
}

fn change(global: &Global, args: &PrimaryChangeArgs, change: Change<'_>) -> Result<Exit, CliError> {
    let (path, machine) = target(global, &args.of)?;
    let done = if args.dry_run { change.rehearse(&path, &machine) } else { change.make(&path, &machine) };
    let Changed { before, after } = done.map_err(|error| refused(&error))?;
    if args.of.json {
        print_json(&json!({
            "document": path.to_string_lossy(), "machine": machine, "dryRun": args.dry_run, "before": before,
            "after": after,
        }))?;
    } else if args.dry_run {
        print(&format!("would be {}; nothing was changed\n", sentence(&after)))?;
    } else {
        print(&format!("{}\n", sentence(&after)))?;
    }
    Ok(Exit::Done)
}

/// What to do about it; the exit code says whether the answer is no, or the question was wrong.
fn refused(error: &ChangeError) -> CliError {
    let help = match error {
        ChangeError::Unmeasured { .. } => {
            "it may be anybody's: see what wrote it, and put a right document back, or take the file away if nobody needs it"
        }
        ChangeError::Absent { .. } => "take it with `warmhold primary claim`",
        ChangeError::Held { .. } => "its holder gives it away with `warmhold primary hand-off --to HOLDER`",
        ChangeError::NotHolder { .. } => "run this on the machine that holds it, or name that one with --machine",
        ChangeError::HandingOff { .. } => "end that first, with `warmhold primary accept` or `revert`",
        ChangeError::NotHandingOff { .. } => "`warmhold primary show` says who holds it",
        ChangeError::NoWayBack => "the new holder can accept it, and hand it off in turn",
        ChangeError::ToItself { .. } => "name another machine with --to",
        ChangeError::Name { .. } => "names of holders are such as build-07",
        ChangeError::Exhausted => "this document was not written by these commands: see what did",
        ChangeError::Raced { .. } => "look at it with `warmhold primary show`, and decide again",
        ChangeError::Busy { .. } => "see who has its lock file open (`fuser FILE.lock`), and try again",
        ChangeError::Io { .. } => "the folder must be there, and this user must be able to write in it",
    };
    let report = match error {
        ChangeError::Name { .. } | ChangeError::ToItself { .. } | ChangeError::Io { .. } => CliError::usage,
        _ => CliError::no,
    };
    report(error.code(), error.to_string()).with_help(help)
}
