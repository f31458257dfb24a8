"""The file that `fine_tune` exports is compared with its module before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import pockfarm
from pockfarm.errors import UsageError
from pockfarm.fine_tuning import torch_export
from pockfarm.fine_tuning.comparison import feeds_of
from pockfarm.fine_tuning.model import Input
from tests.round_trip.test_fine_tune import SPEC, after_a_step, assert_like, xy

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Branching(nn.Module):
    """A branch that the example takes, and its opposite does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if float(x.sum()) > 0:
            y = y * 3
        return self.last(y)


def test_a_branch_on_data_that_the_older_exporter_bakes_in_is_refused() -> None:
    torch.manual_seed(0)
    module, (x, y) = Branching(), xy()
    with pytest.raises(UsageError, match=r"of the example with its signs turned(.|\n)*\(Mul\)(.|\n)*torch\.where"):
        pockfarm.fine_tune(module, x.abs(), (x, y), spec=SPEC, steps=1)


class Loss(Branching):
    """Gives its own loss."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


def test_a_model_that_gives_its_loss_is_compared_too() -> None:
    torch.manual_seed(0)
    x, spec = xy()[0].abs(), {**SPEC, "loss": {"kind": "graph"}}
    with pytest.raises(UsageError, match=r"signs turned"):
        pockfarm.fine_tune(Loss(), x, {"x": x}, spec=spec, steps=1)
    tuned = pockfarm.fine_tune(Loss(), torch.zeros_like(x), {"x": x}, spec=spec, steps=1)
    assert np.isfinite(tuned.losses).all()


class BranchingTwice(Branching):
    """Only its second output branches on data."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"first": self.last(self.first(x)), "second": super().forward(x)}


def test_every_output_that_a_loss_reads_is_compared() -> None:
    torch.manual_seed(0)
    module, (x, y) = BranchingTwice(), xy()
    terms = [{"kind": "cross_entropy", "output": name, "labels": name} for name in ("first", "second")]
    data = (x, {"first": y, "second": y})
    with pytest.raises(UsageError, match=r"of the example with its signs turned.*, output 'second' is .* at \["):
        pockfarm.fine_tune(module, x.abs(), data, spec={**SPEC, "loss": {"terms": terms}}, steps=1)
    tuned = pockfarm.fine_tune(module, x.abs(), data, spec={**SPEC, "loss": {"terms": terms[:1]}}, steps=1)
    assert "fine_tune.not_compared" not in {warning.code for warning in tuned.warnings}


def test_a_step_that_rounds_is_compared_by_its_file() -> None:
    torch.manual_seed(0)
    (x, y), spec = xy(), {**SPEC, "precision": {"compute": "bf16"}}
    with pytest.raises(UsageError, match=r"of the example with its signs turned"):
        pockfarm.fine_tune(Branching(), x.abs(), (x, y), spec=spec, steps=1)
    pockfarm.fine_tune(sloped(), x, (x, y), spec=spec, steps=1)


def test_a_step_that_cannot_be_run_beforehand_is_compared_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a farm, where a device would have to be waited for."""
    torch.manual_seed(0)
    x, y = xy()
    monkeypatch.setattr("pockfarm.fine_tuning.local.Here.answers", lambda *_, **__: None)
    with pytest.raises(UsageError, match=r"of the example with its signs turned"):
        pockfarm.fine_tune(Branching(), x.abs(), (x, y), spec=SPEC, steps=1)
    monkeypatch.setattr("compiler.trained.evaluated.MAX_ELEMENTS", x.numel() - 1)
    tuned = pockfarm.fine_tune(Branching(), x.abs(), (x, y), spec=SPEC, steps=1)
    (warning,) = (warning for warning in tuned.warnings if warning.code == "fine_tune.not_compared")
    assert warning.message == "the file's output was not compared with the module: the file or its example is large"


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x[:, None].expand(-1, 4, -1))[0][:, -1])


def sloped() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3))


def pooled() -> nn.Module:
    layers = [nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 2, 1), nn.AvgPool2d(3, 2, 1), nn.Flatten(), nn.Linear(6, 3)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("make", "operator", "attribute", "value", "part"),
    [
        (Recurrent, "GRU", "linear_before_reset", 0, "gru"),
        (sloped, "LeakyRelu", "alpha", 0.25, "1"),
        (pooled, "AveragePool", "count_include_pad", 0, "2"),
    ],
    ids=["gru", "slope", "pool"],
)
def test_a_file_that_computes_something_else_is_refused_with_its_node(
    make: Callable[[], nn.Module], operator: str, attribute: str, value: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch_export.exported

    def changed(module: Any, call: Any, form: Any, path: Path) -> Any:
        written = whole(module, call, form, path)
        proto = onnx.load(path)
        (node,) = (node for node in proto.graph.node if node.op_type == operator)
        others = [entry for entry in node.attribute if entry.name != attribute]
        del node.attribute[:]
        node.attribute.extend([*others, onnx.helper.make_attribute(attribute, value)])
        onnx.save(proto, path)
        return written

    torch.manual_seed(0)
    module, (x, y) = make(), xy()
    assert_like(pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1), dict(after_a_step(module, x, y)))
    monkeypatch.setattr("pockfarm.fine_tuning.torch_module.exported", changed)
    with pytest.raises(UsageError, match=rf"output '.*' is .* at \[.*apart(.|\n)*\({operator}\).*'{part}'"):
        pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)


class Louder(nn.Module):
    """Doubles its output while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x


@pytest.mark.parametrize("spec", [{"dropout": "train"}, {"batch_norm": "train"}], ids=["dropout", "norm"])
def test_what_else_changes_in_training_mode_is_refused(spec: dict[str, str]) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), Louder(), nn.Linear(6, 3)]
    module, (x, y) = nn.Sequential(*layers), xy()
    with pytest.raises(UsageError, match=r"in training mode .* rounding explains(.|\n)*forward\(\) of 3, which"):
        pockfarm.fine_tune(module, x, (x, y), spec={**SPEC, **spec}, steps=1)
    assert_like(
        pockfarm.fine_tune(module, x, (x, y), spec=SPEC | {"batch_norm": "frozen"}, steps=1),
        dict(after_a_step(module, x, y)),
    )
    module[3] = nn.Identity()
    pockfarm.fine_tune(module, x, (x, y), spec={**SPEC, **spec}, steps=1)


class Noisy(nn.Module):
    """Draws in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + 0.01 * torch.randn_like(x))


class Strict(nn.Module):
    """Refuses what is not positive, and is undefined where it gets by: only the example can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and bool((x < 0).any()):
            raise ValueError("only positive numbers")
        return self.last(x.log())


class Logarithm(Strict):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.log())


@pytest.mark.parametrize(
    ("module", "codes"),
    [(Noisy(), ["fine_tune.not_compared"]), (Strict(), []), (Logarithm(), [])],
    ids=["random", "refusing", "undefined"],
)
def test_what_cannot_be_compared_is_trained_all_the_same(module: nn.Module, codes: list[str]) -> None:
    x, y = xy()
    tuned = pockfarm.fine_tune(module, x.abs() + 0.1, (x.abs() + 0.1, y), spec=SPEC, steps=1)
    assert [warning.code for warning in tuned.warnings if warning.code != "fine_tune.old_exporter"] == codes


class Counting(nn.Module):
    """Counts its calls, in a buffer that it changes and in one that it makes anew."""

    calls: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.total = self.total + 1
        return self.last(x)


def test_the_module_keeps_its_buffers() -> None:
    module, (x, y) = Counting(), xy()
    calls = module.calls
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    assert module.calls is calls
    assert float(calls) == 0
    assert module.total.tolist() == [0, 0]
    assert float(tuned["calls"]) == 0
    (warning,) = (warning for warning in tuned.warnings if warning.code == "fine_tune.moving_buffers")
    assert "changes calls, total in evaluation mode" in warning.message


class Remembering(Counting):
    """Gives a buffer that it has just changed: what is compared is what it held then."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += x.sum()
        return self.last(x) + self.calls


def test_an_output_of_a_changed_buffer_is_compared_before_that_is_put_back() -> None:
    module, (x, y) = Remembering(), xy()
    wanted = nn.functional.cross_entropy(nn.functional.linear(x, module.last.weight, module.last.bias) + x.sum(), y)
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    assert tuned.losses[0] == pytest.approx(wanted.item(), rel=1e-5)
    assert float(module.calls) == 0


def test_inputs_are_drawn_within_what_the_example_shows() -> None:
    random = np.random.default_rng(1)
    example: Mapping[str, Any] = {
        "tokens": random.integers(3, 40, (4, 7)),
        "x": random.normal(size=(6, 4)).astype(np.float32),
        "mask": random.random((4, 7)) > 0.5,
        "table": random.normal(size=(5,)).astype(np.float32),
    }
    axes = {"tokens": 0, "x": 1, "mask": 0, "table": None}
    inputs = {name: Input(array.shape, str(array.dtype), batch_axis=axes[name]) for name, array in example.items()}
    first, *others = (feeds for _, feeds in feeds_of(example, inputs))
    assert all(first[name] is example[name] for name in example)
    assert np.array_equal(others[0]["x"], -example["x"][:, ::-1])
    for drawn in others:
        assert {name: (array.shape, array.dtype) for name, array in drawn.items()} == {
            name: (array.shape, array.dtype) for name, array in example.items()
        }
        assert 3 <= drawn["tokens"].min() <= drawn["tokens"].max() < 40
        assert not np.array_equal(np.sign(drawn["x"]), np.sign(example["x"]))
        assert np.array_equal(drawn["table"], example["table"])
