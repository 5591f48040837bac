//! The guest as an adversary: forged journals, overwritten logs, other file systems in the middle of it, over a disk that
//! completes requests in any order, with daemons that die and arenas that are too small.
//!
//! Whatever happens: nothing panics or hangs, `--retain-max` holds, bytes outside the file system are the guest's own,
//! what is read is what was written or committed, and nothing of an older file system comes home in a newer one. While the
//! guest is sound, nothing that it committed is lost.

#[path = "hostile/attack.rs"]
mod attack;
#[path = "hostile/below.rs"]
mod below;
mod common;
#[path = "hostile/guest.rs"]
mod guest;
#[path = "hostile/world.rs"]
mod world;

use std::sync::atomic::Ordering;

use afterimage_block::Operation;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::Mutation;
use afterimage_journal::{AreaBlock, BLOCK_BYTES};
use common::replayed;
use guest::{Guest, Within, START};
use rand::RngExt;

struct Plan {
    seed: u64,
    steps: u32,
    bytes_max: u64,
    applies: bool,
    /// Of a thousand steps.
    attacks: u32,
    switches: bool,
    mutation: Option<Mutation>,
}

/// Says in how many steps a journal was retained.
fn run(plan: &Plan) -> u32 {
    let mut guest = Guest::with(plan.seed, plan.bytes_max, plan.applies, plan.mutation);
    let (mut retained, mut attacked) = (0, 0);
    guest.mount();
    assert!(guest.retained(), "a mount of an empty journal begins it");
    for step in 0..plan.steps {
        if guest.rng.random_ratio(plan.attacks, 1000) {
            guest.attack();
            attacked += 1;
        }
        match guest.rng.random_range(0..200) {
            0..76 => guest.commit(),
            76..80 => guest.crash(),
            80..110 => guest.write_back(),
            110..130 => guest.write_data(),
            // Where memory is short, nobody knows after a restart of what was evicted.
            130..138 if !plan.applies && !plan.switches && plan.bytes_max > 8 << 20 => {
                guest.early_tail(1 + step as usize % 5);
            }
            130..145 => guest.checkpoint(1 + step as usize % 5),
            145..152 => guest.world.disk().settle().unwrap(),
            152..157 => guest.world.disk().make_room().unwrap(),
            157..162 => {
                if plan.switches {
                    guest.world.switch_contract();
                }
                guest.world.restart();
            }
            162 => guest.world.stop_and_start(),
            163..166 => guest.through_another_server(),
            166..168 => {
                guest.world.drain();
                guest.world.disk().pause().unwrap();
                guest.world.disk().resume();
            }
            168..172 => guest.crash(),
            172..175 => {
                guest.unmount();
                guest.mount();
            }
            175..178 => guest.mkfs(),
            178..182 => guest.world.check(&format!("step {step} of {}", plan.seed)),
            182..186 => guest.world.check_power(&format!("step {step} of {}", plan.seed)),
            186..190 => guest.world.check_end(&format!("the end at step {step} of {}", plan.seed)),
            _ => guest.world.flush(),
        }
        if !guest.sound && guest.rng.random_ratio(1, 8) {
            guest.recover_by_mkfs();
        }
        retained += u32::from(guest.retained());
    }
    assert!(plan.attacks == 0 || attacked > 0);
    guest.world.check_end(&format!("the end of {}", plan.seed));
    retained
}

/// Runs of sound guests.
const SOUND: u64 = 8;

fn sizes(seed: u64) -> u64 {
    [64 << 20, 16 << 10, 128 << 10, 1 << 20][seed as usize % 4]
}

fn seeds(quick: u64) -> std::ops::Range<u64> {
    let from = std::env::var("AFTERIMAGE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let count = std::env::var("AFTERIMAGE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(quick);
    from..from + count
}

/// A guest that does nothing that a file system would not.
fn sound(seed: u64, mutation: Option<Mutation>) -> Plan {
    Plan {
        seed,
        steps: 150,
        bytes_max: sizes(seed),
        applies: (seed + seed / 4) % 2 == 0,
        attacks: 0,
        switches: seed % 8 == 6,
        mutation,
    }
}

#[test]
fn sound_guests_lose_nothing() {
    for seed in seeds(SOUND) {
        let retained = run(&sound(seed, None));
        assert!(retained > 50, "seed {seed}: retained in {retained} steps only");
    }
}

/// What these tests are worth: each mistake is found by the sound guests of [`sound_guests_lose_nothing`], in as many runs.
#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for mutation in Mutation::CONCURRENT {
        let found = (0..SOUND).find(|seed| {
            let plan = sound(*seed, Some(mutation));
            std::panic::catch_unwind(|| run(&plan)).is_err()
        });
        match found {
            Some(seed) => eprintln!("{mutation:?}: seed {seed}"),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn hostile_guests_harm_themselves_alone() {
    let mut retained = 0;
    for seed in seeds(12) {
        let plan = Plan {
            seed: 1000 + seed,
            steps: 120,
            bytes_max: sizes(seed),
            applies: seed % 2 == 0,
            attacks: 150,
            switches: seed % 5 == 4,
            mutation: None,
        };
        retained += run(&plan);
    }
    assert!(retained > 150, "retained in {retained} steps only: nothing was attacked");
}

/// The guest mounts after a crash, and reads its journal while somebody flushes, pauses or restarts the daemon: what it
/// has begun to read stays there until it has begun its journal anew. `first`: it has read a part of its file system before.
fn recoveries(seed: u64, first: bool, mutation: Option<Mutation>) {
    let mut guest = Guest::with(2000 + seed, sizes(seed / 4), seed % 3 == 0, mutation);
    guest.mount();
    for _ in 0..3 {
        (0..12).for_each(|_| guest.commit());
        guest.write_back();
        match first {
            true => guest.read_and_recover([10, 40, 300][seed as usize % 3]),
            false => guest.recover(300),
        }
        assert!(guest.retained(), "seed {seed}: {:?}", guest.world.status());
    }
    guest.commit();
    guest.world.check_end("after recoveries");
}

#[test]
fn a_guest_recovers_whatever_the_daemon_does_meanwhile() {
    seeds(12).for_each(|seed| recoveries(seed, false, None));
}

#[test]
fn a_guest_that_reads_before_it_recovers_has_one_version() {
    seeds(12).for_each(|seed| recoveries(seed, true, None));
    // Under `power-window` nothing is pending when it dies.
    let mut pending = (0..12).filter(|seed| seed % 3 != 0);
    let found =
        |seed| std::panic::catch_unwind(|| recoveries(seed, true, Some(Mutation::ReleaseEarly))).is_err();
    assert!(pending.any(found), "a daemon that gives up what its guest believes in was not found out");
}

/// A transaction of a block of which an older content is on its way home, for long.
fn over_a_slow_write(guest: &mut Guest) -> Draft {
    let draft = guest.draft();
    let (home, older) = (draft.logged[0].0, guest.content());
    guest.world.faults.slow.set(guest.sector_of(home), 300);
    guest.write_home(home, &older[..]);
    draft
}

/// `power-window`: a block's older content is on its way home when a transaction commits a newer one. The commit is
/// answered when all of the transaction is in the disk's history, behind that write.
#[test]
fn a_commit_is_whole_whatever_was_on_its_way_home() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 1 << 20, true);
        guest.mount();
        let draft = over_a_slow_write(&mut guest);
        guest.commit_of(&draft, true);
        guest.world.check_power("after a commit of what was being written");
        guest.commit();
        guest.world.check_power("after another one");
    }
}

/// `power-window` after `guest-crash`, of whose versions some go home by themselves no more: blocks were evicted, of which the next daemon
/// knows nothing; or an older content was on its way home at the commit and at the daemon's death.
#[test]
fn a_stronger_contract_loses_nothing_of_the_weaker_ones() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 1 << 20, false);
        guest.mount();
        (0..5).for_each(|_| guest.commit());
        guest.world.drain();
        if seed % 2 == 0 {
            guest.world.disk().make_room().unwrap();
            guest.world.switch_contract();
            guest.world.restart();
        } else {
            let draft = over_a_slow_write(&mut guest);
            guest.commit_of(&draft, true);
            guest.world.switch_contract();
            guest.world.restart_before_completions();
        }
        guest.world.check_power("after a stronger contract");
        guest.commit();
        guest.world.check_power("after a stronger contract, and a commit");
        guest.world.check_end("after a stronger contract");
    }
}

/// What `tune2fs` writes to a mounted file system: the superblock with another feature.
fn with_other_features(guest: &mut Guest) -> Vec<u8> {
    let mut superblock = guest.world.read(START + 2, 2);
    // `s_feature_compat`, COMPAT_DIR_INDEX; `s_checksum`.
    superblock[0x5c] ^= 0x20;
    let sum = !crc32c::crc32c(&superblock[..0x3fc]);
    superblock[0x3fc..].copy_from_slice(&sum.to_le_bytes());
    superblock
}

/// `power-window`: a transaction commits while a change of the superblock's features is under way, as `tune2fs -O` of a
/// mounted file system makes it.
#[test]
fn a_commit_counts_while_features_change() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 1 << 20, true);
        guest.mount();
        guest.commit();
        let superblock = with_other_features(&mut guest);
        guest.world.faults.slow.set(START + 2, 300);
        guest.world.submit(0, Operation::Write { flushed: false }, START + 2, 2, &superblock);
        guest.commit();
        guest.commit();
        guest.world.check_power("after commits while features changed");
        assert!(guest.retained(), "{:?}", guest.world.status());
    }
}

/// What features changed to could not be read: the next commit is an occasion to look again, and does not wait for ever.
#[test]
fn a_commit_looks_again_where_a_look_failed() {
    let mut guest = Guest::new(4, 1 << 20, true);
    guest.mount();
    guest.commit();
    let superblock = with_other_features(&mut guest);
    guest.world.faults.read.store(true, Ordering::SeqCst);
    let token = guest.world.submit(0, Operation::Write { flushed: false }, START + 2, 2, &superblock);
    guest.world.wait_for(token);
    assert!(!guest.world.faults.read.load(Ordering::SeqCst), "nobody looked");
    guest.commit();
    guest.world.check_power("after a commit behind a look that failed");
    assert!(guest.retained(), "{:?}", guest.world.status());
}

/// Linux 6.1 moves its tail past a block whose home write it has not submitted, while an older content of that block is, or was, on
/// its way home.
#[test]
fn a_tail_that_comes_early_loses_nothing_whatever_was_on_its_way_home() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 64 << 20, false);
        guest.mount();
        let draft = over_a_slow_write(&mut guest);
        guest.commit_of(&draft, true);
        if seed % 2 == 0 {
            guest.world.drain();
        }
        guest.early_tail(1);
        guest.world.check_end("after a tail that came early");
    }
}

/// The daemon dies while the older content is on its way. The next one is asked for that again, before the tail moves.
#[test]
fn a_tail_that_comes_early_loses_nothing_after_another_daemon() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 64 << 20, false);
        guest.mount();
        let draft = guest.draft();
        let ((home, newer), older) = (draft.logged[0].clone(), guest.content());
        guest.world.faults.slow.set(guest.sector_of(home), 300);
        guest.write_home(home, &older[..]);
        guest.commit_of(&draft, true);
        guest.world.restart_before_completions();
        guest.write_home(home, &older[..]);
        guest.world.drain();
        guest.world.committed(START / 8 + home.0, &newer[..], true);
        guest.early_tail(1);
        guest.world.check_end("after a tail that came early, and another daemon");
    }
}

/// A write of the superblock that fails leaves what is on the disk to be looked at, and the file system goes on.
#[test]
fn a_failed_superblock_write_does_not_stop_retention_for_ever() {
    let mut guest = Guest::new(3, 1 << 20, false);
    guest.mount();
    guest.commit();
    let mut superblock = guest.world.read(guest::START, 8);
    superblock[1024 + 0x68] ^= 1;
    guest.world.faults.write.store(true, Ordering::SeqCst);
    let token = guest.world.submit(0, Operation::Write { flushed: false }, guest::START, 8, &superblock);
    guest.world.wait_for(token);
    assert!(guest.retained());
    guest.world.disk().settle().unwrap();
    let status = guest.world.status().unwrap();
    assert_eq!(status.file_systems[0].versions_pending, 0, "{status:?}");
    guest.world.check_end("after a failed write");
}

/// An older content of a block was on its way home before the mount from which on its journal is retained.
#[test]
fn what_was_under_way_before_a_mount_undoes_nothing() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 1 << 20, seed % 2 == 0);
        let draft = over_a_slow_write(&mut guest);
        guest.mount_at_once();
        guest.commit_of(&draft, true);
        guest.world.disk().settle().unwrap();
        guest.world.check_power("after a commit of what was being written at the mount");
        guest.world.disk().settle().unwrap();
        guest.world.check_end("after a commit of what was being written at the mount");
    }
}

/// A guest that was mounted before its journal could be retained, and whose older transactions are all home, moves its tail to the one that
/// it is writing.
#[test]
fn what_was_written_of_a_transaction_before_retention_began_is_a_part_of_it() {
    for seed in 0..32 {
        let mut guest = Guest::new(seed, 1 << 20, seed % 2 == 0);
        guest.mount();
        guest.commit();
        guest.world.stop();
        guest.checkpoint(usize::MAX);
        guest.world.start();
        assert!(!guest.retained(), "{:?}", guest.world.status());
        let within = if seed / 2 % 2 == 0 { Within::OnTheWay } else { Within::There };
        if within == Within::OnTheWay {
            guest.world.faults.slow.set(guest.area_sector(guest.head), 30);
        }
        guest.tail_within = Some(within);
        let draft = guest.draft();
        guest.commit_of(&draft, true);
        guest.world.check_power("after a commit to which the tail had moved");
        guest.world.check_end("after a commit to which the tail had moved");
    }
}

/// A mounted guest whose tail lags behind what is home.
fn behind(seed: u64) -> Guest {
    let mut guest = Guest::new(seed, 64 << 20, false);
    guest.mount();
    (0..5).for_each(|_| guest.commit());
    guest.write_back_all();
    (0..3).for_each(|_| guest.commit());
    guest.world.drain();
    guest
}

/// The partition table cannot be read for a moment, while the guest goes on with its journal.
#[test]
fn a_table_that_is_unreadable_for_a_moment_loses_nothing() {
    for seed in 0..8 {
        let mut guest = behind(seed);
        let table = guest.world.read(0, 1);
        guest.world.write(0, &[0; 512]);
        assert!(!guest.retained(), "{:?}", guest.world.status());
        guest.write_tail();
        if seed % 2 == 0 {
            guest.commit();
            // Something else changes, and everything is looked at again.
            let other = [&[1; 440], &table[440..446], &[0; 66]].concat();
            guest.world.write(0, &other);
            guest.write_tail();
        }
        guest.world.write(0, &table);
        guest.write_tail();
        guest.commit();
        guest.world.check("after a table that was not readable");
        guest.world.check_end("after a table that was not readable");
    }
}

/// The daemon ends in order while the guest lives, and much of its log is home. It goes on with another server, and dies.
#[test]
fn an_orderly_end_is_right_for_any_server() {
    for seed in 0..8 {
        let mut guest = Guest::new(seed, 64 << 20, seed % 2 == 1);
        guest.mount();
        (0..5).for_each(|_| guest.commit());
        guest.write_back_all();
        guest.world.disk().settle().unwrap();
        (0..3).for_each(|_| guest.commit());
        if seed / 2 % 2 == 1 {
            // Another daemon knows only what the arena says.
            guest.world.restart();
        }
        guest.world.stop();
        guest.commit();
        guest.world.check_plain("after an orderly end, and a commit");
        guest.write_tail();
        guest.commit();
        guest.world.check_plain("after a tail that lags");
        guest.checkpoint(2);
        guest.commit();
        guest.world.check_plain("after the tail has moved");
        guest.recover(0);
        guest.world.start();
        guest.commit();
        guest.world.check_end("after a daemon again");
    }
}

/// A transaction is home, and stands in its own place only, as memory was short, when a pause puts the log there.
#[test]
fn a_pause_over_what_was_evicted_puts_nothing_else_home() {
    for seed in 0..16 {
        let applies = seed % 2 == 0;
        let mut guest = Guest::new(seed, 1 << 20, applies);
        guest.mount();
        guest.commit();
        guest.world.drain();
        if !applies {
            guest.world.disk().settle().unwrap();
        }
        guest.world.disk().make_room().unwrap();
        guest.world.disk().pause().unwrap();
        guest.world.disk().resume();
        guest.write_back_all();
        let image = guest.world.ended();
        guest.world.judge_floors(&image, "after a pause and an end");
    }
}

/// A guest whose daemon's memory is gone, under either contract. Of what was retained nothing was needed.
fn outlives(seed: u64) -> Guest {
    let applies = seed % 2 == 0;
    let mut guest = Guest::new(seed, 64 << 20, applies);
    guest.mount();
    (0..3).for_each(|_| guest.commit());
    if !applies {
        guest.write_back_all();
    }
    guest.world.lose_arena();
    guest
}

/// The daemon's memory is gone, and of what it retained nothing was needed. Its guest lives, and believes that older transactions are
/// in its log: what it commits from now on is found by its own recovery, whether it moves its tail before that or not.
#[test]
fn a_guest_that_outlives_the_arena_loses_nothing_that_it_commits_then() {
    for seed in 0..32 {
        let mut guest = outlives(seed);
        if seed / 2 % 2 == 1 {
            guest.write_tail();
        }
        guest.commit();
        guest.world.check_plain("after a commit without an arena");
        guest.write_tail();
        guest.world.check_plain("after a tail that lags");
        guest.commit();
        guest.world.check_plain("after another commit");
        guest.world.check_end("at the end");
        if seed / 4 % 2 == 1 {
            guest.world.restart();
            guest.write_tail();
            guest.world.check_plain("after another daemon");
        }
        guest.checkpoint(4);
        guest.commit();
        guest.world.check_plain("after the tail has moved");
        guest.recover(0);
        assert!(guest.retained(), "seed {seed}: a new mount begins anew");
        guest.commit();
        guest.world.check_end("after a new mount");
    }
}

/// The daemon that has seen where such a log goes on ends in order before the next transaction.
#[test]
fn what_a_guest_that_outlives_the_arena_commits_is_found_after_an_orderly_end() {
    for seed in 0..16 {
        let mut guest = outlives(seed);
        guest.commit();
        guest.world.stop();
        guest.world.check_plain("after a commit without an arena, and an orderly end");
        guest.commit();
        guest.world.check_plain("after another commit");
    }
}

/// The tail of such a guest lags until a block of its log tells where that is: the next daemon does not know either.
#[test]
fn where_a_log_is_that_outlives_the_arena_is_not_known_to_the_next_daemon_either() {
    for seed in 0..16 {
        let mut guest = outlives(seed);
        guest.write_tail();
        assert!(!guest.retained(), "seed {seed}: it was mounted before");
        guest.world.restart();
        if seed / 2 % 2 == 1 {
            guest.checkpoint(1);
            guest.world.restart();
        }
        guest.commit();
        guest.world.check_plain("after a commit under another daemon");
        guest.write_tail();
        guest.commit();
        guest.world.check_plain("after a tail that lags");
    }
}

/// The daemon ends in order before it has seen where the log of such a guest is.
#[test]
fn a_guest_that_outlives_the_arena_may_outlive_an_orderly_end() {
    for seed in 0..16 {
        let mut guest = outlives(seed);
        if seed / 2 % 2 == 1 {
            guest.write_tail();
        }
        guest.world.stop_and_start();
        if seed / 4 % 2 == 1 {
            guest.write_tail();
            guest.world.restart();
            guest.world.stop_and_start();
        }
        guest.commit();
        guest.world.check_plain("after an orderly end, and a commit");
        guest.write_tail();
        guest.world.check_plain("after a tail that lags");
        guest.commit();
        guest.world.check_end("at the end");
    }
}

/// The guest is gone with the arena. Another one mounts, and the daemon ends in order before its first commit: whoever serves it then, its
/// log is where its superblock says.
#[test]
fn a_mount_after_the_arena_is_gone_is_right_for_any_server() {
    for seed in 0..16 {
        let mut guest = outlives(seed);
        guest.recover(0);
        if seed / 2 % 2 == 1 {
            guest.world.restart();
        }
        guest.world.stop();
        (0..seed / 4 % 3).for_each(|_| guest.commit());
        guest.world.check_plain("with a server that knows nothing of it");
        guest.world.start();
        guest.commit();
        guest.world.check_plain("after a daemon again");
        guest.world.restart();
        guest.commit();
        guest.world.check_plain("after another daemon");
    }
}

/// The daemon dies with the memory of nothing but a transaction's beginning, of which the commit waits. The next one hands the journal
/// back, and does not take the commit block that comes again for the beginning of a log.
#[test]
fn a_commit_that_waited_belongs_to_what_was_there_before() {
    for seed in 0..16 {
        let mut guest = Guest::new(seed, 64 << 20, true);
        guest.mount();
        let draft = guest.draft();
        let mut encoder = Encoder::new(&guest.geometry, guest.head, guest.tid);
        encoder.transaction(&draft);
        let (at, commit) = encoder.blocks.pop_last().unwrap();
        for (at, block) in &encoder.blocks {
            guest.world.write(guest.area_sector(*at), &block[..]);
        }
        let (home, sector) = (guest.sector_of(draft.logged[0].0), guest.area_sector(at));
        guest.world.faults.slow.set(home, 200);
        let write = Operation::Write { flushed: false };
        guest.world.submit(1, write, home, 8, &[3; BLOCK_BYTES]);
        guest.world.submit(0, write, sector, 8, &commit[..]);
        guest.world.restart_before_arrivals();
        assert!(!guest.retained(), "seed {seed}: {:?}", guest.world.status());
        guest.world.write(home, &[3; BLOCK_BYTES]);
        guest.world.write(sector, &commit[..]);
        for (home, content) in &draft.logged {
            guest.world.committed(START / 8 + home.0, &content[..], true);
        }
        guest.world.check_plain("after a commit that waited");
    }
}

/// Its file system cannot be understood for a moment.
#[test]
fn a_guest_that_outlives_the_arena_may_be_unsound_for_a_moment() {
    for seed in 0..16 {
        let mut guest = outlives(seed);
        let at = if seed / 2 % 2 == 1 { 0 } else { START + 2 };
        let sound = guest.world.read(at, 2);
        let mut odd = sound.clone();
        // A byte of the UUID, or one of the table's signature.
        odd[if at == 0 { 510 } else { 0x68 }] ^= 1;
        guest.world.write(at, &odd);
        guest.world.write(at, &sound);
        if seed / 4 % 2 == 1 {
            guest.write_tail();
        }
        guest.commit();
        guest.world.check_plain("after a moment, and a commit");
    }
}

/// A journal that goes on elsewhere than where it is followed is handed back to the guest, and said: what it commits there is found
/// by its own recovery, and not by nobody.
#[test]
fn a_journal_that_goes_on_elsewhere_is_not_taken_for_one_that_is_retained() {
    for seed in 0..8 {
        // Until its tail says where its log is, no recovery finds it: `power-window` promises nothing of it either.
        let mut guest = Guest::new(3000 + seed, 64 << 20, false);
        guest.mount();
        (0..3).for_each(|_| guest.commit());
        guest.checkpoint(usize::MAX);
        guest.tid = guest.tid.next().next();
        guest.head = AreaBlock(guest.head.0 + 40);
        guest.commit();
        assert!(!guest.retained(), "seed {seed}: {:?}", guest.world.status());
        guest.write_tail();
        guest.commit();
        guest.world.check_end("after a journal that went on elsewhere");
        guest.crash();
        assert!(guest.retained(), "seed {seed}: a new mount begins anew");
    }
}

/// A file's block at the partition's end reads as the superblock of an md array that has the file system for a member. It is passed
/// through, and its guest goes on with its journal.
#[test]
fn a_file_that_looks_like_a_layer_loses_nothing() {
    for seed in 0..8 {
        let mut guest = behind(seed);
        // The last aligned 64 KiB, of which no transaction of these guests has a block. MD_SB_MAGIC, version 0.90.
        let last = START + guest::BLOCKS * 8 - 128;
        let mut content = [0; BLOCK_BYTES];
        for (word, value) in content.chunks_exact_mut(4).zip([0xa92b_4efc_u32, 0, 90]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        guest.world.write(last, &content);
        assert!(guest.retained(), "nobody looks");
        if seed % 2 == 0 {
            // Something else changes, and everything is looked at.
            let mut table = guest.world.read(0, 1);
            table[..440].fill(1);
            guest.world.write(0, &table);
        } else {
            guest.world.restart();
        }
        assert!(!guest.retained(), "{:?}", guest.world.status());
        guest.write_tail();
        guest.commit();
        guest.world.check("after a file that looks like a layer");

        // It dies: its kernel does not ask what the file looks like.
        let mut disk = guest.world.read_all();
        disk[last as usize * 512..][..BLOCK_BYTES].fill(0);
        for (block, content) in replayed(&disk).0 {
            disk[block as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&content[..]);
        }
        guest.world.judge_floors(&disk, "after a file that looks like a layer and the guest's death");
    }
}

fn unsound_superblock(seed: u64, mutation: Option<Mutation>) {
    let mut guest = Guest::with(seed, 4 << 20, seed % 3 == 0, mutation);
    guest.mount();
    (0..5).for_each(|_| guest.commit());
    guest.restart_over_an_unsound_superblock(seed % 2 == 0);
    let retained = guest.retained();
    assert!(!retained, "seed {seed}: {:?}", guest.world.status());
    // It lives, and goes on with its journal; then it dies.
    guest.write_tail();
    guest.commit();
    guest.sound_superblock();
    guest.recover(0);
    assert!(guest.retained(), "seed {seed}: {:?}", guest.world.status());
    guest.world.check_end("after an unsound superblock");
}

/// The next daemon finds a superblock that does not agree with its checksum, or none: the guest gets its journal back.
#[test]
fn a_superblock_that_is_not_sound_at_a_restart_loses_nothing() {
    (0..9).for_each(|seed| unsound_superblock(seed, None));
    for seed in 0..9 {
        let dropped = std::panic::catch_unwind(|| unsound_superblock(seed, Some(Mutation::DropUnsound)));
        assert!(dropped.is_err(), "seed {seed}: a daemon that drops what is retained was not found out");
    }
}

/// `tune2fs -U` on a mounted file system: it is passed through from then on, and the guest goes on with its journal, of
/// which it believes that older transactions are still there.
#[test]
fn a_uuid_that_changes_while_mounted_loses_nothing() {
    for seed in 0..8 {
        let mut guest = behind(seed);
        let old = guest.world.read(START + 2, 2);
        let mut renamed = old.clone();
        renamed[0x68] ^= 0xff;
        let sum = !crc32c::crc32c(&renamed[..0x3fc]);
        renamed[0x3fc..].copy_from_slice(&sum.to_le_bytes());
        guest.world.write(START + 2, &renamed);
        assert!(!guest.retained(), "{:?}", guest.world.status());
        if seed % 2 == 1 {
            // The next daemon knows only what is on the disk.
            guest.world.restart();
        }
        guest.write_tail();
        guest.commit();
        guest.world.check("after a new UUID");

        // It dies: its kernel does not ask for the journal's UUID.
        let mut disk = guest.world.read_all();
        disk[(START + 2) as usize * 512..][..1024].copy_from_slice(&old);
        for (block, content) in replayed(&disk).0 {
            disk[block as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&content[..]);
        }
        guest.world.judge_floors(&disk, "after a new UUID and the guest's death");
    }
}
