//! Cells, one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use afterimage_lab::calm;
use afterimage_report::note;
use afterimage_report::number::about;

use crate::error::{BenchError, Result};

/// What is measured, a cell at a time.
pub trait Bench {
    /// Which cell.
    type Cell;
    /// What comes of one.
    type Outcome;

    /// For people, with its round.
    fn name(&self, cell: &Self::Cell) -> String;

    /// How long it will take; `None`: as long as those before it.
    fn estimate(&self, _cell: &Self::Cell) -> Option<Duration> {
        None
    }

    /// Measures it, and says in a few words what came out.
    ///
    /// # Errors
    /// Anything that keeps it from a result; the other cells are measured all the same.
    fn measure(&mut self, cell: &Self::Cell) -> Result<(Self::Outcome, String)>;

    /// Keeps what came out, at once.
    ///
    /// # Errors
    /// It cannot be written, which ends the run.
    fn keep(&mut self, outcome: Self::Outcome) -> Result<()>;
}

/// A cell without a result: its name, and why.
pub type Failure = (String, BenchError);

/// Measures cells, and says on stderr how far it is. `kept`: so many besides were finished before. Those that failed are returned
/// with the reason; they do not stop the others.
///
/// # Errors
/// Results cannot be written.
pub fn run<B: Bench>(
    bench: &mut B,
    cells: &[B::Cell],
    kept: usize,
    patience: Duration,
) -> Result<Vec<Failure>> {
    say_kept(kept, cells.len());
    let started = Instant::now();
    let mut failed = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let mean = (at > 0).then(|| started.elapsed() / at as u32);
        let left: Option<Duration> = cells[at..].iter().map(|cell| bench.estimate(cell).or(mean)).sum();
        let left = left.map_or(String::new(), |left| format!(", about {} left", about(left)));
        let name = bench.name(cell);
        note(&format!("[{}/{}{left}] {name}: ", at + 1, cells.len()));
        let began = Instant::now();
        let measured = calm::wait(patience).map_err(BenchError::from).and_then(|()| bench.measure(cell));
        match measured {
            Ok((outcome, words)) => {
                note(&format!("{words} ({:.0} s)\n", began.elapsed().as_secs_f64()));
                bench.keep(outcome)?;
            }
            Err(error) => {
                note(&format!("FAILED: {error}\n"));
                failed.push((name, error));
            }
        }
    }
    say_failed(&failed);
    Ok(failed)
}

fn say_kept(kept: usize, to_do: usize) {
    if kept > 0 {
        let all = kept + to_do;
        note(&format!("{kept} of {all} cells are finished already and are kept (--fresh runs them again)\n"));
    }
}

/// Again, at the end, where people look.
fn say_failed(failed: &[Failure]) {
    for (name, error) in failed {
        note(&format!("{name} failed: {error}\n"));
    }
}

/// Measures cells that do not disturb each other, so many at once ([`crate::virtual_time`]); says on stderr what comes of each. `measure`
/// keeps what came out, and says it in a few words. Those that failed are returned with the reason; they do not stop the others.
pub fn run_at_once<C: Sync>(
    cells: &[C],
    kept: usize,
    at_once: usize,
    name: impl Fn(&C) -> String + Sync,
    measure: impl Fn(&C) -> Result<String> + Sync,
) -> Vec<Failure> {
    say_kept(kept, cells.len());
    let started = Instant::now();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(Vec::new());
    let worker = || {
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::SeqCst)) {
            let began = Instant::now();
            let measured = measure(cell);
            let done = done.fetch_add(1, Ordering::SeqCst) + 1;
            let left = started.elapsed() / done as u32 * (cells.len() - done) as u32;
            let head = format!("[{done}/{}, about {} left] {}", cells.len(), about(left), name(cell));
            match measured {
                Ok(words) => note(&format!("{head}: {words} ({:.0} s)\n", began.elapsed().as_secs_f64())),
                Err(error) => {
                    note(&format!("{head}: FAILED: {error}\n"));
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push((name(cell), error));
                }
            }
        }
    };
    std::thread::scope(|scope| (0..at_once.max(1)).for_each(|_| drop(scope.spawn(worker))));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    say_failed(&failed);
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Numbers {
        kept: Vec<u32>,
    }

    impl Bench for Numbers {
        type Cell = u32;
        type Outcome = u32;

        fn name(&self, cell: &u32) -> String {
            cell.to_string()
        }

        fn measure(&mut self, cell: &u32) -> Result<(u32, String)> {
            if cell % 2 == 1 {
                return Err(BenchError::Workload("odd".to_owned()));
            }
            Ok((cell * 10, String::new()))
        }

        fn keep(&mut self, outcome: u32) -> Result<()> {
            self.kept.push(outcome);
            Ok(())
        }
    }

    #[test]
    fn a_cell_that_fails_stops_no_other() {
        let mut bench = Numbers::default();
        let failed = run(&mut bench, &[2, 3, 4], 0, Duration::ZERO).unwrap();
        assert_eq!(bench.kept, [20, 40]);
        assert_eq!(failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["3"]);
    }

    #[test]
    fn every_cell_is_measured_once_by_whoever_is_free() {
        let seen = Mutex::new(Vec::new());
        let cells: Vec<u32> = (0..50).collect();
        let failed = run_at_once(&cells, 0, 3, u32::to_string, |cell| {
            seen.lock().unwrap().push(*cell);
            if *cell == 7 {
                return Err(BenchError::Workload("seven".to_owned()));
            }
            Ok(String::new())
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, cells);
        assert_eq!(failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["7"]);
    }
}
