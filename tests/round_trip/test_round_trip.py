"""A third of the models that make the round trip; `make round-trip` takes them all (`tests/round_trip/__main__.py`)."""

from __future__ import annotations

import pytest

from tests.round_trip.__main__ import all_models
from tests.round_trip.check import travel
from tests.sample import sample

pytestmark = [
    # PyTorch's exporter, and what it calls
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
HERE = (
    "norms fold",
    "norms frozen",
    "norms train",
    "transposed fold",
    "nn.TransformerEncoder",
    "resnet18",
    "vit",
    "albert",
    "gpt2",
    "alibi",
    "edited_in_place",
)
KEPT = {"norms fold", "norms train", "edited_in_place"}
"""Each way with norms, and what an exporter must not see."""


@pytest.mark.parametrize("name", sample(HERE, KEPT))
def test_a_module_comes_home(name: str) -> None:
    trip = travel(all_models()[name]())[1]
    assert trip.problems == []
    assert trip.trained > 0
