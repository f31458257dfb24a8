"""Kernels of every family at sizes that models have: what a device's compiler should make good code of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary
from compiler.kernels.movement import ElementsSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.kernels.spec import (
    AttentionSpec,
    ConvSpec,
    DepthwiseSpec,
    GatherSpec,
    KernelSpec,
    MapSpec,
    MatmulSpec,
    NormGradSpec,
    PoolSpec,
    RecurrenceSpec,
    ReduceSpec,
    RowSpec,
)
from tests.compiler.codegen.contractions import RELU6, conv, depthwise
from tests.compiler.codegen.reference import identity, picked
from tests.compiler.codegen.test_matmul_updates import product, with_adam, with_momentum
from tests.compiler.codegen.test_pool import spec_of as pool
from tests.compiler.codegen.test_reduce import reduction
from tests.compiler.codegen.test_row import cross_entropy, layer_norm, softmax, softmax_gradient

_SAME = (1, 1, 1, 1)
_HALF: Expr = Binary("mul", Ref(0), Const(0.5))
_GELU: Expr = Binary("mul", _HALF, Binary("add", Const(1.0), Unary("erf", Binary("mul", Ref(0), Const(0.70710678)))))
_BIAS: Expr = Binary("add", Ref(0), Ref(1))
_ADAM: Expr = Binary("sub", Ref(0), Binary("div", Ref(1), Binary("add", Unary("sqrt", Ref(2)), Const(1e-8))))


def _elementwise(expr: Expr, reads: int, *shape: int) -> MapSpec:
    return MapSpec(shape, (identity(*shape),) * reads, (identity(*shape),), (expr,))


def _biased(spec: MatmulSpec) -> MatmulSpec:
    return replace(spec, epilogue=_BIAS, epilogue_inputs=(picked((spec.n,), 2),))


MAPS: Mapping[str, MapSpec] = {
    "gelu of a transformer": _elementwise(_GELU, 1, 128, 3072),
    "adam's step of a matrix": _elementwise(_ADAM, 3, 768, 768),
    "transpose": MapSpec((197, 768), (picked((768, 197), 1, 0),), (identity(197, 768),), (Ref(0),)),
    "dropout's bits": MapSpec(
        (4096,),
        (identity(4096, dtype="i64"),) * 2,
        (identity(4096, dtype="i64"),),
        (Binary("philox", Ref(0), Ref(1)),),
    ),
}
REDUCTIONS: Mapping[str, ReduceSpec] = {
    "bias gradient": reduction((12_544, 32), (0,)),
    "mean over an image": reduction((8, 49, 1280), (1,)),
    "sum of everything": reduction((100_003,), (0,)),
    "largest of rows": reduction((64, 1000), (1,), "max"),
}
ROWS: Mapping[str, RowSpec] = {
    "softmax of scores": softmax(1536, 128),
    "softmax of long rows": softmax(4, 50_257),
    "layer norm": layer_norm(128, 768),
    "cross entropy": cross_entropy(8, 1000),
    "softmax gradient": softmax_gradient(1536, 128),
    "norm of one long row": layer_norm(1, 40_001),
}
PRODUCTS: Mapping[str, MatmulSpec] = {
    "feed forward": replace(MatmulSpec(1, 128, 3072, 768, dtype="f32"), epilogue=_GELU),
    "attention projection with its bias": _biased(MatmulSpec(1, 128, 768, 768, dtype="f32")),
    "gradient of a weight": MatmulSpec(1, 768, 3072, 128, a_transposed=True, dtype="f32"),
    "gradient of an input": MatmulSpec(1, 128, 768, 3072, b_transposed=True, dtype="f32"),
    "gradient of a weight, in parts": MatmulSpec(1, 32, 16, 12_544, a_transposed=True, dtype="f32"),
    "gradient with its bias": MatmulSpec(1, 64, 64, 20_000, a_transposed=True, sums=True, dtype="f32"),
    "heads of attention": MatmulSpec(12, 128, 128, 64, b_transposed=True, dtype="f32"),
    "one token": MatmulSpec(1, 1, 2048, 768, dtype="f32"),
    "classifier": _biased(MatmulSpec(1, 8, 1000, 1280, b_transposed=True, dtype="f32")),
    "momentum in the gradient": with_momentum(product(768, 768, 128)),
    "adam in the gradient": with_adam(product(768, 768, 128)),
    "adam in the gradient, in parts": with_adam(product(24, 40, 2100)),
}
_STEM = ((8, 224, 224, 3), 32, (3, 3), (2, 2), _SAME)
_POINT = ((8, 14, 14, 96), 576, (1, 1), (1, 1), (0, 0, 0, 0))
_BLOCK = ((8, 14, 14, 256), 256, (3, 3), (1, 1), _SAME)
_STRIDED = ((8, 28, 28, 128), 256, (3, 3), (2, 2), _SAME)
CONVOLUTIONS: Mapping[str, ConvSpec] = {
    "stem": replace(conv("forward", *_STEM), epilogue=RELU6),
    "stem, gradient of its weight": conv("weight_grad", *_STEM),
    "point-wise": conv("forward", *_POINT),
    "point-wise, gradient of its input": conv("input_grad", *_POINT),
    "point-wise, gradient of its weight": conv("weight_grad", *_POINT),
    "3x3": conv("forward", *_BLOCK),
    "3x3, gradient of its input": conv("input_grad", *_BLOCK),
    "3x3, gradient of its weight": conv("weight_grad", *_BLOCK),
    "strided": conv("forward", *_STRIDED),
    "strided, gradient of its input": conv("input_grad", *_STRIDED),
    "strided, gradient of its weight": conv("weight_grad", *_STRIDED),
    "groups": conv("forward", (8, 14, 14, 256), 256, (3, 3), (1, 1), _SAME, (1, 1), 32),
}
_DEPTH = ((8, 14, 14, 576), (3, 3), (1, 1), _SAME)
_DEPTH_STRIDED = ((8, 112, 112, 96), (3, 3), (2, 2), _SAME)
_DEPTH_WIDE = ((8, 14, 14, 240), (7, 7), (1, 1), (3, 3, 3, 3))
DEPTHWISE: Mapping[str, DepthwiseSpec] = {
    f"{name}, {kind}": depthwise(kind, *case)
    for name, case in (("3x3", _DEPTH), ("3x3 strided", _DEPTH_STRIDED), ("7x7", _DEPTH_WIDE))
    for kind in ("forward", "input_grad", "weight_grad")
}
_POOLED = (8, 112, 112, 64, (3, 3), (2, 2), _SAME)
POOLS: Mapping[str, PoolSpec] = {
    kind: pool(kind, _POOLED) for kind in ("max", "max_grad", "average", "average_grad", "max_places", "places_grad")
}
GATHERS: Mapping[str, GatherSpec] = {
    "embedding": GatherSpec("gather", 1, 30_522, 768, 128, dtype="f32"),
    "embedding's gradient": GatherSpec("scatter_add", 1, 30_522, 768, 128, dtype="f32"),
    "gradient of few rows": GatherSpec("scatter_add", 1, 20, 96, 3000, dtype="f32"),
}
_ATTENTION = AttentionSpec("forward", 1, 12, 12, 128, 128, 64, 64, 0.125, dtype="f32")
_CAUSAL = AttentionSpec("forward", 1, 32, 8, 64, 64, 128, 128, 0.088, True, dtype="f32")
_MASKED = AttentionSpec("forward", 2, 12, 12, 21, 75, 64, 64, 0.125, False, (2, 1, 1, 75), dtype="f32")
ATTENTIONS: Mapping[str, AttentionSpec] = {
    f"{name}, {kind}": replace(spec, kind=kind)
    for name, spec in (("plain", _ATTENTION), ("causal, in groups", _CAUSAL), ("masked", _MASKED))
    for kind in ("forward", "backward")
}
RECURRENCES: Mapping[str, RecurrenceSpec] = {
    f"{cell}, {kind}": RecurrenceSpec(kind, cell, 24, 8, 128, dtype="f32")
    for cell in ("tanh", "lstm", "gru")
    for kind in ("forward", "backward")
}
MOVEMENTS: Mapping[str, ElementsSpec | ResampleSpec | ScanSpec | SelectSpec] = {
    "elements picked": ElementsSpec("gather", 8, 300, 70, 64, dtype="f32"),
    "elements put": ElementsSpec("add", 8, 700, 30, 20, dtype="f32"),
    "largest put": ElementsSpec("max", 8, 700, 30, 20, dtype="f32"),
    "resampled": ResampleSpec("forward", 8, 28, 512, 56, 2, dtype="f32"),
    "resampling's gradient": ResampleSpec("gradient", 8, 28, 512, 56, 2, dtype="f32"),
    "running sum": ScanSpec("sum", 2, 600, 3, dtype="f32"),
    "running sum of columns": ScanSpec("sum", 1, 50, 700, dtype="f32"),
    "linear recurrence": ScanSpec("linear", 3, 90, 13, dtype="f32"),
    "best five": SelectSpec(30, 1000, 1, 5, dtype="f32"),
    "best of columns": SelectSpec(30, 20, 40, 1, dtype="f32"),
}
NORM_GRADIENTS: Mapping[str, NormGradSpec] = {
    "layer norm": NormGradSpec(128, 768, 1e-5, True, dtype="f32"),
    "rms norm": NormGradSpec(64, 2048, 1e-5, False, dtype="f32"),
}
FAMILIES: Mapping[str, Mapping[str, KernelSpec]] = {
    "map": MAPS,
    "reduce": REDUCTIONS,
    "row": ROWS,
    "matmul": PRODUCTS,
    "conv": CONVOLUTIONS,
    "depthwise": DEPTHWISE,
    "pool": POOLS,
    "gather": GATHERS,
    "attention": ATTENTIONS,
    "recurrence": RECURRENCES,
    "movement": MOVEMENTS,
    "norm gradient": NORM_GRADIENTS,
}
SPECS: Mapping[str, KernelSpec] = {
    f"{family}: {name}": one for family, of in FAMILIES.items() for name, one in of.items()
}
