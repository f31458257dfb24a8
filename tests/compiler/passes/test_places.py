"""Places of maxima in place of pools' inputs: the same gradients, to the bit, and as PyTorch has them in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.passes import CLEAN_UP, FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.passes.save_argmax_indices import save_argmax_indices
from compiler.rewriting.passes import until_stable
from compiler.rewriting.text import parse_graph
from compiler.spec.documents import LossSpec, SparsePlan
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from compiler.step.training import TrainingGraph
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.models import export

GOLDEN = Path(__file__).parents[1] / "goldens" / "save_argmax_indices.txt"


class Pools(nn.Module):
    """A layer, a ReLU, pools, more layers: of the ReLU's many zeros every window sees several.

    What the sines make is more than a pool's input: that would be kept for the ReLU else.
    """

    def __init__(self, first: nn.Module, *pools: nn.Module) -> None:
        super().__init__()
        self.first, self.pools, self.last = first, nn.Sequential(*pools), nn.LazyLinear(5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pools(F.relu(self.first(x))).flatten(1)
        for _ in range(12):
            y = torch.sin(y)
        return self.last(y)


def _image() -> nn.Module:
    return nn.Conv2d(3, 16, 3, padding=1)


CASES: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "overlapping": ((3, 24, 24), lambda: Pools(_image(), nn.MaxPool2d(3, 2, 1)), 1),
    "one after another": ((3, 24, 24), lambda: Pools(_image(), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(5, 1, 2)), 2),
    "partly covered": ((3, 24, 28), lambda: Pools(_image(), nn.MaxPool2d(2, 3)), 1),
    "up to the edge": ((3, 24, 28), lambda: Pools(_image(), nn.MaxPool2d(3, 2, ceil_mode=True)), 1),
    "row": ((3, 400), lambda: Pools(nn.Conv1d(3, 16, 3, padding=1), nn.MaxPool1d(3, 2, 1)), 1),
    "volume": ((2, 6, 16, 16), lambda: Pools(nn.Conv3d(2, 8, 3, padding=1), nn.MaxPool3d((2, 3, 3), 2, (0, 1, 1))), 2),
}


def _module(name: str) -> tuple[nn.Module, Tensor]:
    """A module whose first layer makes few distinct numbers: maxima are met twice, in float32 and in float64."""
    torch.manual_seed(1)
    shape, make, _ = CASES[name]
    x = torch.randint(-1, 2, (2, *shape)).float()
    module = make().eval()
    with torch.no_grad():
        module(x)
        for parameter in module.first.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape).float())
    return module, x


def _step(model: bytes, plan: str) -> TrainingGraph:
    """Differentiated and cleaned up, before anything is kept in another form."""
    forward = run_passes(import_model(model, input_shapes={}, batch=2, batch_norm="fold"), FORWARD_PASSES)
    step = differentiate(attach_loss(forward, LossSpec()), resolve_plan(forward, SparsePlan.of_preset(plan)))
    return step.with_graph(run_passes(step.graph, (until_stable(CLEAN_UP),)))


def _pools(graph: Graph) -> list[str]:
    return sorted(node.op for node in graph.nodes if "max_p" in node.op)


def _pooled(graph: Graph) -> set[Value]:
    return {node.inputs[0] for node in graph.nodes if node.op == "max_pool_places"}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_same_to_the_bit_and_as_in_pytorch(name: str) -> None:
    module, x = _module(name)
    step = _step(export(module, (x,), dynamic_batch=False), "full")
    placed = run_passes(step.graph, TRAINING_PASSES)
    assert _pools(placed) == ["max_places_grad"] * CASES[name][2] + ["max_pool_places"] * CASES[name][2]
    assert _pooled(placed).isdisjoint(
        value for node in placed.nodes if node.phase != "forward" for value in node.inputs
    )
    labels = np.asarray([3, 1])
    feeds = {step.data_inputs[0]: x.numpy().astype(np.float64), step.labels: labels}
    exact, found = evaluate_graph(step.graph, feeds), evaluate_graph(placed, feeds)
    F.cross_entropy(module.double()(x.double()), torch.from_numpy(labels)).backward()
    own = dict(module.named_parameters())
    assert len(own) == len(step.gradients)
    for value, gradient in step.gradients.items():
        assert np.array_equal(exact[gradient], found[gradient])
        parameter = step.graph.parameters[value]
        wanted = own[parameter.name].grad
        assert wanted is not None
        np.testing.assert_allclose(parameter.to_file(found[gradient]), wanted.numpy(), rtol=1e-6, atol=1e-9)


def _before() -> str:
    return GOLDEN.read_text().split("--- before\n")[1].split("\n--- after")[0] + "\n"


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ("tail\n  output %7", "tail\n  output %7", {"places.kept"}),  # as it stands: a product reads the second input
        ("mul(%5, %9)", "mul(%9, %9)", set()),
        ("kernel=(3, 3), pads=(1, 1, 1, 1)", "kernel=(17, 17), pads=(8, 8, 8, 8)", {"places.kept", "places.window"}),
        ("less(%2, %3)", "less(%0, %3)", {"places.kept"}),
    ],
)
def test_where_nothing_is_gained_nothing_is_done(old: str, new: str, codes: set[str]) -> None:
    rewritten = save_argmax_indices(parse_graph(_before().replace(old, new), {}))
    assert {one.code for one in rewritten.declined} == codes
    kept = [node.op for node in rewritten.subject.nodes if node.op == "max_pool_grad"]
    assert len(kept) == len(rewritten.declined)


def test_small_tensors_are_left_alone() -> None:
    assert not save_argmax_indices(parse_graph(_before().replace("32, 32, 8", "32, 32, 1"), {})).modified
