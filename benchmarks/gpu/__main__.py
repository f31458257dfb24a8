"""Our training step on an NVIDIA GPU: built where there is none, checked and measured where there is one for minutes.

    python -m benchmarks.gpu build build/bench-gpu         models, bundles without weights, what steps should come to
    python -m benchmarks.gpu check build/bench-gpu         there: do steps do what they should? NumPy is enough
    python -m benchmarks.gpu run build/bench-gpu           there: beside PyTorch, in turns; with torch
    python -m benchmarks.gpu bench build/bench-gpu         `make bench-gpu`: build what is not there, run, or say how

Weights and data are made from a seed where they are needed. Without a GPU nothing is measured, and nothing is told.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from benchmarks.gpu.carried import MANIFEST, MOST_BYTES, Carried, NotAsBuilt, Step
from benchmarks.gpu.check import Checked, check_all
from benchmarks.gpu.compare import Comparison, compare
from benchmarks.gpu.device import NoGpu, gpu
from benchmarks.gpu.precisions import PRECISIONS
from benchmarks.gpu.ready import Workshop
from benchmarks.gpu.sides import Group, groups_of, no_torch, others, ours
from benchmarks.gpu.tables import page
from device_agents.devices.accelerator import Accelerator

TARGET = "x86-64-v3/cuda"
SHARED, ROOM_BYTES = Path("/dev/shm"), 16 << 30
DIFFERS, NOTHING_DONE = 1, 2
"""Exit codes: a step did other work than it should; and nothing could be tried."""
A_COMPARISON_S = 150.0
"""What one may take, PyTorch's compiling included: none is begun with less of the budget left."""


def main() -> int:
    """0 if all is well."""
    signal.signal(signal.SIGTERM, _stop)
    asked = _parser().parse_args()
    command: Callable[[argparse.Namespace], int] = asked.command
    try:
        return command(asked)
    except NoGpu as problem:
        print(f"no GPU: {problem}; nothing measured", file=sys.stderr)
    except NotAsBuilt as problem:
        print(problem, file=sys.stderr)
    return NOTHING_DONE


def build(asked: argparse.Namespace) -> int:
    """Build what is asked for. 0 if all of it can be carried."""
    try:
        from benchmarks.gpu import build as builder
    except ModuleNotFoundError as problem:
        raise NotAsBuilt(f"building needs this project's environment ({problem}): run `make set-up-test`") from None
    from benchmarks.gpu.models import MEASURED, MODELS

    unknown = sorted({*(asked.models or ())} - set(MODELS))
    if unknown:
        raise NotAsBuilt(f"no model is called {unknown[0]!r}; there are: {', '.join(MODELS)}")
    wanted = builder.Asked(
        asked.target,
        asked.models or MEASURED,
        asked.batches or (1, 8),
        asked.plans or builder.PLANS,
        asked.precisions or tuple(PRECISIONS),
        adds=asked.add,
    )
    carried = builder.build(asked.folder, wanted)
    print(*builder.summary(carried), sep="\n")
    if carried.size_bytes > MOST_BYTES:
        print(f"that is more than {MOST_BYTES >> 20} MiB: build fewer models, batches, plans or precisions")
        return DIFFERS
    return 0 if carried.steps else NOTHING_DONE


def check(asked: argparse.Namespace) -> int:
    """Hold every step against what it should come to. 0 if all agree."""
    carried = Carried.load(asked.folder)
    _describe(carried)
    steps = [one for one in carried.steps if _is_asked(asked, one)]
    checked: list[Checked] = []
    ends_s = time.monotonic() + asked.budget
    with _workshop(carried) as workshop:
        for one in check_all(workshop, steps):
            print(one, flush=True)
            checked.append(one)
            _write(_results(asked) / "check.json", [asdict(each) for each in checked])
            if time.monotonic() > ends_s:
                break
    good, left = sum(not one.problems for one in checked), len(steps) - len(checked)
    print(f"{good} of {len(steps)} steps agree with float64" + (f"; no time was left for {left}" if left else ""))
    if not checked:
        return NOTHING_DONE
    return 0 if good == len(steps) else DIFFERS


def _write(path: Path, body: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def run(asked: argparse.Namespace) -> int:
    """Measure what is asked for. 0 if our steps did what they should; others' failures are told."""
    carried = Carried.load(asked.folder)
    device = gpu()
    _describe(carried, device)
    if not carried.is_for_a_gpu:
        raise NotAsBuilt(f"the steps are built for {carried.target}, which is no GPU; nothing measured")
    missing = no_torch()
    notes = [missing] if missing else []
    print(*notes, sep="\n", end="\n" if notes else "")
    ends_s = time.monotonic() + asked.budget
    found: list[Comparison] = []
    with _workshop(carried) as workshop:
        for group in groups_of(carried):
            if not any(_is_asked(asked, step) for step in group.steps.values()):
                continue
            path = _results(asked) / f"{group.name}.json"
            if path.exists() and not asked.again:
                found.append(Comparison.load(path))
            elif time.monotonic() + A_COMPARISON_S > ends_s:
                notes.append(f"{group.name} is not measured: no time was left")
            else:
                print(group.name, flush=True)
                found.append(_compared(workshop, group, asked, device.facts()))
                found[-1].save(path)
    return _tell(found, notes, _results(asked))


def _tell(found: Sequence[Comparison], notes: Sequence[str], results: Path) -> int:
    if not found:
        print(*notes, "nothing measured", sep="\n")
        return NOTHING_DONE
    text = page(found, notes)
    (results / "page.md").write_text(f"# On a GPU\n\n{text}\n")
    print(text)
    return DIFFERS if any(one.ours_failed() for one in found) else 0


def _compared(workshop: Workshop, group: Group, asked: argparse.Namespace, facts: Mapping[str, str]) -> Comparison:
    sides = list(ours(workshop, group))
    if not no_torch():
        sides += [
            side
            for side in others(workshop, group, asked.plans or ("full",), "cuda")
            if not asked.sides or side.name in asked.sides
        ]
    logs = workshop.folder / "logs" / group.name
    return compare(
        group, sides, turns=asked.turns, seconds=asked.seconds, logs=logs, gpu=facts, commit=workshop.carried.commit
    )


def bench(asked: argparse.Namespace) -> int:
    """Build what is not there; measure, or say how the folder is carried to a GPU."""
    if not (asked.folder / MANIFEST).exists() and (code := build(asked)):
        return code
    try:
        gpu()
    except NoGpu as problem:
        print(f"no GPU: {problem}; nothing measured")
        print(f"Carry this checkout with {asked.folder} to a machine with one, and there, in the checkout:")
        print(*(f"  python3 -m benchmarks.gpu {word} {asked.folder}" for word in ("check", "run")), sep="\n")
        return 0
    return check(asked) or run(asked)


def _describe(carried: Carried, device: Accelerator | None = None) -> None:
    """Of a GPU's steps, on what they run. Raises: NoGpu."""
    if not carried.is_for_a_gpu:
        print(f"steps for {carried.target}, on this machine's CPU")
        return
    device = device or gpu()
    print(f"{device.name}, {device.capability}, {device.version}; steps for {carried.target} at {carried.commit}")
    if device.capability != carried.capability:
        print(f"built for {carried.capability}: the driver compiles each step's PTX first, or refuses it")


def _is_asked(asked: argparse.Namespace, step: Step) -> bool:
    chosen = ((asked.models, step.model), (asked.batches, step.batch), (asked.precisions, step.precision))
    return all(not among or value in among for among, value in chosen)


@contextmanager
def _workshop(carried: Carried) -> Iterator[Workshop]:
    """In memory, where there is room for files there."""
    place = SHARED if SHARED.is_dir() and shutil.disk_usage(SHARED).free > ROOM_BYTES else None
    with tempfile.TemporaryDirectory(prefix="pockfarm-gpu-", dir=place) as folder:
        yield Workshop(carried, Path(folder))


def _results(asked: argparse.Namespace) -> Path:
    results: Path = asked.results or asked.folder / "results"
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for command in (build, check, run, bench):
        own = commands.add_parser(command.__name__, help=(command.__doc__ or "").splitlines()[0])
        own.set_defaults(command=command)
        own.add_argument("folder", type=Path)
        own.add_argument("--models", type=_words)
        own.add_argument("--batches", type=_numbers)
        own.add_argument("--precisions", type=_words, help=f"of {', '.join(PRECISIONS)}")
        own.add_argument("--plans", type=_words, help="of ours that are built; of PyTorch's sides: full")
        own.add_argument("--target", default=TARGET, help="what is built for; a CPU's tries all but the GPU")
        own.add_argument("--add", action="store_true", help="build: keep what the folder holds already")
        own.add_argument("--results", type=Path, metavar="FOLDER", help="where figures go (default: FOLDER/results)")
        own.add_argument("--turns", type=int, default=5, help="of each side")
        own.add_argument("--seconds", type=float, default=0.5, help="of a turn")
        own.add_argument("--budget", type=float, default=3600.0, metavar="SECONDS", help="after which none is begun")
        own.add_argument("--sides", type=lambda text: text.split(";"), metavar="A;B", help="of PyTorch's")
        own.add_argument("--again", action="store_true", help="measure also what is there")
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind, so that every process we stopped is ended."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
