"""A real agent against a farm on a socket, given hostile binaries one after another, and looked at from outside."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from compiler.codegen.linking.toolchain import LINK_FLAGS, zig_cc
from device_agents import wire as p
from device_agents.job.users import JobUsers, processes
from tests.agents.conftest import ROOT, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import archive, manifest
from tests.job_users import job_users
from tests.thorough.hostile.behaviours import FORBIDDEN, OF_THE_EMULATOR, OK, SLOW, SOURCE, Behaviour
from tests.waiting import HANG_S, until

USERS = job_users(4)
PLAIN_USER = 65534
SECRET = b"what only the agent may know"
LIMITS = p.Limits(run_s=60, memory_bytes=96 << 20, disk_bytes=48 << 20)
SHORT = replace(LIMITS, run_s=1.0)
TRIALS = [{"kernel": "a" * 64, "name": "conv", "calls": 3, "choices": ["", "rows=6"]}]
SHORT_GRACE = """
import sys, device_agents.job.step as step
step.GRACE_S = 0.5
from device_agents.agent import main
sys.exit(main())
"""
FORGED = re.compile(r'2000-01-01|\{"event": "forged"')
OUTSIDE = tuple(Path(folder) / "pockfarm-hostile" for folder in ("/tmp", "/var/tmp", "/dev/shm"))


def compiled(folder: Path, architecture: str = "x86_64") -> bytes:
    """The hostile binary, static."""
    path = folder / f"hostile-{architecture}"
    # Linked with the same words as steps: for any other, zig builds a C library anew.
    triple, own_words = f"{architecture}-linux-musl", ("-fno-sanitize=all", "-Wno-everything")
    zig_cc(triple, [*own_words, "-c", str(SOURCE), "-o", f"{path.name}.o"], folder)
    zig_cc(triple, [*LINK_FLAGS, "-o", path.name, f"{path.name}.o"], folder)
    return path.read_bytes()


@dataclass
class Arena:
    """One agent and what stands around it.

    `who`: words in front of the agent's command that make it another user's; its sources then lie in `folder`.
    """

    farm: FakeFarm
    folder: Path
    step: bytes
    options: Sequence[str] = ()
    who: Sequence[str] = ()
    target: str = "x86-64-v3"
    device_class: str = "x86-64"
    python: str = sys.executable
    log_format: str = "json"
    count: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Arena:
        self.state = self.folder / "state"
        self.beside = self.folder / "beside"
        self.canaries = {
            "home": self.folder / "home" / ".profile",
            "spool": self.state / "spool" / "canary",
            "another job": self.folder / "other-agent" / "scratch" / "job-1" / "out" / "trained.safetensors",
            "beside": self.beside,
        }
        for path in self.canaries.values():
            _put(path, self.folder)
        self.looks = {name: look(path) for name, path in self.canaries.items()}
        self.log = (self.folder / "agent.log").open("ab")
        words = [*self.who, self.python, "-c", SHORT_GRACE, "--server", self.farm.url, "--state", str(self.state)]
        words += ["--heartbeat-interval", "1", "--long-poll", "5", *self.options]
        given = {
            **os.environ,
            "POCKFARM_ENROL_TOKEN": self.farm.token,
            "HOME": str(self.folder / "home"),
            "POCKFARM_LOG_FORMAT": self.log_format,
            "PYTHONPATH": str(self.folder if self.who else ROOT),
        }
        self.process = subprocess.Popen(words, cwd=self.folder, env=given, stderr=self.log, stdin=subprocess.DEVNULL)
        self.standing = standing(self.process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(HANG_S)
        finally:
            self.process.kill()
            self.log.close()

    def run(self, behaviour: Behaviour) -> p.Report:
        """One job."""
        self.count += 1
        lease = f"lease-{self.count:04}"
        words = [behaviour.name, self.state / "device-key", self.beside, self.process.pid]
        words += [self.canaries[name] for name in ("home", "spool", "another job")]
        orders = "".join(f"{word}\n" for word in words)
        files = {"bin/step": self.step, "weights.safetensors": orders.encode()}
        kind = {"kind": "tuning", "trials": TRIALS, "batch": 1} if behaviour.mode == "tune" else {}
        bundle = archive({**files, "manifest.json": manifest(files, target=self.target, **kind)})
        limits = SHORT if behaviour.name in SLOW else LIMITS
        data = npz() if behaviour.mode == "train" else None
        signed, tune_s = {"target": self.target}, 1.0 if behaviour.mode == "tune" else None
        self.farm.assign(
            bundle,
            lease=lease,
            dataset=data,
            limits=limits,
            mode=behaviour.mode,
            steps=2,
            tune_s=tune_s,
            device_class=self.device_class,
            signed=signed,
        )
        return self.farm.report(lease)

    @property
    def is_emulated(self) -> bool:
        """Then the emulator answers calls that it does not know itself, and the kernel never sees them."""
        return "--runner" in self.options

    def breaches(self, behaviour: Behaviour) -> list[str]:
        """What the last binary said it could do, and should not have."""
        if self.is_emulated and behaviour.name in OF_THE_EMULATOR:
            return []
        events = self.farm.events[f"lease-{self.count:04}"].values()
        return [event.message for event in events if event.message and "BREACH" in event.message]

    def traces(self, users: JobUsers = USERS) -> list[str]:
        """What of the job is left outside its folder, or running."""
        found = [f"{path} was made" for path in OUTSIDE if path.exists()]
        if self.process.poll() is not None:
            found.append(f"the agent ended with {self.process.returncode}")
        elif (now := standing(self.process.pid)) != self.standing:
            found.append(f"the agent was changed: {sorted(key for key in now if now[key] != self.standing[key])}")
        found += [f"{path} was touched" for name, path in self.canaries.items() if look(path) != self.looks[name]]
        if str(self.folder) in Path("/proc/self/mountinfo").read_text():
            found.append("the machine sees a mount of the job")
        if "pockfarm-hostile" in Path("/proc/net/unix").read_text():
            found.append("a socket is open")
        return [*found, *self._words(), *self._running(users)]

    def _words(self) -> list[str]:
        """What of its log a terminal would act on, or a person take for the agent's own line."""
        text = (self.folder / "agent.log").read_text()
        found = [
            f"the log has {one!r}" for one in sorted({one for one in text if one != "\n" and not one.isprintable()})
        ]
        return [*found, *(f"a forged line is in the log: {line}" for line in text.split("\n") if FORGED.match(line))]

    def _running(self, users: JobUsers) -> list[str]:
        """The agent reports before it wipes up, which is waited for."""
        left: list[int] = []

        def is_empty() -> bool:
            left[:] = [pid for uid in range(users.first, users.last + 1) for pid in processes(uid)]
            left[:] += [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_binary(pid)]
            return not left

        with contextlib.suppress(AssertionError):
            until(is_empty)
        return [f"process {pid} runs on" for pid in left]

    def _is_binary(self, pid: int) -> bool:
        """Of this agent: jobs of other agents on this machine are as good as any other process."""
        try:
            path, uid = os.readlink(f"/proc/{pid}/exe"), os.stat(f"/proc/{pid}").st_uid
        except OSError:
            return False
        return path.startswith(str(self.state)) or (bool(self.who) and uid == PLAIN_USER and path.startswith("/job/"))


def _put(path: Path, folder: Path) -> None:
    """A file that anyone may read and write, if the folders let him come there. New folders are whose `folder` is."""
    owner = folder.stat().st_uid
    for place in [one for one in reversed(path.parents) if not one.exists()]:
        place.mkdir(mode=0o700)
        os.chown(place, owner, -1)
    path.write_bytes(b"untouched")
    path.chmod(0o666)


def look(path: Path) -> object:
    """What changes when somebody writes, replaces or removes it."""
    try:
        found = path.lstat()
        return sha256(path.read_bytes()).hexdigest(), found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_ino
    except FileNotFoundError:
        return "gone"


def standing(pid: int) -> dict[str, object]:
    """Where a process may run, thread by thread, and its limits: what others could change of it."""
    threads = {tid: os.sched_getaffinity(int(tid)) for tid in os.listdir(f"/proc/{pid}/task")}
    limits = Path(f"/proc/{pid}/limits").read_text()  # of another user's process too, which prlimit does not tell
    return {
        "processors": set(map(frozenset, threads.values())),
        "limits": limits,
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
    }


def called(behaviour: Behaviour) -> str:
    """How the message must begin, as a pattern. A kernel before 5.0, or under another's filter, may not tell."""
    is_told = tuple(map(int, platform.release().split(".")[:2])) >= (5, 0) and not _is_filtered()
    told = f"the binary called {behaviour.call}(at)?, which"
    return told if is_told else f"{told}|the binary made a system call"


def _is_filtered() -> bool:
    return "Seccomp:\t0" not in Path("/proc/self/status").read_text()


def verdict(arena: Arena, behaviour: Behaviour) -> tuple[p.Report, str]:
    """Run it, and what is wrong with how it went; nothing, if all is as it should be."""
    report = arena.run(behaviour)
    code, message = report.outcome.code or report.outcome.state, report.outcome.message
    wrong = [*arena.traces(), *arena.breaches(behaviour)]
    codes = (*behaviour.codes, OK) if arena.is_emulated else behaviour.codes
    if code not in codes:
        wrong.append(f"told as {code} ({message[:200]}), not {' or '.join(codes)}")
    if code == FORBIDDEN and not re.match(called(behaviour), message):
        wrong.append(f"told as {message[:200]!r}, not {called(behaviour)}")
    if SECRET in b"".join(arena.farm.weights.values()):
        wrong.append("a secret came up")
    return report, "; ".join(wrong)
