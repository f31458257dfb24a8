"""A compiler that does what the model's bytes say: real bundles, real failures, in no time."""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from compiler.errors import DoesNotFit, UnsupportedOperator
from compiler.external import NO_EXTERNAL, External, model_digest
from compiler.settings import BuildSettings
from compiler.tuning.table import NO_TUNING
from tests.service.bundles import MadeBundle, make_bundle, make_manifest

Progress = Callable[[str, float], None]


def compile_training(model: bytes, settings: BuildSettings, external: External = NO_EXTERNAL) -> MadeBundle:
    """Like `compiler.api.compile_training`. `model` is `<behaviour>` or `<behaviour> <folder>`, plus anything after a
    line end. The manifest says which measured schedules it got, and which model if it has data files."""
    progress = settings.progress
    words = model.split(b"\n")[0].decode().split()
    progress("import", 0.1)
    print("a library talks on the standard output")
    os.write(1, b"and so does C code\n")
    BEHAVIOURS[words[0]](Path(words[1]) if len(words) > 1 else Path("."), progress)
    progress("codegen", 0.9)
    manifest = make_manifest(
        target=settings.target.name, plan_digest=settings.plan.digest, spec_digest=settings.spec.digest
    )
    if external:
        manifest["digests"]["model"] = model_digest(model, external)
    if settings.tuning != NO_TUNING:
        manifest["schedules"] = [entry.choice for entry in settings.tuning.entries]
    warnings = json.loads(Path(words[1]).read_text()) if words[0] == "warns" else []
    step = b"not a program" if words[0] == "no-elf" else b"\x7fELF" + b"\0" * 60
    made = make_bundle(manifest, step=step, warnings=warnings)
    if words[0] == "wrong-digest":
        return MadeBundle(made.data, "sha256:" + "0" * 64, made.manifest)
    return made


def build_tuning(bundle: bytes, *, cache_dir: Path, progress: Progress) -> MadeBundle:
    """Like `compiler.api.build_tuning`."""
    progress("kernels", 0.5)
    digest = "sha256:" + hashlib.sha256(bundle).hexdigest()
    return make_bundle({**make_manifest(source=digest), "kind": "tuning", "trials": []})


def fine(_: Path, progress: Progress) -> None:
    pass


def slow(folder: Path, progress: Progress) -> None:
    """Leaves a mark in `folder`, then takes long, once: the second try is quick."""
    tries = len(list(folder.glob("try-*")))
    (folder / f"try-{tries + 1}-{os.getpid()}").touch()
    if tries == 0:
        hang(folder, progress)


def hang(_: Path, progress: Progress) -> None:
    for step in itertools.count():
        progress("slow", min(0.9, 0.1 + step / 1000))
        time.sleep(0.1)


def unsupported(_: Path, progress: Progress) -> None:
    raise UnsupportedOperator("operator Foo has no rule", where="node foo_1", hint="remove it")


def too_big(_: Path, progress: Progress) -> None:
    raise DoesNotFit(2048, 1024, "use a smaller batch")


def broken(_: Path, progress: Progress) -> None:
    raise ZeroDivisionError("a defect with a secret path /home/someone")


def memory(_: Path, progress: Progress) -> None:
    held = []
    while True:
        held.append(bytearray(64 << 20))


def kill(_: Path, progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash(_: Path, progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(_: Path, progress: Progress) -> None:
    sys.stdout.flush()
    os._exit(7)


def large_file(_: Path, progress: Progress) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    with open("large", "wb") as file:
        while True:
            file.write(b"x" * (1 << 20))
            file.flush()


def look(folder: Path, progress: Progress) -> None:
    """Writes down what a compile can see: of the places that `reach.json` names, those that it could open or change,
    and of the processes, those that it could signal."""
    places = [Path(place) for place in json.loads((folder / "reach.json").read_text())]
    tcp, broker, other = json.loads((folder / "outside.json").read_text())
    attacks: dict[str, Callable[[], object]] = {
        "network": lambda: socket.create_connection(("127.0.0.1", tcp), timeout=5).close(),
        "broker": lambda: socket.socket(socket.AF_UNIX).connect(broker),
        "sockets": socket.socketpair,
        "mode": lambda: os.chmod(other, 0o4777),
        "mode of what it may read": lambda: _change_mode(os.__file__),
        "times": lambda: os.utime(other, (0, 0)),
        "attributes": lambda: os.setxattr(other, "user.left", b"here"),
        "scheduling": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
        "limits of the worker": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE),
        "processors of the worker": lambda: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0)),
        "more for itself": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000)),
        "a process that stays": lambda: _in_child(os.setsid),
        "another user": lambda: _in_child(lambda: os.setuid(65534)),
    }
    report = {
        "environment": sorted(os.environ),
        "home": os.listdir(os.environ["HOME"]),
        "succeeded": [name for name, act in attacks.items() if _works(act)],
        "reached": [str(place) for place in places if _reaches(place)],
        "signalled": _works(lambda: os.kill(os.getppid(), 0)),
    }
    (folder / "seen.json").write_text(json.dumps(report))


def _reaches(place: Path) -> bool:
    within = place / "left" if place.is_dir() else place
    return any(_works(act) for act in (lambda: os.listdir(place), place.read_bytes, lambda: within.open("ab").close()))


def _change_mode(path: str) -> None:
    """To what it is: by a descriptor that may only read."""
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))


def _in_child(act: Callable[[], object]) -> None:
    """In a process of its own. Raises: OSError if it was refused there."""
    pid = os.fork()
    if not pid:
        os._exit(0 if _works(act) else 1)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError


def _works(act: Callable[[], object]) -> bool:
    try:
        act()
    except (OSError, ValueError):  # as which a limit that may not be raised shows
        return False
    return True


def say_to_worker(data: bytes) -> None:
    """Write where the child's own lines go."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and _is_pipe(descriptor):
            os.write(descriptor, data)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def babble(_: Path, progress: Progress) -> None:
    """What no compiler of ours says, among what it says."""
    for line in (
        b"\xff\xfe",
        b"[]",
        b"7",
        b"[" * 60_000,
        b'{"event": "progress", "fraction": "much", "stage": 1}',
        b'{"event": "progress", "fraction": NaN}',
        b'{"event": "progress", "fraction": 1e999}',
        b'{"event": "progress", "fraction": null}',
        b'{"event": ["progress"]}',
        b'{"event": "done"}',
        b'{"event": "progress", "stage": "\\ud800", "fraction": 0.5}',
    ):
        say_to_worker(line + b"\n")


def flood(_: Path, progress: Progress) -> None:
    """Lines of progress without end."""
    line = json.dumps({"event": "progress", "stage": "x" * 60, "fraction": 0.5}).encode() + b"\n"
    while True:
        say_to_worker(line * 600)


def one_endless_line(_: Path, progress: Progress) -> None:
    while True:
        say_to_worker(b"x" * 60_000)


def empty_lines(_: Path, progress: Progress) -> None:
    while True:
        say_to_worker(b"\n" * 60_000)


def endless_log(_: Path, progress: Progress) -> None:
    """On its standard error."""
    while True:
        os.write(2, b"x" * 60_000)


def claim_cause(_: Path, progress: Progress) -> None:
    say_to_worker(json.dumps({"event": "failed", "cause": "x" * 300, "code": ["a"], "message": {}}).encode() + b"\n")
    os._exit(1)


def done_without_digest(_: Path, progress: Progress) -> None:
    say_to_worker(b'{"event": "done"}\n')
    os._exit(0)


def odd_signal(_: Path, progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 3)


def afterwards(change: Callable[[], object]) -> Callable[[Path, Progress], None]:
    """Changes the bundle after it was written."""

    def register(folder: Path, progress: Progress) -> None:
        atexit.register(change)

    return register


def bundle_link() -> None:
    os.rename("bundle.pfb", "real")
    os.symlink("real", "bundle.pfb")


def bundle_fifo() -> None:
    os.unlink("bundle.pfb")
    os.mkfifo("bundle.pfb")


def log_fifo() -> None:
    os.unlink("log")
    os.mkfifo("log")


BEHAVIOURS: dict[str, Callable[[Path, Progress], None]] = {
    "fine": fine,
    "slow": slow,
    "hang": hang,
    "unsupported": unsupported,
    "too-big": too_big,
    "broken": broken,
    "memory": memory,
    "kill": kill,
    "crash": crash,
    "leave": leave,
    "large-file": large_file,
    "look": look,
    "flood": flood,
    "one-endless-line": one_endless_line,
    "empty-lines": empty_lines,
    "endless-log": endless_log,
    "no-elf": fine,
    "wrong-digest": fine,
    "warns": fine,
    "babble": babble,
    "claim-cause": claim_cause,
    "odd-signal": odd_signal,
    "done-without-digest": done_without_digest,
    "bundle-link": afterwards(bundle_link),
    "bundle-fifo": afterwards(bundle_fifo),
    "bundle-gone": afterwards(lambda: os.unlink("bundle.pfb")),
    "bundle-two-names": afterwards(lambda: os.link("bundle.pfb", "second")),
    "bundle-giant": afterwards(lambda: os.truncate("bundle.pfb", 1 << 31)),
    "log-fifo": afterwards(log_fifo),
}
