//! Why a call of a policy failed.
//!
//! Each limit and each way of ending has a case of its own with a stable [`Cause::code`]. A fault keeps the *first*
//! cause (what follows from it, such as the trap of an allocator that got no memory, says nothing) and the guest's own
//! last words. Causes are recorded where they arise, in the store's state, or found by type; never by the text of an
//! error, which another version of the engine may word differently.

use std::fmt;

/// What ended the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The guest trapped: a panic, an index out of bounds, `unreachable`.
    #[error("it trapped ({0})")]
    Trap(String),
    /// The guest left through `exit`.
    #[error("it exited with status {0}")]
    Exit(i32),
    /// Its call stack is used up.
    #[error("its call stack is used up; look for a recursion without end")]
    StackOverflow,
    /// It used more processor time than it may.
    #[error("it used its {limit_ms} ms of processor time")]
    Deadline {
        /// The limit.
        limit_ms: u32,
    },
    /// The call took longer than it may, host calls included.
    #[error("the call did not end within {limit_ms} ms")]
    WallClock {
        /// The limit.
        limit_ms: u32,
    },
    /// It wanted more memory than it may have.
    #[error("it wanted {wanted} bytes of memory where {allowed} are allowed")]
    Memory {
        /// All memories together, as they would have been.
        wanted: u64,
        /// The limit.
        allowed: u64,
    },
    /// It wanted more table elements than it may have.
    #[error("it wanted {wanted} table elements where {allowed} are allowed")]
    Table {
        /// All tables together, as they would have been.
        wanted: u64,
        /// The limit.
        allowed: u64,
    },
    /// It is made of more instances, memories or tables than it may be.
    #[error(
        "it is made of more parts than the {instances} instances, {memories} memories and {tables} tables that it may be: {detail}"
    )]
    Instances {
        /// The limit of core instances.
        instances: u64,
        /// The limit of memories.
        memories: u64,
        /// The limit of tables.
        tables: u64,
        /// Which was exceeded, in the engine's words.
        detail: String,
    },
    /// Too many bytes between guest and host.
    #[error("it exchanged more than {allowed} bytes with the host")]
    HostBytes {
        /// The limit.
        allowed: u64,
    },
    /// Too many calls of the host.
    #[error("it called the host more than {allowed} times")]
    HostCalls {
        /// The limit.
        allowed: u32,
    },
    /// Too many handles at once.
    #[error("it holds more than {allowed} handles at once")]
    Handles {
        /// The limit.
        allowed: u64,
    },
    /// It passed something to the host that its types don't allow: a bad pointer, text that isn't UTF-8, a handle that
    /// it doesn't have.
    #[error("it passed the host something malformed ({0})")]
    Malformed(String),
    /// Every place of this world's share of the pool is taken. The host's fault, not the policy's.
    #[error("all {places} places for {world} calls are taken; try again")]
    PoolFull {
        /// Which world.
        world: crate::World,
        /// How many places it has.
        places: u32,
    },
    /// The engine failed where no policy can be blamed (the system gave no memory, for instance).
    #[error("the host's engine failed: {0}")]
    Host(String),
}

impl Cause {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Trap(_) => "policy-trap",
            Self::Exit(_) => "policy-exit",
            Self::StackOverflow => "policy-stack-overflow",
            Self::Deadline { .. } => "policy-deadline",
            Self::WallClock { .. } => "policy-wall-clock",
            Self::Memory { .. } => "policy-memory",
            Self::Table { .. } => "policy-table",
            Self::Instances { .. } => "policy-instances",
            Self::HostBytes { .. } => "policy-host-bytes",
            Self::HostCalls { .. } => "policy-host-calls",
            Self::Handles { .. } => "policy-handles",
            Self::Malformed(_) => "policy-malformed",
            Self::PoolFull { .. } => "policy-pool-full",
            Self::Host(_) => "policy-host",
        }
    }

    /// Whether it counts against the policy. A full pool and a failing host don't.
    #[must_use]
    pub fn blames_policy(&self) -> bool {
        !matches!(self, Self::PoolFull { .. } | Self::Host(_))
    }
}

// Lets a host function end the call with its cause: it travels through the engine as an error and comes out typed.
impl Cause {
    pub(crate) fn trap(self) -> wasmtime::Error {
        wasmtime::Error::new(self)
    }
}

/// A call that failed: which policy, why, and what it said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// `NAME@sha256:DIGEST#GENERATION`.
    pub tag: String,
    /// The exported function.
    pub function: &'static str,
    /// The first cause.
    pub cause: Cause,
    /// The guest's own words: what it wrote at level `error` or to stderr, at most a few lines.
    pub message: Option<String>,
}

impl PolicyFault {
    /// The stable code of its cause.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.cause.code()
    }
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {} failed in {}: {}", self.tag, self.function, self.cause)?;
        if let Some(message) = &self.message {
            write!(f, "; it said: {message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}
