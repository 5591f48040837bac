//! What a run goes through: the process dies, a medium fails, the power is cut, also during recovery; and what must be
//! there afterwards.

use super::*;

impl Run {
    /// The process dies between two operations, or after having been halted in one, and another one starts. Everything
    /// that completed is there: the process rule.
    pub(super) fn die(&mut self) -> Checked {
        self.tally.deaths += 1;
        self.count_core();
        let completed = self.completed_max;
        self.core = None;
        for lane in &mut self.lanes {
            lane.pending.retain(|_, p| matches!(p, Pending::Write { sequence: None, .. }));
        }
        // The records of a batch whose write was cut short may be there, complete and in order.
        let unnumbered: Vec<_> = {
            let lane = &mut self.lanes[self.acting];
            let tokens = std::mem::take(&mut lane.unnumbered);
            tokens.iter().filter_map(|t| lane.pending.remove(t)).collect()
        };
        self.lanes.clear();
        self.world.revive();
        self.world.heal();
        let world = self.world.clone();
        let core = self.open_core(&world)?;
        let found = core.board.sequence.acknowledged.get().0;
        self.tally.torn_sets += u64::from(self.broken_set.is_some());
        if let Some(changes) = self.broken_set.take() {
            // Nothing was appended after it. Of how many records it was, the content will tell.
            if found > self.history.last() {
                self.history.push_set(changes, found);
            }
        }
        for pending in unnumbered {
            if let (true, Pending::Write { change, .. }) = (self.history.last() < found, pending) {
                self.history.push(change);
            }
        }
        if found < completed || found != self.history.last() {
            return Err(format!(
                "after a death: {completed} had completed and {} was in the log, {found} is there",
                self.history.last()
            ));
        }
        if let Some(d) = difference(&self.read_all(&core, &world)?, &self.history.prefix(found)) {
            return Err(format!("after a death: {d}"));
        }
        drop(core);
        self.start()?;
        if self.core().board.sequence.acknowledged.get().0 != found {
            return Err("a second opening found another prefix".to_owned());
        }
        Ok(())
    }

    /// The process dies within one of the next operations.
    pub(super) fn die_within(&mut self) -> Checked {
        self.world.halt_after(self.rng.random_range(1..12));
        for _ in 0..60 {
            if self.world.halted() {
                break;
            }
            let lane = self.rng.random_range(0..self.lanes.len());
            match self.rng.random_range(0..8) {
                0 => self.sync()?,
                1 => self.round_home()?,
                3 | 4 => self.write_set()?,
                2 => self.flush(lane)?,
                _ => self.write(lane)?,
            }
        }
        self.die()
    }

    /// A failure has turned the group read-only: flushes fail, reads go on, and a restart finds everything.
    pub(super) fn after_failure(&mut self) -> Checked {
        self.tally.failures += 1;
        for lane in 0..self.lanes.len() {
            self.read_somewhere(lane)?;
            let token = self.token();
            let request = Request {
                token,
                operation: Operation::Flush(FlushKind::Order),
                sector: Sector(0),
                sectors: 0,
                buffers: Buffers::empty(),
            };
            let lane = &mut self.lanes[lane].lane;
            let mut completions = Vec::new();
            lane.submit(request);
            lane.dispatch();
            lane.reap(&mut completions);
            if !completions.iter().any(|c| c.token == token && c.result.is_err()) {
                return Err("a flush after a failure did not fail".to_owned());
            }
            if lane.in_flight() > 0 {
                return Err("a request hangs after a failure".to_owned());
            }
        }
        let core = Arc::clone(self.core());
        let all = self.read_all(&core, &self.world)?;
        if let Some(d) = difference(&all, &self.history.prefix(self.history.last())) {
            return Err(format!("reads after a failure: {d}"));
        }
        drop(core);
        // Dies first: what an unanswered write has left is known only after that.
        self.die()?;
        self.cuts_here(3)
    }

    /// Power cuts somewhere in the trace: each leaves an allowed prefix.
    pub(super) fn cuts_here(&mut self, cuts: usize) -> Checked {
        let ops = self.world.ops();
        for _ in 0..cuts {
            // Recent operations more often, the newest state most often.
            let back = match self.rng.random_range(0..3) {
                0 => 0,
                1 => self.rng.random_range(0..=ops.min(12)),
                _ => self.rng.random_range(0..=ops),
            };
            self.cut(ops - back).map_err(|e| format!("cut after operation {} of {ops}: {e}", ops - back))?;
        }
        Ok(())
    }

    /// Cuts, recovers, checks; returns the recovered world and the prefix.
    pub(super) fn cut(&mut self, at: usize) -> Result<(SimWorld, u64), String> {
        self.tally.cuts += 1;
        let torn = self.rng.random();
        let world = self.world.crash(at, CrashOptions { torn }, &mut self.rng);
        let before = world.clone();
        let core = self.open_core(&world)?;
        let found = core.board.sequence.acknowledged.get().0;
        self.check_prefix(at, found)?;
        let expected = self.history.prefix(found);
        if let Some(d) = difference(&self.read_all(&core, &world)?, &expected) {
            return Err(format!("prefix {found}: {d}"));
        }
        core.syncer.sync().and_then(|_| core.going_home.all()).map_err(|e| format!("going home: {e}"))?;
        let homes: Vec<_> = (1..=self.disk_sectors.len()).map(|i| world.cached(i)).collect();
        if let Some(d) = difference(&homes, &expected) {
            return Err(format!("prefix {found}, at home: {d}"));
        }
        drop(core);
        self.cut_in_recovery(&world, found, &expected)?;
        Ok((before, found))
    }

    /// Another cut, anywhere in what recovery did.
    pub(super) fn cut_in_recovery(&mut self, world: &SimWorld, found: u64, expected: &[Vec<u8>]) -> Checked {
        self.tally.recovery_cuts += 1;
        let again = self.rng.random_range(0..=world.ops());
        let torn = self.rng.random();
        let world = world.crash(again, CrashOptions { torn }, &mut self.rng);
        let core = self.open_core(&world).map_err(|e| format!("second recovery, cut {again}: {e}"))?;
        if core.board.sequence.acknowledged.get().0 != found {
            return Err(format!(
                "the second recovery found {} instead of {found}",
                core.board.sequence.acknowledged.get().0
            ));
        }
        match difference(&self.read_all(&core, &world)?, expected) {
            Some(d) => Err(format!("second recovery after a cut at {again}: {d}")),
            None => Ok(()),
        }
    }

    pub(super) fn check_prefix(&mut self, at: usize, found: u64) -> Checked {
        if found > self.history.last() {
            return Err(format!("prefix {found} is longer than the history"));
        }
        if !self.history.may_end_at(found) {
            return Err(format!("prefix {found} ends within a set"));
        }
        let floor = self.floors.iter().filter(|(ops, _)| *ops <= at).map(|(_, f)| *f).max().unwrap_or(0);
        if found < floor {
            return Err(format!("prefix {found}, and {floor} had been declared durable"));
        }
        let lost = || self.acks.iter().filter(|a| a.ops <= at && a.covers > found);
        let times = (lost().map(|a| a.at_us).min(), lost().map(|a| a.at_us).max());
        self.tally.lost_acks += lost().count() as u64;
        if let (Some(first), Some(last)) = times {
            if last - first > WINDOW.as_micros() as u64 {
                return Err(format!("a cut lost {} µs of acknowledgements", last - first));
            }
        }
        Ok(())
    }

    /// The power goes, now, and life goes on from what it left.
    pub(super) fn cut_and_go_on(&mut self) -> Checked {
        let ops = self.world.ops();
        let (world, found) = self.cut(ops).map_err(|e| format!("cut after all {ops} operations: {e}"))?;
        self.count_core();
        self.core = None;
        self.lanes.clear();
        // `cut` has recovered in that world; take the same state as it was before.
        self.world = world.rewound();
        self.history = self.history.truncated(found);
        self.acks.clear();
        self.floors = vec![(0, found)];
        self.completed_max = found;
        self.start()?;
        if self.core().board.sequence.acknowledged.get().0 != found {
            return Err("recovery is not repeatable".to_owned());
        }
        Ok(())
    }
}
