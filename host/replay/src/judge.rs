//! The manifest policy as replays and preparations ask it: on a thread that may block, and not twice for one question.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use warmhold_plugin::{Answered, Comparison, ManifestSlot, PodSpec};

/// Answers that are kept. One replay asks of one pod before and after it runs something there, policy and host each.
const KEPT: usize = 16;
/// A live pod longer than this, in bytes, is judged anew each time.
const LONGEST: usize = 64 * 1024;

/// What the slot answered to a question.
struct Judged {
    spec: PodSpec,
    live: String,
    answered: Answered<Comparison>,
}

/// Asks the serving manifest policy. Cheap to clone.
///
/// A comparison is a pure function of spec, pod and generation, so what a generation has said of the same two texts is
/// said again without asking it.
#[derive(Clone)]
pub struct Judge {
    slot: Arc<ManifestSlot>,
    judged: Arc<Mutex<VecDeque<Judged>>>,
}

impl Judge {
    /// A judge that has judged nothing.
    #[must_use]
    pub fn new(slot: Arc<ManifestSlot>) -> Self {
        Self { slot, judged: Arc::default() }
    }

    /// How a live pod (JSON text) compares with its spec.
    ///
    /// # Errors
    /// In words, when the policy fails or there is no place for the call.
    pub(crate) async fn verify(&self, spec: PodSpec, live: String) -> Result<Answered<Comparison>, String> {
        if let Some(answered) = self.again(&spec, &live) {
            return Ok(answered);
        }
        let slot = Arc::clone(&self.slot);
        let asked = tokio::task::spawn_blocking(move || (slot.verify(&spec, &live), spec, live)).await;
        let (answered, spec, live) = asked.map_err(|error| error.to_string())?;
        let answered = answered.map_err(|fault| fault.to_string())?;
        if live.len() <= LONGEST {
            let mut judged = self.judged.lock();
            judged.truncate(KEPT - 1);
            judged.push_front(Judged { spec, live, answered: answered.clone() });
        }
        Ok(answered)
    }

    /// What the policy that serves now has said of this before.
    fn again(&self, spec: &PodSpec, live: &str) -> Option<Answered<Comparison>> {
        let serving = self.slot.serving();
        let judged = self.judged.lock();
        let same =
            |judged: &&Judged| judged.answered.policy == *serving.tag() && judged.live == live && judged.spec == *spec;
        judged.iter().find(same).map(|judged| judged.answered.clone())
    }

    /// What the policy makes of a spec; else every fault, in words.
    pub(crate) async fn render(&self, spec: PodSpec) -> Result<String, Vec<String>> {
        let slot = Arc::clone(&self.slot);
        match tokio::task::spawn_blocking(move || slot.render(&spec)).await {
            Ok(Ok(rendered)) => rendered.answer,
            Ok(Err(fault)) => Err(vec![fault.to_string()]),
            Err(error) => Err(vec![error.to_string()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    use warmhold_plugin::{EngineOptions, Limits, PolicyEngine, SlotOptions, World};

    fn slot(folder: &std::path::Path) -> Arc<ManifestSlot> {
        // The test program is TARGET/PROFILE/deps/NAME.
        let program = std::env::current_exe().unwrap();
        let policies = program.ancestors().nth(3).unwrap().join("policies");
        let component = std::fs::read(policies.join("pod-manifest.wasm")).expect("run `./x build` first");
        let options = SlotOptions {
            dir: folder.join("manifest"),
            built_in: component.into(),
            settings: "{}".to_owned(),
            limits: Limits::of(World::Manifest),
            faults_to_roll_back: NonZeroU32::new(3).unwrap(),
        };
        let engine = PolicyEngine::new(&EngineOptions::default()).unwrap();
        Arc::new(ManifestSlot::open(&engine, options).unwrap())
    }

    fn spec() -> PodSpec {
        PodSpec {
            name: "w-1".to_owned(),
            namespace: "warmhold".to_owned(),
            context: "local".to_owned(),
            worker_id: "w-1".to_owned(),
            image: format!("example.invalid/worker@sha256:{}", "0".repeat(64)),
            node: None,
            cut_sha: "0".repeat(40),
            key: warmhold_plugin::WorkerKey {
                context: "local".to_owned(),
                image_digest: format!("sha256:{}", "0".repeat(64)),
                lock_hash: "0".repeat(64),
                architecture: "amd64".to_owned(),
            },
            memory_limit: Some("512Mi".to_owned()),
            host_probe_url: "http://127.0.0.1:1/".to_owned(),
            prod_probe_url: "http://127.0.0.1:2/".to_owned(),
            source_mirror: None,
            source: "https://example.invalid/repository.git".to_owned(),
            install: Vec::new(),
        }
    }

    #[tokio::test]
    async fn the_policy_is_asked_again_when_anything_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let slot = slot(folder.path());
        let judge = Judge::new(Arc::clone(&slot));
        let calls = || slot.status().generations.iter().map(|generation| generation.calls).sum::<u64>();
        let live = judge.render(spec()).await.unwrap();

        let before = calls();
        let first = judge.verify(spec(), live.clone()).await.unwrap();
        assert_eq!(calls(), before + 1);
        assert_eq!(judge.verify(spec(), live.clone()).await.unwrap(), first);
        assert_eq!(calls(), before + 1, "nothing changed, so nobody is asked");

        let other = live.replacen("512Mi", "768Mi", 1);
        assert_ne!(other, live);
        let drifted = judge.verify(spec(), other).await.unwrap();
        assert_eq!(calls(), before + 2, "another pod");
        assert!(drifted.answer.is_err() && first.answer.is_ok(), "{drifted:?} {first:?}");

        let small = PodSpec { memory_limit: None, ..spec() };
        assert!(judge.verify(small, live.clone()).await.unwrap().answer.is_err());
        assert_eq!(calls(), before + 3, "another spec");

        slot.reconfigure(r#"{"memory-limits": ["512Mi"]}"#).unwrap();
        let before = calls();
        let anew = judge.verify(spec(), live).await.unwrap();
        assert_eq!(calls(), before + 1, "another generation");
        assert_ne!(anew.policy, first.policy);
    }
}
