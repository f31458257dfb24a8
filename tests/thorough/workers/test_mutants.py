"""Sixty models of which one field is changed, through a real child; `make fuzz-models` has a thousand."""

from __future__ import annotations

import itertools

import pytest

from tests.compiler.frontend.fields import Mutant
from tests.sample import sample
from tests.workers.mutants import different, endings, models, shown

FAKE = "tests.workers.fake_compiler:compile_training"


@pytest.mark.parametrize("count", sample((18, 60), {"18"}))
def test_a_changed_field_ends_with_a_bundle_or_a_typed_refusal(count: int) -> None:
    chosen = {"mlp": models()["mlp"]}
    found = list(endings(enumerate(itertools.islice(different(2, chosen), count))))
    told = shown(found, 0)
    assert len(found) == count
    assert all(one.is_good for one in found), told
    assert len({(one.message, one.field) for one in found}) == count, "each of another field"
    assert {one.state for one in found} == {"succeeded", "failed"}, told


@pytest.mark.parametrize(
    ("model", "is_good"),
    [("fine", True), ("unsupported", True), ("broken", False), ("crash", False), ("memory", False), ("kill", False)],
)
def test_a_child_that_breaks_or_runs_into_its_limit_is_wrong(model: str, is_good: bool) -> None:
    mutant = Mutant("ModelProto", "graph", "missing", model.encode())
    [ending] = endings([(0, mutant)], compile_function=FAKE, compile_memory_bytes=1 << 30)
    assert ending.is_good is is_good, ending
    assert ("wrong: 0" in shown([ending], 0)) is not is_good
