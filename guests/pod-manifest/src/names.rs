//! Where things are in a pod and how they are called. Host, worker and local pods count on the same names.

/// Everything of ours in a pod's metadata is under this.
pub const PREFIX: &str = "warmhold.dev/";
/// Label: the worker that the pod is.
pub const WORKER_LABEL: &str = "warmhold.dev/worker";
/// Annotations that travel with a lease; they change while a pod runs, so they are no part of its identity.
pub const PROVENANCE: [&str; 5] = [
    "warmhold.dev/state",
    "warmhold.dev/run",
    "warmhold.dev/attempt",
    "warmhold.dev/lease",
    "warmhold.dev/requested-at",
];

/// The program in the image.
pub const PROGRAM: &str = "warmhold-worker";
/// The volume that init fills.
pub const WORKSPACE: &str = "/workspace";
/// The source tree.
pub const REPO: &str = "/workspace/repo";
/// Where requests get their directories.
pub const DATA: &str = "/workspace/data";
/// Where init finds the mirror; no other container sees it.
pub const MIRROR: &str = "/source-mirror";
