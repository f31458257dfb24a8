"""A plan or a loss that does something else than its words is told, or refused. Models are real exports of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import PlanError, SpecError
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import LossSpec, SparsePlan, TrainingSpec
from compiler.step.loss import attach_loss
from compiler.step.plan import decide_plan, resolve_plan
from compiler.warnings import CompileWarning
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.models import Exporter, export, transformers_model
from tests.sample import sample

# ---------------------------------------------------------------------------------------------------------- the plan


def forward(model: bytes, batch: int = 2, **shapes: tuple[int, ...]) -> Graph:
    return run_passes(import_model(model, input_shapes=shapes, batch=batch, batch_norm="fold"), FORWARD_PASSES)


class Layers(nn.Module):
    """A wide and a narrow layer, a norm, and one weight that two places read."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 4), nn.Linear(4, 8)
        self.norm, self.shared = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.narrow(torch.relu(self.wide(x)))))
        return self.shared(torch.relu(self.shared(x)))


def layers() -> Graph:
    torch.manual_seed(0)
    model = Layers()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return forward(export(model.eval(), (torch.randn(2, 16),)))


def told(graph: Graph, plan: str) -> dict[str, str]:
    return {warning.code: warning.message for warning in decide_plan(graph, SparsePlan.parse(plan)).warnings}


def test_a_ratio_without_channels_names_what_learns_whole() -> None:
    graph = layers()
    plan = "{update: [{parameters: ['*'], ratio: 0.5}]}"
    resolved = resolve_plan(graph, SparsePlan.parse(plan))
    whole = [graph.names[value] for value, part in resolved.items() if part.is_whole]
    assert set(whole) == {"wide.bias", "narrow.bias", "norm.weight", "norm.bias", "shared.weight", "shared.bias"}
    found = told(graph, plan)
    assert set(found) == {"plan.ratio_without_channels"}
    message = found["plan.ratio_without_channels"]
    assert message.startswith("6 parameters")
    assert message.endswith(" and 3 more")
    assert all(name in message for name in whole[:3])


def test_a_ratio_that_rounds_up_to_everything_is_told() -> None:
    plan = "{update: [{parameters: [wide.weight, narrow.weight], ratio: 0.9}]}"
    found = told(layers(), plan)
    assert set(found) == {"plan.ratio_rounded"}
    assert found["plan.ratio_rounded"].endswith(": narrow.weight")


def test_what_freezes_nothing_is_told() -> None:
    """A misspelt glob lets learn what it was to keep."""
    plan = SparsePlan.parse("{preset: full, frozen: ['wide.*', 'narow.bias']}")
    found = decide_plan(layers(), plan).warnings
    assert [(one.code, one.where) for one in found] == [("plan.frozen_unmatched", "plan.frozen")]
    assert "narow.bias" in found[0].message
    assert "wide" not in found[0].message
    assert "narrow.bias" in found[0].hint
    assert not told(layers(), "{preset: full, frozen: ['wide.*', narrow.bias]}")


def test_frozen_that_leaves_nothing_to_learn_is_named() -> None:
    with pytest.raises(PlanError, match="all 8 parameters that plan 'full' ") as refusal:
        resolve_plan(layers(), SparsePlan.parse("{preset: full, frozen: '*'}"))
    assert refusal.value.where == "plan.frozen"


@pytest.mark.parametrize(
    "plan",
    [
        "full",
        "bias-only",
        "{update: [{parameters: ['wide.weight'], ratio: 0.5}]}",
        "{update: [{parameters: ['norm.*'], ratio: 0.5}, {parameters: ['norm.*'], ratio: 1}]}",
        "{update: [{parameters: ['*'], ratio: 1}, {parameters: ['norm.*'], ratio: 0}]}",
    ],
)
def test_a_plan_that_does_what_it_says_is_taken_without_a_word(plan: str) -> None:
    assert told(layers(), plan) == {}


# ---------------------------------------------------------------------------------------------------------- the loss


class Segmenter(nn.Module):
    """Logits [N, classes, H, W], as PyTorch's cross_entropy takes them; `last` turns them to [N, H, W, classes]."""

    def __init__(self, *, last: bool = False, upsample: bool = False, softmax: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 5, 1)
        self.last, self.upsample, self.softmax = last, upsample, softmax

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.norm(self.first(x))))
        if self.upsample:
            x = torch.nn.functional.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)
        if self.softmax:
            x = torch.log_softmax(x, 1)
        return x.permute(0, 2, 3, 1) if self.last else x


class Sequence(nn.Module):
    """Logits of every position: [N, T, V], or turned to [N, V, T] for PyTorch's cross_entropy."""

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.first, self.second, self.turned = nn.Linear(6, 8), nn.Linear(8, 7), turned

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        return y.transpose(1, 2) if self.turned else y


class Patches(nn.Module):
    """Logits of patches, put back as an image [N, classes, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).transpose(1, 2).reshape(x.shape[0], 5, 4, 4)


class Product(nn.Module):
    """Class queries times features: [N, classes, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.fc = nn.Parameter(torch.randn(5, 8)), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.queries @ self.fc(x).transpose(1, 2)


IMAGE, POSITIONS = (2, 3, 8, 8), (2, 9, 6)
CLASSES_SECOND = {
    "convolution": (Segmenter(), IMAGE),
    "log-softmax": (Segmenter(softmax=True), IMAGE),
    "turned": (Sequence(turned=True), POSITIONS),
    "patches": (Patches(), (2, 16, 6)),
    "queries": (Product(), POSITIONS),
}


def exported(model: nn.Module, shape: tuple[int, ...], exporter: Exporter = "dynamo") -> Graph:
    torch.manual_seed(0)
    return forward(export(model.eval(), (torch.randn(*shape),), exporter=exporter, dynamic_batch=False))


@pytest.mark.parametrize("exporter", sample(["dynamo", "torchscript"], ["torchscript"]))
@pytest.mark.parametrize("name", CLASSES_SECOND)
def test_cross_entropy_over_another_axis_than_the_classes_is_refused(name: str, exporter: Exporter) -> None:
    graph = exported(*CLASSES_SECOND[name], exporter)
    with pytest.raises(SpecError) as caught:
        attach_loss(graph, LossSpec())
    refusal = str(caught.value)
    assert caught.value.code == "spec.invalid"
    for part in ("logits", "axis 1", "last", "loss: {class_axis: 1}"):
        assert part in refusal, refusal
    # mse compares element by element: the axis does not matter
    attach_loss(graph, LossSpec(kind="mse"))


CLASSES_LAST = {
    "convolution": (Segmenter(last=True), IMAGE),
    "log-softmax": (Segmenter(last=True, softmax=True), IMAGE),
    "language model": (Sequence(turned=False), POSITIONS),
}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", CLASSES_LAST)
def test_classes_in_the_last_axis_are_taken_without_a_word(name: str, exporter: Exporter) -> None:
    step = attach_loss(exported(*CLASSES_LAST[name], exporter), LossSpec())
    assert step.graph.warnings == ()


@pytest.mark.thorough
@pytest.mark.parametrize("name", sample(["gpt2", "llama"], {"gpt2"}))
def test_language_models_are_taken_without_a_word(name: str) -> None:
    model, inputs, names = transformers_model(name)
    graph = forward(export(model, inputs(2), input_names=names))
    codes = [warning.code for warning in attach_loss(graph, LossSpec()).graph.warnings]
    assert not [code for code in codes if code.startswith("loss.")]


def test_an_axis_that_nothing_tells_is_assumed_aloud() -> None:
    graph = exported(Segmenter(upsample=True), IMAGE)
    (warning,) = attach_loss(graph, LossSpec()).graph.warnings
    assert warning.code == "loss.class_axis_assumed"
    assert "[2, 5, 16, 16]" in warning.message


def test_cross_entropy_over_one_class_is_refused() -> None:
    stored = {"w": np.random.default_rng(0).standard_normal((4, 1)).astype(np.float32)}
    graph = forward(model_of([node("MatMul", ["x", "w"], ["y"])], {"x": ("f32", ("batch", 4))}, initializers=stored))
    with pytest.raises(SpecError, match="1 class"):
        attach_loss(graph, LossSpec())


def two_outputs() -> Graph:
    rng = np.random.default_rng(0)
    stored = {name: rng.standard_normal((4, 5)).astype(np.float32) for name in ("a", "b")}
    nodes = [node("MatMul", ["x", "a"], ["first"]), node("MatMul", ["x", "b"], ["second"])]
    return forward(model_of(nodes, {"x": ("f32", ("batch", 4))}, ("first", "second"), stored))


def test_an_output_that_is_assumed_is_told_and_a_chosen_one_is_not() -> None:
    (warning,) = attach_loss(two_outputs(), LossSpec()).graph.warnings
    assert isinstance(warning, CompileWarning)
    assert warning.code == "loss.output_assumed"
    assert "'first'" in warning.message
    assert "second" in warning.message
    assert attach_loss(two_outputs(), LossSpec(output="second")).graph.warnings == ()


def test_a_compile_says_all_of_it_in_order() -> None:
    """From the import to the loss, through `derive_training_step`."""
    from dataclasses import replace

    from compiler.pipeline import derive_training_step

    graph = two_outputs()
    graph = replace(graph, warnings=(CompileWarning("model.example", "", "is odd"),))
    plan = SparsePlan.parse("{update: [{parameters: ['a'], ratio: 0.9}]}")
    graph = replace(graph, warnings=(*graph.warnings, *decide_plan(graph, plan).warnings))
    step = derive_training_step(graph, resolve_plan(graph, plan), TrainingSpec.parse(""))
    assert [one.code for one in step.graph.warnings] == ["model.example", "plan.ratio_rounded", "loss.output_assumed"]
