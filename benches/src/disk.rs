//! What one durable write costs on a disk, without any database.

use crate::measure::Times;
use anyhow::{Context as _, Result};
use rustix::fs::fdatasync;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The length of the file that is written over and over, as a write-ahead log is.
const LENGTH: u64 = 1 << 20;
/// A page of the ledger.
const PAGE: usize = 4096;

/// A file whose length no longer changes, so that a sync has nothing but data to write.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    next: u64,
}

impl Disk {
    /// In this folder, whose file system it measures.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("disk");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        file.write_all_at(&vec![0; usize::try_from(LENGTH)?], 0)?;
        file.sync_all()?;
        Ok(Self { file, next: 0 })
    }

    /// Writes a page and waits until it is durable.
    pub(crate) fn write(&mut self) -> Result<Duration> {
        let page = [u8::try_from(self.next % 251)?; PAGE];
        let began = Instant::now();
        self.file.write_all_at(&page, self.next % LENGTH)?;
        fdatasync(&self.file)?;
        self.next += PAGE as u64;
        Ok(began.elapsed())
    }

    /// So many durable writes.
    pub(crate) fn writes(&mut self, count: usize) -> Result<Times> {
        let mut times = Times::default();
        for _ in 0..count {
            times.add(self.write()?);
        }
        Ok(times)
    }
}
