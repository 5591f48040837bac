//! What ends a daemon: signals, the control socket, and guests that have left.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_frontend::Server;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{low_level, SigId};

use crate::control::server::{Outcome, Stop};
use crate::failure::Failure;

/// How often a daemon looks whether its already connected guests are still there.
const LOOK: Duration = Duration::from_millis(100);
/// How often a daemon looks whether its files are still there.
const LOOK_DELETED: Duration = Duration::from_secs(1);
/// What those hear who ask for the end of a daemon that hands over.
pub(super) const HANDING_OVER: &str = "handing over to the next daemon: stop that one";

/// How long a start goes on that was told to end: one that is done by then ends in order.
const START_ENDS_S: u32 = 2;

/// While there is one, SIGTERM and SIGINT end a start that takes long. It dies as by `kill -9`, from which nothing is lost.
pub(super) struct EndsStart([SigId; 2]);

impl EndsStart {
    /// # Errors
    /// The signals cannot be watched.
    #[allow(unsafe_code)]
    pub fn watch() -> io::Result<Self> {
        let end = || {
            // SAFETY: alarm(2) is async-signal-safe, takes no pointer, and what it sends ends the process.
            let _ = unsafe { libc::alarm(START_ENDS_S) };
        };
        // SAFETY: the handler does nothing but that; it neither allocates nor locks.
        let register = |signal| unsafe { low_level::register(signal, end) };
        Ok(Self([register(SIGTERM)?, register(SIGINT)?]))
    }
}

impl Drop for EndsStart {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for id in self.0 {
            low_level::unregister(id);
        }
        // SAFETY: it takes no pointer; nobody else in this process uses the alarm clock.
        unsafe { libc::alarm(0) };
    }
}

/// What ends a daemon.
pub(super) enum End {
    /// SIGTERM, SIGINT, or `ctl stop`.
    Stop(Option<Outcome>),
    /// SIGHUP under `keep`: another daemon goes on with the same guest.
    HandOver,
    /// Every guest that was connected from the start has left.
    GuestsLeft,
}

/// From all sides, in the order in which they came.
pub(super) struct Ends {
    sender: Sender<End>,
    receiver: Receiver<End>,
    /// The daemon's guests go on: whoever wants them stopped has to ask the next one.
    handing_over: Arc<AtomicBool>,
}

impl Ends {
    /// From now on signals count. Later ones find a daemon that is ending and change nothing.
    ///
    /// # Errors
    /// The thread that waits for them does not start.
    pub fn watch(mut signals: Signals, kept: bool) -> Result<Self, Failure> {
        let (sender, receiver) = channel();
        let ends = sender.clone();
        let watch = move || {
            for signal in signals.forever() {
                let end = if signal == SIGHUP && kept { End::HandOver } else { End::Stop(None) };
                tracing::info!(signal, "told to end");
                if ends.send(end).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(watch)
            .map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
        Ok(Self { sender, receiver, handing_over: Arc::default() })
    }

    /// For the control socket.
    pub fn stop(&self) -> Stop {
        let (ends, handing_over) = (self.sender.clone(), Arc::clone(&self.handing_over));
        Box::new(move |outcome| match handing_over.load(Ordering::Relaxed) {
            true => Err(HANDING_OVER),
            false => ends.send(End::Stop(Some(outcome))).map_err(|_| "the daemon is ending already"),
        })
    }

    /// Those who have asked for the end since before it began. Whoever asks from now on is told that it has.
    pub fn late(self) -> Vec<Outcome> {
        let asked = self.receiver.try_iter().filter_map(|end| match end {
            End::Stop(outcome) => outcome,
            End::HandOver | End::GuestsLeft => None,
        });
        asked.collect()
    }

    /// Waits for the first. `look` is called now and then.
    pub fn wait(&self, servers: &[Server], ends_with_guests: bool, mut look: impl FnMut()) -> End {
        let mut looked = Instant::now();
        loop {
            match self.receiver.recv_timeout(if ends_with_guests { LOOK } else { LOOK_DELETED }) {
                Ok(end) => {
                    self.handing_over.store(matches!(end, End::HandOver), Ordering::Relaxed);
                    return end;
                }
                Err(RecvTimeoutError::Timeout)
                    if ends_with_guests && servers.iter().all(Server::finished) =>
                {
                    return End::GuestsLeft
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return End::Stop(None),
            }
            if looked.elapsed() >= LOOK_DELETED {
                look();
                looked = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        Ends::watch(Signals::new([] as [i32; 0]).unwrap(), true).unwrap()
    }

    #[test]
    fn who_asks_for_the_end_of_a_daemon_that_hands_over_is_sent_to_the_next_one() {
        let ends = ends();
        let stop = ends.stop();
        ends.sender.send(End::HandOver).unwrap();
        // Not yet begun: it is told when the end has come.
        assert_eq!(stop(Outcome::nobodys()), Ok(()));
        assert!(matches!(ends.wait(&[], false, || {}), End::HandOver));
        assert_eq!(stop(Outcome::nobodys()), Err(HANDING_OVER));
        assert_eq!(ends.late().len(), 1);
        assert_eq!(stop(Outcome::nobodys()), Err(HANDING_OVER));
    }

    #[test]
    fn who_asks_for_the_end_during_an_orderly_one_waits_with_the_others() {
        let ends = ends();
        let stop = ends.stop();
        ends.sender.send(End::Stop(None)).unwrap();
        assert!(matches!(ends.wait(&[], false, || {}), End::Stop(None)));
        assert_eq!(stop(Outcome::nobodys()), Ok(()));
        assert_eq!(ends.late().len(), 1);
        assert_eq!(stop(Outcome::nobodys()), Err("the daemon is ending already"));
    }
}
