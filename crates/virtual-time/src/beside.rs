//! A guest's control disk, in virtual time: a guest here has one device, and its control disk is what lies behind the end of its disk.
//! Inside, `addpart` makes a device of it.
//!
//! ```text
//!   /dev/vda   0 ───────────── the image ───────────── end ───── 64 MiB ─────►
//!                                                      └ ControlDisk: commands, answers
//! ```
//!
//! One queue serves both, which changes nothing: nobody's processor is modelled, and a command is charged as any request is.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, Geometry, Health, Lane, Operation, Quiesced, Request, Sector,
};
use afterimage_control_disk::{ControlDisk, ControlLane, Promise, Published};
use afterimage_journal::group::RetainGroup;
use afterimage_order::Contract;
use parking_lot::Mutex;

use crate::calendar::Ns;
use crate::machine::Machine;
use crate::storage::ns;

/// Hears of each commit that is published in memory which was lent.
pub type HearPublished = Arc<dyn Fn(Published) + Send + Sync>;

/// See the module.
pub struct Beside {
    disk: Arc<dyn Disk>,
    control: ControlDisk,
    machine: Arc<Machine>,
    hear: Option<HearPublished>,
    /// The queue's.
    lane: Mutex<Weak<Mutex<ControlLane>>>,
}

impl Beside {
    /// A disk with the control disk of its group behind it; what is handed over there goes through `way_in`, which leads to the same disk.
    /// Memory may be lent to it. `hear`: hears what is published there.
    ///
    /// # Errors
    /// No thread is left.
    pub fn new(
        disk: Arc<dyn Disk>,
        way_in: Arc<dyn Disk>,
        group: &Arc<RetainGroup>,
        contract: Contract,
        machine: &Arc<Machine>,
        hear: Option<HearPublished>,
    ) -> io::Result<Self> {
        let promise = Promise { contract, text: contract.to_string(), lends: true };
        let clock = Arc::clone(machine) as _;
        let control = ControlDisk::heard(Arc::clone(group) as _, promise, vec![way_in], clock)?;
        let (machine, lane) = (Arc::clone(machine), Mutex::default());
        Ok(Self { disk, control, machine, hear, lane })
    }

    /// Has what is published by now heard, and nothing of it taken.
    pub fn listen(&self) {
        let lane = self.lane.lock().upgrade();
        if let Some(lane) = lane {
            lane.lock().listen();
        }
    }
}

impl Disk for Beside {
    fn geometry(&self) -> Geometry {
        let own = self.disk.geometry();
        Geometry { sectors: own.sectors + self.control.geometry().sectors, ..own }
    }

    fn serial(&self) -> &str {
        self.disk.serial()
    }

    fn health(&self) -> &Health {
        self.disk.health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let mut control = self.control.lane()?;
        if let Some(hear) = self.hear.clone() {
            control.heard_by(Box::new(move |published| hear(published)));
        }
        let control = Arc::new(Mutex::new(control));
        *self.lane.lock() = Arc::downgrade(&control);
        Ok(Box::new(BesideLane {
            geometry: self.geometry(),
            end: Sector(self.disk.geometry().sectors),
            disk: self.disk.open_lane()?,
            control,
            machine: Arc::clone(&self.machine),
            looks: None,
        }))
    }

    fn quiesced(&self, why: Quiesced) {
        self.disk.quiesced(why);
    }
}

struct BesideLane {
    geometry: Geometry,
    /// Of the disk.
    end: Sector,
    disk: Box<dyn Lane>,
    control: Arc<Mutex<ControlLane>>,
    machine: Arc<Machine>,
    /// When the control disk looks again, unasked.
    looks: Option<(Ns, u64)>,
}

impl BesideLane {
    /// Has the machine come by when the control disk has to look.
    fn look_later(&mut self) {
        let at = self.control.lock().deadline().map(ns);
        if self.looks.map(|(at, _)| at) != at {
            self.look_no_more();
            self.looks = at.map(|at| self.machine.promise(at));
        }
    }

    fn look_no_more(&mut self) {
        if let Some(due) = self.looks.take() {
            self.machine.keep(due);
        }
    }
}

impl Drop for BesideLane {
    fn drop(&mut self) {
        self.look_no_more();
    }
}

impl Lane for BesideLane {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn take(&mut self, request: Admitted) {
        if matches!(request.operation, Operation::Flush(_)) || request.sector < self.end {
            // Admitted again: it must not cross the end.
            return self.disk.submit(request.into_request());
        }
        self.machine.charge();
        let request = request.into_request();
        self.control.lock().submit(Request { sector: Sector(request.sector.0 - self.end.0), ..request });
        self.look_later();
    }

    fn refuse(&mut self, refusal: Completion) {
        self.disk.refuse(refusal);
    }

    fn dispatch(&mut self) {
        self.disk.dispatch();
        self.control.lock().dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.disk.reap(completions);
        self.control.lock().reap(completions);
        self.look_later();
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight() + self.control.lock().in_flight()
    }

    /// What is handed over goes to memory, and waits for no disk; and until memory that was lent is looked at nothing else happens.
    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        if self.disk.in_flight() > 0 {
            return self.disk.wait(also, timeout);
        }
        if let Some((at, _)) = self.looks {
            self.machine.reach(at);
        }
        self.control.lock().wait(also, timeout)
    }
}
