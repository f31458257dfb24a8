"""What PyTorch's exporters do to parameters by default is undone: gradients beside the module's, under its names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.errors import PlanError
from compiler.graph import Graph
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.frontend.test_cuts_and_ties import assert_gradients, graph_of
from tests.compiler.named import stored
from tests.models import export

FULL = SparsePlan.of_preset("full")


class Recurrent(nn.Module):
    """Cells from a state of zeros, and a layer that the exporter unrolls: the first step is folded."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.cell, nn.RNN):
            return self.head(self.cell(x.transpose(0, 1))[0][-1])
        state = torch.zeros(x.shape[0], 5, dtype=x.dtype)
        cells = torch.zeros(x.shape[0], 5, dtype=x.dtype)
        for step in range(x.shape[1]):
            if isinstance(self.cell, nn.LSTMCell):
                state, cells = self.cell(x[:, step], (state, cells))
            else:
                state = self.cell(x[:, step], state)
        return self.head(state)


class Latents(nn.Module):
    """Learned queries that every sample gets, which the attention reads in another order too."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, 8))
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.latents.expand(x.shape[0], -1, -1)
        return self.head(queries @ self.mix(x).transpose(1, 2) @ x + (queries.transpose(0, 1) * 2).transpose(0, 1))


class Tokens(nn.Module):
    """Tokens of zeros in front of a sequence, as vision transformers start with; `spare` is one that nothing reads."""

    def __init__(self, count: int, spare: int = 0) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, 6))
        self.second = nn.Parameter(torch.zeros(1, 1, 6)) if count > 1 else None
        self.spare = nn.Parameter(torch.zeros(1, 1, 6)) if spare else None
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = [one.expand(x.shape[0], -1, -1) for one in (self.first, self.second) if one is not None]
        weights = torch.arange(1.0, x.shape[1] + len(tokens) + 1)[:, None]
        return self.head((torch.cat([*tokens, x], 1) * weights).tanh())


class Codebook(nn.Module):
    """Squared distances to the rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.head = nn.Embedding(7, 6), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.codes.weight
        return self.head(x.pow(2).sum(-1, keepdim=True) - 2 * x @ rows.t() + rows.pow(2).sum(-1))


class Logarithms(nn.Module):
    """Rates and scales that are learned as logarithms; `both` reads one of them as it is, too."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.rate, self.scale = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6) * 0.1)
        self.head, self.both = nn.Linear(6, 3), both

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x * -torch.exp(self.rate)) * self.scale.exp()
        return self.head(x + self.scale if self.both else x)


class Zeroed(nn.Module):
    """A convolution with a bias of zeros in front of a norm: the exporter drops the bias, then folds the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
        self.head = nn.Linear(4, 3)
        nn.init.zeros_(self.body[0].bias)
        for tensor in (self.body[1].weight, self.body[1].bias, self.body[1].running_mean):
            nn.init.uniform_(tensor, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Types(nn.Module):
    """Token types as BERT adds them: every position looks up the same row."""

    def __init__(self) -> None:
        super().__init__()
        self.types, self.head = nn.Embedding(2, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.types(torch.zeros(x.shape[:2], dtype=torch.long)))


class EqualScales(nn.Module):
    """Two equal scales: what the exporter computes of them is stored once, and the file tells of one only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.full((6,), 0.5)), nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.first.exp()) * self.second.exp()


class Saturated(nn.Module):
    """Gates so far open that float32 does not tell how far."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Parameter(torch.full((6,), 15.0) + torch.rand(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.gate.sigmoid())


class ShiftedNorms(nn.Module):
    """Fresh norms as Gemma has them, stored as one vector of ones: nothing in the graph tells what was added."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_Shifted(), nn.Linear(6, 6), _Shifted())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * (1.0 + self.weight.float())


EXACT = {
    "rnn": (lambda: Recurrent("RNN"), (2, 3, 4)),
    "rnn-cell": (lambda: Recurrent("RNNCell"), (2, 3, 4)),
    "gru-cell": (lambda: Recurrent("GRUCell"), (2, 3, 4)),
    "lstm-cell": (lambda: Recurrent("LSTMCell"), (2, 3, 4)),
    "token": (lambda: Tokens(1), (2, 3, 6)),
    "two-tokens": (lambda: Tokens(2), (2, 3, 6)),
    "codebook": (Codebook, (2, 6)),
}
"""Where the file holds every parameter, if not under its name."""
ROUNDED = {
    "logarithms": (lambda: Logarithms(both=False), (2, 6), {"rate", "scale"}),
    "logarithms-read-twice": (lambda: Logarithms(both=True), (2, 6), {"rate"}),
}
"""Where parameters are computed back."""


def _made(make: object, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    module = make()  # type: ignore[operator]
    return module, torch.randn(*shape)


def _said(graph: Graph, code: str) -> str:
    return " ".join(f"{one.where} {one.message}" for one in graph.warnings if one.code == code)


@pytest.mark.parametrize("name", EXACT)
def test_what_the_file_still_holds_learns_under_the_modules_names(name: str) -> None:
    module, x = _made(*EXACT[name])
    graph = graph_of(module, x, "dynamo")
    state = dict(module.named_parameters())
    assert set(graph.named_parameters()) == set(state)
    for parameter, tensor in state.items():
        np.testing.assert_array_equal(stored(graph)[parameter], tensor.detach().numpy())
    assert_gradients(graph, module, x)
    assert bool(_said(graph, "model.expanded")) == ("token" in name)


@pytest.mark.parametrize("name", ROUNDED)
def test_what_was_computed_with_is_computed_back_and_that_is_said(name: str) -> None:
    make, shape, recovered = ROUNDED[name]
    module, x = _made(make, shape)
    graph = graph_of(module, x, "dynamo")
    state = dict(module.named_parameters())
    assert set(graph.named_parameters()) == set(state)
    for parameter, tensor in state.items():
        rounding = 3e-7 if parameter in recovered else 0.0
        exact = tensor.detach().numpy()
        np.testing.assert_allclose(stored(graph)[parameter], exact, rtol=rounding, atol=rounding)
        assert (parameter in _said(graph, "model.recovered_parameters")) == (parameter in recovered)
    _same_start(graph, module)
    assert_gradients(graph, module, x)


def _same_start(graph: Graph, module: nn.Module) -> None:
    """Gradients are compared at the very point where the graph starts."""
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor.copy_(torch.from_numpy(np.array(stored(graph)[name])))


def test_latents_that_are_read_in_two_orders_are_one_parameter() -> None:
    module, x = _made(Latents, (2, 3, 8))
    graph = graph_of(module, x, "dynamo")
    assert set(graph.named_parameters()) == {name for name, _ in module.named_parameters()}
    gradients = _gradients_by_size(graph)
    assert gradients["latents"] == 5 * 8


def _gradients_by_size(graph: Graph) -> dict[str, int]:
    return {name: stored(graph)[name].size for name in graph.named_parameters()}


def test_a_bias_of_zeros_before_a_folded_norm_has_its_own_name() -> None:
    module, x = _made(Zeroed, (2, 2, 6, 6))
    graph = graph_of(module, x, "dynamo")
    assert set(graph.named_parameters()) == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}
    assert not graph.unlearnable


def test_a_row_that_every_position_looks_up_learns_once() -> None:
    module, x = _made(Types, (2, 3, 6))
    graph = graph_of(module, x, "dynamo")
    (rows,) = set(graph.named_parameters()) - {"head.weight", "head.bias"}
    np.testing.assert_array_equal(stored(graph)[rows], module.types.weight[:1].detach().numpy())
    assert "types.weight" in _said(graph, "model.folded_view")
    assert rows in _said(graph, "model.folded_view")


@pytest.mark.parametrize("make", [EqualScales, Saturated, ShiftedNorms, lambda: Tokens(2, spare=1)])
def test_what_the_file_leaves_open_is_refused(make: object) -> None:
    shape = (2, 3, 6) if not isinstance(make, type) else (2, 6)
    module, x = _made(make, shape)
    with pytest.raises(PlanError, match="cannot learn"):
        resolve_plan(graph_of(module, x, "dynamo"), SparsePlan.parse("update: [{parameters: '*'}]"))


class Inner(nn.Module):
    """A container that is not called, around layers of which one is called alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Outer(nn.Module):
    """Names that TorchScript shortens: `layers.layers.0`, and `model.inner` where `model` is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Inner()
        self.model = nn.Module()
        self.model.inner = nn.Linear(6, 6)
        self.body = nn.Sequential(nn.Conv1d(3, 4, 1, bias=False), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.model.inner(self.layers(x)))


def test_torchscripts_names_are_those_of_the_module() -> None:
    module, x = _made(Outer, (2, 3, 6))
    graph = graph_of(module, x, "torchscript")
    state = {name: tensor for name, tensor in module.named_parameters() if not name.startswith("body.")}
    assert set(graph.named_parameters()) == {*state, "body.0.weight", "body.0.bias"}
    for name, tensor in state.items():
        np.testing.assert_array_equal(stored(graph)[name], tensor.detach().numpy())
    kept = imported(export(module, (x,), exporter="torchscript"), batch_norm="frozen")
    assert "body" in _said(kept, "model.batch_norm_folded")
