"""A folded norm undone gives the author's tensors that compute what the folded ones do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.errors import ModelError
from compiler.origins import FoldedNorm
from compiler.trained.bring_back import unfold

Tensors = dict[str, np.ndarray]
LAYER = FoldedNorm(
    weight="conv.weight",
    bias="conv.weight_bias",
    own_bias="",
    scale="bn.weight",
    shift="bn.bias",
    mean="bn.mean",
    variance="bn.var",
    epsilon=1e-5,
    takes_bias="bn.bias",
)
WITH_BIAS = replace(LAYER, bias="conv.bias", own_bias="conv.bias")
TRANSPOSED = replace(WITH_BIAS, transposed_groups=1)
IN_GROUPS = replace(WITH_BIAS, transposed_groups=3)
LAYERS = {
    "no bias": LAYER,
    "own bias": WITH_BIAS,
    "transposed": TRANSPOSED,
    "transposed, in groups": IN_GROUPS,
}
ALONE = replace(LAYER, weight="bn.weight", bias="bn.bias", alone=True)


INPUTS, CHANNELS = 3, 6


def author(norm: FoldedNorm = LAYER, seed: int = 0, channels: int = CHANNELS) -> Tensors:
    rng = np.random.default_rng(seed)
    groups = norm.transposed_groups
    shape = (groups * INPUTS, channels // groups) if groups else (channels, INPUTS)
    return {
        "conv.weight": rng.normal(size=(*shape, 2, 2)).astype(np.float32),
        "conv.bias": rng.normal(size=channels).astype(np.float32),
        "bn.weight": rng.normal(size=channels).astype(np.float32),
        "bn.bias": rng.normal(size=channels).astype(np.float32),
        "bn.mean": rng.normal(size=channels).astype(np.float32),
        "bn.var": rng.uniform(0.5, 2, size=channels).astype(np.float32),
    }


def of_channel(norm: FoldedNorm, channel: int) -> tuple[slice | int, ...]:
    """Where a weight has what makes output `channel`."""
    if not norm.transposed_groups:
        return (channel,)
    group, place = divmod(channel, CHANNELS // norm.transposed_groups)
    return slice(group * INPUTS, (group + 1) * INPUTS), place


def folded(norm: FoldedNorm, own: Tensors) -> Tensors:
    """The checkpoint's tensors, by what folding means; float64."""
    wide = {name: array.astype(np.float64) for name, array in own.items()}
    factor = wide["bn.weight"] / np.sqrt(wide["bn.var"] + norm.epsilon)
    if norm.alone:
        return {"bn.weight": factor, "bn.bias": wide["bn.bias"] - wide["bn.mean"] * factor}
    bias = wide["conv.bias"] if norm.own_bias else 0.0
    return {
        norm.weight: wide["conv.weight"] * per_output(norm, factor),
        norm.bias: (bias - wide["bn.mean"]) * factor + wide["bn.bias"],
    }


def per_output(norm: FoldedNorm, factor: np.ndarray) -> np.ndarray:
    """A factor for each output channel, as the weight has them: a ConvTranspose has groups one below another."""
    if not norm.transposed_groups:
        return factor.reshape(-1, 1, 1, 1)
    return np.repeat(factor.reshape(norm.transposed_groups, -1), INPUTS, axis=0)[..., None, None]


def checkpoint(norm: FoldedNorm, own: Tensors) -> Tensors:
    return {name: array.astype(np.float32) for name, array in folded(norm, own).items()}


def learned(before: Tensors, size: float, seed: int = 1) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: (array + size * rng.normal(size=array.shape)).astype(np.float32) for name, array in before.items()}


@pytest.mark.parametrize("size", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("norm", [*LAYERS.values(), ALONE], ids=[*LAYERS, "alone"])
def test_what_comes_back_folds_to_what_was_learned(norm: FoldedNorm, size: float) -> None:
    own = author(norm)
    before = checkpoint(norm, own)
    after = learned(before, size)
    back = unfold(norm, before, after, own.__getitem__)
    new = folded(norm, {**own, **back.tensors})
    for name, exact in folded(norm, own).items():
        step = after[name].astype(np.float64) - before[name]
        moved = new[name] - exact
        assert np.linalg.norm(moved - step) <= 1e-6 * (np.linalg.norm(exact) + np.linalg.norm(step)), name
    assert back.revived == ()
    assert set(back.tensors) == ({"bn.weight", "bn.bias"} if norm.alone else {"conv.weight", "bn.bias"})


@pytest.mark.parametrize("norm", [*LAYERS.values(), ALONE], ids=[*LAYERS, "alone"])
def test_what_did_not_learn_comes_back_bit_for_bit(norm: FoldedNorm) -> None:
    own = author(norm)
    before = checkpoint(norm, own)
    assert unfold(norm, before, before, own.__getitem__).tensors == {}
    after = {name: array.copy() for name, array in before.items()}
    after[norm.weight][2:3] += 0.25
    back = unfold(norm, before, after, own.__getitem__).tensors
    for name, array in back.items():
        others = np.arange(len(array)) != 2
        assert np.array_equal(array[others], own[name][others]), name
    assert not np.array_equal(back[norm.weight][2], own[norm.weight][2])


@pytest.mark.parametrize("norm", LAYERS.values(), ids=LAYERS)
def test_a_channel_whose_scale_is_0_computes_what_it_learned(norm: FoldedNorm) -> None:
    own = author(norm)
    own["bn.weight"][[1, 3]] = 0.0
    before = checkpoint(norm, own)
    after = learned(before, 0.1)
    third = of_channel(norm, 3)
    after[norm.weight][third] = before[norm.weight][third]  # this one learns its bias alone
    back = unfold(norm, before, after, own.__getitem__)
    assert back.revived == ("bn.weight",)
    new = folded(norm, {**own, **back.tensors})
    for name in (norm.weight, norm.bias):
        assert np.allclose(new[name], after[name], rtol=1e-5, atol=1e-6), name
    assert back.tensors["bn.weight"][3] == 0
    assert np.array_equal(back.tensors["conv.weight"][third], own["conv.weight"][third])
    assert np.array_equal(np.delete(back.tensors["bn.weight"], 1), np.delete(own["bn.weight"], 1))


def test_a_norm_without_a_shift_gives_the_layer_its_bias_back() -> None:
    norm, own = replace(WITH_BIAS, takes_bias="conv.bias"), author()
    before = checkpoint(norm, own)
    after = learned(before, 0.1)
    back = unfold(norm, before, after, own.__getitem__).tensors
    assert set(back) == {"conv.weight", "conv.bias"}
    assert np.allclose(folded(norm, {**own, **back})["conv.bias"], after["conv.bias"], atol=1e-6)


def test_a_bias_that_nothing_could_take_is_refused() -> None:
    norm, tensors = replace(LAYER, takes_bias=""), author()
    before = checkpoint(norm, tensors)
    with pytest.raises(ModelError, match=r"^norm 'bn\.weight': .*batch_norm: frozen"):
        unfold(norm, before, learned(before, 0.1), tensors.__getitem__)
