//! `doctor`.

use super::server::{Answer, Server};
use super::{World, ran};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn program(path: &Path) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    fs::write(path, "#!/bin/sh\n").expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("0755");
}

/// A world with nothing wrong that this machine could help.
fn healthy() -> World {
    let world = World::new();
    let worker = world.folder.path().join("bin/warmhold-worker");
    program(&worker);
    fs::write(world.root().join("warmhold.toml"), format!("[daemon]\nworker-binary = \"{}\"\n", worker.display()))
        .expect("written");
    for folder in [world.root(), world.root().join("control")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("0700");
    }
    world.commit(&["a.sh"]);
    world
}

fn check<'a>(checks: &'a Value, name: &str) -> &'a Value {
    let found = checks.as_array().expect("an array").iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name}: {checks:#}"))
}

#[test]
fn one_line_for_each_thing_and_exit_0_when_nothing_needed_is_broken() {
    let world = healthy();
    let shown = world.run(&["doctor"]).exits(0);
    let checks = world.run(&["doctor", "--json"]).exits(0).json();
    let count = checks.as_array().expect("an array").len();
    assert_eq!(shown.stdout.lines().count(), count, "{}", shown.stdout);
    for name in ["configuration", "root", "file system", "git", "worker binary", "profile local", "program sh"] {
        assert_eq!(check(&checks, name)["status"], "ok", "{checks:#}");
        assert_eq!(check(&checks, name).get("fix"), None);
    }
    // No daemon runs, which is no fault before the first start.
    assert_eq!(check(&checks, "daemon")["status"], "warn");
    assert_eq!(
        check(&checks, "daemon")["fix"],
        format!("start it with `warmhold serve --root {}`", world.root().display())
    );
    for name in ["overlay", "namespaces", "landlock", "user", "memory limits"] {
        assert!(check(&checks, name)["status"].is_string());
    }
}

#[test]
fn faults_of_the_configuration_are_lines_of_their_own() {
    let world = healthy();
    fs::write(world.root().join("warmhold.toml"), "[daemon]\nlisen = 1\n[polcy]\n").expect("written");
    let ran = world.run(&["doctor"]).exits(1);
    let file = world.root().join("warmhold.toml");
    let faults: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with("FAIL  configuration")).collect();
    assert_eq!(
        faults,
        [
            format!(
                "FAIL  configuration  {}:2: daemon.lisen: is no key of this table; fix: did you mean `listen`?",
                file.display()
            ),
            format!(
                "FAIL  configuration  {}:3: polcy: is no table of this file; fix: did you mean `policy`?",
                file.display()
            ),
        ]
    );
}

#[test]
fn what_is_broken_has_its_fix() {
    let world = healthy();
    let token = world.root().join("control/tokens.json");
    fs::write(&token, "{}").expect("written");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).expect("0644");
    fs::set_permissions(world.root(), fs::Permissions::from_mode(0o755)).expect("0755");
    fs::write(
        world.root().join("warmhold.toml"),
        "[daemon]\nworker-binary = 'none'\npod-path = '/nowhere'\n[[profile.local.test]]\nmatch = '*.rb'\nrun = ['ruby', '{file}']\n",
    )
    .expect("written");
    let checks = world.run(&["doctor", "--json"]).exits(1).json();
    assert_eq!(check(&checks, "control files")["fix"], format!("chmod go= {}", token.display()));
    assert_eq!(check(&checks, "root")["status"], "warn");
    assert_eq!(check(&checks, "root")["fix"], format!("chmod 700 {}", world.root().display()));
    assert_eq!(check(&checks, "worker binary")["status"], "fail");
    assert_eq!(check(&checks, "program ruby")["status"], "fail", "a rule of one's own needs it");
    assert_eq!(check(&checks, "program node")["status"], "warn", "perhaps no such test is there");
}

#[test]
fn a_cluster_profile_needs_kubectl_and_its_context() {
    let world = healthy();
    let config = world.root().join("warmhold.toml");
    let mut text = fs::read_to_string(&config).expect("read");
    text.push_str(
        "[profile.c]\nbackend='kubectl'\ncontext='nowhere'\nnamespace='n'\nnode='n1'\nimage='i'\n[grants.replay]\ncontexts=['nowhere']\n\
         namespaces=['n']\nverbs=['create-pod','exec','get-node','get-pod','list-pods','patch-metadata','wait-ready']\n",
    );
    fs::write(&config, text).expect("written");
    // Programs of our own, so that no cluster of this machine is asked.
    let bin = world.folder.path().join("bin");
    let git = std::env::split_paths(&std::env::var_os("PATH").expect("a PATH"))
        .map(|folder| folder.join("git"))
        .find(|git| git.is_file());
    std::os::unix::fs::symlink(git.expect("git"), bin.join("git")).expect("linked");
    let doctor =
        |world: &World| ran(world.command().env("PATH", format!("{}:/bin", bin.display())).args(["doctor", "--json"]));
    fs::write(bin.join("kubectl"), "#!/bin/sh\nexit 1\n").expect("written");
    fs::set_permissions(bin.join("kubectl"), fs::Permissions::from_mode(0o755)).expect("0755");
    let checks = doctor(&world).exits(1).json();
    assert_eq!(check(&checks, "kubectl")["fix"], "install kubectl");
    fs::write(
        bin.join("kubectl"),
        "#!/bin/sh\ncase \"$1\" in version) echo '{\"clientVersion\":{\"gitVersion\":\"v1.2.3\"}}';; *) test \"$3\" = known;; esac\n",
    )
    .expect("written");
    let checks = doctor(&world).exits(1).json();
    assert_eq!(check(&checks, "kubectl")["detail"], "v1.2.3");
    assert_eq!(check(&checks, "context nowhere")["detail"], "kubectl doesn't know it");
}

#[test]
fn a_running_daemon_and_its_bad_policies_are_told() {
    let server = Server::new(|_| {
        Answer::Json(
            200,
            json!([{"slot": "lease", "name": "a", "version": "1", "digest": "d", "generation": 2, "state": "serving", "calls": 1, "faults": 0},
                {"slot": "lease", "name": "b", "version": "1", "digest": "e", "generation": 3, "state": "bad", "calls": 3, "faults": 3, "firstFault": "a trap"}]),
        )
    });
    let world = healthy();
    let other = World::with(&server);
    for name in ["tokens.json", "daemon.json"] {
        let to = world.root().join("control").join(name);
        fs::copy(other.root().join("control").join(name), &to).expect("copied");
        fs::set_permissions(to, fs::Permissions::from_mode(0o600)).expect("0600");
    }
    let ran = world.run(&["doctor"]).exits(0);
    assert!(ran.stdout.contains(&format!("ok    daemon         answers at {}\n", server.url())), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("warn  policies       b generation 3 was set aside: a trap; fix: load a mended one: warmhold policy load lease FILE\n"),
        "{}",
        ran.stdout
    );
}
