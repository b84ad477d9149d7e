//! Requests that go wrong in every way that a worker, a caller or a pod can make them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::{World, manifest};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;
use warmhold_pods::{Backend, ExecError};

/// Waits for what must become true, and fails when it doesn't.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_isnt_a_proof_is_no_verdict() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    for (mode, code, text) in [
        ("silent", "no-verdict", "exit status was 0"),
        ("code", "no-verdict", "exit status was 42"),
        ("no-verdict", "no-verdict", "without one"),
        ("truncated", "truncated", "inside a frame"),
        ("after-verdict", "no-verdict", "follows the verdict"),
        ("byte-after-verdict", "no-verdict", "follows the verdict"),
        ("two-verdicts", "no-verdict", "follows the verdict"),
        ("wrong-nonce", "no-verdict", "nonce"),
        ("wrong-lease", "no-verdict", "lease"),
        ("wrong-generation", "no-verdict", "generation"),
        ("wrong-uid", "no-verdict", "pod UID"),
        ("wrong-worker", "no-verdict", "worker id"),
        ("wrong-key", "no-verdict", "key"),
        ("wrong-hash", "no-verdict", "standard output of a.sh"),
        ("fewer-files", "no-verdict", "number of files"),
        ("killed", "killed", "signal 9"),
    ] {
        let error = world.run(&pod, mode).await.unwrap_err();
        assert_eq!(error.code(), code, "{mode}: {error}");
        assert!(error.to_string().contains(text), "{mode}: {error}");
        assert_eq!(world.strays(), Vec::<i32>::new(), "{mode}");
    }
    // None of it did the pod any harm.
    assert!(world.run(&pod, "good").await.unwrap().verdict.clean);
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), pod);
}

#[tokio::test]
async fn an_exit_status_proves_nothing_either_way() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let reply = world.run(&pod, "exit-7").await.unwrap();
    assert!(reply.verdict.passed());
    assert_eq!(reply.exit, Some(warmhold_pods::CarrierExit::Code(7)));
}

#[tokio::test]
async fn a_refusal_is_an_answer_even_about_identity() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let reply = world.run(&pod, "refuse").await.unwrap();
    assert_eq!(reply.verdict.refused.unwrap().code, "wrong-key");
    assert!(reply.files.is_empty());
}

#[tokio::test]
async fn a_worker_gets_its_containers_environment_and_nothing_else() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    // A descriptor of ours that would be inherited, as whoever started us might have left one.
    let open = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    let reply = world.run(&pod, "environment").await.unwrap();
    drop(open);
    let directory = world.backend.directory("warm", "warm-a").unwrap();
    let volumes = directory.join("volumes");
    let text = std::fs::read_to_string(&reply.files[0].stdout.path).unwrap();
    let want = format!(
        "OTHER=/workspace/database\n\
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         WARM_DATA={data}\nWARM_REPO={repo}\nWARM_WORKER_ID=w-1\n\
         cwd={cwd}\nfds=4\nsession=true\n",
        data = volumes.join("runtime-data").display(),
        repo = volumes.join("workspace/repo").display(),
        cwd = directory.display(),
    );
    assert_eq!(text, want);
    assert_eq!(std::fs::read_to_string(volumes.join("workspace/repo/a")).unwrap(), "source\n");
}

#[tokio::test]
async fn the_workers_own_words_are_kept_short_and_plain() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let error = world.run(&pod, "grumble").await.unwrap_err().to_string();
    assert!(error.contains("last words"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error}");
    assert!(error.len() < 6000, "{}", error.len());
}

#[tokio::test]
async fn a_deadline_ends_everything_of_the_request() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let pod = world.ready("warm-a").await;
        for mode in ["hang", "hang-unread", "stopped", "orphans"] {
            let mut request = world.request(&pod, mode);
            request.deadline = Instant::now() + Duration::from_millis(if mode == "orphans" { 2000 } else { 300 });
            let error = world.backend.exec(request).await.unwrap_err();
            assert_eq!(error.code(), "timed-out", "{mode}: {error}");
            assert_eq!(world.strays(), Vec::<i32>::new(), "{mode}, control groups: {control_groups}");
        }
        assert!(world.run(&pod, "good").await.unwrap().verdict.clean);
        assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), pod, "the container isn't a stray");
    }
}

#[tokio::test]
async fn a_passed_deadline_starts_nothing() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let mut request = world.request(&pod, "good");
    request.deadline = Instant::now();
    let sink = request.sink.clone();
    assert_eq!(world.backend.exec(request).await.unwrap_err().code(), "timed-out");
    assert_eq!(std::fs::read_dir(sink).unwrap().count(), 0);
}

#[tokio::test]
async fn what_a_dead_worker_left_ends_too() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let pod = world.ready("warm-a").await;
        let error = world.run(&pod, "orphans-die").await.unwrap_err();
        assert_eq!(error.code(), "killed", "{error}");
        assert!(error.to_string().contains("were left, and were killed"), "{error}");
        assert_eq!(world.strays(), Vec::<i32>::new(), "control groups: {control_groups}");
    }
}

#[tokio::test]
async fn a_worker_that_calls_itself_clean_is_not_believed_when_something_is_left() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let pod = world.ready("warm-a").await;
        let reply = world.run(&pod, "stray").await.unwrap();
        assert!(!reply.verdict.clean);
        assert!(reply.verdict.unclean[0].contains("warmhold-pods-f"), "{:?}", reply.verdict.unclean);
        assert_eq!(world.strays(), Vec::<i32>::new());
        let reply = world.run(&pod, "linger").await.unwrap();
        assert!(!reply.verdict.clean, "it had to be killed");
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_ends_the_request() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let pod = world.ready("warm-a").await;
        let (backend, request) = (world.shared(), world.request(&pod, "orphans"));
        let task = tokio::spawn(async move { backend.exec(request).await });
        until("the worker and its two children run", || world.strays().len() == 3).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        until("all are gone", || world.strays().is_empty()).await;
        // The pod is free again as soon as they are.
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(error) = world.run(&pod, "good").await {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn one_request_at_a_time() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let (backend, mut request) = (world.shared(), world.request(&pod, "hang"));
    request.deadline = Instant::now() + Duration::from_secs(3);
    let first = tokio::spawn(async move { backend.exec(request).await });
    until("the first one runs", || world.strays().len() == 1).await;
    let error = world.run(&pod, "good").await.unwrap_err();
    assert!(matches!(&error, ExecError::Failed(text) if text.contains("another request")), "{error}");
    assert_eq!(first.await.unwrap().unwrap_err().code(), "timed-out", "the second one did the first one no harm");
    world.run(&pod, "good").await.unwrap();
}

#[tokio::test]
async fn a_flood_is_stopped() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let mut request = world.request(&pod, "flood");
    request.limits.stream = 3_000_000;
    let sink = request.sink.clone();
    let error = world.backend.exec(request).await.unwrap_err();
    assert_eq!(error.code(), "too-large", "{error}");
    assert!(std::fs::metadata(sink.join("0.stdout")).unwrap().len() <= 3_000_000);
    let mut request = world.request(&pod, "flood");
    request.limits.total = 3_000_000;
    assert_eq!(world.backend.exec(request).await.unwrap_err().code(), "too-large");
    assert_eq!(world.strays(), Vec::<i32>::new());
}

#[tokio::test]
async fn another_pod_is_not_entered() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let mut request = world.request(&pod, "good");
    request.command.pod_uid = "another".to_owned();
    assert_eq!(world.backend.exec(request).await.unwrap_err().code(), "wrong-pod");
    let mut request = world.request(&pod, "good");
    request.pod = "warm-b".to_owned();
    assert_eq!(world.backend.exec(request).await.unwrap_err().code(), "wrong-pod");
    let mut request = world.request(&pod, "good");
    request.container = "sidecar".to_owned();
    let error = world.backend.exec(request).await.unwrap_err();
    assert!(error.to_string().contains("no container `sidecar`"), "{error}");
    let mut request = world.request(&pod, "good");
    request.argv = vec!["no-such-program".to_owned()];
    let error = world.backend.exec(request).await.unwrap_err();
    assert!(error.to_string().contains("starting `no-such-program`"), "{error}");
    let mut request = world.request(&pod, "good");
    "../x".clone_into(&mut request.pod);
    assert_eq!(world.backend.exec(request).await.unwrap_err().code(), "failed");
    world.run(&pod, "good").await.unwrap();
}

#[tokio::test]
async fn memory_is_limited() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let mut manifest = manifest("warm-a");
        manifest["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("64Mi");
        let pod = world.made(&manifest).await;
        let error = world.run(&pod, "memory").await.unwrap_err();
        assert_eq!(error.code(), "killed", "control groups {control_groups}: {error}");
        assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), pod, "the container isn't the victim");
    }
}

#[tokio::test]
async fn a_pod_deleted_under_a_request_takes_it_along() {
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let (backend, request) = (world.shared(), world.request(&pod, "hang"));
    let task = tokio::spawn(async move { backend.exec(request).await });
    until("the worker runs", || world.strays().len() == 1).await;
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    assert_eq!(world.strays(), Vec::<i32>::new());
    assert_eq!(task.await.unwrap().unwrap_err().code(), "killed");
}

#[tokio::test]
async fn a_pod_made_anew_under_a_request_is_left_alone() {
    for control_groups in [true, false] {
        let world = World::with(|options| options.control_groups = control_groups);
        let pod = world.ready("warm-a").await;
        for mode in ["hang", "orphans"] {
            let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap_or_else(|_| pod.clone());
            let (backend, request) = (world.shared(), world.request(&pod, mode));
            let task = tokio::spawn(async move { backend.exec(request).await });
            until("the worker runs", || !world.strays().is_empty()).await;
            world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
            let again = world.ready("warm-a").await;
            assert_eq!(task.await.unwrap().unwrap_err().code(), "killed");
            assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap(), again, "{mode}");
            assert!(world.run(&again, "good").await.unwrap().verdict.clean);
        }
    }
}

#[tokio::test]
async fn a_full_sink_is_told() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting a small file system needs root");
        return;
    }
    let world = World::new();
    let pod = world.ready("warm-a").await;
    let disk = Disk::mount(world.folder.path().join("disk"), "size=64k");
    let mut request = world.request(&pod, "flood");
    request.sink = disk.0.clone();
    let error = world.backend.exec(request).await.unwrap_err();
    assert!(matches!(&error, ExecError::Failed(text) if text.contains("No space left")), "{error}");
    assert_eq!(world.strays(), Vec::<i32>::new());
    world.run(&pod, "good").await.unwrap();
}

struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(at: std::path::PathBuf, options: &str) -> Self {
        std::fs::create_dir(&at).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("tmpfs", &at, "tmpfs", rustix::mount::MountFlags::empty(), Some(options.as_c_str()))
            .unwrap();
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}
