"""Labels of kernel calls: what they say follows from a call's fields and from nothing in its names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.program.program import KernelCall
from compiler.program.state import label_of
from tests.compiler.tiny_images import SPECS

CALL = KernelCall(SPECS["linear"], (), (), "conv1", "forward", 1, 1, 1)
GRADIENT = replace(CALL, phase="backward", parameter="conv1.weight")


@pytest.mark.parametrize(
    ("call", "label"),
    [
        (CALL, "conv1"),
        (replace(CALL, parts=4, part=1), "conv1 [2/4]"),
        (replace(CALL, phase="backward", again=True), "conv1 (again)"),
        (replace(CALL, phase="backward", again=True, parts=2), "conv1 (again) [1/2]"),
        (replace(CALL, phase="backward"), "d conv1"),
        (GRADIENT, "d conv1.weight"),
        (replace(GRADIENT, updates=True), "d conv1.weight and update"),
        (replace(GRADIENT, sum_of=8), "d conv1.weight [sum of 8]"),
        (replace(GRADIENT, phase="update"), "update conv1.weight"),
    ],
)
def test_a_label_says_what_the_call_does(call: KernelCall, label: str) -> None:
    assert label_of(call) == label


@pytest.mark.parametrize("name", ["update ", "d update w", "x (again)", "x [1/2]", "w and update", "update update"])
def test_a_name_that_looks_like_a_label_stays_whole(name: str) -> None:
    assert label_of(replace(CALL, layer=name)) == name
    assert label_of(replace(GRADIENT, parameter=name)) == f"d {name}"
    assert label_of(replace(GRADIENT, parameter=name, phase="update")) == f"update {name}"
