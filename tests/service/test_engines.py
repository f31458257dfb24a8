"""Runs by the engine that ran them."""

from __future__ import annotations

import pytest

from compiler import targets
from service.base.problems import Invalid
from service.work.runs.engines import ENGINES, engine_of
from service.work.runs.filter import RunFilter


def test_every_kind_of_target_is_an_engine() -> None:
    assert set(ENGINES) == set(targets.KINDS)
    assert {name: engine_of(name) for name in targets.names()} == {
        name: targets.load(name).engine for name in targets.names()
    }


def test_an_engine_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid, match="engine"):
        RunFilter(engine="vulkan")
