"""Maxima, norms and powers against the module itself in float64: values computed twice, ties, and where slopes end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.spec.documents import LossSpec, SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from compiler.targets import load
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value
from tests.compiler.passes.gradients import with_gradients
from tests.models import export
from tests.sample import sample

FULL = SparsePlan.parse("full")
BATCH, WIDTH = 64, 48


class Chain(nn.Module):
    """A product that is read twice: alone, and as part of the sum whose maximum is taken.

    A kernel that needs the product itself rounds it; one that needs the sum only does not (fused multiply-add).
    """

    def __init__(self, tail: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 5)
        self.scale, self.shift = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Parameter(torch.randn(WIDTH))
        self.tail = tail

    def forward(self, x: Tensor) -> Tensor:
        p = self.first(x) * self.scale
        return self.last(self.tail(p, p + self.shift))


CHAINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "maximum of a row": lambda p, z: p * p * z.amax(-1, keepdim=True),
    "maximum of a column": lambda p, z: p * p * z.amax(0, keepdim=True),
    "minimum of a row": lambda p, z: p * p * z.amin(-1, keepdim=True),
    "maximum of exponentials": lambda p, z: torch.sin(p) * torch.exp(z).amax(-1, keepdim=True),
    "log of a sum of exponentials": lambda p, z: p * p * torch.logsumexp(z, -1, keepdim=True),
}


@pytest.mark.parametrize("name", sample(CHAINS, {"maximum of a row", "log of a sum of exponentials"}))
def test_the_gradient_of_a_maximum_that_is_computed_twice(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    module, rng = Chain(CHAINS[name]).eval(), np.random.default_rng(0)
    x, labels = rng.normal(size=(BATCH, 16)).astype(np.float32), rng.integers(0, 5, BATCH)
    model = export(module, (torch.from_numpy(x),), dynamic_batch=False)
    optimizer = {"kind": "sgd", "learning_rate": 0.0, "momentum": 0.5}
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": optimizer, "threads": 2})
    bundle = compile_training(
        model, BuildSettings(plan=FULL, spec=spec, target=load(native_target()), cache_dir=kernel_cache, jobs=1)
    )
    binary = StepBinary.unpack(bundle, tmp_path)
    data = binary.write_data({"input": x}, labels)
    _, after = binary.train(load_file(binary.weights), 1, data)
    same_on_onnx_runtime(binary, data)
    F.cross_entropy(module.double()(torch.from_numpy(x).double()), torch.from_numpy(labels)).backward()
    parameters = imported(model, batch=BATCH).named_parameters()
    for own, value in module.named_parameters():
        assert value.grad is not None
        found = parameters[own].to_file(after[f"optimizer.momentum.{own}"])
        error = np.abs(found.reshape(value.shape) - value.grad.numpy()).max()
        assert error <= 1e-5 * float(value.grad.abs().max()), own


class Shifted(nn.Module):
    """A function of x + shift; all numbers are small integers, so that every special point is hit exactly."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([[1.0, -2.0, 3.0, 2.0, -1.0, 4.0]]))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x + self.shift)


LEVELS = torch.tensor([[0, 0, 0, 0, 0, 0], [1, 3, 3, -1, 0, 3], [-2, -2, 1, 0, 1, -1], [2, -1, 0, 0, 2, -3]]).float()
OTHER = torch.tensor([[1.0, 3.0, -2.0, 0.0, 1.0, 0.0]])
SLOPES = torch.tensor([0.3])
POINTS: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda x: x.amax(-1, keepdim=True) * OTHER,
    "amax of columns": lambda x: x.amax(0, keepdim=True) * x,
    "max of all": lambda x: x.max() * x,
    "amin": lambda x: x.amin(-1, keepdim=True) * OTHER,
    "maximum": lambda x: torch.maximum(x, OTHER * 1.0) * x,
    "minimum": lambda x: torch.minimum(x, x.flip(-1)) * OTHER,
    "logsumexp": lambda x: torch.logsumexp(x, -1, keepdim=True) * OTHER,
    "logsumexp of columns": lambda x: torch.logsumexp(x, 0, keepdim=True) * OTHER + x,
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True) * OTHER,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "norm of one": lambda x: torch.linalg.vector_norm(x, 1, dim=-1, keepdim=True) * OTHER,
    "max pool": lambda x: F.max_pool2d(x.reshape(4, 1, 2, 3), (1, 2), 1).flatten(1),
    "global max pool": lambda x: F.adaptive_max_pool2d(x.reshape(4, 2, 3, 1), 1).flatten(1) * 2,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "leaky relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, SLOPES.to(x.dtype)),
    "hardswish": lambda x: F.hardswish(x * 3),
    "relu6": F.relu6,
    "abs": torch.abs,
    "power of zero": lambda x: torch.pow(x * x, torch.relu(OTHER)),
    "masked softmax": lambda x: torch.softmax(x.masked_fill(OTHER > 0, -torch.inf), -1).masked_fill(OTHER > 0, 0.5),
}


CASES = [(name, exporter) for name in POINTS for exporter in ("dynamo", "torchscript")]
CASES.remove(("global max pool", "dynamo"))  # written as an amax, whose ties share
KEPT = {
    "amax-torchscript",
    "amax of columns-dynamo",
    "max of all-torchscript",
    "maximum-torchscript",
    "logsumexp-dynamo",
    "norm-torchscript",
    "normalize-torchscript",
    "norm of one-dynamo",
    "max pool-torchscript",
    "global max pool-torchscript",
    "celu-torchscript",
    "prelu-dynamo",
    "hardswish-torchscript",
    "abs-torchscript",
    "power of zero-torchscript",
    "masked softmax-dynamo",
}


@pytest.mark.parametrize(("name", "exporter"), sample([pytest.param(*case, id="-".join(case)) for case in CASES], KEPT))
def test_gradients_at_ties_and_ends(name: str, exporter: str) -> None:
    module = Shifted(POINTS[name]).eval()
    x = LEVELS - module.shift.detach()
    model = export(module, (x,), exporter=exporter, dynamic_batch=False)  # type: ignore[arg-type]
    forward = run_passes(imported(model, batch=4), FORWARD_PASSES)
    target = np.random.default_rng(1).normal(size=forward.types[forward.outputs[0]].shape)
    step = differentiate(attach_loss(forward, LossSpec(kind="mse")), resolve_plan(forward, FULL))
    graph = run_passes(step.graph, TRAINING_PASSES)
    values = evaluate_graph(graph, {**by_value(graph, {"input": x.numpy()}), step.labels: target})
    F.mse_loss(module.double()(x.double()), torch.from_numpy(target)).backward()
    assert module.shift.grad is not None
    assert torch.isfinite(module.shift.grad).all()
    shift = forward.value_called("shift")
    found = forward.parameters[shift].to_file(values[step.gradients[shift]])
    np.testing.assert_allclose(found, module.shift.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 7), (1, 2, 3, 2, 4)], ids=str)
def test_a_global_maximum_has_the_gradient_of_pytorchs_pooling(shape: tuple[int, ...]) -> None:
    """Ties go to the first."""
    model = model_of([node("GlobalMaxPool", ["x"], ["y"])], {"x": ("f32", shape)}, ["y"], {})
    forward = run_passes(imported(model, batch=shape[0]), FORWARD_PASSES)
    graph = with_gradients(forward, forward.inputs)
    x = np.random.default_rng(0).integers(0, 4, shape).astype(np.float64)
    leaf = torch.from_numpy(x).requires_grad_()
    pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[len(shape) - 3]
    y = pool(leaf, 1)
    (y * y).sum().backward()
    values = evaluate_graph(graph, {forward.inputs[0]: x})
    assert leaf.grad is not None
    np.testing.assert_array_equal(values[graph.outputs[0]], y.detach().numpy())
    np.testing.assert_array_equal(values[graph.outputs[1]], leaf.grad.numpy())
