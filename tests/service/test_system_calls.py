"""The list of a child's system calls, run here step by step as the kernel would, for each kind of machine."""

from __future__ import annotations

import pytest

from device_agents.wire.filters import ALLOW, AUDIT, ERRNO, KILL_PROCESS
from device_agents.wire.syscalls import NUMBERS
from service.base.system_calls import OF_A_PROCESS, REFUSED, child_program
from tests.agents.test_seccomp import decided

EPERM, ENOSYS = ERRNO | 1, ERRNO | 38
MACHINES = sorted(NUMBERS)


def answer(machine: str, call: str, *arguments: int) -> int:
    program = child_program(machine)
    assert program is not None
    return decided(program, NUMBERS[machine][call], arguments, AUDIT[machine])


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_listed_is_refused_and_all_else_is_made(machine: str) -> None:
    other = {*OF_A_PROCESS, "ioctl", "clone", "clone3"}
    for call in NUMBERS[machine]:
        if call not in other:
            assert answer(machine, call) == (EPERM if call in REFUSED.split() else ALLOW), call


def test_every_name_is_a_call() -> None:
    names = REFUSED.split()
    assert set(names) <= {call for numbers in NUMBERS.values() for call in numbers}
    assert len(names) == len(set(names))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("clone", (0x3D0F00,), ALLOW),
        ("clone", (0x11,), ALLOW),
        ("clone", (0x11 | 0x10000000,), EPERM),
        ("clone", (0x11 | 0x00020000,), EPERM),
        ("clone3", (), ENOSYS),
        ("prlimit64", (0, 7, 1), ALLOW),
        ("prlimit64", (4711, 7, 1), EPERM),
        ("sched_setaffinity", (0,), ALLOW),
        ("sched_setaffinity", (4711,), EPERM),
        ("ioctl", (1, 0x5401), ALLOW),
        ("ioctl", (3, 0x40086602), EPERM),
        ("ioctl", (3, 0xFFFFFFFF_401C5820), EPERM),
    ],
)
def test_what_depends_on_its_arguments(machine: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    assert answer(machine, call, *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_what_our_table_does_not_have_is_not_there(machine: str) -> None:
    program = child_program(machine)
    assert program is not None
    newest = max(NUMBERS[machine].values())
    assert [decided(program, newest + more, audit=AUDIT[machine]) for more in (0, 1, 2000)] == [ALLOW, ENOSYS, ENOSYS]


def test_another_architecture_ends_the_process() -> None:
    program = child_program("x86_64")
    assert program is not None
    assert {decided(program, 41, audit=audit) for audit in (0x40000003, 0xC00000B7)} == {KILL_PROCESS}
    assert decided(program, 0x40000000 + 41, audit=AUDIT["x86_64"]) == KILL_PROCESS
    assert child_program("riscv64") is None
