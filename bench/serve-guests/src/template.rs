//! Prepared disks: made once on the host by `mke2fs -d`, so that no cell pays for setting up its files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use afterimage_lab::locate;

use crate::catalog::Workload;
use crate::scale::Scale;
use crate::script::MARIADB;
use afterimage_bench_kit::process::run;
use afterimage_bench_kit::{large_file, mariadb, Context, Result};

/// Makes and keeps them, in a folder in memory.
pub struct Templates {
    folder: PathBuf,
    scale: Scale,
    made: BTreeMap<String, PathBuf>,
}

impl Templates {
    /// Nothing is made before it is asked for.
    pub fn new(folder: PathBuf, scale: Scale) -> Templates {
        Templates { folder, scale, made: BTreeMap::new() }
    }

    /// The raw image of a workload's disk.
    ///
    /// # Errors
    /// A program is missing or failed.
    pub fn get(&mut self, workload: Workload) -> Result<PathBuf> {
        let kind = match workload {
            Workload::Randwrite | Workload::Seqwrite => "data",
            Workload::Fsync4k | Workload::Postmark => "empty",
            other => other.name(),
        };
        self.make(kind, |this, tree| this.fill(workload, tree))
    }

    fn make(&mut self, kind: &str, fill: impl FnOnce(&Self, &Path) -> Result<()>) -> Result<PathBuf> {
        if let Some(path) = self.made.get(kind) {
            return Ok(path.clone());
        }
        let tree = self.folder.join(format!("tree-{kind}"));
        fs::create_dir_all(&tree).context(|| format!("make {}", tree.display()))?;
        fill(self, &tree)?;
        let image = self.folder.join(format!("{kind}.img"));
        let mke2fs = locate::system_program("mke2fs", "e2fsprogs")?;
        if self.scale.is_paper() && kind == "data" {
            self.large(&mke2fs, &image)?;
            self.made.insert(kind.to_owned(), image.clone());
            return Ok(image);
        }
        // Everything initialised at once: a guest's lazy initialisation would run through the measurement.
        run(Command::new(mke2fs)
            .args([
                "-q",
                "-F",
                "-t",
                "ext4",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0",
                "-d",
            ])
            .args([&tree, &image])
            .arg(format!("{}k", self.scale.disk_bytes() >> 10)))?;
        fs::remove_dir_all(&tree).context(|| format!("remove {}", tree.display()))?;
        self.made.insert(kind.to_owned(), image.clone());
        Ok(image)
    }

    /// A file of the paper's size: blocks that are there and count as written, and no byte of them.
    fn large(&self, mke2fs: &Path, image: &Path) -> Result<()> {
        let mut mke2fs = Command::new(mke2fs);
        large_file(&mut mke2fs, &self.folder.join("mke2fs.conf"), u64::from(self.scale.file_mib))?;
        run(mke2fs
            .args(["-q", "-F", "-t", "ext4"])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0"])
            .arg(image)
            .arg(format!("{}k", self.scale.disk_bytes() >> 10)))
    }

    fn fill(&self, workload: Workload, tree: &Path) -> Result<()> {
        let scale = &self.scale;
        match workload {
            Workload::Varmail => prepare("varmail", scale.varmail_files, tree),
            Workload::Fileserver => prepare("fileserver", scale.fileserver_files, tree),
            Workload::Webserver => prepare("webserver", scale.webserver_files, tree),
            Workload::Randwrite | Workload::Seqwrite => {
                let path = tree.join("data");
                // Written, not a hole: overwriting must not allocate.
                let bytes: Vec<u8> =
                    (0..scale.file_mib << 20).map(|at| (at / 7 + at % 251) as u8 | 1).collect();
                fs::write(&path, bytes).context(|| format!("write {}", path.display()))
            }
            Workload::Sqlite => run(Command::new(locate::system_program("sqlite3", "sqlite3")?)
                .arg(tree.join("db"))
                .arg("create table t(a integer primary key, b text);")),
            Workload::Oltp => self.database(&tree.join("my")),
            Workload::Postmark | Workload::Fsync4k => Ok(()),
        }
    }

    /// MariaDB's data, with sysbench's table.
    fn database(&self, data: &Path) -> Result<()> {
        mariadb::install(data, &MARIADB[..1])?;
        let server = mariadb::Server::start(data, &self.folder, &MARIADB)?;
        run(server.sysbench("oltp_read_write")?.args([
            "--tables=1",
            &format!("--table-size={}", self.scale.oltp_rows),
            "prepare",
        ]))?;
        server.stop()
    }
}

fn prepare(name: &str, files: u32, tree: &Path) -> Result<()> {
    run(Command::new(locate::own_program("afterimage-agent")?)
        .args(["workload-prepare", name])
        .arg(tree.join("files"))
        .args(["--files", &files.to_string()]))
}
