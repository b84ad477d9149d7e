//! What tests must not find: other workers' trees, keys, and what an earlier request left somewhere on the machine.
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
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Whether this machine lets the worker have mounts and users of its own; else the test says why it is left out.
fn able(test: &str) -> bool {
    let able =
        root() && std::process::Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|got| got.success());
    if !able {
        eprintln!("{test} is left out: it needs root and a mount namespace");
    }
    able
}

/// A directory outside of the places that every user can write to.
fn elsewhere() -> TempDir {
    let dir = tempfile::Builder::new().prefix("warmhold-test-").tempdir_in("/var/lib").unwrap();
    open(dir.path(), 0o711);
    dir
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Opens all that it can for everybody and waits.
const CARELESS: &str = "umask 0; mkdir d; echo s3cret > d/s; chmod 777 . d; chmod 666 d/s; \
                        for d in $HOME $TMPDIR; do chmod 777 $d; echo s3cret > $d/s; done; \
                        echo started; while ! [ -e $GATE ]; do sleep 0.05; done; cat d/s";

#[test]
fn another_workers_test_reads_and_writes_nothing_of_a_request() {
    if !able("another_workers_test_reads_and_writes_nothing_of_a_request") {
        return;
    }
    for power in [Power::Own, Power::Pod] {
        let pod = Pod::with(power);
        pod.file("t.sh", CARELESS);
        let gate = pod.data().join("gate");
        let mut command = pod.command(&["t.sh"]);
        command.env.insert("GATE".to_owned(), gate.display().to_string());
        let mut running = pod.start(&command);
        running.until("started");
        // Without mounts of its own, only users stand between the two.
        let other = Pod::with(Power::Pod);
        let request = pod.data().join("requests/1");
        let script = format!(
            "cd {} 2>/dev/null && echo entered; cd /; for d in upper tree upper/d tree/d state tmp; do \
             cat {0}/$d/s; ls {0}/$d && echo listed; echo evil > {0}/$d/s && echo wrote; done 2>/dev/null; exit 0",
            request.display()
        );
        let reply = other.script("u.sh", &script);
        fs::write(gate, "").unwrap();
        let first = running.finish();
        reply.assert_passed();
        assert_eq!(reply.stdout(0), "", "{power:?}");
        first.assert_passed();
        assert_eq!(first.stdout(0), "started\ns3cret\n", "{power:?}");
        pod.assert_empty();
    }
}

#[test]
fn of_the_machines_pods_a_test_sees_its_own() {
    if !able("of_the_machines_pods_a_test_sees_its_own") {
        return;
    }
    let dir = elsewhere();
    let pod = |name: &str| {
        let volumes = dir.path().join(format!("pods/warm/{name}/volumes"));
        fs::create_dir_all(&volumes).unwrap();
        Pod::at(&volumes, Power::Own)
    };
    let (one, two) = (pod("one"), pod("two"));
    let secret = one.file("secret.txt", "s3cret\n");
    let own = two.file("own.txt", "own\n");
    let script = format!(
        "cat {}; [ -e {} ] && echo there; cat {} 2>/dev/null && echo read it; echo x > {} && echo wrote; exit 0",
        own.display(),
        dir.path().join("pods/warm/one").display(),
        secret.display(),
        dir.path().join("pods/warm/two/volumes/new").display()
    );
    let reply = two.script("t.sh", &script);
    reply.assert_passed();
    assert_eq!(reply.stdout(0), "own\n");
    two.assert_empty();
    assert_eq!(fs::read_to_string(secret).unwrap(), "s3cret\n");
}

#[test]
fn what_a_test_leaves_anywhere_else_ends_with_the_request() {
    if !able("what_a_test_leaves_anywhere_else_ends_with_the_request") {
        return;
    }
    let dir = elsewhere();
    let below = tempfile::Builder::new().prefix("warmhold-test-").tempdir_in("/tmp").unwrap();
    let places = [dir.path().to_owned(), below.path().to_owned()];
    for place in &places {
        open(place, 0o777);
    }
    // In the first kind of place the pod lies itself, in the other one it doesn't.
    for home in [tempfile::tempdir_in("/tmp").unwrap(), elsewhere()] {
        open(home.path(), 0o711);
        let pod = Pod::at(home.path(), Power::Own);
        let script =
            places.clone().map(|place| format!("mkdir -p {0}; cat {0}/left; echo x > {0}/left;", place.display()));
        pod.file("t.sh", &format!("{} exit 0", script.concat()));
        for generation in [1, 2] {
            let mut command = pod.command(&["t.sh"]);
            command.generation = generation;
            let reply = pod.run(&command);
            reply.assert_passed();
            assert_eq!(reply.stdout(0), "", "generation {generation}");
            pod.assert_empty();
        }
        for place in &places {
            assert!(!place.join("left").exists(), "{}", place.display());
        }
    }
}

#[test]
fn tests_find_what_programs_need() {
    if !able("tests_find_what_programs_need") {
        return;
    }
    let script = "
import multiprocessing, os, pty, socket, subprocess, tempfile
for place in ('/tmp', '/var/tmp', '/dev/shm', None):
    with tempfile.NamedTemporaryFile(dir=place) as file:
        file.write(b'x')
        file.flush()
        assert os.stat(file.name).st_size == 1
open('/dev/null', 'w').write('x')
assert len(open('/dev/urandom', 'rb').read(8)) == 8
main, other = pty.openpty()
os.write(other, b'x')
assert os.read(main, 1) == b'x'
multiprocessing.Lock()
socket.socket(socket.AF_UNIX).bind('/tmp/socket')
assert open('/proc/self/comm', 'w').write('renamed')
subprocess.run('echo x > /dev/null && : > /dev/stdout', shell=True, check=True)
# Not even its own user may fill the machine's memory.
try:
    with open('/dev/shm/large', 'wb') as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 40)
    raise SystemExit('no bound')
except OSError:
    pass
";
    for home in [tempfile::tempdir_in("/tmp").unwrap(), elsewhere()] {
        open(home.path(), 0o711);
        Pod::at(home.path(), Power::Own).script("t.py", script).assert_passed();
    }
}

/// Calls of the kernel's keyrings, for `python3`.
const KEYS: &str = "
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ADD, CTL = {'x86_64': (248, 250), 'aarch64': (217, 219)}[platform.machine()]
def call(*arguments):
    whole = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    answer = libc.syscall(*whole)
    return answer if answer >= 0 else -ctypes.get_errno()
";

#[test]
fn a_key_of_one_request_reaches_no_other() {
    if !able("a_key_of_one_request_reaches_no_other") {
        return;
    }
    for power in [Power::Own, Power::Pod] {
        let pod = Pod::with(power);
        let script = "
keyrings = {'user': -4, 'user session': -5, 'persistent': call(CTL, 22, -1, -2)}
for name, keyring in keyrings.items():
    if name == 'persistent' and keyring < 0:
        continue
    if call(CTL, 10, keyring, b'user', b'warmhold-test', 0) > 0:
        print('found in', name)
for name, keyring in keyrings.items():
    if name == 'persistent' and keyring < 0:
        continue
    added = call(ADD, b'user', b'warmhold-test', b'x', 1, keyring)
    print('added' if added > 0 else f'no keys here: {os.strerror(-added)}')
";
        pod.file("t.py", &format!("{KEYS}{script}"));
        for generation in [1, 2] {
            let mut command = pod.command(&["t.py"]);
            command.generation = generation;
            let reply = pod.run(&command);
            reply.assert_passed();
            let said = reply.stdout(0);
            if said.contains("no keys here") {
                eprintln!("a_key_of_one_request_reaches_no_other is left out: {said}");
                return;
            }
            assert!(said.contains("added") && !said.contains("found"), "{power:?} {generation}: {said}");
        }
    }
}

#[test]
fn a_keyring_that_cannot_be_emptied_is_unclean() {
    if !able("a_keyring_that_cannot_be_emptied_is_unclean") {
        return;
    }
    let pod = Pod::new();
    // No permission for anybody: not to look, not to write, not to change this.
    let script = "
added = call(ADD, b'user', b'warmhold-test', b'x', 1, -4)
if added < 0:
    print('no keys here:', os.strerror(-added))
elif call(CTL, 5, -4, 0) < 0:
    print('no keys here: the permissions stay')
";
    pod.file("t.py", &format!("{KEYS}{script}"));
    let reply = pod.run(&pod.command(&["t.py"]));
    if reply.stdout(0).contains("no keys here") {
        eprintln!("a_keyring_that_cannot_be_emptied_is_unclean is left out: {}", reply.stdout(0));
        return;
    }
    let verdict = reply.verdict();
    assert!(verdict.passed() && !verdict.clean, "{verdict:?} {}", reply.stderr_of(0));
    assert!(verdict.unclean.iter().any(|line| line.contains("keyring")), "{verdict:?}");
}

#[test]
fn a_request_has_a_session_keyring_of_its_own() {
    if !able("a_request_has_a_session_keyring_of_its_own") {
        return;
    }
    let pod = Pod::new();
    let script = "
text = ctypes.create_string_buffer(200)
answer = call(CTL, 6, -3, ctypes.addressof(text), 200)
print(text.value.decode() if answer > 0 else f'no keys here: {os.strerror(-answer)}')
";
    let reply = pod.script("t.py", &format!("{KEYS}{script}"));
    reply.assert_passed();
    let said = reply.stdout(0);
    if said.contains("no keys here: Function not implemented") {
        eprintln!("a_request_has_a_session_keyring_of_its_own is left out: {said}");
        return;
    }
    let fields: Vec<&str> = said.trim().split(';').collect();
    assert_eq!((fields[0], fields[1]), ("keyring", pod.uid.to_string().as_str()), "{said}");
    assert_eq!(fields.last(), Some(&"_ses"), "{said}");
}

#[test]
fn artifacts_with_names_that_the_host_refuses_are_left_out_and_told() {
    let pod = Pod::new();
    let script = r"
import os
os.chdir(os.environ['WARM_ARTIFACTS'])
os.mkdir('new\nline')
for name in ('a\nb', 'tab\t', 'back\\slash', 'new\nline/x', 'good'):
    open(name, 'w').write(name)
";
    let reply = pod.script("t.py", script);
    let file = &reply.assert_passed().files[0];
    let names: Vec<&str> = file.artifacts.iter().map(|artifact| artifact.suffix.as_str()).collect();
    assert_eq!(names, ["good"]);
    let detail = file.detail.clone().unwrap();
    assert!(detail.contains("4 artifacts were left out: the name has"), "{detail}");
    pod.assert_empty();
}
