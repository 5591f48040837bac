//! Guests, their daemons, the device and the calendar: whoever is next takes its turn. What the turns are for, and what happens besides,
//! is its owner's.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_frontend::inband::Heard;
use parking_lot::Mutex;

use crate::calendar::{Calendar, Go, GuestId, Next, Ns, Say};
use crate::daemon::Daemon;
use crate::error::{io_error, RunError};
use crate::guest::{Came, Guest, GuestOptions, Tell};
use crate::storage::Storage;

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing that anybody has to know.
    Taken,
    /// A daemon wants to interrupt its guest now ([`Crowd::interrupt`]).
    Rings(usize),
    /// The owner's own time has come.
    Own(Ns),
    /// All guests have ended.
    Over,
}

/// See the module.
pub struct Crowd {
    begun: Instant,
    limit: Duration,
    listener: UnixListener,
    pub calendar: Calendar,
    storage: Arc<Mutex<Storage>>,
    /// By guest, as what follows.
    pub daemons: Vec<Daemon>,
    pub guests: Vec<Guest>,
    /// When each has ended.
    pub ended: Vec<Ns>,
    /// Guests that have ended since their owner looked.
    gone: Vec<usize>,
}

impl Crowd {
    /// Daemons without guests.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn new(
        folder: &Path,
        storage: &Arc<Mutex<Storage>>,
        daemons: Vec<Daemon>,
        begun: Instant,
        limit: Duration,
    ) -> Result<Self, RunError> {
        let listener = UnixListener::bind(folder.join("calendar"))
            .map_err(io_error(format!("listen in {}", folder.display())))?;
        Ok(Self {
            begun,
            limit,
            listener,
            calendar: Calendar::new(daemons.len()),
            storage: Arc::clone(storage),
            ended: vec![0; daemons.len()],
            daemons,
            guests: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// The next guest boots; who has ended boots again.
    ///
    /// # Errors
    /// It does not start.
    pub fn boot(&mut self, id: usize, options: &GuestOptions, folder: &Path) -> Result<(), RunError> {
        let guest = Guest::start(GuestId(id), options, &self.listener, folder)?;
        match self.guests.get_mut(id) {
            None => self.guests.push(guest),
            Some(place) => *place = guest,
        }
        self.calendar.comes(GuestId(id));
        self.calendar.hear(GuestId(id), Say::Start)?;
        Ok(())
    }

    /// The guests that have ended since the last look.
    pub fn take_gone(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.gone)
    }

    /// Whoever is next takes its turn. `own`: when something of the owner's is due.
    ///
    /// # Errors
    /// A guest or a daemon broke, nothing will ever happen again, or it takes too long.
    pub fn turn(&mut self, own: Option<Ns>) -> Result<Turn, RunError> {
        self.left()?;
        let daemons = self.daemons.iter().enumerate();
        let daemon = daemons.filter_map(|(id, daemon)| Some((daemon.next()?, id))).min();
        let host = self.storage.lock().next();
        let first = daemon.map(|(at, _)| at).into_iter().chain(host).chain(own).min();
        match self.calendar.next(first) {
            Next::Over => return Ok(Turn::Over),
            Next::Stuck => return Err(RunError::Stuck(self.calendar.now())),
            Next::Guest(id) => self.run(id, own)?,
            Next::Disk(at) => {
                self.calendar.reach(at);
                match daemon {
                    _ if own == first => return Ok(Turn::Own(at)),
                    Some((when, id)) if Some(when) == first => return self.serve(id),
                    _ => self.storage.lock().turn(at),
                }
            }
        }
        Ok(Turn::Taken)
    }

    /// How long all may go on.
    fn left(&self) -> Result<Duration, RunError> {
        let over = || RunError::Limit { limit: self.limit, now: self.calendar.now() };
        self.limit.checked_sub(self.begun.elapsed()).ok_or_else(over)
    }

    /// Waits for something from a guest.
    fn wait(&self, id: usize, for_call: bool) -> Result<Came, RunError> {
        loop {
            if let Some(came) = self.guests[id].wait(for_call, self.left()?)? {
                return Ok(came);
            }
        }
    }

    fn daemon_error(&self, guest: usize) -> impl FnOnce(String) -> RunError {
        let now = self.calendar.now();
        move |what| RunError::Daemon { guest, now, what }
    }

    /// A daemon's turn.
    fn serve(&mut self, id: usize) -> Result<Turn, RunError> {
        let peer = self.guests.get(id).and_then(|guest| guest.peer.as_ref());
        let stepped = self.daemons[id].step(self.calendar.now(), peer);
        let rings = stepped.map_err(self.daemon_error(id))?;
        Ok(if rings && !self.calendar.has_ended(GuestId(id)) { Turn::Rings(id) } else { Turn::Taken })
    }

    /// A guest computes until it waits.
    fn run(&mut self, id: GuestId, own: Option<Ns>) -> Result<(), RunError> {
        let alone_until = self.daemons[id.0].next().into_iter().chain(own).min();
        let gone = match self.calendar.run(id, alone_until) {
            Go::Begin => {
                self.guests[id.0].begin()?;
                false
            }
            Go::Run { now, free_until } => {
                let guest = &mut self.guests[id.0];
                let hears = free_until.map_or(Ok(true), |until| guest.tell(Tell::FreeUntil(until)))?;
                !(hears && guest.tell(Tell::Run(now))?)
            }
        };
        if gone {
            self.end(id.0)?;
        }
        while self.calendar.computes(id) {
            let came = self.wait(id.0, false)?;
            // What was sent before it says that it waits is there by then.
            while came.disk && self.hear_driver(id)? {}
            if came.time {
                self.hear(id)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, id: GuestId) -> Result<(), RunError> {
        match self.guests[id.0].hear()? {
            None => self.end(id.0),
            Some((say, sequence)) => {
                let answer = self.calendar.hear(id, say)?;
                Ok(self.guests[id.0].answer(sequence, answer.unwrap_or(0))?)
            }
        }
    }

    /// A message of a guest's driver; `false` when there is none.
    fn hear_driver(&mut self, id: GuestId) -> Result<bool, RunError> {
        let (guest, daemon) = (&mut self.guests[id.0], &mut self.daemons[id.0]);
        let clock = self.calendar.clock(id);
        let Some(peer) = &mut guest.peer else {
            guest.accept(daemon.geometry())?;
            return Ok(true);
        };
        let heard = peer.hear().map_err(io_error(format!("guest {}'s disk", id.0)))?;
        let done = match heard {
            None => return Ok(false),
            Some(Heard::SetUp) => Ok(()),
            Some(Heard::Enabled) => {
                guest.enabled = true;
                daemon.attach(peer, clock)
            }
            Some(Heard::Disabled) => {
                guest.enabled = false;
                daemon.detach(clock)
            }
            Some(Heard::Closed) => {
                guest.peer = None;
                guest.enabled = false;
                daemon.detach(clock)
            }
            Some(Heard::Kick) => {
                daemon.kick(clock);
                // It believes that it is alone for longer; it hears of this before it goes on.
                let shorter = daemon.next().and_then(|at| self.calendar.shorten(id, at));
                if let Some(until) = shorter {
                    guest.tell(Tell::FreeUntil(until))?;
                }
                let peer = guest.peer.as_ref().expect("it is there");
                peer.answer_kick().map_err(io_error(format!("guest {}'s disk", id.0)))?;
                Ok(())
            }
        };
        done.map_err(self.daemon_error(id.0))?;
        Ok(!matches!(heard, Some(Heard::Closed)))
    }

    /// Another daemon goes on with a guest whose queue is set up.
    ///
    /// # Errors
    /// The queue cannot be served.
    pub fn attach(&mut self, id: usize) -> Result<(), RunError> {
        let attached = match &self.guests[id] {
            Guest { peer: Some(peer), enabled: true, .. } => {
                self.daemons[id].attach(peer, self.calendar.now())
            }
            _ => Ok(()),
        };
        attached.map_err(self.daemon_error(id))
    }

    /// Interrupts a guest that waits: it asks for the time and for its turn before it answers.
    ///
    /// # Errors
    /// Its sockets.
    pub fn interrupt(&mut self, id: usize) -> Result<(), RunError> {
        let disk_of = || io_error(format!("interrupt guest {id}"));
        let Some(peer) = &self.guests[id].peer else { return Ok(()) };
        peer.call().map_err(disk_of())?;
        loop {
            let came = self.wait(id, true)?;
            if came.time {
                self.hear(GuestId(id))?;
            }
            if self.calendar.has_ended(GuestId(id)) {
                return Ok(());
            }
            if came.call {
                let Some(peer) = &self.guests[id].peer else { return Ok(()) };
                return peer.take_call_answer().map_err(disk_of());
            }
        }
    }

    /// Ends a guest where it is, unless it has ended; whether it had not.
    ///
    /// # Errors
    /// Its daemon broke.
    pub fn kill(&mut self, id: usize) -> Result<bool, RunError> {
        if self.calendar.has_ended(GuestId(id)) {
            return Ok(false);
        }
        self.guests[id].kill();
        self.end(id)?;
        Ok(true)
    }

    fn end(&mut self, id: usize) -> Result<(), RunError> {
        self.calendar.end(GuestId(id));
        self.ended[id] = self.calendar.clock(GuestId(id));
        let at = self.ended[id].max(self.calendar.now());
        self.daemons[id].detach(at).map_err(self.daemon_error(id))?;
        self.guests[id].peer = None;
        self.guests[id].finish();
        self.gone.push(id);
        Ok(())
    }
}
