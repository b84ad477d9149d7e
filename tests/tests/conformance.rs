//! The recorded scenarios, replayed against the real daemon: what the original answered is what this one answers.

use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;
use warmhold_tests::{Ran, Site, workspace};

#[test]
fn every_recorded_scenario_is_answered_alike() -> Result<()> {
    let site = Site::for_test()?;
    drop(site.serve()?);
    scenarios(&site)
}

#[test]
fn a_lease_policy_from_a_file_answers_them_alike() -> Result<()> {
    let site = Site::for_test()?;
    let mut component = std::fs::read(site.programs.policy("lease-policy")?)?;
    // A custom section: an id of 0, its length, its name. The same decisions, and a digest of its own.
    component.extend([0, 3, 2, b'i', b't']);
    let file = site.folder().join("lease.wasm");
    std::fs::write(&file, component)?;
    site.configure(&format!("[policy.lease]\nfile = \"{}\"\n", file.display()))?;
    let daemon = site.serve()?;
    let policies = site.run(&["policy", "list", "--json"])?.json()?;
    let of_lease = || policies.as_array().into_iter().flatten().filter(|policy| policy["slot"] == "lease");
    let digests: Vec<_> = of_lease().map(|policy| policy["digest"].clone()).collect();
    let [built_in, loaded] = digests.as_slice() else { panic!("not two generations: {policies}") };
    assert_ne!(built_in, loaded);
    let serving: Vec<_> = of_lease().filter(|policy| policy["state"] == "serving").collect();
    assert!(serving.len() == 1 && serving.iter().all(|policy| policy["generation"] != 1), "{policies}");
    drop(daemon);
    scenarios(&site)
}

/// Replays them with roots that have the site's configuration, and the compiled policies of a site that has served.
fn scenarios(site: &Site) -> Result<()> {
    let (warmhold, root) = (site.programs.warmhold.display(), site.root());
    let root = root.display();
    let given = format!(
        "cp -a {root}/cache \"$1/cache\"; [ ! -f {root}/warmhold.toml ] || cp -a {root}/warmhold.toml \"$1\"; shift; exec \"$@\""
    );
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
