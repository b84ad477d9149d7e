//! Replays from end to end, as a user asks for them and sees them.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use warmhold_tests::{Client, Ran, Site, items, states, text, until};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

/// Every worker's state, by the only one that it is.
fn all_are(site: &Site, state: &str) -> Result<bool> {
    Ok(site.workers()?.iter().all(|worker| worker["state"] == state))
}

fn sha256(bytes: &[u8]) -> Result<String> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no stdin")?.write_all(bytes)?;
    let output = child.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?.chars().take(64).collect())
}

#[test]
fn a_user_sees_what_became_of_each_file() -> Result<()> {
    let site = Site::for_test()?;
    let early = site.run(&["worker", "list"])?;
    assert_eq!(early.code, 3, "{early:?}");
    assert!(early.stderr.contains("error[unreachable]") && early.stderr.contains("help: start it with"), "{early:?}");

    // What a test can find out about where it is, and what it can reach from there.
    let daemon = site.serve()?;
    let (tokens, url) = (site.root().join("control/tokens.json"), format!("{}/healthz", daemon.url));
    site.repository.write(
        "probe/where.sh",
        &format!(
            r#"
            set -eu
            test "$(id -u)" -ge {least} && test "$TZ $LANG $LC_ALL" = "UTC C.UTF-8 C.UTF-8"
            if env | grep -E '^(WARM_KEY|WARM_DATA|WARMHOLD_ROOT|CARGO_MANIFEST_DIR)='; then exit 3; fi
            if cat "{tokens}"; then exit 4; fi
            python3 - "{url}" <<'PY'
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5)
except OSError:
    sys.exit(0)
sys.exit("the daemon can be reached")
PY
            echo kept > "$WARM_ARTIFACTS/report.txt"; mkdir "$WARM_ARTIFACTS/deep"; printf x > "$WARM_ARTIFACTS/deep/x"
            touch "$HOME/a" "$TMPDIR/b" ./c
            "#,
            least = if rustix::process::geteuid().is_root() { 1000 } else { 1 },
            tokens = tokens.display(),
        ),
    )?;
    site.repository.write("probe/again.sh", "test ! -e ./c && test ! -e \"$HOME/a\" && test ! -e \"$TMPDIR/b\"\n")?;
    let head = site.repository.commit("probes")?;
    let prepared = site.prepare(2)?;
    assert_eq!(keys(&prepared[0]), BTreeSet::from(["workerId", "pod", "podUid", "prepared"]));
    assert_ne!(prepared[0]["pod"], prepared[1]["pod"]);
    assert!(all_are(&site, "idle")?);

    let passing = site.run(&["replay", "tests/words.sh", "tests/test_words.py", "tests/words.test.mjs"])?;
    assert_eq!(passing.code, 0, "{passing:?}");
    for line in ["ok    tests/words.sh ", "ok    tests/test_words.py ", "ok    tests/words.test.mjs ", "passed: 3 of 3"]
    {
        assert!(passing.stdout.contains(line), "{line}: {passing:?}");
    }
    assert!(passing.stdout.contains("the worker was cleaned and given back"), "{passing:?}");
    assert!(!passing.stdout.contains("ok: the most frequent"), "the output of what passes isn't shown: {passing:?}");
    assert!(passing.stderr.is_empty(), "no progress where there is no terminal: {passing:?}");

    let failing = site.run(&["replay", "tests/words.sh", "tests-failing/words.sh", "tests-failing/test_words.py"])?;
    assert_eq!(failing.code, 1, "{failing:?}");
    assert!(failing.stdout.contains("ok    tests/words.sh "), "{failing:?}");
    assert!(failing.stdout.contains("FAIL  tests-failing/words.sh  (exit 42"), "{failing:?}");
    assert!(failing.stdout.contains("| counting on case\n"), "{failing:?}");
    assert!(failing.stdout.contains("| expected 1 Be, got 2 be\n"), "stderr too: {failing:?}");
    assert!(failing.stdout.contains("FAIL  tests-failing/test_words.py  (exit 1"), "{failing:?}");
    assert!(failing.stdout.contains("failed: 2 of 3"), "{failing:?}");
    assert!(all_are(&site, "idle")?, "a test that fails costs no worker");

    let ran = site.run(&["replay", "--json", "--run", "shape", "probe/where.sh", "tests/words.sh"])?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let replay = ran.json()?;
    shape(&replay);
    assert_eq!((text(&replay["runId"]), text(&replay["cutSha"])), ("shape", head.as_str()));
    assert_eq!(states(&replay), ["acquiring", "leased", "executing", "observed", "finalized"]);
    assert_eq!(replay["passed"], true);
    let artifacts = replay["files"][0]["artifacts"].clone();
    assert_eq!(
        artifacts,
        json!([
            {"suffix": "deep/x", "bytes": 1, "sha256": sha256(b"x")?},
            {"suffix": "report.txt", "bytes": 5, "sha256": sha256(b"kept\n")?},
        ])
    );
    assert!(prepared.iter().any(|worker| worker["podUid"] == replay["worker"]["podUid"]), "{replay}");
    assert_eq!(text(&replay["worker"]["lease"]).len(), 8);
    if rustix::process::geteuid().is_root() {
        assert_eq!(replay["isolation"], json!({"level": "full", "why": []}));
    } else {
        assert_eq!(replay["isolation"]["level"], "reduced");
        assert_ne!(replay["isolation"]["why"], json!([]));
    }

    let again = site.run(&["replay", "--json", "probe/again.sh"])?;
    assert_eq!(again.code, 0, "nothing of a request is there in the next: {again:?}");
    assert_eq!(again.json()?["worker"]["id"], replay["worker"]["id"]);

    // The digest is of the very bytes that were printed, and they are kept with the replay.
    let plain = site.run(&["replay", "--json", "tests/words.sh"])?.json()?;
    let local = Command::new("sh").arg("tests/words.sh").current_dir(&site.repository.path).output()?;
    assert_eq!(text(&plain["files"][0]["stdout"]["sha256"]), sha256(&local.stdout)?);
    assert_eq!(plain["files"][0]["stdout"]["bytes"], local.stdout.len());

    let listed = site.run(&["replays", "list", "--json"])?.json()?;
    assert_eq!(listed.as_array().map(Vec::len), Some(5));
    assert_eq!(listed[0], plain, "the newest first, and the same object");
    assert_eq!(site.run(&["replays", "show", text(&replay["id"]), "--json"])?.json()?, replay);
    let shown = site.run(&["replays", "show", text(&replay["id"])])?;
    for part in ["run        shape, attempt 1", "history\n", "finalized", "lease by", text(&replay["worker"]["id"])] {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    let none = site.run(&["replays", "show", "r-none"])?;
    assert_eq!((none.code, none.stderr.contains("error[not-found]")), (1, true), "{none:?}");

    // What lies in the work tree isn't what runs.
    site.repository.write("tests/words.sh", "exit 9\n")?;
    let changed = site.run(&["replay", "tests/words.sh"])?;
    assert_eq!(changed.code, 0, "{changed:?}");
    assert!(changed.stderr.contains("warning: tests/words.sh isn't as in the commit"), "{changed:?}");
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}

/// The documented object, whole: nothing is missing and nothing was added.
fn shape(replay: &Value) {
    assert_eq!(
        keys(replay),
        BTreeSet::from([
            "id",
            "runId",
            "attemptId",
            "cutSha",
            "state",
            "outcome",
            "passed",
            "files",
            "worker",
            "isolation",
            "policies",
            "history"
        ])
    );
    for file in items(&replay["files"]) {
        assert_eq!(keys(file), BTreeSet::from(["file", "exit", "durationMs", "stdout", "stderr", "artifacts"]));
        assert_eq!(keys(&file["stdout"]), BTreeSet::from(["bytes", "sha256"]));
    }
    assert_eq!(
        keys(&replay["worker"]),
        BTreeSet::from(["id", "machine", "tier", "slot", "pod", "podUid", "containerId", "generation", "lease"])
    );
    assert_eq!(keys(&replay["isolation"]), BTreeSet::from(["level", "why"]));
    assert_eq!(keys(&replay["policies"]), BTreeSet::from(["lease", "manifest", "replay"]));
    for (slot, name) in [("lease", "lease-policy"), ("manifest", "pod-manifest"), ("replay", "warm-replay")] {
        let tag = replay["policies"].get(slot).map(text).unwrap_or_default();
        let digest = tag.strip_prefix(&format!("{name}@sha256:")).and_then(|rest| rest.strip_suffix("#1"));
        assert!(digest.is_some_and(|digest| digest.len() == 64), "{tag}");
    }
    for step in items(&replay["history"]) {
        assert!(keys(step).is_subset(&BTreeSet::from(["at", "state", "note"])), "{step}");
        assert!(step["at"].is_u64());
    }
}

#[test]
fn a_run_and_attempt_are_one_replay() -> Result<()> {
    let site = Site::for_test()?;
    let _daemon = site.serve()?;
    site.prepare(2)?;
    // Registered first, so listed first.
    let worker = text(&site.workers()?[0]["workerId"]).to_owned();
    let used = || -> Result<u64> { site.workers()?.iter().map(|w| w["generation"].as_u64().context("none")).sum() };

    let ask = ["replay", "--json", "--run", "once", "tests/words.sh"];
    let first = site.run(&ask)?.json()?;
    assert_eq!(first["worker"]["id"], worker.as_str(), "the one that was registered first");
    assert_eq!(used()?, 1);
    assert_eq!(site.run(&ask)?.json()?, first, "asked again it answers the same replay");
    assert_eq!(used()?, 1);
    let second = site.run(&["replay", "--json", "--run", "once", "--attempt", "2", "tests/words.sh"])?.json()?;
    assert_ne!(second["id"], first["id"]);
    assert_eq!(used()?, 2);
    let other = site.run(&["replay", "--run", "once", "tests/test_words.py"])?;
    assert_eq!(other.code, 1, "{other:?}");
    assert!(other.stderr.contains("error[run-attempt-used]") && other.stderr.contains("help:"), "{other:?}");
    assert_eq!(used()?, 2);

    // Two callers at the same moment share one lease, whatever else goes on.
    for round in 0..5 {
        let run = format!("race-{round}");
        let ask = ["replay", "--json", "--run", &run, "tests/words.sh"];
        let both = [site.spawn(&ask)?, site.spawn(&ask)?].map(Ran::end_of);
        let [left, right] = both.map(|ran| ran.and_then(|ran| ran.json()));
        assert_eq!(left?, right?, "round {round}");
        assert_eq!(used()?, 3 + round);
    }
    assert!(all_are(&site, "idle")?);
    Ok(())
}

#[test]
fn a_kept_observation_waits_for_its_callers_verdict() -> Result<()> {
    let site = Site::for_test()?;
    let daemon = site.serve()?;
    let worker = text(&site.prepare(1)?[0]["workerId"]).to_owned();
    let kept = |run: &str| -> Result<Value> {
        let ran = site.run(&["replay", "--json", "--keep", "--run", run, "tests/words.sh"])?;
        ensure!(ran.code == 0, "{ran:?}");
        ran.json()
    };

    let replay = kept("right")?;
    assert_eq!((text(&replay["state"]), text(&replay["outcome"])), ("observed", "observed"));
    assert_eq!(site.worker(&worker)?["state"], "leased");
    let busy = site.run(&["replay", "tests/words.sh"])?;
    assert_eq!((busy.code, busy.stderr.contains("error[lease-unavailable]")), (1, true), "{busy:?}");
    let id = text(&replay["id"]).to_owned();
    let strange = site.ask(&daemon, "admin", "POST", &format!("/v1/replays/{id}/finalize"), None)?;
    assert_eq!((strange.status, strange.error()), (403, "forbidden"));
    let finalized = site.run(&["replays", "finalize", &id, "--json"])?.json()?;
    assert_eq!(states(&finalized), ["acquiring", "leased", "executing", "observed", "finalized"]);
    assert_eq!(site.worker(&worker)?["state"], "idle");
    let twice = site.run(&["replays", "finalize", &id])?;
    assert_eq!((twice.code, twice.stderr.contains("error[not-observed]")), (1, true), "{twice:?}");

    let id = text(&kept("wrong")?["id"]).to_owned();
    let reason = format!("differs {}", "é".repeat(200));
    let ran = site.run(&["replays", "quarantine", &id, "--reason", &reason])?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let replay = site.run(&["replays", "show", &id, "--json"])?.json()?;
    assert_eq!((text(&replay["state"]), replay["passed"].as_bool()), ("quarantined", Some(true)));
    let worker = site.worker(&worker)?;
    assert_eq!(worker["state"], "quarantined");
    assert_eq!(text(&worker["reason"]), reason.chars().take(120).collect::<String>());
    let gone = site.run(&["replay", "tests/words.sh"])?;
    assert_eq!(gone.code, 1, "{gone:?}");
    Ok(())
}

#[test]
fn slots_are_filled_again_and_foreign_pods_are_left_alone() -> Result<()> {
    let site = Site::for_test()?;
    let _daemon = site.serve()?;
    let first = site.prepare(2)?;
    let [one, two] = [text(&first[0]["workerId"]), text(&first[1]["workerId"])];

    // What stands counts; more than the quota isn't to be had. Two are made at once, and either may be ready first.
    let by_pod = |mut workers: Vec<Value>| {
        workers.sort_by_key(|worker| text(&worker["pod"]).to_owned());
        workers
    };
    assert_eq!(by_pod(site.prepare(2)?), by_pod(first.clone()), "asked again it is so already");
    let full = site.run(&["worker", "prepare", "--json", "--count", "3"])?;
    assert_eq!(full.code, 1, "{full:?}");
    let told: Vec<Value> = items(&full.json()?).iter().map(|worker| worker["prepared"].clone()).collect();
    assert_eq!(told, [true, true, false]);
    assert!(text(&full.json()?[2]["reason"]).contains("no slot"), "{full:?}");

    // An idle one too is taken out at once, and never comes back.
    let out = site.run(&["worker", "quarantine", one, "--reason", "looks odd"])?;
    assert_eq!((out.code, out.stdout.contains("quarantined")), (0, true), "{out:?}");
    let shown = site.run(&["worker", "show", one, "--json"])?.json()?;
    assert_eq!((text(&shown["state"]), text(&shown["reason"])), ("quarantined", "looks odd"));
    assert_eq!(site.run(&["worker", "quarantine", one])?.code, 1, "once");
    for _ in 0..2 {
        let replay = site.run(&["replay", "--json", "tests/words.sh"])?.json()?;
        assert_eq!(text(&replay["worker"]["id"]), two);
    }
    let old = site.pod(text(&first[0]["pod"]));
    let (old_uid, old_process) = (old.read()?["metadata"]["uid"].clone(), old.container()?);
    let again = site.prepare(2)?;
    let filled =
        again.iter().find(|worker| worker["pod"] == first[0]["pod"]).context("the slot of the one that is out")?;
    assert_ne!(filled["workerId"], first[0]["workerId"], "an id is used once");
    assert_ne!(old.read()?["metadata"]["uid"], old_uid);
    assert!(!site.processes().contains(&old_process), "the old pod's process is gone");
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);

    // An idle one is removed, its pod with it; a leased one isn't.
    let kept = site.run(&["replay", "--json", "--keep", "tests/words.sh"])?.json()?;
    let leased = text(&kept["worker"]["id"]).to_owned();
    let refused = site.run(&["worker", "remove", &leased])?;
    assert_eq!((refused.code, refused.stderr.contains("error[worker-in-use]")), (1, true), "{refused:?}");
    assert_eq!(site.run(&["replays", "finalize", text(&kept["id"])])?.code, 0);
    let removed = site.run(&["worker", "remove", two])?;
    assert_eq!((removed.code, removed.stdout.contains("removed")), (0, true), "{removed:?}");
    assert_eq!(site.worker(two)?, Value::Null, "it isn't listed any more");
    assert!(!site.pod(text(&first[1]["pod"])).folder.exists());
    let unknown = site.run(&["worker", "remove", "w-none"])?;
    assert_eq!((unknown.code, unknown.stderr.contains("error[not-found]")), (1, true), "{unknown:?}");

    // Somebody else's pod holds the free slot's name: nobody knows it, so nobody removes it.
    let foreign = site.pod(text(&first[1]["pod"]));
    let copied = Command::new("cp").arg("-a").args([&old.folder, &foreign.folder]).status()?;
    assert!(copied.success());
    foreign.change(|pod| {
        pod["metadata"]["name"] = first[1]["pod"].clone();
        pod["metadata"]["uid"] = json!("5d0a2c6e-0000-4000-8000-000000000000");
    })?;
    let before = foreign.read()?;
    let refused = site.run(&["worker", "prepare", "--json", "--count", "2"])?;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(text(&refused.json()?[1]["reason"]).contains("never removed"), "{refused:?}");
    assert_eq!(foreign.read()?, before);
    Ok(())
}

#[test]
fn two_at_once_with_events() -> Result<()> {
    let site = Site::for_test()?;
    // Long enough to be seen together. Tests see nothing of the machine that the other, or this test, could write.
    site.repository.write("pair/wait.sh", "echo ready; test \"$1 $PAIR\" = \"go yes\"; sleep 4\n")?;
    site.repository.commit("a pair")?;
    site.configure(
        "[profile.local]\nenv = { PAIR = \"yes\" }\n\
         [[profile.local.test]]\nmatch = \"pair/*\"\nrun = [\"sh\", \"-e\", \"{file}\", \"go\"]\n",
    )?;
    let daemon = site.serve()?;
    site.prepare(2)?;

    let children = [0, 1].map(|n| site.spawn(&["replay", "--json", "--run", &format!("pair-{n}"), "pair/wait.sh"]));
    until("both workers execute", || {
        let listed = site.run(&["replays", "list", "--json"])?.json()?;
        let executing = items(&listed).iter().filter(|replay| replay["state"] == "executing").count();
        Ok((executing == 2).then_some(()))
    })?;
    let mut workers = BTreeSet::new();
    for child in children {
        let ran = Ran::end_of(child?)?;
        assert_eq!(ran.code, 0, "{ran:?}");
        workers.insert(text(&ran.json()?["worker"]["id"]).to_owned());
    }
    assert_eq!(workers.len(), 2);

    // The same over HTTP, with what happens on the way.
    let client = Client::new(&daemon.url, &site.token("member")?);
    let ask = json!({"files": ["tests/words.sh", "tests-failing/words.sh"], "cutSha": site.repository.head()?});
    let answer = client.request("POST", "/v1/replays", Some(&ask), &[("accept", "application/x-ndjson")])?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let events = answer.text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).cloned().collect::<Vec<_>>();
    let told: Vec<Value> = of("state").iter().map(|event| event["state"].clone()).collect();
    assert_eq!(told, ["acquiring", "leased", "executing", "observed", "finalized"]);
    let output: String = of("output")
        .iter()
        .filter(|event| event["file"] == "tests-failing/words.sh" && event["stream"] == "stdout")
        .map(|event| text(&event["text"]).to_owned())
        .collect();
    assert_eq!(output, "counting on case\n");
    let exits: Vec<Value> = of("file").iter().map(|event| event["exit"].clone()).collect();
    assert_eq!(exits, [0, 42]);
    let last = events.last().context("no events")?;
    assert_eq!(last["event"], "result");
    assert_eq!(last["replay"]["passed"], false);

    // Without events: one answer, with the policy's name on it.
    let plain = client.request("POST", "/v1/replays", Some(&ask), &[])?;
    assert_eq!((plain.status, &plain.json["state"]), (200, &json!("finalized")));
    assert_eq!(plain.header("x-warmhold-policy"), plain.json["policies"]["replay"].as_str());
    assert_ne!(plain.json["id"], last["replay"]["id"], "no run was named: each is its own");

    // Many at once: each gets a worker or is told that there's none, and none is lost.
    let barrier = Barrier::new(6);
    let codes = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    site.run(&["replay", "--json", "tests/words.sh"])
                })
            })
            .collect();
        asked
            .into_iter()
            .map(|asked| asked.join().map_err(|_| anyhow::anyhow!("panicked"))?)
            .collect::<Result<Vec<_>>>()
    })?;
    for ran in &codes {
        let replay = ran.json()?;
        let fine = ran.code == 0 && replay["state"] == "finalized";
        let none = ran.code == 1 && replay["reason"] == "lease-unavailable" && replay["state"] == "fallback";
        assert!(fine || none, "{ran:?}");
    }
    assert!(codes.iter().filter(|ran| ran.code == 0).count() >= 2, "{codes:?}");
    assert!(all_are(&site, "idle")?);
    Ok(())
}
