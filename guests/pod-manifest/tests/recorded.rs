//! A real API server's pods, before and after each thing that happens to one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use pod_manifest::compare;
use warmhold_sdk::manifest::Difference;
use warmhold_sdk::serde_json::{self, Value};

macro_rules! recorded {
    ($name:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!("data/", $name, ".json"))).unwrap()
    };
}

fn paths(differences: &[Difference]) -> Vec<&str> {
    differences.iter().map(|difference| difference.path.as_str()).collect()
}

/// Drift, and at which paths.
fn drift(live: &Value) -> Vec<Difference> {
    compare(&recorded!("rendered"), live).expect_err("this is drift")
}

fn harmless(live: &Value) -> Vec<Difference> {
    compare(&recorded!("rendered"), live).unwrap_or_else(|drift| panic!("{:?}", paths(&drift)))
}

#[test]
fn what_the_server_adds_is_no_drift() {
    assert_eq!(harmless(&recorded!("01-created")), []);
    assert_eq!(harmless(&recorded!("02-ready")), [], "quantities are rewritten, and {{}} is added");
}

#[test]
fn what_was_rendered_equals_itself() {
    assert_eq!(harmless(&recorded!("rendered")), []);
}

#[test]
fn a_foreign_label_is_shown() {
    let found = harmless(&recorded!("03-foreign-label"));
    assert_eq!(found.len(), 1, "{:?}", paths(&found));
    assert!(found[0].path.starts_with("$.metadata.labels"), "{}", found[0].path);
    assert_eq!(found[0].want, "null");
    let got: Value = serde_json::from_str(&found[0].got).unwrap();
    assert!(got.is_string());
}

#[test]
fn an_annotation_of_identity_that_changed_is_drift() {
    let found = drift(&recorded!("04-identity-annotation-changed"));
    assert_eq!(found.len(), 1, "{:?}", paths(&found));
    assert!(found[0].path.starts_with("$.metadata.annotations[\"warmhold.dev/"), "{}", found[0].path);
    assert_ne!(found[0].want, found[0].got);
}

/// The host compares container ids and restarts; the manifest is as it was. The file follows on the one before, so the
/// changed annotation is still in it.
#[test]
fn a_restart_is_nothing_of_the_manifest() {
    let annotation_alone = paths(&drift(&recorded!("04-identity-annotation-changed"))).join(" ");
    let mut live = recorded!("05-container-restarted");
    if let Err(found) = compare(&recorded!("rendered"), &live) {
        assert_eq!(paths(&found).join(" "), annotation_alone);
    }
    live["metadata"]["annotations"] = recorded!("rendered")["metadata"]["annotations"].clone();
    harmless(&live);
}

#[test]
fn another_image_is_drift() {
    let found = drift(&recorded!("07-image-changed"));
    assert!(paths(&found).contains(&"$.spec.containers[0].image"), "{:?}", paths(&found));
}

#[test]
fn an_ephemeral_container_is_drift() {
    let found = drift(&recorded!("08-ephemeral-container"));
    assert!(paths(&found).contains(&"$.spec.ephemeralContainers"), "{:?}", paths(&found));
}

#[test]
fn an_owner_is_drift() {
    let found = drift(&recorded!("09-owner-reference"));
    assert!(paths(&found).contains(&"$.metadata.ownerReferences"), "{:?}", paths(&found));
}

#[test]
fn a_pod_that_goes_away_is_drift() {
    let found = drift(&recorded!("10-deleting"));
    assert!(paths(&found).contains(&"$.metadata.deletionTimestamp"), "{:?}", paths(&found));
}

#[test]
fn a_token_that_was_turned_off_is_drift() {
    let found = drift(&recorded!("11-recreated-with-token-volume"));
    let paths = paths(&found);
    for path in [
        "$.spec.automountServiceAccountToken",
        "$.spec.volumes[3]",
        "$.spec.containers[0].volumeMounts[2]",
        "$.spec.initContainers[0].volumeMounts[2]",
        "$.spec.initContainers[1].volumeMounts[1]",
    ] {
        assert!(paths.contains(&path), "{path} isn't in {paths:?}");
    }
}
