//! Checks each record against those before it, and collects them.

use std::collections::HashMap;
use std::sync::Arc;

use afterimage_format::recording::{
    Extent, RecordHeader, RecordKind, TargetBody, FLAG_FAILED, FLAG_FLUSHED, FLAG_UNMAP, LAYER_GUEST,
    LAYER_STORAGE, MARK_BYTES_MAX, OWN_BASE, ROLE_DISK, ROLE_LOG, TARGETS_MAX, TARGET_BYTES_MAX,
};
use zerocopy::FromBytes as _;

use crate::{Event, EventKind, Layer, Op, Recording, Role, Run, Sparse, Target, TargetId, PAGE_BYTES};

/// JSON takes many times its text in memory.
const ABOUT_BYTES_MAX: usize = 1 << 20;

type Checked<T> = std::result::Result<T, String>;

/// A target whose base is still coming.
struct Pending {
    layer: Layer,
    role: Role,
    bytes: u64,
    base: Base,
}

enum Base {
    Own(Sparse),
    SameAs(usize),
}

#[derive(Default)]
pub(crate) struct Builder {
    recording: Recording,
    about_bytes: usize,
    targets: Vec<Pending>,
    target_bytes: u64,
    /// Every request, and whom it was made to while it has no answer.
    requests: HashMap<u64, Option<TargetId>>,
    now_ns: u64,
    ended: bool,
}

impl Builder {
    pub fn ended(&self) -> bool {
        self.ended
    }

    pub fn record(&mut self, header: &RecordHeader, payload: &[u8]) -> Checked<()> {
        if self.ended {
            return Err("something follows the end of the recording".to_owned());
        }
        let kind = header.kind().ok_or_else(|| format!("a record of unknown kind {}", header.kind))?;
        match kind {
            RecordKind::About => return self.about(payload),
            RecordKind::Target => return self.target(payload),
            RecordKind::Base => return self.base(header, payload),
            RecordKind::End => {
                self.ended = true;
                return Ok(());
            }
            _ => {}
        }
        let at_ns = self.now_ns.checked_add(header.after_ns.get()).ok_or("an event lies beyond time")?;
        self.now_ns = at_ns;
        let kind = match kind {
            RecordKind::Mark => mark(payload)?,
            RecordKind::Complete => self.complete(header, payload)?,
            RecordKind::Publish => self.publish(header, payload)?,
            kind => self.submit(kind, header, payload)?,
        };
        self.recording.events.push(Event { at_ns, kind });
        Ok(())
    }

    fn about(&mut self, payload: &[u8]) -> Checked<()> {
        self.about_bytes = self.about_bytes.saturating_add(payload.len());
        if self.about_bytes > ABOUT_BYTES_MAX {
            return Err("what is said about the recording is longer than 1 MiB".to_owned());
        }
        let mut about = serde_json::from_slice(payload)
            .map_err(|e| format!("what is said about the recording is no JSON object: {e}"))?;
        self.recording.about.append(&mut about);
        Ok(())
    }

    fn target(&mut self, payload: &[u8]) -> Checked<()> {
        let body = TargetBody::read_from_bytes(payload).map_err(|_| "a target of another size")?;
        let layer = match body.layer {
            LAYER_GUEST => Layer::Guest,
            LAYER_STORAGE => Layer::Storage,
            other => return Err(format!("a target of unknown layer {other}")),
        };
        let role = match body.role {
            ROLE_DISK => Role::Disk(body.index.get()),
            ROLE_LOG => Role::Log,
            other => return Err(format!("a target of unknown role {other}")),
        };
        let bytes = body.bytes.get();
        let sum = self.target_bytes.checked_add(bytes).filter(|sum| *sum <= TARGET_BYTES_MAX);
        self.target_bytes = sum.ok_or("targets of more than 1 TiB in all")?;
        if self.targets.len() == TARGETS_MAX {
            return Err(format!("more than {TARGETS_MAX} targets"));
        }
        let base = match body.same_as.get() {
            OWN_BASE => Base::Own(Sparse::new(bytes)),
            other => match self.targets.get(usize::from(other)) {
                Some(same) if same.bytes == bytes => Base::SameAs(usize::from(other)),
                _ => return Err("a target that begins like one of another size, or like none".to_owned()),
            },
        };
        self.targets.push(Pending { layer, role, bytes, base });
        Ok(())
    }

    fn base(&mut self, header: &RecordHeader, payload: &[u8]) -> Checked<()> {
        let (extent, data) = Extent::read_from_prefix(payload).map_err(|_| "base content of no extent")?;
        let (offset, len) = (extent.offset.get(), extent.len.get());
        let number = usize::from(header.target.get());
        let Some(Pending { bytes, base: Base::Own(base), .. }) = self.targets.get_mut(number) else {
            return Err("base content of no target, or of one that begins like another".to_owned());
        };
        let end = offset.checked_add(len).filter(|end| *end <= *bytes).ok_or("base content past the end")?;
        let page = PAGE_BYTES as u64;
        // Whole pages, so that no short record takes a page of memory.
        if len != data.len() as u64 || len == 0 || offset % page != 0 || (len % page != 0 && end != *bytes) {
            return Err("base content that is no whole number of pages".to_owned());
        }
        base.write_at(data, offset);
        Ok(())
    }

    fn submit(&mut self, kind: RecordKind, header: &RecordHeader, payload: &[u8]) -> Checked<EventKind> {
        let target = TargetId(header.target.get());
        let known = self.targets.get(usize::from(target.0)).ok_or("a request to no target")?;
        let flushed = header.flags & FLAG_FLUSHED != 0;
        let op = match kind {
            RecordKind::Write => {
                let (extent, data) = extent(known, payload)?;
                if extent.len.get() != data.len() as u64 {
                    return Err("a write of another length than its data".to_owned());
                }
                Op::Write { offset: extent.offset.get(), data: Arc::from(data), flushed }
            }
            RecordKind::Zero => {
                let (extent, rest) = extent(known, payload)?;
                if !rest.is_empty() {
                    return Err("a zeroing with data".to_owned());
                }
                let unmap = header.flags & FLAG_UNMAP != 0;
                Op::Zero { offset: extent.offset.get(), len: extent.len.get(), unmap, flushed }
            }
            _ if payload.is_empty() => Op::Flush,
            _ => return Err("a flush with data".to_owned()),
        };
        let id = header.id.get();
        if self.requests.insert(id, Some(target)).is_some() {
            return Err(format!("two requests of the name {id}"));
        }
        Ok(EventKind::Submit { target, id, op })
    }

    fn complete(&mut self, header: &RecordHeader, payload: &[u8]) -> Checked<EventKind> {
        let (target, id) = (TargetId(header.target.get()), header.id.get());
        match self.requests.get_mut(&id) {
            Some(waiting) if *waiting == Some(target) && payload.is_empty() => *waiting = None,
            _ => return Err(format!("an answer to request {id}, which does not wait for one")),
        }
        Ok(EventKind::Complete { target, id, ok: header.flags & FLAG_FAILED == 0 })
    }

    fn publish(&mut self, header: &RecordHeader, mut payload: &[u8]) -> Checked<EventKind> {
        let target = TargetId(header.target.get());
        let known = self.targets.get(usize::from(target.0)).filter(|target| target.layer == Layer::Guest);
        let known = known.ok_or("a publication for no disk of a guest")?;
        if header.flags != 0 {
            return Err("a publication with flags".to_owned());
        }
        let mut runs = Vec::new();
        while runs.is_empty() || !payload.is_empty() {
            let (extent, rest) = extent(known, payload)?;
            let data = usize::try_from(extent.len.get()).ok().and_then(|len| rest.split_at_checked(len));
            let (data, rest) =
                data.filter(|(data, _)| !data.is_empty()).ok_or("a publication without content")?;
            runs.push(Run { offset: extent.offset.get(), data: Arc::from(data) });
            payload = rest;
        }
        Ok(EventKind::Publish { target, slot: header.id.get(), runs: runs.into() })
    }

    pub fn finish(mut self) -> Checked<Recording> {
        let mut bases: Vec<Arc<Sparse>> = Vec::new();
        for pending in self.targets {
            let base = match pending.base {
                Base::Own(base) => Arc::new(base),
                Base::SameAs(other) => bases.get(other).map(Arc::clone).ok_or("a base of no target")?,
            };
            bases.push(Arc::clone(&base));
            let (layer, role, bytes) = (pending.layer, pending.role, pending.bytes);
            self.recording.targets.push(Target { layer, role, bytes, base });
        }
        Ok(self.recording)
    }
}

fn extent<'a>(target: &Pending, payload: &'a [u8]) -> Checked<(Extent, &'a [u8])> {
    let (extent, rest) = Extent::read_from_prefix(payload).map_err(|_| "a request without an extent")?;
    let (offset, len) = (extent.offset.get(), extent.len.get());
    if offset.checked_add(len).is_none_or(|end| end > target.bytes) {
        return Err("a request past the end of its target".to_owned());
    }
    if target.layer == Layer::Guest && (offset | len) % 512 != 0 {
        return Err("a guest's request that is no whole number of sectors".to_owned());
    }
    Ok((extent, rest))
}

fn mark(payload: &[u8]) -> Checked<EventKind> {
    match std::str::from_utf8(payload) {
        Ok(text) if text.len() <= MARK_BYTES_MAX => Ok(EventKind::Mark { text: text.into() }),
        _ => Err("a mark that is no text, or too long".to_owned()),
    }
}
