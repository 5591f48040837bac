//! What the runs that count make of the committed file system: in memory, block by block.
//!
//! ```text
//! judge     each newest run against the committed inode: an update, a new inode, or refused
//! reach     from committed directories down: which entries are merged, which new inodes therefore exist
//! files     blocks taken, trees and inodes written
//! folders   new ones made, entries added, from the topmost down
//! free      blocks that recovered files have given up: last, so that nothing here can have been put into them
//! ```
//!
//! A run that the committed file system contradicts is left out alone, be it that its file, a bitmap or a directory is damaged. Some of that
//! shows while changes are made, as it does that a directory has no room for a name. By then the file is in bitmaps and inode tables, so
//! what was made is good for nothing but to say what has to be left out: whoever asked begins anew without it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::bytes::crc32c;
use crate::bytes::put32;
use crate::directory::Directory;
use crate::entries::Added;
use crate::error::{corrupt, Error};
use crate::groups::Groups;
use crate::image::Image;
use crate::inode::{Inode, Kind};
use crate::mutation::Mistake;
use crate::plan::{Name, Named, Newest, Plan};
use crate::report::{Refused, Report};
use crate::superblock::{self, Geometry};
use crate::tree::{without, Tree, NODE_SUM};

const ROOT_INO: u32 = 2;
/// The longest file that extents map: logical blocks have 32 bits.
const SIZE_MAX: u64 = ((1 << 32) - 1) * 4096;

/// A run that counts, judged.
struct Judged {
    inode: Inode,
    /// The committed inode, of the same generation; none: this one is new.
    committed: Option<Inode>,
    sub_id: u64,
    /// A file's blocks: all, those that it did not have, those that it has no more.
    tree: Tree,
    taken: Vec<Range<u64>>,
    freed: Vec<Range<u64>>,
}

/// What is to become of one directory.
#[derive(Default)]
struct Folder {
    generation: u32,
    /// The entry that names it, where it is new.
    named: Option<Name>,
    added: Vec<Added>,
    subdirectories: u32,
}

/// What all of it has to be done without.
pub(crate) enum LeftOut {
    /// An entry.
    Name(Name),
    /// The newest run of an inode.
    Run(u32),
}

pub(crate) struct Apply<'a, 'b> {
    image: &'a mut Image<'b>,
    geometry: &'a Geometry,
    groups: Groups<'a>,
    plan: &'a Plan,
    report: &'a mut Report,
    mistake: Mistake,
    judged: BTreeMap<u32, Judged>,
    /// Names that inodes get.
    links: BTreeMap<u32, u32>,
    /// In the order in which they are reached.
    folders: Vec<(u32, Folder)>,
    left_out: Vec<(LeftOut, String)>,
}

impl<'a, 'b> Apply<'a, 'b> {
    pub(crate) fn new(
        image: &'a mut Image<'b>,
        geometry: &'a Geometry,
        plan: &'a Plan,
        report: &'a mut Report,
        mistake: Mistake,
    ) -> Self {
        let (judged, links, folders, left_out) = Default::default();
        let groups = Groups::new(geometry);
        Self { image, geometry, groups, plan, report, mistake, judged, links, folders, left_out }
    }

    /// All of it, and the superblock; or what it has to be done without, and why: what was changed is void then.
    pub(crate) fn run(mut self) -> Result<Vec<(LeftOut, String)>, Error> {
        self.judge()?;
        self.reach()?;
        let mut freed = self.files()?;
        freed.extend(self.make_folders()?);
        if self.mistake != Mistake::BitmapsStale {
            for (ino, range) in freed {
                let marked = self.groups.mark(self.image, range, false);
                self.unless_corrupt(marked, LeftOut::Run(ino))?;
            }
        }
        if !self.left_out.is_empty() {
            return Ok(self.left_out);
        }
        let large = self.judged.values().any(|judged| judged.inode.size() > 0x7fff_ffff);
        let (free_blocks, free_inodes) = self.groups.finish(self.image)?;
        superblock::recovered(self.image.edit(0)?, free_blocks, free_inodes, large);
        Ok(Vec::new())
    }

    fn refuse(&mut self, ino: u32, sub_id: u64, why: impl Into<String>) {
        self.report.refused.push(Refused { ino, sub_id, why: why.into() });
    }

    /// What is damaged is left out the next time; every other error is one of all of it.
    fn unless_corrupt(&mut self, done: Result<(), Error>, what: LeftOut) -> Result<(), Error> {
        match done {
            Err(Error::Corrupt(why)) => self.left_out.push((what, why)),
            done => done?,
        }
        Ok(())
    }

    /// The committed inode of that number and generation, if there is one with a name.
    fn committed(&mut self, ino: u32, generation: u32) -> Result<Option<Inode>, Error> {
        if !self.groups.has_inode(self.image, ino)? {
            return Ok(None);
        }
        let inode = Inode::load(self.image, &self.groups, ino)?;
        Ok((inode.generation() == generation && inode.links() > 0).then_some(inode))
    }

    fn judge(&mut self) -> Result<(), Error> {
        let mut newest: Vec<(u32, &Newest)> = self.plan.inodes.iter().map(|(ino, run)| (*ino, run)).collect();
        // Where two want the same block, which no kernel writes, the later one is believed.
        newest.sort_by_key(|(_, run)| std::cmp::Reverse(run.sub_id));
        let mut claimed = BTreeMap::new();
        for (ino, run) in newest {
            match self.judge_one(ino, run, &mut claimed) {
                Ok(judged) => {
                    self.judged.insert(ino, judged);
                }
                Err(Error::Corrupt(why)) => self.refuse(ino, run.sub_id, why),
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// *Corrupt*: the run, or what it is of, is no such thing.
    fn judge_one(
        &mut self,
        ino: u32,
        run: &Newest,
        claimed: &mut BTreeMap<u64, u64>,
    ) -> Result<Judged, Error> {
        let kind = if run.directory { Kind::Directory } else { Kind::File };
        let root = ino == ROOT_INO && run.directory;
        if ino > self.geometry.inodes || self.geometry.is_own(ino) && !root {
            return corrupt("the inode is the file system's own");
        }
        let mut inode = Inode { ino, raw: run.inode.clone() };
        if inode.raw.len() != self.geometry.inode_bytes {
            return corrupt("the inode has another size");
        }
        if inode.generation() != run.generation || inode.kind() != kind {
            return corrupt("the inode is not what its run is of");
        }
        let in_use = self.groups.has_inode(self.image, ino)?;
        let committed = self.committed(ino, run.generation)?;
        if in_use && committed.as_ref().is_none_or(|inode| inode.kind() != kind) {
            return corrupt("the inode number belongs to another inode");
        }
        // A committed directory stays what it is: its run has entries, and times.
        let stays = run.directory && committed.is_some();
        if !stays && !inode.is_plain() {
            return corrupt("the inode is not mapped by extents");
        }
        if !stays && inode.file_acl() != committed.as_ref().map_or(0, Inode::file_acl) {
            return corrupt("its attributes are in another block");
        }
        let (mut tree, mut taken, mut freed) = (Tree::default(), Vec::new(), Vec::new());
        if !run.directory {
            let before = match &committed {
                Some(inode) if !inode.is_plain() => {
                    return corrupt("the committed inode is not mapped by extents")
                }
                Some(inode) => inode.tree(self.image, self.geometry)?,
                None => Tree::default(),
            };
            let mut fetch = |home: u64| match run.nodes.get(&home) {
                Some(node) => Ok(node.clone()),
                None if before.nodes.contains(&home) => Ok(self.image.get(home)?.to_vec()),
                None => corrupt(format!("block {home} of its tree is neither in the run nor committed")),
            };
            tree = Tree::read(inode.root(), &self.geometry.room, &mut fetch)?;
            if inode.size() > SIZE_MAX {
                return corrupt("it is longer than extents can map");
            }
            if inode.size() < tree.written_end().saturating_sub(1) * 4096 {
                return corrupt("it has data behind its end");
            }
            (taken, freed) =
                (without(&tree.ranges(), &before.ranges()), without(&before.ranges(), &tree.ranges()));
            for range in &taken {
                let overlaps =
                    claimed.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start);
                if overlaps || !self.groups.are_free(self.image, range.clone())? {
                    return corrupt(format!("blocks {}..{} are not free", range.start, range.end));
                }
            }
            claimed.extend(taken.iter().map(|range| (range.start, range.end)));
        }
        inode.keep_orphan(committed.as_ref());
        Ok(Judged { inode, committed, sub_id: run.sub_id, tree, taken, freed })
    }

    /// Follows entries from the directories that are committed.
    fn reach(&mut self) -> Result<(), Error> {
        let is_root = |judged: &&Judged| judged.committed.is_some() && judged.inode.kind() == Kind::Directory;
        let roots = self.judged.values().filter(is_root).map(|judged| (judged.inode.ino, None));
        let mut queue: VecDeque<(u32, Option<Name>)> = roots.collect();
        while let Some((ino, named)) = queue.pop_front() {
            let Some(judged) = self.judged.get(&ino) else { continue };
            let (generation, sub_id) = (judged.inode.generation(), judged.sub_id);
            let entries: Vec<(Vec<u8>, Named)> =
                self.plan.entries_of(ino, generation).map(|(name, named)| (name.to_vec(), named)).collect();
            let present = match judged.committed.clone() {
                Some(inode) => {
                    let names = entries.iter().map(|(name, _)| name.as_slice()).collect();
                    let directory = Directory::load(self.image, self.geometry, inode);
                    match directory.and_then(|directory| directory.lookup(self.image, &names)) {
                        Ok(present) => present,
                        Err(Error::Corrupt(why) | Error::Unsupported(why)) => {
                            self.refuse(ino, sub_id, why);
                            continue;
                        }
                        Err(other) => return Err(other),
                    }
                }
                None => BTreeMap::new(),
            };
            let mut folder = Folder { generation, named, ..Folder::default() };
            for (name, named) in entries {
                match present.get(&name) {
                    Some(&there) if there == named.ino => {}
                    Some(_) => self.refuse(named.ino, named.sub_id, "its name belongs to another inode"),
                    None => {
                        if let Some(kind) = self.child(named)? {
                            *self.links.entry(named.ino).or_default() += 1;
                            if kind == Kind::Directory {
                                folder.subdirectories += 1;
                                queue.push_back((named.ino, Some((ino, generation, name.clone()))));
                            }
                            let file_type = if self.geometry.filetype { named.file_type } else { 0 };
                            folder.added.push(Added { name, ino: named.ino, file_type });
                        }
                    }
                }
            }
            self.folders.push((ino, folder));
        }
        Ok(())
    }

    /// What an entry that is not there yet would name; none: nothing that it may.
    fn child(&mut self, named: Named) -> Result<Option<Kind>, Error> {
        let Named { ino, generation, sub_id, file_type } = named;
        let kind = if file_type == 2 { Kind::Directory } else { Kind::File };
        let found = match self.judged.get(&ino) {
            Some(judged) if judged.inode.generation() == generation => {
                Some((judged.inode.kind(), judged.committed.is_some()))
            }
            Some(_) => None,
            None => match self.committed(ino, generation) {
                Err(Error::Corrupt(why)) => {
                    self.refuse(ino, sub_id, why);
                    return Ok(None);
                }
                committed => committed?.map(|inode| (inode.kind(), true)),
            },
        };
        // The number was given out again, or the file's own run was never written: nothing that anybody was promised.
        let Some((found, committed)) = found else {
            self.report.unreachable += 1;
            return Ok(None);
        };
        let again = kind == Kind::Directory && (committed || self.links.contains_key(&ino));
        if found != kind || again || self.geometry.is_own(ino) {
            self.refuse(ino, sub_id, "its entry names it as what it is not");
            return Ok(None);
        }
        Ok(Some(kind))
    }

    /// Writes files; the blocks that they have no more, and whose they were.
    fn files(&mut self) -> Result<Vec<(u32, Range<u64>)>, Error> {
        let mut freed = Vec::new();
        let judged = std::mem::take(&mut self.judged);
        for (ino, mut judged) in judged {
            let names = self.links.get(&ino).copied().unwrap_or(0);
            let exists = judged.committed.is_some() || names > 0;
            if !exists {
                self.report.unreachable += 1;
                continue;
            }
            if judged.inode.kind() == Kind::File {
                let mut inode = judged.inode.clone();
                inode.set_links(judged.committed.as_ref().map_or(0, Inode::links));
                if self.takes_names(&mut inode, names)? {
                    let done = self.file(inode, &judged);
                    self.unless_corrupt(done, LeftOut::Run(ino))?;
                }
                freed.extend(judged.freed.drain(..).map(|range| (ino, range)));
            }
            self.judged.insert(ino, judged);
        }
        // A committed file that has another name, and no run.
        for (ino, names) in self.links.clone() {
            if !self.judged.contains_key(&ino) {
                let mut inode = Inode::load(self.image, &self.groups, ino)?;
                if self.takes_names(&mut inode, names)? {
                    inode.store(self.image, &self.groups, self.geometry)?;
                }
            }
        }
        Ok(freed)
    }

    /// Gives a file so many names more; where it would have too many, those that are too many are left out.
    fn takes_names(&mut self, inode: &mut Inode, names: u32) -> Result<bool, Error> {
        let room = inode.links_left() as usize;
        let Err(Error::Corrupt(why)) = inode.add_links(names, false) else { return Ok(true) };
        let all = self.folders.iter().flat_map(|(ino, folder)| {
            folder.added.iter().map(|added| (added.ino, (*ino, folder.generation, added.name.clone())))
        });
        let its = all.filter(|(ino, _)| *ino == inode.ino).map(|(_, name)| LeftOut::Name(name));
        let mut many: Vec<LeftOut> = its.skip(room).collect();
        if many.is_empty() {
            many.push(LeftOut::Run(inode.ino));
        }
        self.left_out.extend(many.into_iter().map(|what| (what, why.clone())));
        Ok(false)
    }

    /// Writes one file.
    fn file(&mut self, mut inode: Inode, judged: &Judged) -> Result<(), Error> {
        if self.mistake != Mistake::BitmapsStale {
            for range in &judged.taken {
                self.groups.mark(self.image, range.clone(), true)?;
            }
        }
        self.nodes(judged)?;
        let blocks = judged.tree.blocks() + u64::from(inode.file_acl() != 0);
        inode.set_blocks(blocks, self.geometry)?;
        if judged.committed.is_none() {
            self.groups.take_inode(self.image, inode.ino, false)?;
            self.report.created += 1;
        } else {
            self.report.updated += 1;
        }
        inode.store(self.image, &self.groups, self.geometry)
    }

    /// The blocks of a file's tree that its run brought.
    fn nodes(&mut self, judged: &Judged) -> Result<(), Error> {
        let ino = judged.inode.ino;
        let Some(run) = self.plan.inodes.get(&ino) else { return Ok(()) };
        for &home in &judged.tree.nodes {
            let Some(node) = run.nodes.get(&home) else { continue };
            let mut block = Box::new([0; 4096]);
            block[..node.len()].copy_from_slice(node);
            if let Some(seed) = judged.inode.seed(self.geometry) {
                let sum = crc32c(seed, &block[..NODE_SUM]);
                put32(block.as_mut_slice(), NODE_SUM, sum);
            }
            self.image.put(home, block)?;
        }
        Ok(())
    }

    /// Makes new directories and adds entries; blocks that are not needed any more, and whose they were.
    fn make_folders(&mut self) -> Result<Vec<(u32, Range<u64>)>, Error> {
        let (mut freed, mut missing) = (Vec::new(), BTreeSet::new());
        for (ino, folder) in std::mem::take(&mut self.folders) {
            let Some(judged) = self.judged.get(&ino) else { continue };
            // What is below a directory that is left out is not reached the next time.
            if folder.named.as_ref().is_some_and(|(parent, ..)| missing.contains(parent)) {
                missing.insert(ino);
            }
            if missing.contains(&ino) {
                continue;
            }
            let (logged, committed) = (judged.inode.clone(), judged.committed.clone());
            let mut directory = match (&folder.named, committed) {
                (None, Some(_)) if folder.added.is_empty() => continue,
                (None, Some(committed)) => Directory::load(self.image, self.geometry, committed)?,
                (Some(named), _) => match self.make_folder(logged.clone(), named.0) {
                    Err(Error::Corrupt(why) | Error::Unsupported(why)) => {
                        missing.insert(ino);
                        self.left_out.push((LeftOut::Name(named.clone()), why));
                        continue;
                    }
                    directory => directory?,
                },
                (None, None) => return corrupt("a new directory without a parent was reached"),
            };
            let name = |added: &Added| LeftOut::Name((ino, folder.generation, added.name.clone()));
            let (blocks, mut grown) = (directory.blocks(), None);
            for (i, added) in folder.added.iter().enumerate() {
                match directory.add(self.image, self.geometry, &mut self.groups, added) {
                    Err(Error::Corrupt(why) | Error::Unsupported(why)) => {
                        missing.insert(added.ino);
                        self.left_out.push((name(added), why));
                    }
                    done => done?,
                }
                if directory.blocks() > blocks {
                    grown = grown.or(Some(i));
                }
            }
            self.report.entries += folder.added.len() as u64;
            let (mut inode, spare) = match directory.finish(self.image, self.geometry, &mut self.groups) {
                // The names before the first that made it longer need nothing that it did not have.
                Err(Error::Corrupt(why) | Error::Unsupported(why)) => {
                    let from = &folder.added[grown.unwrap_or(0)..];
                    missing.extend(from.iter().map(|added| added.ino));
                    self.left_out.extend(from.iter().map(|added| (name(added), why.clone())));
                    continue;
                }
                done => done?,
            };
            freed.extend(spare.into_iter().map(|block| (ino, block..block + 1)));
            inode.take_times(&logged);
            let room = inode.links_left() as usize;
            if let Err(Error::Corrupt(why)) = inode.add_links(folder.subdirectories, self.geometry.dir_nlink)
            {
                let is_folder = |added: &&Added| {
                    self.judged.get(&added.ino).is_some_and(|judged| judged.inode.kind() == Kind::Directory)
                };
                let many: Vec<&Added> = folder.added.iter().filter(is_folder).skip(room).collect();
                missing.extend(many.iter().map(|added| added.ino));
                self.left_out.extend(many.iter().map(|added| (name(added), why.clone())));
                continue;
            }
            inode.store(self.image, &self.groups, self.geometry)?;
        }
        Ok(freed)
    }

    /// A new directory, whose number is taken.
    fn make_folder(&mut self, mut inode: Inode, parent: u32) -> Result<Directory, Error> {
        self.groups.take_inode(self.image, inode.ino, true)?;
        self.report.directories += 1;
        inode.set_links(2);
        Directory::create(self.image, self.geometry, &mut self.groups, inode, parent)
    }
}
