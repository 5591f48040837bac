//! One io_uring with one registered file: set-up, submission with or without waiting, and nothing about requests.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{opcode, squeue, types, IoUring};

/// Submission entries; more are submitted in several batches.
const SQ_ENTRIES: u32 = 256;
/// Completion entries: above any queue size in use, so that the kernel's overflow list stays empty.
const CQ_ENTRIES: u32 = 4096;

/// Every operation that a lane uses.
const OPERATIONS: [u8; 7] = [
    opcode::Read::CODE,
    opcode::Readv::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::PollRemove::CODE,
];

/// The registered file's index.
pub(crate) const FILE: types::Fixed = types::Fixed(0);

/// A ring that is driven from one thread at a time.
pub(crate) struct Ring {
    ring: IoUring,
    /// Something was pushed that the kernel should hear of soon.
    urgent: bool,
}

/// A completion: what was submitted, and the kernel's answer.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub user_data: u64,
    pub result: i32,
}

impl Ring {
    /// Sets a ring up with `file` registered, which can do what a lane asks of it and nothing else, for ever.
    ///
    /// What a ring does passes no seccomp filter: an intruder could make it open files, make sockets and connect them.
    /// Hence the kernel is told, before the ring takes its first entry, which operations it may take ([`OPERATIONS`]),
    /// and that nothing more is registered with it, this list included.
    pub fn new(file: &File) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(CQ_ENTRIES).setup_r_disabled().setup_submit_all();
        // Completions are run when this thread enters the kernel anyway, instead of interrupting it. SINGLE_ISSUER with
        // DEFER_TASKRUN measured no faster, and would tie a lane to the thread that first used it.
        builder.setup_coop_taskrun().setup_taskrun_flag();
        let ring: IoUring = builder.build(SQ_ENTRIES).or_else(|e| match e.raw_os_error() {
            // Linux before 5.19.
            Some(libc::EINVAL) => {
                IoUring::builder().setup_cqsize(CQ_ENTRIES).setup_r_disabled().build(SQ_ENTRIES)
            }
            _ => Err(e),
        })?;
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd()])?;
        // Fixed files are not demanded of every entry: a wait polls its caller's descriptors, which come and go. With
        // this list an entry for another descriptor does no more than read(2) and its kin, which seccomp allows anyway.
        let flags = squeue::Flags::FIXED_FILE | squeue::Flags::ASYNC | squeue::Flags::SKIP_SUCCESS;
        let mut allowed: Vec<Restriction> =
            OPERATIONS.iter().map(|code| Restriction::sqe_op(*code)).collect();
        allowed.push(Restriction::sqe_flags_allowed(flags.bits()));
        submitter.register_restrictions(&mut allowed)?;
        submitter.register_enable_rings()?;
        Ok(Self { ring, urgent: false })
    }

    /// Queues an entry for the next submission, submitting first where there is no room.
    ///
    /// # Safety
    /// What the entry points to stays valid and unshared as the operation demands until its answer is taken;
    /// iovec arrays only until the entry is submitted (IORING_FEAT_SUBMIT_STABLE).
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.push_idle(entry)? };
        self.urgent = true;
        Ok(())
    }

    /// The same for what may wait until something else is submitted.
    ///
    /// # Safety
    /// As [`Ring::push`].
    unsafe fn push_idle(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    /// Hands all queued entries to the kernel and runs what it left for this thread to do.
    pub fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
                // The kernel is short of memory, or wants its overflow list taken first.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    if !self.ring.completion().is_empty() {
                        return Ok(());
                    }
                    std::thread::yield_now();
                    continue;
                }
                Err(e) => return Err(e),
            }
            if self.ring.submission().is_empty() {
                self.urgent = false;
                return Ok(());
            }
        }
    }

    /// Whether a submission is due: entries are queued that should not wait for others, or the kernel has left work to
    /// this thread.
    pub fn is_due(&mut self) -> bool {
        let queue = self.ring.submission();
        self.urgent || queue.taskrun() || queue.cq_overflow()
    }

    /// Submits and blocks until there are `want` answers or the time is over: one system call.
    pub fn submit_and_wait(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let entered = match timeout {
            None => self.ring.submit_and_wait(want),
            Some(timeout) => {
                let timeout = types::Timespec::from(timeout);
                self.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        self.urgent = !self.ring.submission().is_empty();
        match entered {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Whether there is an answer to take.
    pub fn has_answers(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// The next answer that is there.
    pub fn next_answer(&mut self) -> Option<Answer> {
        self.ring
            .completion()
            .next()
            .map(|entry| Answer { user_data: entry.user_data(), result: entry.result() })
    }

    /// Queues a one-shot poll for readability. It holds its own reference to the file until it fires or is cancelled.
    pub fn push_poll(&mut self, fd: BorrowedFd<'_>, user_data: u64) -> io::Result<()> {
        let entry =
            opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).build().user_data(user_data);
        // SAFETY: a poll points to no memory.
        unsafe { self.push_idle(&entry) }
    }

    /// Queues the removal of a poll, which then answers ECANCELED if nothing else. The removal itself answers, with
    /// `own_user_data`, only where there was no such poll any more.
    pub fn push_poll_remove(&mut self, user_data: u64, own_user_data: u64) -> io::Result<()> {
        let entry = opcode::PollRemove::new(user_data)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(own_user_data);
        // SAFETY: a removal points to no memory.
        unsafe { self.push_idle(&entry) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's answer to one entry.
    fn answer(ring: &mut IoUring, entry: &squeue::Entry) -> i32 {
        // SAFETY: what the entries of this test point to is static or absent.
        unsafe { ring.submission().push(entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let answer = ring.completion().next().unwrap();
        answer.result()
    }

    /// Ways out, each of which an unrestricted ring takes.
    fn escapes() -> Vec<(&'static str, squeue::Entry)> {
        let root = c"/";
        vec![
            ("a socket", opcode::Socket::new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).build()),
            (
                "a file",
                opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), root.as_ptr()).flags(libc::O_PATH).build(),
            ),
            ("nothing at all", opcode::Nop::new().build()),
        ]
    }

    #[test]
    fn a_ring_does_what_a_lane_needs_and_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mut ring = Ring::new(&file).unwrap_or_else(|e| panic!("io_uring is needed here: {e}")).ring;
        let mut free = IoUring::new(8).unwrap();
        for (what, entry) in escapes() {
            assert!(answer(&mut free, &entry) >= 0, "the canary: an unrestricted ring makes {what}");
            assert_eq!(answer(&mut ring, &entry), -libc::EACCES, "{what}");
        }
        static ZEROES: [u8; 512] = [0; 512];
        let write = opcode::Write::new(FILE, ZEROES.as_ptr(), 512).build();
        assert_eq!(answer(&mut ring, &write), 512);
        let flags = squeue::Flags::IO_LINK;
        assert_eq!(answer(&mut ring, &write.clone().flags(flags)), -libc::EACCES, "a flag that no lane uses");
        let offloaded = write.flags(squeue::Flags::ASYNC);
        assert_eq!(answer(&mut ring, &offloaded), 512);
        // Nothing is registered any more, and what is allowed is not widened.
        let mut wider = [Restriction::sqe_op(opcode::Socket::CODE)];
        assert!(free.submitter().register_files(&[file.as_raw_fd()]).is_ok());
        assert!(ring.submitter().unregister_files().is_err());
        assert!(ring.submitter().register_restrictions(&mut wider).is_err());
        assert!(ring.submitter().register_enable_rings().is_err());
    }
}
