"""Import rows of the family: recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compiler.graph import Array
from tests.compiler.frontend.cases.case import Case, F, floats

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS, WIDTH = 3, 4
Operand = tuple[str, tuple[int, ...]] | Array | None


def operands(op_type: str, directions: int = 1, *, steps: int = 5, batch: int = 2, bias: bool = True) -> list[Operand]:
    """X at run time, then W, R and perhaps B."""
    rows = _GATES[op_type] * WIDTH
    found: list[Operand] = [
        (F, (steps, batch, INPUTS)),
        floats(directions, rows, INPUTS),
        floats(directions, rows, WIDTH, seed=8),
    ]
    return [*found, floats(directions, 2 * rows, seed=9)] if bias else found


def _outputs(op_type: str) -> int:
    return 3 if op_type == "LSTM" else 2


def _case(op_type: str, label: str, inputs: list[Operand], **attributes: object) -> Case:
    plain = {"hidden_size": WIDTH} | ({"linear_before_reset": 1} if op_type == "GRU" else {})
    return Case(op_type, tuple(inputs), {**plain, **attributes}, _outputs(op_type), label=label, integers=4)


def cases() -> Iterator[Case]:
    """The first axis of a run-time input is the batch to the import: steps, directions or samples here."""
    for op_type in _GATES:
        yield _case(op_type, "", operands(op_type))
        yield _case(op_type, "no-bias-reverse", operands(op_type, bias=False), direction="reverse")
        states: list[Operand] = [(F, (2, 3, WIDTH))] * (_outputs(op_type) - 1)
        both = [*operands(op_type, 2, steps=2, batch=3), None, *states]
        yield _case(op_type, "bidirectional-from-states", both, direction="bidirectional")
        yield _case(op_type, "known-start", [*operands(op_type), None, floats(1, 2, WIDTH, seed=4)])
        for direction, count in (("forward", 1), ("bidirectional", 2)):
            known = [*operands(op_type, count), np.asarray([3, 5], np.int32)]
            yield _case(op_type, f"shorter-{direction}", known, direction=direction)
            asked: list[Operand] = [*operands(op_type, count, steps=4, batch=4), ("i32", (4,))]
            yield _case(op_type, f"asked-{direction}", asked, direction=direction)
    relu = {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}
    yield _case("RNN", "relu-and-tanh", operands("RNN", 2), **relu)
    yield from _unrolled()


def _unrolled() -> Iterator[Case]:
    """Cells that are not the plain ones."""
    peepholes = floats(2, 3 * WIDTH, seed=5)
    both = [*operands("LSTM", 2), None, floats(2, 2, WIDTH, seed=4), floats(2, 2, WIDTH, seed=6), peepholes]
    yield _case("LSTM", "peepholes", both, direction="bidirectional")
    yield _case("LSTM", "clip", operands("LSTM"), clip=0.4)
    coupled = [*operands("LSTM"), np.asarray([3, 5], np.int32)]
    yield _case("LSTM", "input-forget-shorter", coupled, input_forget=1)
    several = ["HardSigmoid", "Affine", "ScaledTanh"]
    numbers = {"activation_alpha": [0.3, 0.7, 0.9], "activation_beta": [0.4, 0.1, 0.6]}
    yield _case("LSTM", "activations", operands("LSTM"), activations=several, **numbers)
    yield _case("GRU", "reset-before", operands("GRU", 2), linear_before_reset=0, direction="bidirectional")
    short = [*operands("GRU", bias=False), None, None, floats(1, 2, WIDTH, seed=4)]
    yield _case("GRU", "reset-before-reverse", short, linear_before_reset=0, direction="reverse")
    yield _case("GRU", "clip", operands("GRU"), clip=0.5, activations=["Softsign", "LeakyRelu"])
    bent = {"activations": ["Elu"], "activation_alpha": [0.5]}
    yield _case("RNN", "elu", operands("RNN"), **bent)
