"""Distances between points, of which some are equal, as `pockfarm.fine_tune` trains a module that takes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pockfarm
from tests.round_trip.test_fine_tune import SPEC, after_a_step, assert_like


class Prototypes(nn.Module):
    """A class for each point that learns, the likelier the nearer it is."""

    def __init__(self, order: float, classes: int) -> None:
        super().__init__()
        self.order, self.points = order, nn.Parameter(torch.randn(classes, 3))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(x, self.points, p=self.order).mean(1)


@pytest.mark.parametrize(("order", "classes"), [(1.0, 4), (2.0, 30), (3.0, 4), (torch.inf, 4)])
def test_points_that_coincide_pass_no_gradient_and_others_pytorchs(order: float, classes: int) -> None:
    """From 26 points on PyTorch takes Euclidean distances by a product of matrices."""
    torch.manual_seed(0)
    module, x = Prototypes(order, classes), torch.randn(4, 27, 3)
    x[0, 0], x[1, 1] = module.points[1].detach(), module.points[0].detach()
    labels = torch.randint(0, classes, (4,))
    tuned = pockfarm.fine_tune(module, x, (x, labels), spec=SPEC, steps=1)
    assert tuned.warnings == ()
    assert_like(tuned, after_a_step(module, x, labels))
