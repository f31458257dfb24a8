"""Do carried steps do here what PyTorch's autograd did in float64 where they were built? One line for each.

A few steps on one batch: their losses; momenta and updates of every parameter that learns, by fingerprints; and that
what is frozen stays as it is. In f32 each gradient and update is held to what the tests of CPUs hold it to
(tests/compiler/agreement/harness.py), in less than that all gradients together to what the precision allows.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.carried import Course, NotAsBuilt, Step
from benchmarks.gpu.fingerprint import OFF, Fingerprint, fingerprint
from benchmarks.gpu.precisions import Precision
from benchmarks.gpu.ready import Workshop
from benchmarks.gpu.seeded import Arrays
from compiler.errors import ModelError
from compiler.trained.checkpoints import same_bits, tensors_of
from tests.compiler.agreement.yardstick import (
    GRADIENT_FACTOR,
    GRADIENT_FLOOR,
    STORING,
    UPDATE_FACTOR,
    UPDATE_FLOOR,
    VANISHING,
)

KINKS = 0.02
"""How far a gradient in f32 may be off, relative, where there are kinks: of millions of inputs a few lie so near to one
that float32 takes them to its other side, others in each order of evaluation. (harness.py draws its batches apart.)"""
TOLD = 3
"""Problems of a step that are told."""
RUN_S = 120.0
"""A few minutes with a GPU are all that there may be."""


class StepFailed(Exception):
    """A binary did not train; the message is what it said."""


@dataclass(frozen=True)
class Found:
    """What a step came to here."""

    losses: tuple[float, ...]
    gradients: Mapping[str, Fingerprint]
    moved: Mapping[str, Fingerprint]
    changed: tuple[str, ...]
    """Parameters that are frozen and did not stay, or are missing."""


@dataclass(frozen=True)
class Checked:
    """One step's answer. `problems`: everything that is not as it should be; none if it agrees."""

    step: Step
    problems: list[str]
    loss_error: float | None = None
    """The largest of the losses, relative; nothing where it did not run."""
    error: float | None = None
    """Of all momenta as one vector, relative."""
    seconds: float = 0.0

    def __str__(self) -> str:
        """One line."""
        more = f"; and {len(self.problems) - TOLD} more" if len(self.problems) > TOLD else ""
        told = f": {'; '.join(self.problems[:TOLD])}{more}" if self.problems else ""
        if self.loss_error is None:
            return f"FAILS   {self.step.name:36}{told}"
        off = f"losses {self.loss_error:.1e} off, gradients {self.error:.1e} ({self.seconds:.1f} s)"
        return f"{'DIFFERS' if told else 'agrees '} {self.step.name:36} {off}{told}"


def check(workshop: Workshop, step: Step) -> Checked:
    """Run one step a few times and compare. Raises: NotAsBuilt for a folder that is not as it was built."""
    started = time.monotonic()
    course = workshop.carried.course(step)
    try:
        found = run(workshop, step, course)
    except StepFailed as problem:
        return Checked(step, [str(problem)], seconds=time.monotonic() - started)
    weights, has_kinks = workshop.weights(step.model), workshop.carried.models[step.model].has_kinks
    lengths = {name: float(np.linalg.norm(weights[name].astype(np.float64))) for name in course.learned}
    return Checked(
        step,
        list(problems(found, course, lengths, step.computes, has_kinks=has_kinks)),
        loss_error(found, course),
        whole_error(found.gradients, course.gradients, course.sizes),
        time.monotonic() - started,
    )


def run(workshop: Workshop, step: Step, course: Course) -> Found:
    """What the binary does. Raises: StepFailed; NotAsBuilt."""
    after = workshop.folder / "after.safetensors"
    after.unlink(missing_ok=True)
    losses = _losses(workshop.command(step, len(course.losses), ["--save", str(after)]))
    try:
        tensors = tensors_of(after.read_bytes(), "what the step saved")
    except (OSError, ModelError) as problem:
        raise StepFailed(f"no checkpoint after the last step: {problem}") from None
    return found_in(tensors, workshop.weights(step.model), course, losses)


def _losses(command: tuple[str, ...]) -> tuple[float, ...]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    except subprocess.TimeoutExpired:
        raise StepFailed(f"no end after {RUN_S:.0f} s") from None
    except OSError as problem:
        raise StepFailed(f"the binary does not start: {problem}") from None
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]
    if done.returncode:
        said = [str(event.get("message")) for event in events if event["event"] == "error"]
        raise StepFailed(" ".join(said) or f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return tuple(float(event["loss"]) for event in events if event["event"] == "step")


def found_in(tensors: Arrays, weights: Arrays, course: Course, losses: tuple[float, ...]) -> Found:
    """What a checkpoint says of a course."""
    missing = [name for name in (*weights, *map(_momentum, course.learned)) if name not in tensors]
    if missing:
        raise StepFailed(f"{missing[0]} is not in the checkpoint")
    with ThreadPoolExecutor() as pool:
        gradients = pool.map(lambda name: fingerprint(name, tensors[_momentum(name)]), course.learned)
        moved = pool.map(partial(_moved, tensors, weights), course.learned)
        frozen = [name for name in weights if name not in set(course.learned)]
        changed = tuple(name for name in frozen if not same_bits(tensors[name], weights[name]))
        return Found(
            losses,
            dict(zip(course.learned, gradients, strict=True)),
            dict(zip(course.learned, moved, strict=True)),
            changed,
        )


def _momentum(name: str) -> str:
    return f"optimizer.momentum.{name}"


def _moved(after: Arrays, before: Arrays, name: str) -> Fingerprint:
    return fingerprint(name, after[name].astype(np.float64) - before[name])


def problems(
    found: Found, course: Course, lengths: Mapping[str, float], precision: Precision, *, has_kinks: bool
) -> Iterator[str]:
    """What is not as it should be. `lengths`: of weights before the first step."""
    if len(found.losses) != len(course.losses):
        yield f"{len(found.losses)} steps instead of {len(course.losses)}"
        return
    for number, (loss, exact) in enumerate(zip(found.losses, course.losses, strict=True), 1):
        if not abs(loss - exact) <= precision.loss * abs(exact):
            yield f"loss of step {number} is {loss:.7g} instead of {exact:.7g}"
    yield from (f"{name} is frozen and changed" for name in found.changed)
    if precision.is_exact:
        yield from _of_each(found, course, lengths, KINKS if has_kinks else 0.0)
        return
    allowed = precision.kinked if has_kinks else precision.smooth
    for word, error in (
        ("gradients", whole_error(found.gradients, course.gradients, course.sizes)),
        ("updates", whole_error(found.moved, course.moved, course.moves)),
    ):
        if not error <= allowed:
            yield f"{word} are {error:.2g} from float64's, {allowed} is allowed"


def _of_each(found: Found, course: Course, lengths: Mapping[str, float], kinks: float) -> Iterator[str]:
    largest = max(course.sizes.values())
    for name in course.learned:
        size, own = course.sizes[name], course.own_errors[name]
        vanishes = size < VANISHING * largest
        allowed = GRADIENT_FLOOR * largest if vanishes else GRADIENT_FACTOR * own + (GRADIENT_FLOOR + kinks) * size
        off = distance(found.gradients[name], course.gradients[name])
        if not off <= OFF * allowed:
            yield f"gradient of {name} is {off:.2g} from float64's of {size:.2g}, PyTorch's float32 {own:.2g}"
        storing = len(course.losses) * STORING * lengths[name]
        relative = UPDATE_FLOOR + kinks + UPDATE_FACTOR * (own / size if size else 0.0)
        moved = distance(found.moved[name], course.moved[name])
        if not vanishes and not moved <= OFF * (storing + relative * course.moves[name]):
            yield f"update of {name} is {moved:.2g} from float64's of {course.moves[name]:.2g}"


def distance(one: Fingerprint, other: Fingerprint) -> float:
    """About that of the arrays."""
    return float(np.linalg.norm(one - other))


def whole_error(one: Mapping[str, Fingerprint], exact: Mapping[str, Fingerprint], sizes: Mapping[str, float]) -> float:
    """Of all arrays as one vector, relative."""
    off = sum(distance(one[name], exact[name]) ** 2 for name in exact)
    return float((off / sum(size**2 for size in sizes.values())) ** 0.5)


def loss_error(found: Found, course: Course) -> float | None:
    """The largest, relative; nothing where there are no losses."""
    pairs = zip(found.losses, course.losses, strict=False)
    return max((abs(loss - exact) / abs(exact) for loss, exact in pairs), default=None)


def check_all(workshop: Workshop, steps: list[Step]) -> Iterator[Checked]:
    """Every step, those of one model after each other; a folder that is not whole spoils only its own steps."""
    for step in sorted(steps, key=lambda one: one.model):
        try:
            yield check(workshop, step)
        except NotAsBuilt as problem:
            yield Checked(step, [str(problem)])
        finally:
            _forget(workshop.folder, step)


def _forget(folder: Path, step: Step) -> None:
    for path in folder.glob(f"{step.name}*"):
        path.unlink()
