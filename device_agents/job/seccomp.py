"""The system calls that a job gets, as a program for the kernel's filter (classic BPF over `struct seccomp_data`).

What training binaries were measured to call, and no more; any other call ends the process with SIGSYS, which a report
tells as `step.forbidden`. No sockets, so no network; threads but no second process, so limits on a process are limits
on the job; nothing is mapped executable; one start of one descriptor, which only `launch.py` can have. An emulator
translates code and asks the system more, so it has a wider list of its own.

Sources: Documentation/userspace-api/seccomp_filter.rst; numbers from the kernel's tables (`unistd_64.h`,
`asm-generic/unistd.h`).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.job.launch import AT_EMPTY_PATH, FD_OF_BINARY, THIS_PROCESS

KILL_PROCESS, TRAP, ERRNO, ALLOW = 0x80000000, 0x00030000, 0x00050000, 0x7FFF0000
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
    futex read write pread64 pwrite64 readv writev sched_yield clock_gettime clock_getres gettimeofday nanosleep
    clock_nanosleep restart_syscall close fstat newfstatat stat lseek brk munmap mremap madvise rt_sigaction
    rt_sigprocmask rt_sigreturn sigaltstack exit exit_group getpid gettid getrusage sched_getaffinity
    sched_setaffinity set_tid_address set_robust_list arch_prctl fsync fdatasync ftruncate rename renameat unlink
    unlinkat getrandom
"""
EMULATOR = """
    access faccessat readlink readlinkat uname prlimit64 getrlimit sysinfo getuid geteuid getgid getegid getcwd
    getdents64 get_mempolicy set_mempolicy statx lstat times dup rt_sigtimedwait membarrier
"""
"""Beside those of a binary."""
_NUMBERS = {
    "x86_64": {
        "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "mmap": 9,
        "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
        "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "sched_yield": 24,
        "mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "getpid": 39, "clone": 56, "exit": 60, "uname": 63,
        "fcntl": 72, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getcwd": 79, "rename": 82, "unlink": 87,
        "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
        "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "rt_sigtimedwait": 128, "sigaltstack": 131,
        "prctl": 157, "arch_prctl": 158, "gettid": 186, "tkill": 200, "futex": 202, "sched_setaffinity": 203,
        "sched_getaffinity": 204, "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219,
        "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "tgkill": 234,
        "set_mempolicy": 238, "get_mempolicy": 239, "openat": 257, "newfstatat": 262, "unlinkat": 263, "renameat": 264,
        "readlinkat": 267, "faccessat": 269, "set_robust_list": 273, "prlimit64": 302, "getrandom": 318,
        "execveat": 322, "membarrier": 324, "statx": 332, "rseq": 334, "clone3": 435,
    },
    "aarch64": {
        "getcwd": 17, "dup": 23, "fcntl": 25, "ioctl": 29, "unlinkat": 35, "renameat": 38, "ftruncate": 46,
        "faccessat": 48, "openat": 56, "close": 57, "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65,
        "writev": 66, "pread64": 67, "pwrite64": 68, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "fsync": 82,
        "fdatasync": 83, "exit": 93, "exit_group": 94, "set_tid_address": 96, "futex": 98, "set_robust_list": 99,
        "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_setaffinity": 122,
        "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "tkill": 130, "tgkill": 131,
        "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigtimedwait": 137, "rt_sigreturn": 139,
        "times": 153, "uname": 160, "getrlimit": 163, "getrusage": 165, "prctl": 167, "gettimeofday": 169,
        "getpid": 172, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179,
        "brk": 214, "munmap": 215, "mremap": 216, "clone": 220, "mmap": 222, "mprotect": 226, "madvise": 233,
        "get_mempolicy": 236, "set_mempolicy": 237, "prlimit64": 261, "getrandom": 278, "execveat": 281,
        "membarrier": 283, "statx": 291, "rseq": 293, "clone3": 435,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Test:
    """On the lower half of one argument: `argument & mask == value`."""

    argument: int
    mask: int
    value: int


@dataclass(frozen=True)
class Rule:
    """A call by name: allowed when all tests hold (`otherwise`, when one does not)."""

    call: str
    tests: tuple[Test, ...] = ()
    action: int = ALLOW
    otherwise: int | None = None
    """None: the process ends."""


def rules(policy: str) -> list[Rule]:
    """Of a policy, `binary` or `emulator`."""
    is_emulator = policy == "emulator"
    plain = [*BINARY.split(), *(EMULATOR.split() if is_emulator else [])]
    no_code = () if is_emulator else (Test(2, PROT_EXEC, 0),)
    itself = (Test(0, 0xFFFFFFFF, THIS_PROCESS),)
    thread = (Test(0, THREAD_FLAGS, THREAD_FLAGS), Test(0, NAMESPACE_FLAGS, 0))
    start = (Test(0, 0xFFFFFFFF, FD_OF_BINARY), Test(4, 0xFFFFFFFF, AT_EMPTY_PATH))
    return [
        *(Rule(name) for name in plain),
        Rule("mmap", no_code),
        Rule("mprotect", no_code),
        Rule("open", (Test(1, O_TMPFILE, 0),), otherwise=ERRNO | EOPNOTSUPP),
        Rule("openat", (Test(2, O_TMPFILE, 0),), otherwise=ERRNO | EOPNOTSUPP),
        Rule("fcntl", (Test(1, 0xFFFFFFFC, 0),), otherwise=ERRNO | EINVAL),  # the flags of descriptors and files
        Rule("clone", thread),
        Rule("tkill", itself, otherwise=ERRNO | EPERM),
        Rule("tgkill", itself, otherwise=ERRNO | EPERM),
        Rule("execveat", start),
        # C libraries ask these and go on without: a terminal's size, newer calls with an older twin, names of memory.
        Rule("ioctl", action=ERRNO | ENOTTY),
        Rule("clone3", action=ERRNO | ENOSYS),
        Rule("rseq", action=ERRNO | ENOSYS),
        Rule("prctl", action=ERRNO | EINVAL),
    ]


def program(policy: str, machine: str = "", *, kill: int = KILL_PROCESS) -> bytes | None:
    """The filter of a policy for this machine's kernel; None where we have no table of it."""
    machine = machine or platform.machine()
    numbers = _NUMBERS.get(machine)
    if numbers is None:
        return None
    words = [_load(_ARCHITECTURE_AT), _jump(_JEQ, AUDIT[machine], 1, 0), _return(kill), _load(_NUMBER_AT)]
    if machine == "x86_64":
        words += [_jump(_JGE, X32_BIT, 0, 1), _return(kill)]
    for rule in rules(policy):
        if rule.call in numbers:
            words += _rule(rule, numbers[rule.call], kill)
    return b"".join([*words, _return(kill)])


def _rule(rule: Rule, number: int, kill: int) -> Sequence[bytes]:
    body: list[bytes] = []
    otherwise = kill if rule.otherwise is None else rule.otherwise
    for test in rule.tests:
        body += [_load(_ARGUMENTS_AT + 8 * test.argument), _word(_AND, test.mask)]
        body += [_jump(_JEQ, test.value, 1, 0), _return(otherwise)]
    body.append(_return(rule.action))
    return [_jump(_JEQ, number, 0, len(body)), *body]


def _load(at: int) -> bytes:
    return _word(_LOAD, at)


def _return(action: int) -> bytes:
    return _word(_RETURN, action)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _word(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)
