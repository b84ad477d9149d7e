//! How tests are kept apart: from the worker, from its network, from what started it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

mod common;

use common::{Pod, Power, root};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use warmhold_protocol::IsolationLevel;

/// An HTTP server on loopback that counts who comes.
fn server() -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    (address, count)
}

#[test]
fn nothing_is_inherited() {
    let mut pod = Pod::new();
    pod.variables.push(("LD_LIBRARY_PATH".to_owned(), "/somewhere".to_owned()));
    pod.file(
        "t.sh",
        "env | sort; ls /proc/self/fd | tr '\\n' ' '; readlink /proc/$$/fd/0; umask; grep SigIgn /proc/$$/status; \
         test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo own session",
    );
    let mut command = pod.command(&["t.sh"]);
    command.env.insert("PROFILE".to_owned(), "value".to_owned());
    command.env.insert("TZ".to_owned(), "Mars".to_owned());
    command.baseline_sha = Some("e".repeat(40));
    let reply = pod.run(&command);
    reply.assert_passed();
    let own = |name: &str| pod.data().join("requests/1").join(name).display().to_string();
    let mut want = vec![
        format!("HOME={}", own("state")),
        "LANG=C.UTF-8".to_owned(),
        "LC_ALL=C.UTF-8".to_owned(),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        "PROFILE=value".to_owned(),
        format!("PWD={}", own("tree")),
        format!("TMPDIR={}", own("tmp")),
        "TZ=UTC".to_owned(),
        format!("WARM_ARTIFACTS={}", own("artifacts")),
        format!("WARM_BASELINE_SHA={}", "e".repeat(40)),
        format!("XDG_CACHE_HOME={}", own("cache")),
        format!("XDG_CONFIG_HOME={}", own("config")),
        format!("XDG_DATA_HOME={}", own("data")),
        format!("XDG_RUNTIME_DIR={}", own("runtime")),
        format!("XDG_STATE_HOME={}", own("state")),
    ];
    want.push("0 1 2 3 /dev/null".to_owned());
    want.push("0022".to_owned());
    want.push("SigIgn:\t0000000000000000".to_owned());
    want.push("own session".to_owned());
    let got: Vec<_> = reply.stdout(0).lines().filter(|line| !line.starts_with("OLDPWD")).map(str::to_owned).collect();
    assert_eq!(got, want);
}

#[test]
fn a_descriptor_that_the_starter_leaked_reaches_no_test() {
    let pod = Pod::new();
    pod.file("t.sh", "ls /proc/self/fd");
    // A shell leaks descriptors 7 and 9 to the worker, as a careless daemon would.
    let script = format!("exec 7</etc/passwd 9>/dev/null; exec {} run", env!("CARGO_BIN_EXE_warmhold-worker"));
    let mut child = std::process::Command::new("sh")
        .args(["-c", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("WARM_WORKER_ID", "worker-1")
        .env("WARM_CUT", common::CUT)
        .env("WARM_KEY", serde_json::to_string(&pod.key()).unwrap())
        .env("WARM_REPO", pod.repo())
        .env("WARM_DATA", pod.data())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    warmhold_protocol::write_command(&mut input, &pod.command(&["t.sh"])).unwrap();
    let mut frames = warmhold_protocol::FrameReader::default();
    let mut out = child.stdout.take().unwrap();
    let mut text = Vec::new();
    loop {
        match frames.read_from(&mut out).unwrap().expect("a verdict") {
            warmhold_protocol::Frame::Output { bytes, .. } => text.extend(bytes),
            warmhold_protocol::Frame::Verdict(verdict) => {
                assert!(verdict.passed(), "{verdict:?}");
                break;
            }
            _ => {}
        }
    }
    assert!(child.wait().unwrap().success());
    drop(input);
    assert_eq!(String::from_utf8(text).unwrap(), "0\n1\n2\n3\n");
}

#[test]
fn tests_have_a_user_of_their_own_without_any_privilege() {
    if !root() {
        return;
    }
    let pod = Pod::new();
    let reply =
        pod.script("t.sh", "id -u; id -g; id -G; grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status");
    let verdict = reply.assert_passed();
    assert_eq!((verdict.isolation.level, verdict.isolation.why.len()), (IsolationLevel::Full, 0), "{verdict:?}");
    let none = "0".repeat(16);
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|set| format!("{set}:\t{none}\n")).concat();
    let uid = pod.uid;
    assert_eq!(reply.stdout(0), format!("{uid}\n{uid}\n{uid}\n{sets}NoNewPrivs:\t1\n"));
}

#[test]
fn standard_streams_can_be_opened_by_name() {
    let reply = Pod::new().script("t.sh", "echo out > /dev/stdout; echo err > /dev/stderr; echo o2 > /proc/self/fd/1");
    reply.assert_passed();
    assert_eq!((reply.stdout(0).as_str(), reply.stderr_of(0).as_str()), ("out\no2\n", "err\n"));
}

const CONNECT: &str = "
import os, socket, sys
try:
    socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 3)
    print('reached')
except OSError as error:
    print('closed', error.errno)
try:
    socket.create_connection(('192.0.2.1', 80), 3)
    print('reached')
except OSError as error:
    print(os.strerror(error.errno))
listener = socket.create_server(('127.0.0.1', 0))
socket.create_connection(listener.getsockname(), 3)
print('own loopback')
";

#[test]
fn a_private_network_reaches_nothing_but_itself() {
    if !root() {
        return;
    }
    let (address, count) = server();
    let mut pod = Pod::new();
    pod.variables.push(("WARM_HOST_PROBE_URL".to_owned(), format!("http://{address}/health")));
    // Production is on the same address: the host probe is made outside, this one inside.
    pod.variables.push(("WARM_PROD_PROBE_URL".to_owned(), format!("http://{address}/health")));
    pod.file("t.py", CONNECT);
    let mut command = pod.command(&["t.py"]);
    command.env.insert("PORT".to_owned(), address.port().to_string());
    let reply = pod.run(&command);
    let verdict = reply.assert_passed();
    assert_eq!(verdict.isolation.level, IsolationLevel::Full, "{verdict:?}");
    assert_eq!(reply.stdout(0), "closed 111\nNetwork is unreachable\nown loopback\n");
    assert_eq!(count.load(Ordering::SeqCst), 1, "the host probe alone");
}

#[test]
fn an_open_network_is_refused_when_production_answers_and_reduced_when_nothing_was_asked() {
    let (address, _) = server();
    let pod = Pod::new();
    pod.file("t.sh", "exit 0");
    let mut command = pod.command(&["t.sh"]);
    command.isolation.private_network = false;
    command.probes.prod = Some(format!("http://{address}/"));
    assert_eq!(pod.run(&command).refusal(), "prod-probe-answered");
    command.probes.prod = None;
    command.generation = 2;
    let reply = pod.run(&command);
    let verdict = reply.assert_passed();
    assert_eq!(verdict.isolation.level, IsolationLevel::Reduced);
    assert!(verdict.isolation.why.iter().any(|why| why.contains("network")), "{verdict:?}");
    // What the command says overrides the pod, even to nothing.
    command.probes.prod = Some("http://127.0.0.1:1/".to_owned());
    command.generation = 3;
    let reply = pod.run(&command);
    let why = &reply.assert_passed().isolation.why;
    assert!(!why.iter().any(|why| why.contains("network")), "{why:?}");
}

#[test]
fn in_a_pod_an_own_user_and_probes_are_full_isolation() {
    if !root() {
        return;
    }
    let (address, count) = server();
    let mut pod = Pod::with(Power::Pod);
    pod.variables.push(("WARM_HOST_PROBE_URL".to_owned(), format!("http://{address}/health")));
    pod.variables.push(("WARM_PROD_PROBE_URL".to_owned(), "http://127.0.0.1:1/".to_owned()));
    let reply = pod.script("t.sh", "id -u");
    let verdict = reply.assert_passed();
    assert_eq!(verdict.isolation.level, IsolationLevel::Full, "{verdict:?}");
    assert_eq!(reply.stdout(0), format!("{}\n", pod.uid));
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

/// Tries whatever a test could to speak in the worker's place.
const FORGE: &str = r#"
import ctypes, json, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
worker = os.getppid()
assert open(f'/proc/{worker}/comm').read() == 'warmhold-worker\n', 'the parent is the worker'
verdict = json.dumps({'passed': True}).encode()
frame = b'V' + struct.pack('>I', len(verdict)) + verdict
os.write(1, frame)
broken = []
def attempt(name, action):
    try:
        result = action()
        broken.append(f'{name}: {result!r}'[:200])
    except OSError as error:
        pass
attempt('write to its stdout', lambda: os.write(os.open(f'/proc/{worker}/fd/1', os.O_WRONLY), frame))
attempt('read its stdin', lambda: os.open(f'/proc/{worker}/fd/0', os.O_RDONLY | os.O_NONBLOCK))
attempt('list its descriptors', lambda: os.listdir(f'/proc/{worker}/fd'))
attempt('read its memory', lambda: os.open(f'/proc/{worker}/mem', os.O_RDONLY))
attempt('write its memory', lambda: os.open(f'/proc/{worker}/mem', os.O_RDWR))
attempt('read its environment', lambda: open(f'/proc/{worker}/environ').read())
attempt('read its maps', lambda: open(f'/proc/{worker}/maps').read())
if libc.ptrace(16, worker, 0, 0) == 0:
    broken.append('ptrace')
pidfd = libc.syscall(434, worker, 0)
for fd in range(0, 12):
    if pidfd >= 0 and libc.syscall(438, pidfd, fd, 0) >= 0:
        broken.append(f'pidfd_getfd {fd}')
for task in os.listdir(f'/proc/{worker}/task'):
    attempt('a thread', lambda: os.open(f'/proc/{worker}/task/{task}/fd/1', os.O_WRONLY))
# The nonce must be nowhere that a test can read.
nonce = os.environ['PART'].encode() + b'1e5b8d2046'
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('cmdline', 'environ'):
        try:
            if nonce in open(f'/proc/{pid}/{name}', 'rb').read() and int(pid) != os.getpid():
                broken.append(f'the nonce in {name} of {pid}')
        except OSError:
            pass
for top in (os.environ['HOME'] + '/..', os.environ['DATA']):
    for directory, _, files in os.walk(top):
        for name in files:
            try:
                if nonce in open(os.path.join(directory, name), 'rb').read():
                    broken.append(f'the nonce in {name}')
            except OSError:
                pass
attempt('the generation', lambda: open(os.environ['DATA'] + '/generation', 'w').write('0\n'))
attempt('the lock', lambda: os.unlink(os.environ['DATA'] + '/lock'))
print('\nbroken:', broken)
sys.exit(len(broken))
"#;

fn forge(power: Power) {
    let pod = Pod::with(power);
    pod.file("t.py", FORGE);
    let mut command = pod.command(&["t.py"]);
    command.env.insert("PART".to_owned(), "7f3c9a".to_owned());
    command.env.insert("DATA".to_owned(), pod.data().display().to_string());
    let reply = pod.run(&command);
    let verdict = reply.assert_passed();
    assert_eq!(verdict.nonce, command.nonce);
    assert!(reply.stdout(0).starts_with("V\0\0\0"), "its own frame is only its output");
}

#[test]
fn a_test_cannot_speak_in_the_workers_place() {
    forge(Power::Own);
}

#[test]
fn nor_with_the_capabilities_of_a_pod() {
    if root() {
        forge(Power::Pod);
    }
}

#[test]
fn nor_when_it_runs_as_the_workers_own_user() {
    if root() {
        forge(Power::User);
    }
}

#[test]
fn without_root_landlock_hides_and_the_verdict_says_reduced() {
    let mut pod = Pod::with(if root() { Power::User } else { Power::Own });
    pod.power = if root() { Power::User } else { Power::Own };
    let secret = pod.path().join("daemon/token");
    std::fs::create_dir(pod.path().join("daemon")).unwrap();
    std::fs::write(&secret, "s3cret").unwrap();
    pod.file("t.sh", "cat $TOKEN && echo read it; cp /dev/null $BASE/new && echo wrote; echo x > here && cat here; kill -0 $PPID && echo signal");
    let mut command = pod.command(&["t.sh"]);
    command.env.insert("TOKEN".to_owned(), secret.display().to_string());
    command.env.insert("BASE".to_owned(), pod.data().display().to_string());
    command.isolation.hide = vec![pod.path().join("daemon").display().to_string(), "/not/there".to_owned()];
    let reply = pod.run(&command);
    let verdict = reply.verdict();
    assert!(verdict.clean, "{verdict:?}");
    assert_eq!(verdict.isolation.level, IsolationLevel::Reduced);
    assert!(verdict.isolation.why.iter().any(|why| why.contains("own user")), "{verdict:?}");
    if !verdict.isolation.why.iter().any(|why| why.contains("no Landlock")) {
        assert_eq!(reply.stdout(0), "x\n", "{}", reply.stderr_of(0));
    }
}
