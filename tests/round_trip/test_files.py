"""Files of other exporters come home too: ONNX Runtime runs the returned file to what the binary gives.

Fresh models: exporters store equal tensors once, which training tells apart.
"""

from __future__ import annotations

import io
import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pockfarm
from tests.round_trip.brought import Brought, EncoderClassifier, NormNet
from tests.round_trip.check import LOGITS, by_binary, by_runtime
from tests.sample import sample

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
EXPORTERS: dict[str, dict[str, Any]] = {
    "dynamo": {"dynamo": True, "verbose": False},
    "torchscript": {"dynamo": False},
    "torchscript unfolded": {
        "dynamo": False,
        "do_constant_folding": False,
        "training": torch.onnx.TrainingMode.PRESERVE,
    },
}


def exported(module: nn.Module, example: tuple[torch.Tensor, ...], exporter: str) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            program = torch.onnx.export(
                module, example, None if exporter == "dynamo" else buffer, **EXPORTERS[exporter]
            )
            if program is not None:
                program.save(buffer)
        finally:
            logging.disable(logging.NOTSET)
    return buffer.getvalue()


class Recurrent(nn.Module):
    """A layer that exporters store in ONNX's order of gates, or unroll; `rate` is learned as a logarithm."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(6, 6, batch_first=True)
        self.rate, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1] * self.rate.exp())


def fresh(name: str) -> Brought:
    torch.manual_seed(0)
    if name in ("LSTM", "RNN"):
        return Brought(name, Recurrent(name).eval(), (torch.randn(8, 3, 6),), torch.randint(0, 4, (8,)))
    if name == "norms":
        return Brought(name, NormNet().eval(), (torch.randn(8, 3, 9, 9),), torch.randint(0, 4, (8,)))
    return Brought(name, EncoderClassifier().eval(), (torch.randint(0, 20, (3, 7)),), torch.randint(0, 5, (3,)))


CASES = [
    ("encoder", "dynamo", "fold"),
    ("encoder", "torchscript", "fold"),
    ("norms", "dynamo", "fold"),
    ("norms", "torchscript unfolded", "fold"),
    ("norms", "torchscript unfolded", "train"),
    ("LSTM", "torchscript", "fold"),
    ("RNN", "dynamo", "fold"),
]


KEPT = {
    "norms-dynamo-fold",
    "norms-torchscript unfolded-train",
    "LSTM-torchscript-fold",
}


@pytest.mark.parametrize(
    ("name", "exporter", "norms"), sample([pytest.param(*case, id="-".join(case)) for case in CASES], KEPT)
)
def test_a_file_computes_what_the_binary_does(name: str, exporter: str, norms: str) -> None:
    brought = fresh(name)
    data = exported(brought.module, brought.example, exporter)
    spec = {
        "batch": len(brought.labels),
        "batch_norm": norms,
        "optimizer": {"kind": "sgd", "learning_rate": 0.05},
    }
    tuned = pockfarm.fine_tune(data, data=(brought.example, brought.labels), spec=spec, steps=3)
    before = by_runtime(data, brought)
    board, runtime = by_binary(tuned, brought), by_runtime(tuned.onnx, brought)
    scale = np.abs(board).max()
    assert np.abs(board - runtime).max() <= LOGITS * scale
    assert np.abs(board - before).max() > 1e-2 * scale
    assert tuned.changed


def test_a_file_that_keeps_the_modules_names_gives_its_state() -> None:
    brought = fresh("encoder")
    data = exported(brought.module, brought.example, "dynamo")
    spec = {"batch": len(brought.labels), "optimizer": {"kind": "sgd", "learning_rate": 0.05}}
    tuned = pockfarm.fine_tune(data, data=(brought.example, brought.labels), spec=spec, steps=2)
    state = {name: torch.from_numpy(np.array(array)) for name, array in tuned.items()}
    own = replace(brought, module=fresh("encoder").module)
    assert own.module.load_state_dict(state, strict=True)
    with torch.no_grad():
        logits = own.logits(own.module).numpy()
    board = by_binary(tuned, brought)
    assert np.abs(board - logits).max() <= LOGITS * np.abs(board).max()
