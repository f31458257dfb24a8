"""The sides of a comparison on a GPU: our binaries, and each way to run PyTorch, as command lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.frameworks.steps import MANY_STEPS
from benchmarks.gpu.carried import Carried, Course, Step
from benchmarks.gpu.ready import Workshop

OURS, SPARSE = "PockFarm", "PockFarm sparse"
OTHERS_LOSS = 1e-4
"""How far another side's losses may be at least: as in comparisons on CPUs (benchmarks/compare.py)."""


@dataclass(frozen=True)
class GpuSide:
    """One process. `loss`: how far its first losses may be from the course's."""

    name: str
    plan: str
    course: Course
    loss: float
    command: tuple[str, ...]
    environment: Mapping[str, str]
    device_bytes: int = 0
    """What ours allocates; another's says so in the file `told`."""
    told: Path | None = None

    @property
    def is_ours(self) -> bool:
        """Whether its step is a bundle's."""
        return self.told is None


@dataclass(frozen=True)
class Variant:
    """A way to run PyTorch. `options`: of torch_side.py's task."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    only_images: bool = False


VARIANTS: Mapping[str, Variant] = {
    one.name: one
    for one in (
        Variant("PyTorch eager"),
        Variant("PyTorch eager, CUDA graph", {"graph": True}),
        Variant("PyTorch eager, CUDA graph, channels last", {"graph": True, "channels_last": True}, True),
        Variant("torch.compile", {"compile": "default"}),
        Variant("torch.compile, reduce-overhead", {"compile": "reduce-overhead"}),
        Variant("torch.compile, CUDA graph", {"compile": "default", "graph": True}),
        Variant(
            "torch.compile, CUDA graph, channels last",
            {"compile": "default", "graph": True, "channels_last": True},
            True,
        ),
    )
}


@dataclass(frozen=True)
class Group:
    """What is compared in one run: the steps of a model at a batch size in one precision, by plan."""

    model: str
    batch: int
    precision: str
    steps: Mapping[str, Step]

    @property
    def name(self) -> str:
        """Of its results."""
        return f"{self.model}-b{self.batch}-{self.precision}"


def groups_of(carried: Carried) -> list[Group]:
    """Those with a full step, in the order in which they were built, a precision after another."""
    keys = dict.fromkeys((one.precision, one.model, one.batch) for one in carried.steps)
    found = []
    for precision in dict.fromkeys(key[0] for key in keys):
        for _, model, batch in (key for key in keys if key[0] == precision):
            steps = {
                one.plan: one
                for one in carried.steps
                if (one.precision, one.model, one.batch) == (precision, model, batch)
            }
            if "full" in steps:
                found.append(Group(model, batch, precision, steps))
    return found


def ours(workshop: Workshop, group: Group) -> Iterator[GpuSide]:
    """Our full step, and our sparse one beside it. Raises: NotAsBuilt."""
    for name, plan in ((OURS, "full"), (SPARSE, "sparse")):
        if plan not in group.steps:
            continue
        step = group.steps[plan]
        command = workshop.command(step, MANY_STEPS)
        course = workshop.carried.course(step)
        yield GpuSide(name, plan, course, step.computes.loss, command, {}, step.device_bytes)


def others(workshop: Workshop, group: Group, plans: Sequence[str], device: str) -> Iterator[GpuSide]:
    """Every way to run PyTorch under these plans. Raises: NotAsBuilt."""
    told = workshop.carried.models[group.model]
    variants = [one for one in VARIANTS.values() if told.is_image or not one.only_images]
    for plan in (plan for plan in plans if plan in group.steps):
        yield from (other(workshop, group.steps[plan], variant, device) for variant in variants)


def other(workshop: Workshop, step: Step, variant: Variant, device: str) -> GpuSide:
    """One way. Raises: NotAsBuilt."""
    told, course = workshop.carried.models[step.model], workshop.carried.course(step)
    data = workshop.data(step.model, step.batch)
    name = variant.name if step.plan == "full" else f"{variant.name}, {step.plan}"
    results = workshop.folder / f"{step.name}-{name.replace(' ', '-')}.json"
    results.unlink(missing_ok=True)
    task = {
        "model": step.model,
        "weights": str(workshop.weights_path(step.model)),
        "inputs": [str(data[name]) for name in told.inputs],
        "labels": str(data["labels"]),
        "learned": course.learned,
        "learning_rate": told.learning_rate,
        "loss_scale": step.loss_scale,
        "precision": step.precision,
        "device": device,
        "steps": len(course.losses),
        "told": str(results),
        **variant.options,
    }
    command = (sys.executable, "-m", "benchmarks.gpu.torch_side", json.dumps(task))
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(workshop.folder / "inductor")}
    allowed = max(step.computes.loss, OTHERS_LOSS)
    return GpuSide(name, step.plan, course, allowed, command, environment, told=results)


def no_torch() -> str:
    """Why PyTorch has no side here; nothing if it is installed."""
    return "" if find_spec("torch") else f"{sys.executable} has no torch: PyTorch's sides are left out"
