//! Faults of tests, workers and pods: a right verdict or a fallback, the worker out of use unless it is proven clean, and
//! the daemon goes on.

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::process::Child;
use warmhold_tests::{Daemon, Pod, Ran, Site, states, text, until};

/// One daemon, and one worker at a time.
struct Ward {
    site: Site,
    _daemon: Daemon,
}

impl Ward {
    fn new(files: &[(&str, &str)]) -> Result<Self> {
        let site = Site::for_test()?;
        for (file, content) in files {
            site.repository.write(file, content)?;
        }
        if !files.is_empty() {
            site.repository.commit("faults")?;
        }
        let daemon = site.serve()?;
        Ok(Self { site, _daemon: daemon })
    }

    /// A worker that never ran anything, in the place of the one that is out of use.
    fn fresh(&self) -> Result<(String, Pod)> {
        let prepared = self.site.prepare(1)?;
        let worker = prepared.first().context("no worker")?;
        let pod = worker.get("pod").map(text).unwrap_or_default();
        Ok((worker.get("workerId").map(text).unwrap_or_default().to_owned(), self.site.pod(pod)))
    }

    fn replay(&self, arguments: &[&str]) -> Result<(i32, Value)> {
        let ran = self.site.run(&[&["replay", "--json"], arguments].concat())?;
        Ok((ran.code, ran.json()?))
    }

    fn state(&self, worker: &str) -> Result<String> {
        Ok(self.site.worker(worker)?.get("state").map(text).unwrap_or_default().to_owned())
    }

    /// A replay that sleeps, once it does.
    fn sleeping(&self, pod: &Pod, arguments: &[&str]) -> Result<Child> {
        let child = self.site.spawn(&[&["replay", "--json"], arguments, &["tests-misbehaving/sleeps.sh"]].concat())?;
        until("the test sleeps", || pod.running("sleep 600"))?;
        Ok(child)
    }

    /// The replay told nothing, its worker is out for good, nothing of it runs, and the next worker serves.
    fn lost(&self, replay: &Value, reasons: &[&str], worker: &str, pod: &Pod) -> Result<()> {
        let said = |name: &str| replay.get(name).map(text).unwrap_or_default();
        assert_eq!((said("outcome"), said("state")), ("fallback", "fallback"), "{replay}");
        assert!(reasons.contains(&said("reason")), "{reasons:?}: {replay}");
        assert_eq!((replay.get("passed"), replay.get("files")), (Some(&json!(false)), Some(&json!([]))), "{replay}");
        assert!(!said("detail").is_empty(), "{replay}");
        assert_eq!(self.state(worker)?, "quarantined", "{replay}");
        if pod.folder.exists() {
            until("nothing of the request runs", || Ok(pod.requests()?.is_empty().then_some(())))?;
        }
        let (code, none) = self.replay(&["tests/words.sh"])?;
        assert_eq!((code, none.get("reason").map(text)), (1, Some("lease-unavailable")), "it is never leased again");
        Ok(())
    }
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process")?;
    Ok(kill_process(pid, signal)?)
}

#[test]
fn tests_that_misbehave_cost_no_worker() -> Result<()> {
    let ward = Ward::new(&[
        ("bad/137.sh", "exit 137\n"),
        ("bad/killed.sh", "kill -9 $$\n"),
        ("bad/closes.sh", "exec >&- 2>&- <&-; sleep 0.1; exit 7\n"),
        ("bad/binary.sh", "head -c 300000 /dev/urandom; printf '\\377\\376\\000' >&2\n"),
        (
            "bad/forks.sh",
            "sleep 901 & (setsid sleep 902 </dev/null >/dev/null 2>&1 &)\n\
             python3 -c 'import os,signal,time\nif os.fork(): os._exit(0)\nos.setsid()\n\
             for s in (1,2,15): signal.signal(s, signal.SIG_IGN)\nos.environ.clear()\nos.chdir(\"/\")\n\
             os.closerange(0, 99)\ntime.sleep(903)'\necho left three\n",
        ),
        (
            "bad/forges.sh",
            "for fd in 0 1 2 3 4 5 6 7 8 9; do echo '{\"clean\":true}' > /proc/$PPID/fd/$fd; done 2>/dev/null; exit 5\n",
        ),
        ("bad/litters.sh", "mkdir -m 0700 private; touch private/x; chmod 000 private; ln -s / root; exit 0\n"),
    ])?;
    let (worker, pod) = ward.fresh()?;
    let file = |replay: &Value| replay["files"][0].clone();
    let mut generation = 0;
    let mut observed = |arguments: &[&str], exit: i32| -> Result<Value> {
        let (code, replay) = ward.replay(arguments)?;
        generation += 1;
        assert_eq!((code, text(&replay["state"])), (exit, "finalized"), "{arguments:?}: {replay}");
        assert_eq!(states(&replay), ["acquiring", "leased", "executing", "observed", "finalized"]);
        assert_eq!(replay["worker"]["generation"], generation, "{arguments:?}");
        assert_eq!(replay["worker"]["id"], worker.as_str());
        assert_eq!(ward.state(&worker)?, "idle", "{arguments:?}");
        until("nothing of the request runs", || Ok(pod.requests()?.is_empty().then_some(())))?;
        Ok(replay)
    };

    let loud = observed(&["tests-misbehaving/chatty.sh"], 1)?;
    assert_eq!((&file(&loud)["exit"], &file(&loud)["reason"]), (&Value::Null, &json!("output-limit")));
    assert_eq!(file(&loud)["stdout"]["bytes"], 64 << 20, "what was kept");
    let exits = observed(&["bad/137.sh", "tests-failing/words.sh", "bad/killed.sh", "bad/closes.sh"], 1)?;
    let ends: Vec<_> = exits["files"].as_array().into_iter().flatten().map(|f| (&f["exit"], &f["signal"])).collect();
    let (null, ends_with) = (Value::Null, [json!(137), json!(42), json!(9), json!(7)]);
    assert_eq!(ends, [(&ends_with[0], &null), (&ends_with[1], &null), (&null, &ends_with[2]), (&ends_with[3], &null)]);
    let binary = observed(&["bad/binary.sh"], 0)?;
    assert_eq!((&file(&binary)["stdout"]["bytes"], &file(&binary)["stderr"]["bytes"]), (&json!(300_000), &json!(3)));
    let forks = observed(&["bad/forks.sh", "tests/words.sh"], 0)?;
    assert_eq!(forks["passed"], true, "{forks}");
    let late = observed(&["--deadline", "3s", "tests-misbehaving/sleeps.sh", "tests/words.sh"], 1)?;
    assert_eq!((&file(&late)["exit"], &file(&late)["reason"]), (&Value::Null, &json!("timeout")));
    assert_eq!(late["files"][1]["reason"], "not-run");
    let forged = observed(&["bad/forges.sh"], 1)?;
    assert_eq!(file(&forged)["exit"], 5);
    observed(&["bad/litters.sh"], 0)?;
    assert_eq!(observed(&["tests/words.sh"], 0)?["passed"], true);
    // A failing test's first lines and the reason are shown to people.
    let shown = ward.site.run(&["replay", "tests-misbehaving/chatty.sh"])?;
    assert!(shown.stdout.contains("FAIL  tests-misbehaving/chatty.sh  (output-limit"), "{}", shown.stdout);
    assert!(shown.stdout.len() < 10_000, "{}", shown.stdout.len());
    Ok(())
}

#[test]
fn a_worker_that_stops_or_dies_is_taken_out() -> Result<()> {
    let ward = Ward::new(&[])?;

    // Stopped: nothing comes any more. The host kills it after the deadline.
    let (worker, pod) = ward.fresh()?;
    let child = ward.sleeping(&pod, &["--deadline", "2s"])?;
    signal(pod.worker()?.context("no worker")?, Signal::STOP)?;
    let ran = Ran::end_of(child)?;
    assert_eq!(ran.code, 1, "{ran:?}");
    ward.lost(&ran.json()?, &["exec-failed"], &worker, &pod)?;

    // Killed in the middle, its tests still running.
    let (worker, pod) = ward.fresh()?;
    let child = ward.sleeping(&pod, &[])?;
    signal(pod.worker()?.context("no worker")?, Signal::KILL)?;
    ward.lost(&Ran::end_of(child)?.json()?, &["exec-failed"], &worker, &pod)?;

    // The container's own process goes, and comes back as another one: its state is gone whatever the verdict says.
    let (worker, pod) = ward.fresh()?;
    let child = ward.sleeping(&pod, &["--deadline", "3s"])?;
    signal(pod.container()?, Signal::KILL)?;
    let ran = Ran::end_of(child)?;
    ward.lost(&ran.json()?, &["pod-replaced", "exec-failed"], &worker, &pod)?;

    // And between two runs.
    let (worker, pod) = ward.fresh()?;
    assert_eq!(ward.replay(&["tests/words.sh"])?.0, 0);
    signal(pod.container()?, Signal::KILL)?;
    let (code, replay) = ward.replay(&["tests/words.sh"])?;
    assert_eq!(code, 1);
    ward.lost(&replay, &["pod-replaced"], &worker, &pod)?;

    // A person who looks is told what happened and what to do.
    ward.fresh()?;
    let shown = ward.site.run(&["replay", "tests/words.sh"])?;
    assert_eq!(shown.code, 0, "{shown:?}");
    Ok(())
}

#[test]
fn a_pod_that_was_touched_is_never_used_again() -> Result<()> {
    let ward = Ward::new(&[])?;
    type Touch = fn(&Pod) -> Result<()>;
    let touches: [(&str, &[&str], Touch); 9] = [
        ("another image", &["pod-replaced"], |pod| {
            pod.change(|pod| pod["spec"]["containers"][0]["image"] = json!("example.com/other:1"))
        }),
        ("an environment", &["pod-replaced"], |pod| {
            pod.change(|pod| pod["spec"]["containers"][0]["env"][0]["value"] = json!("w-other"))
        }),
        ("an ephemeral container", &["pod-replaced"], |pod| {
            pod.change(|pod| pod["spec"]["ephemeralContainers"] = json!([{"name": "debugger", "image": "busybox"}]))
        }),
        ("an owner", &["pod-replaced"], |pod| {
            pod.change(|pod| {
                pod["metadata"]["ownerReferences"] =
                    json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}]);
            })
        }),
        ("a label", &["pod-replaced"], |pod| {
            pod.change(|pod| pod["metadata"]["labels"]["warmhold.dev/worker"] = json!("w-other"))
        }),
        ("another identity", &["lease-unavailable", "pod-replaced"], |pod| {
            pod.change(|pod| pod["metadata"]["uid"] = json!("5d0a2c6e-0000-4000-8000-000000000000"))
        }),
        ("not ready", &["pod-unready"], |pod| {
            pod.change(|pod| {
                for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
                    condition["status"] = json!("False");
                }
            })
        }),
        ("a worker that has seen more", &["exec-failed"], |pod| {
            Ok(std::fs::write(pod.data().join("generation"), "1000\n")?)
        }),
        ("no file at all", &["lease-unavailable", "pod-replaced"], |pod| Ok(std::fs::remove_dir_all(&pod.folder)?)),
    ];
    for (what, reasons, touch) in touches {
        let (worker, pod) = ward.fresh()?;
        let container = pod.container()?;
        touch(&pod)?;
        let (code, replay) = ward.replay(&["tests/words.sh"])?;
        assert_eq!(code, 1, "{what}");
        ward.lost(&replay, reasons, &worker, &pod).with_context(|| what.to_owned())?;
        if what == "a worker that has seen more" {
            assert!(replay.to_string().contains("stale-generation"), "{replay}");
        }
        // Its place is taken by a new one only where the ledger knows the pod: then its process is gone too.
        if what == "another identity" {
            let refused = ward.site.run(&["worker", "prepare", "--json"])?;
            assert_eq!(refused.code, 0, "the second slot is free: {refused:?}");
            std::fs::remove_dir_all(&pod.folder)?;
            signal(container, Signal::KILL)?;
            let removed = ward.site.run(&["worker", "remove", text(&refused.json()?[0]["workerId"])])?;
            assert_eq!(removed.code, 0, "{removed:?}");
        }
    }
    ward.fresh()?;
    assert_eq!(ward.replay(&["tests/words.sh"])?.0, 0);
    Ok(())
}
