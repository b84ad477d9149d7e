//! Who has a connection, and which one may be ended to make room.
//!
//! A connection is only ever ended from outside while no request of it is in hand: whoever wants to end one and whoever
//! begins a request compete for one word, so a request is either begun and answered, or never begun. The time in that
//! word comes from a clock that ticks with the sweeps: a request costs no look at the time and no timer of its own.

use crate::http::Figures;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It was accepted just now, and nobody has looked yet whether it asks something.
    Fresh,
    /// It hasn't sent a whole head yet.
    New,
    /// It was answered, and sends nothing.
    Idle,
    /// It was answered, and sends another head.
    Head,
    /// A request of it is in hand.
    Busy,
    /// Its answer is made, and on its way.
    Answered,
    /// It is to end.
    Ended(End),
}

/// Why a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It sent nothing for too long.
    Idle,
    /// A head didn't come in time.
    Slow,
    /// Another one needed its place.
    Crowded,
    /// It doesn't take in its answer.
    Stalled,
    /// The server stops.
    Stopping,
}

/// Bits of a word that say what is done; the others say since when.
const BITS: u32 = 4;

impl Doing {
    fn word(self, at: u64) -> u64 {
        let code = match self {
            Self::Fresh => 0,
            Self::New => 1,
            Self::Idle => 2,
            Self::Head => 3,
            Self::Busy => 4,
            Self::Answered => 5,
            Self::Ended(End::Idle) => 6,
            Self::Ended(End::Slow) => 7,
            Self::Ended(End::Crowded) => 8,
            Self::Ended(End::Stalled) => 9,
            Self::Ended(End::Stopping) => 10,
        };
        (at << BITS) | code
    }

    fn of(word: u64) -> (Self, u64) {
        let doing = match word & ((1 << BITS) - 1) {
            0 => Self::Fresh,
            1 => Self::New,
            2 => Self::Idle,
            3 => Self::Head,
            4 => Self::Busy,
            5 => Self::Answered,
            6 => Self::Ended(End::Idle),
            7 => Self::Ended(End::Slow),
            8 => Self::Ended(End::Crowded),
            9 => Self::Ended(End::Stalled),
            _ => Self::Ended(End::Stopping),
        };
        (doing, word >> BITS)
    }
}

/// Milliseconds since the server began, as of the last sweep.
#[derive(Debug)]
struct Clock {
    began: Instant,
    now: AtomicU64,
}

impl Clock {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn tick(&self) -> u64 {
        let now = millis(self.began.elapsed());
        self.now.store(now, Ordering::Relaxed);
        now
    }
}

/// One connection's place.
#[derive(Debug)]
pub(super) struct Seat {
    word: AtomicU64,
    /// Since when it doesn't take in its answer, plus one; 0: it does.
    stalled: AtomicU64,
    clock: Arc<Clock>,
    /// Wakes its task to look at the word again.
    waker: AtomicWaker,
}

impl Seat {
    /// Why it is to end, if it is.
    pub(super) fn ended(&self) -> Option<End> {
        match Doing::of(self.word.load(Ordering::Acquire)).0 {
            Doing::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Its task waits for what it sends, or takes in.
    pub(super) fn wait(&self, waker: &Waker) {
        self.waker.register(waker);
        let seen = self.word.load(Ordering::Relaxed);
        if Doing::of(seen).0 == Doing::Fresh {
            self.exchange(seen, Doing::New);
        }
    }

    /// Bytes came: after an answer, they begin the next head.
    pub(super) fn received(&self) {
        let seen = self.word.load(Ordering::Relaxed);
        if Doing::of(seen).0 == Doing::Idle {
            self.exchange(seen, Doing::Head);
        }
    }

    /// A whole head is there. An error: the connection ends, and the request must not begin.
    pub(super) fn begin(&self) -> Result<(), End> {
        loop {
            let seen = self.word.load(Ordering::Acquire);
            if let Doing::Ended(end) = Doing::of(seen).0 {
                return Err(end);
            }
            if self.exchange(seen, Doing::Busy) {
                return Ok(());
            }
        }
    }

    /// All of the answer is made.
    pub(super) fn answered(&self) {
        let seen = self.word.load(Ordering::Relaxed);
        if Doing::of(seen).0 == Doing::Busy {
            self.exchange(seen, Doing::Answered);
        }
    }

    /// All that was to be sent is sent; true when that was the end of an answer.
    pub(super) fn sent(&self) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        Doing::of(seen).0 == Doing::Answered && self.exchange(seen, Doing::Idle)
    }

    /// Whether it takes in what is sent.
    pub(super) fn takes(&self, takes: bool) {
        let since = if takes { 0 } else { self.clock.now().saturating_add(1) };
        self.stalled.store(since, Ordering::Relaxed);
    }

    fn exchange(&self, seen: u64, next: Doing) -> bool {
        let next = next.word(self.clock.now());
        self.word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends it, unless it is doing something else by now.
    fn end(&self, seen: u64, end: End, figures: &Figures) -> bool {
        let ended = self.exchange(seen, Doing::Ended(end));
        if ended {
            let counts = &figures.connections;
            match end {
                End::Idle => &counts.idle,
                End::Slow => &counts.slow,
                End::Crowded => &counts.crowded,
                End::Stalled => &counts.stalled,
                End::Stopping => &counts.stopping,
            }
            .inc();
            self.waker.wake();
        }
        ended
    }
}

/// For how long a connection may do nothing of use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until a head is whole.
    pub(super) head: Duration,
    /// Between an answer and the next head.
    pub(super) idle: Duration,
    /// Without taking in any more of an answer.
    pub(super) stall: Duration,
}

/// Whether there is a place for one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// One was ended for it.
    Made,
    /// Perhaps, once those that came just now were looked at.
    Soon,
    /// No: a request of each is in hand.
    None,
}

/// All connections.
pub(super) struct Seats {
    taken: Mutex<Taken>,
    clock: Arc<Clock>,
    pub(super) figures: Arc<Figures>,
}

#[derive(Debug, Default)]
struct Taken {
    seats: HashMap<u64, Arc<Seat>>,
    /// Numbers that were given out: a lower one came earlier.
    numbers: u64,
}

impl Seats {
    pub(super) fn new(figures: Arc<Figures>) -> Arc<Self> {
        let clock = Clock { began: Instant::now(), now: AtomicU64::new(0) };
        Arc::new(Self { taken: Mutex::default(), clock: Arc::new(clock), figures })
    }

    /// A place for a connection that was just accepted.
    pub(super) fn take(self: &Arc<Self>) -> Seated {
        let seat = Arc::new(Seat {
            word: AtomicU64::new(Doing::Fresh.word(self.clock.now())),
            stalled: AtomicU64::new(0),
            clock: Arc::clone(&self.clock),
            waker: AtomicWaker::new(),
        });
        let mut taken = self.taken.lock();
        taken.numbers += 1;
        let number = taken.numbers;
        taken.seats.insert(number, Arc::clone(&seat));
        self.figures.connections.accepted.inc();
        self.figures.connections.open.inc();
        Seated { seats: Arc::clone(self), number, seat }
    }

    /// Ends the connection that can be spared most: the one that waits longest among those that never sent a whole
    /// head, else among those that were answered.
    pub(super) fn make_room(&self) -> Room {
        let taken = self.taken.lock();
        let mut fresh = false;
        loop {
            let spared = taken.seats.iter().filter_map(|(number, seat)| {
                let word = seat.word.load(Ordering::Acquire);
                let rank = match Doing::of(word) {
                    (Doing::New, _) => (0, *number),
                    (Doing::Head | Doing::Idle, since) => (1, since),
                    (Doing::Fresh, _) => {
                        fresh = true;
                        return None;
                    }
                    _ => return None,
                };
                Some((rank, word, seat))
            });
            let Some((_, word, seat)) = spared.min_by_key(|(rank, ..)| *rank) else {
                return if fresh { Room::Soon } else { Room::None };
            };
            if seat.end(word, End::Crowded, &self.figures) {
                return Room::Made;
            }
        }
    }

    /// Ends those that took too long over something.
    pub(super) fn sweep(&self, patience: Patience, tick: Duration) {
        let now = self.clock.tick();
        // A stamp may be older than what it marks, by one tick.
        let over = |since: u64, limit: Duration| now.saturating_sub(since) > millis(limit + tick);
        for seat in self.taken.lock().seats.values() {
            let word = seat.word.load(Ordering::Acquire);
            let end = match Doing::of(word) {
                (Doing::Fresh | Doing::New | Doing::Head, since) if over(since, patience.head) => End::Slow,
                (Doing::Idle, since) if over(since, patience.idle) => End::Idle,
                (Doing::Busy | Doing::Answered, _) => match seat.stalled.load(Ordering::Relaxed).checked_sub(1) {
                    Some(since) if over(since, patience.stall) => End::Stalled,
                    _ => continue,
                },
                _ => continue,
            };
            seat.end(word, end, &self.figures);
        }
    }

    /// Ends those of which no request is in hand.
    pub(super) fn stop(&self) {
        for seat in self.taken.lock().seats.values() {
            let word = seat.word.load(Ordering::Acquire);
            if matches!(Doing::of(word).0, Doing::Fresh | Doing::New | Doing::Head | Doing::Idle) {
                seat.end(word, End::Stopping, &self.figures);
            }
        }
    }
}

/// A connection that has its place for as long as this lives.
pub(super) struct Seated {
    pub(super) seats: Arc<Seats>,
    number: u64,
    pub(super) seat: Arc<Seat>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.seats.taken.lock().seats.remove(&self.number);
        self.seats.figures.connections.open.dec();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX >> BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that was looked at, and asks nothing yet.
    fn waits(seats: &Arc<Seats>) -> Seated {
        let seated = seats.take();
        seated.seat.wait(Waker::noop());
        seated
    }

    /// Through a whole request.
    fn asked(seat: &Seat) {
        seat.begin().unwrap();
        seat.answered();
        seat.sent();
    }

    #[test]
    fn who_never_asked_goes_first_and_who_asks_now_stays() {
        let seats = Seats::new(Figures::new());
        let (asking, idle, first, second) = (waits(&seats), waits(&seats), waits(&seats), waits(&seats));
        asking.seat.begin().unwrap();
        asked(&idle.seat);
        for end in [&first, &second, &idle] {
            assert_eq!(seats.make_room(), Room::Made);
            assert_eq!(end.seat.ended(), Some(End::Crowded));
            assert_eq!(end.seat.begin(), Err(End::Crowded), "a request that is too late doesn't begin");
        }
        assert_eq!(seats.make_room(), Room::None);
        assert_eq!(asking.seat.ended(), None);
        asking.seat.answered();
        assert_eq!(seats.make_room(), Room::None, "its answer is on its way");
        asking.seat.sent();
        assert_eq!(seats.make_room(), Room::Made);
    }

    #[test]
    fn who_came_just_now_is_looked_at_first() {
        let seats = Seats::new(Figures::new());
        let fresh = seats.take();
        assert_eq!((seats.make_room(), fresh.seat.ended()), (Room::Soon, None));
        let waiting = waits(&seats);
        assert_eq!((seats.make_room(), waiting.seat.ended()), (Room::Made, Some(End::Crowded)));
        fresh.seat.wait(Waker::noop());
        assert_eq!((seats.make_room(), fresh.seat.ended()), (Room::Made, Some(End::Crowded)));
    }

    #[test]
    fn each_wait_has_its_own_end() {
        let seats = Seats::new(Figures::new());
        let tick = Duration::ZERO;
        let (new, idle, head, busy, stalled) =
            (waits(&seats), waits(&seats), waits(&seats), waits(&seats), waits(&seats));
        asked(&idle.seat);
        asked(&head.seat);
        head.seat.received();
        busy.seat.begin().unwrap();
        stalled.seat.begin().unwrap();
        stalled.seat.takes(false);
        let (long, none) = (Duration::from_secs(3600), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(5));
        seats.sweep(Patience { head: long, idle: long, stall: long }, tick);
        let ends = || [&new, &idle, &head, &busy, &stalled].map(|seated| seated.seat.ended());
        assert_eq!(ends(), [None; 5]);
        seats.sweep(Patience { head: none, idle: long, stall: long }, tick);
        assert_eq!(ends(), [Some(End::Slow), None, Some(End::Slow), None, None]);
        seats.sweep(Patience { head: none, idle: none, stall: none }, tick);
        assert_eq!(ends(), [Some(End::Slow), Some(End::Idle), Some(End::Slow), None, Some(End::Stalled)]);
    }

    #[test]
    fn a_stop_ends_who_waits_and_places_are_given_back() {
        let seats = Seats::new(Figures::new());
        let (waiting, busy) = (waits(&seats), waits(&seats));
        busy.seat.begin().unwrap();
        seats.stop();
        assert_eq!((waiting.seat.ended(), busy.seat.ended()), (Some(End::Stopping), None));
        drop((waiting, busy));
        assert!(seats.taken.lock().seats.is_empty());
    }

    #[test]
    fn a_request_that_begins_and_an_end_never_both_happen() {
        let seats = Seats::new(Figures::new());
        for _ in 0..200 {
            let seated = waits(&seats);
            let seat = Arc::clone(&seated.seat);
            let begun = std::thread::scope(|scope| {
                let begun = scope.spawn(move || seat.begin().is_ok());
                seats.make_room();
                begun.join().unwrap()
            });
            assert_ne!(begun, seated.seat.ended().is_some());
        }
    }
}
