//! How many states a second the e2fsck level checks: `check_rate IMAGE [STATES [THREADS [peer]]]`. With `peer`: by mounting
//! each with the host's kernel.
//!
//! IMAGE is an ext4; each state differs from it in a handful of sectors near its end.

use std::sync::Arc;
use std::time::Instant;

use afterimage_explore::check::fsck::Fsck;
use afterimage_explore::check::mount_per_state::MountPerState;
use afterimage_explore::check::{Checker, Observation};
use afterimage_explore::state::{Content, Image, Scratch};
use afterimage_trace::Sparse;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, rest @ ..] = args.as_slice() else {
        return Err("usage: check_rate IMAGE [STATES [THREADS [peer]]]".into());
    };
    let states: u64 = rest.first().map_or(Ok(500), |n| n.parse())?;
    let threads: u64 = rest.get(1).map_or(Ok(2), |n| n.parse())?;
    let peer = rest.get(2).is_some_and(|word| word == "peer");
    let bytes = std::fs::read(image)?;
    let mut base = Sparse::new(bytes.len() as u64);
    for (index, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
        base.write_at(page, index as u64 * 4096);
    }
    let pages = base.pages().count();
    let base = Arc::new(base);
    let start = Instant::now();
    let outcomes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let base = &base;
                scope.spawn(move || -> afterimage_explore::Result<(u64, u64)> {
                    let mut fsck = Fsck::new()?;
                    let mut peer = if peer { Some(MountPerState::new("")?) } else { None };
                    let mut sound = 0;
                    for state in 0..states / threads {
                        let mut image = Image::new(0, Arc::clone(base), 0);
                        for sector in 0..8 {
                            let at = base.len() / 512 - 8 - 8 * ((state + thread) % 64) + sector;
                            image.set(at, Content::owned(&[state as u8; 512]));
                        }
                        let state = [Arc::new(Scratch::new(image))];
                        let found = match &mut peer {
                            Some(peer) => peer.check(&state)?,
                            None => fsck.check(&state)?,
                        };
                        sound += u64::from(found == Observation::Sound);
                    }
                    Ok((sound, fsck.restored_pages()))
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
    });
    let seconds = start.elapsed().as_secs_f64();
    let (mut sound, mut restored) = (0, 0);
    for outcome in outcomes {
        let (s, r) = outcome.map_err(|_| "a thread died")??;
        sound += s;
        restored += r;
    }
    println!(
        "{pages} pages, {states} states on {threads} threads: {:.0} states/s, {sound} sound, {:.1} pages restored each",
        states as f64 / seconds,
        restored as f64 / states as f64
    );
    Ok(())
}
