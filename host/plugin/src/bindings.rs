//! The bindings that are generated from `wit/policy.wit`, the one copy that guests are generated from too.
//!
//! What several worlds import (`types`, `log`, `settings`) is generated once, with the lease world, and mapped into the
//! others, so that one implementation serves all. Lease and manifest policies are called synchronously, replay
//! policies asynchronously; imports may trap everywhere, since a limit that is hit ends the call.
#![allow(unsafe_code, reason = "generated: the component ABI reads and writes a guest's memory by its layout")]
#![allow(missing_docs, reason = "generated: each item is documented in wit/policy.wit")]
#![allow(unreachable_pub, reason = "generated")]
#![allow(clippy::all, clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, reason = "generated")]
#![allow(
    clippy::needless_pass_by_value,
    clippy::large_futures,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]

pub mod lease {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "lease-policy",
        imports: { default: trappable },
        additional_derives: [PartialEq],
    });
}

pub mod manifest {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "manifest-policy",
        imports: { default: trappable },
        additional_derives: [PartialEq],
        with: {
            "warmhold:policy/types": super::lease::warmhold::policy::types,
            "warmhold:policy/settings": super::lease::warmhold::policy::settings,
            "warmhold:policy/log": super::lease::warmhold::policy::log,
        },
    });
}

pub mod replay {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "replay-policy",
        imports: { default: async | trappable },
        exports: { default: async },
        with: {
            "warmhold:policy/types": super::lease::warmhold::policy::types,
            "warmhold:policy/settings": super::lease::warmhold::policy::settings,
            "warmhold:policy/log": super::lease::warmhold::policy::log,
            "warmhold:policy/control.lease": crate::replay::HeldLease,
        },
    });
}
