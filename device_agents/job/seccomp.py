"""The system calls that a job gets, as a program for the kernel's filter (classic BPF over `struct seccomp_data`).

What training binaries were measured to call, and no more; any other call ends the job as `step.forbidden`: the agent
hears which one it was and kills the job (`forbidden.py`), or where the kernel cannot tell, the process gets SIGSYS. No
sockets, so no network; threads but no second process, so limits on a process are limits on the job; nothing is
mapped executable; one start of one descriptor, which only `launch.py` can have. An emulator translates code and asks
the system more, so it has a wider list of its own.

Source: Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.job.launch import AT_EMPTY_PATH, FD_OF_AGENT, FD_OF_BINARY, THIS_PROCESS
from device_agents.job.syscalls import NUMBERS

KILL_PROCESS, TRAP, ERRNO, TELL, ALLOW = 0x80000000, 0x00030000, 0x00050000, 0x7FC00000, 0x7FFF0000
"""TELL: the call waits and is not made; whoever holds the listener is told. Without a listener it fails with ENOSYS."""
EPERM, EINVAL, ENOTTY, ENOSYS, EOPNOTSUPP = 1, 22, 25, 38, 95
X32_BIT = 0x40000000
_LOAD, _AND, _JEQ, _JGE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

THREAD_FLAGS = 0x00000100 | 0x00000800 | 0x00010000
"""Of clone: memory, signal handlers and process in common, which is what a thread is."""
NAMESPACE_FLAGS = 0x7E020000
O_TMPFILE = 0x400000
"""Its bit alone: a file without a name, which nobody could find while it fills the disk."""
PROT_EXEC = 4

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
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
"""Beside those of a binary."""
OWN_SIGNALS = (6, 4, 5, 7, 8, 11, 32, 33, 34)
"""That a process may send itself: those of crashes, and those that C libraries send their own threads. SIGKILL and
SIGTERM are not among them, for they would be told as the device's doing."""
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


@dataclass(frozen=True)
class Test:
    """On the lower half of one argument: `argument & mask` is `value`, or one of `also`."""

    argument: int
    mask: int
    value: int
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A call by name: allowed when all tests hold (`otherwise`, when one does not)."""

    call: str
    tests: tuple[Test, ...] = ()
    action: int = ALLOW
    otherwise: int | None = None
    """None: the process ends."""


def rules(policy: str, *, tells: bool = False) -> list[Rule]:
    """Of a policy, `binary` or `emulator`; `tells`: the launcher may hand the listener to the agent."""
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
    own = [*OWN_AFFINITY, *(("prlimit64",) if is_emulator else ())]
    thread = (Test(0, THREAD_FLAGS, THREAD_FLAGS), Test(0, NAMESPACE_FLAGS, 0))
    start = (Test(0, 0xFFFFFFFF, FD_OF_BINARY), Test(4, 0xFFFFFFFF, AT_EMPTY_PATH))
    handing_over = [Rule("sendmsg", (Test(0, 0xFFFFFFFF, FD_OF_AGENT),))] if tells else []
    return [
        Rule("futex", (_one_of_these(1, FUTEX_COMMANDS, mask=FUTEX_COMMAND),), otherwise=ERRNO | ENOSYS),
        *(Rule(name) for name in plain),
        *(Rule(name, caller, otherwise=ERRNO | EPERM) for name in own),
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
    machine = machine or platform.machine()
    numbers = NUMBERS.get(machine)
    if numbers is None:
        return None
    words = [_load(_ARCHITECTURE_AT), _jump(_JEQ, AUDIT[machine], 1, 0), _return(kill), _load(_NUMBER_AT)]
    if machine == "x86_64":
        words += [_jump(_JGE, X32_BIT, 0, 1), _return(kill)]
    for rule in rules(policy, tells=kill == TELL):
        if rule.call in numbers:
            words += _rule(rule, numbers[rule.call], kill)
    return b"".join([*words, _return(kill)])


def _rule(rule: Rule, number: int, kill: int) -> Sequence[bytes]:
    body: list[bytes] = []
    otherwise = kill if rule.otherwise is None else rule.otherwise
    for test in rule.tests:
        body += [_load(_ARGUMENTS_AT + 8 * test.argument), _word(_AND, test.mask)]
        body += [*_one_of((test.value, *test.also)), _return(otherwise)]
    body.append(_return(rule.action))
    return [_jump(_JEQ, number, 0, len(body)), *body]


def _one_of(values: Sequence[int]) -> list[bytes]:
    """Passes over the next instruction when what is loaded is one of them."""
    return [_jump(_JEQ, value, len(values) - place, 0) for place, value in enumerate(values)]


def _load(at: int) -> bytes:
    return _word(_LOAD, at)


def _return(action: int) -> bytes:
    return _word(_RETURN, action)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _word(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)
