//! One guest's daemon: its queue, its group and its machine, stepped.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use afterimage_block::{Disk, Geometry, Quiesced};
use afterimage_frontend::inband::{Peer, Progress};
use afterimage_frontend::stepped::Stepped;
use afterimage_frontend::{QueueStats, RequestKind};
use afterimage_journal::group::RetainGroup;

use crate::calendar::Ns;
use crate::machine::{Died, Machine};
use crate::meeting::WAIT;
use crate::site::Site;
use crate::storage::ns;

/// How long a kick is on its way to the daemon: what a guest may run on alone after it has asked for something, since nothing
/// can be answered sooner. A wake-up on a machine of today takes as long.
pub const KICK_NS: Ns = 5_000;

/// What a panic has said.
pub fn panic_said(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of a kind of its own")
}

/// See the module.
pub struct Daemon {
    machine: Arc<Machine>,
    /// Until it is dead.
    layers: Option<Layers>,
    geometry: Geometry,
    stats: Arc<QueueStats>,
    queue: Option<Stepped>,
    /// When a kick arrives.
    kicked: Option<Ns>,
    /// When the driver is to be interrupted.
    rings: Option<Ns>,
    /// When room among retained journals is looked at.
    looks: Option<Ns>,
}

#[derive(Clone)]
struct Layers {
    group: Arc<RetainGroup>,
    disk: Arc<dyn Disk>,
}

impl Daemon {
    /// A daemon without a guest.
    pub fn new(site: &Site) -> Self {
        Self {
            machine: Arc::clone(&site.machine),
            layers: Some(Layers { group: Arc::clone(&site.group), disk: Arc::clone(&site.disk) }),
            geometry: site.disk.geometry(),
            stats: Arc::default(),
            queue: None,
            kicked: None,
            rings: None,
            looks: site.group.disk_status(0).map(|_| 0),
        }
    }

    /// When it has something to do, or something happens to its guest. Nothing happens to the guest before that but what it asks for.
    pub fn next(&self) -> Option<Ns> {
        if !self.lives() {
            return self.rings;
        }
        let now = self.machine.now_ns();
        // Its thread may be busy until later; an interrupt that it has decided upon is not held up by that.
        let busy = self.kicked.into_iter().chain(self.looks).map(|at| at.max(now));
        busy.chain(self.rings).chain(self.machine.next()).min()
    }

    /// How often its guest has asked for the disk's serial number.
    pub fn asked(&self) -> u64 {
        let all = self.stats.snapshot().operations;
        all.iter().find(|o| o.kind == RequestKind::Other).map_or(0, |o| o.requests)
    }

    /// What its guest is told when it asks for the disk's serial number.
    pub fn set_serial(&mut self, serial: &str) {
        if let Some(queue) = &mut self.queue {
            queue.set_serial(serial);
        }
    }

    /// What its guest sees.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How far its guest's queue has come, where somebody waits and it does nothing for them: neither it nor its device is busy, and
    /// nobody is on the way to anybody.
    pub fn stands(&self, now: Ns, peer: Option<&Peer>) -> Option<Progress> {
        let rests = self.queue.is_some() && self.kicked.or(self.rings).is_none() && self.machine.rests(now);
        peer.filter(|_| rests).and_then(Peer::progress).filter(|progress| progress.waits())
    }

    /// Its machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Whether it is there.
    pub fn lives(&self) -> bool {
        self.layers.is_some()
    }

    /// It dies here, if it has not yet: what it had in memory is lost.
    pub fn die(&mut self) {
        self.machine.bury();
        (self.queue, self.layers) = (None, None);
        (self.kicked, self.looks) = (None, None);
    }

    /// Does something, in which a daemon that may be killed may die. `None`: it is dead.
    fn mortally<R>(
        &mut self,
        work: impl FnOnce(&mut Self, Layers) -> Result<R, String>,
    ) -> Result<Option<R>, String> {
        let Some(layers) = self.layers.clone() else { return Ok(None) };
        if !self.machine.is_mortal() {
            return work(self, layers).map(Some);
        }
        match catch_unwind(AssertUnwindSafe(|| work(self, layers))) {
            Ok(done) => done.map(Some),
            Err(panic) if panic.is::<Died>() => {
                self.die();
                Ok(None)
            }
            Err(panic) => Err(format!("a panic: {}", panic_said(&*panic))),
        }
    }

    /// The guest has made requests available, at that time of its own.
    pub fn kick(&mut self, at: Ns) {
        if self.lives() {
            self.kicked.get_or_insert(at + KICK_NS);
        }
    }

    /// It is not told of what has been made available (a canary).
    pub fn lose_kick(&mut self) {
        self.kicked = None;
    }

    /// The guest has set its queue up.
    ///
    /// # Errors
    /// The queue cannot be served.
    pub fn attach(&mut self, peer: &Peer, at: Ns) -> Result<(), String> {
        let attached = self.mortally(|daemon, Layers { group, disk }| {
            daemon.machine.reach(at);
            let lane = disk.open_lane().map_err(|e| e.to_string())?;
            group.guest_was_seen(0);
            daemon.queue = Some(peer.serve(&*disk, lane, &daemon.stats)?);
            daemon.set_serial(WAIT);
            daemon.kick(at);
            Ok(())
        });
        attached.map(drop)
    }

    /// The guest has gone, or has disabled its queue: nothing of it is in flight afterwards.
    ///
    /// # Errors
    /// The queue broke.
    pub fn detach(&mut self, at: Ns) -> Result<(), String> {
        self.kicked = None;
        self.rings = None;
        let detached = self.mortally(|daemon, Layers { disk, .. }| {
            daemon.machine.reach(at);
            if let Some(mut queue) = daemon.queue.take() {
                queue.quiesce()?;
                disk.quiesced(Quiesced::Disconnected);
            }
            Ok(())
        });
        detached.map(drop)
    }

    /// Does what is due. Whether the driver is to be interrupted now.
    ///
    /// # Errors
    /// The queue broke, or the group has failed.
    pub fn step(&mut self, now: Ns, peer: Option<&Peer>) -> Result<bool, String> {
        let rings = self.rings.take_if(|at| *at <= now).is_some();
        if self.machine.now_ns() > now {
            return Ok(rings);
        }
        let rung = self.mortally(|daemon, Layers { group, .. }| daemon.work(now, &group, peer))?;
        Ok(rings || rung.unwrap_or(false))
    }

    fn work(&mut self, now: Ns, group: &RetainGroup, peer: Option<&Peer>) -> Result<bool, String> {
        self.machine.reach(now);
        self.kicked.take_if(|at| *at <= now);
        self.machine.turn().map_err(|e| e.to_string())?;
        if self.looks.is_some_and(|at| at <= now) {
            let (wait, until) = self.machine.beside(|| group.turn());
            // "At once" is after what is to be done now.
            self.looks = Some(until + ns(wait).max(KICK_NS));
        }
        let mut rung = false;
        if let (Some(queue), Some(peer)) = (&mut self.queue, peer) {
            queue.run()?;
            rung = peer.has_rung();
        }
        let at = self.machine.now_ns();
        if rung && at > now {
            // It was busy until then.
            self.rings = Some(self.rings.map_or(at, |earlier| earlier.min(at)));
            rung = false;
        }
        Ok(rung)
    }
}
