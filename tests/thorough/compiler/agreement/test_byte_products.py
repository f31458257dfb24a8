"""A step whose frozen weights are multiplied in bytes is that of a PyTorch module which rounds what they multiply."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.errors import SpecError
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load_cpu
from tests.compiler.agreement.step_binary import StepBinary
from tests.kernel_harness.machine import runs
from tests.models import export
from tests.skips import needs_instructions

RATE, BATCH = 0.1, 24
BOARD, X86 = "raspberry-pi-5", "x86-64-v4-vnni"
PLAN = {"update": [{"parameters": ["mix.*"]}]}
SPEC = {
    "batch": BATCH,
    "optimizer": {"kind": "sgd", "learning_rate": RATE},
    "precision": {"frozen": "int8", "frozen_products": "int8"},
}


def rows(x: Any) -> Any:
    """Each row as whole numbers of a 127th of its largest, times that."""
    step = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / step) * step


class Rounded(torch.autograd.Function):
    """y = x (q s)' with rows of x rounded, d_x = (d_y s) q with rows of d_y s rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, whole: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(whole, scale)
        return rows(x) @ whole.T * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole, scale = ctx.saved_tensors
        return rows(grads[0] * scale) @ whole, None, None


class Held(nn.Module):
    """A linear layer whose weight is in whole numbers."""

    def __init__(self, layer: nn.Linear, *, rounds: bool) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.scale = weight.abs().amax(1) / 127
        self.whole, self.bias, self.rounds = torch.round(weight / self.scale[:, None]), layer.bias, rounds

    def forward(self, x: Tensor) -> Tensor:
        y = Rounded.apply(x, self.whole, self.scale) if self.rounds else x @ self.whole.T * self.scale
        return y + self.bias


class Deep(nn.Module):
    """What learns stands between layers that do not, one of whose inputs make no whole words."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mix, self.down = nn.Linear(48, 96), nn.Linear(96, 64), nn.Linear(64, 82)
        self.odd, self.head = nn.Linear(82, 60), nn.Linear(60, 20)

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for layer in (self.up, self.mix, self.down, self.odd):
            found = torch.tanh(layer(found))
        return self.head(found)


def beside_held(module: Deep, *, rounds: bool) -> Deep:
    """In float64, with frozen layers held in whole numbers, multiplied as such or not."""
    other = copy.deepcopy(module).double()
    for name in ("up", "down", "odd", "head"):
        # 82 inputs are no whole words forward; backward, 82 channels are none either.
        setattr(other, name, Held(getattr(other, name), rounds=rounds and name not in ("odd", "down")))
    if rounds:
        other.odd = HalfHeld(other.odd, backward=True)
        other.down = HalfHeld(other.down, backward=False)
    return other


class HalfHeld(nn.Module):
    """A layer that rounds in one direction alone."""

    def __init__(self, layer: Any, *, backward: bool) -> None:
        super().__init__()
        self.layer, self.backward_rounds = layer, backward

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        plain = x @ layer.whole.T * layer.scale
        both = Rounded.apply(x, layer.whole, layer.scale)
        # The value of one, the gradient of the other.
        found = (
            plain.detach() + (both - both.detach())
            if self.backward_rounds
            else both.detach() + (plain - plain.detach())
        )
        return found + layer.bias


def gradients(module: nn.Module, x: Tensor, y: Tensor) -> tuple[float, dict[str, np.ndarray]]:
    loss = nn.functional.cross_entropy(module(x.double()), y)
    loss.backward()
    mix = dict(module.named_parameters())
    return float(loss.detach()), {one: np.asarray(mix[f"mix.{one}"].grad) for one in ("weight", "bias")}


@pytest.mark.parametrize(
    ("target", "runner"), [(BOARD, ("qemu-aarch64-static",)), pytest.param(X86, (), marks=needs_instructions(X86))]
)
def test_a_step_is_that_of_a_module_which_rounds_rows(
    target: str, runner: tuple[str, ...], tmp_path: Path, kernel_cache: Path
) -> None:
    torch.manual_seed(0)
    module, x, y = Deep(), torch.randn(BATCH, 48), torch.randint(0, 20, (BATCH,))
    settings = BuildSettings(SparsePlan.parse(PLAN), TrainingSpec.parse(SPEC), load_cpu(target), cache_dir=kernel_cache)
    bundle = compile_training(export(module, (x[:2],)), settings)
    told = {one.code: one.message for one in bundle.warnings}
    assert told["precision.rows_rounded"].startswith("5 of 7 products")
    assert bundle.manifest["frozen"]["products"] == "int8"
    binary = StepBinary.unpack(bundle, tmp_path, runner)
    before = {own: array for own, array in binary.checkpoint().items() if not own.startswith("constant.")}
    losses, after = binary.train(before, 1, binary.write_data({"input": x.numpy()}, y.numpy()))
    loss, wanted = gradients(beside_held(module, rounds=True), x, y)
    exact_loss, exact = gradients(beside_held(module, rounds=False), x, y)
    assert abs(losses[0] - loss) < 0.1 * abs(exact_loss - loss)
    for one in ("weight", "bias"):
        own = getattr(module.mix, one).detach().numpy()
        moved = (after[f"mix.{one}"].reshape(-1) - before[f"mix.{one}"].reshape(-1)) / -RATE
        theirs, plain = (side[one] for side in (wanted, exact))
        mine = moved.reshape(theirs.T.shape).T if before[f"mix.{one}"].shape != own.shape else moved.reshape(own.shape)
        off, apart = (np.linalg.norm(side - theirs) for side in (mine, plain))
        assert off < 0.2 * apart, "rows are rounded as they are said to be"
        assert np.linalg.norm(mine - plain) < 0.02 * np.linalg.norm(plain), "and that changes little"


def test_a_target_without_instructions_rounds_nothing_and_says_so() -> None:
    torch.manual_seed(0)
    settings = BuildSettings(SparsePlan.parse(PLAN), TrainingSpec.parse(SPEC), load_cpu("raspberry-pi-4"))
    bundle = compile_training(export(Deep(), (torch.randn(2, 48),)), settings)
    told = {one.code: one for one in bundle.warnings}
    assert "precision.rows_rounded" not in told
    assert "raspberry-pi-4 has no instructions for products of bytes" in told["precision.widened"].message
    assert "raspberry-pi-5" in told["precision.widened"].hint
    assert "products" not in bundle.manifest["frozen"]


class LookedUp(nn.Module):
    """A table, what learns, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(60, 32), nn.Linear(32, 32), nn.Linear(32, 60)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.table(tokens))).mean(1))


def test_a_look_up_counts_as_no_product() -> None:
    torch.manual_seed(0)
    settings = BuildSettings(SparsePlan.parse(PLAN), TrainingSpec.parse(SPEC), load_cpu(BOARD))
    bundle = compile_training(export(LookedUp(), (torch.zeros(2, 6, dtype=torch.int64),)), settings)
    told = {one.code: one.message for one in bundle.warnings}
    assert told["precision.rounded"].startswith("2 of 5 parameters"), "the table too"
    assert told["precision.rows_rounded"].startswith("2 of 2 products"), "the head's, both ways"


@pytest.mark.parametrize("frozen", ["f32", "int4"])
def test_other_weights_are_not_multiplied_in_bytes(frozen: str) -> None:
    spec = SPEC | {"precision": {"frozen": frozen, "frozen_products": "int8"}}
    settings = BuildSettings(SparsePlan.parse(PLAN), TrainingSpec.parse(spec), load_cpu(BOARD))
    with pytest.raises(SpecError, match=f"weights held in {frozen} are not multiplied in int8") as problem:
        compile_training(export(Deep(), (torch.randn(2, 48),)), settings)
    assert "say frozen: int8" in str(problem.value.hint)


SEEDS, STEPS = 4, 1500
POINTS = 0.5
"""Of a hundred: by so much may the accuracies differ, averaged over the seeds."""


class Reader(nn.Module):
    """Of handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 96)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for layer in (self.first, self.second, self.third):
            found = torch.relu(layer(found))
        return self.head(found)


def read_before(x: Tensor, y: Tensor, seed: int) -> Reader:
    """A reader of one kind of pictures."""
    torch.manual_seed(seed)
    module = Reader()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for _ in range(300):
        part = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[part]), y[part]).backward()
        optimizer.step()
    return module


def test_what_learns_beside_products_of_bytes_answers_as_well(tmp_path: Path, kernel_cache: Path) -> None:
    """Readers of digits learn to read negatives, by their biases and second layer."""
    target, runner = (X86, ()) if runs(load_cpu(X86)) else (BOARD, ("qemu-aarch64-static",))
    found = load_digits()
    x, y = (found.data / 16).astype(np.float32), found.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    parts = {"train": order[: len(y) // 2], "test": order[len(y) // 2 :]}
    for name, part in parts.items():
        np.save(tmp_path / f"x-{name}.npy", 1 - x[part])
        np.save(tmp_path / f"y-{name}.npy", y[part])
    data = {
        name: ("--input", f"input={tmp_path}/x-{name}.npy", "--labels", f"{tmp_path}/y-{name}.npy") for name in parts
    }
    plan = SparsePlan.parse({"preset": "bias-only", "update": [{"parameters": ["second.weight"]}]})
    accuracies: dict[str, list[float]] = {"f32": [], "int8": []}
    before: list[float] = []
    for seed in range(SEEDS):
        first = torch.from_numpy(x[parts["train"]]), torch.from_numpy(y[parts["train"]])
        model = export(read_before(*first, seed), (torch.zeros(2, 64),))
        for kind, told in accuracies.items():
            precision = {"frozen": kind, "frozen_products": kind}
            optimizer = {"kind": "sgd", "learning_rate": 0.02, "momentum": 0.9}
            spec = TrainingSpec.parse({"batch": 32, "precision": precision, "optimizer": optimizer})
            bundle = compile_training(
                model, BuildSettings(plan, spec, load_cpu(target), cache_dir=kernel_cache, jobs=1)
            )
            binary = StepBinary.unpack(bundle, tmp_path / f"{kind}{seed}", runner)
            learned = tmp_path / f"{kind}{seed}.safetensors"
            binary.run("train", "--weights", binary.weights, *data["train"], "--steps", STEPS, "--save", learned)
            told.append(accuracy(binary, learned, data["test"]))
        before.append(accuracy(binary, binary.weights, data["test"]))
    assert np.mean(before) < 0.5, "negatives were read before"
    assert np.mean(accuracies["f32"]) > 0.9, "nothing was learned"
    assert abs(np.mean(accuracies["int8"]) - np.mean(accuracies["f32"])) <= POINTS / 100, accuracies


def accuracy(binary: StepBinary, weights: Path, data: tuple[str, ...]) -> float:
    events = binary.run("eval", "--weights", weights, *data)
    return float(next(event["accuracy"] for event in events if "accuracy" in event))
