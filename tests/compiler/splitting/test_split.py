"""A program split by hidden channels means what the whole one means, on exactly the planned bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from compiler.call_passes import call_passes
from compiler.frontend.importer import import_model
from compiler.graph import Array
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step, make_programs
from compiler.program.memory import plan_memory
from compiler.program.program import Program, StateTensor
from compiler.program.verify import find_problem
from compiler.rematerialisation.candidates import repeatable
from compiler.rematerialisation.rewrite import repeat_calls
from compiler.slicing.flow import Group
from compiler.slicing.rewrite import slice_program
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.splitting.chains import find_chains
from compiler.splitting.rewrite import Split, split_chains
from compiler.step.plan import resolve_plan
from compiler.targets import load
from compiler.values import Value
from examples.models import MODELS
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.compiler.program_interpreter import Machine
from tests.compiler.slicing.test_rewrite import feeds_of
from tests.sample import sample, thinned

PASSES = call_passes(load("x86-64-v4"))
SPEC = TrainingSpec.parse({"batch": 2, "optimizer": {"kind": "sgd", "momentum": 0.9}})
LAST = SparsePlan.parse("{update: [{parameters: ['head.weight']}]}")
CASES = {
    "mcunet": ("mcunet", {"resolution": 32}, "last-layer"),
    "mcunet-bias": ("mcunet", {"resolution": 32}, "bias-only"),
    "encoder": ("transformer_encoder", {"tokens": 11, "positions": 8, "width": 16, "heads": 2}, "last-layer"),
}
Results = dict[object, np.ndarray]


def bottlenecks(seed: int) -> bytes:
    """Random blocks: expand (1x1 or 3x3), activation, depth-wise or not, project; the input added where it fits."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    stored: dict[str, np.ndarray] = {}
    nodes, x, channels = [], "x", 6

    def conv(x: str, name: str, shape: tuple[int, ...], **attributes: object) -> str:
        stored[f"{name}.weight"] = rng.normal(size=shape).astype(np.float32) * 0.3
        stored[f"{name}.bias"] = rng.normal(size=shape[:1]).astype(np.float32)
        nodes.append(node("Conv", [x, f"{name}.weight", f"{name}.bias"], [name], **attributes))
        return name

    def active(x: str) -> str:
        nodes.append(node(draw.choice(("Relu", "HardSwish", "Sigmoid", "Erf", "Softplus")), [x], [f"{x}.active"]))
        return f"{x}.active"

    for block in range(3):
        wide, kernel, stride = 8 * draw.randint(1, 5), draw.choice((1, 1, 3)), draw.choice((1, 2))
        y = conv(x, f"expand{block}", (wide, channels, kernel, kernel), pads=[kernel // 2] * 4)
        y = active(y)
        if draw.random() < 0.7:
            size = draw.choice((3, 5))
            y = conv(
                y, f"depthwise{block}", (wide, 1, size, size), pads=[size // 2] * 4, strides=[stride] * 2, group=wide
            )
            y = active(y) if draw.random() < 0.7 else y
        else:
            stride = 1
        outputs = draw.choice((channels, 5, 12))
        y = conv(y, f"project{block}", (outputs, wide, 1, 1))
        if stride == 1 and outputs == channels:
            nodes.append(node("Add", [x, y], [f"sum{block}"]))
            y = f"sum{block}"
        x, channels = y, outputs
    stored["head.weight"] = rng.normal(size=(channels, 4)).astype(np.float32)
    nodes.append(node("ReduceMean", [x], ["pooled"], axes=[2, 3], keepdims=0))
    nodes.append(node("MatMul", ["pooled", "head.weight"], ["y"]))
    return model_of(nodes, {"x": ("f32", ("batch", 6, 9, 8))}, initializers=stored, opset=17)


def programs_of(
    model: bytes, plan: SparsePlan
) -> tuple[tuple[Program, ...], Sequence[StateTensor], Mapping[Value, Array]]:
    """Train and forward program as they are scheduled, their state, and what it starts from."""
    forward = run_passes(import_model(model, input_shapes={}, batch=SPEC.batch, batch_norm="fold"), FORWARD_PASSES)
    training = derive_training_step(forward, resolve_plan(forward, plan), SPEC)
    programs, state = make_programs(forward, training, PASSES)
    return programs, state, {**forward.arrays, **training.graph.arrays}


def results(programs: tuple[Program, ...], state: Sequence[StateTensor], arrays: Mapping[Value, Array]) -> Results:
    """What programs give, and leave in their state, on the planned bytes."""
    for program in programs:
        assert not find_problem(program)
    placed, memory = plan_memory(programs, state, lambda call: 192)
    machine = Machine(memory, state, arrays)
    machine.load_state(placed[0])
    found: Results = {("infer", key): array for key, array in machine.run(placed[1], feeds_of(placed[1])).items()}
    made = machine.run(placed[0], feeds_of(placed[0]))
    left: Results = {one.value: machine.view(placed[0], one.value).copy() for one in state}
    left.update((key, array) for key, array in made.items())
    return {**found, **left}


def random_splits(program: Program, draw: random.Random) -> Iterator[Split]:
    """Disjoint chains, each in a random number of strips that divides its channels."""
    used: set[int] = set()
    chains = list(find_chains(program))
    for chain in draw.sample(chains, len(chains)):
        counts = [strips for strips in (2, 3, 4, 5, 8) if chain.channels % strips == 0]
        if counts and used.isdisjoint(chain.positions):
            used.update(chain.positions)
            yield Split(chain, draw.choice(counts))


def agree(found: Results, wanted: Results, what: str) -> None:
    for key, want in wanted.items():
        scale = max(1e-3, float(np.abs(want).max()))
        np.testing.assert_allclose(found[key], want, rtol=1e-4, atol=1e-5 * scale, err_msg=f"{key}, {what}")


@pytest.mark.parametrize("seed", thinned(range(12), 4))
def test_any_split_of_random_bottlenecks_keeps_the_meaning(seed: int) -> None:
    programs, state, arrays = programs_of(bottlenecks(seed), LAST)
    wanted, draw = results(programs, state, arrays), random.Random(seed)
    for turn in range(3):
        splits = [list(random_splits(program, draw)) for program in programs]
        assert all(splits)
        found = results(tuple(map(split_chains, programs, splits)), state, arrays)
        agree(found, wanted, f"seed {seed}, turn {turn}")


@pytest.mark.parametrize("case", sample(sorted(CASES), ["encoder"]))
def test_any_split_keeps_the_meaning_beside_slices_and_repeats(case: str) -> None:
    name, options, plan = CASES[case]
    programs, state, arrays = programs_of(MODELS[name](**options), SparsePlan.parse(plan))
    wanted, draw = results(programs, state, arrays), random.Random(1)
    train, forward = programs
    repeated = repeat_calls(train, repeatable(train))
    sliced = [slice_program(one, [Group(0, len(one.calls) // 2, 2)]) for one in (repeated, forward)]
    for turn, ways in enumerate((programs, (repeated, forward), tuple(sliced))):
        splits = [list(random_splits(program, draw)) for program in ways]
        assert all(splits)
        found = results(tuple(map(split_chains, ways, splits)), state, arrays)
        agree(found, wanted, f"turn {turn}")


def test_what_is_kept_for_the_backward_pass_ends_no_chain() -> None:
    name, options, _ = CASES["mcunet"]
    (full, forward), _, _ = programs_of(MODELS[name](**options), SparsePlan.of_preset("full"))
    assert len(find_chains(forward)) >= 10
    assert not [chain for chain in find_chains(full) if full.calls[chain.last].phase == "forward"]


def test_strips_are_never_in_memory_all_at_once() -> None:
    programs, state, _ = programs_of(bottlenecks(0), LAST)
    chains = find_chains(programs[0])
    widest = max(chains, key=lambda chain: chain.channels)
    split = split_chains(programs[0], [Split(widest, 4)])
    hidden = {programs[0].calls[position].outputs[0] for position in widest.positions[:-1]}
    strips = {value for value in split.types if value.role == "strip" and value.of in hidden and not value.kind}
    assert len(strips) == 4 * len(hidden)
    assert all(4 * split.types[value].size == programs[0].types[value.of].size for value in strips if value.of)
    (placed,), memory = plan_memory((split,), state, lambda call: 0)
    lives = [memory.live["train", root] for root in {placed.root(value) for value in strips}]
    alive = [sum(first <= position <= last for first, last in lives) for position in range(len(split.calls))]
    assert 1 <= max(alive) <= 2
