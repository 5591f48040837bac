//! An ext4 in a file, and what e2fsprogs' `debugfs` can do to it.

use std::fs;
use std::path::PathBuf;
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

    /// The content.
    pub fn load(&self) -> Arc<Sparse> {
        let bytes = fs::read(self.path()).unwrap();
        let mut sparse = Sparse::new(bytes.len() as u64);
        for (index, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                sparse.write_at(page, (index * PAGE_BYTES) as u64);
            }
        }
        Arc::new(sparse)
    }
}

fn run(command: &mut Command) -> String {
    let output = command.env("LC_ALL", "C").output().unwrap();
    let words = crate::check::fsck::words(&output);
    assert!(output.status.success(), "{command:?}: {words}");
    words
}
