"""Sensors, series and tables: DS-CNN, TCN, recurrent networks, DLRM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry, normal, tokens

_SERIES = {"input": normal(20, 6)}


class Recurrent(nn.Module):
    """A recurrent layer over [N, T, C] and a classifier of its last step, or of each step."""

    def __init__(self, kind: type[nn.RNNBase], *, every: bool = False, **settings: Any) -> None:
        super().__init__()
        self.cell = kind(6, 12, batch_first=True, **settings)
        self.head = nn.Linear(12 * (2 if settings.get("bidirectional") else 1), 4)
        self.every = every

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.cell(x)
        return self.head(y if self.every else y[:, -1])


class Tagger(nn.Module):
    """Embeddings, a recurrent layer in both directions, a label for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.cell = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(ids))[0])


class CellLoop(nn.Module):
    """A cell that its author unrolls by hand."""

    def __init__(self, cell: type[nn.RNNCellBase], steps: int = 5) -> None:
        super().__init__()
        self.cell, self.head, self.steps = cell(6, 12), nn.Linear(12, 4), steps
        self.pair = cell is nn.LSTMCell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in range(self.steps):
            state = self.cell(x[:, step]) if state is None else self.cell(x[:, step], state)
        return self.head(state[0] if self.pair else state)


class Residual1d(nn.Module):
    """Two dilated causal convolutions; the input is added."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.padding = 2 * dilation
        self.conv1 = nn.Conv1d(inputs, outputs, 3, dilation=dilation, padding=self.padding)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, dilation=dilation, padding=self.padding)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv1(x)[..., : -self.padding])
        y = torch.relu(self.conv2(y)[..., : -self.padding])
        return torch.relu(y + self.shortcut(x))


class Tcn(nn.Module):
    """A temporal convolutional network: dilations 1, 2, 4."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual1d(6, 12, 1), Residual1d(12, 12, 2), Residual1d(12, 12, 4))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[..., -1])


def _ds_cnn() -> nn.Module:
    def block(channels: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]

    return nn.Sequential(
        nn.Conv2d(1, 16, (10, 4), (2, 2), (5, 1), bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *block(16),
        *block(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(16, 12),
    )


def _ds_cnn_1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(6, 16, 5, 2, 2, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 16, 5, 1, 2, groups=16, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 24, 1, bias=False),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 4),
    )


class Dlrm(nn.Module):
    """Dense features and bags of categories; their dot products; a click's score."""

    def __init__(self, tables: int = 3, width: int = 8) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(30, width, mode="sum") for _ in range(tables))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 16), nn.ReLU(), nn.Linear(16, 2))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        rows = torch.stack([x, *bags], 1)
        products = rows @ rows.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


def _recurrent(name: str, kind: type[nn.RNNBase], **settings: Any) -> Entry:
    make: Callable[[], nn.Module] = lambda: Recurrent(kind, **settings)  # noqa: E731
    return Entry(name, make, _SERIES)


ENTRIES = (
    Entry("ds_cnn", _ds_cnn, {"input": normal(1, 49, 10)}),
    Entry("ds_cnn_1d", _ds_cnn_1d, {"input": normal(6, 40)}),
    Entry("tcn", Tcn, {"input": normal(6, 20)}),
    Entry("dlrm", Dlrm, {"dense": normal(5), "categories": tokens(30, 3, 4)}),
    _recurrent("lstm", nn.LSTM),
    _recurrent("lstm_two_directions", nn.LSTM, bidirectional=True, every=True),
    _recurrent("lstm_two_layers", nn.LSTM, num_layers=2),
    _recurrent("gru", nn.GRU),
    _recurrent("gru_two_directions", nn.GRU, bidirectional=True),
    _recurrent("rnn", nn.RNN),
    _recurrent("rnn_relu", nn.RNN, nonlinearity="relu", every=True),
    Entry("lstm_tagger", Tagger, {"ids": tokens(50, 9)}),
    Entry("lstm_cell", lambda: CellLoop(nn.LSTMCell), _SERIES),
    Entry("gru_cell", lambda: CellLoop(nn.GRUCell), _SERIES),
    Entry("rnn_cell", lambda: CellLoop(nn.RNNCell), _SERIES),
)
