"""Every behaviour of `hostile.c` and how the report must tell of it, where jobs get a list of system calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("hostile.c")
FORBIDDEN = "step.forbidden"
OK = "succeeded"


@dataclass(frozen=True)
class Behaviour:
    """One bad thing."""

    name: str
    codes: tuple[str, ...]
    """Outcome codes that tell it; `succeeded` where it was refused by an error, and the binary went on."""
    mode: str = "profile"

    @property
    def call(self) -> str:
        """How the report must begin to name the forbidden call, as a pattern."""
        return CALLS.get(self.name) or _CALLS_OF_C.get(self.name, "")


def _rows(text: str, mode: str = "profile") -> list[Behaviour]:
    words = (line.split() for line in text.strip().splitlines())
    return [Behaviour(name, tuple(codes), mode) for name, *codes in words]


FILES = _rows(
    """
    out-symbolic-link        step.forbidden
    out-hard-link            step.forbidden
    out-link-to-outside      step.forbidden
    out-fifo                 step.forbidden
    out-device               step.forbidden
    out-socket               step.forbidden
    out-folder               step.forbidden
    out-set-user-id          step.forbidden
    out-deep-tree            step.forbidden
    out-extended-attribute   step.forbidden
    out-sparse-giant         output.size
    out-sparse-beyond-limit  limits.disk succeeded
    out-missing              output.missing
    out-moved-away           output.missing output.unsafe
    out-odd-names            succeeded
    out-overwrites-itself    succeeded
    changes-its-data         succeeded
    """,
    "train",
)
WORDS = _rows(
    """
    says-garbage             step.output
    says-a-list              step.output
    says-nul                 step.output
    says-invalid-utf8        step.output
    says-escapes             x.y
    says-lines-of-a-log      step.exit
    says-huge-numbers        step.output
    says-a-long-integer      step.output
    says-deep-nesting        step.output
    says-too-many-steps      step.output
    says-no-newline          step.incomplete
    floods-one-line          step.output
    floods-errors            succeeded
    forges-launch            step.output
    forges-device-error      step.error
    writes-every-descriptor  succeeded
    """
)
RESOURCES = _rows(
    """
    fork-bomb                step.forbidden
    many-processes           step.forbidden
    thread-bomb              succeeded limits.memory
    memory-by-mapping        limits.step limits.memory
    memory-shared            limits.step limits.memory
    memory-by-segment        step.forbidden
    memory-by-file           step.forbidden
    memory-by-ram-disk       succeeded
    memory-locked            step.forbidden
    disk-one-file            limits.step limits.disk
    disk-many-files          limits.disk
    disk-without-names       limits.disk
    disk-nameless-from-birth succeeded
    many-files               limits.files
    all-descriptors          succeeded
    spins                    limits.time
    """
)
SIGNALS = _rows(
    """
    kills-the-agent          step.forbidden
    stops-the-agent          succeeded
    pins-the-agent           succeeded
    looks-where-the-agent-runs succeeded
    reads-the-agents-clock   succeeded
    limits-the-agent         step.forbidden
    kills-everybody          step.forbidden
    kills-its-group          step.forbidden
    stops-itself             limits.time
    ignores-sigterm          limits.time
    leaves-a-daemon          step.forbidden
    hangs-in-silence         limits.time
    kills-itself             limits.time step.killed
    dumps-core               step.crashed
    aborts                   step.crashed
    ends-well-without-done   step.incomplete
    ends-with-the-launchers-code step.exit
    is-done-and-fails        step.exit
    is-done-at-once          step.incomplete
    """
)
PLACES = _rows(
    """
    reads-the-agents-key     succeeded
    reads-the-system         succeeded
    reads-other-processes    succeeded
    writes-other-memory      succeeded
    climbs-out               succeeded
    reads-the-environment    succeeded
    writes-outside           succeeded
    reads-what-anyone-may    succeeded
    writes-what-anyone-may   succeeded
    opens-devices            succeeded
    turns-the-kernels-knobs  succeeded
    """
)
TUNING = _rows(
    """
    tunes-well               succeeded
    tunes-nothing            step.incomplete
    tunes-another-kernel     step.output
    tunes-another-schedule   step.output
    tunes-a-negative-one     step.output
    tunes-quartiles-backwards step.output
    tunes-without-a-number   step.output
    tunes-in-negative-time   step.output
    tunes-with-one-time      step.output
    tunes-and-trains         succeeded
    tunes-and-forks          step.forbidden
    tunes-and-connects       step.forbidden
    tunes-and-reads          succeeded
    tunes-and-overwrites     succeeded
    tunes-and-fills          limits.step limits.disk
    tunes-for-ever           limits.time
    """,
    "tune",
)
_CALLS_OF_C = dict(re.findall(r'\{"([a-z0-9-]+)", (?:SYS_)?(\w+)', SOURCE.read_text()))
CALLS = {
    "out-symbolic-link": "symlink",
    "out-hard-link": "link",
    "out-link-to-outside": "linkat",
    "out-fifo": "mknod",
    "out-device": "mknod",
    "out-socket": "mknod",
    "out-folder": "mkdir",
    "out-set-user-id": "(fchmodat|chmod)",
    "out-deep-tree": "mkdir",
    "out-extended-attribute": "setxattr",
    "fork-bomb": r"(fork|clone\(a process\))",
    "many-processes": r"(fork|clone\(a process\))",
    "leaves-a-daemon": r"(fork|clone\(a process\))",
    "memory-by-segment": "shmget",
    "memory-by-file": "memfd_create",
    "memory-locked": "mlockall",
    "tunes-and-forks": r"(fork|clone\(a process\))",
    "tunes-and-connects": r"socket\(AF_INET\)",
    "limits-the-agent": "prlimit64",
    "kills-the-agent": r"kill\(SIGKILL to process \d+\)",
    "kills-everybody": r"kill\(SIGKILL to everybody\)",
    "kills-its-group": r"kill\(SIGKILL to its group\)",
    "unix-socket": r"socket\(AF_UNIX\)",
    "unix-socket-pair": r"socketpair\(AF_UNIX\)",
    "ip-socket": r"socket\(AF_INET\)",
    "ip6-datagrams": r"socket\(AF_INET6\)",
    "raw-packets": r"socket\(AF_PACKET\)",
    "netlink": r"socket\(AF_NETLINK\)",
    "vsock": r"socket\(AF_VSOCK\)",
    "makes-a-user-namespace": r"unshare\(user namespace\)",
    "makes-a-mount-namespace": r"unshare\(mount namespace\)",
    "clones-into-a-namespace": r"clone\(user namespace\)",
    "io-uring": "io_uring_setup",
    "takes-a-file-descriptor": "pidfd_getfd",
    "writes-code": r"mmap\(executable\)",
    "calls-as-32-bit": "(call 41 of 32-bit x86|ptrace)",
    "calls-as-x32": "(the x32 form of getpid|ptrace)",
}
"""Patterns, as C libraries of other machines have other calls for the same."""
KERNEL = [Behaviour(name, (FORBIDDEN,)) for name in (*_CALLS_OF_C, "writes-code", "calls-as-32-bit", "calls-as-x32")]
OF_THE_EMULATOR = ("writes-code",)
"""What an emulator does to translate code, so that a list of its calls cannot forbid it."""
GROUPS = (FILES, WORDS, RESOURCES, SIGNALS, PLACES, TUNING, KERNEL)
SLOW = ("tunes-for-ever", "spins", "stops-itself", "kills-itself", "ignores-sigterm", "hangs-in-silence")
"""They end with the run's time."""
BEHAVIOURS = [behaviour for group in GROUPS for behaviour in group]
