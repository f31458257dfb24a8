"""A part of the zoo that shows each mechanism once; `make coverage` measures the whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.sample import sample
from tests.zoo.catalogue import ENTRIES, FAMILIES
from tests.zoo.measure import measure
from tests.zoo.trials import TRIALS, Trial

UNFOLDED, SPARSE, *_ = TRIALS
FOLDED = Trial("dynamo", 18, "full")
TORCHSCRIPT = Trial("torchscript", 18, "full")

GRADIENTS = (
    ("attentive_gru", UNFOLDED),  # GRU, masks, a padding row that does not learn
    ("lstm_two_directions", UNFOLDED),
    ("vector_quantised", UNFOLDED),  # detach()
    ("nn_transformer", UNFOLDED),
    ("nn_transformer", FOLDED),  # equal biases stored once, one of them read by a node that tells of no call
    ("unet_interpolating", UNFOLDED),  # resizing, norms, concatenation
    ("conformer", SPARSE),
    ("capsules", UNFOLDED),  # einsum, routing
    ("kan", UNFOLDED),
    ("top_experts", UNFOLDED),
    ("message_passing", UNFOLDED),
    ("weight_norm", UNFOLDED),  # parametrizations
    ("rotary", FOLDED),
    ("ds_cnn", FOLDED),  # norms that the exporter folds
    ("style_transfer", UNFOLDED),
    ("dlrm", UNFOLDED),
    ("lstm_cell", TORCHSCRIPT),
    ("big_transfer", UNFOLDED),  # weights with a norm of their own
    ("fourier_operator", UNFOLDED),
    ("turing_machine", UNFOLDED),  # slices of nothing
    ("edited_in_place", UNFOLDED),  # masked writes
    ("shared_layers", UNFOLDED),
)
KEPT = {
    "attentive_gru-unfolded-18-full",
    "vector_quantised-unfolded-18-full",
    "nn_transformer-dynamo-18-full",
    "conformer-unfolded-18-sparse",
    "capsules-unfolded-18-full",
    "weight_norm-unfolded-18-full",
    "ds_cnn-dynamo-18-full",
    "lstm_cell-torchscript-18-full",
    "edited_in_place-unfolded-18-full",
}
STEPS = (
    ("vector_quantised", UNFOLDED),
    ("attentive_gru", SPARSE),
    ("graph_attention", UNFOLDED),
    ("padded_shortcut", UNFOLDED),
)


def test_every_entry_has_a_name_of_its_own() -> None:
    names = [entry.name for entries in FAMILIES.values() for entry in entries]
    assert len(names) == len(set(names)) == len(ENTRIES)


def _named(cases: Iterable[tuple[str, Trial]]) -> list[Any]:
    return [pytest.param(name, trial, id=f"{name}-{trial}".replace(" ", "-")) for name, trial in cases]


@pytest.mark.parametrize(("name", "trial"), sample(_named(GRADIENTS), KEPT))
def test_gradients_are_the_modules(name: str, trial: Trial, kernel_cache: Path) -> None:
    found = measure(ENTRIES[name], trial, kernel_cache, compiled=False)
    assert (found.status, found.why, found.names) == ("right", "", [])


@pytest.mark.parametrize(("name", "trial"), sample(_named(STEPS), {"attentive_gru-unfolded-18-sparse"}))
def test_a_compiled_step_is_the_modules(name: str, trial: Trial, kernel_cache: Path) -> None:
    found = measure(ENTRIES[name], trial, kernel_cache)
    assert (found.status, found.why, found.compared) == ("right", "", "step")
