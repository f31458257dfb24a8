"""Attention kernels over many shapes, against the operators' float64 meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from compiler.graph import Array
from compiler.kernels.spec import AttentionSpec
from compiler.ops import OPERATORS
from tests.compiler.codegen.emulation import run_emulated
from tests.kernel_harness.launch import run_kernel
from tests.sample import crossed, sample

SPECS = {
    "several blocks, an odd one last": AttentionSpec("forward", 1, 2, 2, 150, 150, 16, 16, 0.25, dtype="f32"),
    "causal over several blocks": AttentionSpec(
        "forward", 1, 3, 1, 150, 150, 8, 8, 0.3, True, (1, 1, 150, 150), dtype="f32"
    ),
    "one head, queries shared out": AttentionSpec("forward", 1, 1, 1, 300, 260, 16, 32, 0.25, dtype="f32"),
    "more keys than queries, causal": AttentionSpec("forward", 2, 2, 2, 21, 45, 12, 20, 0.5, True, dtype="f32"),
    "more queries than keys, causal": AttentionSpec("forward", 1, 2, 2, 30, 10, 8, 8, 0.5, True, dtype="f32"),
    "groups of heads": AttentionSpec("forward", 2, 6, 2, 33, 40, 32, 16, 0.2, False, (2, 6, 1, 40), dtype="f32"),
    "one key, one query": AttentionSpec("forward", 1, 2, 2, 1, 1, 3, 5, 1.0, dtype="f32"),
    "a mask of one number per query": AttentionSpec(
        "forward", 2, 2, 2, 17, 19, 4, 4, 1.0, False, (1, 2, 17, 1), dtype="f32"
    ),
}


def draw(spec: AttentionSpec) -> list[Array]:
    """q, k, v and the mask; some queries see nothing, some nothing but what a finite number hides."""
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
            mask[..., 2, :] = np.finfo(np.float32).min
        inputs.append(mask)
    return inputs


def check(got: tuple[Array, ...], want: tuple[Array, ...]) -> None:
    for have, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(have, expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize(
    ("target", "name"),
    sample(
        crossed([None, "x86-64-v3"], SPECS), ["x86-64-v3-groups of heads", *(f"None-{name}" for name in [*SPECS][::3])]
    ),
)
def test_both_directions(name: str, target: str | None) -> None:
    spec = SPECS[name]
    q, k, v, *mask = draw(spec)
    attrs = {"scale": spec.scale, "causal": spec.causal}
    y, stats = OPERATORS["attention"].evaluate([q, k, v, *mask], attrs)
    check(run_kernel(spec, single(q, k, v, *mask), target=target), (y, stats))
    d_y = np.random.default_rng(2).normal(size=y.shape)
    operands = [q, k, v, y, stats, d_y, *mask]
    want = OPERATORS["attention_grad"].evaluate(operands, {**attrs, "wanted": (1, 1, 1)})
    check(run_kernel(replace(spec, kind="backward"), single(*operands), target=target), want)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_what_is_wanted_is_written(wanted: tuple[bool, bool, bool]) -> None:
    spec = replace(SPECS["groups of heads"], kind="backward", wanted=wanted)
    q, k, v, *mask = draw(spec)
    attrs = {"scale": spec.scale, "causal": spec.causal}
    y, stats = OPERATORS["attention"].evaluate([q, k, v, *mask], attrs)
    operands = [q, k, v, y, stats, np.random.default_rng(2).normal(size=y.shape), *mask]
    want = OPERATORS["attention_grad"].evaluate(operands, {**attrs, "wanted": wanted})
    check(run_kernel(spec, single(*operands)), want)


BLIND = {
    "masked": AttentionSpec("forward", 2, 4, 4, 21, 37, 12, 20, 0.3, False, (2, 1, 21, 37), dtype="f32"),
    "causal and masked": AttentionSpec("forward", 2, 2, 2, 70, 70, 16, 16, 0.3, True, (2, 2, 70, 70), dtype="f32"),
}


def by_torch(spec: AttentionSpec, inputs: list[Array], d_y: Array) -> list[Array]:
    """y, d_q, d_k and d_v of PyTorch's own operator in float64."""
    *leaves, mask = (torch.from_numpy(array) for array in inputs)
    for leaf in leaves:
        leaf.requires_grad_()
    seen = torch.ones(spec.queries, spec.keys, dtype=torch.bool)
    if spec.causal:
        mask = mask.masked_fill(~seen.tril(spec.keys - spec.queries), -torch.inf)
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    with sdpa_kernel(SDPBackend.MATH):  # its fused kernel keeps log sum exp, which has no room beside -3e38
        y = F.scaled_dot_product_attention(q, k, v, mask, scale=spec.scale).transpose(1, 2)
    y.backward(torch.from_numpy(d_y))
    return [y.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize(
    ("name", "target"),
    sample(
        crossed(BLIND, [None, "x86-64-v3", "raspberry-pi-4"]),
        ["masked-raspberry-pi-4", "causal and masked-None"],
    ),
)
def test_rows_that_see_nothing_are_as_pytorch_has_them(name: str, target: str | None) -> None:
    """Zeros where -inf hides every key; an even spread, with its gradient, where the lowest number does."""
    spec = BLIND[name]
    inputs = [array.astype(np.float32).astype(np.float64) for array in draw(spec)]
    d_y = np.random.default_rng(2).normal(size=(spec.batch, spec.queries, spec.heads, spec.value_width))
    want = by_torch(spec, inputs, d_y)
    y, stats = run_on(target, spec, single(*inputs))
    q, k, v, mask = inputs
    gradients = run_on(target, replace(spec, kind="backward"), single(q, k, v, y, stats, d_y, mask))
    assert not want[0][:, 4].any()
    assert want[0][:, 2].any()
    check((y, *gradients), tuple(want))


def run_on(target: str | None, spec: AttentionSpec, inputs: list[Array]) -> tuple[Array, ...]:
    """Natively, or under emulation where the target is a board."""
    return tuple(run_emulated(spec, inputs) if target == "raspberry-pi-4" else run_kernel(spec, inputs, target=target))


def single(*arrays: Array) -> list[Array]:
    return [array.astype(np.float32) for array in arrays]
