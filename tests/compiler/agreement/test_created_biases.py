"""Biases that a plan creates: each step as the author's module with `nn.Parameter` biases of zeros, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import pockfarm
from compiler.spec.documents import SparsePlan
from tests.compiler.agreement.cases import ADAMW, SGD, images
from tests.compiler.agreement.course import course, run_step_at
from tests.compiler.agreement.harness import Built, Case, build, problems
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import ten_steps_on_onnx_runtime
from tests.compiler.agreement.step_binary import native_target
from tests.models import export, transformers_model
from tests.sample import sample

STEPS = 3
LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
pytestmark = pytest.mark.filterwarnings("ignore")


class Plain(nn.Module):
    """Convolutions of every kind and linear layers on vectors and on rows, none with a bias but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2, bias=False)
        self.point = nn.Conv2d(12, 8, 1, bias=False)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2, bias=False)
        self.rows = nn.Linear(6, 10, bias=False)
        self.twice = nn.Linear(10, 10, bias=False)
        self.classifier = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.depthwise(torch.tanh(self.stem(x))))
        x = torch.tanh(self.up(torch.tanh(self.point(torch.tanh(self.grouped(x))))))
        x = torch.tanh(self.rows(x.flatten(2).transpose(1, 2))).mean(1)
        return self.classifier(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


def with_biases(module: nn.Module) -> nn.Module:
    """The author's module as if all its layers had been made with biases, zeros."""
    own = copy.deepcopy(module)
    for layer in own.modules():
        if isinstance(layer, LAYERS) and layer.bias is None:
            outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
            layer.bias = nn.Parameter(torch.zeros(outputs))
    return own


def cnn() -> Case:
    torch.manual_seed(3)
    module = Plain().eval()
    reference = ModuleReference.of(with_biases(module))
    plan = SparsePlan.parse({"preset": "full", "create_biases": "*"})
    model = export(module, (torch.randn(2, 3, 8, 8),))
    return Case(model, reference, plan, 4, images(8), lambda rng, batch: rng.integers(0, 4, batch), ADAMW)


def llama() -> Case:
    """A decoder without a single bias, of which biases are all that learns."""
    module, inputs, names = transformers_model("llama")
    torch.manual_seed(4)
    plan = SparsePlan.parse({"preset": "bias-only", "create_biases": ["*_proj", "model.model.lay*.mlp.*"]})
    wanted = with_biases(module)
    wanted.model.lm_head.bias = None
    model = export(module, inputs(4), input_names=names, exporter="dynamo-unoptimized")
    return Case(
        model,
        ModuleReference.of(wanted, names),
        plan,
        2,
        lambda rng, batch: {
            "input_ids": rng.integers(0, 100, (batch, 8)),
            "attention_mask": np.ones((batch, 8), np.int64),
        },
        lambda rng, batch: rng.integers(0, 100, (batch, 8)),
        {**SGD, "learning_rate": 0.5},
    )


CASES: dict[str, Callable[[], Case]] = {"cnn": cnn, "llama": llama}


@pytest.mark.parametrize("name", sample(sorted(CASES), {"cnn"}))
def test_steps_agree_with_a_module_that_has_the_biases(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    built = build(CASES[name](), native_target(), tmp_path, kernel_cache)
    assert any(one.endswith("bias") for one in built.plan)
    wrong = []
    for at in course(built, STEPS):
        wrong += problems(built, run_step_at(built, at))
    assert not wrong
    assert all(at.weights[one].any() for one in _created(built)), "a bias that did not learn shows nothing"
    ten_steps_on_onnx_runtime(built)


def _created(built: Built) -> list[str]:
    biases = [one for one in built.plan if one.endswith("bias")]
    assert len(biases) > 5
    return biases


RATE, TRAINED = 0.5, 4


@pytest.mark.thorough
def test_a_module_comes_back_with_biases_that_it_takes_strictly(tmp_path: Path) -> None:
    """BitFit on a module that freezes all it has: what comes back is what PyTorch's SGD makes of the biases."""
    torch.manual_seed(5)
    module = Plain().eval().requires_grad_(requires_grad=False)
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((4, 3, 8, 8)).astype(np.float32), rng.integers(0, 4, 4)
    tuned = pockfarm.fine_tune(
        module,
        torch.from_numpy(x),
        (x, y),
        plan={"preset": "bias-only", "create_biases": "*"},
        steps=TRAINED,
        spec={"optimizer": {"kind": "sgd", "learning_rate": RATE, "momentum": 0.9}},
    )
    wanted = _trained(with_biases(module), x, y)
    assert set(tuned.created) == wanted.keys() - module.state_dict().keys() == set(tuned.changed)
    assert "plan.biases_created" in {warning.code for warning in tuned.warnings}
    fresh = with_biases(Plain()).eval()
    fresh.load_state_dict(tuned)
    for name, tensor in fresh.state_dict().items():
        np.testing.assert_allclose(tensor, wanted[name], rtol=2e-4, atol=2e-6, err_msg=name)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*stem\.bias"):
        module.load_state_dict(tuned)
    tuned.save_delta(tmp_path / "biases.delta")
    whole = pockfarm.apply_delta(module.state_dict(), tmp_path / "biases.delta")
    assert whole.keys() == tuned.keys()
    assert all(torch.equal(whole[name], tuned[name]) for name in tuned)
    assert set(pockfarm.give_biases(module, whole)) == set(tuned.created)
    module.load_state_dict(whole)
    session = onnxruntime.InferenceSession(tuned.onnx, providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(answer, module(torch.from_numpy(x)).detach(), rtol=1e-4, atol=1e-5)


def _trained(module: nn.Module, x: np.ndarray, y: np.ndarray) -> dict[str, Tensor]:
    """The state after PyTorch's own steps in float64, in which the biases that require gradients learn."""
    own, learning = module.double(), [tensor for tensor in module.parameters() if tensor.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=RATE, momentum=0.9)
    for _ in range(TRAINED):
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
        optimizer.step()
    return own.state_dict()
