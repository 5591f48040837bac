//! Prepared disks: made once on the host by `mke2fs -d`, so that no cell pays for setting up its files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use afterimage_lab::locate;

use crate::catalog::Workload;
use crate::scale::Scale;
use crate::script::MARIADB;
use afterimage_bench_kit::process::run;
use afterimage_bench_kit::{large_file, BenchError, Context, Result};

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
    fn database(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).context(|| format!("make {}", folder.display()))?;
        let install = locate::system_program("mariadb-install-db", "mariadb-server")?;
        run(Command::new(install)
            .args([
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--user=root",
            ])
            .args(["--innodb-log-file-size=24M", "--innodb-data-file-path=ibdata1:12M:autoextend"])
            .arg(format!("--datadir={}", folder.display())))?;
        let socket = self.folder.join("my.sock");
        let mut server = Server::start(folder, &socket, &self.folder.join("my.log"))?;
        let mut client = Command::new(locate::system_program("mariadb", "mariadb-client")?);
        client
            .args(["--no-defaults", "-S"])
            .arg(&socket)
            .args(["-e", "create database if not exists sbtest"]);
        let mut sysbench = Command::new(locate::system_program("sysbench", "sysbench")?);
        sysbench
            .args(["oltp_read_write", "--db-driver=mysql", "--mysql-user=root", "--tables=1"])
            .arg(format!("--mysql-socket={}", socket.display()))
            .arg(format!("--table-size={}", self.scale.oltp_rows))
            .arg("prepare");
        run(&mut client)?;
        run(&mut sysbench)?;
        server.stop()
    }
}

/// A database server on the host, ended when dropped.
struct Server {
    child: Child,
}

impl Server {
    fn start(data: &Path, socket: &Path, log: &Path) -> Result<Server> {
        let program = locate::system_program("mariadbd", "mariadb-server")?;
        let log_file = fs::File::create(log).context(|| format!("create {}", log.display()))?;
        let errors = log_file.try_clone().context(|| "duplicate a descriptor".to_owned())?;
        let child = Command::new(program)
            .args(MARIADB.split_whitespace())
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--pid-file={}.pid", socket.display()))
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(errors)
            .spawn()
            .context(|| "start mariadbd".to_owned())?;
        let mut server = Server { child };
        let end = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            let ended = server.child.try_wait().context(|| "wait for mariadbd".to_owned())?;
            if ended.is_some() || Instant::now() > end {
                let text = fs::read_to_string(log).unwrap_or_default();
                let last = text.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(BenchError::Workload(format!("mariadbd did not start on the host: {last}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn stop(&mut self) -> Result<()> {
        run(Command::new("kill").arg(self.child.id().to_string()))?;
        self.child.wait().context(|| "wait for mariadbd".to_owned()).map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn prepare(name: &str, files: u32, tree: &Path) -> Result<()> {
    run(Command::new(locate::own_program("afterimage-agent")?)
        .args(["workload-prepare", name])
        .arg(tree.join("files"))
        .args(["--files", &files.to_string()]))
}
