"""Norms with running statistics, as `pockfarm.fine_tune` takes a module that has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pockfarm
from pockfarm.errors import UsageError
from tests.round_trip.test_fine_tune import SPEC, after_a_step, assert_like


@pytest.mark.parametrize(
    ("norm", "problem"),
    [
        (nn.BatchNorm2d(3, momentum=None), "momentum=None averages"),
        (nn.InstanceNorm2d(3, track_running_stats=True), "InstanceNorm with running statistics"),
    ],
    ids=["cumulative", "instances"],
)
def test_running_statistics_that_a_step_cannot_update_are_refused_before_it_is_built(
    norm: nn.Module, problem: str
) -> None:
    """The file of a cumulative average is that of momentum=0; where statistics stand still, both train as ever."""
    torch.manual_seed(0)
    module = nn.Sequential(norm, nn.Flatten(), nn.Linear(48, 4))
    x, y = torch.randn(4, 3, 4, 4), torch.randint(0, 4, (4,))
    with pytest.raises(UsageError, match=rf"^0: .*{problem}(.|\n)*batch_norm: frozen"):
        pockfarm.fine_tune(module, x, (x, y), spec={**SPEC, "batch_norm": "train"}, steps=1)
    tuned = pockfarm.fine_tune(module, x, (x, y), spec={**SPEC, "batch_norm": "frozen"}, steps=1)
    assert_like(tuned, after_a_step(module, x, y))
