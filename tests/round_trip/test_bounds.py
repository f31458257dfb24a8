"""Slopes on bounds: by file 0, as ReLU6's; by `fine_tune` those of the module's own PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pockfarm
from compiler.frontend.file.torch_record import CLAMPS
from compiler.frontend.file.torch_record import SLOPE_INSIDE as READ
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.spec.documents import LossSpec, SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from pockfarm.fine_tuning.torch_bounds import SLOPE_INSIDE, slopes_inside
from pockfarm.fine_tuning.torch_export import Call, Form, exported
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.passes.gradients import with_gradients
from tests.models import Exporter, export
from tests.round_trip.test_fine_tune import SPEC, after_a_step, assert_like
from tests.sample import crossed, sample

Function = Callable[[Tensor, Tensor], Tensor]
STARTS = (-0.5, 0.0, 0.5, 1.0, 1.5)
"""Below, on, between, on and above bounds of 0 and 1."""
WEIGHTS = torch.tensor([5.0, 1.0, 2.0, 3.0, 7.0])
EDGES = (0.0, 0.0, 0.0, 1.0, 1.0)
"""Bounds that learn; the one below is met at the second place, and that above at the fourth."""


def several(number: float) -> Tensor:
    return torch.full((5,), number)


NUMBERS: dict[str, Function] = {
    "clamp": lambda x, edge: x.clamp(0, 1),
    "clamp of floats": lambda x, edge: x.clamp(0.0, 1.0),
    "clamp from": lambda x, edge: x.clamp(min=0),
    "clamp to": lambda x, edge: x.clamp(max=1.0),
    "clamp_min": lambda x, edge: torch.clamp_min(x, 0.0),
    "clamp_max": lambda x, edge: torch.clamp_max(x, 1),
    "clip in place": lambda x, edge: (x * 1).clip_(0, 1),
    "crossed": lambda x, edge: x.clamp(1.0, 0.0),
}
TENSORS: dict[str, Function] = {
    "clamp of tensors": lambda x, edge: torch.clamp(x, several(0.0).to(x), several(1.0).to(x)),
    "clamp from what learns": lambda x, edge: torch.clamp(x, min=edge),
    "clamp to what learns": lambda x, edge: torch.clamp(x, max=edge),
    "clamp between what learns": lambda x, edge: torch.clamp(x, edge, edge + 1),
    "clamp_min of one that learns": lambda x, edge: torch.clamp_min(x, edge[1]),
    "clamp_max of what learns": lambda x, edge: torch.clamp_max(x, edge),
}
OTHERS: dict[str, Function] = {
    "relu": lambda x, edge: F.relu(x),
    "relu6": lambda x, edge: F.relu6(x * 6),
    "hardtanh": lambda x, edge: F.hardtanh(x, 0.0, 1.0),
    "hardsigmoid": lambda x, edge: F.hardsigmoid(x * 6 - 3),
    "hardswish": lambda x, edge: F.hardswish(x * 6 - 3),
    "threshold": lambda x, edge: F.threshold(x, 0.0, 0.0),
    "maximum": lambda x, edge: torch.maximum(x, edge),
    "minimum of tensors": lambda x, edge: torch.minimum(x, several(1.0).to(x)),
}


class Bounded(nn.Module):
    """A function of parameters on bounds and beside them, by the side of what is read."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.w, self.edge = nn.Parameter(torch.tensor(STARTS)), nn.Parameter(torch.tensor(EDGES))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return x + self.function(self.w + 0 * x, self.edge)  # no exporter can fold it


def by_torch(function: Function) -> dict[str, np.ndarray]:
    """The gradients of the sum of squares of what it gives, in float64."""
    module = Bounded(function).double()
    y = module(WEIGHTS.double()[None])
    (y * y).sum().backward()
    return {name: tensor.grad.numpy() for name, tensor in module.named_parameters() if tensor.grad is not None}


def by_us(function: Function, exporter: str) -> dict[str, np.ndarray]:
    """The same of the file that one of PyTorch's exporters writes, or of what `fine_tune` brings."""
    module, x = Bounded(function).eval(), WEIGHTS[None]
    with TemporaryDirectory() as folder:
        if exporter == "fine_tune":
            exported(module, Call((x,), {}), Form(), Path(folder) / "model.onnx")
            model = (Path(folder) / "model.onnx").read_bytes()
        else:
            model = export(module, (x,), exporter=exporter, dynamic_batch=False)  # type: ignore[arg-type]
    graph = run_passes(imported(model, batch=1), FORWARD_PASSES)
    training = with_gradients(graph, graph.parameters)
    values = evaluate_graph(training, {graph.data_inputs()[0]: x.double().numpy()})
    names = map(graph.name_of, graph.parameters)
    return {name: values[value] for name, value in zip(names, training.outputs[1:], strict=True)}


ENDS = {"clamp from": (1,), "clamp_min": (1,), "clamp to": (3,), "clamp_max": (3,)}
"""Which of `STARTS` lie on a bound, where it is not both."""
BY_FILE = {
    "clamp-dynamo-unoptimized",
    "clamp-torchscript",
    "clamp of floats-dynamo-unoptimized",
    "clamp_max-torchscript",
    "clip in place-dynamo-unoptimized",
}


@pytest.mark.parametrize(("name", "exporter"), sample(crossed(NUMBERS, ["dynamo-unoptimized", "torchscript"]), BY_FILE))
def test_by_file_the_slope_on_a_number_is_zero(name: str, exporter: str) -> None:
    """Whatever PyTorch is at hand; beside the bounds it is PyTorch's."""
    wanted = by_torch(NUMBERS[name])["w"]
    wanted[list(ENDS.get(name, (1, 3)))] = 0
    np.testing.assert_allclose(by_us(NUMBERS[name], exporter)["w"], wanted, rtol=1e-6)


LIKE = [
    *crossed(OTHERS, ["dynamo-unoptimized", "torchscript", "fine_tune"]),
    *crossed(TENSORS, ["dynamo-unoptimized", "fine_tune"]),
    *crossed(NUMBERS, ["fine_tune"]),
]
LIKE_KEPT = {
    "hardtanh-fine_tune",
    "hardsigmoid-torchscript",
    "hardswish-dynamo-unoptimized",
    "maximum-fine_tune",
    "clamp of tensors-dynamo-unoptimized",
    "clamp between what learns-fine_tune",
    "clamp_min of one that learns-dynamo-unoptimized",
    "clamp-fine_tune",
    "clamp to-fine_tune",
    "clamp_min-fine_tune",
}


@pytest.mark.parametrize(("name", "exporter"), sample(LIKE, LIKE_KEPT))
def test_slopes_on_bounds_are_pytorchs(name: str, exporter: str) -> None:
    """Of what has bounds that are no numbers, of activations, and of whatever `fine_tune` brings."""
    function = {**OTHERS, **TENSORS, **NUMBERS}[name]
    wanted, gradients = by_torch(function), by_us(function, exporter)
    assert gradients.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        np.testing.assert_allclose(gradients[parameter], gradient, rtol=1e-5, atol=1e-5, err_msg=parameter)


def bounded_logarithm(x: Tensor, edge: Tensor) -> Tensor:
    return torch.log(x * x).clamp(min=-100)


@pytest.mark.parametrize("exporter", ["dynamo-unoptimized", "torchscript", "fine_tune"])
def test_a_logarithm_of_zero_behind_a_bound_has_no_slope(exporter: str) -> None:
    """However the bound is written; elsewhere it is PyTorch's, which has NaN at the zero."""
    wanted = by_torch(bounded_logarithm)["w"]
    assert np.isnan(wanted[1])
    np.testing.assert_allclose(by_us(bounded_logarithm, exporter)["w"], np.nan_to_num(wanted), rtol=1e-6)


class Switches(nn.Module):
    """Shares of features that a clamp keeps between 0 and 1, and that start at its ends."""

    def __init__(self) -> None:
        super().__init__()
        self.shares, self.head = nn.Parameter(torch.tensor([0.0, 0.5, 1.0])), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.shares.clamp(0, 1))


def test_fine_tune_moves_what_starts_on_the_bounds_of_a_clamp() -> None:
    torch.manual_seed(0)
    module, x, labels = Switches(), torch.randn(8, 3), torch.randint(0, 2, (8,))
    assert set(slopes_inside()) == set(CLAMPS), "PyTorch 2.13 has all of them"
    assert SLOPE_INSIDE == READ
    tuned = pockfarm.fine_tune(module, x, (x, labels), spec=SPEC, steps=1)
    assert tuned.warnings == ()
    assert_like(tuned, after_a_step(module, x, labels))


@pytest.mark.parametrize("exporter", ["dynamo-unoptimized", "torchscript"])
def test_what_starts_on_a_bound_and_cannot_leave_it_is_named(exporter: Exporter) -> None:
    """Whether the file bounds in two nodes or in one."""
    model = export(Switches().eval(), (torch.randn(2, 3),), exporter=exporter, dynamic_batch=False)
    (message,) = on_bounds_of(model)
    assert message.endswith("shares (2 of 3 elements)")


class Ways(nn.Module):
    """Zeros behind several functions; those of `free` are read elsewhere too, and those of `inside` are on no bound."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("gate", "rows", "free", "inside"):
            self.register_parameter(name, nn.Parameter(torch.zeros(3)))

    def forward(self, x: Tensor) -> Tensor:
        gated = F.hardsigmoid(self.gate * 6 - 3) + F.relu6(self.rows[:, None].expand(3, 2)).sum(-1)
        return x + gated + torch.relu(self.free) * self.free.cos() + (self.inside + 0.5).clamp(0, 1)


def test_only_what_every_reader_holds_is_named() -> None:
    """Behind functions of each element alone, too."""
    model = export(Ways().eval(), (torch.randn(2, 3),), exporter="dynamo-unoptimized", dynamic_batch=False)
    (message,) = on_bounds_of(model)
    assert message.endswith(": gate (3 of 3 elements), rows (3 of 3 elements)")


def on_bounds_of(model: bytes) -> list[str]:
    graph = run_passes(imported(model, batch=2), FORWARD_PASSES)
    spec = TrainingSpec(batch=2, loss=LossSpec(kind="mse"))
    step = derive_training_step(graph, resolve_plan(graph, SparsePlan.parse("full")), spec)
    return [warning.message for warning in step.graph.warnings if warning.code == "plan.on_bound"]
