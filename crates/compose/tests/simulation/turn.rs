//! One daemon's life, in turns: the guest's queues, the log's sync, the way home and the clock, and what each step of a run does to them.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Disk, Lane};
use afterimage_frontend::stepped::Stepped;
use afterimage_frontend::{FrontendStats, QueueStats};
use afterimage_journal::group::RetainGroup;
use afterimage_order::Clock as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::disk::{versions, Kind};
use crate::driver::{Ask, Driver, Ticket, QUEUES};
use crate::plan::{Op, Step};
use crate::run::{End, Goes, Sim};
use crate::store::{Died, Machine, IMAGE, LOG};

/// What a guest waits for.
pub enum Pending {
    Data(Vec<(usize, u32)>),
    Read {
        block: usize,
        submitted: u64,
    },
    Flush {
        submitted: u64,
    },
    Commit(usize),
    /// Of the journal, or of recovery.
    Plain,
}

/// The guest and everybody else, taking turns while one daemon lives.
pub struct Turn<'a, 'p> {
    pub sim: &'a mut Sim<'p>,
    machine: &'a Arc<Machine>,
    pub group: &'a Arc<RetainGroup>,
    pub queues: Vec<Stepped<&'a mut dyn Lane, &'a QueueStats>>,
    pub rng: ChaCha8Rng,
    /// What a read has found.
    pub read: Vec<u8>,
}

impl<'a, 'p> Turn<'a, 'p> {
    pub fn new(
        sim: &'a mut Sim<'p>,
        group: &'a Arc<RetainGroup>,
        machine: &'a Arc<Machine>,
        stats: &'a FrontendStats,
        lanes: &'a mut [Box<dyn Lane>],
        disk: &dyn Disk,
    ) -> Goes<Self> {
        let mut queues = Vec::new();
        for (index, lane) in lanes.iter_mut().enumerate() {
            let (guest, flushed) = (&sim.driver.guest, sim.config.flushed);
            let stats = stats.queue(index as u16).expect("as many as there are queues");
            let lane: &mut dyn Lane = &mut **lane;
            queues.push(Stepped::start(guest, Driver::place(index), flushed, disk, lane, stats)?);
        }
        let rng = ChaCha8Rng::seed_from_u64(sim.rng.random());
        Ok(Self { sim, machine, group, queues, rng, read: Vec::new() })
    }

    pub fn steps(&mut self, steps: &[Step]) -> Goes {
        while let Some(step) = steps.get(self.sim.at) {
            let at = self.sim.at;
            self.sim.at += 1;
            self.rng = ChaCha8Rng::seed_from_u64(u64::from(step.seed));
            self.machine.reseed(u64::from(step.seed));
            let (now, ops) = (self.machine.now(), self.machine.world.ops());
            self.sim.trace.note(format_args!("{now:?} {at} {:?} after {ops} operations", step.op));
            self.sim.busy = matches!(step.op, Op::Commit | Op::Checkpoint);
            self.step(step.op)?;
            self.sim.busy = false;
        }
        Ok(())
    }

    fn step(&mut self, op: Op) -> Goes {
        match op {
            Op::Data => self.data(),
            Op::Read => self.look(),
            Op::Flush => self.flush().map(|_| ()),
            Op::Commit => self.commit(),
            Op::Checkpoint => self.checkpoint(),
            Op::Turns(count) => (0..count).try_for_each(|_| self.turn()),
            Op::Jump => {
                self.machine.advance(Duration::from_millis(self.rng.random_range(1..500)));
                Ok(())
            }
            Op::Sync => self.sync(),
            Op::Home => {
                self.machine.home_turn(true);
                Ok(())
            }
            Op::Settle => {
                let before = self.sim.oracle.moment();
                if self.group.flush().is_ok() {
                    self.sim.oracle.settled(before);
                }
                Ok(())
            }
            Op::Pause => self.pause(),
            Op::Fail { image, fault, skip } => {
                let medium = if image { IMAGE } else { LOG };
                self.machine.world.fail(medium, fault, skip.into(), io::ErrorKind::Other);
                Ok(())
            }
            Op::Reset => Err(End::Reset),
            Op::Kill | Op::Cut | Op::KillTwice(_) => {
                self.sim.power = op == Op::Cut;
                self.sim.again = match op {
                    Op::KillTwice(ops) => Some(ops.into()),
                    _ => None,
                };
                self.machine.world.halt_after(0);
                resume_unwind(Box::new(Died))
            }
            Op::KillAfter(ops) | Op::CutAfter(ops) => {
                self.sim.power = matches!(op, Op::CutAfter(_));
                self.machine.world.halt_after(ops.into());
                Ok(())
            }
        }
    }

    /// Somebody acts.
    pub fn turn(&mut self) -> Goes {
        self.machine.look();
        match self.rng.random_range(0..16) {
            0..10 => self.serve(),
            10 => {
                self.machine.sync_turn();
                Ok(())
            }
            11 => {
                self.machine.home_turn(self.rng.random());
                Ok(())
            }
            12 => {
                self.group.turn();
                Ok(())
            }
            _ => {
                self.machine.advance(Duration::from_micros(self.rng.random_range(0..2000)));
                Ok(())
            }
        }
    }

    fn serve(&mut self) -> Goes {
        let queue = self.rng.random_range(0..QUEUES);
        self.queues[queue].turn()?;
        self.hear(queue)
    }

    /// The guest takes what it was answered.
    fn hear(&mut self, queue: usize) -> Goes {
        let mut failed = false;
        for answer in self.sim.driver.poll(queue)? {
            let pending = self.sim.pending.remove(&answer.ticket);
            let pending = pending.ok_or_else(|| format!("{:?} was answered twice", answer.ticket))?;
            let good = answer.good;
            self.sim.trace.note(format_args!("  {:?}: {good}", answer.ticket));
            failed |= !good;
            match pending {
                Pending::Data(written) => {
                    for (block, version) in written {
                        self.sim.fs.busy.remove(&block);
                        if good {
                            self.sim.oracle.written(block, version);
                        }
                    }
                }
                Pending::Read { block, submitted } if good => {
                    for (i, found) in versions(Kind::Data, block, &answer.data)?.iter().enumerate() {
                        if !self.sim.oracle.may_read(block, i, *found, submitted) {
                            let what = format!("a read of data block {block} sector {i} found {found:?}");
                            return Err(End::Broken(what));
                        }
                    }
                }
                Pending::Flush { submitted } if good => {
                    self.sim.oracle.flushed(submitted, self.machine.now());
                }
                Pending::Commit(transaction) if good => self.sim.oracle.committed(transaction),
                Pending::Plain if good => self.read = answer.data,
                _ => {}
            }
        }
        match failed {
            true => Err(End::Failed),
            false => Ok(()),
        }
    }

    pub fn submit(&mut self, ask: Ask<'_>, pending: Pending) -> Goes<Ticket> {
        loop {
            let queue = self.rng.random_range(0..QUEUES);
            if let Some(ticket) = self.sim.driver.submit(queue, ask) {
                self.sim.pending.insert(ticket, pending);
                return Ok(ticket);
            }
            self.turn()?;
        }
    }

    pub fn wait(&mut self, ticket: Ticket) -> Goes {
        while self.sim.pending.contains_key(&ticket) {
            self.turn()?;
        }
        Ok(())
    }

    pub fn wait_all(&mut self, tickets: Vec<Ticket>) -> Goes {
        tickets.into_iter().try_for_each(|ticket| self.wait(ticket))
    }

    pub fn drain(&mut self) -> Goes {
        while !self.sim.pending.is_empty() {
            self.turn()?;
        }
        Ok(())
    }

    /// A sync of the log, with requests that come in while it runs.
    fn sync(&mut self) -> Goes {
        let Some(redo) = self.machine.redo() else { return Ok(()) };
        self.machine.begin_sync(&redo);
        for _ in 0..self.rng.random_range(0..3) {
            self.serve()?;
        }
        if self.rng.random() {
            // Too early for the schedule.
            let _ = redo.syncer.turn();
        }
        self.machine.end_sync(&redo);
        for _ in 0..self.rng.random_range(0..3) {
            self.serve()?;
        }
        // Finished, and perhaps written ahead.
        for _ in 0..self.rng.random_range(1..3) {
            self.machine.sync_turn();
        }
        Ok(())
    }

    /// While it is paused, writes wait, and the image is all there is.
    fn pause(&mut self) -> Goes {
        self.drain()?;
        let before = self.sim.oracle.moment();
        if self.group.pause(None).is_err() {
            return Ok(());
        }
        self.sim.oracle.settled(before);
        self.data()?;
        for _ in 0..self.rng.random_range(0..4) {
            self.serve()?;
        }
        self.group.resume();
        Ok(())
    }
}
