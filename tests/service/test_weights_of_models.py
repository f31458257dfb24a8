"""Weights of another model are refused with what is different of them."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from device_agents.wire import Blob
from service.base.identifiers import digest_of
from tests.service.farms import TestFarm


def tensors(**shapes: Any) -> bytes:
    return save({name.replace("_", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()})


def start_from(farm: TestFarm, weights: bytes, *, needed: bytes) -> httpx.Response:
    """Ask a bundle that needs some tensors to start from what a run of another model has left."""
    digest, board = digest_of(weights), farm.board()
    farm.run(bundle=farm.bundle(b"one"), mode="train", dataset=farm.dataset())
    work = board.lease()
    assert work is not None
    assert board.put_weights(work, weights, digest).is_success
    board.report(work, weights=Blob(digest, len(weights)))
    return farm.http.post("/runs", json={"bundle": farm.bundle(b"two", weights=needed), "weights": digest})


def test_weights_of_another_model_are_told_tensor_by_tensor(small_farm: TestFarm) -> None:
    have = tensors(conv_weight=(3, 3), old_bias=(4,), head_weight=(2, 4))
    many = {f"layer{index}_weight": (2,) for index in range(5)}
    answer = start_from(small_farm, have, needed=tensors(conv_weight=(3, 5), head_weight=(2, 4), **many)).json()
    for part in (
        " 7 tensors ",
        "5 missing ('layer0.weight', 'layer1.weight', 'layer2.weight' and 2 more), ",
        "1 unexpected ('old.bias'), ",
        "1 of another shape ('conv.weight' [3, 3], needed [3, 5])",
    ):
        assert part in answer["detail"], part
    assert "start from a run of the bundle's own model" in answer["hint"]


def test_weights_of_a_model_with_the_same_tensors_are_told_so(small_farm: TestFarm) -> None:
    answer = start_from(small_farm, tensors(a=(2,)), needed=tensors(a=(2,))).json()
    assert "its 1 tensors have the same names and shapes" in answer["detail"]


@pytest.mark.parametrize(
    "have",
    [b"w", b"\xff" * 64, b"\2\0\0\0\0\0\0\0[]", b'\x09\0\0\0\0\0\0\0{"a": 42}'],
    ids=["short", "long header", "a list", "no shape"],
)
def test_weights_that_tell_nothing_are_refused_all_the_same(small_farm: TestFarm, have: bytes) -> None:
    answer = start_from(small_farm, have, needed=tensors(a=(2,)))
    assert (answer.status_code, answer.json()["detail"]) == (422, "these weights are of another model")
