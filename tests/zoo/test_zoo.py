"""A part of the zoo that shows each mechanism once; `make coverage` measures the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    ("fourier_operator", UNFOLDED),
    ("turing_machine", UNFOLDED),  # slices of nothing
    ("edited_in_place", UNFOLDED),  # masked writes
    ("shared_layers", UNFOLDED),
)
STEPS = (("vector_quantised", UNFOLDED), ("attentive_gru", SPARSE), ("graph_attention", UNFOLDED),
         ("padded_shortcut", UNFOLDED))  # fmt: skip


def test_every_entry_has_a_name_of_its_own() -> None:
    names = [entry.name for entries in FAMILIES.values() for entry in entries]
    assert len(names) == len(set(names)) == len(ENTRIES)


@pytest.mark.parametrize(("name", "trial"), GRADIENTS, ids=lambda value: str(value).replace(" ", "-"))
def test_gradients_are_the_modules(name: str, trial: Trial, kernel_cache: Path) -> None:
    found = measure(ENTRIES[name], trial, kernel_cache, compiled=False)
    assert (found.status, found.why, found.names) == ("right", "", [])


@pytest.mark.parametrize(("name", "trial"), STEPS, ids=lambda value: str(value).replace(" ", "-"))
def test_a_compiled_step_is_the_modules(name: str, trial: Trial, kernel_cache: Path) -> None:
    found = measure(ENTRIES[name], trial, kernel_cache)
    assert (found.status, found.why, found.compared) == ("right", "", "step")
