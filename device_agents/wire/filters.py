"""Programs for the kernel's filter of system calls (classic BPF over `struct seccomp_data`), for agents and the farm.

Which calls a process gets is for others to say: of a job `device_agents/job/seccomp.py`, of a child of the service
`service/base/system_calls.py`.

Source: Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from device_agents.wire.syscalls import NUMBERS

KILL_PROCESS, TRAP, ERRNO, TELL, ALLOW = 0x80000000, 0x00030000, 0x00050000, 0x7FC00000, 0x7FFF0000
"""TELL: the call waits and is not made; whoever holds the listener is told. Without a listener it fails with ENOSYS."""
EPERM, EINVAL, ENOTTY, ENOSYS, EOPNOTSUPP = 1, 22, 25, 38, 95
X32_BIT = 0x40000000
NAMESPACE_FLAGS = 0x7E020000
"""Flags of clone and unshare: every kind of namespace."""
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _AND, _JEQ, _JGE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16


@dataclass(frozen=True)
class Test:
    """A test of the lower half of one argument: `argument & mask` is `value`, or one of `also`."""

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
    """The action where a test does not hold; None: that for calls that no rule names."""


def assemble(
    rules: Iterable[Rule], machine: str = "", *, unnamed: int, newer: int | None = None, foreign: int = KILL_PROCESS
) -> bytes | None:
    """The filter for this machine's kernel; None without a table of its calls.

    `unnamed`: what becomes of calls that no rule names; `newer`: of those that our table does not have yet (else as
    `unnamed`); `foreign`: of those of another architecture, and of x32.
    """
    machine = machine or platform.machine()
    numbers = NUMBERS.get(machine)
    if numbers is None:
        return None
    words = [_load(_ARCHITECTURE_AT), _jump(_JEQ, AUDIT[machine], 1, 0), _return(foreign), _load(_NUMBER_AT)]
    if machine == "x86_64":
        words += [_jump(_JGE, X32_BIT, 0, 1), _return(foreign)]
    if newer is not None:
        words += [_jump(_JGE, max(numbers.values()) + 1, 0, 1), _return(newer)]
    for rule in rules:
        if rule.call in numbers:
            words += _rule(rule, numbers[rule.call], unnamed)
    return b"".join([*words, _return(unnamed)])


def _rule(rule: Rule, number: int, unnamed: int) -> Sequence[bytes]:
    body: list[bytes] = []
    otherwise = unnamed if rule.otherwise is None else rule.otherwise
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
