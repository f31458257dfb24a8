"""Parameters that no gradient reaches stay as they are, as in PyTorch, and a warning says which."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.round_trip.brought import Brought
from tests.round_trip.check import travel


class Outputs(NamedTuple):
    """What the loss reads, and what it does not."""

    logits: Tensor
    pooled: Tensor


class Gated(nn.Module):
    """A threshold that is only compared with, a second output that no loss reads, a target without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.threshold, self.pooler, self.target = nn.Parameter(torch.tensor(0.1)), nn.Linear(8, 8), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Outputs:
        y = self.layer(x)
        y = torch.where(y > self.threshold, y, 0.5 * y) + self.target(x).detach()
        return Outputs(self.head(y), torch.tanh(self.pooler(y)))


def test_what_no_gradient_reaches_stays() -> None:
    torch.manual_seed(6)
    tuned, trip = travel(Brought("gated", Gated().eval(), (torch.randn(4, 6),), torch.randint(0, 4, (4,)), "logits"))
    assert trip.problems == []
    assert sorted(tuned.changed) == ["head.bias", "head.weight", "layer.bias", "layer.weight"]
    told = {warning.code: warning.message for warning in tuned.warnings}
    assert "threshold" in told["plan.no_gradient"]
