//! Names for requests, in the answer and in the log.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::{Builder, Uuid};

/// A name that no other request has, in the form of a UUID.
///
/// It is a random number of this process and a count, mixed: nothing rests on its being hard to guess, and a system call
/// for new random bytes would cost a request more than most of its checks.
pub(crate) fn next() -> Uuid {
    static PROCESS: OnceLock<(u64, u64)> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (process, start) = *PROCESS.get_or_init(|| Uuid::new_v4().as_u64_pair());
    let count = start.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    // An odd factor keeps different counts apart, in the lowest 62 bits too, which are those that a UUID has room for; and
    // it puts neighbours far from each other, so that nobody takes one for the other.
    let count = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Builder::from_random_bytes((u128::from(process) << 64 | u128::from(count)).to_be_bytes()).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_requests_have_one_name() {
        let names: Vec<Uuid> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..10_000).map(|_| next()).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 40_000);
        assert!(names.iter().all(|name| name.get_version_num() == 4));
    }
}
