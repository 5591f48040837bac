//! TPC-C on MariaDB, at the paper's sizes: pages of 4 KiB, sixteen clients; it syncs its log for each group of commits.

use std::fs;
use std::path::Path;

use afterimage_bench_kit::mariadb;
use afterimage_bench_kit::process::run;
use afterimage_bench_kit::Result;
use afterimage_lab::process::quote;

use crate::scale::Scale;
use crate::script::{syncs_file, Script};

/// As its files are made.
const FILES: [&str; 2] = ["--innodb-page-size=4k", "--innodb-log-file-size=96M"];
/// Guests: as installed, said twice for those versions that otherwise reserve more addresses than User Mode Linux has.
const GUEST: [&str; 2] = ["--innodb-buffer-pool-size=128M", "--loose-innodb-buffer-pool-size-max=128M"];
/// The host fills them.
const LOADING: [&str; 3] = [
    "--innodb-buffer-pool-size=1G",
    "--loose-innodb-buffer-pool-size-max=1G",
    "--innodb-flush-log-at-trx-commit=0",
];
const CLIENTS: u32 = 16;

/// Makes the data, below `tree`; `script` is `tpcc.lua`.
///
/// # Errors
/// A program is missing or failed.
pub fn prepare(tree: &Path, script: &Path, warehouses: u32) -> Result<()> {
    let data = tree.join("my");
    mariadb::install(&data, &FILES)?;
    let folder = tree.parent().unwrap_or(tree);
    let server = mariadb::Server::start(&data, folder, &[&FILES[..], &LOADING[..]].concat())?;
    for command in ["prepare", "load"] {
        let mut sysbench = server.sysbench(&script.to_string_lossy())?;
        run(sysbench.args([&format!("--warehouses={warehouses}"), "--threads=2", "--rand-seed=1", command]))?;
    }
    server.stop()?;
    // What it keeps for its next start is as fast as the host was.
    let kept = data.join("ib_buffer_pool");
    if kept.exists() {
        fs::remove_file(kept)?;
    }
    Ok(())
}

/// Five times as many transactions as SQLite makes: a group of clients shares an fsync.
pub fn script(scale: Scale, seed: u64, timed: &str, tpcc: &Path) -> Script {
    let server = mariadb::guest_server(&format!("{timed} $BOOST "), "/mnt/disk/my", &[FILES, GUEST].concat());
    let (warehouses, transactions) = (scale.warehouses, 5 * scale.transactions);
    let (tpcc, client, syncs) = (quote(&tpcc.to_string_lossy()), mariadb::GUEST_CLIENT, syncs_file());
    Script {
        set_up: format!("{syncs}\n{server}head -c 8 /dev/zero | dd of=/run/syncs conv=notrunc status=none"),
        work: format!(
            "sysbench {tpcc} {client} --warehouses={warehouses} --threads={CLIENTS} --events={transactions} --time=0 --rand-seed={seed} run > /run/said || \
             {{ cat /run/said; exit 1; }}"
        ),
        // Cleanly: one that is killed leaves its last requests under way, and the file system busy.
        tear_down: "kill $server\nwait $server\n".to_owned(),
    }
}
