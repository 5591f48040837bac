//! Which victims will be collected next, and how much of them has been asked for.
//!
//! A processor that is asked for all of a victim at once waits, so each is asked for in steps, some at each host write.

/// The last victims noted, in a ring, and the steps taken with them.
#[derive(Debug)]
pub struct Upcoming {
    planned: [u32; Self::RING],
    /// Noted in all.
    noted: usize,
    /// Done with in all, and steps taken with the next.
    done: usize,
    step: usize,
    /// Steps a victim.
    each: usize,
}

impl Upcoming {
    const RING: usize = 16;

    /// None noted; each takes so many steps.
    pub fn new(each: usize) -> Self {
        Self { planned: [u32::MAX; Self::RING], noted: 0, done: 0, step: 0, each }
    }

    /// Notes a victim. False: it is noted already.
    #[inline]
    pub fn note(&mut self, victim: u32) -> bool {
        if self.planned.contains(&victim) {
            return false;
        }
        self.planned[self.noted % Self::RING] = victim;
        self.noted += 1;
        // What the ring has lost is not worth asking for any more.
        if self.noted - self.done > Self::RING {
            (self.done, self.step) = (self.noted - Self::RING, 0);
        }
        true
    }

    /// The victim and which of its steps is next; `None`: all that was noted has been asked for.
    #[inline]
    pub fn step(&mut self) -> Option<(u32, usize)> {
        if self.done == self.noted {
            return None;
        }
        let next = (self.planned[self.done % Self::RING], self.step);
        self.step += 1;
        if self.step == self.each {
            (self.done, self.step) = (self.done + 1, 0);
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_a_noted_victim_comes_once() {
        let mut upcoming = Upcoming::new(2);
        assert!(upcoming.note(7) && !upcoming.note(7) && upcoming.note(9));
        let steps: Vec<_> = std::iter::from_fn(|| upcoming.step()).collect();
        assert_eq!(steps, [(7, 0), (7, 1), (9, 0), (9, 1)]);
        (100..120).for_each(|victim| assert!(upcoming.note(victim)));
        assert_eq!(upcoming.step(), Some((104, 0)), "the first four were lost");
    }
}
