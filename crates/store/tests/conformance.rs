//! The suite of `afterimage_block_conformance` on real files: in memory, through the page cache, with O_DIRECT.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{Disk, MediumDisk};
use afterimage_block_conformance::{compare, run, run_read_only, run_threads};
use afterimage_store::{create_image, DirectMode, Image as _, ImageStore, OpenOptions};
use proptest::prelude::*;

const BYTES: u64 = 6 << 20;

fn image(directory: &Path) -> PathBuf {
    let path = directory.join("disk.img");
    create_image(&path, BYTES).unwrap();
    path
}

fn open(path: &Path, direct: DirectMode) -> Arc<ImageStore> {
    ImageStore::open(&OpenOptions { direct, ..OpenOptions::new(path) }).unwrap()
}

/// One run, and what is found after closing and opening again, through the other mode.
fn run_and_reopen(directory: &Path, direct: DirectMode, seed: u64, steps: usize) {
    let path = image(directory);
    let mut oracle = run(seed, steps, || open(&path, direct)).unwrap();
    let disk: Arc<dyn Disk> = open(&path, DirectMode::Off);
    compare(seed, &disk, &mut oracle).unwrap();
    std::fs::remove_file(&path).unwrap();
}

/// A directory on a real file system: the build's own.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_memory_images_pass(seed in any::<u64>()) {
        run_and_reopen(in_memory().path(), DirectMode::Auto, seed, 500);
    }

    #[test]
    fn buffered_images_pass(seed in any::<u64>()) {
        run_and_reopen(on_disk().path(), DirectMode::Off, seed, 300);
    }

    #[test]
    fn direct_images_pass(seed in any::<u64>()) {
        run_and_reopen(on_disk().path(), DirectMode::Auto, seed, 300);
    }

    #[test]
    fn a_medium_over_a_direct_image_passes(seed in any::<u64>()) {
        let directory = on_disk();
        let path = image(directory.path());
        run(seed, 200, || Arc::new(MediumDisk::new(open(&path, DirectMode::Auto).medium()))).unwrap();
    }
}

#[test]
fn several_threads_pass() {
    for (directory, direct) in
        [(in_memory(), DirectMode::Auto), (on_disk(), DirectMode::Off), (on_disk(), DirectMode::Auto)]
    {
        let path = image(directory.path());
        run_threads(11, 300, 3, || open(&path, direct)).unwrap();
    }
}

#[test]
fn read_only_images_pass() {
    for (directory, direct) in
        [(in_memory(), DirectMode::Auto), (on_disk(), DirectMode::Off), (on_disk(), DirectMode::Auto)]
    {
        let path = image(directory.path());
        let options = OpenOptions { read_only: true, direct, ..OpenOptions::new(&path) };
        let disk: Arc<dyn Disk> = ImageStore::open(&options).unwrap();
        run_read_only(5, &disk).unwrap();
    }
}
