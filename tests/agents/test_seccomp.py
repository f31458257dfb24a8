"""The filter of system calls, run here step by step as the kernel would; what it must never let through."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import ziglang

from device_agents.job import seccomp
from device_agents.job.forbidden import words
from device_agents.job.launch import AT_EMPTY_PATH, FD_OF_AGENT, FD_OF_BINARY, THIS_PROCESS
from device_agents.wire.filters import ALLOW, AUDIT, ERRNO, TELL
from device_agents.wire.filters import KILL_PROCESS as KILL
from device_agents.wire.syscalls import NUMBERS

MACHINES = ("x86_64", "aarch64")
POLICIES = ("binary", "emulator")


def decided(program: bytes, number: int, arguments: tuple[int, ...] = (), audit: int = 0) -> int:
    """What the filter says, by the meaning of classic BPF (Documentation/networking/filter.rst)."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<iIQ6Q", number, audit, 0, *padded)
    at, value = 0, 0
    while True:
        code, if_true, if_false, k = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            value = struct.unpack_from("<I", data, k)[0]
        elif code == 0x54:
            value &= k
        elif code in (0x15, 0x35):
            at += if_true if (value == k if code == 0x15 else value >= k) else if_false
        else:
            assert code == 0x06
            return int(k)


def numbers(machine: str) -> dict[str, int]:
    return dict(NUMBERS[machine])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("machine", MACHINES)
def test_only_what_is_listed(machine: str, policy: str) -> None:
    program, audit = seccomp.program(policy, machine), AUDIT[machine]
    assert program is not None
    listed = {numbers(machine)[rule.call]: rule for rule in seccomp.rules(policy) if rule.call in numbers(machine)}
    for number in range(600):
        if number not in listed:
            assert decided(program, number, audit=audit) == KILL, number
        elif not listed[number].tests:
            assert decided(program, number, audit=audit) == listed[number].action


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_and_x32_end_the_process(machine: str) -> None:
    program = seccomp.program("binary", machine)
    assert program is not None
    other = {"x86_64": (0x40000003, 0xC00000B7), "aarch64": (0x40000028, 0xC000003E)}[machine]
    for audit in other:
        assert {decided(program, number, audit=audit) for number in range(600)} == {KILL}
    audit = AUDIT[machine]
    assert {decided(program, 0x40000000 + number, audit=audit) for number in range(600)} == {KILL}


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("clone", (0x3D0F00,), ALLOW),
        ("clone", (0x11,), KILL),
        ("clone", (0x3D0F00 | 0x10000000,), KILL),
        ("clone3", (), ERRNO | 38),
        ("mmap", (0, 4096, 3), ALLOW),
        ("mmap", (0, 4096, 5), KILL),
        ("mprotect", (0, 4096, 7), KILL),
        ("openat", (0, 0, 0x241), ALLOW),
        ("openat", (0, 0, 0x410002), ERRNO | 95),
        ("tgkill", (THIS_PROCESS, 1, 6), ALLOW),
        ("tgkill", (1, 1, 6), ERRNO | 1),
        ("tgkill", (THIS_PROCESS, 1, 9), ERRNO | 1),
        ("tkill", (THIS_PROCESS, 15), ERRNO | 1),
        ("kill", (THIS_PROCESS, 11), KILL),
        ("rt_sigsuspend", (), KILL),
        ("execveat", (FD_OF_BINARY, 0, 0, 0, AT_EMPTY_PATH), ALLOW),
        ("execveat", (FD_OF_BINARY, 0, 0, 0, 0), KILL),
        ("execveat", (3, 0, 0, 0, AT_EMPTY_PATH), KILL),
        ("fcntl", (3, 2), ALLOW),
        ("fcntl", (3, 1030), ERRNO | 22),
        ("sched_setaffinity", (0, 8), ALLOW),
        ("sched_setaffinity", (THIS_PROCESS, 8), ALLOW),
        ("sched_setaffinity", (1, 8), ERRNO | 1),
        ("sched_getaffinity", (0x1_0000_0001, 8), ERRNO | 1),
        ("prlimit64", (0, 7, 0), KILL),
        ("futex", (0, 0x80), ALLOW),
        ("futex", (0, 0x180 | 9), ALLOW),
        ("futex", (0, 6), ERRNO | 38),
        ("futex", (0, 0x80 | 12), ERRNO | 38),
        ("clock_gettime", (1,), ALLOW),
        ("clock_gettime", (0xFFFFFFFF & ~(100 << 3) | 2,), ERRNO | 22),
    ],
)
@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_depend_on_what_they_ask(machine: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    program = seccomp.program("binary", machine)
    assert program is not None
    assert decided(program, numbers(machine)[call], arguments, AUDIT[machine]) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_have_the_kernels_numbers(machine: str) -> None:
    headers = Path(ziglang.__file__).with_name("lib") / "libc" / "include"
    header = headers / {"x86_64": "x86-linux-any", "aarch64": "aarch64-linux-any"}[machine] / "asm" / "unistd_64.h"
    listed = re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())
    assert {name: int(number) for name, number in listed}.items() >= NUMBERS[machine].items()
    assert len(NUMBERS[machine]) > 300


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_agent_hears_of_is_let_through_no_more_than_what_is_killed(machine: str, policy: str) -> None:
    """Only the launcher's own message to the agent, on a descriptor that no binary has, is allowed beside."""
    tells, kills = (seccomp.program(policy, machine, kill=kill) for kill in (TELL, KILL))
    assert tells is not None
    assert kills is not None
    audit = AUDIT[machine]
    for number in (*range(600), 0x40000000 + 39):
        for arguments in ((), (3, 0, 0xFFFFFFFF), (0x11,), (FD_OF_AGENT,)):
            killed, told = (decided(program, number, arguments, audit) for program in (kills, tells))
            is_the_message = number == numbers(machine)["sendmsg"] and arguments == (FD_OF_AGENT,)
            assert told == (ALLOW if is_the_message else TELL if killed == KILL else killed)


@pytest.mark.parametrize(
    ("number", "machine", "arguments", "expected"),
    [
        (41, "x86_64", (10, 0, 0), "socket(AF_INET6)"),
        (198, "aarch64", (999, 0, 0), "socket(family 999)"),
        (62, "x86_64", (0xFFFFFFFF, 9, 0), "kill(SIGKILL to everybody)"),
        (62, "x86_64", (0xFFFFFFFFFFFFFFF6, 15, 0), "kill(SIGTERM to group 10)"),
        (129, "aarch64", (0, 99, 0), "kill(signal 99 to its group)"),
        (56, "x86_64", (17, 0, 0), "clone(a process)"),
        (272, "x86_64", (0x50000000, 0, 0), "unshare(user, network namespace)"),
        (226, "aarch64", (0, 0, 7), "mprotect(executable)"),
        (599, "x86_64", (0, 0, 0), "system call 599"),
    ],
)
def test_a_call_in_words(number: int, machine: str, arguments: tuple[int, ...], expected: str) -> None:
    assert words(number, AUDIT[machine], arguments) == expected


NUMBER_OF_A_PROCESS = {
    "kill": 0,
    "tkill": 0,
    "tgkill": 0,
    "rt_sigqueueinfo": 0,
    "rt_tgsigqueueinfo": 0,
    "ptrace": 1,
    "wait4": 0,
    "waitid": 1,
    "getpgid": 0,
    "setpgid": 0,
    "getsid": 0,
    "getpriority": 1,
    "setpriority": 1,
    "ioprio_get": 1,
    "ioprio_set": 1,
    "sched_setparam": 0,
    "sched_getparam": 0,
    "sched_setscheduler": 0,
    "sched_getscheduler": 0,
    "sched_rr_get_interval": 0,
    "sched_setaffinity": 0,
    "sched_getaffinity": 0,
    "sched_setattr": 0,
    "sched_getattr": 0,
    "prlimit64": 0,
    "get_robust_list": 0,
    "migrate_pages": 0,
    "move_pages": 0,
    "kcmp": 0,
    "perf_event_open": 1,
    "process_vm_readv": 0,
    "process_vm_writev": 0,
    "pidfd_open": 0,
    "clock_gettime": 0,
    "clock_getres": 0,
    "clock_settime": 0,
    "clock_nanosleep": 0,
    "clock_adjtime": 0,
    "timer_create": 0,
}
"""Calls that act on, or tell of, whichever process or thread a number names, and the argument with the number. Those on
clocks too, as a clock may be a process's (man-pages, sections 2 and 3: kill to move_pages, clock_getcpuclockid)."""
HIDDEN_IN_A_COMMAND = {"fcntl": (1, 8), "ioctl": (1, 0x5410), "prctl": (0, 0x59616D61)}
"""Of which one command takes a process: F_SETOWN, TIOCSPGRP, PR_SET_PTRACER."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_no_call_reaches_another_process(machine: str, policy: str) -> None:
    program, audit = seccomp.program(policy, machine), AUDIT[machine]
    assert program is not None
    allowed = {rule.call: rule for rule in seccomp.rules(policy) if rule.action == ALLOW}
    for call, argument in NUMBER_OF_A_PROCESS.items():
        assert call not in allowed or argument in {test.argument for test in allowed[call].tests}, call
        for other in (1, 2, 4242, 0xFFFFFFFF, 0xFFFFFFFF & ~(4242 << 3) | 2):
            if call.startswith(("clock", "timer")) and not other & 0x80000000:
                continue  # a clock of the machine
            arguments = tuple(other if place == argument else 0 for place in range(6))
            assert decided(program, numbers(machine)[call], arguments, audit) != ALLOW, (call, other)
    for call, (argument, command) in HIDDEN_IN_A_COMMAND.items():
        arguments = tuple(command if place == argument else 0 for place in range(6))
        assert decided(program, numbers(machine)[call], arguments, audit) != ALLOW, call


def test_an_emulator_may_map_what_it_translates() -> None:
    program = seccomp.program("emulator", "x86_64")
    assert program is not None
    assert decided(program, 9, (0, 4096, 7), AUDIT["x86_64"]) == ALLOW


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("kill", (THIS_PROCESS, 11), ALLOW),
        ("kill", (THIS_PROCESS, 6), ALLOW),
        ("kill", (THIS_PROCESS, 25), ALLOW),
        ("kill", (1, 25), KILL),
        ("kill", (THIS_PROCESS, 9), KILL),
        ("kill", (0, 11), KILL),
        ("kill", (1, 11), KILL),
        ("kill", (0xFFFFFFFF, 11), KILL),
        ("rt_sigsuspend", (), ALLOW),
        ("prlimit64", (0, 7, 0), ALLOW),
        ("prlimit64", (THIS_PROCESS, 7, 0), ALLOW),
        ("prlimit64", (1, 7, 1), ERRNO | 1),
    ],
)
@pytest.mark.parametrize("machine", MACHINES)
def test_what_an_emulator_does_to_itself(machine: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    program = seccomp.program("emulator", machine)
    assert program is not None
    assert decided(program, numbers(machine)[call], arguments, AUDIT[machine]) == expected


def test_a_machine_without_a_table_has_no_filter() -> None:
    assert seccomp.program("binary", "riscv64") is None
