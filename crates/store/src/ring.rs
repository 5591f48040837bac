//! One io_uring with one registered file: set-up, submission with or without waiting, and nothing about requests.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{opcode, squeue, types, IoUring};

/// Submission entries; more are submitted in several batches.
const SQ_ENTRIES: u32 = 256;
/// Completion entries: above any queue size in use, so that the kernel's overflow list stays empty.
const CQ_ENTRIES: u32 = 4096;

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
    /// Sets a ring up with `file` registered.
    pub fn new(file: &File) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(CQ_ENTRIES).setup_submit_all();
        // Completions are run when this thread enters the kernel anyway, instead of interrupting it. SINGLE_ISSUER with
        // DEFER_TASKRUN measured no faster, and would tie a lane to the thread that first used it.
        builder.setup_coop_taskrun().setup_taskrun_flag();
        let ring: IoUring = builder.build(SQ_ENTRIES).or_else(|e| match e.raw_os_error() {
            // Linux before 5.19.
            Some(libc::EINVAL) => IoUring::builder().setup_cqsize(CQ_ENTRIES).build(SQ_ENTRIES),
            _ => Err(e),
        })?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
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
