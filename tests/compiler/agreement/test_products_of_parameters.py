"""Parameters that multiply each other: each one's gradient reads the other, and both are updated in the same step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.spec.documents import TrainingSpec
from tests.compiler.agreement.losses import compiled, wanted
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary
from tests.models import export

BATCH, WIDTH, CLASSES = 4, 12, 5


class Adapter(nn.Module):
    """A low-rank weight B A, scaled channel by channel by a product of two vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, WIDTH)), nn.Parameter(torch.randn(WIDTH, 8))
        self.s, self.t = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(x, self.b @ self.a) * (self.s * self.t)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_are_updated_from_what_they_were(momentum: float, tmp_path: Path, kernel_cache: Path) -> None:
    torch.manual_seed(0)
    module = Adapter()
    model = export(module.eval(), (torch.zeros(BATCH, WIDTH),), exporter="dynamo-unoptimized")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((BATCH, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, BATCH)
    optimizer = {"kind": "sgd", "learning_rate": 0.1, "momentum": momentum}
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": optimizer, "threads": 2})
    binary = StepBinary.unpack(compiled(model, spec, kernel_cache), tmp_path)
    before = load_file(binary.weights)
    data = binary.write_data({"input": x}, y)
    losses, after = binary.train(before, 1, data)
    same_on_onnx_runtime(binary, data)
    loss, gradients = wanted(module, {"input": x}, {"y": y}, F.cross_entropy)
    assert losses[0] == pytest.approx(loss, rel=1e-5)
    assert set(gradients) == {"a", "b", "s", "t", "head.weight", "head.bias"}
    for name, gradient in gradients.items():
        found = (before[name] - after[name]) / 0.1
        assert np.abs(found - gradient).max() <= 1e-5 * np.abs(gradient).max() + 2e-6, name
