//! FAST, as tables of versions: no physical addresses at all.

use std::collections::{HashMap, VecDeque};

use super::{Naive, Tally, ERASE, PROGRAM, READ};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot {
    Erased,
    Dead,
    Live(u32),
}

struct Sequential {
    owner: u32,
    slots: Vec<Slot>,
}

pub struct Fast {
    p: u32,
    in_order: bool,
    log_max: usize,
    data: HashMap<u32, Vec<Slot>>,
    sw: Option<Sequential>,
    log: VecDeque<Vec<(u32, Slot)>>,
    tally: Tally,
}

impl Fast {
    pub fn new(p: u32, log_max: usize, in_order: bool) -> Self {
        let (data, sw, log, tally) = (HashMap::new(), None, VecDeque::new(), Tally::new());
        Self { p, in_order, log_max, data, sw, log, tally }
    }

    fn count(&mut self, cause: &'static str, what: usize) {
        self.tally.entry(cause).or_default()[what] += 1;
    }

    /// The place of the only live copy.
    fn newest(&mut self, lpn: u32) -> Option<&mut Slot> {
        let (lbn, o) = (lpn / self.p, (lpn % self.p) as usize);
        let log = self.log.iter_mut().flatten().filter(|(l, _)| *l == lpn).map(|(_, slot)| slot);
        let sw = self.sw.iter_mut().filter(|sw| sw.owner == lbn).flat_map(move |sw| sw.slots.get_mut(o));
        let data = self.data.get_mut(&lbn).into_iter().map(move |slots| &mut slots[o]);
        let mut live = log.chain(sw).chain(data).filter(|slot| matches!(slot, Slot::Live(_)));
        let found = live.next();
        assert!(live.next().is_none(), "two live copies of {lpn}");
        found
    }

    /// Takes the live copy away, counted as a copy.
    fn lift(&mut self, lpn: u32, cause: &'static str) -> Slot {
        let Some(slot) = self.newest(lpn) else { return Slot::Erased };
        let lifted = std::mem::replace(slot, Slot::Dead);
        self.count(cause, READ);
        self.count(cause, PROGRAM);
        lifted
    }

    /// Copies offsets `from..` of `lbn` behind `slots`, with the page in hand at its place.
    fn fold(&mut self, lbn: u32, mut slots: Vec<Slot>, hand: Option<(u32, u32)>, cause: &'static str) {
        for o in slots.len() as u32..self.p {
            let slot = match hand {
                Some((at, stamp)) if at == o => {
                    self.count("host", PROGRAM);
                    Slot::Live(stamp)
                }
                _ => self.lift(lbn * self.p + o, cause),
            };
            slots.push(slot);
        }
        self.count(cause, ERASE);
        self.data.insert(lbn, slots);
    }

    fn partial(&mut self, hand: Option<(u32, u32)>) {
        let sw = self.sw.take().expect("a sequential log");
        self.fold(sw.owner, sw.slots, hand, "partial-merge");
    }

    fn close(&mut self) {
        match &self.sw {
            Some(sw) if sw.slots.len() as u32 == self.p => {
                let sw = self.sw.take().expect("it is there");
                self.count("switch-merge", ERASE);
                self.data.insert(sw.owner, sw.slots);
            }
            Some(_) => self.partial(None),
            None => {}
        }
    }

    fn append(&mut self, lpn: u32, stamp: u32) {
        if self.log.back().is_none_or(|block| block.len() as u32 == self.p) {
            if self.log.len() == self.log_max {
                self.merge_oldest();
            }
            self.log.push_back(Vec::new());
        }
        self.discard(lpn);
        self.count("host", PROGRAM);
        self.log.back_mut().expect("just pushed").push((lpn, Slot::Live(stamp)));
    }

    fn merge_oldest(&mut self) {
        while let Some((lpn, _)) = self.log[0].iter().find(|(_, slot)| matches!(slot, Slot::Live(_))) {
            let lbn = lpn / self.p;
            if self.sw.as_ref().is_some_and(|sw| sw.owner == lbn) {
                self.partial(None);
            } else {
                self.fold(lbn, Vec::new(), None, "log-merge");
            }
        }
        self.log.pop_front();
        self.count("log-merge", ERASE);
    }
}

impl Naive for Fast {
    fn write(&mut self, lpn: u32, stamp: u32) {
        let (lbn, o) = (lpn / self.p, lpn % self.p);
        let erased = vec![Slot::Erased; self.p as usize];
        let slots = self.data.entry(lbn).or_insert(erased);
        let high_water = slots.iter().rposition(|s| *s != Slot::Erased).map_or(0, |i| i as u32 + 1);
        if slots[o as usize] == Slot::Erased && (o >= high_water || !self.in_order) {
            self.discard(lpn);
            self.data.get_mut(&lbn).expect("it is there")[o as usize] = Slot::Live(stamp);
            self.count("host", PROGRAM);
        } else if o == 0 {
            self.close();
            self.discard(lpn);
            self.count("host", PROGRAM);
            self.sw = Some(Sequential { owner: lbn, slots: vec![Slot::Live(stamp)] });
        } else if let Some(n) = self.sw.as_ref().filter(|sw| sw.owner == lbn).map(|sw| sw.slots.len() as u32)
        {
            self.discard(lpn);
            if o == n {
                self.count("host", PROGRAM);
                self.sw.as_mut().expect("it is there").slots.push(Slot::Live(stamp));
            } else if o > n {
                self.partial(Some((o, stamp)));
            } else {
                self.fold(lbn, Vec::new(), Some((o, stamp)), "full-merge");
                self.count("full-merge", ERASE);
                self.sw = None;
            }
        } else {
            self.append(lpn, stamp);
        }
    }

    fn read(&mut self, lpn: u32) -> Option<u32> {
        let Slot::Live(stamp) = *self.newest(lpn)? else { return None };
        self.count("host", READ);
        Some(stamp)
    }

    fn discard(&mut self, lpn: u32) {
        if let Some(slot) = self.newest(lpn) {
            *slot = Slot::Dead;
        }
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}
