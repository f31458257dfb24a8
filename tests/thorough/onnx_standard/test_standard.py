"""ONNX's own cases: what we compute is what the standard says, and what we do not is refused by name.

`make onnx-standard` prints the table, with the light models and 200 cases in binaries.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.graph import Node
from compiler.ops import OPERATORS
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import NotDifferentiable
from compiler.step import autodiff
from compiler.values import Value
from tests.onnx_standard import gradients
from tests.onnx_standard.binaries import groups, problems
from tests.onnx_standard.binaries import sample as cases_of_operators
from tests.onnx_standard.cases import Standard, standard_cases
from tests.onnx_standard.groups import OUTSIDE, shape_inputs
from tests.onnx_standard.page import PAGE, page
from tests.onnx_standard.run import MOST_LINES, Outcome, run
from tests.sample import sample, some

pytestmark = pytest.mark.xdist_group("onnx-standard")
QUOTA = 0.9
IN_BINARIES = 40
OPSETS_IN_BINARIES = 3
HERE = 4
"""`make test` takes the first case of each operator, and one in so many of all."""
OF_FLOATS = ("Dropout", "OneHot", "Range", "Resize", "Upsample")
"""A depth, a ratio, scales and ends may be floats."""


def cases() -> list[Standard]:
    """All node cases and small models; whole networks are for `make onnx-standard`."""
    return [case for case in standard_cases() if case.op_type != "light"]


@pytest.fixture(scope="module", params=sample({"all": 1, "some": HERE}.items(), {"some"}, itemgetter(0)))
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    _, every = request.param
    first = {case.op_type: case.name for case in reversed(cases())}
    return [run(case) for number, case in enumerate(cases()) if number % every == 0 or case.name == first[case.op_type]]


def test_all_cases_of_the_package_are_there() -> None:
    counts = Counter(case.group for case in cases())
    assert counts.total() >= 2000
    assert counts[""] >= 1300
    assert set(counts) - {"", "other element types"} <= set(OUTSIDE)


def test_nothing_is_wrong_and_nothing_crashes(outcomes: list[Outcome]) -> None:
    bad = [
        f"{outcome.kind} {outcome.case.name}: {outcome.message}"
        for outcome in outcomes
        if outcome.kind in ("wrong", "crashed")
    ]
    assert not bad, "\n".join(bad)


def test_most_of_the_float_cases_pass(outcomes: list[Outcome]) -> None:
    counted = [outcome for outcome in outcomes if not outcome.case.group and not outcome.case.is_expanded]
    assert sum(outcome.kind == "pass" for outcome in counted) >= QUOTA * len(counted)


def test_refusals_are_short_and_name_what_is_refused(outcomes: list[Outcome]) -> None:
    for outcome in some(outcome for outcome in outcomes if outcome.kind == "refused"):
        assert outcome.lines <= MOST_LINES, outcome.message
        assert _names_its_place(outcome), f"{outcome.case.name}: {outcome.message}"


def _names_its_place(outcome: Outcome) -> bool:
    """A node with its operator, an input, an output, a function or the model's opset."""
    where = outcome.message.split(": ")[0]
    node = where.startswith("node ") and any(f"({op})" in where for op in outcome.case.op_types)
    return node or where.startswith(("input ", "output ", "initializer ", "function ", "model"))


def test_gradients_are_the_slopes_of_the_cases(outcomes: list[Outcome]) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for outcome in outcomes:
        if outcome.kind == "pass" and not outcome.case.is_random:
            for name, slope in gradients.slopes(outcome.case).items():
                counts[slope.kind] += outcome.case.group != "other element types"
                wrong += [f"{outcome.case.name}, {name}: {slope.message}"] if slope.kind == gradients.WRONG else []
    assert not wrong, "\n".join(wrong)
    assert counts[gradients.RIGHT] > 1500 * len(outcomes) / len(cases())
    assert counts[gradients.UNDEFINED] < 60


def test_wrong_gradients_and_wrong_values_do_not_go_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in standard_cases() if case.name == "test_tanh")
    tanh = OPERATORS["tanh"]
    assert not isinstance(tanh.grad, NotDifferentiable)
    right = tanh.grad

    def doubled(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        return right(b, node, b.emit("add", d_output, d_output), wanted)

    monkeypatch.setattr(autodiff, "OPERATORS", {**OPERATORS, "tanh": replace(tanh, grad=doubled)})
    assert {slope.kind for slope in gradients.slopes(case).values()} == {gradients.WRONG}
    ((name, wanted),) = case.wanted.items()
    for other in (wanted + 1e-2, wanted[..., :1], wanted.astype(np.float64), np.full_like(wanted, np.nan)):
        assert run(replace(case, wanted={name: other})).kind == "wrong"


def test_cases_in_binaries(tmp_path: Path) -> None:
    """Of the opsets that most cases have: each takes a binary, and a process that builds its kernels."""
    found = sorted(groups(cases_of_operators(IN_BINARIES)), key=len)[-OPSETS_IN_BINARIES:]
    assert sum(map(len, found)) > IN_BINARIES // 2
    for number, group in enumerate(found):
        assert not problems(group, tmp_path / str(number), jobs=1)


def test_a_binary_that_computes_something_else_does_not_go_unnoticed(tmp_path: Path) -> None:
    case = next(case for case in standard_cases() if case.name == "test_argmax_keepdims_random")
    assert not problems([case], tmp_path / "right", jobs=1)
    ((name, wanted),) = case.wanted.items()
    assert problems([replace(case, wanted={name: 1 - wanted})], tmp_path / "wrong", jobs=1).keys() == {case.name}


def test_the_list_of_operators_is_that_of_the_rows() -> None:
    assert PAGE.read_text() == page(), "run `make golden`"


def test_only_whole_numbers_and_scales_are_bound() -> None:
    """An input is a constant to a case where an exporter writes one: shapes, axes, counts; a Resize's scales."""
    for case in some(standard_cases()):
        if case.group or case.is_expanded or case.op_type in OF_FLOATS:
            continue
        for tensor in onnx.load_from_string(case.model).graph.initializer:
            assert not shape_inputs(case.op_type) or tensor.data_type != onnx.TensorProto.FLOAT, case.name
