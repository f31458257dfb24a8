"""The system calls that a job gets, for the kernel's filter (`device_agents/wire/filters.py` writes it).

What training binaries were measured to call, and no more; any other call ends the job as `step.forbidden`: the agent
hears which one it was and kills the job (`forbidden.py`), or where the kernel cannot tell, the process gets SIGSYS. No
sockets, so no network; threads but no second process, so limits on a process are limits on the job; nothing is
mapped executable; one start of one descriptor, which only `launch.py` can have. An emulator translates code and asks
the system more, so it has a wider list of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.job.launch import AT_EMPTY_PATH, FD_OF_AGENT, FD_OF_BINARY, THIS_PROCESS
from device_agents.wire.filters import (
    EINVAL,
    ENOSYS,
    ENOTTY,
    EOPNOTSUPP,
    EPERM,
    ERRNO,
    KILL_PROCESS,
    NAMESPACE_FLAGS,
    TELL,
    Rule,
    Test,
    assemble,
)

THREAD_FLAGS = 0x00000100 | 0x00000800 | 0x00010000
"""Flags of clone: memory, signal handlers and process in common, which is what a thread is."""
O_TMPFILE = 0x400000
"""Its bit alone: a file without a name, which nobody could find while it fills the disk."""
PROT_EXEC = 4

BINARY = """
    read write pread64 pwrite64 readv writev sched_yield gettimeofday nanosleep restart_syscall close fstat
    newfstatat stat lseek brk munmap mremap madvise rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack exit
    exit_group getpid gettid getrusage set_tid_address set_robust_list arch_prctl fsync fdatasync ftruncate rename
    renameat unlink unlinkat getrandom
"""
EMULATOR = """
    access faccessat readlink readlinkat uname getrlimit sysinfo getuid geteuid getgid getegid getcwd
    getdents64 get_mempolicy set_mempolicy statx lstat times dup rt_sigtimedwait rt_sigsuspend membarrier
"""
"""The system calls of an emulator beside those of a binary."""
OWN_SIGNALS = (6, 4, 5, 7, 8, 11, 32, 33, 34)
"""Signals that a process may send itself: those of crashes, and those that C libraries send their own threads. SIGKILL
and SIGTERM are not among them, for they would be reported as the device's doing.
"""
OF_A_LIMIT = (25,)
"""SIGXFSZ: the kernel's word for a file beyond its limit, by which an emulator ends as its binary would."""
OWN_AFFINITY = ("sched_getaffinity", "sched_setaffinity")
FUTEX_COMMAND = 0x7F
FUTEX_COMMANDS = (0, 1, 3, 4, 5, 9, 10)
"""Wait, wake and move waiters. Not those that lend priority: no C library uses them unasked, and they were the way into
the kernel more than once (CVE-2014-3153, CVE-2021-3347)."""
CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep")
CLOCK_OF_ANOTHER = 0x80000000
"""The sign of a clock's number: it then names a process, a thread or a file, and is no clock of all."""


def rules(policy: str, *, tells: bool = False) -> list[Rule]:
    """Returns a policy's rules, `binary` or `emulator`; `tells`: the launcher may hand the listener to the agent."""
    is_emulator = policy == "emulator"
    plain = [*BINARY.split(), *(EMULATOR.split() if is_emulator else [])]
    no_code = () if is_emulator else (Test(2, PROT_EXEC, 0),)
    itself = Test(0, 0xFFFFFFFF, THIS_PROCESS)
    # How an emulator dies of the binary's crash; it then waits for the signal.
    ends = _one_of_these(1, (*OWN_SIGNALS, *OF_A_LIMIT))
    crash = [Rule("kill", (itself, ends))] if is_emulator else []
    # By number the kernel would change any process of the same user: 0 is whoever calls.
    caller = (Test(0, 0xFFFFFFFF, 0, also=(THIS_PROCESS,)),)
    own_clock = (Test(0, CLOCK_OF_ANOTHER, 0),)
    own_process_only = [*OWN_AFFINITY, *(("prlimit64",) if is_emulator else ())]
    thread = (Test(0, THREAD_FLAGS, THREAD_FLAGS), Test(0, NAMESPACE_FLAGS, 0))
    start = (Test(0, 0xFFFFFFFF, FD_OF_BINARY), Test(4, 0xFFFFFFFF, AT_EMPTY_PATH))
    handing_over = [Rule("sendmsg", (Test(0, 0xFFFFFFFF, FD_OF_AGENT),))] if tells else []
    return [
        Rule("futex", (_one_of_these(1, FUTEX_COMMANDS, mask=FUTEX_COMMAND),), otherwise=ERRNO | ENOSYS),
        *(Rule(name) for name in plain),
        *(Rule(name, caller, otherwise=ERRNO | EPERM) for name in own_process_only),
        *(Rule(name, own_clock, otherwise=ERRNO | EINVAL) for name in CLOCKS),
        *handing_over,
        Rule("mmap", no_code),
        Rule("mprotect", no_code),
        Rule("open", (Test(1, O_TMPFILE, 0),), otherwise=ERRNO | EOPNOTSUPP),
        Rule("openat", (Test(2, O_TMPFILE, 0),), otherwise=ERRNO | EOPNOTSUPP),
        Rule("fcntl", (Test(1, 0xFFFFFFFC, 0),), otherwise=ERRNO | EINVAL),  # the flags of descriptors and files
        Rule("clone", thread),
        *crash,
        Rule("tkill", (itself, _one_signal(1)), otherwise=ERRNO | EPERM),
        Rule("tgkill", (itself, _one_signal(2)), otherwise=ERRNO | EPERM),
        Rule("execveat", start),
        # C libraries ask these and go on without: a terminal's size, newer calls with an older twin, names of memory.
        Rule("ioctl", action=ERRNO | ENOTTY),
        Rule("clone3", action=ERRNO | ENOSYS),
        Rule("rseq", action=ERRNO | ENOSYS),
        Rule("prctl", action=ERRNO | EINVAL),
    ]


def _one_signal(argument: int) -> Test:
    return _one_of_these(argument, OWN_SIGNALS)


def _one_of_these(argument: int, values: Sequence[int], *, mask: int = 0xFFFFFFFF) -> Test:
    first, *others = values
    return Test(argument, mask, first, also=tuple(others))


def program(policy: str, machine: str = "", *, kill: int = KILL_PROCESS) -> bytes | None:
    """The filter of a policy for this machine's kernel; None without a table. `kill`: for what it does not allow."""
    return assemble(rules(policy, tells=kill == TELL), machine, unnamed=kill, foreign=kill)
