//! The sessions of the control socket as one state machine: no thread, no clock, no socket. Time, bytes and what the
//! group has done come in; bytes and what the group is to do go out.
//!
//! ```text
//! open, receive, sent, lost ─►┌──────────┐─► output            the shell's sockets
//! tick ──────────────────────►│ Sessions │─► deadline          the shell's clock
//! paused, resumed, flushed, ─►│          │─► actions           the shell's workers, which may block
//! progress, answered, event   └──────────┘
//! ```
//!
//! - Each request of a connection gets one answer, in order; the next one is looked at when the answer has been taken.
//! - Memory is bounded: [`CONNECTIONS_MAX`] connections, each with at most one line to read and one answer to write.
//! - A newcomer always gets in. Connections that wait for something keep their place, and cannot take the last
//!   [`CONNECTIONS_MAX`] − [`BUSY_MAX`]; of the others the one that was silent longest gives way. So `status` and `stop`
//!   get through whatever other clients do.
//! - Pauses follow their own rules: [`super::pauses`]; what one connection holds is its own: [`super::connection`].

use std::collections::BTreeMap;
use std::time::Duration;

use afterimage_order::{Event, Unread};
use serde::Serialize;

use super::connection::{Connection, State, Wait};
pub use super::connection::{ConnectionId, Output};
use super::flushes::Flushes;
use super::pauses::{GiveWay, Lasts, Pauses, Reached};
use super::protocol::{
    parse_request, DoneAnswer, ImageAnswer, Refusal, Request, SequenceAnswer, WaitAnswer, HOLD_MS,
    PAUSE_MS_DEFAULT,
};

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// Those of them that may wait for something: events, a sequence number, a flush, a pause.
pub const BUSY_MAX: usize = 48;
/// How often the group is looked at while somebody waits for a sequence number.
const LOOK: Duration = Duration::from_millis(200);

/// What the shell is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pause the group and say [`Sessions::paused`].
    Pause,
    /// Pause the group soon or not at all, and say [`Sessions::paused`].
    Hold,
    /// Let writes go on and say [`Sessions::resumed`].
    Resume,
    /// Let writes go on while a pause is being reached; nothing is said.
    LetGo,
    /// Make everything durable and say [`Sessions::flushed`].
    Flush,
    /// Look how far the group is and say [`Sessions::progress`].
    Look,
    /// Put the status into words and say [`Sessions::answered`].
    Status(ConnectionId),
    /// Note what changes in the images and say [`Sessions::answered`].
    Track(ConnectionId),
    /// Put what has changed in the image of that disk into words and say [`Sessions::answered`].
    Changed(ConnectionId, u64),
    /// Bring what has completed into the images and say [`Sessions::answered`].
    Approach(ConnectionId),
    /// Nobody asks for changes any more.
    Untrack,
    /// End in order and say [`Sessions::stopped`].
    Stop,
    /// Close the connection; its number means nothing any more.
    Close(ConnectionId),
}

/// How far the group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The newest completed request.
    pub acknowledged: u64,
    /// Up to here everything survives a power cut.
    pub durable: u64,
    /// Why nothing becomes durable any more.
    pub failure: Option<String>,
}

/// All connections of the control socket.
#[derive(Debug)]
pub struct Sessions {
    /// Kept from the newest input: time never goes back in here.
    now: Duration,
    next: u64,
    connections: BTreeMap<ConnectionId, Connection>,
    pauses: Pauses,
    flushes: Flushes,
    /// Who makes a copy, and is told what changes.
    tracker: Option<ConnectionId>,
    /// The group is being looked at.
    looking: bool,
    /// When it is to be looked at again; `None` where nobody waits.
    look_at: Option<Duration>,
    /// The daemon was told to end.
    stopping: bool,
    images: Vec<ImageAnswer>,
    /// Nothing becomes durable by itself: who waits for a number that is there makes it so.
    syncs_on_demand: bool,
    actions: Vec<Action>,
}

impl Sessions {
    /// No connection yet. `images` are the group's, in order; `syncs_on_demand` where nothing happens in the background.
    pub fn new(images: Vec<ImageAnswer>, syncs_on_demand: bool) -> Self {
        Self {
            now: Duration::ZERO,
            next: 0,
            connections: BTreeMap::new(),
            pauses: Pauses::default(),
            flushes: Flushes::default(),
            tracker: None,
            looking: false,
            look_at: None,
            stopping: false,
            images,
            syncs_on_demand,
            actions: Vec::new(),
        }
    }

    // --- the shell's sockets

    /// A connection was accepted.
    pub fn open(&mut self, now: Duration) -> ConnectionId {
        self.tick(now);
        if self.connections.len() >= CONNECTIONS_MAX {
            let longest = self.connections.iter().filter(|(id, c)| !self.is_busy(**id, c));
            if let Some(id) = longest.min_by_key(|(_, c)| c.active_at).map(|(id, _)| *id) {
                self.close(id);
            }
        }
        let id = ConnectionId(self.next);
        self.next += 1;
        self.connections.insert(id, Connection::new(self.now));
        id
    }

    /// How many bytes [`Sessions::receive`] takes now; 0 while a request is being answered.
    pub fn room(&self, id: ConnectionId) -> usize {
        self.connections.get(&id).map_or(0, Connection::room)
    }

    /// Bytes came; none means that no more will. At most [`Sessions::room`].
    pub fn receive(&mut self, now: Duration, id: ConnectionId, bytes: &[u8]) {
        self.tick(now);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.receive(self.now, bytes);
        self.go_on(id);
    }

    /// What is to be sent, if anything.
    pub fn output(&self, id: ConnectionId) -> Option<Output<'_>> {
        self.connections.get(&id)?.output()
    }

    /// So many bytes of it went out.
    pub fn sent(&mut self, now: Duration, id: ConnectionId, bytes: usize) {
        self.tick(now);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.sent(self.now, bytes) {
            if connection.closing {
                return self.close(id);
            }
            self.go_on(id);
        }
    }

    /// The connection broke, or its client is gone altogether.
    pub fn lost(&mut self, now: Duration, id: ConnectionId) {
        self.tick(now);
        self.close(id);
    }

    // --- the shell's clock

    /// Time passes: what is over ends. Every other input does this, too.
    pub fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.pauses.tick(self.now) {
            tracing::info!("writes go on: the pause's time is over");
            self.actions.push(Action::Resume);
        }
        let late =
            self.connections.iter().filter(|(_, c)| c.answer_until().is_some_and(|until| until <= self.now));
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id);
        }
        for (id, sequence) in self.waits(|wait| wait.until.is_some_and(|until| until <= self.now)) {
            self.answer(id, &WaitAnswer { ok: true, durable: false, sequence });
        }
        if !self.looking && self.look_at.is_some_and(|at| at <= self.now) {
            self.look_at = None;
            let mut anybody = false;
            for connection in self.connections.values_mut() {
                if let State::Wait(wait) = &mut connection.state {
                    (wait.looked, anybody) = (true, true);
                }
            }
            if anybody {
                self.looking = true;
                self.actions.push(Action::Look);
            }
        }
    }

    /// When the next [`Sessions::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        let mine = self.connections.values().flat_map(|c| {
            let wait = match &c.state {
                State::Wait(wait) => wait.until,
                _ => None,
            };
            [c.answer_until(), wait].into_iter().flatten()
        });
        let look = self.look_at.filter(|_| !self.looking);
        mine.chain(look).chain(self.pauses.deadline()).min()
    }

    // --- the shell's workers

    /// What is to be done, in this order.
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// [`Action::Pause`] is done: the number up to which the images are complete, or why not.
    pub fn paused(&mut self, now: Duration, result: Result<u64, String>) {
        self.tick(now);
        let reached = self.pauses.reached(self.now, result.is_ok());
        match (reached, result) {
            (Reached::Held(owner), Ok(sequence)) => {
                self.answer(owner, &SequenceAnswer { ok: true, sequence })
            }
            (Reached::Failed(Some(owner)), Err(why)) => self.refuse(owner, why),
            (Reached::Unwanted(owner), _) => {
                self.actions.push(Action::Resume);
                if let Some((owner, why)) = owner {
                    self.refuse(owner, why.to_string());
                }
            }
            (Reached::Held(_) | Reached::Failed(_), _) => {}
        }
    }

    /// [`Action::Resume`] is done.
    pub fn resumed(&mut self, now: Duration) {
        self.tick(now);
        if let Some(asker) = self.pauses.resumed() {
            self.answer(asker, &DoneAnswer { ok: true });
        }
    }

    /// [`Action::Flush`] is done: the number that it covers, or why nothing is durable.
    pub fn flushed(&mut self, now: Duration, result: Result<u64, String>) {
        self.tick(now);
        let (riders, next) = self.flushes.done();
        if next {
            self.actions.push(Action::Flush);
        }
        for id in riders {
            let wanted = match self.connections.get(&id).map(|c| &c.state) {
                Some(State::Flush) => None,
                Some(State::Wait(wait)) => Some(wait.sequence),
                _ => continue,
            };
            match (&result, wanted) {
                (Err(why), _) => self.refuse(id, why.clone()),
                (Ok(covers), None) => self.answer(id, &SequenceAnswer { ok: true, sequence: *covers }),
                (Ok(covers), Some(sequence)) if *covers >= sequence => {
                    self.answer(id, &WaitAnswer { ok: true, durable: true, sequence });
                }
                (Ok(_), Some(_)) => self.look_soon(LOOK),
            }
        }
    }

    /// [`Action::Look`] is done.
    pub fn progress(&mut self, now: Duration, progress: &Progress) {
        // Who came since has to do with the next look, which may begin in the tick: this one may be older than his number.
        let looked = self.waits(|wait| wait.looked);
        self.looking = false;
        self.tick(now);
        let Progress { acknowledged, durable, failure } = progress;
        for (id, sequence) in looked {
            let Some(State::Wait(Wait { until, .. })) = self.connections.get(&id).map(|c| &c.state) else {
                continue;
            };
            let forever = until.is_none();
            if *durable >= sequence {
                self.answer(id, &WaitAnswer { ok: true, durable: true, sequence });
            } else if let Some(why) = failure {
                self.refuse(id, why.clone());
            } else if sequence > *acknowledged && forever {
                self.refuse(
                    id,
                    format!(
                        "sequence number {sequence} lies ahead of the newest request, {acknowledged}: give a timeout"
                    ),
                );
            } else if self.syncs_on_demand && sequence <= *acknowledged {
                if !self.flushes.has(id) && self.flushes.join(id) {
                    self.actions.push(Action::Flush);
                }
            } else {
                self.look_soon(LOOK);
            }
        }
    }

    /// What a worker was to put into words is done: the answer's line.
    pub fn answered(&mut self, now: Duration, id: ConnectionId, line: Vec<u8>) {
        self.tick(now);
        if matches!(self.connections.get(&id).map(|c| &c.state), Some(State::Answer)) {
            self.send(id, line, None);
        }
    }

    /// [`Action::Stop`] is done, well or not. Connections that asked are closed when they have taken the answer.
    pub fn stopped(&mut self, now: Duration, result: &Result<(), String>) {
        self.tick(now);
        // Who asks from now on has an answer of his own.
        self.stopping = false;
        let asked = self.connections.iter().filter(|(_, c)| matches!(c.state, State::Stop));
        for id in asked.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.connections.entry(id).and_modify(|c| c.closing = true);
            match result {
                Ok(()) => self.answer(id, &DoneAnswer { ok: true }),
                Err(why) => self.refuse(id, why.clone()),
            }
        }
    }

    /// Something happened in the group.
    pub fn event(&mut self, now: Duration, event: &Event) {
        self.tick(now);
        match event {
            // Of what is retained a number says nothing: whoever waits is answered by a look, or a flush of his own.
            Event::Durable { .. } if self.syncs_on_demand => self.look_soon(Duration::ZERO),
            Event::Durable { sequence: durable } => {
                for (id, sequence) in self.waits(|wait| wait.sequence <= *durable) {
                    self.answer(id, &WaitAnswer { ok: true, durable: true, sequence });
                }
            }
            Event::Failed { .. } => self.look_soon(Duration::ZERO),
            _ => {}
        }
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in all {
            if let Some(State::Events(unread)) = self.connections.get_mut(&id).map(|c| &mut c.state) {
                unread.push(event.clone());
                self.go_on(id);
            }
        }
    }

    /// A VMM stops its guest's device, or has gone, and waits for what is held back: a pause ends.
    pub fn give_way(&mut self, now: Duration) {
        self.tick(now);
        let action = match self.pauses.give_way() {
            GiveWay::Nothing => return,
            GiveWay::Resume => Action::Resume,
            GiveWay::LetGo => Action::LetGo,
        };
        tracing::warn!("the pause ends early: a guest's device is stopped, and waited for it");
        self.actions.push(action);
    }

    /// The orderly end begins: pauses end, and none begins any more.
    pub fn end(&mut self, now: Duration) {
        self.tick(now);
        if self.pauses.close() {
            self.actions.push(Action::Resume);
        }
    }

    /// Whether everybody has taken what there was to tell.
    pub fn is_drained(&self) -> bool {
        !self.connections.values().any(|c| {
            let events = matches!(&c.state, State::Events(unread) if !unread.is_empty());
            c.has_output() || events || matches!(c.state, State::Stop)
        })
    }

    // --- for those who check the rules

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Bytes and events that are held for a connection.
    pub fn held(&self, id: ConnectionId) -> (usize, usize) {
        self.connections.get(&id).map_or((0, 0), Connection::held)
    }

    // --- inside

    /// Whether a connection keeps its place.
    fn is_busy(&self, id: ConnectionId, connection: &Connection) -> bool {
        let waits = match connection.state {
            State::Idle | State::Answer => false,
            State::Flush | State::Wait(_) | State::Pause | State::Resume | State::Stop | State::Events(_) => {
                true
            }
        };
        waits || self.pauses.owner() == Some(id) || self.tracker == Some(id)
    }

    /// Connections that wait for a sequence number, and such that `which` holds.
    fn waits(&self, which: impl Fn(&Wait) -> bool) -> Vec<(ConnectionId, u64)> {
        self.connections
            .iter()
            .filter_map(|(id, connection)| match &connection.state {
                State::Wait(wait) if which(wait) => Some((*id, wait.sequence)),
                _ => None,
            })
            .collect()
    }

    fn look_soon(&mut self, after: Duration) {
        let at = self.now.saturating_add(after);
        self.look_at = Some(self.look_at.map_or(at, |other| other.min(at)));
    }

    fn close(&mut self, id: ConnectionId) {
        if self.connections.remove(&id).is_none() {
            return;
        }
        self.flushes.forget(id);
        self.actions.push(Action::Close(id));
        if self.tracker == Some(id) {
            self.tracker = None;
            self.actions.push(Action::Untrack);
        }
        if self.pauses.leave(id) {
            tracing::info!("writes go on: the connection that paused them ended");
            self.actions.push(Action::Resume);
        }
    }

    /// An answer, after which the connection is as good as idle.
    fn answer<T: Serialize>(&mut self, id: ConnectionId, answer: &T) {
        let line = line(answer);
        self.send(id, line, None);
    }

    fn refuse(&mut self, id: ConnectionId, error: String) {
        self.answer(id, &Refusal { ok: false, error });
    }

    fn send(&mut self, id: ConnectionId, line: Vec<u8>, image: Option<usize>) {
        self.flushes.forget(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::Idle;
        connection.send(self.now, line, image);
    }

    /// The next event or request, where nothing is being sent.
    fn go_on(&mut self, id: ConnectionId) {
        loop {
            let now = self.now;
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.has_output() {
                return;
            }
            match &mut connection.state {
                State::Events(unread) => {
                    let Some(event) = unread.pop() else { return };
                    connection.send(now, line(&event), None);
                }
                State::Idle if connection.closing => return self.close(id),
                State::Idle => match connection.take_line() {
                    Ok(Some(line)) => self.request(id, &line),
                    Ok(None) if connection.ended => return self.close(id),
                    Ok(None) => return,
                    Err(error) => {
                        connection.closing = true;
                        self.refuse(id, error.to_string());
                    }
                },
                _ => return,
            }
        }
    }

    fn request(&mut self, id: ConnectionId, line: &[u8]) {
        let request = match parse_request(line) {
            Ok(request) => request,
            Err(error) => return self.refuse(id, error.to_string()),
        };
        let waits = !matches!(request, Request::Status {} | Request::Image { .. } | Request::Resume {});
        let first_stop = request == Request::Stop {} && !self.stopping;
        let owner = self.pauses.owner();
        if waits && !first_stop && owner != Some(id) && self.tracker != Some(id) {
            let busy = self.connections.iter().filter(|(id, c)| self.is_busy(**id, c)).count();
            if busy >= BUSY_MAX {
                let why = format!("{BUSY_MAX} connections wait for something already: close one");
                return self.refuse(id, why);
            }
        }
        let next = match request {
            Request::Status {} => {
                self.actions.push(Action::Status(id));
                State::Answer
            }
            Request::Image { disk } => {
                let index = usize::try_from(disk).unwrap_or(usize::MAX);
                return match self.images.get(index).map(self::line) {
                    Some(line) => self.send(id, line, Some(index)),
                    None => {
                        self.refuse(id, format!("there is no disk {disk}: there are {}", self.images.len()))
                    }
                };
            }
            Request::Flush {} => {
                if self.flushes.join(id) {
                    self.actions.push(Action::Flush);
                }
                State::Flush
            }
            Request::Wait { sequence, timeout_ms } => {
                let until = timeout_ms.map(|ms| self.now.saturating_add(Duration::from_millis(ms)));
                self.look_soon(Duration::ZERO);
                State::Wait(Wait { sequence, until, looked: false })
            }
            Request::Events {} => {
                self.send(id, self::line(&DoneAnswer { ok: true }), None);
                State::Events(Unread::default())
            }
            Request::Stop {} => {
                if first_stop {
                    self.stopping = true;
                    self.actions.push(Action::Stop);
                }
                State::Stop
            }
            Request::Pause { for_ms } => {
                let hold = Duration::from_millis(for_ms.unwrap_or(PAUSE_MS_DEFAULT));
                match self.pauses.ask(id, Lasts::For(hold)) {
                    Ok(()) => self.actions.push(Action::Pause),
                    Err(why) => return self.refuse(id, why.to_string()),
                }
                State::Pause
            }
            Request::Track {} => {
                if let Err(why) = self.pauses.check_free() {
                    return self.refuse(id, why.to_string());
                }
                if self.tracker.is_some_and(|other| other != id) {
                    return self.refuse(id, "a copy is being made already: wait for its end".to_owned());
                }
                self.tracker = Some(id);
                self.actions.push(Action::Track(id));
                State::Answer
            }
            Request::Changed { .. } | Request::Approach {} | Request::Hold {} if self.tracker != Some(id) => {
                return self.refuse(id, "this connection makes no copy: ask for `track` first".to_owned());
            }
            Request::Changed { disk } => {
                self.actions.push(Action::Changed(id, disk));
                State::Answer
            }
            Request::Approach {} => {
                self.actions.push(Action::Approach(id));
                State::Answer
            }
            Request::Hold {} => {
                let until = self.now.saturating_add(Duration::from_millis(HOLD_MS));
                match self.pauses.ask(id, Lasts::Until(until)) {
                    Ok(()) => self.actions.push(Action::Hold),
                    Err(why) => return self.refuse(id, why.to_string()),
                }
                State::Pause
            }
            Request::Resume {} => {
                match self.pauses.resume(id) {
                    Ok(()) => self.actions.push(Action::Resume),
                    Err(why) => return self.refuse(id, why.to_string()),
                }
                State::Resume
            }
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = next;
        }
        // A look may be due at once.
        self.tick(self.now);
    }
}

/// An answer as it goes over the socket.
pub(super) fn line<T: Serialize>(answer: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).unwrap_or_else(|error| {
        // None of the answers can: they are plain structures with text and numbers.
        tracing::error!(%error, "an answer cannot be written");
        b"{\"ok\":false,\"error\":\"the answer cannot be written\"}".to_vec()
    });
    line.push(b'\n');
    line
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
