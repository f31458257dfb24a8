"""Reads and renews goldens.

A file `PASS.txt` is a sentence, then `--- before` with a graph or program, then `--- after` and, if there are any,
`--- declined`: these two are written by the pass. A new file needs its sentence and `--- before` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from compiler.call_passes import call_passes
from compiler.codegen.family import stored_panel_width
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES
from compiler.passes import find_problem as problem_of_graph
from compiler.placement.place import pack_weights, plan_packing
from compiler.program.hold_halves import hold_halves
from compiler.program.hold_integers import hold_integers
from compiler.program.multiply_bytes import multiply_bytes
from compiler.program.multiply_halves import multiply_halves
from compiler.program.multiply_on_tensor_cores import multiply_on_tensor_cores
from compiler.program.program import Program, StateTensor
from compiler.program.text import parse_program, program_text
from compiler.program.verify import find_problem as problem_of_program
from compiler.rematerialisation.rewrite import repeat_forward
from compiler.rematerialisation.widened import widen_again
from compiler.rewriting.passes import Pass, PassResult, each_of, name_of
from compiler.rewriting.text import graph_text, parse_graph
from compiler.slicing.flow import Group
from compiler.slicing.rewrite import slice_batch
from compiler.targets import load

FOLDER = Path(__file__).parent
TARGET = load("x86-64-v4")


def pack_frozen(program: Program) -> PassResult[Program]:
    """Packs the state of the program as weights that never change."""
    state = [_frozen(program, value) for value in program.state]
    packing = plan_packing((program,), state, partial(stored_panel_width, target=TARGET, threads=2), may_copy=True)
    return pack_weights(program, packing=packing)


def _frozen(program: Program, value: Any) -> StateTensor:
    tensor = program.types[value]
    return StateTensor(
        value, f"weight {value}", tensor, "parameter", tensor.shape, tensor.shape, tuple(range(len(tensor.shape)))
    )


GRAPH_PASSES: Mapping[str, Pass[Any]] = {name_of(step): step for step in each_of((*FORWARD_PASSES, *TRAINING_PASSES))}
CALL_PASSES: Mapping[str, Pass[Any]] = {name_of(step): step for step in each_of(call_passes(TARGET, direct=True))} | {
    "repeat_forward": partial(repeat_forward, positions={"train": (0, 1)}),
    "slice_batch": partial(slice_batch, groups={"train": (Group(0, 3, 2),)}),
    "pack_weights": pack_frozen,
    "hold_halves": partial(hold_halves, dtype="bf16"),
    "multiply_halves": multiply_halves,
    "multiply_bytes": multiply_bytes,
    "multiply_on_tensor_cores": multiply_on_tensor_cores,
    "hold_integers": lambda program: hold_integers(program, held=program.state[:1]),
    "widen_again": lambda program: widen_again(program, held=program.state[:1]),
}
"""Those that are bound to what was decided for all programs are bound here to what the golden shows."""


def files() -> dict[str, Path]:
    """The goldens by pass."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}


def renewed(name: str, text: str) -> str:
    """The text of a golden with what the pass makes of its first part now."""
    head, before = text.split("--- before\n", 1)
    before = before.split("\n--- after", 1)[0].rstrip("\n") + "\n"
    made, modified, declined = _applied(name, before)
    after = f"--- after\n{made}" if modified else "--- after, unmodified\n"
    reasons = "".join(f"  {one.code} at {one.where}: {one.needs}\n" for one in declined)
    return f"{head}--- before\n{before}\n{after}" + (f"\n--- declined\n{reasons}" if reasons else "")


def _applied(name: str, before: str) -> tuple[str, bool, tuple[Any, ...]]:
    if name in GRAPH_PASSES:
        graph = parse_graph(before, {})
        assert graph_text(graph) == before, f"{name}: the first part is not as a graph is printed"
        assert problem_of_graph(graph) == "", name
        result = GRAPH_PASSES[name](graph)
        assert problem_of_graph(result.subject) == "", name
        return graph_text(result.subject), result.modified, result.declined
    program = parse_program(before)
    assert program_text(program) == before, f"{name}: the first part is not as a program is printed"
    assert problem_of_program(program) == "", name
    result = CALL_PASSES[name](program)
    assert problem_of_program(result.subject) == "", name
    return program_text(result.subject), result.modified, result.declined
