//! A bump allocator: what a policy allocates is never given back, because its instance ends with the call.
//!
//! A decision allocates a few KiB, and a general allocator spends more time on its bookkeeping than the decision takes.
//! The arena is part of the instance's first memory, so a small call never grows it; a large one goes on in grown memory
//! until the host's limit.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait; nothing else in here is")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

/// What a lease decision needs many times over.
pub const ARENA_BYTES: usize = 192 * 1024;

/// Memory grows by whole chunks of this size, or by what a single larger allocation needs.
const CHUNK_BYTES: usize = 1024 * 1024;
const PAGE_BYTES: usize = 64 * 1024;

/// The allocator. One static of it is the `#[global_allocator]` of a component; the macros of this crate declare it.
#[derive(Debug)]
pub struct Bump {
    state: UnsafeCell<State>,
    arena: UnsafeCell<MaybeUninit<[u8; ARENA_BYTES]>>,
}

/// Free memory is `next..end`; both 0 until the first allocation, so that the static is all zeros and takes no room in
/// the component.
#[derive(Debug)]
struct State {
    next: usize,
    end: usize,
}

// SAFETY: a component without threads has one thread; native tests use one allocator from one thread each.
unsafe impl Sync for Bump {}

impl Default for Bump {
    fn default() -> Self {
        Self::new()
    }
}

impl Bump {
    /// An allocator with an untouched arena.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: UnsafeCell::new(State { next: 0, end: 0 }), arena: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    #[allow(clippy::mut_from_ref, reason = "the one place where the state is borrowed; never kept over a call")]
    fn state(&self) -> &mut State {
        // SAFETY: there is one thread, and no caller keeps the reference while another one is made.
        let state = unsafe { &mut *self.state.get() };
        if state.end == 0 {
            state.next = self.arena.get() as usize;
            state.end = state.next + ARENA_BYTES;
        }
        state
    }
}

impl State {
    fn take(&mut self, layout: Layout) -> Option<usize> {
        let start = self.next.checked_next_multiple_of(layout.align())?;
        let end = start.checked_add(layout.size())?;
        if end > self.end {
            return None;
        }
        self.next = end;
        Some(start)
    }

    /// Whether `block` is what was allocated last: then it can grow or be given back.
    fn is_last(&self, block: usize, size: usize) -> bool {
        block + size == self.next
    }

    fn grow(&mut self, layout: Layout) -> Option<()> {
        let bytes = layout.size().checked_add(layout.align())?.max(CHUNK_BYTES).checked_next_multiple_of(PAGE_BYTES)?;
        let start = more_memory(bytes).or_else(|| more_memory(layout.size().checked_next_multiple_of(PAGE_BYTES)?))?;
        // Grown memory that follows on what there is makes one block of both.
        if start.0 != self.end {
            self.next = start.0;
        }
        self.end = start.0 + start.1;
        Some(())
    }
}

/// More memory of this process: its address and its size; none beyond the limit.
#[cfg(target_arch = "wasm32")]
fn more_memory(bytes: usize) -> Option<(usize, usize)> {
    let pages = core::arch::wasm32::memory_grow(0, bytes / PAGE_BYTES);
    (pages != usize::MAX).then(|| (pages * PAGE_BYTES, bytes))
}

#[cfg(not(target_arch = "wasm32"))]
fn more_memory(bytes: usize) -> Option<(usize, usize)> {
    let layout = Layout::from_size_align(bytes, PAGE_BYTES).ok()?;
    // SAFETY: the size isn't zero, since it is at least a page.
    let block = unsafe { std::alloc::System.alloc(layout) };
    (!block.is_null()).then_some((block as usize, bytes))
}

// SAFETY: blocks are disjoint parts of the arena or of grown memory, aligned as asked, and valid until the instance ends.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let state = self.state();
        let block = state.take(layout).or_else(|| {
            state.grow(layout)?;
            state.take(layout)
        });
        block.map_or(ptr::null_mut(), |address| address as *mut u8)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let state = self.state();
        if state.is_last(block as usize, layout.size()) {
            state.next = block as usize;
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let state = self.state();
        if state.is_last(block as usize, layout.size()) && block as usize + size <= state.end {
            state.next = block as usize + size;
            return block;
        }
        if size <= layout.size() {
            return block;
        }
        // SAFETY: the caller promises that size and alignment make a layout; `block` holds `layout.size()` bytes.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size());
            }
            moved
        }
    }
}

#[cfg(test)]
#[allow(clippy::undocumented_unsafe_blocks, reason = "each block is used within its own size, by one thread")]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// Fills blocks of many sizes with their number and looks whether all still hold it at the end.
    #[test]
    fn blocks_are_aligned_and_disjoint_beyond_the_arena() {
        let bump = Box::new(Bump::new());
        let mut blocks = Vec::new();
        let mut seed = 1u64;
        let mut total = 0;
        while total < 3 * CHUNK_BYTES {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let layout = layout(1 + (seed >> 33) as usize % 20_000, 1 << ((seed >> 20) % 8));
            let block = unsafe { bump.alloc(layout) };
            assert!(!block.is_null());
            assert_eq!(block as usize % layout.align(), 0);
            let mark = blocks.len() as u8;
            unsafe { ptr::write_bytes(block, mark, layout.size()) };
            total += layout.size();
            blocks.push((block, layout, mark));
        }
        for (block, layout, mark) in blocks {
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            assert!(bytes.iter().all(|byte| *byte == mark));
        }
    }

    #[test]
    fn the_last_block_grows_in_place_and_others_move_with_their_bytes() {
        let bump = Box::new(Bump::new());
        unsafe {
            let first = bump.alloc(layout(8, 8));
            ptr::write_bytes(first, 7, 8);
            let grown = bump.realloc(first, layout(8, 8), 64);
            assert_eq!(grown, first);
            let second = bump.alloc(layout(8, 8));
            assert_eq!(second as usize, first as usize + 64);
            let moved = bump.realloc(first, layout(64, 8), 128);
            assert_ne!(moved, first);
            assert!(std::slice::from_raw_parts(moved, 8).iter().all(|byte| *byte == 7));
            assert_eq!(bump.realloc(second, layout(8, 8), 4), second, "what isn't last shrinks where it is");
            bump.dealloc(moved, layout(128, 8));
            assert_eq!(bump.alloc(layout(16, 8)), moved, "the last block is given back");
        }
    }

    #[test]
    fn what_can_never_be_had_is_null() {
        let bump = Box::new(Bump::new());
        assert!(unsafe { bump.alloc(layout(isize::MAX as usize - 64, 1)) }.is_null());
    }
}
