"""Rows that a condition selects at run time: gradients are those of the module in float64, or the model is refused."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.sample import sample
from tests.zoo.entry import Entry, normal
from tests.zoo.measure import Measured, measure
from tests.zoo.trials import TRIALS, Trial

UNFOLDED, OPTIMIZED = TRIALS[0], TRIALS[3]


class Rows(nn.Module):
    """`take` says what is done with what the layers make of rows, and with x."""

    def __init__(self, take: Callable[[Rows, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.norm, self.head, self.take = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4), take

    def forward(self, x: Tensor) -> Tensor:
        return self.take(self, self.layer(x), x)


def _logarithm(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    """Where nothing was selected the logarithm has no value, and must leave no NaN."""
    return own.head(own.norm(x)).sum(-1) + torch.log(h[h > 0]).sum() + (1 / h[h < -0.1]).sum()


def _put_back(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    out, chosen = own.head(x), x[..., 0] > 0
    out[chosen] = own.head(F.softmax(own.norm(h[chosen]), -1))
    return out


def _added(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    sample, place = torch.where(x[..., 0] > 0)
    rows = h[sample, place] * x[sample, place, 1:2]
    return torch.zeros(4, 8).index_add(0, place, rows) + 0 * x


def _none_or_all(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    never, always = x[..., 0] > 100, x[..., 0] < 100
    return own.head(h[never]).sum(0, keepdim=True) + own.head(h[always]).square().sum(0, keepdim=True) + 0 * x[:, 0, :4]


def _mean(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    return h[x[..., 0] > 0].mean(0, keepdim=True) + 0 * x[:, 0]


def _divided(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    rows = h[x[..., 0] > 0]
    return rows.sum(0, keepdim=True) / rows.shape[0] + 0 * x[:, 0]


def _softmax(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    rows = h[x[..., 0] > 0]
    return (torch.softmax(rows, 0) * rows).sum(0, keepdim=True) + 0 * x[:, 0]


def _given(own: Rows, h: Tensor, x: Tensor) -> Tensor:
    return h[x[..., 0] > 0]


def _measured(take: Callable[[Rows, Tensor, Tensor], Tensor], trial: Trial, cache: Path) -> Measured:
    entry = Entry(take.__name__, lambda: Rows(take), {"x": normal(4, 8)}, "mse")
    return measure(entry, trial, cache, compiled=False)


@pytest.mark.parametrize(
    "take", sample([_logarithm, _put_back, _added, _none_or_all], {"_put_back", "_none_or_all"}, attrgetter("__name__"))
)
def test_rows_that_were_not_selected_count_nothing(
    take: Callable[[Rows, Tensor, Tensor], Tensor], kernel_cache: Path
) -> None:
    for trial in (UNFOLDED, OPTIMIZED):
        found = _measured(take, trial, kernel_cache)
        assert (found.status, found.why) == ("right", "")
        assert "model.selected_rows" in found.warnings


@pytest.mark.parametrize("take", [_mean, _divided, _softmax, _given], ids=lambda take: take.__name__)
def test_what_reads_the_number_of_rows_is_refused(
    take: Callable[[Rows, Tensor, Tensor], Tensor], kernel_cache: Path
) -> None:
    found = _measured(take, UNFOLDED, kernel_cache)
    assert found.status == "refused"
    assert "rows" in found.why
    assert len(found.why.splitlines()) <= 3
