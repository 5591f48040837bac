//! Seccomp: an allow-list of the system calls that serving needs.
//!
//! Everything else answers ENOSYS. Killing the process instead would turn one unforeseen call of a newer C library
//! into a guest's I/O errors, and with ENOSYS every library falls back (glibc does so from `clone3`, whose flags a
//! filter cannot see, to `clone`, whose flags are checked here). An intruder gains nothing by the difference: no
//! program can be started, no socket made that leads anywhere, no other process touched either way.

use std::collections::BTreeMap;

use seccompiler::{
    apply_filter_all_threads, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// Puts the filter on every thread of the process. Returns what is in force.
///
/// # Errors
/// In words: why nothing is.
pub fn restrict_calls() -> Result<String, String> {
    let filter = program().map_err(|e| format!("cannot build the filter: {e}"))?;
    apply_filter_all_threads(&filter).map_err(|e| format!("refused by the kernel: {e}"))?;
    Ok("on".to_owned())
}

type Condition = Result<SeccompCondition, seccompiler::BackendError>;

/// The argument's low 32 bits, which are all of an `int`.
fn is(argument: u8, value: libc::c_int) -> Condition {
    // As the kernel reads it.
    let value = u64::from(value as u32);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// These bits of the argument.
fn masked(argument: u8, mask: u64, value: u64) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let mut allow = |call: i64, conditions: Vec<Condition>| {
        let conditions = conditions.into_iter().collect::<Result<Vec<_>, _>>()?;
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok::<_, seccompiler::BackendError>(())
    };
    // New threads, which share everything with the process; a new process or name space does not and is refused.
    let thread = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u64;
    let known = thread
        | (libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_SETTID
            | libc::CLONE_CHILD_CLEARTID
            | libc::CLONE_DETACHED) as u64;
    allow(libc::SYS_clone, vec![masked(0, !known | thread, thread)])?;
    // Memory is never executable: no code can be brought in.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        allow(call, vec![masked(2, libc::PROT_EXEC as u64, 0)])?;
    }
    // A signal only to this process: abort() after a panic needs it.
    allow(libc::SYS_tgkill, vec![is(0, std::process::id() as libc::c_int)])?;
    // Two ends of one stream, connected to each other and to nothing else ever; a datagram socket could send anywhere.
    allow(
        libc::SYS_socketpair,
        vec![is(0, libc::AF_UNIX), is(1, libc::SOCK_STREAM | libc::SOCK_CLOEXEC), is(2, 0)],
    )?;
    // To where the socket is connected already.
    allow(libc::SYS_sendto, vec![masked(4, u64::MAX, 0)])?;
    for command in FCNTL_COMMANDS {
        allow(libc::SYS_fcntl, vec![is(1, *command)])?;
    }
    // A socket that does not wait. No other device or file system is commanded.
    allow(libc::SYS_ioctl, vec![is(1, libc::FIONBIO as libc::c_int)])?;
    // A doorbell's ring, made before and restricted to this, changes its eventfd. Nothing else is registered with a ring.
    for operation in [REGISTER_EVENTFD, UNREGISTER_EVENTFD] {
        allow(libc::SYS_io_uring_register, vec![is(1, operation)])?;
    }
    // A thread's name.
    allow(libc::SYS_prctl, vec![is(0, libc::PR_SET_NAME)])?;
    // Own limits are read; nobody's are set.
    allow(libc::SYS_prlimit64, vec![is(0, 0), masked(2, u64::MAX, 0)])?;
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow, arch)?
        .try_into()
}

/// `IORING_REGISTER_EVENTFD` and its opposite (linux/io_uring.h).
const REGISTER_EVENTFD: libc::c_int = 4;
const UNREGISTER_EVENTFD: libc::c_int = 5;

/// What may be done to a descriptor: its flags, copies, locks of an image, seals of a memory file. Nothing that makes
/// the kernel signal somebody.
const FCNTL_COMMANDS: &[libc::c_int] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_OFD_SETLK,
    libc::F_OFD_GETLK,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Calls that are allowed with any arguments, by what they are for.
const ALLOWED: &[i64] = &[
    // Image, log and tmpfs I/O; files open by descriptor, by name only where landlock allows. Rings are made before, and
    // each is restricted to what a lane asks of it: what a ring does does not come by here.
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_getdents64,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    // An image's mark is taken away at the orderly end, and its being synced noted.
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
    libc::SYS_flock,
    libc::SYS_memfd_create,
    // Sockets that exist already: guests, control, metrics, the keeper.
    libc::SYS_accept4,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Asks whether a guest's process is dying: refused for any that is not.
    libc::SYS_process_mrelease,
    // Waiting and waking.
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_dup,
    libc::SYS_dup3,
    // Threads and signals of this process.
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Old spellings that x86-64's C library still uses.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
];
