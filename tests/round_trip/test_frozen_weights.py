"""Fine-tuning beside frozen weights in eight or four bits: learning sees rounded ones, the author has his own back."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

import pockfarm
from tests.compiler.agreement.adapters import SmallCnn
from tests.models import randomize_norms

RATE = 0.1
SPEC = {"optimizer": {"kind": "sgd", "learning_rate": RATE}, "precision": {"frozen": "int8"}}


class Tied(nn.Module):
    """A table that is looked up, and the weight of the head; what learns is between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, 60, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))).mean(1))


def rounded(weight: Tensor) -> Tensor:
    """The nearest whole numbers of 127ths of the largest of each row, times those."""
    array = weight.detach().numpy()
    step = np.abs(array).max(1, keepdims=True) / np.float32(127)
    return torch.from_numpy(np.rint(array / step).astype(np.int8) * step)


def test_what_learns_learns_beside_rounded_weights() -> None:
    torch.manual_seed(0)
    module, tokens, labels = Tied(), torch.randint(0, 60, (4, 6)), torch.randint(0, 60, (4,))
    plan = {"update": [{"parameters": ["mix.*"]}]}
    tuned = pockfarm.fine_tune(module, (tokens,), (tokens, labels), plan=plan, spec=SPEC, steps=1)
    assert [one.code for one in tuned.warnings] == ["precision.rounded"]
    own = copy.deepcopy(module).double()
    own.embed.weight.data = rounded(module.embed.weight).double()
    nn.functional.cross_entropy(own(tokens), labels).backward()
    for name in ("weight", "bias"):
        before, after = getattr(module.mix, name), tuned[f"mix.{name}"]
        wanted = -RATE * getattr(own.mix, name).grad
        moved = (after.detach() - before.detach()).double()
        assert float((moved - wanted).norm()) < 1e-4 * float(wanted.norm())
    assert torch.equal(tuned["embed.weight"], module.embed.weight), "the author's own table comes back"


def test_a_weight_with_a_folded_norm_comes_back_as_it_was() -> None:
    torch.manual_seed(1)
    module = SmallCnn()
    module.body, module.norm3, module.classifier = nn.Conv2d(12, 40, 3, padding=1), nn.BatchNorm2d(40), nn.Linear(40, 4)
    randomize_norms(module)
    x, y = torch.randn(4, 3, 12, 12), torch.randint(0, 4, (4,))
    tuned = pockfarm.fine_tune(module.eval(), (x,), (x, y), plan="bias-only", spec=SPEC, steps=2)
    rounded_one = next(one for one in tuned.warnings if one.code == "precision.rounded")
    assert "1 of 8 parameters" in rounded_one.message
    assert "body.weight" in rounded_one.message
    own = module.state_dict()
    changed = {name for name, after in tuned.items() if not torch.equal(own[name], after)}
    assert changed == {"norm1.bias", "norm2.bias", "norm3.bias", "classifier.bias"}


class Widths(nn.Module):
    """A table, a layer of three groups of inputs, one of an odd number of channels, one whose inputs make no group."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(60, 192), nn.Linear(192, 128)
        self.odd, self.head = nn.Linear(128, 61), nn.Linear(61, 60)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.odd(torch.tanh(self.mix(self.embed(tokens).mean(1))))))


def rounded_in_groups(weight: Tensor) -> Tensor:
    """The nearest whole numbers of sevenths of the largest of 64 inputs, times those."""
    rows = weight.detach().numpy().reshape(-1, 64)
    step = np.abs(rows).max(1, keepdims=True) / np.float32(7)
    return torch.from_numpy((np.rint(rows / step) * step).reshape(weight.shape))


def test_linear_layers_have_four_bits_and_others_eight() -> None:
    torch.manual_seed(2)
    module, tokens, labels = Widths(), torch.randint(0, 60, (4, 6)), torch.randint(0, 60, (4,))
    spec = SPEC | {"precision": {"frozen": "int4"}}
    tuned = pockfarm.fine_tune(module, (tokens,), (tokens, labels), plan="bias-only", spec=spec, steps=1)
    message_by_code = {warning.code: warning.message for warning in tuned.warnings}
    assert message_by_code.keys() == {"precision.rounded", "precision.in_eight_bits"}
    assert "3 frozen weights" in message_by_code["precision.in_eight_bits"]
    assert "head.weight (its 61 inputs " in message_by_code["precision.in_eight_bits"]
    assert "odd.weight (its 61 channels " in message_by_code["precision.in_eight_bits"]
    reference = copy.deepcopy(module).double()
    for name in ("embed.weight", "odd.weight", "head.weight"):
        reference.get_parameter(name).data = rounded(module.get_parameter(name)).double()
    reference.mix.weight.data = rounded_in_groups(module.mix.weight).double()
    nn.functional.cross_entropy(reference(tokens), labels).backward()
    for name in ("mix.bias", "odd.bias", "head.bias"):
        wanted = -RATE * reference.get_parameter(name).grad
        moved = (tuned[name].detach() - module.get_parameter(name).detach()).double()
        assert float((moved - wanted).norm()) < 1e-4 * float(wanted.norm()), name
    assert torch.equal(tuned["mix.weight"], module.mix.weight), "the author's own weights come back"
