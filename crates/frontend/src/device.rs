//! The device's state as the peer sets it up, and the start and stop of its queues.
//!
//! A queue runs while it has a size, addresses and a kick descriptor (or the word that there is none) and is
//! enabled. Everything that changes what a running queue stands on (memory, kick descriptor, write cache) stops it
//! first, which leaves nothing in flight, and starts it again where it was. Where a queue cannot start on the new ground,
//! the message is refused and all of them go on on the old one.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Admitted, Disk, FlushKind, Lane, Quiesced, Token};
use afterimage_seldom::{Lines, Seldom};
use parking_lot::Mutex;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use tracing::{info, warn};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::Backend;

use crate::config::{config_space, protocol_features, within_config, Features, SEG_MAX, WRITEBACK_OFFSET};
use crate::inflight::{region_bytes, ring_size_of, Damaged, Inflight, Region as InflightRegion};
use crate::keep::KeepHandle;
use crate::memory::{GuestMemory, Mapping, UserAddress};
use crate::notify::{Call, Doorbell, NotADoorbell, Ringer};
use crate::queue::{CallSlot, Ended, Run};
use crate::request::Shape;
use crate::ring::{Ring, RingAddresses};
use crate::worker::{Alarms, Worker};
use crate::write_cache::{Choice, WriteCache};
use crate::{FrontendError, FrontendStats, ServeOptions};

/// VIRTIO_CONFIG_S_NEEDS_RESET.
const S_NEEDS_RESET: u8 = 0x40;

/// What the peer said about one queue.
#[derive(Default)]
pub(crate) struct QueueState {
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    pub base: u16,
    /// `Some(None)`: the queue is to be polled.
    kick: Option<Option<Arc<Doorbell>>>,
    pub enabled: bool,
    err: Option<Doorbell>,
}

/// A refusal, in words for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub String);

impl From<&str> for Refused {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

impl From<NotADoorbell> for Refused {
    fn from(what: NotADoorbell) -> Self {
        Self(what.to_string())
    }
}

/// One disk as a vhost-user device.
pub(crate) struct Device {
    name: String,
    disk: Arc<dyn Disk>,
    options: ServeOptions,
    alarms: Arc<Alarms>,
    workers: Vec<Worker>,
    /// The session thread's own way to the disk, for the flush that switching the cache off needs.
    control: Box<dyn Lane>,
    pub queues: Vec<QueueState>,
    /// Where each queue's driver is notified; they outlive connections, since no ring can be made later.
    calls: Vec<CallSlot>,
    /// For what is rung rarely, and to find out what a descriptor is.
    ringer: Ringer,
    /// Queues are set up again as another daemon had them, and start together when all is there.
    taking_over: bool,
    /// Where somebody waits until all is there, and given to the lanes.
    over: Option<Sender<Infallible>>,
    memory: Arc<GuestMemory>,
    inflight: Option<InflightRegion>,
    /// Queues that have yet to submit again what an earlier daemon had in flight: one bit each.
    owed: Arc<AtomicU64>,
    pub features: Features,
    pub protocol: u64,
    status: u8,
    cache: WriteCache,
    narrow: Seldom,
    /// Of this connection: whether SET_OWNER came before its peer asked for protocol features.
    owner_first: Option<bool>,
    /// Of this connection: its peer reads the configuration where others do not.
    config_again: bool,
    /// What else its guest does for ever.
    lines: Arc<Lines>,
    /// A queue has run since the disk was last told that none does.
    active: bool,
    /// Kept only to stay open: User Mode Linux fails all I/O once its end sees a close.
    pub backend_channel: Option<Backend>,
}

impl Device {
    pub fn new(
        name: &str,
        disk: Arc<dyn Disk>,
        options: ServeOptions,
        stats: Arc<FrontendStats>,
    ) -> Result<Self, FrontendError> {
        let alarms = Arc::new(Alarms::new().map_err(|e| FrontendError::io("cannot create an eventfd", e))?);
        let workers = (0..options.queues)
            .map(|q| {
                let (disk, stats, alarms) = (Arc::clone(&disk), Arc::clone(&stats), Arc::clone(&alarms));
                Worker::start(name, q, disk, stats, alarms, options.hurry.clone())
            })
            .collect::<Result<_, _>>()?;
        let control =
            disk.open_lane().map_err(|source| FrontendError::Lane { queue: options.queues, source })?;
        let ring = |e| FrontendError::io("cannot create an io_uring to notify guests with", e);
        let calls = (0..options.queues).map(|_| Ok(Arc::new(Mutex::new(Call::new().map_err(ring)?))));
        let mut device = Self {
            name: name.to_owned(),
            disk,
            alarms,
            workers,
            control,
            queues: Vec::new(),
            calls: calls.collect::<Result<_, FrontendError>>()?,
            ringer: Ringer::new().map_err(ring)?,
            taking_over: false,
            over: None,
            memory: Arc::default(),
            inflight: None,
            owed: Arc::default(),
            features: Features::default(),
            protocol: 0,
            status: 0,
            cache: WriteCache::new(options.write_cache, stats),
            narrow: Seldom::default(),
            owner_first: None,
            config_again: false,
            lines: Arc::new(Lines::new(name)),
            active: false,
            backend_channel: None,
            options,
        };
        device.detach();
        Ok(device)
    }

    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn lines(&self) -> Arc<Lines> {
        Arc::clone(&self.lines)
    }

    pub fn keep(&self) -> Option<&KeepHandle> {
        self.options.keep.as_ref()
    }

    pub fn queue_size_max(&self) -> u16 {
        self.options.queue_size_max
    }

    pub fn offered(&self) -> Features {
        Features::offered(&self.disk.geometry())
    }

    /// QEMU asks for them before it says SET_OWNER, and others (libblkio wants all) after it. With CONFIGURE_MEM_SLOTS QEMU tells only what has changed in
    /// its guest's memory, and 7.2 goes by what it told a daemon that has died meanwhile: no later one would know the rest. Where a keeper holds
    /// the connection, no VMM hears of a death.
    pub fn offered_protocol_features(&mut self) -> VhostUserProtocolFeatures {
        let owner_first = *self.owner_first.get_or_insert(false);
        if owner_first || self.options.keep.is_some() {
            protocol_features()
        } else {
            protocol_features() - VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        }
    }

    /// Stops everything and forgets the peer.
    pub fn detach(&mut self) {
        self.stop_all();
        self.forget_queues();
        (self.taking_over, self.over) = (false, None);
        self.memory = Arc::default();
        self.inflight = None;
        self.owed.store(0, Ordering::Release);
        self.features = Features::default();
        self.protocol = 0;
        self.status = 0;
        self.backend_channel = None;
        self.alarms.reset();
        self.cache.reset(self.options.write_cache);
        (self.active, self.config_again, self.owner_first) = (false, false, None);
    }

    fn forget_queues(&mut self) {
        self.queues = (0..self.options.queues).map(|_| QueueState::default()).collect();
        for call in &self.calls {
            let none = call.lock().set(None);
            debug_assert_eq!(none, Ok(()), "nothing is hung up");
        }
    }

    /// The connection has ended, and not by our own stop: the guest may be dead. After [`Device::detach`].
    pub fn tell_disconnected(&self) {
        debug_assert!(!self.runs(), "detached");
        self.disk.quiesced(Quiesced::Disconnected);
    }

    fn runs(&self) -> bool {
        self.workers.iter().any(Worker::is_running)
    }

    /// The peer has stopped a queue; the disk learns when it was the last one. Not for a stop that is followed by a start.
    fn tell_stopped(&mut self) {
        if !self.runs() && std::mem::take(&mut self.active) {
            self.disk.quiesced(Quiesced::Stopped);
        }
    }

    /// RESET_DEVICE and RESET_OWNER: the rings stop and the driver's choices are forgotten; memory and the connection
    /// stay. So does a cache that is off: a VMM goes on to show its guest what was chosen, and a driver that reads 0 there
    /// sends no flush (QEMU's vhost-user-blk keeps the byte over a reset).
    pub fn reset(&mut self) {
        self.stop_all();
        self.forget_queues();
        (0..self.options.queues).for_each(|index| forget(&self.inflight, index));
        self.owed.store(0, Ordering::Release);
        self.features = Features::default();
        self.status = 0;
        self.alarms.reset();
        self.cache.set_can_flush(false);
        self.tell_stopped();
    }

    /// SET_OWNER: a device begins, on a connection that may have served another one: QEMU unplugs a device without a word, and the next
    /// one on its chardev gives its memory from nothing. What was agreed before this is said (QEMU does) stays: the protocol features and the
    /// backend-request channel.
    pub fn begin(&mut self) {
        self.owner_first.get_or_insert(true);
        self.reset();
        self.memory = Arc::default();
        self.inflight = None;
        self.cache.reset(self.options.write_cache);
    }

    pub fn queue(&mut self, index: u32) -> Result<&mut QueueState, Refused> {
        let count = self.queues.len();
        self.queues
            .get_mut(index as usize)
            .ok_or_else(|| Refused(format!("queue {index} does not exist; there are {count}")))
    }

    /// Accepts the driver's choice of features.
    pub fn set_features(&mut self, features: Features) -> Result<(), Refused> {
        let offered = self.offered();
        if !features.within(offered) {
            return Err(Refused(format!("features {:#x} were not offered", features.0 & !offered.0)));
        }
        let running = self.stop_all();
        let set = |device: &mut Self, features: Features| {
            device.cache.set_can_flush(features.flush());
            std::mem::replace(&mut device.features, features)
        };
        self.rebase(
            &running,
            |device| set(device, features),
            |device, old| {
                set(device, old);
            },
        )
    }

    /// The device status with our own bit.
    pub fn status(&self) -> u8 {
        self.status | if self.alarms.any_broken() { S_NEEDS_RESET } else { 0 }
    }

    pub fn set_status(&mut self, status: u8) {
        if status == 0 {
            self.stop_all();
            // As after GET_VRING_BASE: whoever resets a device kicks it anew.
            self.queues.iter_mut().for_each(|queue| queue.kick = None);
            self.alarms.reset();
            self.tell_stopped();
        }
        self.status = status & !S_NEEDS_RESET;
    }

    /// A queue that is given its size or base anew is set up anew: it is stopped until the next kick descriptor.
    pub fn set_size(&mut self, index: u32, size: u16) -> Result<(), Refused> {
        self.queue(index)?;
        self.retire(index as usize);
        self.queue(index)?.size = size;
        // Firmware asks for a few segments at a time, and negotiates no FLUSH.
        let driver = self.features.flush() && !self.features.indirect();
        if driver && u32::from(size) < SEG_MAX + 2 {
            if let Some(times) = self.narrow.note(Instant::now()) {
                warn!(
                    "{}: queue {index} has {size} descriptors and none are indirect: a driver that asks for as many segments \
                     at a time as the disk takes, {SEG_MAX}, waits for ever (Linux does); give the device larger queues \
                     (queue-size={}) or indirect_desc=on (times: {times})",
                    self.name,
                    (SEG_MAX + 2).next_power_of_two()
                );
            }
        }
        Ok(())
    }

    /// See [`Device::set_size`].
    pub fn set_base(&mut self, index: u32, base: u16) -> Result<(), Refused> {
        self.queue(index)?;
        self.retire(index as usize);
        self.queue(index)?.base = base;
        Ok(())
    }

    fn retire(&mut self, index: usize) {
        if self.halt(index) {
            self.queues[index].kick = None;
        }
    }

    /// Whether a kick descriptor, or the word that there is none, is in force.
    pub fn has_kick(&self, index: u32) -> bool {
        self.queues.get(index as usize).is_some_and(|queue| queue.kick.is_some())
    }

    pub fn is_enabled(&self, index: u32) -> bool {
        self.queues.get(index as usize).is_some_and(|queue| queue.enabled)
    }

    fn doorbell(&mut self, index: u32, fd: Option<OwnedFd>) -> Result<Option<Doorbell>, Refused> {
        self.queue(index)?;
        Ok(fd.map(|fd| Doorbell::new(fd, &mut self.ringer)).transpose()?)
    }

    pub fn set_kick(&mut self, index: u32, fd: Option<OwnedFd>) -> Result<(), Refused> {
        let kick = self.doorbell(index, fd)?.map(Arc::new);
        if kick.as_ref().is_some_and(|kick| !kick.can_be_cleared()) {
            return Err(Refused("a kick descriptor that is no eventfd".to_owned()));
        }
        self.halt(index as usize);
        self.queue(index)?.kick = Some(kick);
        let started = self.start(index as usize);
        if started.is_err() {
            self.queue(index)?.kick = None;
        }
        started
    }

    pub fn set_call(&mut self, index: u32, fd: Option<OwnedFd>) -> Result<(), Refused> {
        let doorbell = self.doorbell(index, fd)?;
        let mut call = self.calls[index as usize].lock();
        call.set(doorbell)?;
        // An interrupt sent to the old descriptor may never have arrived.
        call.notify();
        Ok(())
    }

    pub fn set_err(&mut self, index: u32, fd: Option<OwnedFd>) -> Result<(), Refused> {
        let doorbell = self.doorbell(index, fd)?;
        self.queue(index)?.err = doorbell;
        Ok(())
    }

    pub fn set_enabled(&mut self, index: u32, enabled: bool) -> Result<(), Refused> {
        self.queue(index)?.enabled = enabled;
        if enabled {
            let started = self.start(index as usize);
            self.queue(index)?.enabled = started.is_ok();
            started
        } else {
            self.halt(index as usize);
            self.tell_stopped();
            Ok(())
        }
    }

    /// GET_VRING_BASE: stops the queue for good and says where it stopped.
    pub fn stop_queue(&mut self, index: u32) -> Result<u16, Refused> {
        self.queue(index)?;
        self.halt(index as usize);
        // A region of our own follows this queue's life; the peer's own is the peer's.
        forget(&self.inflight, index as u16);
        self.owes_nothing(index as usize);
        let queue = self.queue(index)?;
        queue.kick = None;
        let base = queue.base;
        self.tell_stopped();
        Ok(base)
    }

    /// Tells the err descriptors of broken queues, once.
    pub fn tell_errors(&mut self) {
        for queue in &self.queues {
            if let Some(err) = &queue.err {
                err.ring(&mut self.ringer);
            }
        }
    }

    /// Puts another memory table in force.
    pub fn set_memory(&mut self, memory: GuestMemory) -> Result<(), Refused> {
        let memory = Arc::new(memory);
        let running = self.stop_all();
        self.rebase(
            &running,
            |device| std::mem::replace(&mut device.memory, memory),
            |device, old| device.memory = old,
        )
    }

    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Takes the peer's (or the keeper's) in-flight region.
    pub fn set_inflight(
        &mut self,
        file: File,
        offset: u64,
        len: u64,
        queues: u16,
        said: u16,
    ) -> Result<(), Refused> {
        let queue_size = ring_size_of(len, queues, said, self.options.queue_size_max);
        if queue_size > self.options.queue_size_max || usize::from(queues) > self.queues.len() {
            return Err("an in-flight region for more queues, or larger ones, than there are".into());
        }
        let wanted = region_bytes(queues, queue_size) as u64;
        if len > 2 * wanted {
            return Err("an in-flight region much longer than its queues".into());
        }
        let mapping = Mapping::of_file(&file, offset, len as usize)
            .map_err(|e| Refused(format!("cannot map the in-flight region: {e}")))?;
        let region = InflightRegion::new(Arc::new(mapping), queues, queue_size)?;
        let running = self.stop_all();
        let set = |device: &mut Self, region: Option<InflightRegion>, choice| {
            device.owed.store(region.as_ref().map_or(0, InflightRegion::owed), Ordering::Release);
            (std::mem::replace(&mut device.inflight, region), device.cache.set(choice))
        };
        let choice = self.cache.with_noted(region.write_cache());
        if choice.known {
            region.note_write_cache(choice.on);
        } else if self.lines.may() {
            info!("{}: without a write cache until the guest's VMM has read whether there is one", self.name);
        }
        self.rebase(
            &running,
            |device| set(device, Some(region), choice),
            |device, (region, choice)| drop(set(device, region, choice)),
        )
    }

    /// Allocates an in-flight region for the largest rings: QEMU 10 asks for it by its `queue-size`, before its guest's drivers say how large
    /// they want theirs. It is sealed, so that the peer cannot take it away from under us.
    pub fn new_inflight(&self, queues: u16) -> std::io::Result<(File, u64)> {
        let len = region_bytes(queues, self.options.queue_size_max) as u64;
        let fd = memfd_create("afterimage-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((fd.into(), len))
    }

    /// Says once a connection that its peer reads the configuration from another offset than 0 on.
    pub fn tell_config_again(&mut self, offset: u32) {
        if !std::mem::replace(&mut self.config_again, true) && self.lines.may() {
            info!(
                "{}: the VMM asks for the configuration at offset {offset:#x} (Cloud Hypervisor up to v50 does): it gets the one at {:#x}",
                self.name,
                within_config(offset)
            );
        }
    }

    pub fn config(&self) -> [u8; 256] {
        config_space(&self.disk.geometry(), self.options.queues, self.cache.choice().on)
    }

    /// The peer goes by what it has just read.
    pub fn write_cache_was_read(&mut self) {
        self.choose_write_cache(self.cache.choice().on);
    }

    /// What the peer goes by; `None` where that is not known, or nothing depends on it.
    pub fn known_write_cache(&self) -> Option<bool> {
        let choice = self.cache.choice();
        (choice.known && !self.disk.geometry().read_only).then_some(choice.on)
    }

    fn choose_write_cache(&mut self, on: bool) {
        self.cache.set(Choice { on, known: true });
        if let Some(region) = &self.inflight {
            region.note_write_cache(on);
        }
    }

    /// SET_CONFIG: only `writeback` can be written.
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refused> {
        match (offset, bytes) {
            (WRITEBACK_OFFSET, [value @ (0 | 1)]) if !self.disk.geometry().read_only => {
                self.set_write_cache(*value == 1)
            }
            _ => Err("only the writeback byte of the configuration can be written, with 0 or 1".into()),
        }
    }

    /// Switching the cache off makes everything answered before as good as flushed, or the driver, which flushes no
    /// more, would never get it there.
    fn set_write_cache(&mut self, on: bool) -> Result<(), Refused> {
        if on == self.cache.choice().on {
            self.choose_write_cache(on);
            return Ok(());
        }
        if self.lines.may() {
            info!("{}: the guest switched its write cache {}", self.name, if on { "on" } else { "off" });
        }
        let running = self.stop_all();
        // Refused, it stays on: the driver goes on flushing.
        let switched = if on { Ok(()) } else { self.flush() };
        if switched.is_ok() {
            self.choose_write_cache(on);
        }
        self.start_each(&running);
        switched
    }

    fn flush(&mut self) -> Result<(), Refused> {
        self.control.take(Admitted::flush(Token(0), FlushKind::Order));
        let mut completions = Vec::new();
        loop {
            self.control.dispatch();
            self.control.reap(&mut completions);
            if let Some(completion) = completions.pop() {
                return completion.result.map_err(|e| Refused(format!("the flush failed: {e}")));
            }
            self.control.wait(&[], None).map_err(|e| Refused(format!("the flush failed: {e}")))?;
        }
    }

    /// Stops one queue and remembers where it was. Returns whether it ran, and may again.
    fn halt(&mut self, index: usize) -> bool {
        let Some(worker) = self.workers.get_mut(index) else { return false };
        let Some((next_avail, ended)) = worker.stop() else { return false };
        self.queues[index].base = next_avail;
        if let Ended::Broken(_) = ended {
            if let Some(err) = &self.queues[index].err {
                err.ring(&mut self.ringer);
            }
            // Until the driver sets the device up anew: other memory, or another cache, mends no ring.
            self.queues[index].kick = None;
            return false;
        }
        true
    }

    /// Stops all queues; nothing is in flight afterwards. Returns which ran.
    pub fn stop_all(&mut self) -> Vec<usize> {
        (0..self.workers.len()).filter(|index| self.halt(*index)).collect()
    }

    /// Changes what stopped queues stand on and starts them again; where one cannot start there, changes it back.
    fn rebase<T>(
        &mut self,
        queues: &[usize],
        change: impl FnOnce(&mut Self) -> T,
        undo: impl FnOnce(&mut Self, T),
    ) -> Result<(), Refused> {
        let old = change(self);
        // All are looked at before any runs: nothing is served on ground that is refused.
        let runs: Result<Vec<_>, _> =
            queues.iter().map(|index| Ok((*index, self.prepare(*index)?))).collect();
        let refused = match runs {
            Ok(runs) => {
                runs.into_iter().for_each(|(index, run)| self.go(index, run));
                return Ok(());
            }
            Err(refused) => refused,
        };
        undo(self, old);
        self.start_each(queues);
        Err(refused)
    }

    /// Starts queues that have run before. One that cannot is broken, as the guest is told; the others run.
    fn start_each(&mut self, queues: &[usize]) {
        for index in queues {
            match self.prepare(*index) {
                Ok(run) => self.go(*index, run),
                Err(reason) => self.give_up(*index, &reason),
            }
        }
    }

    /// It will not start, so none waits for it.
    fn owes_nothing(&self, index: usize) {
        self.owed.fetch_and(!(1 << index), Ordering::AcqRel);
    }

    fn give_up(&self, index: usize, reason: &Refused) {
        self.owes_nothing(index);
        if self.lines.may() {
            warn!("{}: queue {index} stays stopped until the guest resets it: {reason}", self.name);
        }
        self.alarms.raise(index as u16, &Ended::Broken(reason.to_string()));
    }

    /// Runs what was prepared, if anything was.
    fn go(&mut self, index: usize, run: Option<Run>) {
        let Some(run) = run else { return };
        if self.workers[index].run(run) {
            self.active = true;
        } else {
            self.give_up(index, &"the disk did not open again after a failure".into());
        }
    }

    /// From here on queues are only set up, as another daemon had them, until [`Device::taken_over`]. `over` is dropped when that has been called
    /// and the disk has what was in flight, or the connection has ended.
    pub fn take_over(&mut self, over: Sender<Infallible>) {
        (self.taking_over, self.over) = (true, Some(over));
    }

    /// Starts the queues that were set up. One that cannot start is broken; it was not running before either, or its
    /// guest has spoiled it meanwhile.
    pub fn taken_over(&mut self) {
        self.taking_over = false;
        self.start_each(&(0..self.queues.len()).collect::<Vec<_>>());
        self.over = None;
    }

    /// Starts a queue if everything it needs is there.
    fn start(&mut self, index: usize) -> Result<(), Refused> {
        let run = self.prepare(index)?;
        self.go(index, run);
        Ok(())
    }

    /// What a queue needs to run, if everything is there.
    fn prepare(&self, index: usize) -> Result<Option<Run>, Refused> {
        let enabled_by_default = !self.features.protocol_features();
        let queue = &self.queues[index];
        let (false, Some(kick), Some(addresses)) = (self.taking_over, &queue.kick, &queue.addresses) else {
            return Ok(None);
        };
        if queue.size == 0 || !(queue.enabled || enabled_by_default) || self.workers[index].is_running() {
            return Ok(None);
        }
        let (kick, size) = (kick.clone(), queue.size);
        let mut ring = Ring::new(&self.memory, addresses, size, self.features.event_idx())
            .ok_or_else(|| {
                Refused(format!(
                    "queue {index} lies outside the memory that the guest's VMM shares (QEMU: memory-backend-memfd with share=on), \
                     or is misaligned"
                ))
            })?;
        let inflight = match &self.inflight {
            None => None,
            Some(region) => Some(region.queue(index as u16, size).ok_or_else(|| {
                Refused(format!("the in-flight region has no room for queue {index} of {size}"))
            })?),
        };
        let resubmit = go_on(&mut ring, inflight.as_ref(), queue.base).map_err(|e| Refused(e.to_string()))?;
        if !resubmit.is_empty() && self.lines.may() {
            info!("{}: queue {index}: {} requests in flight are submitted again", self.name, resubmit.len());
        }
        Ok(Some(Run {
            name: format!("{} queue {index}", self.name),
            ring,
            memory: Arc::clone(&self.memory),
            inflight,
            resubmit,
            kick,
            call: Arc::clone(&self.calls[index]),
            shape: Shape::new(self.disk.geometry(), self.features, self.disk.serial()),
            flushed: self.cache.flushed(),
            spin: Duration::from_micros(u64::from(self.options.spin_us)),
            lines: self.lines(),
            over: self.over.clone(),
            owed: (self.owed.load(Ordering::Acquire) != 0).then(|| (Arc::clone(&self.owed), 1 << index)),
        }))
    }

    /// Without in-flight tracking by the peer, a keeper's region does the same; call before the first queue starts.
    pub fn ensure_own_inflight(&mut self) {
        let (None, Some(keep)) = (&self.inflight, self.options.keep.clone()) else { return };
        let (queues, size) = (self.options.queues, self.options.queue_size_max);
        let kept = self.new_inflight(queues).map_err(|e| e.to_string()).and_then(|(file, len)| {
            let fd = OwnedFd::from(file);
            let value = [u64::from(queues), u64::from(size), len].map(u64::to_le_bytes).concat();
            let key = format!("{}/session/own-inflight", self.name);
            keep.put(&key, &value, &[std::os::fd::AsFd::as_fd(&fd)]).map_err(|e| e.to_string())?;
            self.set_inflight(fd.into(), 0, len, queues, size).map_err(|e| e.to_string())
        });
        if let Some(reason) = kept.err().filter(|_| self.lines.may()) {
            warn!("{}: requests in flight will not survive this process: {reason}", self.name);
        }
    }

    /// Takes a keeper's region of an earlier daemon.
    pub fn adopt_own_inflight(&mut self, value: &[u8], fd: OwnedFd) -> Result<(), Refused> {
        let malformed = || Refused::from("the keeper's note about the in-flight region is malformed");
        let number = |n: usize| {
            let bytes = value.get(8 * n..8 * n + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let small = |n: usize| number(n).and_then(|n| u16::try_from(n).ok()).ok_or_else(malformed);
        self.set_inflight(fd.into(), 0, number(2).ok_or_else(malformed)?, small(0)?, small(1)?)
    }

    /// The position of a queue in the VMM's address space.
    pub fn set_addresses(
        &mut self,
        index: u32,
        descriptors: u64,
        available: u64,
        used: u64,
    ) -> Result<(), Refused> {
        let addresses = RingAddresses {
            descriptors: UserAddress(descriptors),
            available: UserAddress(available),
            used: UserAddress(used),
        };
        self.queue(index)?;
        let index = index as usize;
        let running: &[usize] = if self.halt(index) { &[index] } else { &[] };
        self.rebase(
            running,
            |device| device.queues[index].addresses.replace(addresses),
            |device, old| device.queues[index].addresses = old,
        )
    }
}

/// Puts a ring where whoever served it before has left it, by what was in flight, or at `base`. Returns the heads to submit
/// again.
pub(crate) fn go_on(ring: &mut Ring, inflight: Option<&Inflight>, base: u16) -> Result<Vec<u16>, Damaged> {
    let recovered = inflight.map(|inflight| inflight.recover(ring.used_idx())).transpose()?;
    let (next_avail, resubmit) = match recovered {
        Some(recovered) => (recovered.next_avail.unwrap_or(base), recovered.resubmit),
        None => (base, Vec::new()),
    };
    ring.set_next_avail(next_avail);
    Ok(resubmit)
}

fn forget(region: &Option<InflightRegion>, index: u16) {
    if let Some(queue) = region.as_ref().and_then(|r| r.queue(index, r.queue_size)) {
        queue.forget();
    }
}
