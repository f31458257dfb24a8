"""`pockfarm.fine_tune` of modules that take positions first, and of language models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pockfarm

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SPEC = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}


class Encoder(nn.Module):
    """Positions first, with a mask that is the same for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, src: Tensor, mask: Tensor) -> Tensor:
        seen = torch.einsum("st,tbf->sbf", torch.softmax(mask, 1), src)
        return self.head(torch.tanh(self.mix(seen)))


def test_a_module_with_positions_first_is_pytorchs() -> None:
    """The mask is left out of the data, and taken of the example; tensors are as the module takes them."""
    torch.manual_seed(4)
    module, places, samples = Encoder(), 5, 6
    src, y = torch.randn(places, samples, 4), torch.randint(0, 3, (places, samples))
    mask = nn.Transformer.generate_square_subsequent_mask(places)
    spec = {**SPEC, "inputs": {"src": {"batch_axis": 1}}}
    tuned = pockfarm.fine_tune(module, (src, mask), (src, y), spec=spec, steps=1)
    own = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(own.parameters(), 0.1)
    torch.nn.functional.cross_entropy(own(src.double(), mask.double()).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(tuned[name].double(), tensor, rtol=1e-5, atol=1e-6)
    assert "fine_tune.same_for_all_assumed" in [one.code for one in tuned.warnings]


def test_a_language_models_labels_are_its_own_input() -> None:
    torch.manual_seed(6)
    module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    tokens = torch.randint(0, 7, (4, 5))
    spec = {**SPEC, "loss": {"kind": "next_token", "labels": "input"}}
    tuned = pockfarm.fine_tune(module, tokens, {"input": tokens}, spec=spec, steps=1)
    own = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(own.parameters(), 0.1)
    torch.nn.functional.cross_entropy(own(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(tuned[name].double(), tensor, rtol=1e-5, atol=1e-6)
