//! The sessions without sockets or clocks: what one client does, and what another then gets.

use super::super::connection::ANSWER_WAIT;
use super::super::LINE_BYTES_MAX;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn images() -> Vec<ImageAnswer> {
    vec![ImageAnswer { ok: true, file: "/a.img".into(), bytes: 512 }]
}

fn sessions() -> Sessions {
    Sessions::new(images(), false)
}

fn tell(sessions: &mut Sessions, now: Duration, id: ConnectionId, line: &str) {
    sessions.receive(now, id, format!("{line}\n").as_bytes());
}

/// Takes the answer, which must be there.
#[track_caller]
fn answer(sessions: &mut Sessions, now: Duration, id: ConnectionId) -> String {
    let bytes = sessions.output(id).expect("an answer").bytes.to_vec();
    sessions.sent(now, id, bytes.len());
    String::from_utf8(bytes).unwrap()
}

fn ask(sessions: &mut Sessions, now: Duration, id: ConnectionId, line: &str) -> String {
    tell(sessions, now, id, line);
    answer(sessions, now, id)
}

const OK: &str = "{\"ok\":true}\n";
const PAUSE: &str = "{\"command\":\"pause\",\"for_ms\":1000}";
const RESUME: &str = "{\"command\":\"resume\"}";
const EVENTS: &str = "{\"command\":\"events\"}";
const STATUS: &str = "{\"command\":\"status\"}";
const FLUSH: &str = "{\"command\":\"flush\"}";
const STOP: &str = "{\"command\":\"stop\"}";

fn pause(sessions: &mut Sessions, now: Duration, id: ConnectionId) {
    tell(sessions, now, id, PAUSE);
    assert_eq!(sessions.actions(), [Action::Pause]);
    sessions.paused(now, Ok(7));
    assert_eq!(answer(sessions, now, id), "{\"ok\":true,\"sequence\":7}\n");
}

#[test]
fn a_pause_ends_in_time_whatever_its_connection_does() {
    for next in
        [EVENTS, "{\"command\":\"wait\",\"sequence\":9,\"timeout_ms\":60000}", FLUSH, STATUS, "{\"comm"]
    {
        let mut s = sessions();
        let a = s.open(Duration::ZERO);
        pause(&mut s, Duration::ZERO, a);
        tell(&mut s, Duration::ZERO, a, next);
        s.actions();
        s.tick(SECOND - Duration::from_millis(1));
        assert!(!s.actions().contains(&Action::Resume), "{next}");
        assert!(s.deadline().is_some_and(|d| d <= SECOND), "{next}");
        s.tick(SECOND);
        assert!(s.actions().contains(&Action::Resume), "{next}");
    }
}

/// Whatever the copy does in it, and however late it was reached.
#[test]
fn the_hold_of_a_copy_ends_100_ms_after_it_was_asked_for() {
    let ms = Duration::from_millis;
    for reached in [0, 60, 99, 100, 5000] {
        let mut s = sessions();
        let a = s.open(Duration::ZERO);
        tell(&mut s, Duration::ZERO, a, "{\"command\":\"track\"}");
        assert_eq!(s.actions(), [Action::Track(a)]);
        s.answered(Duration::ZERO, a, OK.into());
        answer(&mut s, Duration::ZERO, a);
        let asked = SECOND;
        tell(&mut s, asked, a, "{\"command\":\"hold\"}");
        assert_eq!(s.actions(), [Action::Hold]);
        s.paused(asked + ms(reached), Ok(7));
        if reached < 100 {
            assert_eq!(s.actions(), []);
            assert_eq!(s.deadline(), Some(asked + ms(100)));
            s.tick(asked + ms(99));
            assert_eq!(s.actions(), [], "reached after {reached} ms");
            s.tick(asked + ms(100));
        }
        assert_eq!(s.actions(), [Action::Resume], "reached after {reached} ms");
        let told = answer(&mut s, asked + ms(reached), a);
        assert_eq!(told.contains("\"ok\":true"), reached < 100, "{told}");
        // A copy that is not done by then is told so.
        s.resumed(asked + ms(reached.max(100)));
        assert!(ask(&mut s, asked + ms(reached.max(100)), a, RESUME).contains("the pause has ended already"));
    }
}

#[test]
fn what_was_not_held_is_not_resumed() {
    let mut s = sessions();
    let (a, b) = (s.open(Duration::ZERO), s.open(Duration::ZERO));
    pause(&mut s, Duration::ZERO, a);
    // A's time is over, and nobody has noticed but its own late request.
    assert!(ask(&mut s, SECOND, a, RESUME).contains("\"ok\":false"));
    assert_eq!(s.actions(), [Action::Resume]);
    s.resumed(SECOND);
    pause(&mut s, SECOND, b);
    assert!(ask(&mut s, SECOND, a, RESUME).contains("\"ok\":false"));
    assert_eq!(s.actions(), [], "B's pause is B's");
    tell(&mut s, SECOND, b, RESUME);
    assert_eq!(s.actions(), [Action::Resume]);
    assert!(s.output(b).is_none(), "not before writes go on");
    s.resumed(SECOND);
    assert_eq!(answer(&mut s, SECOND, b), OK);
}

#[test]
fn a_pause_goes_with_its_connection() {
    let mut s = sessions();
    let a = s.open(Duration::ZERO);
    pause(&mut s, Duration::ZERO, a);
    s.lost(Duration::ZERO, a);
    assert_eq!(s.actions(), [Action::Close(a), Action::Resume]);
    s.resumed(Duration::ZERO);
    // It leaves while the pause is being reached, in order or not.
    for orderly in [true, false] {
        let b = s.open(Duration::ZERO);
        tell(&mut s, Duration::ZERO, b, PAUSE);
        assert_eq!(s.actions(), [Action::Pause]);
        if !orderly {
            s.lost(Duration::ZERO, b);
            assert_eq!(s.actions(), [Action::Close(b)]);
        }
        s.paused(Duration::ZERO, Ok(1));
        if orderly {
            answer(&mut s, Duration::ZERO, b);
            s.receive(Duration::ZERO, b, b"");
            assert_eq!(s.actions(), [Action::Close(b), Action::Resume]);
        } else {
            assert_eq!(s.actions(), [Action::Resume]);
        }
        s.resumed(Duration::ZERO);
    }
}

#[test]
fn flushes_that_come_during_one_share_the_next() {
    let mut s = sessions();
    let ids: Vec<_> = (0..3).map(|_| s.open(Duration::ZERO)).collect();
    tell(&mut s, Duration::ZERO, ids[0], FLUSH);
    assert_eq!(s.actions(), [Action::Flush]);
    tell(&mut s, Duration::ZERO, ids[1], FLUSH);
    tell(&mut s, Duration::ZERO, ids[2], FLUSH);
    assert_eq!(s.actions(), []);
    s.flushed(Duration::ZERO, Ok(4));
    assert_eq!(s.actions(), [Action::Flush]);
    assert!(answer(&mut s, Duration::ZERO, ids[0]).contains("\"sequence\":4"));
    assert!(s.output(ids[1]).is_none() && s.output(ids[2]).is_none());
    s.flushed(Duration::ZERO, Err("no".into()));
    assert!(answer(&mut s, Duration::ZERO, ids[1]).contains("\"error\":\"no\""));
    assert!(answer(&mut s, Duration::ZERO, ids[2]).contains("\"error\":\"no\""));
    assert_eq!(s.actions(), []);
}

#[test]
fn a_wait_for_the_future_only_looks() {
    let progress = |acknowledged, durable| Progress { acknowledged, durable, failure: None };
    for on_demand in [false, true] {
        let mut s = Sessions::new(images(), on_demand);
        let a = s.open(Duration::ZERO);
        tell(&mut s, Duration::ZERO, a, "{\"command\":\"wait\",\"sequence\":5,\"timeout_ms\":60000}");
        for looks in 0..100 {
            assert_eq!(s.actions(), [Action::Look], "look {looks}");
            s.progress(looks * LOOK, &progress(4, 3));
            assert_eq!(s.actions(), []);
            assert_eq!(s.deadline(), Some((looks + 1) * LOOK));
            s.tick((looks + 1) * LOOK);
        }
        s.progress(100 * LOOK, &progress(5, 4));
        if on_demand {
            assert_eq!(s.actions(), [Action::Look, Action::Flush]);
            s.flushed(100 * LOOK, Ok(5));
        } else {
            s.event(100 * LOOK, &Event::Durable { sequence: 5 });
        }
        assert_eq!(answer(&mut s, 100 * LOOK, a), "{\"ok\":true,\"durable\":true,\"sequence\":5}\n");
        // In time or not at all; without a time, only for what is there.
        tell(&mut s, 100 * LOOK, a, "{\"command\":\"wait\",\"sequence\":9,\"timeout_ms\":10}");
        s.tick(100 * LOOK + Duration::from_millis(10));
        assert!(answer(&mut s, 101 * LOOK, a).contains("\"durable\":false"));
        s.progress(101 * LOOK, &progress(5, 5));
        s.actions();
        tell(&mut s, 101 * LOOK, a, "{\"command\":\"wait\",\"sequence\":9}");
        assert_eq!(s.actions(), [Action::Look]);
        s.progress(101 * LOOK, &progress(5, 5));
        assert!(answer(&mut s, 101 * LOOK, a).contains("ahead of the newest request, 5"));
    }
}

/// A look that began before a wait knows nothing of its number, which may have been answered since.
#[test]
fn a_wait_is_judged_by_a_look_that_began_after_it() {
    let progress = |acknowledged, durable| Progress { acknowledged, durable, failure: None };
    let mut s = sessions();
    let (a, b) = (s.open(Duration::ZERO), s.open(Duration::ZERO));
    tell(&mut s, Duration::ZERO, a, "{\"command\":\"wait\",\"sequence\":5}");
    assert_eq!(s.actions(), [Action::Look]);
    tell(&mut s, Duration::ZERO, b, "{\"command\":\"wait\",\"sequence\":6}");
    assert_eq!(s.actions(), []);
    s.progress(Duration::ZERO, &progress(5, 5));
    assert!(answer(&mut s, Duration::ZERO, a).contains("\"durable\":true"));
    assert!(s.output(b).is_none(), "by the look that began before it");
    assert_eq!(s.actions(), [Action::Look]);
    s.progress(Duration::ZERO, &progress(6, 5));
    assert!(s.output(b).is_none());
    s.event(Duration::ZERO, &Event::Durable { sequence: 6 });
    assert!(answer(&mut s, Duration::ZERO, b).contains("\"durable\":true"));
}

/// One whose time is over in the tick has its answer, and gets no other.
#[test]
fn a_wait_that_ends_as_the_look_comes_is_answered_once() {
    let mut s = sessions();
    let a = s.open(Duration::ZERO);
    tell(&mut s, Duration::ZERO, a, "{\"command\":\"wait\",\"sequence\":5,\"timeout_ms\":10}");
    assert_eq!(s.actions(), [Action::Look]);
    s.progress(SECOND, &Progress { acknowledged: 5, durable: 5, failure: None });
    let said = answer(&mut s, SECOND, a);
    assert_eq!(said, "{\"ok\":true,\"durable\":false,\"sequence\":5}\n");
    assert!(s.output(a).is_none());
}

/// What is retained has no number: another one's flush may have begun before it, and says nothing to who waits for the newest.
#[test]
fn where_nothing_syncs_by_itself_no_event_ends_a_wait() {
    let mut s = Sessions::new(images(), true);
    let a = s.open(Duration::ZERO);
    tell(&mut s, Duration::ZERO, a, "{\"command\":\"wait\",\"sequence\":5}");
    assert_eq!(s.actions(), [Action::Look]);
    s.progress(Duration::ZERO, &Progress { acknowledged: 5, durable: 4, failure: None });
    assert_eq!(s.actions(), [Action::Flush]);
    s.event(Duration::ZERO, &Event::Durable { sequence: 5 });
    assert!(s.output(a).is_none());
    s.flushed(Duration::ZERO, Ok(5));
    assert_eq!(answer(&mut s, Duration::ZERO, a), "{\"ok\":true,\"durable\":true,\"sequence\":5}\n");
}

#[test]
fn a_newcomer_always_gets_in_and_those_that_wait_stay() {
    let mut s = sessions();
    let mut busy = Vec::new();
    for n in 0..200u32 {
        let id = s.open(n * SECOND);
        let said = ask(&mut s, n * SECOND, id, EVENTS);
        if said == OK {
            busy.push(id);
        } else {
            assert!(said.contains("48 connections wait"), "{said}");
        }
    }
    assert_eq!(busy.len(), BUSY_MAX);
    assert_eq!(s.connections(), CONNECTIONS_MAX);
    s.event(200 * SECOND, &Event::Resumed);
    for id in &busy {
        assert_eq!(answer(&mut s, 200 * SECOND, *id), "{\"event\":\"resumed\"}\n");
    }
    s.actions();
    let late = s.open(201 * SECOND);
    tell(&mut s, 201 * SECOND, late, STOP);
    assert!(s.actions().contains(&Action::Stop));
    let other = s.open(201 * SECOND);
    tell(&mut s, 201 * SECOND, other, STATUS);
    assert!(s.actions().contains(&Action::Status(other)));
    s.answered(201 * SECOND, other, b"{}\n".to_vec());
    assert_eq!(answer(&mut s, 201 * SECOND, other), "{}\n");
    assert!(!s.is_drained());
    s.stopped(201 * SECOND, &Ok(()));
    assert_eq!(answer(&mut s, 201 * SECOND, late), OK);
    assert!(s.actions().contains(&Action::Close(late)));
    assert!(s.is_drained());
}

#[test]
fn who_asks_for_the_end_after_it_was_refused_is_answered_too() {
    let mut s = sessions();
    for _ in 0..2 {
        let id = s.open(Duration::ZERO);
        tell(&mut s, Duration::ZERO, id, STOP);
        assert_eq!(s.actions(), [Action::Stop]);
        s.stopped(Duration::ZERO, &Err("no".into()));
        assert!(answer(&mut s, Duration::ZERO, id).contains("\"error\":\"no\""));
        assert_eq!(s.actions(), [Action::Close(id)]);
    }
}

#[test]
fn who_does_not_read_is_dropped_and_costs_little_meanwhile() {
    let mut s = sessions();
    let a = s.open(Duration::ZERO);
    assert_eq!(ask(&mut s, Duration::ZERO, a, EVENTS), OK);
    for sequence in 0..10_000 {
        s.event(Duration::ZERO, &Event::Durable { sequence });
    }
    let (bytes, events) = s.held(a);
    assert!(bytes < 100 && events <= 64, "{bytes} bytes, {events} events");
    s.tick(ANSWER_WAIT);
    assert_eq!(s.actions(), [Action::Close(a)]);
    assert_eq!(s.connections(), 0);
}

#[test]
fn requests_are_answered_one_by_one_in_order() {
    let mut s = sessions();
    let a = s.open(Duration::ZERO);
    s.receive(
        Duration::ZERO,
        a,
        format!("{STATUS}\n{{}}\n{{\"command\":\"image\",\"disk\":0}}\n").as_bytes(),
    );
    assert_eq!(s.actions(), [Action::Status(a)]);
    assert_eq!(s.room(a), 0, "not read before the answer is out");
    s.answered(Duration::ZERO, a, b"S\n".to_vec());
    assert_eq!(answer(&mut s, Duration::ZERO, a), "S\n");
    assert!(answer(&mut s, Duration::ZERO, a).contains("not a request"));
    assert_eq!(s.output(a).unwrap().image, Some(0));
    s.sent(Duration::ZERO, a, 1);
    assert_eq!(s.output(a).unwrap().image, None, "with the first byte only");
    answer(&mut s, Duration::ZERO, a);
    assert!(ask(&mut s, Duration::ZERO, a, "{\"command\":\"image\",\"disk\":1}").contains("no disk 1"));
    // A line without an end is refused, and the connection ends with that answer.
    s.receive(Duration::ZERO, a, &[b'x'; LINE_BYTES_MAX + 1]);
    assert!(answer(&mut s, Duration::ZERO, a).contains("more than 4096 bytes"));
    assert_eq!(s.actions(), [Action::Close(a)]);
}

#[test]
fn the_end_of_the_daemon_ends_pauses_for_their_owners() {
    let mut s = sessions();
    let (a, b) = (s.open(Duration::ZERO), s.open(Duration::ZERO));
    pause(&mut s, Duration::ZERO, a);
    s.end(Duration::ZERO);
    assert_eq!(s.actions(), [Action::Resume]);
    assert!(ask(&mut s, Duration::ZERO, a, RESUME).contains("\"ok\":false"));
    s.resumed(Duration::ZERO);
    assert!(ask(&mut s, Duration::ZERO, b, PAUSE).contains("the daemon is ending"));
    assert_eq!(s.actions(), []);
}
