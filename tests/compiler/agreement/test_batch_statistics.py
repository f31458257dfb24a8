"""`batch_norm: train` does what `module.train()` does in float64: gradients, running statistics, and then `eval()`."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.errors import SpecError, UnsupportedOperator
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.models import export
from tests.sample import sample

RATE = 0.05
STEPS = 4
STATISTICS = ("running_mean", "running_var")


class Residual(nn.Module):
    """Norms in images, behind a sum and before another, one without scale, one with a momentum of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.3, affine=False)
        self.bn3 = nn.BatchNorm2d(16, eps=1e-3)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.bn1(self.conv1(x)))
        x = self.bn3(x + self.bn2(self.depthwise(x)))
        return self.fc(torch.sigmoid(x).mean((2, 3)))


def vectors() -> nn.Module:
    """Norms of features and of sequences, one of them called twice."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.bn1, self.fc2 = nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Linear(24, 24)
            self.bn2, self.fc3 = nn.BatchNorm1d(6), nn.Linear(24, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.bn1(self.fc1(x)))
            x = torch.tanh(self.bn1(self.fc2(x)))
            return self.fc3(self.bn2(x.reshape(-1, 6, 4)).reshape(-1, 24))

    return Twice()


@dataclass(frozen=True)
class Made:
    module: nn.Module
    binary: StepBinary
    draw: Callable[[int], tuple[torch.Tensor, torch.Tensor]]


FULL = SparsePlan.parse("full")
LAST = SparsePlan.parse("update: [{parameters: ['fc.*']}]")


def make(
    module: nn.Module,
    shape: tuple[int, ...],
    folder: Path,
    cache: Path,
    *,
    batch: int = 6,
    plan: SparsePlan = FULL,
    training: bool = False,
    target: str = "",
    runner: tuple[str, ...] = (),
    **spec: object,
) -> Made:
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    x = torch.randn(batch, *shape)
    settings = BuildSettings(
        plan=plan,
        spec=TrainingSpec.parse(
            {"batch": batch, "batch_norm": "train", "optimizer": {"kind": "sgd", "learning_rate": RATE}, **spec}
        ),
        target=load(target or native_target()),
        cache_dir=cache,
        jobs=1,
    )
    bundle = compile_training(export(module.train(training), (x,), exporter="dynamo-unoptimized"), settings)

    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(100 + seed)
        # A mean that is far from 0 beside the deviation: a variance must not be a difference of large numbers.
        return torch.randn(batch, *shape) * 2 + 3, torch.randint(0, 4, (batch,))

    return Made(module, StepBinary.unpack(bundle, folder, runner), draw)


def torch_step(module: nn.Module, learns: set[str], x: torch.Tensor, labels: torch.Tensor) -> float:
    """One step of `module.train()` and plain SGD, in the module's own precision."""
    module.train()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in learns)
        parameter.grad = None
    loss = F.cross_entropy(module(x), labels)
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
    return loss.item()


def state_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {
        name: tensor.detach().numpy().astype(np.float32)
        for name, tensor in module.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def changes(module: nn.Module, before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: array.astype(np.float64) - before[name]
        for name, array in module.state_dict().items()
        if name in before
        for array in [array.detach().numpy()]
    }


def check_steps(
    step: Made, learns: set[str], *, cancelled: Sequence[str] = (), steps: int = STEPS, standing: bool = False
) -> None:
    """Every step from the reference's state: what each tensor changes by is what it changes by in float64.

    `cancelled` are biases right before a norm, which takes them away again: their gradients are zero but for rounding.
    `standing`: running statistics stay as they are.
    """
    exact, single = copy.deepcopy(step.module).double(), copy.deepcopy(step.module).float()
    for number in range(steps):
        x, labels = step.draw(number)
        before = state_of(exact)
        for module in (exact, single):
            module.load_state_dict({name: torch.from_numpy(array) for name, array in before.items()}, strict=False)
        loss = torch_step(exact, learns, x.double(), labels)
        torch_step(single, learns, x, labels)
        data = step.binary.write_data({"input": x.numpy()}, labels.numpy())
        losses, after = step.binary.train(before, 1, data)
        assert losses[0] == pytest.approx(loss, rel=1e-5)
        wanted, pytorch = changes(exact, before), changes(single, before)
        for name, change in wanted.items():
            found = after[name].astype(np.float64) - before[name]
            if name in cancelled:
                assert np.abs(found).max() < 1e-6
                continue
            if name not in learns and (standing or not name.endswith(STATISTICS)):
                assert not found.any(), f"{name} should not change"
                continue
            assert np.linalg.norm(change) > 0, name
            scale = np.abs(before[name]).max() * 2.0**-24 * np.sqrt(change.size)
            allowed = 3 * np.linalg.norm(pytorch[name] - change) + 2e-6 * np.linalg.norm(change) + scale
            assert np.linalg.norm(found - change) <= allowed, f"step {number}: {name}"
    same_on_onnx_runtime(step.binary, data)


def parameters_of(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters()}


def test_steps_agree_with_a_module_in_training_mode(tmp_path: Path, kernel_cache: Path) -> None:
    made = make(Residual(), (3, 8, 8), tmp_path, kernel_cache)
    assert set(made.binary.checkpoint()) >= set(state_of(made.module))
    check_steps(made, parameters_of(made.module), cancelled=["depthwise.bias"])


@pytest.mark.thorough
@pytest.mark.parametrize("training", sample([False, True], {"True"}))
def test_vectors_sequences_and_a_norm_that_is_called_twice(tmp_path: Path, kernel_cache: Path, training: bool) -> None:
    """Whichever mode the module was exported in."""
    made = make(vectors(), (12,), tmp_path, kernel_cache, training=training)
    check_steps(made, parameters_of(made.module), cancelled=["fc1.bias", "fc2.bias"])


def test_an_emulated_board(tmp_path: Path, kernel_cache: Path) -> None:
    module = nn.Sequential(nn.BatchNorm3d(5), nn.Flatten(2), nn.BatchNorm1d(5), nn.Flatten(), nn.Linear(60, 4))
    bundle = make(
        module,
        (5, 3, 2, 2),
        tmp_path,
        kernel_cache,
        batch=4,
        target="aarch64",
        runner=("qemu-aarch64-static", "-cpu", "cortex-a53"),
    )
    check_steps(bundle, parameters_of(module), steps=2)


def test_statistics_of_frozen_layers_are_kept_too(tmp_path: Path, kernel_cache: Path) -> None:
    """As in PyTorch: `requires_grad=False` does not stop a norm in training mode."""
    made = make(Residual(), (3, 8, 8), tmp_path, kernel_cache, plan=LAST)
    check_steps(made, {"fc.weight", "fc.bias"}, steps=2)


def test_a_run_goes_on_from_its_checkpoint_and_evaluates_with_running_statistics(
    tmp_path: Path, kernel_cache: Path
) -> None:
    """Three steps, then three from the checkpoint, are six in a row; `infer` then is `module.eval()`."""
    made = make(Residual(), (3, 8, 8), tmp_path, kernel_cache)
    exact = copy.deepcopy(made.module).double()
    batches = [made.draw(number) for number in range(6)]
    for x, labels in batches:
        torch_step(exact, parameters_of(exact), x.double(), labels)
    first, second = ([torch.cat(parts) for parts in zip(*half, strict=True)] for half in (batches[:3], batches[3:]))
    _, middle = made.binary.train(
        state_of(made.module), 3, made.binary.write_data({"input": first[0].numpy()}, first[1].numpy())
    )
    data = made.binary.write_data({"input": second[0].numpy()}, second[1].numpy())
    _, after = made.binary.train(middle, 3, data, start=3)
    for name, array in exact.state_dict().items():
        if name in after:
            np.testing.assert_allclose(after[name], array.numpy(), rtol=2e-3, atol=2e-4, err_msg=name)
    out = tmp_path / "logits.npy"
    made.binary.run("infer", "--weights", tmp_path / "after.safetensors", "--out", out, *data[:2])
    exact.load_state_dict({name: torch.from_numpy(after[name]) for name in state_of(exact)}, strict=False)
    with torch.no_grad():
        logits = exact.eval()(second[0].double()).numpy()
    np.testing.assert_allclose(np.load(out), logits, rtol=1e-4, atol=1e-4)
    exported = tmp_path / "exported.safetensors"
    made.binary.run("export", "--weights", tmp_path / "after.safetensors", "--out", exported)
    assert set(StepBinary(tmp_path).checkpoint()) >= set(state_of(exact))


@pytest.mark.thorough
def test_memory_limits_change_nothing(tmp_path: Path, kernel_cache: Path) -> None:
    """Repeated forward kernels and parts of the batch: the same statistics, updated once."""
    plain = make(Residual(), (3, 16, 16), tmp_path / "plain", kernel_cache, batch=8)
    arena = plain.binary.run("info")[0]
    needed = arena["arena_bytes"] + arena["weights_bytes"] + arena["optimizer_bytes"]
    tight = make(
        Residual(), (3, 16, 16), tmp_path / "tight", kernel_cache, batch=8, memory_limit_bytes=int(needed * 0.85)
    )
    kernels = tight.binary.run("info")[0]["kernels"]
    assert len(kernels) > len(plain.binary.run("info")[0]["kernels"])
    check_steps(tight, parameters_of(tight.module), cancelled=["depthwise.bias"], steps=2)


def test_one_number_per_channel_has_no_variance(tmp_path: Path, kernel_cache: Path) -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    with pytest.raises(SpecError, match="more than 1 number per channel"):
        make(module, (5,), tmp_path, kernel_cache, batch=1)


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_momenta_at_the_ends(tmp_path: Path, kernel_cache: Path, momentum: float) -> None:
    """0: the running statistics stay as they were; 1: they are those of the last batch."""
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 4))
    step = make(module, (5,), tmp_path, kernel_cache)
    check_steps(step, parameters_of(module), cancelled=["0.bias"], standing=momentum == 0)


@pytest.mark.parametrize("exporter", ["dynamo-unoptimized", "torchscript"])
def test_running_statistics_of_instances(exporter: str) -> None:
    """PyTorch writes a BatchNormalization of all samples' channels: no step updates them, and none trains them."""
    module = nn.Sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(48, 4))
    nn.init.normal_(module[0].running_mean)
    x = torch.randn(2, 3, 4, 4)
    model = exported(module.eval(), (x,), exporter)
    with pytest.raises(UnsupportedOperator, match=r"InstanceNorm with running statistics.*batch_norm: frozen"):
        imported(model, batch_norm="train")
    graph = imported(model, batch_norm="frozen")
    assert set(graph.named_parameters()) == parameters_of(module)
    (answer,) = [evaluate_graph(graph, {graph.inputs[0]: x.numpy()})[value] for value in graph.outputs]
    np.testing.assert_allclose(answer, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], exporter: str) -> bytes:
    if exporter != "torchscript":
        return export(module, inputs, exporter="dynamo-unoptimized", dynamic_batch=False)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, buffer, dynamo=False, do_constant_folding=False)
    return buffer.getvalue()


def test_norms_without_running_statistics(tmp_path: Path, kernel_cache: Path) -> None:
    """`track_running_stats=False`: the batch's own, while evaluating too."""
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 4))
    made = make(module, (5,), tmp_path, kernel_cache)
    check_steps(made, parameters_of(module), cancelled=["0.bias"], steps=2)


@pytest.mark.parametrize("exporter", ["dynamo-unoptimized", "torchscript"])
def test_fresh_statistics_have_their_own_names(exporter: str) -> None:
    """Of a fresh module they are equal, and exporters store equal tensors once."""
    module = Residual().eval()
    model = exported(module, (torch.randn(2, 3, 8, 8),), exporter)
    graph = imported(model, batch_norm="train")
    assert set(graph.buffers()) == {name for name, _ in module.named_buffers() if name.endswith(STATISTICS)}
    assert set(graph.named_parameters()) == parameters_of(module)
