"""Biases that a plan creates: which layers get one, what it is called, what it costs, and what is said."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings
from compiler.errors import ModelError, PlanError
from compiler.frontend.importer import import_model
from compiler.frontend.source_passes import Wishes
from compiler.graph import Graph
from compiler.kernels.spec import signature
from compiler.pipeline import walk
from compiler.program.program import Program
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import decide_plan
from compiler.targets import load
from tests.compiler.frontend.onnx_graphs import imported, model_of, node
from tests.models import Exporter, export

EXPORTERS: tuple[Exporter, ...] = ("dynamo", "dynamo-unoptimized", "torchscript")
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    """Layers with and without biases, a norm behind one, and a head that is tied to a table."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.conv, self.normed = nn.Conv2d(3, 4, 3, bias=bias), nn.Conv2d(4, 6, 1, bias=False)
        self.norm, self.has = nn.BatchNorm2d(6), nn.Linear(6, 6)
        self.fc, self.table = nn.Linear(6, 8, bias=bias), nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=bias)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.normed(torch.tanh(self.conv(x))))).mean((2, 3))
        return self.head(torch.tanh(self.fc(torch.tanh(self.has(x)))))


@pytest.fixture(scope="module")
def models() -> dict[str, bytes]:
    torch.manual_seed(0)
    net = Net().eval()
    return {exporter: export(net, (torch.randn(2, 3, 8, 8),), exporter=exporter) for exporter in EXPORTERS}


def with_biases(model: bytes, *targets: str) -> Graph:
    return import_model(model, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(create_biases=targets))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_layer_without_one_gets_a_bias_under_the_modules_name(models: dict[str, bytes], exporter: str) -> None:
    graph = with_biases(models[exporter], "*")
    assert graph.origins.created == ("conv.bias", "fc.bias", "head.bias")
    own = {known.name: (value, known) for value, known in graph.parameters.items()}
    for name, size in (("conv.bias", 4), ("fc.bias", 8), ("head.bias", 10)):
        value, known = own[name]
        assert (known.kind, known.created, known.shape) == ("bias", True, (size,))
        assert not np.any(graph.arrays[value])
    before = import_model(models[exporter], input_shapes={}, batch=2, batch_norm="fold")
    kept = [known for known in graph.parameters.values() if known.name not in graph.origins.created]
    assert {known.name for known in kept} == {known.name for known in before.parameters.values()}


def test_what_was_created_and_what_was_left_out_is_said(models: dict[str, bytes]) -> None:
    told = {one.code: one for one in with_biases(models["dynamo-unoptimized"], "*").warnings}
    assert "conv.bias, fc.bias, head.bias" in told["plan.biases_created"].message
    assert "normed.bias" in told["plan.biases_left_out"].message
    assert "norm" in told["plan.biases_left_out"].hint
    only = with_biases(models["dynamo"], "fc", "conv.weight")
    assert only.origins.created == ("conv.bias", "fc.bias")
    assert "plan.biases_left_out" not in {one.code for one in only.warnings}


@pytest.mark.parametrize(
    ("targets", "where", "reason"),
    [
        (("has",), "plan.create_biases[0]", "'has.weight' takes no bias: it has one already"),
        (("has*",), "plan.create_biases[0]", "has one already"),
        (("fc", "normed"), "plan.create_biases[1]", "the norm behind it adds one"),
        (("haed",), "plan.create_biases[0]", "no layer is called 'haed' (did you mean head"),
        (("zzz*",), "plan.create_biases[0]", "its layers are such as conv, normed, has, fc"),
    ],
)
def test_a_target_that_means_nothing_is_refused(
    models: dict[str, bytes], targets: tuple[str, ...], where: str, reason: str
) -> None:
    with pytest.raises(PlanError) as problem:
        with_biases(models["dynamo-unoptimized"], *targets)
    assert problem.value.where == where
    assert reason in f"{problem.value.message} ({problem.value.hint})"


def test_a_name_that_something_else_has_is_refused() -> None:
    arrays = {"fc.weight": np.ones((4, 4), np.float32), "fc.bias": np.ones(4, np.float32)}
    nodes = [node("MatMul", ["x", "fc.weight"], ["y"]), node("Mul", ["y", "fc.bias"], ["z"])]
    with pytest.raises(PlanError, match=r"^plan\.create_biases\[0\]: .*'fc\.bias'"):
        with_biases(model_of(nodes, {"x": ("f32", (2, 4))}, ["z"], arrays), "fc")


def test_a_weight_on_the_left_takes_none_and_a_third_operand_of_the_files_is_none() -> None:
    arrays = {"w": np.ones((4, 2), np.float32), "b": np.ones(3, np.float32)}
    left = model_of([node("MatMul", ["w", "x"], ["y"])], {"x": ("f32", (2, 3))}, ["y"], arrays)
    with pytest.raises(PlanError, match="stands on the left"):
        with_biases(left, "w")
    odd = model_of([node("MatMul", ["x", "w", "b"], ["y"])], {"x": ("f32", (2, 4))}, ["y"], arrays, infer_shapes=False)
    assert [one.op for one in imported(odd)] == ["matmul"]


def test_a_transpose_that_fits_nothing_is_refused_as_a_models_fault() -> None:
    nodes = [node("Transpose", ["w"], ["t"], perm=[0, 7]), node("MatMul", ["x", "t"], ["y"])]
    odd = model_of(nodes, {"x": ("f32", (2, 4))}, ["y"], {"w": np.ones((4, 4), np.float32)}, infer_shapes=False)
    with pytest.raises(ModelError):
        with_biases(odd, "*")


def test_a_created_bias_that_does_not_learn_is_said(models: dict[str, bytes]) -> None:
    graph = with_biases(models["dynamo"], "*")
    codes = {
        text: {one.code for one in decide_plan(graph, SparsePlan.parse(text)).warnings}
        for text in ("preset: bias-only", "preset: full", "update: [{parameters: fc.weight}]")
    }
    assert [("plan.created_bias_frozen" in codes[text]) for text in codes] == [False, False, True]
    with pytest.raises(PlanError, match=r"trains nothing.*bias-only"):
        SparsePlan.parse({"create_biases": "*"})


def test_a_plan_without_the_field_has_the_text_that_it_had() -> None:
    assert "create_biases" not in SparsePlan.parse("full").canonical_json()
    told = SparsePlan.parse({"preset": "full", "create_biases": "fc"})
    assert SparsePlan.parse(told.canonical_json()) == told


@pytest.mark.thorough
def test_it_costs_what_a_bias_costs() -> None:
    """The same kernels as of the module that was made with biases: in the product's epilogue, and their gradients."""
    torch.manual_seed(1)
    net, made = Net().eval(), Net(bias=True).eval()
    state = copy.deepcopy(net.state_dict())
    made.load_state_dict({**made.state_dict(), **state})
    for name, tensor in made.named_parameters():
        if name not in state:
            nn.init.normal_(tensor)
    x, create = (torch.randn(2, 3, 8, 8),), {"create_biases": "*"}
    plain, biased = export(net, x), export(made, x)
    for preset in ("full", "bias-only"):
        ours = kernels(plain, {"preset": preset, **create})
        assert ours == kernels(biased, {"preset": preset})
        assert ours != kernels(plain, {"preset": preset})


def kernels(model: bytes, plan: dict[str, str]) -> Counter[str]:
    """The kernels of a step, as they are before memory is planned."""
    spec = TrainingSpec.parse({"batch": 2})
    settings = BuildSettings(plan=SparsePlan.parse(plan), spec=spec, target=load("x86-64-v3"), cache_dir=None, jobs=1)
    scheduled = next(stage.product for stage in walk(model, settings) if stage.name == "schedule")
    assert isinstance(scheduled, tuple)
    programs = [one for one in scheduled if isinstance(one, Program)]
    return Counter(signature(call.spec) for program in programs for call in program.calls)
