//! Lease policies. All but one misbehave when a worker is acquired, and do the standard thing otherwise.

use std::hint::black_box;
use std::marker::PhantomData;
use warmhold_sdk::lease::standard::{self, State, WORKER_KIND};
use warmhold_sdk::lease::{Call, LeasePolicy, Refusal, Verdict, WorkerRequest};
use warmhold_sdk::serde_json::{Map, Value};
use warmhold_sdk::{Identity, Policy, json};

/// What happens instead of an ordinary lease.
pub trait Misdeed: Default {
    /// The policy's name.
    const NAME: &'static str;

    /// Answers an acquire.
    ///
    /// # Errors
    /// A refusal, where it has one.
    fn acquire(call: &Call<'_>, request: &WorkerRequest) -> Verdict;
}

/// A lease policy of one misdeed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hostile<M>(PhantomData<M>);

impl<M: Misdeed> Policy for Hostile<M> {
    fn identity(&self) -> Identity {
        warmhold_sdk::identity(M::NAME, env!("CARGO_PKG_VERSION"), "hostile: for tests")
    }
}

impl<M: Misdeed> LeasePolicy for Hostile<M> {
    fn acquire_worker(&self, call: &Call<'_>, request: &WorkerRequest) -> Verdict {
        M::acquire(call, request)
    }
}

macro_rules! misdeed {
    ($(#[doc = $doc:literal])* $type:ident, $name:literal, |$call:ident, $request:ident| $body:expr) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $type;

        impl Misdeed for $type {
            const NAME: &'static str = $name;

            fn acquire($call: &Call<'_>, $request: &WorkerRequest) -> Verdict {
                $body
            }
        }
    };
}

/// The standard answer, with something else in the row's attributes.
fn altered(call: &Call<'_>, request: &WorkerRequest, alter: impl FnOnce(&mut Map<String, Value>)) -> Verdict {
    let row = call.idle_workers(request, 1).into_iter().next().ok_or(Refusal::NoWarmWorker)?;
    let mut change = standard::acquire(call, request, row)?;
    if let Some(row) = change.put.first_mut() {
        let mut attrs = json::object(&row.attrs).unwrap_or_default();
        alter(&mut attrs);
        row.attrs = Value::Object(attrs).to_string();
    }
    Ok(change)
}

misdeed!(
    /// Never answers.
    EndlessLoop,
    "endless-loop",
    |call, _request| loop {
        black_box(call.at.now);
    }
);

misdeed!(
    /// Takes memory until there is none left, and touches it.
    MemoryBomb,
    "memory-bomb",
    |_call, _request| {
        let mut hoard = Vec::new();
        loop {
            hoard.push(black_box(vec![0xAA_u8; 1 << 20]));
        }
    }
);

misdeed!(
    /// Gives the row another owner.
    ForgedOwner,
    "forged-owner",
    |call, request| {
        let row = call.idle_workers(request, 1).into_iter().next().ok_or(Refusal::NoWarmWorker)?;
        let mut change = standard::acquire(call, request, row)?;
        change.put.iter_mut().for_each(|row| row.owner = "f".repeat(64));
        Ok(change)
    }
);

misdeed!(
    /// Leases without raising the generation, so that the last holder's fence would still hold.
    GenerationKept,
    "generation-kept",
    |call, request| altered(call, request, |attrs| {
        let generation = attrs.get("generation").and_then(json::whole).unwrap_or_default();
        attrs.insert("generation".to_owned(), Value::from(generation.saturating_sub(1)));
    })
);

misdeed!(
    /// Leases a worker that is out of use for good.
    LeaseQuarantined,
    "lease-quarantined",
    |call, request| {
        let attrs = |text: &str| json::object(text).unwrap_or_default();
        let rows = call.ledger.page(WORKER_KIND, None, 1000);
        let mut row = rows
            .into_iter()
            .find(|row| standard::state(&attrs(&row.attrs)) == Some(State::Quarantined))
            .ok_or(Refusal::NoWarmWorker)?;
        let mut revived = attrs(&row.attrs);
        revived.insert("state".to_owned(), Value::from(State::Idle.as_str()));
        row.attrs = Value::Object(revived).to_string();
        standard::acquire(call, request, row)
    }
);

misdeed!(
    /// Writes 100 MiB of log, in one line if its memory allows. It goes past the sdk, which would cut it.
    LogFlood,
    "log-flood",
    |call, request| {
        use warmhold_sdk::bindings::lease::warmhold::policy::log;
        const FLOOD: usize = 100 << 20;
        let mut line = Vec::new();
        let mut bytes = FLOOD;
        while line.try_reserve_exact(bytes).is_err() {
            bytes /= 2;
        }
        line.resize(bytes, b'x');
        let line = String::from_utf8(line).unwrap_or_default();
        for _ in 0..FLOOD / bytes {
            log::write(log::Level::Info, &line, &[]);
        }
        altered(call, request, |_| {})
    }
);

misdeed!(
    /// Panics, with a text that should be found in the daemon's log.
    Panic,
    "panic",
    |call, _request| {
        #[allow(clippy::panic, reason = "that is what it is for")]
        {
            panic!("panic was asked at {}", call.at.now)
        }
    }
);

misdeed!(
    /// Calls itself until the stack is gone.
    DeepRecursion,
    "deep-recursion",
    |call, request| {
        fn deeper(depth: u64) -> u64 {
            // What is done after the call keeps it from becoming a loop.
            if black_box(depth) == u64::MAX { 0 } else { deeper(depth + 1).wrapping_add(black_box(depth)) }
        }
        black_box(deeper(call.at.now));
        altered(call, request, |_| {})
    }
);

misdeed!(
    /// Writes two thousand rows where one is asked for.
    ManyRows,
    "many-rows",
    |call, request| {
        let mut change = altered(call, request, |_| {})?;
        if let Some(row) = change.put.first().cloned() {
            change.put.extend((0..2000).map(|n| {
                let mut copy = row.clone();
                copy.id = standard::worker_row_id(&format!("invented-{n}"));
                copy
            }));
        }
        Ok(change)
    }
);

misdeed!(
    /// Puts the same key twice into the attributes: which one counts?
    DuplicateKeys,
    "duplicate-keys",
    |call, request| {
        let mut change = altered(call, request, |_| {})?;
        if let Some(row) = change.put.first_mut() {
            row.attrs = row.attrs.replacen('{', "{\"state\":\"idle\",", 1);
        }
        Ok(change)
    }
);
