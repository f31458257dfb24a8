"""A variational autoencoder trains: with the noise that its step draws, PyTorch in float64 takes the same steps."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.graph import TensorType
from compiler.kernels.spec import MapSpec
from compiler.ops import OPERATORS
from compiler.slicing.cut import part_of
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.models import export

RATE, BATCH, FEATURES, LATENT = 0.2, 8, 24, 5


class Autoencoder(nn.Module):
    """The noise is the module's own, or, to compare, given; the middle is wide enough for a batch in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh())
        self.mean, self.log_variance = nn.Linear(64, LATENT), nn.Linear(64, LATENT)
        self.decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.Tanh(), nn.Linear(64, FEATURES))
        self.given: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(x)
        mean, deviation = self.mean(hidden), torch.exp(0.5 * self.log_variance(hidden))
        noise, blur = (torch.randn_like(mean), torch.rand_like(x)) if self.given is None else self.given
        return self.decoder(mean + deviation * noise) + 0.1 * blur


def noise_of(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the two nodes draw, by the meaning of our operators."""
    made = []
    for stream, (op, shape) in enumerate(
        (("random_normal", (BATCH, LATENT)), ("random_uniform", (BATCH, FEATURES))), 1
    ):
        (key,) = OPERATORS["random_key"].evaluate([np.asarray(seed), np.asarray(step)], {"stream": stream})
        (values,) = OPERATORS[op].evaluate([key], {"shape": shape})
        made.append(torch.from_numpy(values.astype(np.float64)))
    return made[0], made[1]


def built(folder: Path, cache: Path, **spec: object) -> tuple[Autoencoder, StepBinary]:
    torch.manual_seed(0)
    module = Autoencoder()
    settings = BuildSettings(
        plan=SparsePlan.parse("full"),
        spec=TrainingSpec.parse(
            {"batch": BATCH, "loss": {"kind": "mse"}, "optimizer": {"kind": "sgd", "learning_rate": RATE}, **spec}
        ),
        target=load(native_target()),
        cache_dir=cache,
        jobs=1,
    )
    model = export(module.eval(), (torch.randn(BATCH, FEATURES),), dynamic_batch=False)
    return module, StepBinary.unpack(compile_training(model, settings), folder)


def batch_of(number: int) -> np.ndarray:
    rng = np.random.default_rng([5, number])
    return (rng.normal(size=(BATCH, 3)) @ np.random.default_rng(1).normal(size=(3, FEATURES))).astype(np.float32)


def state_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().astype(np.float32) for name, tensor in module.named_parameters()}


def torch_steps(module: Autoencoder, seed: int, steps: int) -> list[float]:
    losses = []
    for step in range(1, steps + 1):
        x = torch.from_numpy(batch_of(step)).double()
        module.given = noise_of(seed, step)
        loss = F.mse_loss(module(x), x)
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= RATE * parameter.grad
        losses.append(loss.item())
    return losses


def run(
    binary: StepBinary, start: dict[str, np.ndarray], first: int, steps: int, **options: object
) -> tuple[list[float], dict[str, np.ndarray]]:
    x = np.concatenate([batch_of(number) for number in range(first + 1, first + steps + 1)])
    return binary.train(start, steps, binary.write_data({"input": x}, x), start=first, **options)


def test_an_autoencoder_takes_the_steps_that_pytorch_takes_with_its_noise(tmp_path: Path, kernel_cache: Path) -> None:
    module, binary = built(tmp_path, kernel_cache)
    exact = copy.deepcopy(module).double()
    wanted = torch_steps(exact, 7, 12)
    losses, after = run(binary, state_of(module), 0, 12, batch_seed=7)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    x = np.concatenate([batch_of(number) for number in range(1, 13)])
    same_on_onnx_runtime(binary, binary.write_data({"input": x}, x), seed=7)
    for name, array in state_of(exact).items():
        moved = np.linalg.norm(array - state_of(module)[name])
        assert np.linalg.norm(after[name] - array) <= 1e-3 * moved, name
    other, _ = run(binary, state_of(module), 0, 2, batch_seed=8)
    assert abs(other[0] - losses[0]) > 1e-4
    first, middle = run(binary, state_of(module), 0, 5, batch_seed=7)
    second, _ = run(binary, {name: middle[name] for name in state_of(module)}, 5, 7, batch_seed=7)
    assert first + second == losses, "a run that goes on from a checkpoint draws on"


def test_parts_repeats_and_threads_change_no_number(tmp_path: Path, kernel_cache: Path) -> None:
    module, binary = built(tmp_path / "a", kernel_cache, threads=1)
    info = binary.run("info")[0]
    needed = info["arena_bytes"] + info["weights_bytes"] + info["optimizer_bytes"]
    _, tight = built(tmp_path / "b", kernel_cache, threads=2, memory_limit_bytes=needed - 64)
    wanted = torch_steps(copy.deepcopy(module).double(), 3, 3)
    for one in (binary, tight):
        losses, _ = run(one, state_of(module), 0, 3, batch_seed=3)
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)


def test_a_kernel_that_counts_places_runs_whole() -> None:
    """A part of the batch would count from its own beginning."""
    for op in ("random_uniform", "random_normal"):
        types = (TensorType("i64", ()),), (TensorType("f32", (BATCH, LATENT)),)
        spec = OPERATORS[op].lower(*types, {"shape": (BATCH, LATENT)})
        assert isinstance(spec, MapSpec)
        assert part_of(spec, 2) is None


def test_evaluation_draws_the_same_every_time(tmp_path: Path, kernel_cache: Path) -> None:
    """Step 0 of seed 0, for every batch."""
    module, binary = built(tmp_path, kernel_cache)
    x = np.concatenate([batch_of(1), batch_of(1)])
    data = binary.write_data({"input": x}, x)[:2]
    binary.run("infer", "--weights", binary.weights, "--out", tmp_path / "y.npy", *data)
    y = np.load(tmp_path / "y.npy")
    np.testing.assert_array_equal(y[:BATCH], y[BATCH:])
    exact = copy.deepcopy(module).double()
    exact.given = noise_of(0, 0)
    with torch.no_grad():
        wanted = exact(torch.from_numpy(batch_of(1)).double()).numpy()
    np.testing.assert_allclose(y[:BATCH], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["native", "aarch64"])
def test_every_machine_draws_the_same(tmp_path: Path, kernel_cache: Path, target: str) -> None:
    """Uniform numbers to the bit; normal ones as far as their logarithm and cosine are rounded alike."""
    nodes = [
        node("RandomUniformLike", ["x"], ["u"]),
        node("RandomNormalLike", ["x"], ["z"]),
        node("Concat", ["u", "z"], ["both"], axis=1),
        node("Mul", ["both", "w"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("f32", (BATCH, 37))}, initializers={"w": np.ones(74, np.float32)})
    settings = BuildSettings(
        plan=SparsePlan.parse("full"),
        spec=TrainingSpec.parse({"batch": BATCH, "loss": {"kind": "mse"}}),
        target=load(native_target() if target == "native" else target),
        cache_dir=kernel_cache,
        jobs=1,
    )
    runner = () if target == "native" else ("qemu-aarch64-static", "-cpu", "cortex-a53")
    binary = StepBinary.unpack(compile_training(model, settings), tmp_path, runner)
    x = np.zeros((BATCH, 37), np.float32)
    data = binary.write_data({"x": x}, np.zeros((BATCH, 74), np.float32))[:2]
    binary.run("infer", "--weights", binary.weights, "--out", tmp_path / "y.npy", *data)
    found = np.load(tmp_path / "y.npy")
    for stream, op, part in ((1, "random_uniform", found[:, :37]), (2, "random_normal", found[:, 37:])):
        (key,) = OPERATORS["random_key"].evaluate([np.asarray(0), np.asarray(0)], {"stream": stream})
        (wanted,) = OPERATORS[op].evaluate([key], {"shape": (BATCH, 37)})
        if op == "random_uniform":
            np.testing.assert_array_equal(part, wanted)
        else:
            np.testing.assert_allclose(part, wanted, rtol=2e-6, atol=1e-6)
