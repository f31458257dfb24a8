"""What PyTorch's exporter did to a module's parameters is undone, or said; a record that lies breaks nothing."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import ModelError, PlanError
from compiler.frontend.file.torch_record import SIGNATURE
from compiler.graph import Graph
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.named import stored
from tests.models import Exporter, export

FULL = SparsePlan.of_preset("full")


class Blocks(nn.Module):
    """Two convolutions with norms: a deep copy of one, or the same one twice."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
        block[1].bias.data.normal_()
        self.first = block
        self.second = block if shared else copy.deepcopy(block)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).mean((2, 3))


class Decoder(nn.Module):
    """Cross-attention slices its merged projections; the query token is repeated for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 3, 8))
        self.positions = nn.Parameter(torch.randn(1, 9, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.query.expand(x.shape[0], -1, -1), x + self.positions[:, : x.shape[1]])


class Turned(nn.Module):
    """A weight that is read transposed, beside a token that every sample gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8))
        self.token = nn.Parameter(torch.randn(1, 8))
        self.spare = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.token.expand(x.shape[0], -1)) @ self.weight.t()


class Looked(nn.Module):
    """Rows of a table at fixed positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(2) + 1)


def graph_of(module: nn.Module, *shape: int, exporter: Exporter = "dynamo") -> Graph:
    torch.manual_seed(0)
    data = export(module.eval(), (torch.randn(*shape),), exporter=exporter, dynamic_batch=False)
    return imported(data, batch=shape[0], batch_norm="frozen")


def assert_holds(graph: Graph, module: nn.Module, *, without: tuple[str, ...] = ()) -> None:
    state = {name: tensor for name, tensor in module.named_parameters() if name not in without}
    assert set(graph.named_parameters()) == set(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(stored(graph)[name], tensor.detach().numpy())


def test_merged_projections_and_repeated_tokens_of_an_unoptimized_export() -> None:
    module = Decoder()
    assert_holds(graph_of(module, 2, 3, 8, exporter="dynamo-unoptimized"), module)


def test_a_folded_transpose_and_a_folded_repetition_are_views_again() -> None:
    module = Turned()
    graph = graph_of(module, 2, 8)
    assert_holds(graph, module, without=("spare",))
    assert {warning.code: warning.where for warning in graph.warnings} == {
        "model.folded_view": "parameter 'token'",
        "model.absent_parameters": "spare",
    }
    assert not graph.unlearnable


def test_looked_up_rows_learn_in_place_of_their_table_and_that_is_said() -> None:
    graph = graph_of(Looked(), 2, 8)
    ((name, parameter),) = graph.named_parameters().items()
    assert parameter.file_shape == (2, 8)
    (warning,) = graph.warnings
    assert warning.code == "model.folded_view"
    assert "table.weight" in warning.where
    assert name in warning.message


class Scaled(nn.Module):
    """Arithmetic on a parameter inside one operator of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.out = nn.Parameter(torch.randn(8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.add(x, self.shift, alpha=2))


def test_arithmetic_inside_an_operator_is_not_taken_for_a_view() -> None:
    graph = graph_of(Scaled(), 2, 8)
    assert set(graph.unlearnable) == {"shift"}
    assert set(graph.named_parameters()) == {"out.weight", "out.bias"}
    with pytest.raises(PlanError, match=r"shift cannot learn.*exporter folded it"):
        resolve_plan(graph, SparsePlan.parse("update: [{parameters: shift}]"))
    module = Scaled()
    assert_holds(graph_of(module, 2, 8, exporter="dynamo-unoptimized"), module)


def test_convolutions_with_folded_norms_that_were_merged_are_refused() -> None:
    apart = graph_of(Blocks(shared=False), 2, 3, 6, 6)
    assert {"first.0.weight", "second.0.weight"} <= set(apart.unlearnable)
    with pytest.raises(PlanError, match=r"^plan\.update\[0\]: first\.0\.weight"):
        resolve_plan(apart, SparsePlan.parse("update: [{parameters: '*'}]"))
    module = Blocks(shared=True)
    assert_holds(graph_of(module, 2, 3, 6, 6, exporter="dynamo-unoptimized"), module)


@pytest.mark.parametrize(
    "lie",
    [
        "p_weight: PARAMETER target='token'\np_token: PARAMETER target='weight'\nx: USER_INPUT\n",
        "p_weight: PARAMETER target='weight'\np_token: PARAMETER target='weight'\n",
        "p_weight: BUFFER target='weight'\n",
        "x: PARAMETER target='x'\np_token: PARAMETER target=''\n",
        "p_weight: PARAMETER target='" + "w" * 5000 + "'\n",
        "p_weight: PARAMETER target='input'\nadd: PARAMETER target='logits'\n",
    ],
)
def test_a_record_that_lies_gives_a_graph_or_a_typed_refusal(lie: str) -> None:
    model = onnx.load_from_string(export(Turned().eval(), (torch.randn(2, 8),), dynamic_batch=False))
    for item in model.graph.metadata_props:
        if item.key == SIGNATURE:
            item.value = f"\n# inputs\n{lie}\n# outputs\nmatmul: USER_OUTPUT\n"
    try:
        graph = imported(model.SerializeToString())
    except ModelError:
        return
    assert set(graph.parameters) <= set(graph.arrays)
