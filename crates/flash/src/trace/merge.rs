//! Several files played together, as guests beside each other.

use std::path::PathBuf;

use super::reader::{open, Options, Reader, Tally, TraceError};
use super::{Format, Request};

/// One trace out of one or more files: each file's clock starts at zero and each keeps its own address spaces; where
/// all have times they are merged by time, otherwise they follow each other. Where all say when they begin (captures of
/// several daemons that ran together), that is kept.
pub struct Merged {
    parts: Vec<Part>,
    /// Index of a part's device → device of the whole, in order of appearance.
    devices: u32,
    timed: bool,
    /// When the first request was made, nanoseconds since 1970, where all say it.
    begun_ns: Option<u64>,
}

struct Part {
    reader: Reader,
    ahead: Option<Request>,
    devices: Vec<u32>,
    /// How much later than the earliest it begins.
    shift_ns: u64,
}

impl Part {
    /// Gives a request its place in the whole.
    #[inline(always)]
    fn place(&mut self, request: &mut Request, devices: &mut u32, timed: bool) {
        let own = request.device as usize;
        if own >= self.devices.len() {
            self.devices.resize(own + 1, u32::MAX);
        }
        if self.devices[own] == u32::MAX {
            self.devices[own] = *devices;
            *devices += 1;
        }
        request.device = self.devices[own];
        if !timed {
            request.time_ns = None;
        }
    }
}

impl Merged {
    /// Opens all files.
    ///
    /// # Errors
    /// As [`open`], for the first file that fails. A file may have no request of the chosen classes where another has one.
    pub fn open(files: &[PathBuf], options: &Options) -> Result<Self, TraceError> {
        let mut parts = Vec::with_capacity(files.len());
        let mut none_chosen = None;
        for file in files {
            let mut reader = open(file, options)?;
            let ahead = match reader.next_request() {
                Err(error @ TraceError::NoneChosen(_)) => {
                    none_chosen.get_or_insert(error);
                    None
                }
                ahead => ahead?,
            };
            parts.push(Part { reader, ahead, devices: Vec::new(), shift_ns: 0 });
        }
        if let Some(error) = none_chosen.filter(|_| parts.iter().all(|p| p.ahead.is_none())) {
            return Err(error);
        }
        let begins: Option<Vec<u64>> = parts.iter().map(|p| p.reader.first_absolute_ns()).collect();
        let begun_ns = begins.as_ref().and_then(|begins| begins.iter().min().copied());
        if let (Some(begins), Some(first)) = (&begins, begun_ns) {
            for (part, begin) in parts.iter_mut().zip(begins) {
                part.shift_ns = begin - first;
                part.ahead = part.ahead.map(|request| request.later(part.shift_ns));
            }
        }
        // Address spaces that headers name come first, file after file: the drive holds them in this order.
        let mut devices = 0;
        for part in &mut parts {
            let named = part.reader.declared();
            part.devices.extend(devices..devices + named);
            devices += named;
        }
        let timed = parts.iter().filter_map(|p| p.ahead).all(|r| r.time_ns.is_some());
        Ok(Self { parts, devices, timed, begun_ns })
    }

    /// The next request.
    ///
    /// # Errors
    /// As [`Reader::next_request`].
    #[inline]
    pub fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let mut waiting = self.parts.iter_mut().filter(|p| p.ahead.is_some());
        let part =
            if self.timed { waiting.min_by_key(|p| p.ahead.and_then(|r| r.time_ns)) } else { waiting.next() };
        let Some(part) = part else { return Ok(None) };
        let next = part.reader.next_request()?.map(|request| request.later(part.shift_ns));
        let Some(mut request) = std::mem::replace(&mut part.ahead, next) else { return Ok(None) };
        part.place(&mut request, &mut self.devices, self.timed);
        Ok(Some(request))
    }

    /// Reads on until there are `most` requests in `requests`, or the trace ends: then `false`. For one file this is quicker
    /// than one request after the other.
    ///
    /// # Errors
    /// As [`Reader::next_request`]; what was read before that is in `requests`.
    pub fn read_into(&mut self, requests: &mut Vec<Request>, most: usize) -> Result<bool, TraceError> {
        let [part] = &mut self.parts[..] else {
            while requests.len() < most {
                match self.next_request()? {
                    Some(request) => requests.push(request),
                    None => return Ok(false),
                }
            }
            return Ok(true);
        };
        let from = requests.len();
        if from >= most {
            return Ok(true);
        }
        requests.extend(part.ahead.take());
        // One file begins when it begins: nothing is later.
        let more = part.reader.read_into(requests, most);
        for request in &mut requests[from..] {
            part.place(request, &mut self.devices, self.timed);
        }
        more
    }

    /// When the first request was made, nanoseconds since 1970, where all files say it.
    pub fn begun_ns(&self) -> Option<u64> {
        self.begun_ns
    }

    /// Address spaces so far; before the first request, those that the files' headers name.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Requests that captures have said to be missing before the next request.
    pub fn dropped(&self) -> u64 {
        self.parts.iter().map(|p| p.reader.dropped()).fold(0, u64::saturating_add)
    }

    /// What was read, all files together.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        for tally in self.parts.iter().map(|p| p.reader.tally()) {
            all.lines += tally.lines;
            all.requests += tally.requests;
            all.broken += tally.broken;
            all.broken_first.extend(tally.broken_first.iter().cloned());
            if let Some(classes) = &tally.classes {
                all.classes.get_or_insert_default().add(classes);
            }
            all.dropped = all.dropped.saturating_add(tally.dropped);
            all.cut |= tally.cut;
            all.notes.extend(tally.notes.iter().cloned());
        }
        all
    }

    /// The formats of the files.
    pub fn formats(&self) -> Vec<Format> {
        self.parts.iter().map(|p| p.reader.format()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Class, Classes};
    use super::*;

    #[test]
    fn many_at_once_are_the_same_requests() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = String::from("# afterimage-trace 1\n# file disk0 1\n# file disk1 1\n");
        for i in 0..5000 {
            let class = ["home", "log", "journal"][i % 3];
            text += &format!("{i} disk{} write {} 4096 {class}\n", i * i % 11, i * 4096);
            if i % 700 == 0 {
                text += "what is this\n";
            }
        }
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        std::fs::write(&a, &text).unwrap();
        std::fs::write(&b, text.replace("disk", "other")).unwrap();
        let options = Options { classes: Classes::of(&[Class::Home, Class::Journal]), ..Options::default() };
        for files in [&[a.clone()][..], &[a, b]] {
            let mut one = Merged::open(files, &options).unwrap();
            let singly: Vec<Request> = std::iter::from_fn(|| one.next_request().unwrap()).collect();
            assert_eq!(singly.len(), 3333 * files.len());
            for most in [1, 2, 1000, 1 << 20] {
                let mut many = Merged::open(files, &options).unwrap();
                let (mut all, mut batch) = (Vec::new(), Vec::new());
                loop {
                    let more = many.read_into(&mut batch, most).unwrap();
                    assert!(batch.len() <= most && (!more || batch.len() == most));
                    all.append(&mut batch);
                    if !more {
                        break;
                    }
                }
                assert_eq!(all, singly, "{most} at once");
                assert_eq!(many.tally(), one.tally());
            }
        }
    }
}
