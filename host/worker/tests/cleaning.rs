//! The tree, the private directories and the artifacts: what tests may do with them and that nothing stays.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

mod common;

use common::{Pod, Power, root};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn powers() -> Vec<Power> {
    if root() { vec![Power::Own, Power::Pod, Power::User] } else { vec![Power::Own] }
}

#[test]
fn the_tree_can_be_written_and_the_base_stays() {
    for power in powers() {
        let pod = Pod::with(power);
        let kept = pod.file("dir/kept.txt", "old");
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o644)).unwrap();
        pod.file("gone.txt", "old");
        let before = fs::metadata(&kept).unwrap();
        let script = "set -e; echo new > dir/kept.txt; cat dir/kept.txt; rm gone.txt; mkdir -p a/b; echo x > a/b/c; rm -r dir; ls";
        let reply = pod.script("t.sh", script);
        reply.assert_passed();
        assert_eq!(reply.stdout(0), "new\na\nt.sh\n", "{power:?}");
        let after = fs::metadata(&kept).unwrap();
        assert_eq!((before.ctime_nsec(), before.ino()), (after.ctime_nsec(), after.ino()));
        assert_eq!(fs::read_to_string(&kept).unwrap(), "old");
        assert!(pod.repo().join("gone.txt").exists() && !pod.repo().join("a").exists());
        pod.assert_empty();
    }
}

#[test]
fn a_large_tree_costs_nothing_until_it_is_written_to() {
    let pod = Pod::new();
    pod.file("large/file", "x");
    let gate = pod.data().join("gate");
    let script = format!(
        "echo x >> large/file; stat -c %u large; echo started; while ! [ -e {} ]; do sleep 0.05; done",
        gate.display()
    );
    pod.file("t.sh", &script);
    pod.file("other", "x");
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    let request = pod.data().join("requests/1");
    // Where the base can be shown as the user's own, only what was written has a copy.
    let mapped = request.join("base").exists();
    let copied: Vec<_> = fs::read_dir(request.join("upper"))
        .map_or_else(|_| Vec::new(), |all| all.flatten().map(|entry| entry.file_name()).collect());
    fs::write(gate, "").unwrap();
    let reply = running.finish();
    reply.assert_passed();
    if mapped {
        assert_eq!(copied, ["large"]);
    }
    if root() {
        assert_eq!(reply.stdout(0), format!("{}\nstarted\n", pod.uid));
    }
}

#[test]
fn a_base_of_several_owners_becomes_the_users_own_too() {
    if !root() {
        return;
    }
    for power in [Power::Own, Power::Pod] {
        let pod = Pod::with(power);
        let other = pod.file("other.txt", "old");
        std::os::unix::fs::chown(&other, Some(4242), Some(4242)).unwrap();
        let reply = pod.script("t.sh", "stat -c %u other.txt t.sh; echo new > other.txt; cat other.txt");
        reply.assert_passed();
        assert_eq!(reply.stdout(0), format!("{0}\n{0}\nnew\n", pod.uid), "{power:?}");
        assert_eq!(fs::read_to_string(other).unwrap(), "old");
    }
}

#[test]
fn each_request_starts_fresh() {
    for power in powers() {
        let pod = Pod::with(power);
        let script = "ls -A $HOME $TMPDIR $XDG_CONFIG_HOME $XDG_CACHE_HOME $XDG_DATA_HOME $XDG_RUNTIME_DIR $WARM_ARTIFACTS | grep -v : ; \
                      for d in . $HOME $TMPDIR $XDG_CONFIG_HOME $XDG_CACHE_HOME $XDG_DATA_HOME $XDG_RUNTIME_DIR; do echo x > $d/left; done";
        pod.file("t.sh", script);
        for generation in [1, 2] {
            let mut command = pod.command(&["t.sh"]);
            command.generation = generation;
            let reply = pod.run(&command);
            reply.assert_passed();
            assert_eq!(reply.stdout(0).trim(), "", "{power:?}");
            pod.assert_empty();
        }
    }
}

#[test]
fn closed_directories_and_deep_nests_are_cleaned_as_their_owner() {
    for power in powers() {
        let pod = Pod::with(power);
        let script = "
import os
for top in (os.environ['HOME'], os.environ['TMPDIR'], '.'):
    os.makedirs(top + '/a/b/c')
    open(top + '/a/b/c/f', 'w').close()
    os.symlink('/etc', top + '/a/etc')
    os.mkfifo(top + '/a/fifo')
    os.chmod(top + '/a/b/c', 0)
    os.chmod(top + '/a/b', 0)
    os.chmod(top + '/a', 0)
os.chdir(os.environ['XDG_CACHE_HOME'])
for _ in range(100):
    os.mkdir('deeper' * 10)
    os.chdir('deeper' * 10)
";
        pod.script("t.py", script).assert_passed();
        pod.assert_empty();
    }
}

#[test]
fn what_a_test_leaves_in_shared_places_is_removed() {
    if !root() {
        return;
    }
    for power in [Power::Own, Power::Pod] {
        let pod = Pod::with(power);
        let name = format!("warmhold-test-{}", pod.uid);
        let script = format!(
            "set -e; mkdir -p /tmp/{name}/a; echo x > /tmp/{name}/a/b; chmod 000 /tmp/{name}; echo x > /dev/shm/{name}; echo x > /var/tmp/{name}"
        );
        pod.script("t.sh", &script).assert_passed();
        for place in ["/tmp", "/dev/shm", "/var/tmp"] {
            assert!(fs::symlink_metadata(format!("{place}/{name}")).is_err(), "{place}");
        }
    }
}

#[test]
fn a_base_tree_that_changed_is_unclean() {
    // In a copy's mode the base can be reached by its own path; a mode that lets others write is enough.
    for power in powers() {
        let pod = Pod::with(power);
        let open = pod.file("open.txt", "old");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
        pod.file("t.sh", "echo new > $BASE/open.txt; exit 0");
        let mut command = pod.command(&["t.sh"]);
        command.env.insert("BASE".to_owned(), pod.repo().display().to_string());
        let verdict = pod.run(&command).verdict().clone();
        assert!(verdict.passed());
        let changed = fs::read_to_string(&open).unwrap() != "old";
        assert_eq!(verdict.clean, !changed, "{power:?} {verdict:?}");
        assert_eq!(
            changed,
            power == Power::Pod,
            "{power:?}: only there neither a mount nor Landlock stands in the way"
        );
        if changed {
            assert_eq!(verdict.unclean, ["the base tree changed: open.txt"]);
        }
    }
}

#[test]
fn a_base_tree_that_somebody_else_changes_is_unclean() {
    let pod = Pod::new();
    pod.file("kept.txt", "old");
    let gate = pod.data().join("gate");
    pod.file("t.sh", &format!("echo started; while ! [ -e {} ]; do sleep 0.05; done", gate.display()));
    let mut running = pod.start(&pod.command(&["t.sh"]));
    running.until("started");
    fs::set_permissions(pod.repo().join("kept.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(gate, "").unwrap();
    let verdict = running.finish().verdict().clone();
    assert!(verdict.passed() && !verdict.clean, "{verdict:?}");
    assert_eq!(verdict.unclean, ["the base tree changed: kept.txt"]);
}

#[test]
fn artifacts_are_regular_files_in_path_order() {
    for power in powers() {
        let pod = Pod::with(power);
        let script = "
import os, socket
os.chdir(os.environ['WARM_ARTIFACTS'])
open('b.txt', 'w').write('second')
os.makedirs('a/deep')
open('a/deep/one.bin', 'wb').write(bytes(range(256)) * 4096)
open('empty', 'w').close()
os.symlink('/etc/passwd', 'link')
os.symlink('/etc', 'etc')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
open(b'\\xff', 'w').close()
open('closed', 'w').write('x')
os.chmod('closed', 0)
os.makedirs('/'.join(['d'] * 30))
";
        pod.file("t.py", script);
        pod.file("u.sh", "echo mine > $WARM_ARTIFACTS/u");
        let reply = pod.run(&pod.command(&["t.py", "u.sh"]));
        let verdict = reply.assert_passed();
        let names = |index: usize| {
            verdict.files[index].artifacts.iter().map(|artifact| artifact.suffix.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["a/deep/one.bin", "b.txt", "empty"], "{power:?}");
        assert_eq!(names(1), ["u"], "a file's artifacts are its own");
        assert_eq!(reply.artifacts[&(0, "b.txt".to_owned())], b"second");
        assert_eq!(verdict.files[0].artifacts[0].digest.bytes, 1 << 20);
        let detail = verdict.files[0].detail.clone().unwrap();
        for why in ["link", "no regular file", "UTF-8", "nested"] {
            assert!(detail.contains(why), "{detail}");
        }
        pod.assert_empty();
    }
}

#[test]
fn artifacts_are_bounded() {
    let pod = Pod::new();
    let script = "
import os
os.chdir(os.environ['WARM_ARTIFACTS'])
for number in range(1005):
    open(f'{number:05}', 'w').write('x')
with open('big', 'wb') as file:
    file.truncate(65 << 20)
";
    let reply = pod.script("t.py", script);
    let verdict = reply.assert_passed();
    let detail = verdict.files[0].detail.clone().unwrap();
    assert_eq!(verdict.files[0].artifacts.len(), 1000);
    assert!(
        detail.contains("5 artifacts were left out: there are too many") || detail.contains("6 artifacts"),
        "{detail}"
    );
    pod.assert_empty();
}

#[test]
fn an_artifact_directory_that_is_gone_or_replaced_costs_nothing_but_the_artifacts() {
    let pod = Pod::new();
    let reply =
        pod.script("t.sh", "cd $WARM_ARTIFACTS/.. && rmdir artifacts 2>/dev/null && ln -s /etc artifacts; exit 0");
    assert!(reply.verdict().passed());
    assert!(reply.artifacts.is_empty());
}
