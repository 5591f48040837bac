//! The guest agent: what ordinary programs inside a guest cannot do.
//!
//! ```text
//!   ack-write:  write record n ─► fsync ─► report n to the host ─► write record n+1 (floor: n)
//!   death of guest, daemon or power
//!   verify:     which records are there, intact or torn; does any record lack one it was written after
//! ```
//!
//! The report goes out only after fsync has returned, through a channel that ends outside the guest (a serial
//! line or virtio port whose other end the host holds), so a number that the host has seen is a promise that
//! the guest's storage stack made. A report lost on the way only makes the test weaker, never wrong.
//!
//! Static, so that it runs on any root file system: depends on nothing but the kernel.

mod ack;
mod args;
mod bench;
mod beside;
mod churn;
mod editor;
mod found;
mod integrity;
mod machine;
mod mounts;
mod pace;
mod pool;
mod record;
mod replay;
mod report;
mod sqlite;
mod stamp;
mod sys;
mod timed;
mod verify;
mod workload;

use std::process::ExitCode;

const USAGE: &str = "afterimage-agent: works inside guests\n\
\n\
  ack-write DIR [--records N] [--seconds T] [--size BYTES] [--threads N] [--pause-us N] [--slots N | --files]\n\
            write records, fsync each, then report its number; --slots overwrites in a ring instead of appending,\n\
            --files gives each record a file of its own, and threads pause after each\n\
  verify DIR                          which records are present, intact, torn, out of order\n\
  fsync-bench FILE [--count N] [--size BYTES] [--name NAME]\n\
            latency of fsync after each write\n\
  sync-times FILE [--size BYTES] [--pause-ms N] [--seconds T] [--stat FILE]\n\
            append, pause, fsync: how long each fsync took, and what the disk wrote meanwhile\n\
  stream DIR --bytes-per-s N [--file-bytes N] [--seconds T]\n\
            write files one after the other, at that rate, without a sync\n\
  workload-prepare NAME DIR [--files N] [--seed N]\n\
  workload NAME DIR [--files N] [--seed N] [--choices N] [--seconds T] [--operations N] [--threads N] [--sync-times]\n\
            filebench's varmail, fileserver or webserver on the prepared files\n\
  micro append|overwrite FILE --bytes N [--size BYTES] [--seed N]\n\
  micro create|delete DIR --files N [--directories N] [--median BYTES] [--threads N] [--seed N] [--fsync]\n\
            filebench's seqwrite, randomwrite and file deletion, each reporting its own time\n\
  replay DIR FILE                     do again what programs did to the files of a folder: a JSON line each\n\
  timed NAME -- COMMAND...            run a command and report how long it took\n\
  editor FILE [--saves N] [--from K] [--size BYTES] [--no-fsync] [--fsync-dir]\n\
            save versions K, K+1, ... of a document as editors do: temporary file, fsync, rename\n\
  pool --device DEVICE --type TYPE [--options OPTIONS] [--check records|editor|sqlite|cmd --argument ARGUMENT]\n\
            for every line from the report channel: mount at /mnt, check, unmount, report\n\
  churn DIR [--seed N] [--round N] [--seconds T]\n\
            files and directories whose blocks change hands all the time, orphans among them\n\
  churn-verify DIR                    does a file hold a block that is not its own\n\
  integrity prepare|update|verify FILE --size BYTES [--bytes N] [--seed N]\n\
            records updated by one write(2) each, until the guest is killed; which of them mix versions\n\
  stamp FILE [--seed N] [--bytes N]   fill a file or disk with blocks that say where they belong, and sync\n\
  stamp-verify FILE [--seed N] [--bytes N]\n\
            is every block the one that stamp wrote there; only a disk says by itself how many there are\n\
  say JSON                            report one line to the host\n\
  write-back DEVICE...                make the kernel treat the disk's cache as volatile (it then sends flushes)\n\
  pace FILE [--pause-us N]            say a file line by line, with pauses: transactions for a database's shell\n\
  drop-caches                         write back and forget the page cache\n\
  unbind DEVICE                       detach the virtio driver from the disk; prints the bus name\n\
  bind NAME                           attach it again\n\
  shutdown DIR [--commit]             make the file system stop at once, as a crash would; --commit: what runs is committed before\n\
  kexec KERNEL INITRD --arguments TEXT\n\
            start another kernel at once, without writing anything back\n\
  panic                               crash the kernel at once\n\
  poweroff                            switch off at once, without writing anything back\n\
\n\
Reports are JSON lines to --report FILE, else $AFTERIMAGE_REPORT, else standard output.\n";

fn main() -> ExitCode {
    let mut arguments = match args::Arguments::new(std::env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("afterimage-agent: {error}");
            return ExitCode::from(2);
        }
    };
    let outcome = match arguments.command().as_deref() {
        Some("ack-write") => ack::run(arguments),
        Some("verify") => verify::run(arguments),
        Some("fsync-bench") => bench::run(arguments),
        Some("sync-times") => beside::sync_times(arguments),
        Some("stream") => beside::stream(arguments),
        Some("workload-prepare") => workload::prepare(arguments),
        Some("workload") => workload::run(arguments),
        Some("micro") => workload::micro::run(arguments),
        Some("timed") => timed::run(arguments),
        Some("replay") => replay::run(arguments),
        Some("editor") => editor::run(arguments),
        Some("pool") => pool::run(arguments),
        Some("churn") => churn::run(arguments),
        Some("churn-verify") => churn::verify(arguments),
        Some("integrity") => integrity::run(arguments),
        Some("stamp") => stamp::write(arguments),
        Some("stamp-verify") => stamp::verify(arguments),
        Some("say") => report::say(arguments),
        Some("pace") => pace::run(arguments),
        Some("write-back") => machine::write_back(arguments),
        Some("drop-caches") => machine::drop_caches(arguments),
        Some("unbind") => machine::unbind(arguments),
        Some("bind") => machine::bind(arguments),
        Some("shutdown") => machine::shut_down(arguments),
        Some("kexec") => machine::kexec(arguments),
        Some("panic") => machine::panic_now(arguments),
        Some("poweroff") => machine::power_off(arguments),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("afterimage-agent: {error}");
            ExitCode::FAILURE
        }
    }
}
