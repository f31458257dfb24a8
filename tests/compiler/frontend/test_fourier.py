"""Transforms back to real signals, which ONNX Runtime has not, beside NumPy's; lengths are limited."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import LimitExceeded, ModelError
from compiler.graph import Graph
from tests.compiler.frontend.onnx_graphs import Shape, imported, model_of, node
from tests.compiler.named import evaluate_named


def _graph(extents: tuple[int, ...], length: int | None, **attributes: int) -> Graph:
    names = ["x"] if length is None else ["x", "n"]
    known = {} if length is None else {"n": np.asarray(length)}
    shapes: dict[str, tuple[str, Shape]] = {"x": ("f32", ("batch", *extents))}
    return imported(model_of([node("DFT", names, ["y"], axis=1, **attributes)], shapes, ["y"], known, opset=18))


@pytest.mark.parametrize("length", [None, 8, 7, 5, 11])
def test_back_to_a_real_signal(length: int | None) -> None:
    x = np.random.default_rng(3).standard_normal((2, 5, 3, 2)).astype(np.float32)
    found = evaluate_named(_graph((5, 3, 2), length, inverse=1, onesided=1), {"x": x})["y"]
    wanted = np.fft.irfft(x[..., 0] + 1j * x[..., 1].astype(np.float64), length, axis=1)
    np.testing.assert_allclose(found, wanted[..., None], rtol=1e-5, atol=1e-6)


def test_a_length_that_makes_much_of_little_is_refused() -> None:
    with pytest.raises(LimitExceeded, match=r"^node 'make_y' \(DFT\): .* 1000000 .* 4096$"):
        _graph((5, 3, 1), 1_000_000)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [({"inverse": 1, "onesided": 1}, "one-sided transform of 1 parts"), ({"axis": 3}, "holds the parts")],
)
def test_contradictions_are_named(attributes: dict[str, int], message: str) -> None:
    made = node("DFT", ["x"], ["y"], **{"axis": 1, **attributes})
    with pytest.raises(ModelError, match=message):
        imported(model_of([made], {"x": ("f32", ("batch", 5, 3, 1))}, ["y"], opset=18))
