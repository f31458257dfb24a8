"""Identities of values: what is derived differently differs, the text is short, holds no name and parses back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from compiler.errors import InternalError
from compiler.values import Value, name_of

FRESH = (
    Value(0),
    Value(12),
    Value(12, "loss"),
    Value(12, "labels"),
    Value(12, "hyper", "learning_rate"),
    Value(12, "hyper", "bias_correction_1"),
)


def derived(value: Value) -> Iterator[Value]:
    yield from (value.state("momentum"), value.state("exp_avg_sq"), value.updated(), value.again())
    yield from (value.packed(transposed=False), value.packed(transposed=True))
    yield from (value.part(0, 2), value.part(1, 2), value.part(0, 4), value.term(0, 2), value.term(10, 16))
    yield from (value.strip(0, 2), value.strip(1, 2), value.strip(1, 2, operand=1), value.strip(1, 2, operand=2))


def many() -> list[Value]:
    once = [made for value in FRESH for made in derived(value)]
    twice = [made for value in once for made in derived(value)]
    return [*FRESH, *once, *twice]


def test_derivations_are_deterministic_and_never_coincide() -> None:
    values = many()
    assert len(set(values)) == len(values) == len({str(value) for value in values})
    assert many() == values
    assert all(value.root == value.root.root and value.root in FRESH for value in values)


def test_the_text_parses_back() -> None:
    for value in many():
        assert Value.parse(str(value)) == value
    assert str(Value(3).state("momentum").updated()) == "%3:state.momentum:next"
    assert str(Value(7).again().part(1, 4)) == "%7:again:part[1/4]"


@pytest.mark.parametrize(
    "text",
    ["", "12", "%", "%x", "%1 ", "%1:", "%1:plain", "%1:unheard", "%1:next:labels", "%1:part[1/]", " %1", "%1%2"],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InternalError, match="not a value"):
        Value.parse(text)


def test_people_read_names() -> None:
    w, x = Value(1), Value(2)
    names = {w: "fc.weight", x: "x"}
    readings = {
        w: "fc.weight",
        w.updated(): "fc.weight'",
        w.state("momentum"): "optimizer.momentum.fc.weight",
        w.packed(transposed=False): "fc.weight [packed]",
        w.packed(transposed=True): "fc.weight [packed transposed]",
        x.part(0, 2): "x [1/2]",
        w.term(1, 2): "fc.weight (term 2/2)",
        x.again(): "x (again)",
        x.strip(0, 4): "x (strip 1/4)",
        w.strip(0, 4, operand=1): "fc.weight (operand1 of strip 1/4)",
        x.again().part(1, 2): "x (again) [2/2]",
        Value(9): "%9",
        Value(9).again(): "%9 (again)",
        Value(9, "loss"): "loss",
        Value(9, "labels"): "labels",
        Value(9, "hyper", "learning_rate"): "hyper.learning_rate",
    }
    assert {value: name_of(value, names) for value in readings} == readings


def test_equal_names_do_not_make_equal_values() -> None:
    names = {Value(1): "w", Value(2): "w'", Value(3): "optimizer.momentum.w", Value(4): "labels"}
    values = [*names, Value(1).updated(), Value(1).state("momentum"), Value(5, "labels")]
    assert all(one != other for one, other in itertools.combinations(values, 2))
