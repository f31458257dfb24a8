"""A step whose products are in TF32 is that of a PyTorch module which rounds their factors, forward and backward.

It runs on a GPU that is played (played_gpu.py), whose tensor cores round factors as NVIDIA's do, and sum in float32.
"""

from __future__ import annotations

import copy
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.played_gpu import PlayedGpu, build_driver
from tests.compiler.agreement.step_binary import StepBinary
from tests.models import export

TARGET, RATE, BATCH, CLASSES = "x86-64-v3/cuda", 16.0, 16, 16
SPEC = {
    "batch": BATCH,
    "optimizer": {"kind": "sgd", "learning_rate": RATE},
    "precision": {"products": "tf32"},
}
"""A rate so high that a step moves weights by more than their last bits; a power of two divides exactly."""


class Net(nn.Module):
    """No product is too small for tensor cores, but that of the image's gradient, which nobody wants."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 24, 3, 2, 1)
        self.mix, self.head = nn.Linear(24, 40), nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.block(torch.relu(self.stem(x)))).mean((2, 3))
        return self.head(torch.tanh(self.mix(found)))


def in_tf32(x: Tensor) -> Tensor:
    """To float32, and then to the nearest of ten bits of mantissa, ties away from zero."""
    bits = (x.float().view(torch.int32) + (1 << 12)) & ~0x1FFF
    return bits.view(torch.float32).double()


class Factor(torch.autograd.Function):
    """What a product reads forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return in_tf32(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class FactorBackward(torch.autograd.Function):
    """A product, whose gradient is a factor of those backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return in_tf32(grads[0])


class Rounding(nn.Module):
    """A layer whose products are of rounded factors; the gradient of its bias is a sum of what is not rounded."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer, weight = self.layer, Factor.apply(self.layer.weight)
        assert layer.bias is not None
        if isinstance(layer, nn.Linear):
            return FactorBackward.apply(Factor.apply(x) @ weight.T) + layer.bias
        product = functional.conv2d(Factor.apply(x), weight, None, layer.stride, (1, 1))
        return FactorBackward.apply(product) + layer.bias[:, None, None]


def gradients(module: Net, x: Tensor, y: Tensor, *, rounds: bool) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients in float64, by the module's own names."""
    own = copy.deepcopy(module).double()
    layers = dict(own.named_children()) if rounds else {}
    for name, layer in layers.items():
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        setattr(own, name, Rounding(layer))
    loss = functional.cross_entropy(own(x.double()), y)
    loss.backward()
    found = {name.replace("layer.", ""): one.grad for name, one in own.named_parameters()}
    return float(loss.detach()), {name: grad.numpy() for name, grad in found.items() if grad is not None}


def laid_out(like: np.ndarray, weight: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """A gradient with its axes in the order in which a checkpoint has those of the weight."""
    orders = permutations(range(weight.ndim))
    return next(gradient.transpose(order) for order in orders if np.array_equal(weight.transpose(order), like))


def test_a_step_is_that_of_a_module_which_rounds_factors(tmp_path: Path, kernel_cache: Path) -> None:
    torch.manual_seed(0)
    module, x, y = Net(), torch.randn(BATCH, 4, 8, 8), torch.randint(0, CLASSES, (BATCH,))
    model = export(module, (x[:2],))
    settings = BuildSettings(SparsePlan.parse("full"), TrainingSpec.parse(SPEC), load(TARGET), cache_dir=kernel_cache)
    gpu = PlayedGpu(build_driver(tmp_path), tmp_path / "kernels")
    gpu.play(model, settings)
    binary = StepBinary.unpack(compile_training(model, settings), tmp_path / "bundle", gpu.runner())
    before = {own: array for own, array in binary.checkpoint().items() if not own.startswith("constant.")}
    losses, after = binary.train(before, 1, binary.write_data({"input": x.numpy()}, y.numpy()))
    loss, wanted = gradients(module, x, y, rounds=True)
    exact_loss, exact = gradients(module, x, y, rounds=False)
    assert abs(losses[0] - loss) < 0.1 * abs(exact_loss - loss)
    assert len(wanted) == len(exact) == 8
    for name, weight in module.named_parameters():
        moved = (before[name].astype(np.float64) - after[name]) / RATE
        mine, plain = (laid_out(before[name], weight.detach().numpy(), side[name]) for side in (wanted, exact))
        off, apart = (np.linalg.norm(side - mine) for side in (moved, plain))
        assert off < 0.1 * apart, f"{name}: factors are rounded as they are said to be"
        assert apart < 0.03 * np.linalg.norm(plain), f"{name}: and that changes little, where no ReLU turns over"
