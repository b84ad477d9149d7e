//! Help, usage errors, completions and manual pages.

use super::{World, ran};
use clap::CommandFactory as _;

/// Every command with its words, parents first.
fn commands(command: &clap::Command, words: &[String]) -> Vec<Vec<String>> {
    let mut found = vec![words.to_vec()];
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let words: Vec<_> = words.iter().cloned().chain([sub.get_name().to_owned()]).collect();
        found.extend(commands(sub, &words));
    }
    found
}

#[test]
fn every_command_has_help_with_an_example() {
    let world = World::new();
    let all = commands(&warmhold::cli::Cli::command(), &[]);
    assert!(all.len() > 20, "{all:?}");
    for words in all {
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        arguments.push("--help");
        let ran = world.run(&arguments).exits(0);
        assert!(ran.stderr.is_empty(), "{words:?}: {}", ran.stderr);
        // A group's own help lists commands that have examples.
        let group = ran.stdout.contains("Commands:") && !words.is_empty();
        let example = ran.stdout.split("Example:\n  ").nth(1);
        assert!(group || example.is_some_and(|example| example.contains("warmhold")), "{words:?}: {}", ran.stdout);
    }
}

#[test]
fn wrong_usage_has_the_form_of_every_other_error() {
    let world = World::new();
    for (arguments, message, help) in [
        (
            &["replay"][..],
            "error[usage]: the following required arguments were not provided:",
            "help: usage: warmhold replay",
        ),
        (
            &["replay", "--keeep", "a"],
            "error[usage]: unexpected argument '--keeep' found",
            "help: a similar argument exists: '--keep'",
        ),
        (&["doctr"], "error[usage]: unrecognized subcommand 'doctr'", "help: a similar subcommand exists: 'doctor'"),
        (
            &["replay", "--deadline", "120", "a"],
            "error[usage]: invalid value '120' for '--deadline <TIME>'",
            "help: usage",
        ),
        (
            &["replay", "--deadline", "0s", "a"],
            "error[usage]: invalid value '0s' for '--deadline <TIME>'",
            "help: usage",
        ),
        (&["worker", "prepare", "--count", "0"], "error[usage]: invalid value '0' for '--count <N>'", "help: usage"),
        (
            &["policy", "load", "leese", "a.wasm"],
            "error[usage]: invalid value 'leese' for '<SLOT>'",
            "help: a similar value exists: 'lease'",
        ),
        (
            &["serve", "--no-primary", "--primary-lease", "f"],
            "error[usage]: the argument '--no-primary' cannot be used with",
            "help: usage",
        ),
        (
            &["serve", "--require-primary"],
            "error[usage]: the following required arguments were not provided:",
            "help: usage",
        ),
    ] {
        let ran = world.run(arguments).exits(2);
        assert!(ran.stderr.starts_with(message), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.lines().any(|line| line.starts_with(help)), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty());
    }
    for arguments in [&[][..], &["worker"]] {
        let bare = ran(world.command().env_remove("WARMHOLD_ROOT").args(arguments)).exits(2);
        assert!(bare.stderr.contains("Usage: warmhold"), "{}", bare.stderr);
        let ran = world.run(arguments).exits(2);
        assert!(ran.stderr.contains("warmhold") && ran.stderr.contains("<COMMAND>"), "{}", ran.stderr);
    }
}

#[test]
fn a_pipe_gets_no_colours_and_neither_does_who_wants_none() {
    let world = World::new();
    for (name, value) in [("TERM", "xterm-256color"), ("NO_COLOR", "1")] {
        for arguments in [&["--help"][..], &["wroker"], &["worker", "list"], &["doctor"]] {
            let ran = ran(world.command().env("TERM", "xterm-256color").env(name, value).args(arguments));
            assert!(!ran.stdout.contains('\x1b') && !ran.stderr.contains('\x1b'), "{arguments:?}");
        }
    }
}

/// On a real terminal, by way of `script`, which many systems have.
#[test]
fn a_terminal_gets_colours_unless_it_wants_none() {
    let world = World::new();
    let in_terminal = |no_color: &str| {
        let line = format!("{} worker list", env!("CARGO_BIN_EXE_warmhold"));
        let mut command = std::process::Command::new("script");
        command
            .args(["-qec", &line, "/dev/null"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("TERM", "xterm").env("WARMHOLD_ROOT", world.root()).env("NO_COLOR", no_color);
        command.output().ok().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (Some(coloured), Some(plain)) = (in_terminal(""), in_terminal("1")) else {
        eprintln!("skipped: this machine has no `script`");
        return;
    };
    assert!(coloured.contains("\x1b[1;31merror[unreachable]:\x1b[0m"), "{coloured:?}");
    assert!(plain.contains("error[unreachable]:") && !plain.contains('\x1b'), "{plain:?}");
}

#[test]
fn packagers_get_completions_and_pages() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.run(&["completions", shell]).exits(0).stdout.contains("warmhold"), "{shell}");
    }
    assert!(world.run(&["man"]).exits(0).stdout.contains(".TH warmhold 1"));
    let pages = world.cwd().join("pages");
    std::fs::create_dir(&pages).expect("a folder");
    world.run(&["man", "--into", "pages"]).exits(0);
    assert!(pages.join("warmhold-worker-prepare.1").is_file());
    let ran = world.run(&["man", "--into", "nowhere"]).exits(2);
    assert!(ran.stderr.starts_with("error[unwritable]: nowhere"), "{}", ran.stderr);
}
