"""Measures one trial of one model: is it accepted, does a step train right, how large and slow is it."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from compiler.errors import CompileError
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Built, Case, Optimizer, build, problems, run_step
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.step_binary import native_target
from tests.zoo.catalogue import build as build_module
from tests.zoo.catalogue import draw
from tests.zoo.entry import Entry
from tests.zoo.gradients import gradient_problems, import_case
from tests.zoo.trials import NotExported, Trial, export, plan_of, reference_of

DRAWS = 3
"""Batches that a step is compared on until one agrees: at a kink any float32 engine may take the other side."""


@dataclass
class Measured:
    """What a trial gave. `status`: right, wrong, names, refused, not exported, failed (a defect of ours).

    `untold` differs because the file does not tell where gradients are cut off. `names` is right but for parameters
    that the file calls otherwise than the module does, or holds in part.
    """

    model: str
    exporter: str
    opset: int
    plan: str
    status: str = ""
    why: str = ""
    compared: str = ""
    """gradients (of the training graph), or step (the compiled one's, too)."""
    names: list[str] = field(default_factory=list)
    trained: int = 0
    arena_bytes: int = 0
    state_bytes: int = 0
    compile_s: float = 0.0
    """Processor seconds, of this process and those that it waited for."""
    kernels: int = 0
    draws: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """True if a step was built."""
        return self.status in ("right", "wrong", "names", "untold")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def measure(entry: Entry, trial: Trial, cache: Path, *, compiled: bool = True) -> Measured:
    """Export, import, and compare gradients with the module in float64; then, if `compiled`, the compiled step."""
    found = Measured(entry.name, trial.exporter, trial.opset, trial.plan)
    module, example = build_module(entry), draw(entry, 0)
    try:
        data = export(module, entry, example, trial)
        started = _processor_s()
        reference = reached(reference_of(module, entry, example, trial), entry, example)
        case = _case(data, reference, entry, trial)
        graph = import_case(case)
        reference, found.names = as_the_file_calls_them(reference, graph.named_parameters())
        case = replace(case, reference=reference, plan=plan_of(trial.plan, reference))
        found.warnings = sorted({warning.code for warning in graph.warnings})
        wrong, found.compared = gradient_problems(case, graph, case.draw(0)), "gradients"
        if compiled and not wrong and not found.names:
            wrong = _compiled(case, cache, found)
    except NotExported as problem:
        found.status, found.why = "not exported", str(problem)
    except CompileError as problem:
        found.status, found.why = "failed" if problem.cause == "compiler" else "refused", str(problem)
    else:
        found.compile_s = found.compile_s or round(_processor_s() - started, 2)
        untold = entry.untold and trial.exporter == "torchscript"
        found.status = ("untold" if untold else "wrong") if wrong else "names" if found.names else "right"
        found.why = "; ".join(wrong[:6])
    return found


def as_the_file_calls_them(reference: ModuleReference, held: Collection[str]) -> tuple[ModuleReference, list[str]]:
    """The reference under the names that a file has for tensors with several, and what it has under no such name."""
    own = dict(reference.module.named_parameters())
    every = dict(reference.module.named_parameters(remove_duplicate=False))
    names, missing = {}, []
    for name, inner in reference.names.items():
        tied = [other for other, tensor in every.items() if tensor is own.get(inner)]
        called = next((other for other in (name, *tied) if other in held), name)
        names[called] = inner
        if called not in held:
            missing.append(name)
    return replace(reference, names=names), missing


def _compiled(case: Case, cache: Path, found: Measured) -> list[str]:
    """What is wrong with the compiled step."""
    with tempfile.TemporaryDirectory() as folder:
        started = _processor_s()
        try:
            built = build(case, native_target(), Path(folder), cache)
        except AssertionError as problem:
            return [f"at the start: {problem}"[:2000]]
        found.compile_s, found.compared = round(_processor_s() - started, 2), "step"
        _sizes(built, found)
        return _compare(built, found)


def reached(reference: ModuleReference, entry: Entry, example: tuple[torch.Tensor, ...]) -> ModuleReference:
    """The reference without parameters on which the output does not depend: a file need not hold them."""
    leaves = {name: torch.from_numpy(array).requires_grad_() for name, array in reference.initial().items()}
    feeds = dict(zip(entry.inputs, (tensor.numpy() for tensor in example), strict=True))
    output = reference.logits(leaves, feeds, torch.float32)
    gradients = torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)
    names = {
        name: inner
        for (name, inner), gradient in zip(reference.names.items(), gradients, strict=True)
        if gradient is not None
    }
    return replace(reference, names=names)


def _case(data: bytes, reference: ModuleReference, entry: Entry, trial: Trial) -> Case:
    def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        tensors = draw(entry, int(rng.integers(1 << 31)), batch)
        return dict(zip(entry.inputs, (tensor.numpy() for tensor in tensors), strict=True))

    return Case(
        model=data,
        reference=reference,
        plan=plan_of(trial.plan, reference),
        batch=entry.batch,
        feeds=feeds,
        labels=labels_of(reference.module, entry),
        batch_norm="frozen",
    )


def labels_of(module: nn.Module, entry: Entry) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Labels that fit the output: numbers of its shape, or classes of its last axis."""
    with torch.no_grad():
        shape = tuple(module(*draw(entry, 0)).shape)

    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        if entry.loss == "mse":
            return rng.normal(size=shape).astype(np.float32)
        return rng.integers(0, shape[-1], shape[:-1])

    return make


def _sizes(built: Built, found: Measured) -> None:
    info = next(event for event in built.binary.run("info") if event["event"] == "info")
    found.arena_bytes = int(info["arena_bytes"])
    found.state_bytes = int(info["weights_bytes"]) + int(info["optimizer_bytes"])
    found.kernels = len(info["kernels"])


def _compare(built: Built, found: Measured) -> list[str]:
    """What is wrong with a first step, on the batch of up to `DRAWS` that agrees best."""
    optimizer = Optimizer(built)
    weights = {name: array.astype(np.float64) for name, array in built.reference.initial().items()}
    state = optimizer.fresh(weights)
    best: list[str] | None = None
    for attempt in range(DRAWS):
        found.draws = attempt + 1
        batch = smooth_batch(built, weights, 1 + 100 * attempt)
        wrong = problems(built, run_step(built, optimizer, weights, state, 1, batch))
        best = wrong if best is None or len(wrong) < len(best) else best
        if not wrong:
            break
    assert best is not None
    return best


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
