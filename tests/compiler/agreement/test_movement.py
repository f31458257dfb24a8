"""Nets that resize, pad, sample, sort, look up and scatter: their compiled steps against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.spec.documents import SparsePlan
from tests.compiler.agreement.course import smooth_batch
from tests.compiler.agreement.harness import Case, Optimizer, build, problems, run_step
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import ten_steps_on_onnx_runtime
from tests.compiler.agreement.step_binary import native_target
from tests.models import export
from tests.sample import sample


class Segmenter(nn.Module):
    """An image down and up again in every way: mirrored borders, (bi)linear, cubic and nearest, shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1, padding_mode="circular")
        self.up = nn.Conv2d(24, 8, 3, padding=1, padding_mode="replicate")
        self.shuffle = nn.Conv2d(8, 16, 1)
        self.shift = nn.Linear(8, 6)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu(self.stem(x))
        low = self.down(wide)
        twice = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        x = torch.tanh(self.up(torch.cat([wide, twice], 1)))
        x = F.pixel_shuffle(self.shuffle(x), 2)
        x = F.interpolate(x, size=(7, 10), mode="bicubic", align_corners=True) + F.interpolate(low, size=(7, 10))[:, :4]
        theta = torch.eye(2, 3) + 0.2 * torch.tanh(self.shift(wide.mean((2, 3)))).reshape(-1, 2, 3)
        grid = F.affine_grid(theta, [x.shape[0], 4, 5, 6], align_corners=False)
        x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
        x = F.interpolate(x, scale_factor=3, mode="nearest")
        return self.head(F.avg_pool2d(x, (7, 9)).flatten(1))


class Tables(nn.Module):
    """Embedding bags, the largest of them, running sums, products by letters, and rows put and added by index."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode=mode) for mode in ("sum", "mean", "max"))
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.mix = nn.Parameter(torch.randn(8, 2, 6) * 0.3)
        self.score = nn.Linear(8, 1)
        self.head = nn.Linear(21, 4)

    def forward(self, ids: Tensor) -> Tensor:
        bags = torch.stack([bag(ids) for bag in self.bags], 1)
        pairs = torch.einsum("bid,bjd->bij", bags, bags)
        words = self.words(ids)
        heads = torch.einsum("btd,dhe->bthe", words, self.mix)
        running = torch.cumsum(torch.tanh(heads), 1).flatten(2)
        scores = self.score(words)[..., 0]
        best, places = scores.topk(3, dim=1)
        chosen = torch.gather(running, 1, places[..., None].expand(-1, -1, 12))
        spread = torch.zeros(ids.shape[0], 12).scatter_add(1, ids % 12, scores)
        order = scores.sort(dim=1, descending=True).values
        features = (chosen * torch.softmax(best, 1)[..., None]).sum(1) + spread + order.repeat(1, 2)[:, :12]
        return self.head(torch.cat([pairs.flatten(1), features], 1))


def _images(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    return {"input": rng.normal(size=(batch, 3, 8, 8)).astype(np.float32)}


def _ids(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    return {"input": rng.integers(0, 20, (batch, 7))}


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[np.random.Generator, int], dict[str, np.ndarray]]]] = {
    "segmenter": (Segmenter, _images),
    "tables": (Tables, _ids),
}


@pytest.mark.parametrize("name", sample(NETS, {"tables"}))
def test_a_net_that_moves_elements_trains_as_in_pytorch(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    made, feeds = NETS[name]
    torch.manual_seed(5)
    module = made().eval()
    example = torch.from_numpy(feeds(np.random.default_rng(0), 4)["input"])
    model = export(module, (example,), exporter="dynamo-unoptimized", dynamic_batch=False)
    case = Case(
        model,
        ModuleReference.of(module),
        SparsePlan.parse("full"),
        4,
        feeds,
        lambda rng, batch: rng.integers(0, 4, batch),
    )
    built = build(case, native_target(), tmp_path, kernel_cache)
    optimizer = Optimizer(built)
    weights = case.reference.initial()
    state = optimizer.fresh(weights)
    for t in range(1, 4):
        result = run_step(built, optimizer, weights, state, t, smooth_batch(built, weights, t))
        assert not problems(built, result)
        weights, state = optimizer.step(weights, state, result.exact, t)
    ten_steps_on_onnx_runtime(built)
