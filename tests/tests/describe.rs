//! The daemon under a property tester that knows nothing but the description that the daemon serves: no 5xx, no status,
//! header, type or shape that isn't declared, nothing taken that is declared as wrong, nothing refused that is declared as
//! right, and no way in without a token.
//!
//! Each kind of token has a daemon of its own. `SCHEMATHESIS_SEED` is another seed than 1, `SCHEMATHESIS_EXAMPLES` another
//! number of examples for each operation.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::env;
use std::path::PathBuf;
use std::process::Command;
use warmhold_tests::{Client, Ran, Site, workspace};

/// As many as fit into half a minute on a small machine.
const EXAMPLES: &str = "25";

/// The tester, where `./x` puts it.
fn tester() -> Result<PathBuf> {
    let program = workspace().join("target/schemathesis/bin/schemathesis");
    ensure!(program.is_file(), "{} isn't installed; run ./x test describe", program.display());
    Ok(program)
}

/// Asks the daemon whatever the tester thinks of, with one token.
fn examine(token: impl FnOnce(&Site) -> Result<String>) -> Result<()> {
    let program = tester()?;
    let site = Site::for_test()?;
    // In no git tree there is no source: workers and replays are refused or fall back at once, and nothing is run for them.
    // What they answer when all is well is what docs/http.md is tested for.
    let folder = site.folder().join("no-source");
    std::fs::create_dir(&folder)?;
    let daemon = site.serve_in(&folder, &["--listen", "127.0.0.1:0", "--machine", "build-07"])?;
    let token = token(&site)?;
    let setting = |name: &str, otherwise: &str| env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let seed = setting("SCHEMATHESIS_SEED", "1");
    println!("SCHEMATHESIS_SEED={seed}");
    let ran: Ran = Command::new(program)
        .arg("--config-file")
        .arg(workspace().join("tests/openapi/schemathesis.toml"))
        .args(["run", &format!("{}/v1/openapi.json", daemon.url)])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--seed", &seed, "--max-examples", &setting("SCHEMATHESIS_EXAMPLES", EXAMPLES)])
        .args(["--generation-database", "none", "--no-color"])
        .current_dir(site.folder())
        .env("SCHEMATHESIS_HOOKS", workspace().join("tests/openapi/hooks.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .context("schemathesis can't be started")?
        .into();
    ensure!(ran.code == 0, "seed {seed}:\n{}\n{}\n{}", ran.stdout, ran.stderr, daemon.log());
    let alive = Client::anonymous(&daemon.url).request("GET", "/readyz", None, &[])?;
    ensure!(alive.status == 200, "it isn't ready any more: {}\n{}", alive.text, daemon.log());
    ensure!(daemon.stop()?.success(), "it ended badly");
    Ok(())
}

#[test]
fn with_the_admins_token() -> Result<()> {
    examine(|site| site.token("admin"))
}

#[test]
fn with_the_members_token() -> Result<()> {
    examine(|site| {
        // For the description's own example of a lease.
        let machine = machine_token(site)?;
        register(site, &machine)?;
        site.token("member")
    })
}

#[test]
fn with_a_machines_token() -> Result<()> {
    examine(machine_token)
}

fn machine_token(site: &Site) -> Result<String> {
    let issued = site.run(&["token", "issue", "build-07"])?;
    ensure!(issued.code == 0, "{issued:?}");
    Ok(issued.stdout.trim().to_owned())
}

/// Registers the worker of the description's examples.
fn register(site: &Site, machine: &str) -> Result<()> {
    let state = std::fs::read_to_string(site.root().join("control/daemon.json"))?;
    let state: serde_json::Value = serde_json::from_str(&state)?;
    let url = state.get("url").and_then(serde_json::Value::as_str).context("no address")?;
    let key = json!({"context": "lab", "imageDigest": "sha256:1f", "lockHash": "9c", "architecture": "amd64"});
    let worker = json!({"workerId": "w-9", "machine": "build-07", "podUid": "uid-9", "key": key, "ttlMs": 86_400_000});
    let answer = Client::new(url, machine).request("POST", "/v1/workers/pod", Some(&worker), &[])?;
    ensure!(answer.status == 200, "{}", answer.text);
    Ok(())
}
