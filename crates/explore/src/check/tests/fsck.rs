//! The e2fsck level: what it lets pass, what it finds, and that states do not leak into each other.

use std::sync::Arc;

use afterimage_block::Medium as _;
use afterimage_trace::{Sparse, PAGE_BYTES};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::ext4::Ext4;
use crate::check::fsck::Fsck;
use crate::check::{Checker, Observation};
use crate::state::{Content, Image, Scratch, SECTOR_BYTES};

fn scratch(base: &Arc<Sparse>) -> Arc<Scratch> {
    Arc::new(Scratch::new(Image::digested(0, Arc::clone(base))))
}

/// A number in the block map of the file system, by debugfs' own words: `stats` and `imap`.
fn block_after(words: &str, key: &str) -> u64 {
    let at = words.find(key).unwrap_or_else(|| panic!("no '{key}' in: {words}")) + key.len();
    words[at..]
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap()
}

#[test]
fn a_clean_one_is_sound_and_comes_back() {
    let base = Ext4::new().load();
    let mut fsck = Fsck::new().unwrap();
    for _ in 0..3 {
        assert_eq!(fsck.check(&[scratch(&base)]).unwrap(), Observation::Sound);
    }
}

#[test]
fn a_journal_is_recovered() {
    let ext4 = Ext4::new();
    let clean = ext4.load();
    ext4.journal_block(9000, &[0xAB; PAGE_BYTES]);
    let dirty = ext4.load();
    let mut fsck = Fsck::new().unwrap();
    // From one base to the other and back: what was recovered in one may not be seen in the next.
    for base in [&clean, &dirty, &clean, &dirty] {
        assert_eq!(fsck.check(&[scratch(base)]).unwrap(), Observation::Sound);
    }
    assert!(fsck.restored_pages() > 0);
}

/// A journal that says something else than the block that its file system needs: replayed, and found.
#[test]
fn a_wrong_block_in_the_journal_is_found() {
    let ext4 = Ext4::new();
    let table = block_after(&ext4.debugfs("imap <12>\n"), "located at block");
    ext4.journal_block(table, &[0; PAGE_BYTES]);
    let found = Fsck::new().unwrap().check(&[scratch(&ext4.load())]).unwrap();
    let Observation::Inconsistent { what, evidence } = found else { panic!("{found:?}") };
    assert!(evidence.contains("recovering journal"), "{evidence}");
    assert!(what.contains("more than a crash may leave"), "{what}");
}

#[test]
fn a_lost_inode_table_block_is_found() {
    let ext4 = Ext4::new();
    let table = block_after(&ext4.debugfs("imap <12>\n"), "located at block");
    let base = ext4.load();
    let mut fsck = Fsck::new().unwrap();
    let mut image = Image::digested(0, Arc::clone(&base));
    for sector in table * 8..table * 8 + 8 {
        image.set(sector, Content::ZERO);
    }
    let lost = Arc::new(Scratch::new(image));
    let written = scratch(&base);
    written.zero_at(table * PAGE_BYTES as u64, PAGE_BYTES as u64, false).unwrap();
    let first = fsck.check(&[Arc::clone(&lost)]).unwrap();
    let Observation::Inconsistent { what, .. } = &first else { panic!("{first:?}") };
    assert!(what.contains("more than a crash may leave"), "{what}");
    assert_eq!(fsck.check(&[scratch(&base)]).unwrap(), Observation::Sound, "its repair is gone");
    assert_eq!(fsck.check(&[written]).unwrap(), first, "lost by the crash or by a recovery");
}

#[test]
fn no_file_system_at_all_is_found() {
    let found = Fsck::new().unwrap().check(&[scratch(&Arc::new(Sparse::new(64 << 20)))]).unwrap();
    let Observation::Inconsistent { what, .. } = &found else { panic!("{found:?}") };
    assert!(what.contains("can not open"), "{what}");
}

/// Orphans and the totals in the superblock are what a crash leaves.
#[test]
fn orphans_and_totals_are_no_complaint() {
    let ext4 = Ext4::new();
    let words = ext4.debugfs("stat folder/file5\n");
    let inode = block_after(&words, "Inode:");
    // Unlinked while open: no name, no links, first on the list of orphans; the totals were not written back.
    ext4.debugfs(&format!(
        "unlink folder/file5\nset_inode_field <{inode}> links_count 0\nset_inode_field <{inode}> dtime 0\n\
         set_super_value last_orphan {inode}\nset_super_value free_blocks_count 77\n"
    ));
    assert_eq!(Fsck::new().unwrap().check(&[scratch(&ext4.load())]).unwrap(), Observation::Sound);
    // The same without the list is no crash's doing.
    ext4.debugfs("set_super_value last_orphan 0\n");
    let found = Fsck::new().unwrap().check(&[scratch(&ext4.load())]).unwrap();
    assert!(matches!(found, Observation::Inconsistent { .. }), "{found:?}");
}

/// Names are those after the journal is replayed: of files, of folders, and of the journal itself.
#[test]
fn blocks_have_the_names_of_their_files() {
    let ext4 = Ext4::new();
    let blocks = ext4.debugfs("blocks folder/file9\nblocks folder\nblocks <8>\n");
    let first = |name: &str| block_after(&blocks, &format!("blocks {name}\n"));
    let (file, folder, journal) = (first("folder/file9"), first("folder"), first("<8>"));
    ext4.journal_block(9000, &[1; PAGE_BYTES]);
    let base = ext4.load();
    let names = Fsck::new().unwrap().names(&[scratch(&base)], &[file, folder, journal, 0, 16_000]).unwrap();
    let names: Vec<(u64, &str)> = names.iter().map(|(block, name)| (*block, name.as_str())).collect();
    let mut wanted = [(file, "/folder/file9"), (folder, "/folder"), (journal, "the journal")];
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}

/// After damage at random places the next state is as if nothing had happened.
#[test]
fn damage_does_not_leak() {
    let ext4 = Ext4::new();
    ext4.journal_block(9000, &[1; PAGE_BYTES]);
    let base = ext4.load();
    let mut fsck = Fsck::new().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut bad = 0;
    for _ in 0..30 {
        let mut image = Image::digested(0, Arc::clone(&base));
        for _ in 0..20 {
            image.set(rng.random_range(0..4000), Content::owned(&[rng.random(); SECTOR_BYTES]));
        }
        bad += usize::from(matches!(
            fsck.check(&[Arc::new(Scratch::new(image))]).unwrap(),
            Observation::Inconsistent { .. }
        ));
        assert_eq!(fsck.check(&[scratch(&base)]).unwrap(), Observation::Sound);
    }
    assert!(bad > 10, "{bad}");
}
