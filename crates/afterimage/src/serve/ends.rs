//! What ends a daemon: signals, the control socket, and guests that have left.

use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use afterimage_frontend::Server;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::control::server::{Outcome, Stop};
use crate::failure::Failure;

/// How often a daemon looks whether its already connected guests are still there.
const LOOK: Duration = Duration::from_millis(100);
/// How often a daemon looks whether its files are still there.
const LOOK_DELETED: Duration = Duration::from_secs(1);
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
        Ok(Self { sender, receiver })
    }

    /// For the control socket.
    pub fn stop(&self) -> Stop {
        let ends = self.sender.clone();
        Box::new(move |outcome| ends.send(End::Stop(Some(outcome))).is_ok())
    }

    /// Those who have asked for the end since it began. Whoever asks from now on is told that it has.
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
                Ok(end) => return end,
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
