//! A world around the control socket's sessions, played from bytes: clients that ask, stop in the middle, read slowly or
//! not at all and go away at any moment, a group that answers late or badly, and time. After every step the rules hold:
//!
//! - no pause outlives its time, whatever its connection or others do;
//! - `resume` is answered `ok` to a connection that paused only where writes were held from the answer to `pause` on;
//! - each job is asked for once at a time, and writes are paused only by a pause;
//! - memory is bounded, and a newcomer always gets in;
//! - each request gets one answer, in order; no deadline comes twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use afterimage::control::protocol::ImageAnswer;
use afterimage::control::sessions::{Action, ConnectionId, Progress, Sessions, CONNECTIONS_MAX};
use afterimage::control::LINE_BYTES_MAX;
use afterimage_order::Event;

/// More than any answer or event of this world has.
const ANSWER_BYTES_MAX: usize = 512;
/// As the sessions promise.
const EVENTS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Pause,
    Resume,
    Events,
    Other,
    /// Not a request.
    Nonsense,
}

#[derive(Clone, Copy)]
enum Holds {
    For(Duration),
    Until(Duration),
}

#[derive(Default)]
struct Client {
    asked: VecDeque<Asked>,
    /// A line has been begun and not ended.
    torn: bool,
    /// What has been read of an answer.
    read: Vec<u8>,
    /// Only events come from here on.
    subscribed: bool,
    /// Its resume ended its own pause, which was whole.
    whole: bool,
    /// It asked for a pause at some time.
    paused: bool,
}

/// Jobs that the group has to do.
#[derive(Default)]
struct Jobs {
    pause: bool,
    resume: bool,
    flush: bool,
    look: bool,
    stop: bool,
    statuses: Vec<ConnectionId>,
    /// What changes is noted.
    tracked: bool,
}

struct World {
    sessions: Sessions,
    now: Duration,
    clients: BTreeMap<ConnectionId, Client>,
    jobs: Jobs,
    /// Writes are held, for this one, until then.
    held: Option<(ConnectionId, Duration)>,
    /// What pauses asked for, by who asked last; only one at a time gets through.
    holds: BTreeMap<ConnectionId, Holds>,
    sequence: u64,
    /// The pause that is being reached will not be given.
    given_way: bool,
    ended: bool,
}

/// Plays one history.
pub fn play(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let on_demand = bytes.next().is_some_and(|b| b % 2 == 1);
    let images = vec![ImageAnswer { ok: true, file: "/a.img".into(), bytes: 512 }];
    let mut world = World {
        sessions: Sessions::new(images, on_demand),
        now: Duration::ZERO,
        clients: BTreeMap::new(),
        jobs: Jobs::default(),
        held: None,
        holds: BTreeMap::new(),
        sequence: 1,
        given_way: false,
        ended: false,
    };
    while let (Some(step), Some(which)) = (bytes.next(), bytes.next()) {
        world.step(step, which);
        world.check();
    }
}

impl World {
    fn client(&self, which: u8) -> Option<ConnectionId> {
        let n = self.clients.len();
        self.clients.keys().nth(usize::from(which) % n.max(1)).copied()
    }

    fn step(&mut self, step: u8, which: u8) {
        let (now, some) = (self.now, self.client(which));
        match (step % 20, some) {
            (0, _) => self.open(),
            (1, _) => (0..usize::from(which)).for_each(|_| self.open()),
            (2..=7, Some(id)) => self.ask(id, step / 20 * 8 + which % 8),
            (8, Some(id)) => self.read(id, usize::from(which) % 40),
            (9, _) => {
                let all: Vec<_> = self.clients.keys().copied().collect();
                all.into_iter().for_each(|id| self.read(id, usize::MAX));
            }
            (10, Some(id)) => self.tell(id, &[b'x'; 300][..usize::from(which) % 300], None),
            (11, Some(id)) if self.sessions.room(id) > 0 => {
                self.sessions.receive(now, id, b"");
                self.act(None);
            }
            (12, Some(id)) => {
                self.sessions.lost(now, id);
                self.act(None);
            }
            (13, _) => self.pass(Duration::from_millis(u64::from(which) * u64::from(step / 20))),
            (14, _) => {
                if let Some(due) = self.sessions.deadline() {
                    self.pass(due.saturating_sub(now));
                    let next = self.sessions.deadline();
                    assert!(next.is_none_or(|next| next > self.now), "a deadline comes again: {next:?}");
                }
            }
            (15, _) if self.jobs.pause => self.paused(which % 4 != 0),
            (16, _) if self.jobs.resume => {
                self.jobs.resume = false;
                self.sessions.resumed(now);
                self.act(None);
            }
            (17, _) => self.work(which),
            (18, _) => {
                self.sequence += u64::from(which);
                let sequence = self.sequence;
                let event = match which % 3 {
                    0 => Event::Durable { sequence },
                    1 => Event::Home { sequence },
                    _ => Event::Failed { reason: "no".into() },
                };
                for _ in 0..=which {
                    self.sessions.event(now, &event);
                    self.act(None);
                }
            }
            (19, _) if which == 0 => {
                self.sessions.end(now);
                self.ended = true;
                self.act(None);
            }
            (19, _) => {
                self.sessions.give_way(now);
                self.act(None);
                assert!(self.held.is_none(), "a pause stays, and a device waits for its end");
            }
            _ => {}
        }
    }

    fn open(&mut self) {
        let id = self.sessions.open(self.now);
        self.act(None);
        self.clients.insert(id, Client::default());
        assert!(self.sessions.room(id) > 0, "a newcomer gets in");
    }

    fn ask(&mut self, id: ConnectionId, what: u8) {
        let ms = [1, 20, 500, 600_000][usize::from(what) % 4];
        let (line, asked) = match what % 20 {
            0..=3 => (format!("{{\"command\":\"pause\",\"for_ms\":{ms}}}\n"), Asked::Pause),
            4..=6 => ("{\"command\":\"resume\"}\n".to_owned(), Asked::Resume),
            7 => ("{\"command\":\"events\"}\n".to_owned(), Asked::Events),
            8 => ("{\"command\":\"status\"}\n".to_owned(), Asked::Other),
            9 => ("{\"command\":\"flush\"}\n".to_owned(), Asked::Other),
            10 => (format!("{{\"command\":\"wait\",\"sequence\":{ms},\"timeout_ms\":{ms}}}\n"), Asked::Other),
            11 => (format!("{{\"command\":\"wait\",\"sequence\":{ms}}}\n"), Asked::Other),
            12 => ("{\"command\":\"image\",\"disk\":0}\n".to_owned(), Asked::Other),
            13 => ("{\"command\":\"image\",\"disk\":1}\n".to_owned(), Asked::Other),
            14 => ("{\"command\":\"stop\"}\n".to_owned(), Asked::Other),
            16 => ("{\"command\":\"track\"}\n".to_owned(), Asked::Other),
            17 => ("{\"command\":\"changed\",\"disk\":0}\n".to_owned(), Asked::Other),
            18 => ("{\"command\":\"approach\"}\n".to_owned(), Asked::Other),
            19 => ("{\"command\":\"hold\"}\n".to_owned(), Asked::Pause),
            _ => ("nonsense\n".to_owned(), Asked::Nonsense),
        };
        if asked == Asked::Pause && self.sessions.room(id) >= line.len() && !self.clients[&id].torn {
            self.clients.get_mut(&id).expect("a client").paused = true;
            // A hold of one that makes no copy is refused; where it is not, it is the newest that was asked for.
            let hundred = self.now + Duration::from_millis(100);
            let hold = what % 20 == 19;
            self.holds
                .insert(id, if hold { Holds::Until(hundred) } else { Holds::For(Duration::from_millis(ms)) });
        }
        self.tell(id, line.as_bytes(), Some(asked));
    }

    /// Sends what there is room for: a line, or a part of one.
    fn tell(&mut self, id: ConnectionId, bytes: &[u8], asked: Option<Asked>) {
        if bytes.is_empty() || self.sessions.room(id) < bytes.len() {
            return;
        }
        let client = self.clients.get_mut(&id).expect("a client");
        match asked {
            Some(asked) => {
                let asked = if client.torn { Asked::Nonsense } else { asked };
                client.torn = false;
                client.asked.push_back(asked);
                let mine = (asked == Asked::Resume).then_some(id);
                self.sessions.receive(self.now, id, bytes);
                self.act(mine);
            }
            None => {
                client.torn = true;
                self.sessions.receive(self.now, id, bytes);
                self.act(None);
            }
        }
    }

    fn paused(&mut self, good: bool) {
        self.jobs.pause = false;
        self.sequence += 1;
        let sequence = self.sequence;
        self.sessions.paused(self.now, if good { Ok(sequence) } else { Err("no".into()) });
        let line = format!("{{\"ok\":true,\"sequence\":{sequence}}}\n");
        let told =
            |id: &&ConnectionId| self.sessions.output(**id).is_some_and(|o| o.bytes == line.as_bytes());
        let owner = self.clients.keys().find(told).copied();
        if let Some(owner) = owner {
            assert!(good && !self.ended && !self.given_way, "a pause that there is none of");
            let until = match self.holds[&owner] {
                Holds::For(hold) => self.now + hold,
                Holds::Until(until) => until,
            };
            self.held = Some((owner, until));
        }
        self.given_way = false;
        let resumes = self.sessions_resume_now(good && owner.is_none());
        assert!(resumes, "writes stay paused for nobody");
    }

    /// Does what is to be done; whether writes go on where they must.
    fn sessions_resume_now(&mut self, must: bool) -> bool {
        let before = self.jobs.resume;
        self.act(None);
        !must || (!before && self.jobs.resume)
    }

    fn work(&mut self, which: u8) {
        let now = self.now;
        match which % 4 {
            0 if self.jobs.flush => {
                self.jobs.flush = false;
                let result = if which > 200 { Err("no".into()) } else { Ok(self.sequence) };
                self.sessions.flushed(now, result);
            }
            1 if self.jobs.look => {
                self.jobs.look = false;
                let failure = (which > 240).then(|| "no".to_owned());
                let durable = self.sequence.saturating_sub(u64::from(which % 32));
                self.sessions.progress(now, &Progress { acknowledged: self.sequence, durable, failure });
            }
            2 => {
                if let Some(id) = self.jobs.statuses.pop() {
                    self.sessions.answered(now, id, b"{\"ok\":true,\"status\":1}\n".to_vec());
                }
            }
            3 if self.jobs.stop && which > 200 => {
                self.jobs.stop = false;
                self.sessions.stopped(now, &Ok(()));
            }
            _ => {}
        }
        self.act(None);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.sessions.tick(self.now);
        self.act(None);
    }

    fn read(&mut self, id: ConnectionId, most: usize) {
        // Each answer that is taken may bring the next.
        for _ in 0..200 {
            let Some(output) = self.sessions.output(id) else { return };
            let part = output.bytes[..output.bytes.len().min(most)].to_vec();
            let client = self.clients.get_mut(&id).expect("a client");
            client.read.extend_from_slice(&part);
            if client.read.last() == Some(&b'\n') {
                let line = std::mem::take(&mut client.read);
                Self::answered(client, &line);
            }
            self.sessions.sent(self.now, id, part.len());
            self.act(None);
            if most != usize::MAX {
                return;
            }
        }
    }

    fn answered(client: &mut Client, line: &[u8]) {
        if client.subscribed {
            assert!(line.starts_with(b"{\"event\":"), "only events come");
            return;
        }
        let ok = line.starts_with(b"{\"ok\":true");
        match client.asked.pop_front() {
            Some(Asked::Resume) if ok && client.paused => {
                assert!(client.whole, "a resume is called good whose pause was not whole");
                client.whole = false;
            }
            Some(Asked::Events) => client.subscribed = ok,
            Some(Asked::Nonsense) => assert!(!ok, "nonsense is done"),
            Some(_) => {}
            None => assert!(!ok, "an answer without a request, but that a line is too long"),
        }
    }

    /// Takes the actions. `asker` has just asked to resume.
    fn act(&mut self, asker: Option<ConnectionId>) {
        for action in self.sessions.actions() {
            let begins = |job: &mut bool| assert!(!std::mem::replace(job, true), "{action:?} twice");
            match action {
                Action::Pause | Action::Hold => {
                    assert!(self.held.is_none() && !self.jobs.resume, "a pause in a pause");
                    begins(&mut self.jobs.pause);
                }
                Action::Resume => {
                    assert!(!self.jobs.pause, "a pause is ended before it is reached");
                    begins(&mut self.jobs.resume);
                    let Some((owner, until)) = self.held.take() else { continue };
                    if let Some(client) = self.clients.get_mut(&owner) {
                        client.whole = asker == Some(owner) && self.now < until;
                    }
                }
                Action::LetGo => {
                    assert!(self.jobs.pause, "no pause is being reached");
                    self.given_way = true;
                }
                Action::Flush => begins(&mut self.jobs.flush),
                Action::Look => begins(&mut self.jobs.look),
                Action::Stop => begins(&mut self.jobs.stop),
                Action::Track(id) => {
                    self.jobs.tracked = true;
                    self.jobs.statuses.push(id);
                }
                Action::Untrack => assert!(std::mem::take(&mut self.jobs.tracked), "nobody made a copy"),
                Action::Changed(id, _) | Action::Approach(id) => {
                    assert!(self.jobs.tracked, "nobody makes a copy");
                    self.jobs.statuses.push(id);
                }
                Action::Status(id) => self.jobs.statuses.push(id),
                Action::Close(id) => {
                    self.clients.remove(&id);
                    self.holds.remove(&id);
                    self.jobs.statuses.retain(|other| *other != id);
                }
            }
        }
    }

    fn check(&self) {
        if let Some((owner, until)) = self.held {
            assert!(self.now < until, "a pause outlives its time");
            assert!(self.clients.contains_key(&owner), "a pause outlives its connection");
            assert!(!self.ended, "a pause outlives the daemon's end");
            assert!(self.sessions.deadline().is_some_and(|due| due <= until), "nobody wakes when it is over");
        }
        assert_eq!(self.sessions.connections(), self.clients.len());
        assert!(self.clients.len() <= CONNECTIONS_MAX);
        for id in self.clients.keys() {
            let (bytes, events) = self.sessions.held(*id);
            assert!(
                bytes <= LINE_BYTES_MAX + 1 + ANSWER_BYTES_MAX && events <= EVENTS_MAX,
                "{bytes} {events}"
            );
        }
        let known: BTreeSet<_> = self.clients.keys().copied().collect();
        assert!(self.jobs.statuses.iter().all(|id| known.contains(id)));
    }
}
