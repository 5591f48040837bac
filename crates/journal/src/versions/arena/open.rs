//! A new arena, and one that an earlier daemon left.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use afterimage_store::check_owner;

use super::file::{corrupt, io_error};
use super::loan::Lent;
use super::map::{group_at, Map, GROUP_SLOTS, HEAD, PAGE, TAG_WORDS};
use super::pool::Pool;
use super::records::{self, Record, Records};
use super::space::{runs, Space};
use super::tags::{self, Header, SlotTag};
use super::{file, Arena, ArenaIdentity, VolumeRecord, VOLUMES_MAX};
use crate::error::JournalError;
use crate::ids::AreaBlock;

/// See [`Arena::peek`].
#[derive(Debug)]
pub struct Peeked {
    /// Whose it is.
    pub identity: ArenaIdentity,
    /// Where that image was when a daemon opened it last; `None` where it does not say.
    pub image: Option<PathBuf>,
    /// The file systems that it remembers. In use, they may change meanwhile.
    pub records: Vec<VolumeRecord>,
}

/// Where a block was found.
struct Held {
    slot: u32,
    sequence: u64,
}

/// What the tags say.
#[derive(Default)]
struct Scan {
    blocks: HashMap<(u16, AreaBlock), Held>,
    /// Tags that count for nothing: of a forgotten volume, or of content that was replaced.
    stale: Vec<u32>,
    /// Groups that have memory.
    groups: Vec<u32>,
    sequence_max: u64,
}

impl Arena {
    /// Creates the file, of room for `bytes_max` of slots (sparse until used), locked.
    ///
    /// # Errors
    /// There is a file of that name, or the directory's file system has no room or no `fallocate`.
    pub fn create(path: &Path, identity: ArenaIdentity, bytes_max: u64) -> Result<Self, JournalError> {
        let slots = file::slots_for(path, bytes_max)?;
        let file = file::create(path, slots)?;
        let map = Map::new(&file, slots).map_err(io_error(path, "mapping"))?;
        map.head(tags::BYTES_MAX_WORD).store(bytes_max, Ordering::Relaxed);
        // The magic last: a daemon that dies here leaves a file that is no arena.
        for (i, word) in tags::header(&identity).into_iter().enumerate().rev() {
            map.head(i).store(word, Ordering::Release);
        }
        let space = Space::cold(0..slots);
        let (map, salt) = (Arc::new(map), tags::salt(&identity));
        Ok(Self {
            pool: Arc::new(Pool::new(path, file, space)),
            records: Records::none(&map, salt),
            map,
            identity,
            salt,
            bytes_max,
            budget: None,
            sequence: 1,
            slots: vec![HashMap::new(); VOLUMES_MAX],
            used_slots: 0,
            lent: Lent::default(),
            at_home: BTreeMap::new(),
        })
    }

    /// Notes which image it is of, for people.
    pub fn note_image(&self, image: &Path) {
        let Some(words) = tags::name_words(image.as_os_str().as_encoded_bytes()) else { return };
        // The first word, with the check, last.
        for (i, word) in words.into_iter().enumerate().rev() {
            self.map.head(tags::NAME_WORD + i).store(word, Ordering::Release);
        }
    }

    /// Whether its file may be acted on for an image of this owner.
    ///
    /// # Errors
    /// It is a stranger's.
    pub fn check_owner(&self, image_uid: Option<u32>) -> Result<(), JournalError> {
        let failed = io_error(self.pool.path(), "looking at");
        let found = self.pool.file().metadata().map_err(&failed)?;
        check_owner(&found, image_uid).map_err(|e| failed(e.into()))
    }

    /// What an arena's file says of itself, in use or not.
    ///
    /// # Errors
    /// *Corrupt*: not an arena, or damaged. *Unsupported*: of another version. I/O: it cannot be read.
    pub fn peek(path: &Path) -> Result<Peeked, JournalError> {
        let failed = io_error(path, "reading");
        let file = File::open(path).map_err(&failed)?;
        let mut head = vec![0; HEAD as usize / 8];
        file::read_words(&file, 0, &mut head).map_err(&failed)?;
        let identity = identity_in(path, &head)?;
        let image = tags::read_name(&head).map(|name| PathBuf::from(OsString::from_vec(name)));
        let records = records::read(path, &head, tags::salt(&identity))?;
        Ok(Peeked { identity, image, records: records.iter().filter_map(Record::held).collect() })
    }

    /// Opens what an earlier daemon left. Two slots of one block: the younger counts. Memory of free slots is given back.
    ///
    /// # Errors
    /// *Corrupt*: not an arena, or damaged. *Unsupported*: of another version, or another one than `identity` describes, by UUID and
    /// size: the inode is that of the image when it was made. I/O: cannot be opened, or another process has it open.
    pub fn open(path: &Path, identity: Option<ArenaIdentity>) -> Result<Self, JournalError> {
        let failed = io_error(path, "reading");
        let (file, slots) = file::open(path)?;
        let mut head = vec![0; HEAD as usize / 8];
        file::read_words(&file, 0, &mut head).map_err(&failed)?;
        let found = identity_in(path, &head)?;
        let same = |wanted: ArenaIdentity| wanted.uuid == found.uuid && wanted.size_bytes == found.size_bytes;
        if !identity.is_none_or(same) {
            return Err(JournalError::Unsupported(format!(
                "the arena {} belongs to another image (inode {}, {} bytes); it was left alone",
                path.display(),
                found.inode,
                found.size_bytes
            )));
        }
        let bytes_max = head[tags::BYTES_MAX_WORD];
        if bytes_max / PAGE + 1 > slots.into() {
            return Err(corrupt(path, format_args!("{bytes_max} bytes do not fit into {slots} slots")));
        }
        let salt = tags::salt(&found);
        let records = records::read(path, &head, salt)?;
        let mut scan = Scan::default();
        let mut group = 0;
        while let Some(here) = file::next_group(&file, group, slots / GROUP_SLOTS).map_err(&failed)? {
            let mut words = [0; PAGE as usize / 8];
            file::read_words(&file, group_at(here * GROUP_SLOTS), &mut words).map_err(&failed)?;
            scan.group(path, here, &words, &records, salt)?;
            scan.groups.push(here);
            group = here + 1;
        }
        let mut held = vec![HashMap::new(); VOLUMES_MAX];
        let used = scan.finish(&mut held);
        for (first, run) in groupwise(&used) {
            if !file::is_whole(&file, (first, run)).map_err(&failed)? {
                return Err(corrupt(path, format_args!("content of slots {first}+{run} is missing")));
            }
        }
        file::allocate(&file, 0, HEAD).map_err(io_error(path, "getting memory for"))?;
        let map = Map::new(&file, slots).map_err(io_error(path, "mapping"))?;
        // From here on the file is changed.
        for slot in &scan.stale {
            map.tag(*slot, 0).store(0, Ordering::Release);
        }
        let is_used = |slot: &u32| used.binary_search(slot).is_ok();
        for group in &scan.groups {
            let slots = group * GROUP_SLOTS..(group + 1) * GROUP_SLOTS;
            for run in runs(slots.filter(|slot| !is_used(slot))) {
                file::punch(&file, path, run);
            }
        }
        let space = Space::cold((0..slots).filter(|slot| !is_used(slot)));
        let map = Arc::new(map);
        let mut opened = Self {
            pool: Arc::new(Pool::new(path, file, space)),
            records: Records::new(&map, salt, records),
            map,
            identity: found,
            salt,
            bytes_max,
            budget: None,
            sequence: scan.sequence_max + 1,
            slots: held,
            used_slots: used.len() as u32,
            lent: Lent::default(),
            at_home: BTreeMap::new(),
        };
        opened.find_at_home();
        Ok(opened)
    }
}

fn identity_in(path: &Path, head: &[u64]) -> Result<ArenaIdentity, JournalError> {
    match tags::read_header(head) {
        Header::Good(found) => Ok(found),
        Header::OtherMagic => Err(corrupt(path, "the file is no arena")),
        Header::Damaged => Err(corrupt(path, "its header does not match its checksum")),
        Header::OtherVersion(version) => Err(JournalError::Unsupported(format!(
            "the arena {} has version {version}, this program reads {}; recover it with the program that wrote it",
            path.display(),
            tags::VERSION
        ))),
    }
}

impl Scan {
    /// Takes the tags of a group in.
    fn group(
        &mut self,
        path: &Path,
        group: u32,
        words: &[u64],
        records: &[Record],
        salt: u32,
    ) -> Result<(), JournalError> {
        for (slot, words) in (group * GROUP_SLOTS..).zip(words.chunks_exact(TAG_WORDS)) {
            if words[0] == 0 {
                continue;
            }
            let tag = SlotTag::read(words, slot, salt)
                .ok_or_else(|| corrupt(path, format_args!("the tag of slot {slot} is damaged")))?;
            let current = records[usize::from(tag.volume)].generation;
            if tag.generation > current {
                return Err(corrupt(path, format_args!("the tag of slot {slot} is from the future")));
            }
            self.sequence_max = self.sequence_max.max(tag.sequence);
            if tag.generation < current {
                self.stale.push(slot);
                continue;
            }
            let held = Held { slot, sequence: tag.sequence };
            let Some(other) = self.blocks.insert((tag.volume, AreaBlock(tag.block)), held) else { continue };
            if other.sequence == tag.sequence {
                return Err(corrupt(path, format_args!("slots {} and {slot} have one sequence", other.slot)));
            }
            if other.sequence > tag.sequence {
                self.blocks.insert((tag.volume, AreaBlock(tag.block)), other);
                self.stale.push(slot);
            } else {
                self.stale.push(other.slot);
            }
        }
        Ok(())
    }

    /// Fills the index; returns the slots in use, ascending.
    fn finish(&mut self, slots: &mut [HashMap<AreaBlock, super::Held>]) -> Vec<u32> {
        let mut used = Vec::with_capacity(self.blocks.len());
        for ((volume, block), held) in self.blocks.drain() {
            slots[usize::from(volume)].insert(block, super::Held { slot: held.slot, note: None });
            used.push(held.slot);
        }
        used.sort_unstable();
        used
    }
}

/// Ascending slots as runs that end with their group.
fn groupwise(slots: &[u32]) -> Vec<(u32, u32)> {
    let mut split = Vec::new();
    for (first, length) in runs(slots.iter().copied()) {
        let (mut first, end) = (first, first + length);
        while first < end {
            let here = (GROUP_SLOTS - first % GROUP_SLOTS).min(end - first);
            split.push((first, here));
            first += here;
        }
    }
    split
}
