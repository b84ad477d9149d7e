//! What a person is told when a policy is refused: the texts are pinned, a case a row.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::indexing_slicing, clippy::string_slice, reason = "and so does an index that is not there")]

mod support;

use support::guest::Guest;
use support::*;
use warmhold_plugin::*;

fn refusal(world: World, bytes: &[u8], settings: &str) -> LoadError {
    let engine = engine();
    let limits = Limits::of(world);
    let checked = match world {
        World::Lease => check::<LeaseKind>(&engine, bytes, settings, &limits),
        World::Manifest => check::<ManifestKind>(&engine, bytes, settings, &limits),
        World::Replay => check::<ReplayKind>(&engine, bytes, settings, &limits),
    };
    checked.expect_err("it should have been refused")
}

/// Another name or field of the same length, everywhere in a component.
fn patched(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let mut found = 0;
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{from} is not in it");
    bytes
}

#[test]
fn texts_of_what_is_no_component() {
    let lease = built("lease-policy");
    let cut = &lease[..lease.len() / 2];
    let core = wat::parse_str("(module (func))").unwrap();
    let cases: &[(&[u8], &str, &str)] = &[
        (
            b"",
            "policy-empty",
            "the policy's file is empty: expected a WebAssembly component, found 0 bytes; copy the file again, to another name, and rename it when it is whole",
        ),
        (
            b"hello",
            "policy-not-wasm",
            "this is not WebAssembly: expected a WebAssembly component, found text; give the .wasm file that the build made (`cargo build --release`)",
        ),
        (
            b"  (component)",
            "policy-not-wasm",
            "this is not WebAssembly: expected a WebAssembly component, found WebAssembly as text; give the .wasm file that the build made (`cargo build --release`)",
        ),
        (
            b"\x7fELF\x02",
            "policy-not-wasm",
            "this is not WebAssembly: expected a WebAssembly component, found a program or library of this machine (ELF); give the .wasm file that the build made (`cargo build --release`)",
        ),
        (
            b"<!doctype html>",
            "policy-not-wasm",
            "this is not WebAssembly: expected a WebAssembly component, found a web page or XML; give the .wasm file that the build made (`cargo build --release`)",
        ),
        (
            b"\xfe\xed\xfa\xce",
            "policy-not-wasm",
            "this is not WebAssembly: expected a WebAssembly component, found bytes that begin with feedface; give the .wasm file that the build made (`cargo build --release`)",
        ),
        (
            &core,
            "policy-core-module",
            "this is a core module, not a component: expected a WebAssembly component, found a core module; build for wasm32-wasip2, or wrap it: `wasm-tools component new FILE -o OUT`",
        ),
        (
            b"\0asm\x0d\0",
            "policy-truncated",
            "the policy's file is cut off: expected the whole file, found a section at byte 4 that lacks 2 bytes; copy the file again, to another name, and rename it when it is whole",
        ),
        (
            b"\0asm\x0d\0\x01\0\x01\x20abc",
            "policy-truncated",
            "the policy's file is cut off: expected the whole file, found a section at byte 8 that lacks 29 bytes; copy the file again, to another name, and rename it when it is whole",
        ),
    ];
    for (bytes, code, text) in cases {
        let error = refusal(World::Lease, bytes, "{}");
        assert_eq!((error.code(), error.to_string().as_str()), (*code, *text));
    }
    assert_eq!(refusal(World::Lease, cut, "{}").code(), "policy-truncated");
}

#[test]
fn every_prefix_of_a_policy_is_refused() {
    let whole = Guest::default().build();
    let engine = engine();
    let limits = Limits::of(World::Manifest);
    for len in (0..whole.len()).step_by(7) {
        let error = check::<ManifestKind>(&engine, &whole[..len], "{}", &limits).unwrap_err();
        assert!(
            [
                "policy-empty",
                "policy-not-wasm",
                "policy-truncated",
                "policy-wrong-world",
                "policy-interface-mismatch",
                "policy-invalid"
            ]
            .contains(&error.code()),
            "{len}: {error}"
        );
    }
    check::<ManifestKind>(&engine, &whole, "{}", &limits).unwrap();
}

#[test]
fn any_damage_is_refused_or_harmless_but_never_a_crash() {
    let whole = Guest::default().build();
    let engine = engine();
    let limits = Limits::of(World::Manifest);
    for at in (8..whole.len()).step_by(97) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        let _ = check::<ManifestKind>(&engine, &damaged, "{}", &limits).map_err(|error| error.to_string());
    }
}

#[test]
fn text_of_another_world() {
    let error = refusal(World::Lease, &built("pod-manifest"), "{}");
    assert_eq!(error.code(), "policy-wrong-world");
    assert_eq!(
        error.to_string(),
        "the policy is made for another world: expected world lease-policy of warmhold:policy@0.1.0, found world manifest-policy; load it as manifest policy: `warmhold policy load manifest FILE`"
    );
    let error = refusal(World::Replay, &wat::parse_str("(component)").unwrap(), "{}");
    assert_eq!(
        error.to_string(),
        "the policy is made for another world: expected world replay-policy of warmhold:policy@0.1.0, found no exports; build it for world replay-policy (`wit_bindgen::generate!({ world: \"replay-policy\" })`)"
    );
}

#[test]
fn text_of_another_version() {
    let error = refusal(World::Lease, &patched(&built("lease-policy"), "@0.1.0", "@0.2.0"), "{}");
    assert_eq!(error.code(), "policy-version-skew");
    assert_eq!(
        error.to_string(),
        "the policy was made with another version of the interfaces: expected warmhold:policy@0.1.0, found warmhold:policy@0.2.0; build it with the wit/ folder of this release (warmhold:policy@0.1.0)"
    );
}

#[test]
fn text_of_an_interface_that_differs() {
    let missing = refusal(World::Manifest, &patched(&Guest::default().build(), "verify", "verifi"), "{}");
    assert_eq!(missing.code(), "policy-interface-mismatch");
    assert_eq!(
        missing.found(),
        "`warmhold:policy/pod-manifest` lacks `verify`; `warmhold:policy/pod-manifest` also has `verifi`"
    );
    let field = refusal(World::Manifest, &patched(&Guest::default().build(), "cut-sha", "cut-sum"), "{}");
    assert_eq!(field.code(), "policy-interface-mismatch");
    assert!(
        field.found().starts_with(
            "`warmhold:policy/pod-manifest.render`, parameter `spec`: expected a record of name, namespace, context, worker-id, image, node, cut-sha, key,"
        ),
        "{}",
        field.found()
    );
    assert_eq!(field.fix(), "build it with the wit/ folder of this release (warmhold:policy@0.1.0), unchanged");
}

#[test]
fn text_of_an_unknown_import() {
    let error = refusal(World::Lease, &patched(&built("lease-policy"), "policy/log@", "policy/lag@"), "{}");
    assert_eq!(error.code(), "policy-unknown-import");
    assert_eq!(
        error.to_string(),
        "the policy imports what world lease-policy does not have: expected the imports and exports of world lease-policy in warmhold:policy@0.1.0, and WASI 0.2, found `warmhold:policy/lag@0.1.0`; build it without what it imports; `wasm-tools component wit FILE` lists its imports"
    );
}

#[test]
fn text_of_settings() {
    let lease = built("lease-policy");
    let error = refusal(World::Lease, &lease, "{");
    assert_eq!(error.code(), "policy-settings-not-object");
    let error = refusal(World::Lease, &lease, "[1]");
    assert_eq!(
        error.to_string(),
        "the settings are not a JSON object: expected a JSON object, found JSON of another kind; mend the `settings` table of this policy in warmhold.toml"
    );
    let error = refusal(World::Lease, &lease, "{\"no-such-setting\":1}");
    assert_eq!(error.code(), "policy-settings");
    assert!(error.found().contains("no-such-setting"), "{error}");
}

#[test]
fn a_name_that_could_forge_a_tag_is_refused() {
    for name in ["", "a@b", "a#1", "A", "-a", "a b"] {
        let error = refusal(World::Manifest, &Guest { name, ..Guest::default() }.build(), "{}");
        assert_eq!(error.code(), "policy-bad-identity", "{name}");
    }
}

#[test]
fn a_fault_of_the_load_is_told_with_its_mending() {
    let guest = Guest { check_settings: "(loop $l (br $l))", ..Guest::default() };
    let error = refusal(World::Manifest, &guest.build(), "{}");
    assert_eq!(
        error.to_string(),
        "the policy failed in check-settings while it was loaded: expected an answer, found it used its 500 ms of processor time; let it compute less, or raise `deadline` of this policy in warmhold.toml"
    );
    let not_json = Guest { render: "(i32.store8 (i32.const 4096) (i32.const 0x58))", ..Guest::default() };
    assert_eq!(refusal(World::Manifest, &not_json.build(), "{}").code(), "policy-self-test");
}

#[test]
fn the_built_in_policies_load_and_say_who_they_are() {
    let engine = engine();
    for (name, world) in
        [("lease-policy", World::Lease), ("pod-manifest", World::Manifest), ("warm-replay", World::Replay)]
    {
        let (bytes, limits) = (built(name), Limits::of(world));
        assert_eq!(world_of(&engine, &bytes, &limits).unwrap(), Some(world));
        let checked = match world {
            World::Lease => check::<LeaseKind>(&engine, &bytes, "{}", &limits),
            World::Manifest => check::<ManifestKind>(&engine, &bytes, "{}", &limits),
            World::Replay => check::<ReplayKind>(&engine, &bytes, "{}", &limits),
        }
        .unwrap();
        assert_eq!((checked.about.name.as_str(), checked.world), (name, world));
        assert!(!checked.wasi);
        assert_eq!(checked.digest.len(), 64);
    }
}
