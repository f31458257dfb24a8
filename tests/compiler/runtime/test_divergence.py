"""Losses that explode end a run, with the step and all losses up to it; noise and starts near 0 do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.codegen.linking.toolchain import RUNTIME
from tests.compiler.step_process import Data, refused, run, table_data, table_state, write_weights

pytestmark = pytest.mark.xdist_group("runtime")

Judge = Callable[..., int]
KINDS = {
    "classes": ("PF_CROSS_ENTROPY", 1),
    "one error": ("PF_MSE", 1),
    "errors": ("PF_MSE", 16),
    "graph": ("PF_GRAPH", 0),
}
"""A loss's kind, and how many labels a batch has."""


@pytest.fixture(scope="module")
def explodes(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """At which loss of a run it is said to have exploded, 0 for never."""
    folder = tmp_path_factory.mktemp("explosion")
    sources = [str(Path(__file__).parent / "explosion.c"), str(RUNTIME / "explosion.c")]
    for name, (kind, labels) in KINDS.items():
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-std=c11",
            "-I",
            str(RUNTIME),
            f"-DKIND={kind}",
            f"-DLABELS={labels}",
            *sources,
        ]
        subprocess.run([*command, "-lm", "-o", str(folder / name)], check=True, capture_output=True)

    def judge(losses: Sequence[float] | np.ndarray, name: str = "one error", factor: float = 100.0) -> int:
        words = " ".join(f"{loss:.9g}" for loss in losses)
        done = subprocess.run(
            [str(folder / name), str(factor)], input=words, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    return judge


def test_a_loss_that_is_no_number_is_told_with_its_step(binary: Path, weights: Path, data: Data) -> None:
    done = run(binary, "train", "--weights", weights, *data.arguments, "--steps", 500, "--learning-rate", 1e30)
    assert refused(done) == (2, "user", "train.diverged")
    *before, last = done.losses
    assert last is None
    assert all(np.isfinite(loss) for loss in before)
    assert done.one("error")["step"] == len(done.losses) == len(before) + 1


def test_a_loss_that_explodes_is_told_with_its_step(table_binary: Path, tmp_path: Path) -> None:
    """A table's rows under AdamW with a rate of 30 overshoot their targets again and again."""
    data, start = table_data(tmp_path / "data"), write_weights(tmp_path / "w.safetensors", table_state())
    options = ("train", "--weights", start, *data.arguments, "--steps", 60, "--learning-rate", 30)
    done = run(table_binary, *options)
    assert refused(done) == (2, "user", "train.diverged")
    assert done.one("error")["step"] == len(done.losses) < 30
    assert "learning rate (now 30)" in done.one("error")["message"]
    assert done.losses[-1] > 100 * max(1, done.losses[0])
    endless = run(table_binary, *options, "--explosion-factor", 0)
    assert endless.code == 0
    assert len(endless.losses) == 60
    assert endless.losses[: len(done.losses)] == done.losses, "what is watched is not changed"
    assert len(run(table_binary, *options, "--explosion-factor", 1e9).losses) == 60


def test_gradient_descent_beyond_its_stable_rate_explodes(explodes: Judge) -> None:
    """Least squares in float64, by PyTorch: stable below 2 / the largest eigenvalue, growing without end above."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 8, dtype=torch.float64), torch.randn(64, dtype=torch.float64)
    stable = 2 / float(torch.linalg.eigvalsh(2 * x.T @ x / 64)[-1])
    for share in (0.5, 0.99):
        assert not explodes(descent(x, y, share * stable, 400)), share
    for share in (1.05, 1.5, 10.0):
        losses = descent(x, y, share * stable, 400)
        assert explodes(losses, "one error"), share
        found = explodes(losses, "errors")
        assert 0 < losses[found - 1] < 1e30, "long before the loss is infinite"


def descent(x: torch.Tensor, y: torch.Tensor, rate: float, steps: int) -> list[float]:
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    losses = []
    for _ in range(steps):
        loss = ((x @ w - y) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - rate * gradient).detach().requires_grad_()
        losses.append(min(loss.item(), 1e38))
    return losses


NOISE = np.random.default_rng(5)
ORDINARY: dict[str, tuple[str, Sequence[float] | np.ndarray]] = {
    "falls": ("classes", np.geomspace(7, 1e-4, 500)),
    "begins near 0": ("classes", [1e-6] * 3 + [5.0] * 300),
    "begins at 0, in single samples": ("classes", NOISE.choice([0.0, 12.0], 2000)),
    "squares of single samples, in any unit": ("one error", 1e8 * NOISE.normal(size=20_000) ** 2),
    "squares with a heavy tail": ("errors", (NOISE.standard_t(2, (20_000, 16)) ** 2).mean(1)),
    "spikes": ("one error", np.where(np.arange(2000) % 9 == 0, 1e9, 1.0)),
    "learns again after a bad stretch": ("one error", [1.0] * 20 + [1e4] * 7 + [1.0] * 500),
    "below 0, and ever lower": ("graph", -np.geomspace(1, 1e6, 300)),
    "an offset": ("graph", 1e6 + NOISE.normal(size=500)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_losses_do_not_explode(explodes: Judge, name: str) -> None:
    kind, losses = ORDINARY[name]
    assert not explodes(losses, kind)


def test_losses_that_stay_high_have_exploded(explodes: Judge) -> None:
    for kind in ("classes", "errors"):
        assert explodes([2.3] + [1000.0] * 20, kind) == 9, "eight of the last sixteen"
        assert explodes([2.3] + [1000.0, 0.0] * 20, kind) == 16
    assert explodes([1.0] * 30 + [101.0] * 20) == 38
    assert explodes([1.0] * 30 + [99.0] * 20) == 0
    assert explodes([1.0] * 30 + [99.0] * 20, factor=50) == 38
    assert explodes([-5.0] * 30 + [501.0] * 20) == 38
    assert explodes([1.0] * 30 + [1e300] * 20, factor=0) == 0
