"""Import rows of the family: attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, floats


def cases() -> Iterator[Case]:
    q, kv = (F, (2, 4, 5, 6)), (F, (2, 2, 7, 6))
    yield Case("Attention", (q, (F, (2, 4, 7, 6)), (F, (2, 4, 7, 6))), opset=23)
    yield Case("Attention", (q, kv, kv), {"scale": 0.3, "softcap": 2.0}, opset=23, label="grouped-softcap")
    yield Case("Attention", (q, kv, kv, (F, (2, 1, 5, 7))), opset=23, label="grouped-mask")
    yield Case("Attention", (q, kv, kv, (F, (2, 4, 5, 7))), opset=23, label="mask-per-head")
    keep = np.tril(np.ones((5, 7), bool), 2)
    yield Case("Attention", (q, (F, (2, 4, 7, 6)), (F, (2, 4, 7, 6)), keep), opset=23, label="bool-mask")
    flat = (F, (2, 5, 12))
    heads = {"q_num_heads": 3, "kv_num_heads": 3}
    yield Case("Attention", (flat, flat, flat), {**heads, "is_causal": 1}, opset=23, label="flat-causal")
    tables = floats(9, 4), floats(9, 4, seed=3)
    where = np.asarray([[0, 3, 2, 5, 8], [1, 1, 4, 6, 7]])
    yield Case("RotaryEmbedding", ((F, (2, 3, 5, 8)), *tables, where), opset=23)
    yield Case(
        "RotaryEmbedding", ((F, (2, 3, 5, 8)), *tables, where), {"interleaved": 1}, opset=23, label="interleaved"
    )
    part = {"rotary_embedding_dim": 4, "num_heads": 3}
    halves = floats(9, 2), floats(9, 2, seed=3)
    yield Case("RotaryEmbedding", ((F, (2, 5, 24)), *halves, where), part, opset=23, label="part-flat")
    cached = floats(2, 5, 4), floats(2, 5, 4, seed=3)
    yield Case("RotaryEmbedding", ((F, (2, 3, 5, 8)), *cached), opset=23, label="per-position")
