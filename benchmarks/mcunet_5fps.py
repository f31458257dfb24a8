"""MCUNet-5fps as published, and the ancestor engine's plan for it, planned three ways.

Source: Lin et al., MCUNet (NeurIPS 2020), the searched net for ImageNet at 5 frames a second; Lin et al., On-Device
Training Under 256KB Memory (NeurIPS 2022), whose plan and measured peaks the figures stand beside. Convolutions count
from 0 in forward order: the stem, then two of the first block and three of each other; the classifier is the last
layer. Input: 128 x 128, batch 1, SGD without momentum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.call_passes import fusion_passes, run_call_passes
from compiler.frontend.importer import import_model
from compiler.fusion.updates import fuse_updates
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, lower_both
from compiler.placement.attempts import Attempt, attempts
from compiler.placement.place import place_programs
from compiler.program.program import MemoryPlan, Program
from compiler.program.schedule import schedule
from compiler.program.state import state_tensors
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.targets import load
from examples.models.mobilenet import inverted_residual
from examples.models.network import Network, image_input

# (expansion, kernel, output channels, stride)
BLOCKS = (
    (1, 3, 8, 1),
    (4, 3, 16, 2),
    (3, 3, 16, 1),
    (3, 7, 24, 2),
    (5, 3, 24, 1),
    (5, 3, 40, 2),
    (4, 7, 40, 1),
    (4, 5, 48, 1),
    (3, 3, 48, 1),
    (4, 3, 48, 1),
    (5, 7, 96, 2),
    (4, 5, 96, 1),
    (4, 5, 96, 1),
    (6, 3, 160, 1),
)
RESOLUTION, CLASSES = 128, 10
BIASES = 22
"""Of the last layers."""
WEIGHTS = {21: 1.0, 24: 1.0, 27: 1.0, 30: 1.0, 36: 1 / 8, 39: 1 / 4}
"""Input-channel ratios."""
PUBLISHED_KB = {"full, updates last": 4510, "sparse, updates last": 537, "sparse, updates early": 201}
UNREACHED = 1 << 40
"""A limit on memory that every way meets."""
GOALS = {
    "sparse, updates last": 8,
    "sparse, updates last, limited": 8,
    "sparse, updates early": 22,
    "sparse, updates early, limited": 22,
}
"""How many times smaller than the full update with updates last."""
SPEC = TrainingSpec.parse({"batch": 1, "threads": 1, "optimizer": {"kind": "sgd"}})


def mcunet_5fps() -> bytes:
    """The published blocks, with norms folded."""
    net = Network("mcunet_5fps", 0)
    x = net.relu6(net.conv("input", "stem", (3, 16), 3, stride=2), "stem.relu6")
    channels = 16
    for block, (expansion, kernel, outputs, stride) in enumerate(BLOCKS):
        x = inverted_residual(net, x, f"blocks.{block}", (channels, outputs), kernel, expansion, stride)
        channels = outputs
    logits = net.linear(net.pooled(x, "pool"), "classifier", channels, CLASSES)
    return net.model(logits, inputs=image_input(3, RESOLUTION), classes=CLASSES)


def layers() -> list[str]:
    """The layers in forward order, by the name of their parameters."""
    inner = ("expand", "depthwise", "project")
    blocks = (f"blocks.{i}.{kind}" for i, block in enumerate(BLOCKS) for kind in inner[block[0] == 1 :])
    return ["stem", *blocks, "classifier"]


def published_plan() -> SparsePlan:
    """Biases of the last layers, and weights of some at their ratios."""
    names = layers()
    weights = [{"parameters": [f"{names[layer]}.weight"], "ratio": ratio} for layer, ratio in WEIGHTS.items()]
    biases = {"parameters": [f"{name}.bias" for name in names[-BIASES:]]}
    return SparsePlan.parse({"name": "published", "update": [*weights, biases]})


@dataclass(frozen=True)
class Counted:
    """What a way to plan the step takes; frozen weights are not counted."""

    arena_bytes: int
    forward_bytes: int
    """The most alive at a call of the forward pass: what inference takes, and what is kept by then."""
    backward_bytes: int
    """The most alive at a call after it."""
    learning_bytes: int
    """The parameters, or slices of them, that learn."""
    way: str
    """The attempt that was planned."""

    @property
    def total_bytes(self) -> int:
        """What is compared."""
        return self.arena_bytes + self.learning_bytes


def counted(plan: SparsePlan, *, last: bool, limited: bool = False) -> Counted:
    """The step planned with each update as early as it can be, or with all of them at the end.

    `limited`: in the way to run it, of those that a limit on memory makes the planner look at, that takes least.
    """
    target = load("raspberry-pi-4")
    forward = run_passes(import_model(mcunet_5fps(), input_shapes={}, batch=1, batch_norm="fold"), FORWARD_PASSES)
    learning = resolve_plan(forward, plan)
    training = derive_training_step(forward, learning, SPEC)
    fusion = fusion_passes(target)
    if last:
        fusion = tuple(step for step in fusion if getattr(step, "func", None) is not fuse_updates)
    train = run_call_passes(lower_both(forward, training)[0], fusion, at_end=False)
    train = schedule(train).subject
    train = updates_last(train) if last else train
    state = state_tensors(forward, training, (train,))
    settings = BuildSettings(plan=plan, spec=SPEC, target=target)
    placed = place_programs((train,), state, [Attempt("as it is", ())], settings)  # frozen weights packed, as in builds
    if limited:
        settings = replace(settings, spec=replace(SPEC, memory_limit_bytes=UNREACHED))
        tried = attempts((train,), forward.batch(), target, settings.threads)
        ways = [place_programs((train,), state, [attempt], settings) for attempt in tried]
        placed = min(ways, key=lambda one: one.memory.arena_bytes)
    sizes = (
        forward.types[value].size_bytes
        // (1 if part.is_whole else forward.types[value].shape[part.axis])
        * (1 if part.is_whole else part.size)
        for value, part in learning.items()
    )
    peaks = _peaks(placed.programs[0], placed.memory)
    return Counted(placed.memory.arena_bytes, *peaks, sum(sizes), placed.attempt)


def _peaks(train: Program, memory: MemoryPlan) -> tuple[int, int]:
    """The most bytes alive at a call of the forward pass, and at one after it."""
    spans = [(life, memory.placements[key].size_bytes) for key, life in memory.live.items()]
    spans += [((at, at), place.size_bytes) for (_, at), place in memory.workspaces.items()]
    alive = [0] * len(train.calls)
    for (first, last), size_bytes in spans:
        for call in range(max(first, 0), min(last, len(alive) - 1) + 1):
            alive[call] += size_bytes
    phases = [call.phase == "forward" for call in train.calls]
    forward = max(size for size, is_forward in zip(alive, phases, strict=True) if is_forward)
    return forward, max(size for size, is_forward in zip(alive, phases, strict=True) if not is_forward)


def updates_last(program: Program) -> Program:
    """The calls that write parameters after all others."""
    updated = set(program.updates)
    writes = [any(name in updated for name in call.outputs) for call in program.calls]
    early = [call for call, writing in zip(program.calls, writes, strict=True) if not writing]
    late = [call for call, writing in zip(program.calls, writes, strict=True) if writing]
    return replace(program, calls=(*early, *late))


def three_ways() -> dict[str, Counted]:
    """Full with updates last, sparse with updates last, sparse with updates early; and full with updates early."""
    full, sparse = SparsePlan.of_preset("full"), published_plan()
    return {
        "full, updates last": counted(full, last=True),
        "full, updates early": counted(full, last=False),
        "sparse, updates last": counted(sparse, last=True),
        "sparse, updates early": counted(sparse, last=False),
        "sparse, updates last, limited": counted(sparse, last=True, limited=True),
        "sparse, updates early, limited": counted(sparse, last=False, limited=True),
    }
