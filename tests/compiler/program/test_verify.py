"""Programs that must not pass between two passes, each broken in one way; the sound one passes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Ref
from compiler.kernels.spec import MapSpec
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program
from compiler.program.verify import find_problem
from tests.compiler.named import all_named, named

SIZE = 32
WHOLE, HALF = TensorType("f32", (SIZE,)), TensorType("f32", (SIZE // 2,))


def call(inputs: str, output: str, tensor: TensorType = WHOLE) -> KernelCall:
    access = Access(tensor, (Affine(((0, 1),)),))
    names = tuple(inputs.split())
    expr: Expr = Const(1.0)
    for operand in range(len(names)):
        expr = Binary("add", expr, Ref(operand))
    spec = MapSpec(tensor.shape, (access,) * len(names), (access,), (expr,))
    return KernelCall(spec, all_named(*names), all_named(output), f"layer of {output}", "forward", 1, 1, 1)


SOUND = Program(
    "train",
    (
        call("x w", "a"),
        call("x", "b"),
        call("b0", "c0", HALF),
        call("b1", "c1", HALF),
        call("c view", "d"),
        call("w d", "w'"),
        call("d a", "e"),
    ),
    dict.fromkeys(all_named("x", "w", "w'", "a", "view", "b", "c", "d", "e"), WHOLE)
    | dict.fromkeys(all_named("b0", "b1", "c0", "c1"), HALF),
    all_named("x"),
    all_named("e"),
    {
        named("view"): Alias(named("b")),
        named("b0"): Alias(named("b")),
        named("b1"): Alias(named("b"), 2 * SIZE),
        named("c0"): Alias(named("c")),
        named("c1"): Alias(named("c"), 2 * SIZE),
        named("e"): Alias(named("d")),
        named("w'"): Alias(named("w")),
    },
    updates=all_named("w'"),
    state=all_named("w"),
    names={named(name): name for name in ("x", "w", "w'", "a", "view", *"bcdef", "b0", "b1", "c0", "c1", "late", "v")},
)
"""Views, a value read and one made in halves, a result written over a dying operand, an update."""


def with_calls(*positions: int) -> Program:
    return replace(SOUND, calls=tuple(SOUND.calls[position] for position in positions))


def with_alias(name: str, alias: Alias) -> Program:
    return replace(SOUND, aliases={**SOUND.aliases, named(name): alias})


def changed(position: int, **fields: object) -> Program:
    calls = list(SOUND.calls)
    calls[position] = replace(calls[position], **fields)  # type: ignore[arg-type]
    return replace(SOUND, calls=tuple(calls))


BROKEN = {
    "order": (with_calls(1, 0, 2, 4, 3, 5, 6), "layer of d reads c before it is made"),
    "maker": (with_calls(1, 2, 3, 4, 5, 6), "reads a before it is made"),
    "half": (with_calls(0, 1, 2, 4, 5, 6), "reads c before it is made"),
    "update first": (with_calls(5, 0, 1, 2, 3, 4, 6), "reads d before it is made"),
    "after the update": (
        replace(SOUND, calls=(*SOUND.calls, call("w", "late")), types={**SOUND.types, named("late"): WHOLE}),
        "layer of late reads w after w' has overwritten it",
    ),
    "overwritten view": (
        replace(
            with_alias("d", Alias(named("view"))),
            calls=(*SOUND.calls, call("b", "late")),
            types={**SOUND.types, named("late"): WHOLE},
        ),
        "reads b after e has overwritten it",
    ),
    "overwritten half": (with_alias("c0", Alias(named("b1"))), "reads b1 after c0 has overwritten it"),
    "overwritten operand": (
        with_calls(0, 1, 2, 3, 4, 6, 5),
        "reads d after e has overwritten it",
    ),
    "twice": (changed(1, outputs=all_named("a")), "makes a, which is there already"),
    "input": (changed(1, outputs=all_named("x")), "makes x, which is there already"),
    "circle": (with_alias("b", Alias(named("view"))), "the storage of view is its own"),
    "bounds": (with_alias("b1", Alias(named("b"), 3 * SIZE)), "b1 ends at byte 160 of b, which has 128"),
    "negative": (with_alias("b1", Alias(named("b"), -1)), "b1 ends at byte 63 of b"),
    "operand": (changed(2, inputs=all_named("b")), "the kernel takes 'b', f32[32], as f32[16]"),
    "operands": (changed(2, inputs=()), "1 inputs and 1 outputs, the call has 0 and 1"),
    "no type": (changed(0, inputs=all_named("x", "v")), "layer of a: v has no type"),
    "no output": (replace(SOUND, outputs=all_named("f")), "nothing makes f, a result"),
    "output not made": (with_calls(0, 1, 2, 3, 4, 6), "nothing makes w', a result"),
    "half overwritten": (
        replace(SOUND, aliases={**SOUND.aliases, named("c0"): Alias(named("b"), SIZE)}),
        "reads b0 while it overwrites part of it",
    ),
}


def test_a_sound_program_passes() -> None:
    assert find_problem(SOUND) == ""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_does_not(name: str) -> None:
    program, problem = BROKEN[name]
    assert problem in find_problem(program)


def test_calls_without_an_order_only_need_to_have_one() -> None:
    """As a fused update leaves them: any order but the right one."""
    whole = (*SOUND.calls[:2], call("b", "c"), *SOUND.calls[4:])
    shuffled = replace(SOUND, calls=whole[::-1], ordered=False)
    assert find_problem(shuffled) == ""
    assert re.search("reads .* before", find_problem(replace(shuffled, ordered=True)))
    types = {**SOUND.types, named("p"): WHOLE, named("q"): WHOLE}
    circle = replace(shuffled, calls=(*whole, call("q", "p"), call("p", "q")), types=types)
    assert "in a circle" in find_problem(circle)
