"""`pockfarm.fine_tune` as its users call it: every form of model, data, plan and spec, and what it refuses."""

from __future__ import annotations

import copy
import importlib.abc
import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.onnx._internal.exporter import _registration
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import pockfarm
from pockfarm.errors import UsageError
from pockfarm.fine_tuning.torch_module import Wanted, brought_module

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
SPEC = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}


class Tied(nn.Module):
    """A head that is the embedding's own table, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 1.5, 2.0]))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))) * self.scale)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def xy(samples: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 5, generator=generator), torch.randint(0, 3, (samples,), generator=generator)


def after_a_step(module: nn.Module, x: Tensor, y: Tensor, rate: float = 0.1) -> dict[str, Tensor]:
    """PyTorch's own step of SGD, in float64 and evaluation mode."""
    own = copy.deepcopy(module).double().eval()
    optimizer = torch.optim.SGD([one for one in own.parameters() if one.requires_grad], rate)
    logits = own(x.double() if x.is_floating_point() else x)
    nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
    optimizer.step()
    return own.state_dict()


def assert_like(tuned: Any, wanted: dict[str, Tensor]) -> None:
    assert list(tuned) == list(wanted)
    for name, exact in wanted.items():
        assert torch.allclose(tuned[name].double(), exact.double(), rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("form", ["pair", "loader"])
def test_a_step_is_pytorchs(form: str) -> None:
    module, (x, y) = mlp(), xy()
    data = (x, y) if form == "pair" else DataLoader(TensorDataset(x, y), batch_size=4)
    assert_like(pockfarm.fine_tune(module, x, data, spec=SPEC, steps=1), after_a_step(module, x, y))


def test_an_epoch_of_steps_of_two_micro_batches_is_one_step_of_all_samples() -> None:
    module, (x, y) = mlp(), xy()
    half = len(x) // 2
    tuned = pockfarm.fine_tune(module, x[:half], (x, y), spec={**SPEC, "batch": half, "accumulate": 2}, epochs=1)
    assert_like(tuned, after_a_step(module, x, y))
    assert len(tuned.losses) == 1


def test_a_file_of_data_a_plan_in_text_and_a_spec_in_a_file(tmp_path: Path) -> None:
    module, (x, y) = mlp(), xy()
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    (tmp_path / "spec.yaml").write_text("optimizer: {kind: sgd, learning_rate: 0.1}")
    module[0].requires_grad_(False)
    tuned = pockfarm.fine_tune(
        module,
        x,
        tmp_path / "data.npz",
        plan="update: [{parameters: ['3.*']}]",
        spec=str(tmp_path / "spec.yaml"),
        epochs=1,
    )
    assert_like(tuned, after_a_step(module, x, y))
    assert len(tuned.losses) == 1


def test_the_module_stays_as_it_was() -> None:
    module, (x, y) = mlp(), xy()
    module.train()
    module[2].eval()
    module[0].bias.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    random = torch.random.get_rng_state()
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=2)
    assert [part.training for part in module.modules()] == [True, True, True, False, True]
    assert [one.requires_grad for one in module.parameters()] == [True, False, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())
    assert torch.equal(tuned["0.bias"], before["0.bias"])
    assert not torch.equal(tuned["0.weight"], before["0.weight"])
    (told,) = [warning for warning in tuned.warnings if warning.code == "fine_tune.frozen"]
    assert "0.bias" in told.message


def test_tied_tensors_come_home_under_all_their_names() -> None:
    torch.manual_seed(0)
    module = Tied()
    x, y = torch.randint(0, 11, (4, 6)), torch.randint(0, 11, (4, 6))
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    assert_like(tuned, after_a_step(module, x, y))
    assert torch.equal(tuned["embed.weight"], tuned["head.weight"])
    assert torch.equal(tuned["scale"], module.scale)


def test_an_onnx_file_comes_home_too() -> None:
    module, (x, y) = mlp().eval(), xy()
    buffer = io.BytesIO()
    torch.onnx.export(module, (x,), buffer, dynamo=False)
    wanted = after_a_step(module, x, y)
    tuned = pockfarm.fine_tune(buffer.getvalue(), data=(x, y), spec={**SPEC, "batch": 8}, steps=1)
    assert set(tuned) == set(wanted)
    assert all(np.allclose(tuned[name], exact, rtol=1e-5, atol=1e-6) for name, exact in wanted.items())
    session = onnxruntime.InferenceSession(tuned.onnx, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tuned.items()}, strict=True)
    with torch.no_grad():
        assert np.allclose(logits, module(x).numpy(), rtol=1e-5, atol=1e-6)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "half": (lambda m, x, y: (m.half(), x, (x, y), {}), r"0.weight is float16.*\n.*module.float\(\)"),
    "no module": (lambda m, x, y: (3, x, (x, y), {}), "expected a torch.nn.Module"),
    "example": (lambda m, x, y: (m, x[:, :2], (x, y), {}), "does not take example_inputs: "),
    "shape": (lambda m, x, y: (m, x, (x[:, :4], y), {}), r"'input' have shape \[4\].*example_inputs \[5\]"),
    "samples": (lambda m, x, y: (m, x, (x, y[:3]), {}), "different numbers of samples"),
    "labels": (lambda m, x, y: (m, x, {"input": x}, {}), "data has no labels"),
    "label type": (lambda m, x, y: (m, x, (x, y.float()), {}), "the labels are float32, the step reads int64"),
    "input type": (lambda m, x, y: (m, x, (x.long(), y), {}), "are int64, the step reads float32"),
    "name": (lambda m, x, y: (m, x, {"image": x, "y": y}, {}), "no array for input 'input'"),
    "long": (lambda m, x, y: (m, x, (x, y), {"steps": 10**6}), "steps"),
    "length": (lambda m, x, y: (m, x, (x, y), {"steps": 1, "epochs": 1}), "steps and epochs"),
    "steps": (lambda m, x, y: (m, x, (x, y), {"steps": 0}), "steps"),
    "plan": (lambda m, x, y: (m, x, (x, y), {"plan": "update: [{parameters: [z]}]"}), "no parameter is called 'z'"),
    "spec": (lambda m, x, y: (m, x, (x, y), {"spec": {"bach": 3}}), "did you mean 'batch'"),
    "data": (lambda m, x, y: (m, x, 3, {}), "data is int; expected"),
    "frozen": (lambda m, x, y: (m.requires_grad_(False), x, (x, y), {}), r"no parameter .* requires a .*grad_\(\)"),
    "meta": (lambda m, x, y: (m.to("meta"), x, (x, y), {}), r"0.weight is on the meta device.*\n.*to_empty"),
    "class": (lambda m, x, y: (nn.Linear, x, (x, y), {}), "the class Linear; make one of it"),
    "no example": (lambda m, x, y: (m, None, (x, y), {}), "a module needs example_inputs"),
    "no data": (lambda m, x, y: (m, x, None, {}), "there is no data"),
    "column": (lambda m, x, y: (m, x, (x, y[:, None]), {}), r"the number of its class: y.squeeze"),
    "one-hot": (lambda m, x, y: (m, x, (x, nn.functional.one_hot(y, 3)), {}), r"the number of its class: y.argmax"),
    "preset": (lambda m, x, y: (m, x, (x, y), {"plan": "bais-only"}), "no preset is called 'bais-only'"),
    "steps 2.0": (lambda m, x, y: (m, x, (x, y), {"steps": 2.0}), "steps must be a whole number"),
    "epochs": (lambda m, x, y: (m, x, (x, y), {"epochs": 1e9}), "epochs are 1,000,000,000 steps"),
    "file": (lambda m, x, y: ("gone.onnx", None, (x, y), {}), "gone.onnx: No such file"),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_cannot_be_is_refused(what: str) -> None:
    make, words = REFUSED[what]
    model, example, data, more = make(mlp(), *xy())
    with pytest.raises(UsageError, match=words) as caught:
        pockfarm.fine_tune(model, example, data, **more)
    assert len(str(caught.value).splitlines()) <= 3


def test_a_module_that_only_the_old_exporter_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from pockfarm.fine_tuning import torch_export

    def broken(*_: object) -> bytes:
        raise RuntimeError("no decomposition for example::operator\nand so on")

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    x, y = torch.randn(4, 3, 5, 5), torch.randint(0, 3, (4,))
    monkeypatch.setattr(torch_export, "_by_dynamo", broken)
    tuned = pockfarm.fine_tune(module, x, (x, y), spec={**SPEC, "batch_norm": "frozen"}, steps=1)
    assert_like(tuned, after_a_step(module, x, y))
    (told,) = [warning for warning in tuned.warnings if warning.code == "fine_tune.old_exporter"]
    assert "no decomposition for example::operator" in told.message
    monkeypatch.setattr(torch_export, "_by_torchscript", broken)
    with pytest.raises(UsageError, match="cannot export this module") as caught:
        pockfarm.fine_tune(module, x, (x, y))
    assert len(str(caught.value).splitlines()) == 3


def test_a_package_that_exports_need_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxscript"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Without("onnxscript"), *sys.meta_path])
    read_once = _registration.ONNXRegistry.from_torchlib  # by `prepare_exporter_once`: it does without the package
    monkeypatch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(read_once.__wrapped__))
    module, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.randint(0, 2, (4,))
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    (told,) = [warning for warning in tuned.warnings if warning.code == "fine_tune.old_exporter"]
    assert told.hint.endswith("python -m pip install onnxscript")


class Without(importlib.abc.MetaPathFinder):
    """Python as it is where a package is not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Reversed(torch.autograd.Function):
    """Hands its operand on, and the gradient back with the other sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Adversary(nn.Module):
    """Its first layer learns against the second, which the file does not tell."""

    def __init__(self, *, against: bool) -> None:
        super().__init__()
        self.a, self.b, self.against = nn.Linear(5, 4), nn.Linear(4, 3), against

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.a, x, use_reentrant=True)
        return self.b(Reversed.apply(h) if self.against else h)


@pytest.mark.parametrize("against", [True, False])
def test_a_gradient_of_the_modules_own_is_told(against: bool, tmp_path: Path) -> None:
    """PyTorch's own functions have the gradient of what they compute: nothing is said of them."""
    apply = torch.autograd.Function.apply
    with ExitStack() as opened:
        brought = brought_module(Adversary(against=against), xy()[0], Wanted(8), tmp_path, opened)
    told = [warning.message for warning in brought.warnings if warning.code == "fine_tune.own_gradients"]
    assert [text.split(":")[0] for text in told] == ["Reversed"] * against
    assert torch.autograd.Function.apply == apply


class Several(nn.Module):
    """Gives a mapping of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"first": self.a(x), "second": self.b(x)}


@pytest.mark.parametrize(("output", "learned"), [(None, "a"), ("second", "b"), (1, "b")])
def test_one_of_several_outputs_is_chosen(output: str | int | None, learned: str) -> None:
    x, y = xy()
    tuned = pockfarm.fine_tune(Several(), x, (x, y), spec=SPEC, steps=1, output=output)
    assert tuned.changed == (f"{learned}.bias", f"{learned}.weight")
    codes = [warning.code for warning in tuned.warnings]
    assert ("fine_tune.output_assumed" in codes) == (output is None)


def test_several_losses_read_several_outputs() -> None:
    x, y = xy()
    targets = torch.randn(8, 3)
    module = Several()
    spec = {
        **SPEC,
        "loss": {
            "terms": [
                {"kind": "cross_entropy", "output": "first", "labels": "classes"},
                {"kind": "mse", "output": "second", "labels": "boxes", "weight": 0.5},
            ]
        },
    }
    tuned = pockfarm.fine_tune(module, x, (x, {"classes": y, "boxes": targets}), spec=spec, steps=1)
    own = copy.deepcopy(module).double()
    given = own(x.double())
    loss = nn.functional.cross_entropy(given["first"], y)
    (loss + 0.5 * nn.functional.mse_loss(given["second"], targets.double())).backward()
    wanted = {name: (one - 0.1 * one.grad).detach() for name, one in own.named_parameters() if one.grad is not None}
    assert_like(tuned, wanted)


def test_an_output_that_is_not_there() -> None:
    x, y = xy()
    with pytest.raises(UsageError, match="no output 'third'; it gives: first, second"):
        pockfarm.fine_tune(Several(), x, (x, y), output="third")


@pytest.mark.parametrize("names", ["pockfarm, pockfarm.client", "pockfarm.cli"])
def test_the_client_and_the_command_load_nothing_heavy(names: str) -> None:
    script = f"import sys, {names}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"httpx", "numpy", "onnx", "torch", "compiler.trained", "safetensors"} & set(loaded)


def test_lists_arrays_and_pairs_mean_what_tensors_do() -> None:
    module, (x, y) = mlp(), xy()
    wanted = after_a_step(module, x, y)
    for example, data in ((x.numpy(), (x.tolist(), y.tolist())), (x, [x, y]), (x, (list(x), y))):
        assert_like(pockfarm.fine_tune(module, example, data, spec=SPEC, steps=1), wanted)


def test_what_is_ignored_is_a_warning() -> None:
    module, (x, y) = mlp(), xy()
    tuned = pockfarm.fine_tune(module, x, {"input": x, "y": y, "weights": y}, spec=SPEC, steps=1, output="scores")
    assert [one.code for one in tuned.warnings] == ["fine_tune.output_assumed", "fine_tune.data_ignored"]
    assert "weights" in tuned.warnings[1].message


class Halved(torch.autograd.Function):
    """Its forward runs with gradients off, and turns them on and off besides: it has a gradient all the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 0.25
        with torch.enable_grad():
            y = y + y
        return y.clone()

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        return d_y * 0.5


class Teacher(nn.Module):
    """Parts of it run under `torch.no_grad()`: one of its own layers, and one that learns elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher, self.head = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = Halved.apply(torch.relu(self.student(x)))
        with torch.no_grad():
            gate = torch.sigmoid(self.student(x))
            with torch.no_grad():
                gate = gate * 2
            target = self.teacher(x).tanh_()
        return self.head(h * gate + target)


def test_what_runs_without_gradients_passes_none() -> None:
    torch.manual_seed(3)
    module, (x, y) = Teacher(), xy()
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    nn.functional.cross_entropy(module(x), y).backward()
    for name, tensor in module.named_parameters():
        step = torch.zeros_like(tensor) if tensor.grad is None else 0.1 * tensor.grad
        torch.testing.assert_close(tuned[name], tensor.detach() - step, rtol=0, atol=1e-6)
    assert {name.split(".")[0] for name in tuned.changed} == {"student", "head"}
    assert {one.code for one in tuned.warnings} == {"plan.left_out", "fine_tune.own_gradients"}
    assert torch.is_grad_enabled()
    assert "forward" not in vars(module)


class Weighed(nn.Module):
    """Two inputs of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.layer(x) * scale


def test_a_mapping_may_name_arguments_in_any_order() -> None:
    (x, y), module = xy(), Weighed()
    scale = torch.rand(8, 3)
    tuned = pockfarm.fine_tune(module, {"scale": scale, "x": x}, {"x": x, "scale": scale, "y": y}, spec=SPEC, steps=1)
    nn.functional.cross_entropy(module(x, scale), y).backward()
    for name, tensor in module.named_parameters():
        assert tensor.grad is not None
        torch.testing.assert_close(tuned[name], tensor.detach() - 0.1 * tensor.grad, rtol=0, atol=1e-6)
