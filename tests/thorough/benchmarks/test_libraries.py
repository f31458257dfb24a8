"""What the libraries compute beside our kernels is the same product or convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.libraries import Compared, best_of_turns, convolution_runs, product_runs
from compiler.kernels.spec import ConvSpec, MatmulSpec

PRODUCTS = {
    "plain": MatmulSpec(1, 5, 7, 11, dtype="f32"),
    "A transposed": MatmulSpec(1, 5, 7, 11, a_transposed=True, dtype="f32"),
    "B transposed": MatmulSpec(1, 5, 7, 11, b_transposed=True, dtype="f32"),
    "batched": MatmulSpec(3, 5, 7, 11, a_transposed=True, b_transposed=True, dtype="f32"),
    "shared B": MatmulSpec(3, 5, 7, 11, b_batched=False, dtype="f32"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_libraries_multiply_the_same_operands(name: str) -> None:
    spec = PRODUCTS[name]
    first, second = (torch.as_tensor(run()).numpy().copy() for run in product_runs(spec).values())
    assert first.shape == ((spec.batch, spec.m, spec.n) if spec.batch > 1 else (spec.m, spec.n))
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)
    assert np.abs(first).max() > 1


@pytest.mark.parametrize(
    ("kind", "shape"), [("forward", (2, 6, 4, 5)), ("input_grad", (2, 3, 10, 12)), ("weight_grad", (6, 3, 3, 3))]
)
def test_the_convolution_makes_what_the_kind_says(kind: str, shape: tuple[int, ...]) -> None:
    """The input gradient is that of the padded image: 8 x 10 with a border of one."""
    spec = ConvSpec(kind, 2, 8, 10, 3, 6, 4, 5, (3, 3), (2, 2), (1, 1, 1, 1), dtype="f32")  # type: ignore[arg-type]
    made = next(iter(convolution_runs(spec).values()))()
    tensors = [made] if isinstance(made, torch.Tensor) else [one for one in made if one is not None]  # type: ignore[attr-defined]
    assert [tuple(tensor.shape) for tensor in tensors] == [shape]


def test_the_best_library_is_held_against_ours() -> None:
    row = Compared("k", 2, 10, {"ours": 2.0, "OpenBLAS": 3.0, "oneDNN": 1.0})
    assert (row.library, row.ratio) == ("oneDNN", 0.5)
    calls: list[str] = []
    best = best_of_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls[:4] == ["a", "a", "b", "b"]
    assert all(0 < seconds < 1 for seconds in best.values())
