"""Descriptions of what a kernel computes, as our own data: the contract between operators (`lower`), fusion and code
generation.

A `KernelSpec` says nothing of schedules, vectors or threads. `compiler.codegen` turns it into TIR. Two equal specs are
the same kernel, so a spec's digest is the cache key.

Operand convention, for every family: `inputs` first, then `outputs`, then (if code generation asks for it) one
workspace. Every operand is a contiguous tensor whose `TensorType` is stated; its storage is 64-byte aligned. `dtype` is
the element type of a family's tensors (of a table, not of its indices); sums are accumulated as
`compiler.element_types` says.

Scalar expressions read `Ref(k)`. In a `MapSpec`, `Ref(k)` is input k at that point. In a contraction's epilogue
`Ref(0)` is the accumulated value and `Ref(k)`, k >= 1, is `epilogue_inputs[k - 1]` at the output point.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from compiler.element_types import DType
from compiler.kernels.access import Access
from compiler.kernels.canonical import canonical
from compiler.kernels.cells import CellName
from compiler.kernels.expressions import ACCUMULATED, Binary, Expr, Stat, refs, walk
from compiler.kernels.movement import ElementsSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.kernels.places import LATER, Stored


@dataclass(frozen=True, slots=True)
class MapSpec:
    """Element-wise over `extents`, with affine reads: arithmetic, broadcast, transpose, slice, pad, concat, update.

    For each point: `output[i] = exprs[i]`, all expressions evaluated before any output is written, so an output may
    share storage with an input that is read at the same point (in-place update). Outputs may cover part of a
    tensor (channel-sparse update of a weight): what is not covered keeps its bytes, in place.
    """

    extents: tuple[int, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    exprs: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class ReduceSpec:
    """`out[kept axes] = epilogue(combine over reduced axes of expr)`.

    `extents` are all iteration axes; `reduced` those that are summed or maximised. `inputs` are read over all axes.
    `output` and `epilogue_inputs` are accessed over all axes but use only kept ones.
    """

    extents: tuple[int, ...]
    reduced: tuple[int, ...]
    combine: Literal["sum", "max"]
    inputs: tuple[Access, ...]
    expr: Expr
    output: Access
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Row-wise normalisation: softmax, layer norm, cross-entropy, and their gradients.

    Iterates `rows` x `width` (two axes). Stage s reduces over the row: `Stat(s) = combine(expr_s)` where `expr_s` may
    use `Ref(k)` (inputs at the point) and `Stat(<s)`. Then for each point of the row `outputs[i] = exprs[i]`.
    An output whose access does not use axis 1 is written once per row (its expr may use `Stat`s and per-row inputs).
    An input that is compared for equality (`eq`) with a `Stat` is read from memory: fusion leaves what makes it alone.
    """

    rows: int
    width: int
    inputs: tuple[Access, ...]
    stages: tuple[tuple[Literal["sum", "max"], Expr], ...]
    outputs: tuple[Access, ...]
    exprs: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MatmulSpec:
    """`C[b, m, n] = epilogue(sum_k A[b, m, k] * B[b, k, n])`, row-major.

    `a_transposed`: A is stored [b, k, m]. `b_transposed`: B is stored [b, n, k]. `a_batched` / `b_batched`: False means
    that operand has no batch axis (shared). All operands are tight (no leading-dimension padding).
    inputs: A, B, then epilogue_inputs. Iteration axes for epilogue accesses: (b, m, n).
    `extra_outputs`: further outputs of C's shape, each an expression like `epilogue`. All are evaluated at a point
    before any is written, so outputs may share storage with epilogue inputs read at the same point: an optimizer's
    update of a weight and its state in the epilogue of the weight's gradient.
    `sums` (of a weight gradient: batch 1, `a_transposed`): a last output [n], the sums over k of B[k, n], which is
    the gradient of a bias. The epilogue is not applied to it.
    `b_panel`: not 0 means that B (not batched, not transposed) is stored as panels of so many columns, a divisor of
    n, in the order in which register tiles read it: [n / b_panel, k, b_panel].
    `products`: A and B (not batched) are rounded to this type, if they are not of it, and multiplied in it. Of bf16 k
    is even; of f16 A lies in it, and products are summed in it too, over short blocks of k, whose sums are f32. Of i8
    B lies in it and k is a multiple of 4; A (not transposed) is rounded to r q, where q are whole numbers and 127 r is
    the largest |A| of a row; products are summed exactly. Of tf32 A and B lie in f32 (batched, too), and are rounded to
    ten bits of mantissa; `sums` are of B as it is. On a grid (tf32, f16, bf16) all products are summed in f32.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: DType = field(kw_only=True)
    a_transposed: bool = False
    b_transposed: bool = False
    a_batched: bool = True
    b_batched: bool = True
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()
    extra_outputs: tuple[Expr, ...] = ()
    sums: bool = False
    b_panel: int = 0
    products: Literal["", "bf16", "f16", "i8", "tf32"] = field(default="", kw_only=True, metadata=LATER)
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)

    @property
    def steps_at_once(self) -> int:
        """Returns the number of steps of k, which is a multiple of it, that an instruction multiplies and adds
        together, in a word.
        """
        return {"bf16": 2, "i8": 4}.get(self.products, 1)


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """Dense 2-D convolution family, NHWC activations, [KH, KW, C / groups, K] weights.

    forward:      inputs x[N,H,W,C], w[KH,KW,C/g,K] -> y[N,OH,OW,K];  epilogue axes (n, oh, ow, k)
    input_grad:   inputs d_y[N,OH,OW,K], w          -> d_x[N,H,W,C];  epilogue axes (n, h, w, c)
    weight_grad:  inputs x, d_y                     -> d_w[KH,KW,C/g,K]; epilogue axes (kh, kw, c, k)
    `groups`: each of so many equal runs of output channels sees only the run of input channels in the same place.
    `pads` is (top, left, bottom, right) of zeros. y[oh,ow] += x[oh*sh + kh*dh - top, ow*sw + kw*dw - left] * w.
    `sums` (weight_grad only): a second output [K], the sums of d_y over n, oh, ow; the epilogue is not applied to it.
    `direct`: sums of products only, never Winograd's algorithm, whose rounding error is up to three times as large.
    `products`: both inputs are rounded to this type, of tf32 to ten bits of mantissa; sums of products are f32, and
    `sums` are of d_y as it is.
    """

    kind: Literal["forward", "input_grad", "weight_grad"]
    dtype: DType = field(kw_only=True)
    n: int
    h: int
    w: int
    c: int
    k: int
    oh: int
    ow: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int] = (1, 1)
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()
    sums: bool = False
    direct: bool = False
    groups: int = field(default=1, metadata=LATER)
    products: Literal["", "tf32", "f16", "bf16"] = field(default="", kw_only=True, metadata=LATER)
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)

    @property
    def group(self) -> tuple[int, int]:
        """(input channels, output channels) of one group."""
        return self.c // self.groups, self.k // self.groups

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """The shape of the weights."""
        return (*self.kernel, self.c // self.groups, self.k)


@dataclass(frozen=True, slots=True)
class DepthwiseSpec:
    """Depth-wise 2-D convolution family (one filter per channel), NHWC, weights [KH, KW, C]; fields as `ConvSpec`.

    forward: x, w -> y[N,OH,OW,C]; input_grad: d_y, w -> d_x[N,H,W,C]; weight_grad: x, d_y -> d_w[KH,KW,C].
    `sums` (weight_grad only): a second output [C], the sums of d_y over n, oh, ow.
    """

    kind: Literal["forward", "input_grad", "weight_grad"]
    dtype: DType = field(kw_only=True)
    n: int
    h: int
    w: int
    c: int
    oh: int
    ow: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int] = (1, 1)
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()
    sums: bool = False
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """2-D pooling, NHWC. Padding never wins a maximum.

    max: x -> y[N,OH,OW,C].          max_grad: x, d_y -> d_x; the first maximum in row-major window order gets d_y.
    average: x -> y; divides by the window area, or by the in-bounds count if not `count_pads`.
    average_grad: d_y -> d_x.
    max_places: x -> y, words: the place of each first maximum (`compiler.kernels.places`), i32 [N, words].
    places_grad: words, d_y -> d_x, as max_grad; the place at which a window has no image gives nothing.
    The epilogue is that of the first output.
    """

    kind: Literal["max", "max_grad", "average", "average_grad", "max_places", "places_grad"]
    dtype: DType = field(kw_only=True)
    n: int
    h: int
    w: int
    c: int
    oh: int
    ow: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    count_pads: bool = False
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class GatherSpec:
    """`y[o, j, i] = table[o, index[j], i]`: table [outer, rows, inner], index i64/i32 [count]; negative wraps.

    scatter_add is its gradient: index, d_y [outer, count, inner] -> d_table [outer, rows, inner], sums duplicates.
    Operand order: gather: table, index -> y.   scatter_add: index, d_y, epilogue_inputs -> d_table, extra outputs.
    The epilogue and `extra_outputs` (scatter_add with outer 1 only) are as in `MatmulSpec`, over axes (row, inner): an
    optimizer's update of the table. `skips`: rows that no index names are not written, for an update in place that
    leaves them as they are.
    """

    kind: Literal["gather", "scatter_add"]
    dtype: DType = field(kw_only=True)
    outer: int
    rows: int
    inner: int
    count: int
    index_dtype: Literal["i64", "i32"] = "i64"
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()
    extra_outputs: tuple[Expr, ...] = ()
    skips: bool = False
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Scaled dot-product attention per head, which never writes the scores to memory.

    forward:  q[B,T,H,D], k[B,S,G,D], v[B,S,G,E], mask? -> y[B,T,H,E], stats[B,H,2,T].
              scores = scale q k' + mask, y = softmax(scores) v; stats: a row's highest score, then 1 / sum of
              exp(score - highest).
    backward: q, k, v, y, stats, d_y, mask? -> those of d_q, d_k, d_v that `wanted` names, in this order.
    H query heads share G key/value heads (H a multiple of G): query head h reads key head h // (H / G).
    `causal`: query t sees keys up to t + S - T only; the scores of later ones are -inf. A row that sees nothing (all
    scores -inf) gives y = 0, and the lowest number and 0 as its stats.
    `products`: scores (and d_y v') are products of this type, in which q, k (v, d_y) lie; widths are even.
    `mask`: None, or the shape [B or 1, H or 1, T or 1, S or 1] of an additive mask of the same type.
    """

    kind: Literal["forward", "backward"]
    dtype: DType = field(kw_only=True)
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    causal: bool = False
    mask: tuple[int, int, int, int] | None = None
    wanted: tuple[bool, bool, bool] = (True, True, True)
    products: Literal["", "bf16"] = field(default="", kw_only=True, metadata=LATER)
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class NormGradSpec:
    """Gradient of y = n(x) weight + bias per row, n = (x - mean) / sqrt(variance + epsilon); mean 0 if not `centred`.

    inputs: x, weight, d_y, epilogue_inputs -> those of d_x, d_weight, d_bias that `wanted` names, in this order.
    x, d_y, d_x: [rows, width]; weight, d_weight, d_bias: [width]. The epilogue is d_x's, over (rows, width).
    """

    rows: int
    width: int
    epsilon: float
    centred: bool
    dtype: DType = field(kw_only=True)
    wanted: tuple[bool, bool, bool] = (True, True, True)
    epilogue: Expr = ACCUMULATED
    epilogue_inputs: tuple[Access, ...] = ()
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class RecurrenceSpec:
    """A recurrent layer over all its steps (`compiler.kernels.cells`), or its gradient.

    forward:  x[T,B,G H], r[G H,H], start[B,N H], bias[H] (gru) -> y[T,B,N H], saved[T,B,S H] (not tanh, relu).
    backward: r, start, y, saved, d_y -> d_x[T,B,G H], d_start[B,N H], d_products[T,B,G H] (gru).
    G gates, N states, S saved tensors of the cell; y holds all states side by side, the hidden one first. `reverse`:
    the steps are taken from the last to the first.
    """

    kind: Literal["forward", "backward"]
    cell: CellName
    dtype: DType = field(kw_only=True)
    steps: int
    batch: int
    width: int
    reverse: bool = False


KernelSpec = (
    MapSpec
    | ReduceSpec
    | RowSpec
    | MatmulSpec
    | ConvSpec
    | DepthwiseSpec
    | PoolSpec
    | GatherSpec
    | AttentionSpec
    | NormGradSpec
    | RecurrenceSpec
    | ElementsSpec
    | ResampleSpec
    | ScanSpec
    | SelectSpec
)
CONTRACTIONS = (MatmulSpec, ConvSpec, DepthwiseSpec)


def compared_with_stats(spec: RowSpec) -> frozenset[int]:
    """Operands of a row kernel in a comparison for equality with a statistic: what hits must be found exactly."""
    parts = [part for expr in (*(term for _, term in spec.stages), *spec.exprs) for part in walk(expr)]
    equalities = [part for part in parts if isinstance(part, Binary) and part.op == "eq"]
    compared = [refs(part) for part in equalities if isinstance(part.x, Stat) or isinstance(part.y, Stat)]
    return frozenset(operand for operands in compared for operand in operands)


_MOST_NAMED = 8192
_named: dict[int, tuple[KernelSpec, str]] = {}
"""The signatures of specs by identity; each spec is held, so that no other gets its identity. Equal is too little: so
are 0.0 and -0.0, whose texts differ."""


def signature(spec: KernelSpec) -> str:
    """SHA-256 of the canonical text: the name of the kernel in caches and objects."""
    cached = _named.get(id(spec))
    if cached is not None:
        return cached[1]
    if len(_named) >= _MOST_NAMED:
        _named.clear()
    name = hashlib.sha256(canonical(spec).encode()).hexdigest()
    _named[id(spec)] = (spec, name)
    return name
