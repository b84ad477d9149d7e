//! Daemons that die or are told to end: what they held is settled, and whoever lives goes on.

#![allow(clippy::indexing_slicing, reason = "tests")]

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::process::Child;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use warmhold_tests::{Client, Daemon, Pod, Ran, Site, items, states, text, until};

const SLEEPS: &str = "tests-misbehaving/sleeps.sh";

struct House {
    site: Site,
    head: String,
}

impl House {
    fn new(configuration: &str) -> Result<Self> {
        let site = Site::for_test()?;
        site.repository.write("slow/two.sh", "sleep 2; echo done\n")?;
        let head = site.repository.commit("slow")?;
        site.configure(configuration)?;
        Ok(Self { site, head })
    }

    /// A replay's state now; empty while there is none of this run.
    fn find(&self, run: &str) -> Result<Value> {
        let listed = self.site.run(&["replays", "list", "--json"])?.json()?;
        Ok(items(&listed).iter().find(|replay| replay.get("runId") == Some(&json!(run))).cloned().unwrap_or_default())
    }

    /// A replay in the background, once it is in this state.
    fn begin(&self, state: &str, run: &str, arguments: &[&str]) -> Result<Child> {
        let child = self.site.spawn(&[&["replay", "--json", "--run", run], arguments].concat())?;
        until(&format!("{run} is {state}"), || {
            let replay = self.find(run)?;
            Ok((replay.get("state").map(text) == Some(state)).then_some(()))
        })?;
        Ok(child)
    }

    fn pod_of(&self, replay: &Value) -> Pod {
        self.site.pod(replay.pointer("/worker/pod").map(text).unwrap_or_default())
    }

    /// The replay is quarantined by who came after the dead one, its worker too, and nothing of it runs.
    fn settled(&self, run: &str) -> Result<()> {
        let replay = self.find(run)?;
        let last = replay.pointer("/history").map(items).and_then(|steps| steps.last()).cloned().unwrap_or_default();
        assert_eq!((text(&replay["state"]), text(&replay["reason"])), ("quarantined", "daemon-died"), "{replay}");
        assert_eq!(last["state"], "quarantined");
        assert!(text(&last["note"]).contains("died"), "the history says so: {replay}");
        // Whatever it held is named, even where its own record didn't know yet.
        let told = replay.to_string();
        let out = |worker: &Value| worker["state"] == "quarantined" && worker["reason"] == "daemon-died";
        let workers = self.site.workers()?;
        let worker = workers.iter().find(|worker| out(worker) && told.contains(text(&worker["workerId"])));
        let worker = worker.with_context(|| format!("none of {workers:?} is out and named in {told}"))?;
        let pod =
            self.pods()?.into_iter().find(|pod| pod.read().is_ok_and(|pod| pod["metadata"]["uid"] == worker["podUid"]));
        let pod = pod.context("its pod is gone")?;
        until("nothing of the request runs", || Ok(pod.requests()?.is_empty().then_some(())))?;
        Ok(())
    }

    fn pods(&self) -> Result<Vec<Pod>> {
        let folders = std::fs::read_dir(self.site.pods())?.flatten().map(|entry| Pod { folder: entry.path() });
        Ok(folders.filter(|pod| pod.folder.join("pod.json").exists()).collect())
    }
}

fn idle(site: &Site) -> Result<usize> {
    Ok(site.workers()?.iter().filter(|worker| worker["state"] == "idle").count())
}

#[test]
fn killed_at_each_state() -> Result<()> {
    // A lease policy that hangs for as long as it takes to kill its daemon.
    let house = House::new("[policy.lease]\ndeadline = \"20s\"\nwall = \"30s\"\n")?;
    let site = &house.site;
    let mut daemon = site.serve()?;
    let pods = site.prepare(2)?;
    let restart = |daemon: Daemon| -> Result<Daemon> {
        daemon.kill()?;
        site.serve()
    };

    // Executing.
    let child = house.begin("executing", "executing", &[SLEEPS])?;
    let pod = house.pod_of(&house.find("executing")?);
    until("the test sleeps", || pod.running("sleep 600"))?;
    daemon = restart(daemon)?;
    let caller = Ran::end_of(child)?;
    assert_eq!(caller.code, 3, "{caller:?}");
    assert!(caller.stderr.contains("replay --run executing"), "the caller is told how to learn more: {caller:?}");
    house.settled("executing")?;
    let again = site.run(&["replay", "--run", "executing", SLEEPS])?;
    assert_eq!((again.code, again.stderr.contains("error[daemon-died]")), (1, true), "{again:?}");
    // The other worker's pod was found again, as it was, by a daemon at another address.
    let other = site.run(&["replay", "--json", "tests/words.sh"])?;
    assert_eq!(other.code, 0, "{other:?}");
    let other = other.json()?;
    assert!(pods.iter().any(|pod| pod["podUid"] == other["worker"]["podUid"]), "{other}");
    assert_eq!((other["passed"].as_bool(), &other["worker"]["generation"]), (Some(true), &json!(1)));
    site.prepare(2)?;

    // Observed, and waiting for its caller.
    let kept = site.run(&["replay", "--json", "--keep", "--run", "kept", "tests/words.sh"])?;
    assert_eq!(kept.json()?["state"], "observed");
    daemon = restart(daemon)?;
    house.settled("kept")?;
    let late = site.run(&["replays", "finalize", text(&kept.json()?["id"])])?;
    assert_eq!((late.code, late.stderr.contains("error[not-observed]")), (1, true), "{late:?}");
    site.prepare(2)?;

    // Leased: a replay policy that takes one and never answers.
    let policy = |name: &str| -> Result<String> { Ok(site.programs.policy(name)?.to_string_lossy().into_owned()) };
    let loaded = site.run(&["policy", "load", "replay", &policy("loop-forever")?])?;
    assert_eq!(loaded.code, 0, "{loaded:?}");
    let child = house.begin("leased", "leased", &["tests/words.sh"])?;
    daemon = restart(daemon)?;
    assert_eq!(Ran::end_of(child)?.code, 3);
    house.settled("leased")?;
    let back = site.run(&["policy", "rollback", "replay"])?;
    assert_eq!(back.code, 0, "{back:?}");
    site.prepare(2)?;

    // Acquiring: nothing is held yet, so nothing is lost.
    let loaded = site.run(&["policy", "load", "lease", &policy("endless-loop")?])?;
    assert_eq!(loaded.code, 0, "{loaded:?}");
    let child = site.spawn(&["replay", "--json", "--run", "acquiring", "tests/words.sh"])?;
    until("it is acquiring", || Ok((house.find("acquiring")? != Value::Null).then_some(())))?;
    assert_eq!(house.find("acquiring")?["state"], "acquiring");
    daemon = restart(daemon)?;
    assert_eq!(Ran::end_of(child)?.code, 3);
    let replay = house.find("acquiring")?;
    assert_eq!((text(&replay["state"]), text(&replay["reason"])), ("fallback", "daemon-died"), "{replay}");
    assert_eq!((&replay["worker"], idle(site)?), (&Value::Null, 2));
    let back = site.run(&["policy", "rollback", "lease"])?;
    assert_eq!(back.code, 0, "{back:?}");
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}

#[test]
fn told_to_end_with_replays_under_way() -> Result<()> {
    let house = House::new("")?;
    let site = &house.site;

    // One that ends by itself is waited for, and its caller gets the answer.
    let daemon = site.serve()?;
    site.prepare(2)?;
    let child = house.begin("executing", "short", &["slow/two.sh"])?;
    let kept = site.run(&["replay", "--json", "--keep", "--run", "kept", "tests/words.sh"])?;
    assert_eq!(kept.code, 0, "{kept:?}");
    assert_eq!(daemon.stop()?.code(), Some(0));
    let ran = Ran::end_of(child)?;
    assert_eq!((ran.code, text(&ran.json()?["state"])), (0, "finalized"), "{ran:?}");
    let gone = site.run(&["worker", "list"])?;
    assert_eq!((gone.code, gone.stderr.contains("help: start it with")), (3, true), "{gone:?}");

    // What nobody will settle any more is out, and the rest is as it was.
    let daemon = site.serve()?;
    let kept = house.find("kept")?;
    assert_eq!((text(&kept["state"]), text(&kept["reason"])), ("quarantined", "daemon-stopped"), "{kept}");
    assert_eq!(idle(site)?, 1);

    // One that goes on for too long is ended; so is what it left.
    let child = house.begin("executing", "long", &[SLEEPS])?;
    let pod = house.pod_of(&house.find("long")?);
    until("the test sleeps", || pod.running("sleep 600"))?;
    assert_eq!(daemon.stop()?.code(), Some(0));
    let ran = Ran::end_of(child)?;
    assert_eq!(ran.code, 1, "{ran:?}");
    until("nothing of the request runs", || Ok(pod.requests()?.is_empty().then_some(())))?;
    let daemon = site.serve()?;
    let long = house.find("long")?;
    assert_eq!((text(&long["outcome"]), text(&long["reason"])), ("fallback", "daemon-stopped"), "{long}");
    assert_eq!(site.worker(text(&long["worker"]["id"]))?["state"], "quarantined");
    site.prepare(2)?;
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}

#[test]
fn two_daemons_on_one_root() -> Result<()> {
    let house = House::new("")?;
    let site = &house.site;
    let first = site.serve()?;
    site.prepare(2)?;
    let ask = |run: &str, file: &str| json!({"files": [file], "cutSha": house.head, "runId": run});
    let to = |daemon: &Daemon| -> Result<Client> { Ok(Client::new(&daemon.url, &site.token("member")?)) };

    // The first one's replay goes on while a second one starts.
    let child = house.begin("executing", "early", &["slow/two.sh"])?;
    let second = site.serve()?;
    let ran = Ran::end_of(child)?;
    assert_eq!((ran.code, text(&ran.json()?["state"])), (0, "finalized"), "{ran:?}");

    // Both serve the same workers and the same records.
    for (daemon, run) in [(&first, "one"), (&second, "two"), (&first, "three")] {
        let answer = to(daemon)?.request("POST", "/v1/replays", Some(&ask(run, "tests/words.sh")), &[])?;
        assert_eq!((answer.status, text(&answer.json["state"])), (200, "finalized"), "{run}: {answer:?}");
    }
    let asked_elsewhere = to(&second)?.request("POST", "/v1/replays", Some(&ask("one", "tests/words.sh")), &[])?;
    let path = format!("/v1/replays/{}", text(&asked_elsewhere.json["id"]));
    assert_eq!(to(&first)?.request("GET", &path, None, &[])?.json, asked_elsewhere.json);

    // A busy address: wrong usage, and nothing of the root is touched.
    let control = site.root().join("control/daemon.json");
    let before = std::fs::read(&control)?;
    let address = first.url.trim_start_matches("http://");
    let busy = site.run(&["serve", "--listen", address])?;
    assert_eq!(busy.code, 2, "{busy:?}");
    assert!(busy.stderr.contains(address) && busy.stderr.contains("help:"), "{busy:?}");
    assert_eq!(std::fs::read(&control)?, before);

    // The second dies in the middle of a replay: the first settles what it held.
    let asked = std::thread::scope(|scope| -> Result<bool> {
        let client = to(&second)?;
        let waiting = scope.spawn(move || client.request("POST", "/v1/replays", Some(&ask("orphan", SLEEPS)), &[]));
        let list = || -> Result<Value> { Ok(to(&first)?.request("GET", "/v1/replays", None, &[])?.json) };
        let orphan = || -> Result<Value> {
            let found = items(&list()?).iter().find(|replay| replay["runId"] == "orphan").cloned();
            Ok(found.unwrap_or_default())
        };
        let replay = until("it executes", || Ok(Some(orphan()?).filter(|replay| replay["state"] == "executing")))?;
        second.kill()?;
        let replay_now =
            until("the first settles it", || Ok(Some(orphan()?).filter(|replay| replay["state"] == "quarantined")))?;
        assert_eq!(replay_now["reason"], "daemon-died");
        assert_eq!(states(&replay_now).last(), Some(&"quarantined"));
        let pod = house.pod_of(&replay);
        until("nothing of the request runs", || Ok(pod.requests()?.is_empty().then_some(())))?;
        Ok(waiting.join().is_ok_and(|answer| answer.is_err()))
    })?;
    assert!(asked, "the caller of the dead one has no answer");
    let answer = to(&first)?.request("POST", "/v1/replays", Some(&ask("after", "tests/words.sh")), &[])?;
    assert_eq!(text(&answer.json["state"]), "finalized", "{answer:?}");

    // Whoever asks by the root finds the one that lives.
    until("the root names the first again", || Ok((site.run(&["worker", "list", "--json"])?.code == 0).then_some(())))?;
    assert_eq!(first.stop()?.code(), Some(0));
    Ok(())
}

/// A seeded generator: a failure can be repeated.
struct Random(u64);

impl Random {
    fn new() -> Result<Self> {
        let seed = match std::env::var("WARMHOLD_SEED") {
            Ok(seed) => seed.parse()?,
            Err(_) => u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() & 0xffff_ffff)?,
        };
        println!("WARMHOLD_SEED={seed}");
        Ok(Self(seed | 1))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn killed_at_any_moment() -> Result<()> {
    let house = House::new("")?;
    let site = &house.site;
    let mut random = Random::new()?;
    for round in 0..3 {
        let daemon = site.serve()?;
        site.prepare(2)?;
        // Callers that replay, and some that settle by themselves, until their daemon is gone.
        let moment = Duration::from_millis(random.below(900));
        let told = std::thread::scope(|scope| -> Result<Vec<(String, String)>> {
            let callers: Vec<_> = (0..2)
                .map(|caller| {
                    scope.spawn(move || -> Result<Vec<(String, String)>> {
                        let mut told = Vec::new();
                        for n in 0.. {
                            let run = format!("{round}-{caller}-{n}");
                            let keep: &[&str] = if n % 2 == caller { &["--keep"] } else { &[] };
                            let arguments = [&["replay", "--json", "--run", &run][..], keep, &["tests/words.sh"]];
                            let ran = site.run(&arguments.concat())?;
                            if ran.code > 1 {
                                return Ok(told);
                            }
                            let mut replay = ran.json()?;
                            if replay["state"] == "observed" {
                                let id = text(&replay["id"]).to_owned();
                                let settled = site.run(&["replays", "finalize", "--json", &id])?;
                                if settled.code > 1 {
                                    return Ok(told);
                                }
                                replay = settled.json()?;
                            }
                            told.push((run, text(&replay["state"]).to_owned()));
                        }
                        Ok(told)
                    })
                })
                .collect();
            // The moment itself is what is drawn.
            std::thread::sleep(moment);
            daemon.kill()?;
            let mut all = Vec::new();
            for caller in callers {
                all.extend(caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??);
            }
            Ok(all)
        })?;

        let daemon = site.serve()?;
        let listed = site.run(&["replays", "list", "--json", "--limit", "1000"])?.json()?;
        let workers = site.workers()?;
        for replay in items(&listed) {
            let state = text(&replay["state"]);
            assert!(matches!(state, "finalized" | "quarantined" | "fallback"), "round {round}: {replay}");
            if replay["reason"] == "daemon-died" && replay["worker"] != Value::Null {
                let out = workers.iter().find(|worker| worker["workerId"] == replay["worker"]["id"]);
                assert!(out.is_none_or(|worker| worker["state"] == "quarantined"), "round {round}: {replay}");
            }
        }
        for worker in &workers {
            assert!(matches!(text(&worker["state"]), "idle" | "quarantined"), "round {round}: {worker}");
        }
        for (run, state) in &told {
            let kept = items(&listed).iter().find(|replay| replay["runId"] == run.as_str()).context(run.clone())?;
            assert_eq!(text(&kept["state"]), state, "round {round}: what a caller was told stays true: {kept}");
        }
        for pod in house.pods()? {
            until("nothing of a request runs", || Ok(pod.requests()?.is_empty().then_some(())))?;
        }
        assert_eq!(daemon.stop()?.code(), Some(0));
    }
    let daemon = site.serve()?;
    site.prepare(2)?;
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}
