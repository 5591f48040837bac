//! How many states a second a pool of guests mounts: `pool_rate IMAGE [STATES [GUESTS [CHECK]]]`.
//!
//! IMAGE is an ext4; each state differs from it in a sector of an unused block. Nothing is remembered between states.
//! CHECK `sqlite` checks the bank of `check::apps` in it; others are as `--check` takes them.

use std::sync::Arc;
use std::time::Instant;

use afterimage_explore::check::apps::sqlite_script;
use afterimage_explore::check::pool::{Pool, PoolCheck, PoolOptions};
use afterimage_explore::check::Checker;
use afterimage_explore::state::{Content, Image, Scratch};
use afterimage_trace::Sparse;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, rest @ ..] = args.as_slice() else {
        return Err("usage: pool_rate IMAGE [STATES [GUESTS [CHECK]]]".into());
    };
    let states: u64 = rest.first().map_or(Ok(500), |n| n.parse())?;
    let guests: u64 = rest.get(1).map_or(Ok(1), |n| n.parse())?;
    let check = match rest.get(2).map(String::as_str) {
        None => PoolCheck::Mount,
        Some("sqlite") => PoolCheck::Sqlite(sqlite_script("/mnt/bank/bank.db")),
        Some(check) => PoolCheck::from_text(check),
    };
    let bytes = std::fs::read(image)?;
    let mut base = Sparse::new(bytes.len() as u64);
    for (index, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
        base.write_at(page, index as u64 * 4096);
    }
    let base = Arc::new(base);
    let mut options = PoolOptions::new(check);
    options.guests = guests as usize;
    options.memo = false;
    let pool = Pool::new(options);
    let state = |n: u64| {
        let mut image = Image::new(0, Arc::clone(&base), 0);
        image.set(base.len() / 512 - 1, Content::owned(&[n as u8; 512]));
        [Arc::new(Scratch::new(image))]
    };
    // Boots all guests.
    std::thread::scope(|scope| {
        for _ in 0..guests {
            scope.spawn(|| println!("{:?}", pool.checker().check(&state(1))));
        }
    });
    let boot_us = pool.stats().busy_us;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..guests)
            .map(|guest| {
                let (pool, state) = (&pool, &state);
                scope.spawn(move || -> afterimage_explore::Result<()> {
                    let mut checker = pool.checker();
                    for n in 0..states / guests {
                        checker.check(&state(guest + n))?;
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(done) => done?,
                Err(_) => return Err("a thread died".into()),
            }
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let busy_ms = (pool.stats().busy_us - boot_us) as f64 / 1000.0;
    println!(
        "{guests} guests: {:.1} states/s, {:.2} ms each",
        states as f64 / seconds,
        busy_ms / states as f64
    );
    Ok(())
}
