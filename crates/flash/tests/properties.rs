//! What every FTL must keep, on tiny drives, against the naive implementations, operation by operation.

mod reference;

use std::panic::{catch_unwind, AssertUnwindSafe};

use afterimage_flash::config::{Config, GcPolicy, MergeFault};
use afterimage_flash::counts::{Cause, Ops};
use afterimage_flash::geometry::Geometry;
use afterimage_flash::workload::Random;
use afterimage_flash::{Ftl, FtlKind, Lpn};
use proptest::prelude::*;
use reference::{Naive, Tally};

/// One request for one page.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Op {
    Write(u32),
    Read(u32),
    Discard(u32),
}

/// A tiny drive: what is simulated, and by whom else.
#[derive(Debug, Clone)]
struct Drive {
    kind: FtlKind,
    logical: u32,
    config: Config,
}

impl Drive {
    fn new(kind: FtlKind, logical: u32, physical: u32, p: u32) -> Self {
        let mut config = Config { geometry: Geometry::small(physical, p), ..Config::default() };
        config.geometry.page_bytes = 512;
        config.superblock.n = 3;
        config.superblock.m = 2;
        config.superblock.map_cache_bytes = Some(3 * 16);
        config.dftl.cmt_bytes = Some(5 * 8);
        // Eight entries a translation page, so that a tiny drive has several.
        config.dftl.flash_entry_bytes = 64;
        Self { kind, logical, config }
    }

    fn pages(&self) -> u32 {
        self.logical * self.config.geometry.pages_per_block
    }

    fn build(&self) -> Box<dyn Ftl> {
        let mut ftl = self.config.build(self.kind, self.logical).unwrap();
        ftl.flash_mut().keep_stamps();
        ftl
    }

    fn naive(&self) -> Box<dyn Naive> {
        let (blocks, p) =
            (self.config.geometry.blocks as usize, self.config.geometry.pages_per_block as usize);
        let cached = |bytes: Option<u64>, each: u64, most: u32| {
            (bytes.unwrap() / each).clamp(1, u64::from(most)) as usize
        };
        match self.kind {
            FtlKind::Page => {
                let mut naive = reference::page::Page::new(blocks, p);
                naive.flash.cost_benefit = self.config.gc_policy == GcPolicy::CostBenefit;
                Box::new(naive)
            }
            FtlKind::Fast => {
                let log = self.config.fast.log_blocks.unwrap_or(blocks as u32 - self.logical - 3);
                Box::new(reference::fast::Fast::new(p as u32, log as usize, self.config.in_order))
            }
            FtlKind::Superblock => {
                let o = &self.config.superblock;
                let supers = self.logical.div_ceil(o.n);
                let cached = cached(o.map_cache_bytes, 16, supers * (o.n * p as u32).div_ceil(8));
                let mut naive = reference::superblock::Superblock::new(
                    blocks,
                    p,
                    self.logical,
                    o.n,
                    o.m,
                    cached,
                    o.hot_cold,
                );
                naive.local_first = o.local_first;
                naive.full_first = o.full_first;
                Box::new(naive)
            }
            FtlKind::Dftl => {
                let o = &self.config.dftl;
                let cached = cached(o.cmt_bytes, 8, self.pages());
                let mut naive = reference::dftl::Dftl::new(blocks, p, cached, o.protected_share, 8, o.batch);
                naive.last_free = o.last_free as usize;
                naive.flash.cost_benefit = self.config.gc_policy == GcPolicy::CostBenefit;
                Box::new(naive)
            }
        }
    }
}

fn tally(ftl: &dyn Ftl) -> Tally {
    let of = |cause: Cause| {
        let Ops { reads, programs, erases } = ftl.flash().counts().of(cause);
        (cause.name(), [reads, programs, erases])
    };
    Cause::ALL.into_iter().map(of).filter(|(_, ops)| *ops != [0; 3]).collect()
}

/// Runs both; every difference is an error that names the operation.
fn run(drive: &Drive, ops: &[Op]) -> Result<Tally, String> {
    let (mut ftl, mut naive) = (drive.build(), drive.naive());
    let mut newest = vec![None; drive.pages() as usize];
    let initially_free = u64::from(drive.config.geometry.pages());
    for (i, op) in ops.iter().enumerate() {
        let fail = |what: String| Err(format!("{} at operation {i}, {op:?}: {what}", drive.kind));
        let before = ftl.flash().counts().clone();
        match *op {
            Op::Write(lpn) => {
                let stamp = i as u32 + 1;
                ftl.flash_mut().set_stamp(stamp);
                ftl.write(Lpn(lpn)).map_err(|e| e.to_string())?;
                naive.write(lpn, stamp);
                newest[lpn as usize] = Some(stamp);
            }
            Op::Read(lpn) => {
                let got = ftl.read(Lpn(lpn), Cause::Host).map_err(|e| e.to_string())?;
                let got = got.map(|ppn| ftl.flash().stamp_of(ppn));
                let expected = naive.read(lpn);
                if got != expected {
                    return fail(format!("read {got:?}, the reference {expected:?}"));
                }
                let after = ftl.flash().counts();
                if drive.kind != FtlKind::Dftl && after.total().programs != before.total().programs {
                    return fail("a read programmed".to_owned());
                }
            }
            Op::Discard(lpn) => {
                ftl.discard(Lpn(lpn)).map_err(|e| e.to_string())?;
                naive.discard(lpn);
                if drive.kind != FtlKind::Superblock {
                    newest[lpn as usize] = None;
                }
            }
        }
        for (lpn, expected) in newest.iter().enumerate() {
            let got = ftl.locate(Lpn(lpn as u32)).map(|ppn| ftl.flash().stamp_of(ppn));
            if got != *expected {
                return fail(format!("page {lpn} holds {got:?}, {expected:?} was written last"));
            }
        }
        if let Err(broken) = ftl.check() {
            return fail(broken);
        }
        if tally(&*ftl) != *naive.tally() {
            return fail(format!("counts {:?}, the reference {:?}", tally(&*ftl), naive.tally()));
        }
        if ftl.flash().counts().spare_reads != naive.spare_reads() {
            return fail(format!(
                "{} spare reads, the reference {}",
                ftl.flash().counts().spare_reads,
                naive.spare_reads()
            ));
        }
        let total = ftl.flash().counts().total();
        let p = u64::from(drive.config.geometry.pages_per_block);
        if total.erases * p < total.programs.saturating_sub(initially_free) {
            return fail(format!("{total:?} is more programs than the erases leave room for"));
        }
    }
    Ok(tally(&*ftl))
}

fn ops(seed: u64, pages: u32, count: usize, discards: bool) -> Vec<Op> {
    let mut random = Random::new(seed);
    let mut ops = Vec::with_capacity(count);
    while ops.len() < count {
        match random.below(12) {
            0..=5 => ops.push(Op::Write(random.below(pages))),
            6 | 7 => {
                // A run, as files make them.
                let (from, len) = (random.below(pages), random.below(12));
                ops.extend((from..(from + len).min(pages)).map(Op::Write));
            }
            8 => ops.push(Op::Write(random.below(pages.min(4)))),
            9 | 10 => ops.push(Op::Read(random.below(pages))),
            _ if discards => ops.push(Op::Discard(random.below(pages))),
            _ => {}
        }
    }
    ops
}

fn drives() -> Vec<Drive> {
    let mut drives = Vec::new();
    for kind in FtlKind::ALL {
        for (logical, physical, p) in [(7, 18, 8), (6, 14, 4), (5, 24, 3), (9, 22, 5)] {
            let drive = Drive::new(kind, logical, physical, p);
            let mut other = drive.clone();
            other.config.dftl.batch = false;
            other.config.dftl.protected_share = 0.4;
            other.config.superblock.hot_cold = false;
            other.config.superblock.m = 1;
            other.config.fast.log_blocks = Some(2);
            drives.extend([drive, other]);
        }
        if kind == FtlKind::Superblock {
            // More superblocks that want extra blocks than the pool has.
            for (hot_cold, local_first) in [(true, false), (false, false), (true, true), (false, true)] {
                let mut drive = Drive::new(kind, 12, 17, 4);
                drive.config.superblock.m = 5;
                drive.config.superblock.hot_cold = hot_cold;
                drive.config.superblock.local_first = local_first;
                let mut other = drive.clone();
                other.config.superblock.full_first = false;
                drives.extend([drive, other]);
            }
        }
    }
    drives
}

#[test]
fn random_traces_give_what_the_reference_gives() {
    let mut all = Tally::new();
    for drive in drives() {
        for seed in 0..12 {
            let trace = ops(seed, drive.pages(), 500, seed % 2 == 1);
            for (cause, count) in run(&drive, &trace).unwrap() {
                let sum = all.entry(cause).or_default();
                (0..3).for_each(|i| sum[i] += count[i]);
            }
        }
    }
    // A proof about merges that never happened would be none.
    let missing: Vec<_> = Cause::ALL
        .into_iter()
        .filter(|c| !matches!(c, Cause::Modify | Cause::WearLevel) && !all.contains_key(c.name()))
        .collect();
    assert!(missing.is_empty(), "no trace caused {missing:?}");
}

#[test]
fn large_blocks_and_full_drives_agree_too() {
    for kind in FtlKind::ALL {
        // 72 pages a block: two words of state, the second one partly used.
        for (logical, physical, p) in [(4, 14, 72), (20, 31, 8)] {
            let drive = Drive::new(kind, logical, physical, p);
            let mut trace: Vec<Op> = (0..drive.pages()).map(Op::Write).collect();
            trace.extend(ops(99, drive.pages(), 1500, false));
            run(&drive, &trace).unwrap();
        }
    }
}

#[test]
fn dftl_agrees_down_to_its_last_free_block() {
    // Scattered operations after a fill in order: every page collected rewrites a translation page.
    let mut tallies = Vec::new();
    for (physical, last_free) in [(462, 1), (480, 1), (480, 3)] {
        let mut drive = Drive::new(FtlKind::Dftl, 400, physical, 16);
        drive.config.dftl.last_free = last_free;
        let mut trace: Vec<Op> = (0..drive.pages()).map(Op::Write).collect();
        trace.extend(ops(7, drive.pages(), 6000, false));
        tallies.push(run(&drive, &trace).unwrap());
    }
    assert_ne!(tallies[1], tallies[2], "the rule never mattered");
}

#[test]
fn cost_benefit_agrees_and_is_not_greedy() {
    for kind in [FtlKind::Page, FtlKind::Dftl] {
        let mut tallies = Vec::new();
        for policy in [GcPolicy::Greedy, GcPolicy::CostBenefit] {
            let mut drive = Drive::new(kind, 100, 124, 16);
            drive.config.gc_policy = policy;
            let mut trace: Vec<Op> = (0..drive.pages()).map(Op::Write).collect();
            trace.extend(ops(11, drive.pages(), 6000, true));
            tallies.push(run(&drive, &trace).unwrap());
        }
        assert_ne!(tallies[0], tallies[1], "{kind}: the policy never mattered");
    }
}

#[test]
fn every_short_trace_on_a_tiny_fast_drive_agrees() {
    // Two logical blocks of three pages: six pages, all traces of six writes, for one and two random log blocks.
    for (log, in_order) in [(1, true), (2, true), (1, false)] {
        let mut drive = Drive::new(FtlKind::Fast, 2, 5 + log, 3);
        drive.config.fast.log_blocks = Some(log);
        drive.config.in_order = in_order;
        let filled: Vec<Op> = if in_order { (0..6).map(Op::Write).collect() } else { Vec::new() };
        every_suffix(&drive, &filled, 7);
        if in_order {
            every_suffix(&drive, &[], 5);
        }
    }
}

#[test]
fn every_short_trace_on_tiny_aged_drives_agrees() {
    for kind in [FtlKind::Page, FtlKind::Dftl, FtlKind::Superblock] {
        let physical = if kind == FtlKind::Dftl { 12 } else { 9 };
        let mut drive = Drive::new(kind, 2, physical, 2);
        drive.config.superblock.n = 1;
        drive.config.superblock.m = 1;
        drive.config.dftl.cmt_bytes = Some(2 * 8);
        for seed in 0..2 {
            let aged = ops(seed, drive.pages(), 40, false);
            every_suffix(&drive, &aged, 5);
        }
    }
}

/// All traces that continue `start` with `len` writes.
fn every_suffix(drive: &Drive, start: &[Op], len: u32) {
    let pages = drive.pages();
    for number in 0..pages.pow(len) {
        let digit = |i: u32| Op::Write(number / pages.pow(i) % pages);
        let trace: Vec<Op> = start.iter().copied().chain((0..len).map(digit)).collect();
        run(drive, &trace).unwrap();
    }
}

#[test]
fn the_same_trace_twice_gives_identical_counters() {
    for drive in drives() {
        let trace = ops(5, drive.pages(), 400, true);
        let once = || {
            let mut ftl = drive.build();
            for op in &trace {
                match *op {
                    Op::Write(lpn) => ftl.write(Lpn(lpn)).unwrap(),
                    Op::Read(lpn) => drop(ftl.read(Lpn(lpn), Cause::Host).unwrap()),
                    Op::Discard(lpn) => ftl.discard(Lpn(lpn)).unwrap(),
                }
            }
            (ftl.flash().counts().clone(), ftl.flash().busy_ns(), ftl.flash().wear())
        };
        assert_eq!(once(), once());
    }
}

#[test]
fn static_wear_levelling_keeps_data_and_narrows_the_spread() {
    for (kind, in_order) in FtlKind::ALL.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let mut spreads = Vec::new();
        for threshold in [None, Some(8), Some(1)] {
            let mut drive = Drive::new(kind, 20, 34, 8);
            drive.config.static_wear = threshold;
            drive.config.in_order = in_order;
            let mut ftl = drive.build();
            let mut newest = vec![0; drive.pages() as usize];
            let mut random = Random::new(1);
            for i in 1..40_000 {
                // Blocks 3 and up are written once.
                let lpn = if i <= drive.pages() { i - 1 } else { random.below(24) };
                ftl.flash_mut().set_stamp(i);
                ftl.write(Lpn(lpn)).unwrap();
                newest[lpn as usize] = i;
                if i % 97 == 0 {
                    ftl.check().unwrap();
                }
            }
            for (lpn, stamp) in newest.iter().enumerate() {
                let at = ftl.locate(Lpn(lpn as u32)).unwrap();
                assert_eq!(ftl.flash().stamp_of(at), *stamp, "{kind}: page {lpn}");
            }
            let (lowest, highest) = ftl.flash().erases_range();
            spreads.push(highest - lowest);
            let counts = ftl.flash().counts();
            let (levelling, all) = (counts.of(Cause::WearLevel).erases, counts.total().erases);
            assert!(levelling * 2 <= all, "{kind}: {levelling} of {all} erases are levelling's");
        }
        println!("{kind}: spread {spreads:?}");
        for levelled in &spreads[1..] {
            assert!(
                *levelled < spreads[0] / 4,
                "{kind}: spread {} without, {levelled} with levelling",
                spreads[0]
            );
        }
    }
}

#[test]
fn levelling_leaves_the_block_alone_whose_pages_are_in_fasts_sequential_log() {
    // A copy without the pages that the log supersedes would take their next writes in place, and the log's copies die.
    let mut drive = Drive::new(FtlKind::Fast, 7, 12, 4);
    drive.config.static_wear = Some(1);
    drive.config.in_order = false;
    let mut traces = vec![[8, 17, 2, 12, 25, 0, 26, 7, 0, 0, 4, 4, 8, 27].map(Op::Write).to_vec()];
    traces.extend((0..200).map(|seed| ops(seed, drive.pages(), 300, seed % 2 == 1)));
    for (number, trace) in traces.iter().enumerate() {
        let mut ftl = drive.build();
        (0..drive.pages()).for_each(|lpn| ftl.write(Lpn(lpn)).unwrap());
        ftl.flash_mut().reset_counters();
        for op in trace {
            match *op {
                Op::Write(lpn) => ftl.write(Lpn(lpn)).unwrap(),
                Op::Read(lpn) => drop(ftl.read(Lpn(lpn), Cause::Host).unwrap()),
                Op::Discard(lpn) => ftl.discard(Lpn(lpn)).unwrap(),
            }
            ftl.check().unwrap_or_else(|broken| panic!("trace {number}: {broken}"));
        }
    }
}

/// Without the canary a green proof proves nothing: each broken rule of merging and collecting must be caught.
#[test]
fn a_broken_merge_rule_is_caught() {
    use MergeFault::*;
    let faults = [
        (FtlKind::Fast, SkipsLogCopies),
        (FtlKind::Fast, PartialStartsLate),
        (FtlKind::Superblock, FullestFirst),
        (FtlKind::Superblock, ForgetsAMove),
        (FtlKind::Dftl, SecondBestVictim),
        (FtlKind::Dftl, ForgetsAMove),
        (FtlKind::Dftl, DropsDirtyEntries),
        (FtlKind::Page, SecondBestVictim),
        (FtlKind::Page, ForgetsAMove),
    ];
    for (kind, fault) in faults {
        let mut drive = match kind {
            // More superblocks that want extra blocks than the pool has.
            FtlKind::Superblock => Drive::new(kind, 12, 17, 4),
            _ => Drive::new(kind, 6, 14, 4),
        };
        let trace = ops(1, drive.pages(), 500, false);
        assert_eq!(run(&drive, &trace).map(drop), Ok(()), "{kind}");
        drive.config.merge_fault = fault;
        let verdict = catch_unwind(AssertUnwindSafe(|| run(&drive, &trace)));
        assert!(!matches!(verdict, Ok(Ok(_))), "{kind}: {fault:?} went unnoticed");
        let verdict = verdict.expect("the oracle says what is wrong, it does not panic");
        let difference = verdict.unwrap_err();
        println!("{fault:?}: {difference}");
        let named = ["was written last", "the reference", "is not its live copy"];
        assert!(
            named.iter().any(|reason| difference.contains(reason)),
            "{kind}: {fault:?} was noticed for another reason: {difference}"
        );
    }
}

#[test]
fn nand_rules_are_enforced() {
    use afterimage_flash::geometry::Timing;
    use afterimage_flash::nand::Flash;
    use afterimage_flash::Block;
    let fresh = || Flash::new(Geometry::small(2, 4), Timing::default(), true);
    type Breach = (&'static str, fn(&mut Flash));
    let breaches: [Breach; 6] = [
        ("programmed twice", |f| {
            f.program_at(Block(0), 1, 0, Cause::Host);
            f.program_at(Block(0), 1, 0, Cause::Host);
        }),
        ("programmed backwards", |f| {
            f.program_at(Block(0), 1, 0, Cause::Host);
            f.program_at(Block(0), 0, 0, Cause::Host);
        }),
        ("beyond the block", |f| {
            f.program_at(Block(0), 4, 0, Cause::Host);
        }),
        ("erased while live", |f| {
            f.program_at(Block(0), 0, 0, Cause::Host);
            f.erase(Block(0), Cause::Host);
        }),
        ("read while dead", |f| {
            let ppn = f.program_at(Block(0), 0, 0, Cause::Host);
            f.invalidate(ppn);
            f.read(ppn, Cause::Host);
        }),
        ("killed twice", |f| {
            let ppn = f.program_at(Block(0), 0, 0, Cause::Host);
            f.invalidate(ppn);
            f.invalidate(ppn);
        }),
    ];
    for (name, breach) in breaches {
        let mut flash = fresh();
        assert!(catch_unwind(AssertUnwindSafe(|| breach(&mut flash))).is_err(), "a page may be {name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_trace_gives_what_the_reference_gives(
        kind in prop::sample::select(FtlKind::ALL.to_vec()),
        (logical, p) in (2_u32..8, 2_u32..9),
        spare in 9_u32..14,
        trace in prop::collection::vec((0_u8..10, 0_u32..64), 1..300),
    ) {
        let drive = Drive::new(kind, logical, logical + spare, p);
        let pages = drive.pages();
        let trace: Vec<Op> = trace.into_iter().map(|(what, lpn)| match what {
            0 => Op::Read(lpn % pages),
            1 => Op::Discard(lpn % pages),
            _ => Op::Write(lpn % pages),
        }).collect();
        if let Err(difference) = run(&drive, &trace) {
            prop_assert!(false, "{difference}");
        }
    }
}
