#pragma once

#include <sys/syscall.h>

/// The system calls of the sandbox (sandbox.cpp). Calls that only older interfaces of an
/// architecture have are named where they exist.
namespace katt::bench::impl {

/// Calls of numerical code, its threads, and Python's interpreter.
inline constexpr long allowed_calls[] = {
    // memory
    SYS_brk,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_mincore,
    SYS_msync,
    SYS_membarrier,
    SYS_mbind,
    SYS_get_mempolicy,
    SYS_set_mempolicy,
    // its files
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_preadv,
    SYS_lseek,
    SYS_close,
    SYS_close_range,
    SYS_dup,
    SYS_dup3,
    SYS_openat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_readlinkat,
    SYS_faccessat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_chdir,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_fadvise64,
    SYS_umask,
    // time
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_times,
    // threads and signals of its own
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getcpu,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    // who and where it is
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_getpgid,
    SYS_getsid,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrusage,
    SYS_getpriority,
    SYS_getrandom,
    // another program, which stays in the sandbox, where it may become one
    SYS_execve,
#if defined(__x86_64__)
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_pipe,
    SYS_dup2,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_getpgrp,
    SYS_arch_prctl,
    SYS_time,
    SYS_alarm,
#endif
};

/// Newer forms of calls, which libraries do without.
inline constexpr long missing_calls[] = {
#if defined(SYS_faccessat2)
    SYS_faccessat2,
#endif
#if defined(SYS_openat2)
    SYS_openat2,
#endif
#if defined(SYS_epoll_pwait2)
    SYS_epoll_pwait2,
#endif
#if defined(SYS_futex_waitv)
    SYS_futex_waitv,
#endif
    SYS_copy_file_range,
};

}  // namespace katt::bench::impl
