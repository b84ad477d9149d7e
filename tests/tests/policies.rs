//! Policies that are swapped, refused, rolled back and hostile, while the daemon serves.
#![allow(clippy::indexing_slicing, reason = "tests")]

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use warmhold_tests::{Answer, Client, Daemon, Ran, Site, items, text, until};

/// A component's path.
fn policy(site: &Site, name: &str) -> Result<String> {
    Ok(site.programs.policy(name)?.to_string_lossy().into_owned())
}

/// Loads a component and answers its tag, as `x-warmhold-policy` names it.
fn load(site: &Site, slot: &str, name: &str) -> Result<String> {
    let ran = site.run(&["policy", "load", "--json", slot, &policy(site, name)?])?;
    ensure!(ran.code == 0, "{name}: {ran:?}");
    Ok(tag(&ran.json()?))
}

fn rollback(site: &Site, slot: &str) -> Result<String> {
    let ran = site.run(&["policy", "rollback", "--json", slot])?;
    ensure!(ran.code == 0, "{slot}: {ran:?}");
    Ok(tag(&ran.json()?))
}

fn tag(view: &Value) -> String {
    format!("{}@sha256:{}#{}", text(&view["name"]), text(&view["digest"]), view["generation"])
}

/// What is known of a slot, what serves first.
fn slot(site: &Site, name: &str) -> Result<Vec<Value>> {
    let listed = site.run(&["policy", "list", "--json"])?.json()?;
    Ok(items(&listed).iter().filter(|view| view["slot"] == name).cloned().collect())
}

fn serving(site: &Site, name: &str) -> Result<Value> {
    let serving: Vec<_> = slot(site, name)?.into_iter().filter(|view| view["state"] == "serving").collect();
    ensure!(serving.len() == 1, "one serves: {serving:?}");
    serving.into_iter().next().context("none serves")
}

/// Warm workers of a machine without pods, for what lease policies decide.
struct Rows {
    member: Client,
    machine: Client,
}

impl Rows {
    fn new(site: &Site, daemon: &Daemon) -> Result<Self> {
        let token = site.run(&["token", "issue", "m1"])?.stdout;
        let machine = Client::new(&daemon.url, token.trim());
        Ok(Self { member: Client::new(&daemon.url, &site.token("member")?), machine })
    }

    fn key() -> Value {
        json!({"context": "local", "imageDigest": "sha256:1", "lockHash": "2", "architecture": "amd64"})
    }

    fn register(&self, worker: &str) -> Result<()> {
        let body = json!({"workerId": worker, "machine": "m1", "key": Self::key(), "ttlMs": 3_600_000});
        let answer = self.machine.request("POST", "/v1/workers/pod", Some(&body), &[])?;
        ensure!(matches!(answer.status, 200 | 201), "{answer:?}");
        Ok(())
    }

    fn acquire(&self) -> Result<Answer> {
        let body = json!({"key": Self::key(), "machine": "m1", "runId": "r", "attemptId": "1", "ttlMs": 60_000});
        self.member.request("POST", "/v1/leases/pod-worker", Some(&body), &[])
    }

    fn change(&self, who: &Client, lease: &Value, what: &str) -> Result<Answer> {
        let (worker, attrs) = (text(&lease["name"]), &lease["attrs"]);
        let body = json!({"leaseId": attrs["leaseId"], "generation": attrs["generation"]});
        who.request("POST", &format!("/v1/leases/pod-worker/{worker}/{what}"), Some(&body), &[])
    }

    /// Takes a worker and gives it back: what was answered to the first.
    fn cycle(&self) -> Result<Answer> {
        let leased = self.acquire()?;
        ensure!(matches!(leased.status, 200 | 201), "{leased:?}");
        let lease = leased.json.get("resource").unwrap_or(&leased.json).clone();
        let released = self.change(&self.member, &lease, "release")?;
        ensure!(released.status == 200, "{released:?}");
        let sanitized = self.change(&self.machine, &lease, "sanitize")?;
        ensure!(sanitized.status == 200, "{sanitized:?}");
        Ok(leased)
    }

    /// Every row, but for what moves by itself.
    fn all(&self) -> Result<Value> {
        let mut listed = self.member.request("GET", "/v1/resources", None, &[])?.json;
        for row in listed["resources"].as_array_mut().context("no rows")? {
            if let Some(row) = row.as_object_mut() {
                row.remove("ageMs");
            }
        }
        Ok(listed)
    }
}

#[test]
fn swapped_while_requests_are_answered() -> Result<()> {
    let site = Site::for_test()?;
    let daemon = site.serve()?;
    let first = serving(&site, "lease")?;
    let member = site.token("member")?;
    let stop = AtomicBool::new(false);
    let (served, answered) = std::thread::scope(|scope| -> Result<(BTreeSet<String>, Vec<String>)> {
        let askers: Vec<_> = (0..4)
            .map(|asker| {
                let (client, stop) = (Client::new(&daemon.url, &member), &stop);
                scope.spawn(move || -> Result<Vec<String>> {
                    let mut tags = Vec::new();
                    let mut n = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let id = format!("row-{asker}-{n}");
                        let row = json!({"id": id, "kind": "image", "machine": "m", "name": "n", "ttlMs": 60_000,
                            "attrs": {}});
                        let answer = client.request("POST", "/v1/resources/register", Some(&row), &[])?;
                        ensure!(matches!(answer.status, 200 | 201), "{answer:?}");
                        tags.push(answer.header("x-warmhold-policy").context("no policy is named")?.to_owned());
                        n += 1;
                    }
                    Ok(tags)
                })
            })
            .collect();
        let mut served = BTreeSet::from([tag(&first)]);
        let swapped = || -> Result<BTreeSet<String>> {
            let mut served = BTreeSet::new();
            for _ in 0..4 {
                served.insert(load(&site, "lease", "most-recent")?);
                served.insert(rollback(&site, "lease")?);
                served.insert(load(&site, "lease", "most-recent")?);
                served.insert(load(&site, "lease", "lease-policy")?);
            }
            Ok(served)
        };
        let swapped = swapped();
        stop.store(true, Ordering::Relaxed);
        let mut answered = Vec::new();
        for asker in askers {
            answered.extend(asker.join().map_err(|_| anyhow::anyhow!("an asker panicked"))??);
        }
        served.extend(swapped?);
        Ok((served, answered))
    })?;
    // Loads of what is there already may answer the generation that it has.
    assert!(served.len() >= 3, "{served:?}");
    let named: BTreeSet<String> = answered.iter().cloned().collect();
    assert!(named.is_subset(&served), "{:?}", named.difference(&served).collect::<Vec<_>>());
    assert!(named.len() >= 2, "both decided: {named:?}");
    let rows = site.ask(&daemon, "member", "GET", "/v1/resources", None)?.json;
    assert_eq!(items(&rows["resources"]).len(), answered.len(), "no write was lost");

    // What serves goes on serving after a restart, under its number, however the daemon ended.
    let last = load(&site, "lease", "most-recent")?;
    let replay = load(&site, "replay", "drop-lease")?;
    daemon.kill()?;
    let daemon = site.serve()?;
    assert_eq!(tag(&serving(&site, "lease")?), last);
    assert_eq!(tag(&serving(&site, "replay")?), replay);
    assert_eq!(tag(&serving(&site, "manifest")?).split('@').next(), Some("pod-manifest"));
    assert_ne!(rollback(&site, "replay")?, replay);
    assert_eq!(serving(&site, "replay")?["name"], "warm-replay");
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}

#[test]
fn what_is_no_policy_is_refused_with_a_way_out() -> Result<()> {
    let site = Site::for_test()?;
    let daemon = site.serve()?;
    let good = std::fs::read(policy(&site, "most-recent")?)?;
    let before = slot(&site, "lease")?;
    let mut large = good.clone();
    large.resize(65 << 20, 0);
    let mut damaged = good.clone();
    let half = damaged.len() / 2;
    damaged[half..half + 64].fill(0xff);
    let core = b"\0asm\x01\0\0\0".to_vec();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", Vec::new(), &["policy-empty"]),
        ("text", b"#!/bin/sh\necho hello\n".to_vec(), &["policy-not-wasm"]),
        ("core", core, &["policy-core-module"]),
        ("half", good[..half].to_vec(), &["policy-truncated"]),
        ("head", good[..8].to_vec(), &["policy-truncated", "policy-invalid", "policy-wrong-world"]),
        ("damaged", damaged, &["policy-invalid", "policy-truncated"]),
        ("world", std::fs::read(policy(&site, "warm-replay")?)?, &["policy-wrong-world"]),
        ("large", large, &["policy-too-large", "too-large"]),
    ];
    for (name, bytes, codes) in cases {
        let file = site.folder().join(format!("{name}.wasm"));
        std::fs::write(&file, &bytes)?;
        let file = file.to_string_lossy();
        // Without a daemon, with one, and over HTTP: the same refusal.
        for arguments in [&["policy", "check", "--slot", "lease", &file][..], &["policy", "load", "lease", &file]] {
            let ran = site.run(arguments)?;
            assert_eq!(ran.code, 1, "{name}: {arguments:?}: {ran:?}");
            assert!(codes.iter().any(|code| ran.stderr.contains(&format!("error[{code}]: "))), "{name}: {ran:?}");
            if !ran.stderr.contains("error[too-large]") {
                for part in ["\n  expected: ", "\n  found: ", "\nhelp: "] {
                    assert!(ran.stderr.contains(part), "{part}: {name}: {ran:?}");
                }
            }
        }
        let answer = site.send(&daemon, "admin", "POST", "/v1/policies/lease", bytes)?;
        assert!(matches!(answer.status, 413 | 422), "{name}: {answer:?}");
        assert!(codes.contains(&answer.error()), "{name}: {answer:?}");
        if answer.error() != "too-large" {
            for field in ["message", "expected", "found", "fix", "requestId"] {
                assert!(
                    !answer.json.get(field).map(text).unwrap_or_default().is_empty(),
                    "{field}: {name}: {answer:?}"
                );
            }
        }
        assert_eq!(slot(&site, "lease")?, before, "{name}: nothing but what served is known");
    }
    let wrong = site.run(&["policy", "load", "lease", &policy(&site, "warm-replay")?])?;
    assert!(wrong.stderr.contains("policy load replay"), "the way out is the very command: {wrong:?}");
    let absent = site.run(&["policy", "load", "lease", "none.wasm"])?;
    assert_eq!((absent.code, absent.stderr.contains("error[unreadable]")), (2, true), "{absent:?}");
    let checked = site.run(&["policy", "check", "--json", &policy(&site, "most-recent")?])?;
    assert_eq!((checked.code, text(&checked.json()?["slot"])), (0, "lease"), "{checked:?}");
    let nothing = site.run(&["policy", "rollback", "lease"])?;
    assert_eq!(nothing.code, 1, "there is nothing to go back to: {nothing:?}");
    Ok(())
}

#[test]
fn hostile_lease_policies() -> Result<()> {
    let site = Site::for_test()?;
    let daemon = site.serve()?;
    let rows = Rows::new(&site, &daemon)?;
    for worker in ["w1", "w2"] {
        rows.register(worker)?;
    }
    // One that is out for good, for the policy that would revive it.
    let out = rows.acquire()?.json;
    let out = out.get("resource").unwrap_or(&out).clone();
    assert_eq!(rows.change(&rows.member, &out, "quarantine")?.status, 200);
    let built_in = tag(&serving(&site, "lease")?);

    for (name, code) in [
        ("endless-loop", "policy-failed"),
        ("memory-bomb", "policy-failed"),
        ("deep-recursion", "policy-failed"),
        ("panic", "policy-failed"),
        ("forged-owner", "policy-violation"),
        ("generation-kept", "policy-violation"),
        ("lease-quarantined", "policy-violation"),
        ("many-rows", "policy-violation"),
        ("duplicate-keys", "policy-violation"),
        ("log-flood", "policy-failed"),
    ] {
        let hostile = load(&site, "lease", name)?;
        let (before, logged) = (rows.all()?, daemon.log().len());
        let answer = rows.acquire()?;
        assert!(daemon.log().len() - logged < 1 << 20, "{name}: the log grew by {}", daemon.log().len() - logged);
        if name == "log-flood" && answer.status < 300 {
            // Its log was cut, and what it decided was right.
            let lease = answer.json.get("resource").unwrap_or(&answer.json).clone();
            assert_eq!(rows.change(&rows.member, &lease, "release")?.status, 200);
            assert_eq!(rows.change(&rows.machine, &lease, "sanitize")?.status, 200);
        } else {
            assert_eq!((answer.status, answer.error()), (503, code), "{name}: {answer:?}");
            assert_eq!(answer.header("x-warmhold-policy"), Some(hostile.as_str()), "{name}");
            assert_eq!(rows.all()?, before, "{name}: nothing was written");
            let view = serving(&site, "lease")?;
            assert_eq!((text(&view["name"]), &view["faults"]), (name, &json!(1)), "one fault is not enough: {view}");
            assert!(!text(&view["firstFault"]).is_empty(), "{view}");
        }
        if name == "panic" {
            assert!(daemon.log().contains("panic was asked at"), "its text is found in the log");
        }
        // What isn't an acquire is decided as usual, and breaks the row of faults.
        rows.register(&format!("w-{name}"))?;
        assert_eq!(rollback(&site, "lease")?, built_in, "{name}");
        assert_eq!(rows.cycle()?.header("x-warmhold-policy"), Some(built_in.as_str()), "{name}");
    }

    // Three in a row: the last good one is back by itself, and this one isn't tried again.
    load(&site, "lease", "most-recent")?;
    let good = tag(&serving(&site, "lease")?);
    for name in ["panic", "forged-owner"] {
        load(&site, "lease", name)?;
        for n in 1..=3 {
            assert_eq!(rows.acquire()?.status, 503, "{name} {n}");
        }
        assert_eq!(rows.cycle()?.header("x-warmhold-policy"), Some(good.as_str()), "{name}");
        let views = slot(&site, "lease")?;
        assert_eq!(tag(&views[0]), good);
        let bad = views.iter().find(|view| view["name"] == name && view["state"] == "bad");
        let bad = bad.with_context(|| format!("{name} isn't marked: {views:?}"))?;
        assert!(bad["faults"].as_u64() >= Some(3), "{bad}");
    }
    daemon.kill()?;
    let daemon = site.serve()?;
    assert_eq!(tag(&serving(&site, "lease")?), good, "and after a restart it is still so");
    assert!(slot(&site, "lease")?.iter().any(|view| view["name"] == "panic" && view["state"] == "bad"));
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}

#[test]
fn hostile_replay_policies() -> Result<()> {
    let site = Site::for_test()?;
    site.configure("[policy.replay]\ndeadline = \"1s\"\nfaults-to-roll-back = 2\n")?;
    let _daemon = site.serve()?;
    let idle = || -> Result<Vec<Value>> {
        Ok(site.workers()?.into_iter().filter(|worker| worker["state"] == "idle").collect())
    };
    for (name, reasons) in [
        ("other-pod", &["pod-replaced"][..]),
        ("keep-lease", &["lease-unavailable", "policy-failed"]),
        ("drop-lease", &["lease-unavailable", "policy-failed"]),
        ("loop-forever", &["policy-failed"]),
        ("panic-holding", &["policy-failed"]),
    ] {
        // One after the other: the policies take the first candidate for the one that was registered first.
        site.prepare(1)?;
        site.prepare(2)?;
        let before = idle()?;
        let tag = load(&site, "replay", name)?;
        let ran = site.run(&["replay", "--json", "tests/words.sh"])?;
        let replay = ran.json()?;
        assert_eq!((ran.code, text(&replay["state"])), (1, "fallback"), "{name}: {replay}");
        assert!(reasons.contains(&text(&replay["reason"])), "{name}: {replay}");
        assert_eq!((&replay["passed"], items(&replay["files"]).len()), (&json!(false), 0), "{name}: {replay}");
        assert_eq!(text(&replay["policies"]["replay"]), tag, "{name}");
        let worker = text(&replay["worker"]["id"]);
        assert_eq!(site.worker(worker)?["state"], "quarantined", "{name}");
        let rest = before.iter().find(|other| other["workerId"] != worker).context("two were idle")?;
        let rest = site.worker(text(&rest["workerId"]))?;
        assert_eq!((text(&rest["state"]), &rest["generation"]), ("idle", &json!(0)), "{name}: the other is untouched");
        rollback(&site, "replay")?;
        let after = site.run(&["replay", "--json", "tests/words.sh"])?;
        assert_eq!((after.code, &after.json()?["worker"]["id"]), (0, &rest["workerId"]), "{name}: {after:?}");
        // Its generation counts from here on; the next policy finds fresh ones.
        let ran = site.run(&["worker", "remove", text(&rest["workerId"])])?;
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    // Cleaning is refused without proof: here the worker died in the middle.
    let prepared = site.prepare(1)?;
    load(&site, "replay", "sanitize-unclean")?;
    let child = site.spawn(&["replay", "--json", "tests-misbehaving/sleeps.sh"])?;
    let pod = site.pod(text(&prepared[0]["pod"]));
    until("the test sleeps", || pod.running("sleep 600"))?;
    let worker = i32::try_from(pod.worker()?.context("no worker")?).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(worker.context("no process")?, Signal::KILL)?;
    let replay = Ran::end_of(child)?.json()?;
    assert!(text(&replay["detail"]).contains("not-proven-clean"), "{replay}");
    assert_eq!(site.worker(text(&replay["worker"]["id"]))?["state"], "quarantined");

    // Faults in a row bring the one before back here too; each costs a worker.
    rollback(&site, "replay")?;
    site.prepare(2)?;
    let good = tag(&serving(&site, "replay")?);
    load(&site, "replay", "panic-holding")?;
    for _ in 0..2 {
        assert_ne!(tag(&serving(&site, "replay")?), good);
        assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 1);
    }
    assert_eq!(tag(&serving(&site, "replay")?), good);
    site.prepare(2)?;
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);
    Ok(())
}

#[test]
fn a_file_is_watched_and_read_again() -> Result<()> {
    let site = Site::for_test()?;
    let file = site.folder().join("lease.wasm");
    let bytes = |name: &str| -> Result<Vec<u8>> { Ok(std::fs::read(policy(&site, name)?)?) };
    let (standard, recent) = (bytes("lease-policy")?, bytes("most-recent")?);
    std::fs::write(&file, &standard)?;
    site.configure(&format!("[policy.lease]\nfile = \"{}\"\nwatch = true\n", file.display()))?;
    let daemon = site.serve()?;
    site.prepare(2)?;
    let name = || -> Result<String> { Ok(text(&serving(&site, "lease")?["name"]).to_owned()) };
    assert_eq!(name()?, "lease-policy");

    // Put in place in one step, as one should.
    let next = site.folder().join("next.wasm");
    std::fs::write(&next, &recent)?;
    std::fs::rename(&next, &file)?;
    until("the new one serves", || Ok((name()? == "most-recent").then_some(())))?;

    // Written in place and slowly: half a policy never serves, the old one does until the whole is there.
    let half = standard.len() / 2;
    std::fs::write(&file, &standard[..half])?;
    until("the half is refused", || Ok(daemon.log().contains("policy-truncated").then_some(())))?;
    assert_eq!(name()?, "most-recent");
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0);
    std::fs::write(&file, &standard)?;
    until("the whole serves", || Ok((name()? == "lease-policy").then_some(())))?;
    std::fs::remove_file(&file)?;
    assert_eq!(site.run(&["replay", "tests/words.sh"])?.code, 0, "a file that is gone changes nothing");

    // A hang-up reads the configuration again.
    std::fs::write(&file, &recent)?;
    site.configure(&format!("[policy.lease]\nfile = \"{}\"\n", file.display()))?;
    daemon.signal(Signal::HUP)?;
    until("the new one serves", || Ok((name()? == "most-recent").then_some(())))?;
    site.configure("[policy.lease]\nfile = \"none.wasm\"\n")?;
    daemon.signal(Signal::HUP)?;
    until("the fault is in the log", || Ok(daemon.log().contains("none.wasm").then_some(())))?;
    assert_eq!(name()?, "most-recent");

    // What they decide differs: the one that was used last, against the one that was registered first.
    let ids: Vec<String> = site.workers()?.iter().map(|worker| text(&worker["workerId"]).to_owned()).collect();
    let worker_of = |arguments: &[&str]| -> Result<Value> {
        site.run(&[&["replay", "--json"], arguments, &["tests/words.sh"]].concat())?.json()
    };
    let first = worker_of(&["--keep"])?;
    let second = worker_of(&["--keep"])?;
    assert_ne!(first["worker"]["id"], second["worker"]["id"]);
    let (early, late) = if first["worker"]["id"] == ids[0].as_str() { (&first, &second) } else { (&second, &first) };
    for replay in [early, late] {
        assert_eq!(site.run(&["replays", "finalize", text(&replay["id"])])?.code, 0);
    }
    assert_eq!(worker_of(&[])?["worker"]["id"], ids[1].as_str(), "most-recent takes the one that was used last");
    load(&site, "lease", "lease-policy")?;
    assert_eq!(worker_of(&[])?["worker"]["id"], ids[0].as_str(), "the built-in one the one that was registered first");
    assert_eq!(daemon.stop()?.code(), Some(0));
    Ok(())
}
