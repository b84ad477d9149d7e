//! `primary`, on real documents.

use super::{Ran, World, ran};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

impl World {
    fn document(&self) -> PathBuf {
        self.root().join("control/primary.json")
    }

    fn primary(&self, machine: &str, words: &[&str]) -> Ran {
        let mut arguments = vec!["primary", words[0], "--machine", machine];
        arguments.extend(&words[1..]);
        self.run(&arguments)
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a document")).expect("JSON")
}

fn names(world: &World) -> Vec<String> {
    let entries = fs::read_dir(world.root().join("control")).expect("listed");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn there_and_back_with_a_refusal_at_each_step() {
    let world = World::new();
    let refused = |machine: &str, words: &[&str], code: i32, error: &str| {
        let before = fs::read(world.document()).ok();
        for dry_run in [&["--dry-run"][..], &[]] {
            let ran = world.primary(machine, &[words, dry_run].concat()).exits(code);
            assert!(ran.stderr.starts_with(&format!("error[{error}]: ")), "{words:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("\nhelp: ") && ran.stdout.is_empty(), "{words:?}: {}", ran.stderr);
        }
        assert_eq!(fs::read(world.document()).ok(), before, "{words:?} changed the document");
    };
    let done = |machine: &str, words: &[&str], says: &str| {
        let before = fs::read(world.document()).ok();
        let files = names(&world);
        let would = world.primary(machine, &[words, &["--dry-run"]].concat()).exits(0).stdout;
        assert_eq!(would, format!("would be {says}; nothing was changed\n"));
        assert_eq!((fs::read(world.document()).ok(), names(&world)), (before, files), "a rehearsal changed something");
        assert_eq!(world.primary(machine, words).exits(0).stdout, format!("{says}\n"));
    };
    for words in [&["hand-off", "--to", "m2"][..], &["accept"], &["revert"]] {
        refused("m1", words, 1, "primary-absent");
    }
    refused("M1", &["claim"], 2, "bad-configuration");
    assert!(world.primary("m1", &["show"]).exits(0).stdout.starts_with("absent: "));
    done("m1", &["claim"], "held by m1 (generation 1)");
    refused("m1", &["claim"], 1, "primary-held");
    refused("m2", &["claim"], 1, "primary-held");
    refused("m2", &["hand-off", "--to", "m3"], 1, "not-holder");
    refused("m1", &["hand-off", "--to", "m1"], 2, "hand-off-to-itself");
    refused("m1", &["hand-off", "--to", "M2"], 2, "invalid-holder");
    refused("m1", &["accept"], 1, "not-handing-off");
    refused("m1", &["revert"], 1, "not-handing-off");
    done("m1", &["hand-off", "--to", "m2"], "handed off by m1, not yet accepted; m2 may write (generation 2)");
    refused("m1", &["accept"], 1, "not-holder");
    refused("m3", &["revert"], 1, "not-holder");
    refused("m2", &["hand-off", "--to", "m3"], 1, "handing-off");
    done("m1", &["revert"], "held by m1 (generation 3)");
    done("m1", &["hand-off", "--to", "m2"], "handed off by m1, not yet accepted; m2 may write (generation 4)");
    done("m2", &["accept"], "held by m2 (generation 5)");
    let document = read(&world.document());
    assert_eq!(
        (&document["holder"], &document["generation"], &document["state"]),
        (&json!("m2"), &json!(5), &json!("held"))
    );
    assert!(document.get("from").is_none() && document.get("expiresAt").is_none());
    assert_eq!(names(&world), ["primary.json", "primary.json.lock"], "no half-written file is left");
}

#[test]
fn what_it_says_and_how_old_it_is() {
    let world = World::new();
    let show = |code: i32| world.primary("m1", &["show", "--json"]).exits(code).json();
    let absent = show(0);
    assert_eq!((&absent["reading"], absent.get("fileAgeMs")), (&json!("absent"), None));
    world.primary("m1", &["claim"]).exits(0);
    let present = show(0);
    assert_eq!(
        (&present["reading"], &present["holder"], &present["generation"], &present["heldHere"]),
        (&json!("present"), &json!("m1"), &json!(1), &json!(true))
    );
    assert!(present["fileAgeMs"].as_u64().is_some_and(|age| age < 600_000), "{present}");
    assert_eq!(present["document"], json!(world.document().to_string_lossy()));
    let text = world.primary("m2", &["show"]).exits(0).stdout;
    assert!(text.starts_with("held by m1 (generation 1)\ndocument  "), "{text}");
    assert!(text.contains("\nchanged   ") && text.contains(" ago\n"), "{text}");
    // Another machine's clock expires nothing, in either direction.
    for renewed in [json!(0), json!(99_999_999_999_999_u64)] {
        fs::write(
            world.document(),
            json!({"holder": "m2", "generation": 7, "state": "handing-off", "from": "m1", "renewedAt": renewed})
                .to_string(),
        )
        .expect("written");
        let shown = show(0);
        assert_eq!((&shown["renewedAt"], &shown["from"], &shown["heldHere"]), (&renewed, &json!("m1"), &json!(false)));
        assert!(!world.primary("m1", &["show"]).exits(0).stdout.contains("expire"));
    }
    for text in ["", "{}", r#"{"holder":"m1","generation":1,"state":"held","renewedAt":1,"expiresAt":2}"#] {
        fs::write(world.document(), text).expect("written");
        let shown = show(1);
        assert_eq!(shown["reading"], json!("unmeasured"));
        assert!(shown["why"].as_str().is_some_and(|why| !why.is_empty()) && shown.get("holder").is_none(), "{shown}");
        assert!(world.primary("m1", &["show"]).exits(1).stdout.starts_with("unmeasured: "));
        for words in [&["claim"][..], &["hand-off", "--to", "m2"], &["accept"], &["revert"]] {
            let ran = world.primary("m1", words).exits(1);
            assert!(ran.stderr.starts_with("error[primary-unmeasured]: "), "{}", ran.stderr);
        }
        assert_eq!(fs::read_to_string(world.document()).expect("read"), text);
    }
}

#[test]
fn which_document_and_for_whom() {
    let world = World::new();
    // The root's own name and the configured document.
    world.control("machine", &json!(7));
    fs::write(world.root().join("control/machine"), "build-07\n").expect("written");
    world.run(&["primary", "claim"]).exits(0);
    assert_eq!(read(&world.document())["holder"], json!("build-07"));
    fs::write(world.root().join("warmhold.toml"), "[daemon]\nprimary = \"shared.json\"\n").expect("written");
    world.run(&["primary", "claim"]).exits(0);
    assert_eq!(read(&world.root().join("shared.json"))["holder"], json!("build-07"));
    fs::write(world.root().join("warmhold.toml"), "[daemon]\nprimary = \"none\"\n").expect("written");
    let ran = world.run(&["primary", "show"]).exits(2);
    assert!(ran.stderr.starts_with("error[no-primary]: ") && ran.stderr.contains("--file"), "{}", ran.stderr);
    let here = world.cwd().join("here.json");
    world.run(&["primary", "claim", "--file", "here.json"]).exits(0);
    assert_eq!(read(&here)["holder"], json!("build-07"));
    // A broken configuration keeps nobody from a document that is named.
    fs::write(world.root().join("warmhold.toml"), "[daemon\n").expect("written");
    world.run(&["primary", "show"]).exits(2);
    let ran =
        world.run(&["primary", "hand-off", "--to", "m2", "--file", "here.json", "--machine", "build-07", "--json"]);
    let change = ran.exits(0).json();
    assert_eq!((&change["before"]["generation"], &change["after"]["generation"]), (&json!(1), &json!(2)));
    assert_eq!((&change["after"]["from"], &change["dryRun"]), (&json!("build-07"), &json!(false)));
    let ran = world.run(&["primary", "claim", "--file", "/no/such/folder/p.json", "--machine", "m1"]).exits(2);
    assert!(ran.stderr.starts_with("error[primary-unwritable]: "), "{}", ran.stderr);
    let ran = world.run(&["--url", "http://127.0.0.1:1", "primary", "show"]).exits(2);
    assert!(ran.stderr.starts_with("error[no-url-here]: "), "{}", ran.stderr);
}

/// Many real processes at once on one document: each change that is reported was made, and none is lost.
#[test]
fn of_many_at_once_each_change_counts_once() {
    let world = World::new();
    let start = |machine: &str, words: &[&str]| {
        let mut command = world.command();
        command.args(["primary", words[0], "--file", "p.json", "--machine", machine]).args(&words[1..]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
    };
    let ends = |processes: Vec<std::process::Child>| {
        let outputs = processes.into_iter().map(|process| process.wait_with_output().expect("ended"));
        outputs
            .map(|output| (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
            .collect::<Vec<_>>()
    };
    let claims = ends((0..8).map(|n| start(&format!("m{n}"), &["claim"])).collect());
    assert_eq!(claims.iter().filter(|(code, _)| *code == Some(0)).count(), 1, "{claims:?}");
    assert!(
        claims.iter().all(|(code, error)| *code == Some(0) || error.starts_with("error[primary-held]")),
        "{claims:?}"
    );
    let document = world.cwd().join("p.json");
    let mut generation = 1;
    let mut holder = read(&document)["holder"].as_str().expect("a holder").to_owned();
    for round in 0..4 {
        let other = format!("n{round}");
        let hand_offs = ends((0..6).map(|_| start(&holder, &["hand-off", "--to", &other])).collect());
        assert_eq!(hand_offs.iter().filter(|(code, _)| *code == Some(0)).count(), 1, "{hand_offs:?}");
        // Either side ends it, and only one does.
        let settles = (0..6).map(|n| if n % 2 == 0 { start(&other, &["accept"]) } else { start(&holder, &["revert"]) });
        let settled = ends(settles.collect());
        assert_eq!(settled.iter().filter(|(code, _)| *code == Some(0)).count(), 1, "{settled:?}");
        generation += 2;
        let now = read(&document);
        assert_eq!((&now["generation"], &now["state"]), (&json!(generation), &json!("held")));
        now["holder"].as_str().expect("a holder").clone_into(&mut holder);
    }
    let entries = fs::read_dir(world.cwd()).expect("listed");
    let mut left: Vec<_> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    left.sort();
    assert_eq!(left, ["p.json", "p.json.lock"]);
}

/// A reader at any moment finds a whole document, old or new.
#[test]
fn no_reader_sees_a_half_written_document() {
    let world = World::new();
    world.run(&["primary", "claim", "--file", "p.json", "--machine", "m1"]).exits(0);
    let document = world.cwd().join("p.json");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut last, mut reads) = (0, 0_u64);
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let generation = read(&document)["generation"].as_u64().expect("a generation");
                assert!(generation >= last, "{generation} after {last}");
                (last, reads) = (generation, reads + 1);
            }
            reads
        });
        for _ in 0..10 {
            for words in [&["hand-off", "--to", "m2"][..], &["revert"]] {
                let mut command = world.command();
                command.args(["primary", words[0], "--file", "p.json", "--machine", "m1"]).args(&words[1..]);
                ran(&mut command).exits(0);
            }
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(reading.join().expect("the reader") > 0);
    });
    assert_eq!(read(&document)["generation"], json!(21));
}
