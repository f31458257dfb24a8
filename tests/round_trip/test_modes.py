"""Modes are each module's own: what `net.train(); net.bn.eval()` sets apart stays apart in a step.

PyTorch's float64 step of the module with the modes that it has is what must come back.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from unittest import mock

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pockfarm
from tests.round_trip.test_fine_tune import SPEC, assert_like

TRAIN = {**SPEC, "batch_norm": "train", "dropout": "train"}


class Norms(nn.Module):
    """Three norms, one of them behind no layer and one, if so wished, without scale."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.first, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)
        self.inner, self.fc = nn.BatchNorm2d(4, affine=affine, momentum=0.3), nn.Linear(64, 6)
        self.last, self.drop, self.head = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.inner(self.conv(self.first(x))))
        return self.head(self.drop(torch.tanh(self.last(self.fc(y.flatten(1))))))


def norms(affine: bool = True) -> Norms:
    torch.manual_seed(0)
    return Norms(affine).train()


def xy() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 6, 6, generator=generator) * 2 + 1, torch.randint(0, 4, (8,), generator=generator)


def after_a_step_in_its_modes(module: nn.Module, x: Tensor, y: Tensor) -> Mapping[str, Tensor]:
    """PyTorch's own step of SGD, in float64."""
    wide = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(wide.parameters(), 0.1)
    functional.cross_entropy(wide(x.double()), y).backward()
    optimizer.step()
    return wide.state_dict()


def codes(tuned: pockfarm.FineTuned) -> list[str]:
    return [warning.code for warning in tuned.warnings]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("still", [("first", "drop"), ("inner", "last", "drop")], ids=["first", "others"])
def test_norms_in_evaluation_mode_stay_so_beside_others_that_train(still: tuple[str, ...], exporter: str) -> None:
    """Their statistics come back bit for bit, also where the file stores fresh ones of several norms once."""
    module, (x, y) = norms(affine=exporter == "torchscript"), xy()
    for name in still:
        module.get_submodule(name).eval()
    before = {name: part.training for name, part in module.named_modules()}
    failing = mock.patch("pockfarm.fine_tuning.torch_export._by_dynamo", side_effect=RuntimeError("not today"))
    with failing if exporter == "torchscript" else mock.MagicMock():
        tuned = pockfarm.fine_tune(module, x, (x, y), spec=TRAIN, steps=1)
    assert_like(tuned, dict(after_a_step_in_its_modes(module, x, y)))
    for name in still:
        for statistic, buffer in module.get_submodule(name).named_buffers():
            assert torch.equal(tuned[f"{name}.{statistic}"], buffer), statistic
    assert before == {name: part.training for name, part in module.named_modules()}
    assert [part.momentum for part in (module.first, module.inner, module.last)] == [0.1, 0.3, 0.1]
    assert codes(tuned).count("fine_tune.in_evaluation") == 2
    module.load_state_dict(tuned)
    session = onnxruntime.InferenceSession(tuned.onnx, providers=["CPUExecutionProvider"])
    (answered,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.allclose(torch.from_numpy(answered), module.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_spec_decides_where_all_modes_are_alike(training: bool) -> None:
    """A new head in training mode behind what is in evaluation mode tells nothing: it is neither norm nor dropout."""
    module, (x, y) = norms(), xy()
    module.drop.p = 0.0
    module.train(training)
    module.head = nn.Linear(6, 4)
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=TRAIN, steps=1)
    assert_like(tuned, dict(after_a_step_in_its_modes(module.train(), x, y)))
    assert "fine_tune.in_evaluation" not in codes(tuned)


class Dropping(nn.Module):
    """Drops everything but a few: whether it does shows in the loss."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.9, self.training)


@pytest.mark.parametrize("kind", [lambda: nn.Dropout(0.9), Dropping], ids=["module", "function"])
@pytest.mark.parametrize("trains", ["", "1", "3"])
def test_dropouts_in_evaluation_mode_drop_nothing_beside_others_that_do(kind: type[nn.Module], trains: str) -> None:
    """`trains`: the only part in training mode; with the module itself alone, none is left that drops."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 64), kind(), nn.Linear(64, 64), kind(), nn.Linear(64, 3)).eval()
    module.get_submodule(trains).training = True
    x, y = torch.randn(8, 5), torch.randint(0, 3, (8,))
    tiny = {**TRAIN, "optimizer": {"kind": "sgd", "learning_rate": 1e-9}}
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=tiny, steps=40)
    with torch.no_grad():
        losses = torch.tensor([float(functional.cross_entropy(module(x), y)) for _ in range(2000)])
    assert abs(torch.tensor(tuned.losses).mean() - losses.mean()) < 4 * losses.std() / 40**0.5 + 1e-5
    assert (len(set(tuned.losses)) > 20) == bool(trains)
    assert codes(tuned).count("fine_tune.in_evaluation") == 1
