"""Attention kernels over many shapes, against the operators' float64 meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.testing import run_kernel
from compiler.graph import Array
from compiler.kernel_spec import AttentionSpec
from compiler.ops import OPERATORS

SPECS = {
    "several blocks, an odd one last": AttentionSpec("forward", 1, 2, 2, 150, 150, 16, 16, 0.25),
    "causal over several blocks": AttentionSpec("forward", 1, 3, 1, 150, 150, 8, 8, 0.3, True, (1, 1, 150, 150)),
    "one head, queries shared out": AttentionSpec("forward", 1, 1, 1, 300, 260, 16, 32, 0.25),
    "more keys than queries, causal": AttentionSpec("forward", 2, 2, 2, 21, 45, 12, 20, 0.5, True),
    "more queries than keys, causal": AttentionSpec("forward", 1, 2, 2, 30, 10, 8, 8, 0.5, True),
    "groups of heads": AttentionSpec("forward", 2, 6, 2, 33, 40, 32, 16, 0.2, False, (2, 6, 1, 40)),
    "one key, one query": AttentionSpec("forward", 1, 2, 2, 1, 1, 3, 5, 1.0),
    "a mask of one number per query": AttentionSpec("forward", 2, 2, 2, 17, 19, 4, 4, 1.0, False, (1, 2, 17, 1)),
}


def draw(spec: AttentionSpec) -> list[Array]:
    """q, k, v and the mask; some queries see nothing."""
    rng = np.random.default_rng(1)
    shapes = [
        (spec.batch, spec.queries, spec.heads, spec.width),
        (spec.batch, spec.keys, spec.groups, spec.width),
        (spec.batch, spec.keys, spec.groups, spec.value_width),
    ]
    inputs = [rng.normal(size=shape) for shape in shapes]
    if spec.mask is not None:
        mask = np.where(rng.random(spec.mask) < 0.3, -np.inf, rng.normal(size=spec.mask))
        if spec.mask[2] > 4:
            mask[..., 4, :] = -np.inf
        inputs.append(mask)
    return inputs


def check(got: tuple[Array, ...], want: tuple[Array, ...]) -> None:
    for have, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(have, expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("target", [None, "x86-64-v3"])
def test_both_directions(name: str, target: str | None) -> None:
    spec = SPECS[name]
    q, k, v, *mask = draw(spec)
    attrs = {"scale": spec.scale, "causal": spec.causal}
    y, lse = OPERATORS["attention"].evaluate([q, k, v, *mask], attrs)
    check(run_kernel(spec, single(q, k, v, *mask), target=target), (y, lse))
    d_y = np.random.default_rng(2).normal(size=y.shape)
    operands = [q, k, v, y, lse, d_y, *mask]
    want = OPERATORS["attention_grad"].evaluate(operands, {**attrs, "wanted": (1, 1, 1)})
    check(run_kernel(replace(spec, kind="backward"), single(*operands), target=target), want)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_what_is_wanted_is_written(wanted: tuple[bool, bool, bool]) -> None:
    spec = replace(SPECS["groups of heads"], kind="backward", wanted=wanted)
    q, k, v, *mask = draw(spec)
    attrs = {"scale": spec.scale, "causal": spec.causal}
    y, lse = OPERATORS["attention"].evaluate([q, k, v, *mask], attrs)
    operands = [q, k, v, y, lse, np.random.default_rng(2).normal(size=y.shape), *mask]
    want = OPERATORS["attention_grad"].evaluate(operands, {**attrs, "wanted": wanted})
    check(run_kernel(spec, single(*operands)), want)


def single(*arrays: Array) -> list[Array]:
    return [array.astype(np.float32) for array in arrays]
