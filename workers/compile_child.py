"""The process that compiles: `python -m workers.compile_child FOLDER PARENT`, confined, one job, then gone.

PARENT is the process id of the worker that waits for it: the child dies with it.

FOLDER holds `order.json` (an `Order`), `source` (the model, or the bundle to be tuned) and, in `external/`, the data
files of the model. It writes JSON lines to the standard output that it was given:
`{"event": "confined", …}` (a `Confined`), `{"event": "progress", "stage": …, "fraction": …}`, and last either
`{"event": "done", "digest": …}` with the bundle in `bundle.pfb`, or `{"event": "failed", "cause": …, "code": …,
"message": …, "where": …, "hint": …}`. Whatever else prints goes to the standard error.
"""

from __future__ import annotations

import errno
import importlib
import json
import logging
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from compiler.cache_folder import ROOMS
from compiler.external import External, mapped
from device_agents.wire import log_lines
from service.base.confinement import ChildLimits, Confined, confine
from service.base.landlock import Files, python_places

if TYPE_CHECKING:
    from compiler.api import BuildSettings

ORDER, SOURCE, BUNDLE, EXTERNAL = "order.json", "source", "bundle.pfb", "external"
DISK_FULL = "infra.disk-full"
SAID_CHARACTERS = {"cause": 40, "code": 80, "message": 2000, "where": 1000, "hint": 1000}
"""Most that a failure says, by field. Each may become 12 in JSON: they still make a line that the worker takes."""
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("compiler", "device_agents", "service", "workers")
Say = Callable[..., None]
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a build. `function` is `module:name` of the compiler."""

    function: str
    plan_json: str
    spec_json: str
    target: str
    cache_folder: str
    memory_bytes: int
    cpu_s: int
    file_bytes: int
    is_tuning: bool = False
    """The source is a bundle, and the module's `build_tuning` makes the one that measures its kernels."""
    tuning_json: str = ""
    """Measured schedules to compile with (`pockfarm.tuning/1`); empty: none."""
    log_ids: Mapping[str, str] = field(default_factory=dict)
    """The subjects that the lines of the child's log are about."""
    external: tuple[str, ...] = ()
    """Locations of the model's data files; in the folder they are `external/0` and so on."""

    def write(self, folder: Path) -> None:
        """Writes the order into the child's folder."""
        (folder / ORDER).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Order:
        """Returns the order in a folder."""
        return cls(**json.loads((folder / ORDER).read_text()))


def main(folder: Path, parent: int) -> int:
    """Compiles the order in `folder`. Returns the exit code: 0 done, 1 failed with a typed outcome."""
    lines = _take_stdout()

    def say(event: str, **fields: object) -> None:
        lines.write(json.dumps({"event": event, **fields}) + "\n")
        lines.flush()

    order = Order.read(folder)
    log_lines.configure("compile")
    say("confined", **asdict(_confine(order, folder, parent)))
    try:
        with log_lines.bind_process(**order.log_ids):
            digest = _compile(order, folder, say)
    except BaseException as error:  # the last line always says how it ended
        with log_lines.bind_process(**order.log_ids):
            LOG.exception("the compile ended with %s", type(error).__name__)
        say("failed", **_failure(error, order))
        return 1
    say("done", digest=digest)
    return 0


def _take_stdout() -> TextIO:
    """Takes the real standard output for our lines; whatever else is printed, by C code too, goes to standard error."""
    sys.stdout.flush()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lines


def _confine(order: Order, folder: Path, parent: int) -> Confined:
    """Confines the child to this job's folder, its organisation's cache, and what a compile runs on."""
    cache = Path(order.cache_folder)
    rooms = tuple(cache / name for name in ROOMS)
    for room in rooms:
        room.mkdir(parents=True, exist_ok=True)
    read = python_places(ROOT, (*PACKAGES, order.function.partition(":")[0].partition(".")[0]))
    limits = ChildLimits(order.memory_bytes, order.cpu_s, order.file_bytes)
    return confine(limits, Files(read, (folder, *rooms)), parent=parent)


def _compile(order: Order, folder: Path, say: Say) -> str:
    module, _, name = order.function.partition(":")
    compiler = importlib.import_module(module)
    source, cache_dir = (folder / SOURCE).read_bytes(), Path(order.cache_folder)

    def progress(stage: str, fraction: float) -> None:
        say("progress", stage=str(stage), fraction=float(fraction))

    if order.is_tuning:
        bundle = compiler.build_tuning(source, cache_dir=cache_dir, progress=progress)
    else:
        bundle = getattr(compiler, name)(source, _settings(order, cache_dir, progress), **_external(order, folder))
    with (folder / BUNDLE).open("wb") as file:
        bundle.write_to(file)
    return str(bundle.digest)


def _external(order: Order, folder: Path) -> dict[str, External]:
    """Returns the data files as the compiler takes them, if there are any: mapped, so that they are held once."""
    files: dict[str, bytes | mmap.mmap] = {}
    for number, location in enumerate(order.external):
        with (folder / EXTERNAL / str(number)).open("rb") as stream:
            files[location] = mapped(stream)
    return {"external": files} if files else {}


def _settings(order: Order, cache_dir: Path, progress: Callable[[str, float], None]) -> BuildSettings:
    from compiler.api import NO_TUNING, BuildSettings, TuningTable, load_target
    from compiler.spec.documents import SparsePlan, TrainingSpec

    return BuildSettings(
        plan=SparsePlan.parse(order.plan_json),
        spec=TrainingSpec.parse(order.spec_json),
        target=load_target(order.target),
        tuning=TuningTable.parse(order.tuning_json) if order.tuning_json else NO_TUNING,
        cache_dir=cache_dir,
        progress=progress,
    )


def _failure(error: BaseException, order: Order) -> dict[str, str]:
    if isinstance(error, MemoryError):
        return {
            "cause": "limits",
            "code": "limits.compile-memory",
            "where": "compile",
            "message": f"the compile needs more than {order.memory_bytes:,} bytes of memory",
            "hint": "use a smaller model or batch, or raise POCKFARM_COMPILE_MEMORY_BYTES",
        }
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return {
            "cause": "limits",
            "code": "limits.compile-file",
            "where": "compile",
            "message": f"the compile wrote a file above {order.file_bytes:,} bytes",
            "hint": "use a smaller model, or raise POCKFARM_COMPILE_FILE_BYTES",
        }
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return {
            "cause": "infra",
            "code": DISK_FULL,
            "where": "compile",
            "message": "the worker's disk is full: the compile could not write its files",
            "hint": "ask the farm's operator to make room on the worker, then send it again",
        }
    if isinstance(getattr(error, "cause", None), str) and isinstance(getattr(error, "code", None), str):
        return {name: _brief(str(getattr(error, name, "")), most) for name, most in SAID_CHARACTERS.items()}
    return {
        "cause": "compiler",
        "code": "compiler.internal",
        "where": "",
        "message": f"the compiler broke ({type(error).__name__})",
        "hint": "a defect of ours: the worker's log has the details; please report it",
    }


def _brief(message: str, most: int) -> str:
    """Its beginning: a model's names may be as long as it likes, and the worker takes no line of any length."""
    return message if len(message) <= most else f"{message[: most - 40]}... ({len(message):,} characters)"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
