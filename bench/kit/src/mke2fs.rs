//! Disks that are the same whenever they are made.

use std::process::Command;

/// UUID and hash seed of every benchmark's file system: they hash names and go into checksums.
const IDENTITY: &str = "5f3a1e0c-7d42-4b86-9a15-c2e8d0b7f964";

/// `mke2fs` of an ext4 with blocks of 4 KiB and everything initialised: a guest's lazy initialisation would run through the measurement.
/// `extended` are more extended options, the first of the list.
pub fn mke2fs(extended: Option<&str>) -> Command {
    let all = "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0,hash_seed=";
    let all = extended.into_iter().chain([all]).collect::<Vec<_>>().join(",") + IDENTITY;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", &all, "-U", IDENTITY]);
    mke2fs.env("E2FSPROGS_FAKE_TIME", "1700000000");
    mke2fs
}
