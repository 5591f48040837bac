//! Recovery of what debugfs did to real file systems, checked by e2fsck and debugfs.

mod common;

use std::path::Path;

use afterimage_format::ijournal::*;
use afterimage_ijournal::{recover, recover_disk, recover_with, Error, Mistake, Report, Storage};
use common::*;

const OPTIONS: [(&str, &[&str]); 7] = [
    ("with unsigned hashes", &["unsigned"]),
    ("as mke2fs makes it", &[]),
    ("without checksums", &["-O", "^metadata_csum,^64bit"]),
    ("with checksums of descriptors", &["-O", "^metadata_csum,uninit_bg,^64bit"]),
    ("with small inodes, without flex_bg", &["-I", "128", "-O", "^flex_bg", "-g", "8192"]),
    (
        "with a seed, two backups, and TEA",
        &["-O", "metadata_csum_seed,sparse_super2", "tune2fs", "-E", "hash_alg=tea"],
    ),
    ("whose journal bears the UUID that it had before", &["tune2fs", "-U", "random"]),
];

fn base(options: &[&str]) -> Disk {
    let mut files = vec![("kept", pattern(1, 30_000)), ("folder/old", pattern(2, 100_000))];
    files.push(("folder/deep/leaf", pattern(3, 5)));
    Disk::mkfs(24, options, &files)
}

/// A new file with that content, in debugfs's words.
fn write(disk: &mut Disk, path: &str, content: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    disk.debugfs(&[format!("write {} /{path}", file.path().display())]);
}

fn recovered(disk: &Disk) -> (Disk, Report) {
    let mut disk = disk.clone();
    let report = recover(&mut disk, 0).unwrap();
    assert_eq!(report.refused, []);
    (disk.checked("recovered"), report)
}

/// What was fsynced is there, and nothing else is different.
#[track_caller]
fn assert_recovers(writer: &Writer, committed: &Disk, running: &Disk, fsynced: &[&str]) -> Report {
    let (disk, report) = recovered(&writer.disk);
    let (expected, found) = (expected(committed, running, fsynced), disk.tree());
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(found == expected, "content differs");
    let mut again = disk.clone();
    assert!(!recover(&mut again, 0).unwrap().had_bit);
    assert!(again == disk, "a second recovery changes something");
    report
}

#[test]
fn what_was_fsynced_is_there_and_nothing_else_changes() {
    for (name, options) in OPTIONS {
        let committed = base(options);
        let mut running = committed.clone();
        running.debugfs(&["mkdir /new".into(), "mkdir /new/sub".into(), "mkdir /lost".into()]);
        for (i, path) in ["a", "new/sub/b", "lost/c", "folder/deep/d", "folder/e"].iter().enumerate() {
            write(&mut running, path, &pattern(10 + i as u64, 3000 * (i + 1)));
        }
        let mut writer = Writer::new(committed.clone());
        for (i, path) in ["a", "new/sub/b", "folder/deep/d"].iter().enumerate() {
            writer.fsync(&running, path, true, 1, i as u32 % AREAS);
        }
        let report = assert_recovers(&writer, &committed, &running, &["a", "new/sub/b", "folder/deep/d"]);
        let counts = (report.valid, report.created, report.directories, report.entries);
        assert_eq!(counts, (8, 3, 2, 5), "{name}: {report}");
    }
}

/// The paper's first scenario: 1000 files, of which the odd ones are fsynced, here in a directory with an index that has to be split.
#[test]
fn odd_ones_of_many_files() {
    for (name, options) in OPTIONS {
        let old: Vec<(String, Vec<u8>)> =
            (0..600).map(|i| (format!("many/old file with a long name {i}"), vec![i as u8; 10])).collect();
        let files: Vec<(&str, Vec<u8>)> =
            old.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
        let mut committed = Disk::mkfs(24, options, &files);
        committed.leave_a_leafs_tail("many");
        let committed = committed.checked("indexed as by a kernel");
        let mut running = committed.clone();
        let content = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(content.path(), b"some content").unwrap();
        let names: Vec<String> = (0..120).map(|i| format!("many/fr\u{e9}sh one {i}")).collect();
        let words: Vec<String> =
            names.iter().map(|name| format!("write {} \"/{name}\"", content.path().display())).collect();
        running.debugfs(&words);
        let mut writer = Writer::new(committed.clone());
        let directory = running.ino("many");
        let mut fsynced = Vec::new();
        // One run has the entries of all: an area of the tests is small.
        let (id, mut inos) = (writer.id(), Vec::new());
        let mut run = RunBuilder::new(KIND_DIRECTORY, directory, running.inode(directory), 1, id);
        let said = running.ask("ls -p /many");
        for name in names.iter().skip(1).step_by(2) {
            let file = name.strip_prefix("many/").unwrap();
            let line = said.lines().find(|line| line.contains(&format!("/{file}/"))).unwrap();
            let ino: u32 = line.split('/').nth(1).unwrap().parse().unwrap();
            run = run.entry(ino, u32_at(running.inode(ino), 100), 1, file.as_bytes());
            inos.push(ino);
            fsynced.push(name.as_str());
        }
        writer.put(run, 0);
        for (i, ino) in inos.into_iter().enumerate() {
            let data = u32_at(running.inode(ino), 0x28 + 12 + 8) as usize * 4096;
            writer.disk.0[data..data + 4096].copy_from_slice(&running.0[data..data + 4096]);
            let run = writer.file_run(&running, ino, 1);
            writer.put(run, i as u32 % AREAS);
        }
        let report = assert_recovers(&writer, &committed, &running, &fsynced);
        assert_eq!((report.created, report.entries), (60, 60), "{name}");
    }
}

/// The second: external extent blocks, some of which are committed and some not; truncated ones, too.
#[test]
fn extent_blocks_that_came_and_went() {
    for (name, options) in OPTIONS {
        let mut committed =
            Disk::mkfs(24, options, &[("large", pattern(1, 3_000_000)), ("small", pattern(2, 40_960))]);
        let punch = |path: &str, range: std::ops::Range<u32>| -> Vec<String> {
            range.step_by(2).map(|block| format!("punch /{path} {block} {block}")).collect()
        };
        committed.debugfs(&punch("large", 0..700));
        let committed = committed.checked("with holes");
        let mut running = committed.clone();
        // Nothing is freed before something is taken: what this transaction frees nobody gets from it.
        let mut words = vec!["fallocate /large 733 900".to_owned()];
        words.extend(punch("small", 1..9));
        words.push("punch /large 0 400".into());
        running.debugfs(&words);
        let mut writer = Writer::new(committed.clone());
        writer.fsync(&running, "large", false, 1, 0);
        writer.fsync(&running, "small", false, 1, 1);
        let report = assert_recovers(&writer, &committed, &running, &["large", "small"]);
        assert_eq!(report.updated, 2, "{name}");
    }
}

fn two_versions() -> (Disk, Disk, Disk, Writer) {
    let committed = base(&[]);
    let mut older = committed.clone();
    older.debugfs(&["punch /folder/old 20 24".into()]);
    let mut newer = older.clone();
    newer.debugfs(&["punch /folder/old 3 9".into(), "fallocate /folder/old 30 40".into()]);
    // The newer one is in the area that is read first.
    let mut writer = Writer::new(committed.clone());
    let ino = newer.ino("folder/old");
    let (first, second) = (writer.file_run(&older, ino, 1), writer.file_run(&newer, ino, 1));
    writer.put(second, 0);
    writer.put(first, 1);
    (committed, older, newer, writer)
}

#[test]
fn the_newest_run_of_an_inode_counts_wherever_it_is() {
    let (committed, _, newer, writer) = two_versions();
    assert_recovers(&writer, &committed, &newer, &["folder/old"]);
    let mut wrong = writer.disk;
    recover_with(&mut wrong, 0, Mistake::OrderDropped).unwrap();
    assert!(wrong.tree() != expected(&committed, &newer, &["folder/old"]), "the canary lives");
}

#[test]
fn a_torn_run_and_one_of_another_epoch_never_happened() {
    let (committed, older, newer, mut writer) = two_versions();
    let ino = newer.ino("folder/old");
    let mut stale = writer.clone();
    let run = stale.file_run(&committed, ino, 1);
    let home = stale.put(run, 0);
    let at = home as usize * 4096;
    stale.disk.0[at + 20] ^= 1;
    let (disk, report) = recovered(&stale.disk);
    assert_eq!((report.valid, report.torn), (2, 0), "another epoch");
    assert!(disk.tree() == expected(&committed, &newer, &["folder/old"]));

    let run = writer.file_run(&older, ino, 1);
    let home = writer.put(run, 0);
    let at = home as usize * 4096;
    writer.disk.0[at + 3000] ^= 1;
    let (disk, report) = recovered(&writer.disk);
    assert_eq!((report.valid, report.torn), (2, 1));
    assert!(disk.tree() == expected(&committed, &newer, &["folder/old"]));
    recover_with(&mut writer.disk, 0, Mistake::ChecksumIgnored).unwrap();
    assert!(writer.disk.tree() != expected(&committed, &newer, &["folder/old"]), "the canary lives");
}

#[test]
fn without_a_directorys_run_its_file_is_not_found() {
    let committed = base(&[]);
    let mut running = committed.clone();
    running.debugfs(&["mkdir /new".into()]);
    write(&mut running, "new/file", &pattern(7, 9000));
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "new/file", true, 1, 0);
    assert_recovers(&writer, &committed, &running, &["new/file"]);
    let mut wrong = writer.disk.clone();
    recover_with(&mut wrong, 0, Mistake::DirectorySkipped).unwrap();
    assert!(wrong.tree() == committed.tree(), "the canary lives");
    let mut wrong = writer.disk;
    recover_with(&mut wrong, 0, Mistake::BitmapsStale).unwrap();
    assert!(wrong.check().is_err(), "the canary lives");
}

/// Transactions are compared modulo 2^32, and those that the journal holds are left alone.
#[test]
fn what_the_journal_holds_is_not_done_again() {
    let (committed, _, newer, writer) = two_versions();
    let ino = newer.ino("folder/old");
    for (sequence, tid, valid) in
        [(5, 4, 0), (5, 5, 1), (5, 6, 1), (u32::MAX, 0, 1), (0, u32::MAX, 0), (2, u32::MAX, 0)]
    {
        let mut writer = writer.clone();
        writer.next = [0; 2];
        for area in 0..AREAS {
            // Over the two that were there.
            let run = writer.file_run(&newer, ino, tid);
            writer.put(run, area);
        }
        let first = Areas::new(AREAS, AREA_BLOCKS, EPOCH, tid.min(sequence).wrapping_sub(1000));
        set_first(&mut writer.disk, &first);
        set_sequence(&mut writer.disk, sequence);
        let (disk, report) = recovered(&writer.disk);
        assert_eq!(report.valid, 2 * valid, "sequence {sequence}, tid {tid}");
        let fsynced: &[&str] = if valid == 1 { &["folder/old"] } else { &[] };
        assert!(disk.tree() == expected(&committed, &newer, fsynced), "sequence {sequence}, tid {tid}");
    }
}

fn set_first(disk: &mut Disk, areas: &Areas) {
    use zerocopy::IntoBytes as _;
    let at = disk.0.chunks(4096).position(|block| block.starts_with(&AREAS_MAGIC)).unwrap() * 4096;
    disk.0[at..at + 4096].copy_from_slice(areas.as_bytes());
}

/// `s_sequence` of an empty journal.
fn set_sequence(disk: &mut Disk, sequence: u32) {
    let magic = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let at = disk.0.chunks(4096).position(|block| block.starts_with(&magic)).unwrap() * 4096;
    let sb = &mut disk.0[at..at + 1024];
    sb[0x18..0x1C].copy_from_slice(&sequence.to_be_bytes());
    if sb[0x2B] & 0x18 != 0 {
        sb[0xFC..0x100].fill(0);
        let sum = !crc32c::crc32c_append(0, sb);
        sb[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A file that was fsynced and removed, and another one in its place under the same number.
#[test]
fn a_number_that_was_given_out_again() {
    let committed = base(&[]);
    let mut running = committed.clone();
    write(&mut running, "first", &pattern(1, 9000));
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "first", true, 1, 0);
    let ino = running.ino("first");
    running.debugfs(&["rm /first".into()]);
    write(&mut running, "second", &pattern(2, 5000));
    assert_eq!(running.ino("second"), ino, "debugfs takes the first that is free");
    running.debugfs(&[format!("sif <{ino}> generation 0x12345678")]);
    writer.fsync(&running, "second", true, 1, 1);
    let (disk, report) = recovered(&writer.disk);
    assert_eq!((report.created, report.unreachable), (1, 1));
    assert!(disk.tree() == expected(&committed, &running, &["second"]));
}

/// What was committed of one file is damaged: the others are recovered, and it is named.
#[test]
fn a_damaged_extent_block_costs_its_own_file_only() {
    let mut committed =
        Disk::mkfs(24, &[], &[("large", pattern(1, 3_000_000)), ("kept", pattern(2, 40_960))]);
    committed.debugfs(&(0..700).step_by(2).map(|n| format!("punch /large {n} {n}")).collect::<Vec<_>>());
    let committed = committed.checked("with holes");
    let mut running = committed.clone();
    write(&mut running, "a", &pattern(3, 9000));
    running.debugfs(&["fallocate /large 733 740".into()]);
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "large", false, 1, 0);
    writer.fsync(&running, "a", true, 1, 1);
    let ino = committed.ino("large");
    let node = u32_at(committed.inode(ino), 0x28 + 12 + 4) as usize * 4096;
    writer.disk.0[node + 12 + 12 * 300] ^= 1;
    let report = recover(&mut writer.disk, 0).unwrap();
    let refused: Vec<u32> = report.refused.iter().map(|refused| refused.ino).collect();
    assert_eq!((report.valid, report.created, refused), (3, 1, vec![ino]), "{report}");
    assert!(report.refused[0].why.contains("checksum"), "{report}");
    assert!(!recover(&mut writer.disk, 0).unwrap().had_bit);
    assert!(writer.disk.ask("cat /a").into_bytes().ends_with(&pattern(3, 9000)), "another content");
}

/// Of which a part cannot be read.
struct Unreadable(Disk, std::ops::Range<usize>);

impl Storage for Unreadable {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        if (offset as usize) < self.1.end && self.1.start < offset as usize + buf.len() {
            return Err(std::io::ErrorKind::Other.into());
        }
        self.0.read_at(buf, offset)
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A file system that cannot be recovered keeps no other one of the disk from it, and is named.
#[test]
fn a_damaged_file_system_costs_itself_only() {
    let committed = base(&[]);
    let mut running = committed.clone();
    write(&mut running, "a", &pattern(4, 9000));
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "a", true, 1, 0);
    // Two partitions of an MBR; the first one cannot be read.
    let (bytes, first) = (writer.disk.0.len(), 1 << 20);
    let mut disk = Disk(vec![0; first + 2 * bytes]);
    disk.0[510..512].copy_from_slice(&[0x55, 0xaa]);
    for n in 0..2 {
        let at = first + n * bytes;
        let entry = &mut disk.0[446 + 16 * n..446 + 16 * (n + 1)];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&(at as u32 / 512).to_le_bytes());
        entry[12..16].copy_from_slice(&(bytes as u32 / 512).to_le_bytes());
        disk.0[at..at + bytes].copy_from_slice(&writer.disk.0);
    }
    let mut disk = Unreadable(disk, first..first + 65536);
    let done = recover_disk(&mut disk).unwrap();
    let places: Vec<(u64, bool)> = done.iter().map(|(start, report)| (*start, report.is_ok())).collect();
    assert_eq!(places, [(first as u64, false), ((first + bytes) as u64, true)], "{done:?}");
    let second = Disk(disk.0 .0.split_off(first + bytes)).checked("the second one");
    assert!(second.ask("cat /a").into_bytes().ends_with(&pattern(4, 9000)), "another content");
}

/// A bitmap that does not agree with its checksum: nothing of its group can be changed, which is known for some runs only when they are written.
#[test]
fn a_damaged_bitmap_costs_its_own_groups_runs_only() {
    let committed =
        Disk::mkfs(24, &["-g", "2048"], &[("small", pattern(1, 81_920)), ("kept", pattern(2, 5))]);
    let mut running = committed.clone();
    running.debugfs(&["punch /small 3 9".into(), "sif /kept mtime @0x12345678".into()]);
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "small", false, 1, 0);
    writer.fsync(&running, "kept", false, 1, 1);
    let block = u32_at(committed.inode(committed.ino("small")), 0x28 + 12 + 8);
    let group = block as usize / 2048;
    let descriptor = 4096 + group * usize::from(u16_at(&committed.0[1024..], 0xFE));
    let bitmap = u32_at(&committed.0, descriptor) as usize * 4096;
    writer.disk.0[bitmap + 200] ^= 1;
    let report = recover(&mut writer.disk, 0).unwrap();
    let refused: Vec<u32> = report.refused.iter().map(|refused| refused.ino).collect();
    assert_eq!((report.updated, refused), (1, vec![committed.ino("small")]), "{report}");
    assert!(report.refused[0].why.contains("bitmap"), "{report}");
    assert_eq!(u32_at(writer.disk.inode(committed.ino("kept")), 0x10), 0x1234_5678);
    assert!(!recover(&mut writer.disk, 0).unwrap().had_bit);
}

/// Names that are too many for a file are left out; the others, and all else, are there.
#[test]
fn names_that_are_too_many_for_a_file_are_left_out() {
    let mut committed = base(&[]);
    committed.debugfs(&["sif /kept links_count 64999".into()]);
    let mut running = committed.clone();
    write(&mut running, "a", &pattern(1, 9000));
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "a", true, 1, 0);
    let (ino, id) = (committed.ino("kept"), writer.id());
    let mut run = RunBuilder::new(KIND_DIRECTORY, 2, running.inode(2), 1, id);
    for name in ["x", "y", "z"] {
        run = run.entry(ino, u32_at(committed.inode(ino), 100), 1, name.as_bytes());
    }
    writer.put(run, 1);
    let report = recover(&mut writer.disk, 0).unwrap();
    assert_eq!((report.created, report.entries, report.refused.len()), (1, 2, 2), "{report}");
    for refused in &report.refused {
        assert!(refused.ino == ino && refused.why.contains("65002 links"), "{report}");
    }
    let tree = writer.disk.tree();
    assert!(
        tree.contains_key(Path::new("a"))
            && tree.contains_key(Path::new("x"))
            && !tree.contains_key(Path::new("y"))
    );
    assert_eq!(u16_at(writer.disk.inode(ino), 0x1A), 65000);
}

/// A directory's flag for journaled data is for what is made in it: the root has it, and a new folder inherits it.
#[test]
fn directories_that_hand_on_journaled_data() {
    let mut committed = base(&[]);
    committed.debugfs(&["sif / flags 0x84000".into()]);
    let committed = committed.checked("with the attribute j");
    let mut running = committed.clone();
    running.debugfs(&["mkdir /new".into(), "sif /new flags 0x84000".into()]);
    write(&mut running, "a", &pattern(1, 9000));
    write(&mut running, "new/b", &pattern(2, 9000));
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "a", true, 1, 0);
    writer.fsync(&running, "new/b", true, 1, 1);
    assert_recovers(&writer, &committed, &running, &["a", "new/b"]);
    let (disk, _) = recovered(&writer.disk);
    for path in ["", "new"] {
        assert_eq!(u32_at(disk.inode(disk.ino(path)), 0x20), 0x84000, "/{path}");
    }
    // A file that has it has data in the journal.
    running.debugfs(&["sif /a flags 0x84000".into()]);
    writer.fsync(&running, "a", true, 1, 0);
    let report = recover(&mut writer.disk, 0).unwrap();
    assert_eq!(report.refused.len(), 1, "{report}");
}

/// A member of an md array (0.90) is known by twelve bytes, where a file system that fills its device has blocks of files.
#[test]
fn file_data_that_looks_like_a_layer_refuses_nothing() {
    let mut committed = base(&[]);
    let at = committed.0.len() / 65536 * 65536 - 65536;
    assert!(committed.0[at..][..4096].iter().all(|byte| *byte == 0), "nobody's block");
    for (n, word) in [0xa92b_4efc_u32, 0, 90].into_iter().enumerate() {
        committed.0[at + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
    }
    let mut running = committed.clone();
    write(&mut running, "a", &pattern(1, 9000));
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "a", true, 1, 0);
    assert_recovers(&writer, &committed, &running, &["a"]);
}

/// What a run says of a committed directory, but for entries and times, is not done: nor is it a reason to leave its entries out.
#[test]
fn a_committed_directory_keeps_its_attributes_and_flags() {
    let committed = base(&[]);
    let mut running = committed.clone();
    write(&mut running, "folder/new", &pattern(1, 9000));
    let value = "x".repeat(200);
    running.debugfs(&[
        format!("ea_set /folder user.a {value}"),
        "sif /folder flags 0x40080000".into(),
        "sif /folder mtime @0x12345678".into(),
    ]);
    assert_ne!(u32_at(running.inode(running.ino("folder")), 0x68), 0, "a block for attributes");
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "folder/new", true, 1, 0);
    assert_recovers(&writer, &committed, &running, &["folder/new"]);
    let (disk, _) = recovered(&writer.disk);
    let (is, was) = (disk.inode(disk.ino("folder")), committed.inode(committed.ino("folder")));
    assert_eq!((u32_at(is, 0x68), u32_at(is, 0x20)), (0, u32_at(was, 0x20)));
    assert_eq!(u32_at(is, 0x10), 0x1234_5678, "its time");
}

/// e2fsck replays no journal of a file system that has i-transactions. Asked to repair what is safe, it notes in the superblock that it was there.
#[test]
fn e2fsck_refuses_the_bit() {
    let (committed, _, running, writer) = two_versions();
    for (option, status) in [("-fn", 12), ("-fy", 12), ("-p", 4)] {
        let mut disk = writer.disk.clone();
        disk.as_file(|image| {
            let output = std::process::Command::new("e2fsck").args([option, image]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(status), "{option}: {said}");
            assert!(said.contains("unknown incompatible feature flag"), "{option}: {said}");
        });
        assert!(disk.0[2048..] == writer.disk.0[2048..], "{option}");
        assert!(option == "-p" || disk == writer.disk, "{option}");
        let mut checked = writer.clone();
        checked.disk = disk;
        assert_recovers(&checked, &committed, &running, &["folder/old"]);
    }
}

/// What reads the file system's superblock alone, as GRUB does, has no reason to refuse; debugfs' replay has.
#[test]
fn only_those_who_read_the_journal_see_the_bit() {
    let (_, _, _, mut writer) = two_versions();
    writer.disk.as_file(|image| {
        let run = |program: &str, arguments: &[&str]| {
            let output = std::process::Command::new(program).args(arguments).arg(image).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        };
        for (program, arguments) in [("dumpe2fs", &["-h"][..]), ("tune2fs", &["-l"]), ("blkid", &["-p"])] {
            let (done, said) = run(program, arguments);
            assert!(done, "{program}: {said}");
        }
        let (_, said) = run("debugfs", &["-w", "-R", "jr"]);
        assert!(said.contains("unsupported feature"), "{said}");
    });
}

/// A kernel part from before the bit's move had it in the file system's superblock.
#[test]
fn a_file_system_that_an_older_kernel_part_left_is_recovered() {
    let (committed, _, running, mut writer) = two_versions();
    let mut disk = committed.clone();
    // All that was written, but for the journal's superblock.
    let journal = disk.journal_superblock();
    let kept = disk.block(journal).to_vec();
    disk.0.clone_from(&writer.disk.0);
    disk.put(journal, &kept);
    assert!(!afterimage_ijournal::is_needed(&mut disk, 0).unwrap());
    disk.set_incompat(INCOMPAT_IJOURNAL);
    assert!(afterimage_ijournal::is_needed(&mut disk, 0).unwrap());
    writer.disk = disk;
    assert_recovers(&writer, &committed, &running, &["folder/old"]);
}

/// Another host that has the file system writes another number into its block of multi-mount protection again and again.
struct Shared {
    disk: Disk,
    block: usize,
    /// What the other host does while recovery waits.
    other: fn(u32) -> u32,
    waited: u32,
}

impl Storage for Shared {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.disk.read_at(buf, offset)
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.disk.write_at(buf, offset)
    }

    fn wait(&mut self, time: std::time::Duration) -> std::io::Result<()> {
        assert!((11..=120).contains(&time.as_secs()), "{time:?}");
        self.waited += 1;
        let sequence = u32_at(&self.disk.0, self.block + 4);
        self.disk.set_mmp(self.block, (self.other)(sequence));
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What is mounted elsewhere is left alone; what was left by a host that died is taken after a while; and it is given back.
#[test]
fn multi_mount_protection_is_heeded() {
    const CLEAN: u32 = 0xFF4D_4D50;
    let committed = Disk::mkfs(16, &["-O", "mmp"], &[("kept", pattern(1, 30_000))]);
    let block = u32_at(&committed.0[1024..2048], 0x168) as usize * 4096;
    assert_eq!(u32_at(&committed.0, block), 0x004D_4D50);
    let mut running = committed.clone();
    running.debugfs(&["write /etc/passwd /a".into()]);
    let mut writer = Writer::new(committed);
    writer.fsync(&running, "a", true, 1, 0);
    let left = |sequence, other: fn(u32) -> u32| {
        let mut disk = writer.disk.clone();
        disk.set_mmp(block, sequence);
        Shared { disk, block, other, waited: 0 }
    };
    for (sequence, other, why) in [
        (7, (|seen| seen + 1) as fn(u32) -> u32, "another host"),
        // It comes while recovery claims it.
        (7, |seen| if seen == 7 { 7 } else { 8 }, "another host"),
        (0xE24D_4D50, |seen| seen, "e2fsck"),
    ] {
        let mut shared = left(sequence, other);
        let error = recover(&mut shared, 0).unwrap_err();
        assert!(matches!(error, Error::InUse(_)) && error.to_string().contains(why), "{error}");
        let ours = shared.block..shared.block + 4096;
        shared.disk.0[ours.clone()].copy_from_slice(&writer.disk.0[ours]);
        assert!(shared.disk == writer.disk, "nothing else was changed");
    }
    for (sequence, waited) in [(7, 2), (CLEAN, 0)] {
        let mut shared = left(sequence, |seen| seen);
        assert_eq!(recover(&mut shared, 0).unwrap().created, 1);
        assert_eq!((u32_at(&shared.disk.0, block + 4), shared.waited), (CLEAN, waited));
        shared.disk.checked("after recovery");
    }
}

/// `/full` is exactly one block long, and so many of the file system's are free.
fn without_room(free: u64) -> Disk {
    let mut names: Vec<String> = (0..15).map(|i| format!("full/{i:x>255}")).collect();
    names.push(format!("full/{:x>104}", "z"));
    let mut files: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (name.as_str(), Vec::new())).collect();
    files.extend([("kept", pattern(1, 30_000)), ("folder/old", pattern(2, 100_000))]);
    let options = ["-O", "^metadata_csum,^64bit,^dir_index,^resize_inode"];
    let mut disk = Disk::mkfs(24, &options, &files);
    // What the filler's own tree takes is not free either.
    let mut filler = free_blocks(&disk) - free;
    let empty = disk.clone();
    loop {
        disk.debugfs(&["write /dev/null filler".into(), format!("fallocate filler 0 {}", filler - 1)]);
        match free_blocks(&disk) {
            left if left == free => return disk.checked("filled"),
            left => filler = filler + left - free,
        }
        disk = empty.clone();
    }
}

fn free_blocks(disk: &Disk) -> u64 {
    u32_at(&disk.0[1024..2048], 0xC).into()
}

/// What a full file system has no block for is left out and named; the rest is there.
#[test]
fn a_full_file_system_is_recovered() {
    for new in [false, true] {
        let committed = without_room(0);
        let mut running = committed.clone();
        running.debugfs(&["punch /folder/old 3 9".into()]);
        let path = if new {
            running.debugfs(&["punch filler 0 9".into(), "mkdir new".into(), "mkdir new/sub".into()]);
            running.debugfs(&["write /dev/null new/sub/fresh".into()]);
            "new/sub/fresh"
        } else {
            // Into the place of a name that is there as long as its removal is not committed.
            let gone = format!("rm full/{:x>104}", "z");
            let words = ["write /dev/null fresh", &gone, "ln fresh full/fresh", "unlink fresh"];
            running.debugfs(&words.map(String::from));
            "full/fresh"
        };
        let mut writer = Writer::new(committed.clone());
        writer.fsync(&running, path, true, 1, 0);
        writer.fsync(&running, "folder/old", false, 1, 1);
        let mut disk = writer.disk.clone();
        let report = recover(&mut disk, 0).unwrap();
        let disk = disk.checked("recovered");
        assert!(disk.tree() == expected(&committed, &running, &["folder/old"]), "{report}");
        let refused: Vec<u32> = report.refused.iter().map(|refused| refused.ino).collect();
        assert_eq!(refused, [running.ino(if new { "new" } else { path })], "{report}");
        assert_eq!((report.updated, report.created, report.directories), (1, 0, 0), "{report}");
        assert!(report.to_string().contains("cannot take its name: there is no room"), "{report}");
        let mut again = writer.disk;
        assert_eq!(recover(&mut again, 0).unwrap(), report);
        assert!(again == disk, "not the same bytes");
    }
}

/// One block is free, and a directory that gets it would need another for its tree: what fits without is there.
#[test]
fn a_directorys_tree_has_no_room() {
    let block = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(block.path(), pattern(5, 4096)).unwrap();
    let mut committed = without_room(12);
    let mut words = Vec::new();
    for i in 0..3 {
        // The block behind the directory's last is taken by another.
        words.extend((0..15).map(|name| format!("write /dev/null full/{i}{name:y>254}")));
        words.push(format!("write {} gap{i}", block.path().display()));
    }
    committed.debugfs(&words);
    committed.debugfs(&["write /dev/null rest".into(), "fallocate rest 0 4".into()]);
    let committed = committed.checked("in four pieces");
    assert_eq!(free_blocks(&committed), 1);
    let mut running = committed.clone();
    let long = format!("full/{:z>255}", "");
    let (fits, grows) = ("write /dev/null full/fits", format!("write /dev/null {long}"));
    running.debugfs(&["punch filler 0 9".into(), fits.into(), grows]);
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "full/fits", true, 1, 0);
    writer.fsync(&running, &long, true, 1, 1);
    let mut disk = writer.disk;
    let report = recover(&mut disk, 0).unwrap();
    let disk = disk.checked("recovered");
    assert!(disk.tree() == expected(&committed, &running, &["full/fits"]), "{report}");
    let refused: Vec<u32> = report.refused.iter().map(|refused| refused.ino).collect();
    assert_eq!(refused, [running.ino(&long)], "{report}");
}
