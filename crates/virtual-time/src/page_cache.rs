//! The host's page cache in front of its device, without content: how long reads, writes and syncs of buffered files take
//! (Linux 6.1: mm/page-writeback.c, fs/fs-writeback.c, mm/readahead.c; documented in admin-guide/sysctl/vm).
//!
//! A write is a copy, and takes no time, until more than the dirty limit is dirty or on its way to the device: then every writer waits
//! for the device, as `balance_dirty_pages` has them wait. As there, the flusher is woken when more than the background limit is dirty. A sync writes what is dirty of its file, in order of place, and flushes the device; it
//! pays for the whole burst. What is dirty for 30 s is written by the flusher, which looks every 5 s; so is everything while more than
//! the background limit is dirty. A read finds what was read or written before; what it misses costs a read of the device, and a read
//! that continues the last one reads ahead.
//!
//! Below it may lie a model of the host's file system, which has a journal of its own ([`crate::host_fs`]): then a sync commits what
//! that says, and so does the flusher after 5 s.
//!
//! Left out: nothing is ever dropped, as on a host whose memory is larger than its images; a page is written at once and not half a
//! second later.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use afterimage_lab::device::{Model, Place};

use crate::extents::Extents;
use crate::host_fs::{Commit, HostFs, HostJournal, JOURNAL_FILE, METADATA_FILE};

/// `dirty_expire_centisecs`, `dirty_writeback_centisecs`.
const EXPIRES: Duration = Duration::from_secs(30);
const LOOKS: Duration = Duration::from_secs(5);
/// `read_ahead_kb`.
const READ_AHEAD_BYTES: u64 = 128 << 10;
/// The largest request to the device.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// How much may be dirty.
#[derive(Clone, Copy, Debug)]
pub struct DirtyLimits {
    /// Above it the flusher writes all there is, at once, in bytes.
    pub background_bytes: u64,
    /// Above it writers wait, in bytes.
    pub bytes: u64,
}

impl DirtyLimits {
    /// Linux's, 10 and 20 %, on a host with this much memory that can be dirty.
    pub fn of_memory(bytes: u64) -> Self {
        Self { background_bytes: bytes / 10, bytes: bytes / 5 }
    }
}

#[derive(Debug, Default)]
struct File {
    cached: Extents,
    dirty: Extents,
    /// Since when the oldest of it is dirty.
    dirty_since: Option<Duration>,
    /// Where the last read ended.
    read_to: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct PageCache {
    limits: DirtyLimits,
    host: HostFs,
    journal: Option<HostJournal>,
    files: BTreeMap<u64, File>,
    dirty_bytes: u64,
    /// What was written to the device and is not there yet: when it will be, and its bytes.
    on_the_way: VecDeque<(Duration, u64)>,
    on_the_way_bytes: u64,
    next_look: Duration,
}

impl PageCache {
    /// Nothing is cached.
    pub fn new(limits: DirtyLimits, host: HostFs) -> Self {
        let journal = HostJournal::new(host);
        Self {
            limits,
            host,
            journal,
            files: BTreeMap::new(),
            dirty_bytes: 0,
            on_the_way: VecDeque::new(),
            on_the_way_bytes: 0,
            next_look: LOOKS,
        }
    }

    /// A range of a file has blocks from the beginning.
    pub fn lay_out(&mut self, file: u64, range: Range<u64>) {
        if let Some(journal) = &mut self.journal {
            journal.lay_out(file, range);
        }
    }

    /// Time has begun before: the flusher looks from then on.
    pub fn begin(&mut self, now: Duration) {
        self.next_look = now + LOOKS;
    }

    /// What waits to be written, in bytes.
    #[cfg(test)]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// When a read that is asked for now is done.
    pub fn read(
        &mut self,
        device: &mut Model,
        now: Duration,
        file: u64,
        offset: u64,
        bytes: u64,
    ) -> Duration {
        let state = self.files.entry(file).or_default();
        let wanted = pages(offset, bytes);
        let continues = state.read_to.replace(offset + bytes) == Some(offset);
        let mut missing = state.cached.missing(wanted);
        if let Some(last) = missing.last_mut().filter(|_| continues) {
            let ahead = last.end..last.start + READ_AHEAD_BYTES.max(last.end - last.start);
            last.end = state.cached.missing(ahead.clone()).first().map_or(last.end, |gap| {
                if gap.start == ahead.start {
                    gap.end
                } else {
                    last.end
                }
            });
        }
        let mut done = now;
        for gap in missing {
            state.cached.insert(gap.clone());
            for part in parts(gap) {
                done = done.max(device.read(now, Place::of(file, part.start), part.end - part.start));
            }
        }
        done
    }

    /// When a write that is asked for now is in the cache.
    pub fn write(
        &mut self,
        device: &mut Model,
        now: Duration,
        file: u64,
        offset: u64,
        bytes: u64,
    ) -> Duration {
        if let Some(journal) = &mut self.journal {
            journal.wrote(now, file, offset..offset + bytes);
        }
        self.soil(now, file, pages(offset, bytes));
        if self.dirty_bytes > self.limits.background_bytes {
            self.write_all_out(device, now);
        }
        self.wait_for_room(now)
    }

    /// When no more than the limit is dirty or on its way to the device.
    fn wait_for_room(&mut self, now: Duration) -> Duration {
        while let Some((_, bytes)) = self.on_the_way.front().copied().filter(|(done, _)| *done <= now) {
            self.on_the_way.pop_front();
            self.on_the_way_bytes -= bytes;
        }
        let mut held_bytes = self.dirty_bytes + self.on_the_way_bytes;
        let mut ready = now;
        for (done, bytes) in &self.on_the_way {
            if held_bytes <= self.limits.bytes {
                break;
            }
            held_bytes -= bytes;
            ready = *done;
        }
        ready
    }

    fn write_all_out(&mut self, device: &mut Model, now: Duration) {
        let dirty = self.files.iter().filter(|(_, file)| file.dirty.bytes() > 0);
        for file in dirty.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.write_out(device, now, file);
        }
    }

    fn soil(&mut self, now: Duration, file: u64, range: Range<u64>) {
        let state = self.files.entry(file).or_default();
        let before = state.dirty.bytes();
        state.cached.insert(range.clone());
        state.dirty.insert(range);
        state.dirty_since.get_or_insert(now);
        self.dirty_bytes += state.dirty.bytes() - before;
    }

    /// When a write that is asked for now, and passes by the cache, is in the device's.
    pub fn write_direct(
        &mut self,
        device: &mut Model,
        now: Duration,
        file: u64,
        offset: u64,
        bytes: u64,
    ) -> Duration {
        if self.host.journals_data() {
            return self.write(device, now, file, offset, bytes);
        }
        if let Some(journal) = &mut self.journal {
            journal.wrote(now, file, offset..offset + bytes);
            journal.writes_out(now, file, offset..offset + bytes);
        }
        device.write(now, Place::of(file, offset), bytes)
    }

    /// When a sync of a file that is asked for now is done.
    pub fn sync(&mut self, device: &mut Model, now: Duration, file: u64) -> Duration {
        if self.host.journals_data() {
            let commit = self.journal.as_mut().and_then(|journal| journal.sync(file));
            let committed = commit.map_or(now, |commit| self.commit(device, now, now, commit));
            let written = self.write_out(device, committed, file);
            return self.flush(device, written);
        }
        let written = self.write_out(device, now, file);
        match self.journal.as_mut().and_then(|journal| journal.sync(file)) {
            Some(commit) => self.commit(device, now, written, commit),
            None => self.flush(device, written),
        }
    }

    fn flush(&self, device: &mut Model, now: Duration) -> Duration {
        match self.host.flushes() {
            true => device.flush(now),
            false => now,
        }
    }

    /// When a commit of the host's file system is on the device: its body may go there from now on, its commit block after the data.
    fn commit(&mut self, device: &mut Model, now: Duration, data: Duration, commit: Commit) -> Duration {
        let Commit { body, record, home } = commit;
        let mut ready = data;
        for part in parts(body) {
            let place = Place::of(JOURNAL_FILE, part.start);
            ready = ready.max(device.write(now, place, part.end - part.start));
        }
        let ordered = self.flush(device, ready);
        let written = device.write(ordered, Place::of(JOURNAL_FILE, record.start), record.end - record.start);
        let done = self.flush(device, written);
        for range in home {
            self.soil(done, METADATA_FILE, range);
        }
        done
    }

    /// Writes and syncs everything, and forgets it: whoever reads next reads from the device. When the device has it.
    pub fn settle(&mut self, device: &mut Model, now: Duration) -> Duration {
        if let Some(commit) = self.journal.as_mut().and_then(HostJournal::commit_any) {
            self.commit(device, now, now, commit);
        }
        let files: Vec<u64> = self.files.keys().copied().collect();
        let written = files.into_iter().map(|file| self.write_out(device, now, file)).max();
        self.files.clear();
        device.flush(written.unwrap_or(now))
    }

    /// Writes what is dirty of a file; when the device has it.
    fn write_out(&mut self, device: &mut Model, now: Duration, file: u64) -> Duration {
        let Some(state) = self.files.get_mut(&file) else { return now };
        let dirty = state.dirty.take();
        state.dirty_since = None;
        self.dirty_bytes -= dirty.bytes();
        let mut done = now;
        for part in dirty.iter().flat_map(parts) {
            if let Some(journal) = self.journal.as_mut().filter(|_| file != METADATA_FILE) {
                journal.writes_out(now, file, part.clone());
            }
            let bytes = part.end - part.start;
            done = done.max(device.write(now, Place::of(file, part.start), bytes));
            self.on_the_way.push_back((done, bytes));
            self.on_the_way_bytes += bytes;
        }
        done
    }

    /// When the flusher looks next; `None` where nothing is dirty and nothing to be committed.
    pub fn next_look(&self) -> Option<Duration> {
        (self.dirty_bytes > 0 || self.commit_due().is_some()).then_some(self.next_look)
    }

    fn commit_due(&self) -> Option<Duration> {
        self.journal.as_ref()?.due()
    }

    /// The flusher looks. (To be called where [`PageCache::next_look`] says so, and before anything that comes later.)
    pub fn look(&mut self, device: &mut Model, now: Duration) {
        while self.next_look <= now {
            self.next_look += LOOKS;
        }
        let is_late = self.commit_due().is_some_and(|due| due <= now);
        let commit = self.journal.as_mut().filter(|_| is_late).and_then(HostJournal::commit_any);
        if let Some(commit) = commit {
            self.commit(device, now, now, commit);
        }
        let all = self.dirty_bytes > self.limits.background_bytes;
        let is_due = |file: &File| all || file.dirty_since.is_some_and(|since| now >= since + EXPIRES);
        let due: Vec<u64> = self.files.iter().filter(|(_, file)| is_due(file)).map(|(id, _)| *id).collect();
        for file in due {
            self.write_out(device, now, file);
        }
    }
}

/// The pages that a range touches.
fn pages(offset: u64, bytes: u64) -> Range<u64> {
    offset / PAGE_BYTES * PAGE_BYTES..(offset + bytes).next_multiple_of(PAGE_BYTES)
}

fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(REQUEST_BYTES_MAX as usize).map(move |start| start..end.min(start + REQUEST_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use afterimage_lab::device::ModelName;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rig() -> (PageCache, Model) {
        let limits = DirtyLimits { background_bytes: 1 << 20, bytes: 2 << 20 };
        (PageCache::new(limits, HostFs::Bare), Model::new(ModelName::Hdd15k, Duration::ZERO))
    }

    #[test]
    fn writes_are_free_and_a_sync_pays_for_them() {
        let (mut cache, mut device) = rig();
        for index in 0..10 {
            let now = index * MS;
            assert_eq!(cache.write(&mut device, now, 1, u64::from(index) * (64 << 20), 4096), now);
        }
        assert_eq!(cache.dirty_bytes(), 10 * 4096);
        let done = cache.sync(&mut device, 10 * MS, 1);
        assert!((68 * MS..76 * MS).contains(&done), "ten seeks: {done:?}");
        assert_eq!((cache.dirty_bytes(), cache.next_look()), (0, None));
        let again = cache.sync(&mut device, done, 1);
        assert!(again - done < MS, "nothing left");
    }

    #[test]
    fn what_has_settled_is_read_from_the_device_again() {
        let (mut cache, mut device) = rig();
        cache.write(&mut device, MS, 1, 0, 4096);
        cache.write(&mut device, MS, 2, 1 << 30, 4096);
        let done = cache.settle(&mut device, MS);
        assert!(done > 6 * MS, "{done:?}");
        assert_eq!((cache.dirty_bytes(), device.work().writes), (0, 2));
        assert!(cache.read(&mut device, done, 1, 0, 4096) > done + MS);
    }

    #[test]
    fn a_sync_is_of_one_file() {
        let (mut cache, mut device) = rig();
        cache.write(&mut device, MS, 1, 0, 4096);
        cache.write(&mut device, MS, 2, 0, 8192);
        cache.sync(&mut device, MS, 1);
        assert_eq!(cache.dirty_bytes(), 8192);
    }

    #[test]
    fn all_writers_wait_above_the_limit_and_not_one_of_them() {
        let (mut cache, mut device) = rig();
        // 64 MiB that come at once, 4 KiB each, all over the disk: what the device's cache takes is soon there, the rest is not.
        let mut last = MS;
        for index in 0..16384u64 {
            last = last.max(cache.write(&mut device, MS, 1, index * 7919 % 16384 * (64 << 10), 4096));
        }
        let late = cache.write(&mut device, MS, 1, 1 << 40, 4096);
        assert!(last > Duration::from_secs(10), "48 MiB more than the cache: {last:?}");
        assert!(late >= last, "{late:?}");
    }

    #[test]
    fn a_writer_waits_for_the_device_above_the_limit() {
        let (mut cache, mut device) = rig();
        let mut now = MS;
        for index in 0..512 {
            now = cache.write(&mut device, now, 1, index << 18, 1 << 18);
        }
        let rate = 512.0 * f64::from(1 << 18) / now.as_secs_f64();
        assert!((50e6..120e6).contains(&rate), "{rate}");
    }

    #[test]
    fn the_flusher_writes_what_is_old_or_too_much() {
        let (mut cache, mut device) = rig();
        cache.write(&mut device, MS, 1, 0, 4096);
        let mut looks = 0;
        while let Some(at) = cache.next_look() {
            cache.look(&mut device, at);
            looks += 1;
        }
        assert_eq!(looks, 7, "30 s are over at the seventh look");
        let now = Duration::from_secs(100);
        cache.write(&mut device, now, 1, 0, 1 << 20);
        assert_eq!(cache.dirty_bytes(), 1 << 20);
        cache.write(&mut device, now, 2, 0, 4096);
        assert_eq!(cache.dirty_bytes(), 0, "woken at once");
    }

    #[test]
    fn what_was_read_or_written_is_there_and_streams_read_ahead() {
        let (mut cache, mut device) = rig();
        let first = cache.read(&mut device, MS, 1, 1 << 30, 4096);
        assert!(first > 5 * MS, "a seek");
        assert_eq!(cache.read(&mut device, first, 1, 1 << 30, 4096), first);
        let second = cache.read(&mut device, first, 1, (1 << 30) + 4096, 4096);
        let second = cache.read(&mut device, second, 1, (1 << 30) + 8192, 4096);
        assert_eq!(cache.read(&mut device, second, 1, (1 << 30) + 12288, 65536), second, "read ahead");
        cache.write(&mut device, second, 1, 5 << 30, 4096);
        assert_eq!(cache.read(&mut device, second, 1, 5 << 30, 4096), second);
    }

    // A loop device below ext4 of Linux 6.18 was asked the same for each 4 KiB and its fdatasync: requests with data, KiB, flushes.
    #[test]
    fn an_fdatasync_reaches_the_device_as_it_does_below_a_real_ext4() {
        let asked = |host: HostFs, is_there: bool, direct: bool| {
            let limits = DirtyLimits::of_memory(1 << 30);
            let mut cache = PageCache::new(limits, host);
            let mut device = Model::new(ModelName::None, Duration::ZERO);
            if is_there {
                cache.lay_out(1, 0..1 << 30);
            }
            for index in 0..100 {
                let write = if direct { PageCache::write_direct } else { PageCache::write };
                write(&mut cache, &mut device, MS, 1, index * 4096, 4096);
                cache.sync(&mut device, MS, 1);
            }
            let work = device.work();
            (work.writes / 100, work.write_bytes / 100 / 1024, work.flushes / 100)
        };
        for direct in [false, true] {
            assert_eq!(asked(HostFs::Ordered, false, direct), (3, 24, 2));
            assert_eq!(asked(HostFs::Ordered, true, direct), (1, 4, 1));
            assert_eq!(asked(HostFs::OrderedNobarrier, false, direct), (3, 24, 0));
            assert_eq!(asked(HostFs::OrderedNobarrier, true, direct), (1, 4, 0));
            // With the timestamps: one more block in the journal where they changed, as in each commit here.
            assert_eq!(asked(HostFs::Journal, true, direct), (3, 20, 3));
            assert_eq!(asked(HostFs::Journal, false, direct), (3, 28, 3));
            assert_eq!(asked(HostFs::Bare, false, direct), (1, 4, 1));
        }
    }

    #[test]
    fn a_host_commits_by_itself_and_its_metadata_goes_home() {
        let limits = DirtyLimits::of_memory(1 << 30);
        let mut cache = PageCache::new(limits, HostFs::Ordered);
        let mut device = Model::new(ModelName::None, Duration::ZERO);
        cache.write_direct(&mut device, MS, 1, 0, 4096);
        let mut last = MS;
        while let Some(at) = cache.next_look() {
            cache.look(&mut device, at);
            last = at;
        }
        // The data, a commit of three blocks, and those at home.
        let work = device.work();
        assert_eq!((work.writes, work.write_bytes, work.flushes), (6, 36 << 10, 2));
        assert!(last > Duration::from_secs(39), "{last:?}");
    }
}
