//! Two things at once, where neither needs the other.

use std::io;
use std::thread::{self, Builder};

/// Does both and answers both: the first on a thread of its own, or afterwards where there can be no thread.
pub(crate) fn beside<A: Send, B>(
    first: impl Fn() -> io::Result<A> + Sync,
    second: impl FnOnce() -> B,
) -> (io::Result<A>, B) {
    thread::scope(|scope| {
        let started = Builder::new().name("beside".to_owned()).spawn_scoped(scope, &first);
        let second = second();
        let first = match started {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("it broke off"))),
            Err(_) => first(),
        };
        (first, second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn both_are_done_at_once_and_an_error_is_kept() {
        // Neither passes before the other is there.
        let meet = Barrier::new(2);
        let first = || {
            meet.wait();
            Err::<(), _>(io::Error::other("no"))
        };
        let (first, second) = beside(first, || {
            meet.wait();
            7
        });
        assert_eq!(first.unwrap_err().to_string(), "no");
        assert_eq!(second, 7);
    }
}
