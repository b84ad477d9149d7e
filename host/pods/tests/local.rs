//! Local pods from creation to deletion, with real processes and directories.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, missing_docs)]

mod common;

use common::{World, manifest};
use std::time::Duration;
use warmhold_pods::{Backend, CarrierExit, Progress};

#[tokio::test]
async fn a_pod_is_created_seen_and_used() {
    let world = World::new();
    let created = world.backend.create_pod(&world.at, &manifest("warm-a")).await.unwrap();
    assert_eq!(created["status"]["phase"], "Pending");
    world.backend.wait_ready(&world.at, "warm-a", Duration::from_secs(60)).await.unwrap();
    let pod = world.backend.get_pod(&world.at, "warm-a").await.unwrap();
    assert_eq!(pod["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert!(pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().starts_with("local://"));
    for init in pod["status"]["initContainerStatuses"].as_array().unwrap() {
        assert_eq!(init["state"]["terminated"]["exitCode"], 0, "{init}");
    }
    let mut request = world.request(&pod, "good");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = std::sync::Arc::clone(&seen);
    request.progress = Some(std::sync::Arc::new(move |progress: Progress<'_>| match progress {
        Progress::Began { file } => told.lock().unwrap().push(format!("{file}")),
        Progress::Output { file, bytes, .. } => {
            told.lock().unwrap().push(format!("{file}: {}", String::from_utf8_lossy(bytes)));
        }
    }));
    let reply = world.backend.exec(request).await.unwrap();
    assert!(reply.verdict.clean, "{:?}", reply.verdict.unclean);
    assert_eq!(reply.exit, Some(CarrierExit::Code(0)));
    assert_eq!(reply.files.len(), 2);
    assert_eq!(reply.files[1].file, "dir/b.py");
    assert_eq!(std::fs::read_to_string(&reply.files[1].stdout.path).unwrap(), "ran dir/b.py\n");
    assert_eq!(std::fs::read_to_string(&reply.files[1].stderr.path).unwrap(), "");
    assert_eq!(reply.files[0].artifacts[0].suffix, "out/report.txt");
    assert_eq!(std::fs::read_to_string(&reply.files[0].artifacts[0].received.path).unwrap(), "report");
    assert_eq!(std::fs::read_to_string(&reply.files[0].artifacts[1].received.path).unwrap(), "");
    assert_eq!(seen.lock().unwrap().concat(), "00: ran a0: .sh\n11: ran dir1: /b.py\n");
    world.backend.delete_pod(&world.at, "warm-a", pod["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    assert_eq!(world.backend.get_pod(&world.at, "warm-a").await.unwrap_err().code(), "not-found");
}
