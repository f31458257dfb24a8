"""The page of what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.zoo.measure import Measured
from tests.zoo.page import TRIP, page_of, read
from tests.zoo.trips import Travelled

RIGHT = Measured(
    "lstm", "unfolded", 18, "full", "right", compared="step", arena_bytes=12_000, compile_s=3.25, kernels=7
)
REFUSED = Measured("lstm", "dynamo", 18, "full", "refused", "Foo is not supported [model.unsupported]")
HOME = Travelled("lstm", "home", "", board=1e-7, runtime=2e-7, update=3e-4)
LOST = Travelled("gru", "wrong", "weight is missing")


@pytest.fixture
def text(tmp_path: Path) -> str:
    """The page of two trials and two round trips."""
    for name, one in (("a.json", RIGHT), ("b.json", REFUSED), (f"lstm{TRIP}", HOME), (f"gru{TRIP}", LOST)):
        (tmp_path / name).write_text(json.dumps(one.to_json()))
    return page_of(read(tmp_path))


def test_a_row_tells_of_each_trial_the_round_trip_and_the_sizes(text: str) -> None:
    assert "| lstm | step | refused | home | 12 | 0 | 7 | 3.2 |" in text
    assert "| gru |  |  | **wrong** |  |  |  |  |" in text


def test_totals_count_what_came_home(text: str) -> None:
    assert "1 of 2 came home" in text
    assert "logits 1.0e-07, ONNX Runtime's 2.0e-07" in text
    assert "| dynamo 18 full | 1 | 1 | 0 | 0 | 0 |" in text


def test_reasons_name_model_and_trial(text: str) -> None:
    assert "- lstm (dynamo 18): Foo is not supported [model.unsupported]" in text
    assert "- gru (round trip): weight is missing" in text
