//! An ext4 in a file, and what e2fsprogs' `debugfs` can do to it.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use afterimage_lab::locate::system_program;
use afterimage_trace::{Sparse, PAGE_BYTES};
use tempfile::TempDir;

/// The file, and the folder that it goes with.
pub struct Ext4 {
    folder: TempDir,
}

impl Ext4 {
    /// 64 MiB, 4 KiB blocks, with a few files.
    pub fn new() -> Ext4 {
        let ext4 = Ext4 { folder: tempfile::tempdir().unwrap() };
        let content = ext4.folder.path().join("content");
        fs::create_dir_all(content.join("folder")).unwrap();
        for index in 0..40 {
            fs::write(content.join(format!("folder/file{index}")), vec![index; 3000 * index as usize])
                .unwrap();
        }
        fs::File::create(ext4.path()).unwrap().set_len(64 << 20).unwrap();
        let mut make = Command::new(system_program("mke2fs", "e2fsprogs").unwrap());
        make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=0"]);
        run(make.arg("-d").arg(content).arg(ext4.path()));
        ext4
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Runs debugfs commands, one a line, with the file system writable.
    pub fn debugfs(&self, commands: &str) -> String {
        let script = self.folder.path().join("commands");
        fs::write(&script, commands).unwrap();
        let mut debugfs = Command::new(system_program("debugfs", "e2fsprogs").unwrap());
        run(debugfs.args(["-w", "-f"]).arg(script).arg(self.path()))
    }

    /// Makes a committed transaction in the journal that stores `block` in block `number`, as a kernel that died
    /// before it wrote the block in place.
    pub fn journal_block(&self, number: u64, block: &[u8; PAGE_BYTES]) {
        let data = self.folder.path().join("block");
        fs::write(&data, block).unwrap();
        self.debugfs(&format!("jo -c\njw -b {number} {}\njc\n", data.display()));
    }

    /// Gives it an empty journal on a disk of its own instead of the one inside, and returns that disk's file. mke2fs does
    /// this only where the journal is a block device, so the two are acquainted by hand: the file system names the
    /// journal by its UUID (s_journal_uuid), the journal lists its users' (journal_superblock_t, s_users).
    pub fn move_journal(&self) -> PathBuf {
        let journal = self.folder.path().join("journal");
        fs::File::create(&journal).unwrap().set_len(8 << 20).unwrap();
        let mut make = Command::new(system_program("mke2fs", "e2fsprogs").unwrap());
        run(make.args(["-q", "-F", "-b", "4096", "-O", "journal_dev"]).arg(&journal));
        let uuid_at = |path: &Path| fs::read(path).unwrap()[1024 + 104..1024 + 120].to_vec();
        let (user, name) = (uuid_at(&self.path()), uuid_at(&journal));
        let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
        file.write_all_at(&1u32.to_be_bytes(), 4096 + 0x40).unwrap();
        file.write_all_at(&user, 4096 + 0x100).unwrap();
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        let mut tune = Command::new(system_program("tune2fs", "e2fsprogs").unwrap());
        run(tune.args(["-f", "-O", "^has_journal"]).arg(self.path()));
        self.debugfs(&format!("feature has_journal\nset_super_value journal_uuid {uuid}\n"));
        journal
    }

    /// The content.
    pub fn load(&self) -> Arc<Sparse> {
        content(&self.path())
    }
}

/// A file's content.
pub fn content(path: &Path) -> Arc<Sparse> {
    let bytes = fs::read(path).unwrap();
    let mut sparse = Sparse::new(bytes.len() as u64);
    for (index, page) in bytes.chunks(PAGE_BYTES).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            sparse.write_at(page, (index * PAGE_BYTES) as u64);
        }
    }
    Arc::new(sparse)
}

fn run(command: &mut Command) -> String {
    let output = command.env("LC_ALL", "C").output().unwrap();
    let words = crate::check::fsck::words(&output);
    assert!(output.status.success(), "{command:?}: {words}");
    words
}
