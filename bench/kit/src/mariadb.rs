//! MariaDB: on the host, where the data that guests begin with is made, and in guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use afterimage_lab::locate;

use crate::error::{BenchError, Context, Result};
use crate::process::run;

/// How sysbench finds a server in a guest.
pub const GUEST_CLIENT: &str = "--db-driver=mysql --mysql-socket=/run/my.sock --mysql-user=root";

/// The shell by which a guest starts one above `data`, and waits for it; `$server` is its process. `before` is what the command begins with.
pub fn guest_server(before: &str, data: &str, options: &[&str]) -> String {
    format!(
        "{before}mariadbd {OPTIONS} {} --datadir={data} --socket=/run/my.sock --pid-file=/run/my.pid > /run/my.log 2>&1 &\n\
         server=$!\n\
         tries=0; until [ -S /run/my.sock ]; do\n\
         sleep 0.1; tries=$((tries + 1)); [ $tries -lt 600 ] || {{ grep ERROR /run/my.log || tail -n 5 /run/my.log; exit 1; }}\n\
         done\n",
        options.join(" ")
    )
}

/// Options of every server, on the host and in guests: durable at every commit, and nothing but InnoDB on the disk under test. Later ones count.
const OPTIONS: &str = "--no-defaults --user=root --skip-networking --skip-grant-tables --skip-log-bin \
    --performance-schema=OFF --innodb-flush-log-at-trx-commit=1 --innodb-data-file-path=ibdata1:12M:autoextend --loose-wsrep-on=OFF";

/// Makes an empty data folder, with the database `sbtest` of sysbench's; `options` are those of InnoDB that its files are made with.
///
/// # Errors
/// A program is missing or failed.
pub fn install(data: &Path, options: &[&str]) -> Result<()> {
    fs::create_dir_all(data).context(|| format!("make {}", data.display()))?;
    run(Command::new(locate::system_program("mariadb-install-db", "mariadb-server")?)
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"])
        .arg("--innodb-data-file-path=ibdata1:12M:autoextend")
        .args(options)
        .arg(format!("--datadir={}", data.display())))?;
    // A database is a folder.
    fs::create_dir(data.join("sbtest")).context(|| format!("make a database in {}", data.display()))
}

/// A server on the host, killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts it and waits for its socket, in `folder`; `options` are InnoDB's.
    ///
    /// # Errors
    /// It is not installed, or ended; its last words are in the error.
    pub fn start(data: &Path, folder: &Path, options: &[&str]) -> Result<Self> {
        let program = locate::system_program("mariadbd", "mariadb-server")?;
        let (socket, log) = (folder.join("my.sock"), folder.join("my.log"));
        let log_file = fs::File::create(&log).context(|| format!("create {}", log.display()))?;
        let errors = log_file.try_clone().context(|| "duplicate a descriptor".to_owned())?;
        let child = Command::new(program)
            .args(OPTIONS.split_whitespace())
            .args(options)
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--pid-file={}.pid", socket.display()))
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(errors)
            .spawn()
            .context(|| "start mariadbd".to_owned())?;
        let mut server = Self { child, socket };
        let end = Instant::now() + Duration::from_secs(60);
        while !server.socket.exists() {
            let ended = server.child.try_wait().context(|| "wait for mariadbd".to_owned())?;
            if ended.is_some() || Instant::now() > end {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let last = text.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(BenchError::Workload(format!("mariadbd did not start on the host: {last}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// sysbench's script with it.
    ///
    /// # Errors
    /// sysbench is not installed.
    pub fn sysbench(&self, script: &str) -> Result<Command> {
        let mut sysbench = Command::new(locate::system_program("sysbench", "sysbench")?);
        sysbench.args([script, "--db-driver=mysql", "--mysql-user=root"]);
        sysbench.arg(format!("--mysql-socket={}", self.socket.display()));
        Ok(sysbench)
    }

    /// Ends it cleanly: all is in its files.
    ///
    /// # Errors
    /// It cannot be told, or failed.
    pub fn stop(mut self) -> Result<()> {
        run(Command::new("kill").arg(self.child.id().to_string()))?;
        let status = self.child.wait().context(|| "wait for mariadbd".to_owned())?;
        match status.success() {
            true => Ok(()),
            false => Err(BenchError::Workload(format!("mariadbd failed at its end: {status}"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
