//! What a start after a death costs: a look past the page cache at an image that lies in it.
//!
//! `cargo run --release -p afterimage-store --example settle_cost -- FOLDER` writes 1 GiB there, and removes it.

use std::path::PathBuf;
use std::time::Instant;

use afterimage_store::{create_image, DirectMode, Image as _, ImageStore, OpenOptions};

const BYTES: u64 = 1 << 30;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("name a folder")?);
    let path = folder.join("settle_cost.img");
    create_image(&path, BYTES)?;
    let image = ImageStore::open(&OpenOptions { direct: DirectMode::Off, ..OpenOptions::new(&path) })?;
    let medium = image.medium();
    for at in (0..BYTES).step_by(1 << 20) {
        medium.write_at(&vec![1; 1 << 20], at)?;
    }
    medium.sync()?;
    let begun = Instant::now();
    let rewritten = image.settle()?;
    println!("1 GiB in the page cache: {:?}, {rewritten} bytes written again", begun.elapsed());
    image.note_settled();
    let begun = Instant::now();
    image.settle()?;
    println!("after an orderly end: {:?}", begun.elapsed());
    Ok(std::fs::remove_file(&path)?)
}
