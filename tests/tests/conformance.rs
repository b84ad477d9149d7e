//! The recorded scenarios, replayed against the real daemon: what the original answered is what this one answers.

use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;
use warmhold_tests::{Ran, Site, workspace};

#[test]
fn every_recorded_scenario_is_answered_alike() -> Result<()> {
    // One that has served before: its compiled policies are given to every scenario's root.
    let site = Site::for_test()?;
    drop(site.serve()?);
    let (warmhold, compiled) = (site.programs.warmhold.display(), site.root().join("cache"));
    let given = format!("cp -a {} \"$1/cache\"; shift; exec \"$@\"", compiled.display());
    let data = workspace().join("tests/conformance");
    let serve = format!(
        "sh -c '{given}' sh {{root}} {warmhold} serve --root {{root}} --listen 127.0.0.1:{{port}} --machine {{machine}}"
    );
    let ran: Ran = Command::new("python3")
        .arg(data.join("run.py"))
        .args(["--serve", &format!("{serve} --primary-lease {{lease}}")])
        .args(["--serve-without-lease", &format!("{serve} --no-primary")])
        .args(["--token", &format!("{warmhold} token issue {{machine}} --root {{root}}")])
        .args(["--jobs", "2"])
        .arg(data.join("control-plane.json"))
        // The roots are made in here, and the folders of pods beside them.
        .env("TMPDIR", site.folder())
        .env_remove("WARMHOLD_ROOT")
        .current_dir(Path::new("/"))
        .output()
        .context("python3 can't be started")?
        .into();
    let last = ran.stdout.lines().last().unwrap_or_default();
    assert_eq!((last, ran.code), ("27 passed, 0 failed", 0), "{}\n{}", ran.stdout, ran.stderr);
    Ok(())
}
