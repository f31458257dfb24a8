"""The operand types of a spec, in the order that its kernel takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.errors import InternalError
from compiler.graph import TensorType
from compiler.kernels.access import Access
from compiler.kernels.cells import CELLS
from compiler.kernels.movement import ElementsSpec, MovementSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.kernels.places import words_of_sample
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
from compiler.program.program import Program
from compiler.program.state import label_of


@dataclass(frozen=True, slots=True)
class OperandTypes:
    """Types of a kernel's inputs (epilogue inputs last) and outputs."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def operand_types(spec: KernelSpec) -> OperandTypes:
    """The operands of `spec` as they lie in memory, without the workspace."""
    types = _computed_types(spec)
    stored = getattr(spec, "stored", ())
    if not stored:
        return types
    input_count = len(stored) - len(types.outputs)
    inputs, outputs = types.inputs[:input_count], types.outputs
    stored_types = [TensorType(dtype, type.shape) for dtype, type in zip(stored, inputs + outputs, strict=True)]
    return OperandTypes((*stored_types[:input_count], *types.inputs[input_count:]), tuple(stored_types[input_count:]))


def _computed_types(spec: KernelSpec) -> OperandTypes:
    """Returns the operands' types with the family's own operands in the types that it computes in."""
    match spec:
        case MapSpec() | RowSpec():
            return OperandTypes(_types(spec.inputs), _types(spec.outputs))
        case ReduceSpec():
            return OperandTypes(_types(spec.inputs + spec.epilogue_inputs), (spec.output.type,))
        case MatmulSpec():
            return _matmul(spec)
        case ConvSpec():
            return _conv(spec)
        case DepthwiseSpec():
            return _depthwise(spec)
        case PoolSpec():
            return _pool(spec)
        case GatherSpec():
            return _gather(spec)
        case AttentionSpec():
            return _attention(spec)
        case NormGradSpec():
            return _norm_grad(spec)
        case RecurrenceSpec():
            return _recurrence(spec)
        case ElementsSpec() | ResampleSpec() | ScanSpec() | SelectSpec():
            return _movement(spec)
    raise InternalError(f"no operand rule for {type(spec).__name__}")


def find_mismatch(program: Program) -> str:
    """Returns where a kernel takes another number of operands, or one of another size or type than its value; else
    empty.
    """
    for call in program.calls:
        types = operand_types(call.spec)
        if (len(call.inputs), len(call.outputs)) != (len(types.inputs), len(types.outputs)):
            operand_counts = f"the kernel takes {len(types.inputs)} inputs and {len(types.outputs)} outputs"
            return f"{label_of(call)}: {operand_counts}, the call has {len(call.inputs)} and {len(call.outputs)}"
        for value, expected in zip((*call.inputs, *call.outputs), types.inputs + types.outputs, strict=True):
            actual = program.types[value]
            if (actual.dtype, actual.size) != (expected.dtype, expected.size):
                return f"{label_of(call)}: the kernel takes {program.name_of(value)!r}, {actual}, as {expected}"
    return ""


def _types(accesses: tuple[Access, ...]) -> tuple[TensorType, ...]:
    return tuple(access.type for access in accesses)


def _types_of(dtype: DType) -> Callable[..., TensorType]:
    """Shape -> the type of a tensor of the kernel's own element type."""
    return lambda *shape: TensorType(dtype, shape)


def _matmul(spec: MatmulSpec) -> OperandTypes:
    of = _types_of(spec.dtype)
    a = (spec.k, spec.m) if spec.a_transposed else (spec.m, spec.k)
    b: tuple[int, ...] = (spec.n, spec.k) if spec.b_transposed else (spec.k, spec.n)
    if spec.b_panel:
        b = (spec.n // spec.b_panel, spec.k, spec.b_panel)
    a_type = of(*((spec.batch, *a) if spec.a_batched else a))
    b_type = of(*((spec.batch, *b) if spec.b_batched else b))
    outputs = (of(spec.batch, spec.m, spec.n),) * (1 + len(spec.extra_outputs))
    sums = (of(spec.n),) if spec.sums else ()
    return OperandTypes((a_type, b_type, *_types(spec.epilogue_inputs)), outputs + sums)


def _conv(spec: ConvSpec) -> OperandTypes:
    of = _types_of(spec.dtype)
    x, y = of(spec.n, spec.h, spec.w, spec.c), of(spec.n, spec.oh, spec.ow, spec.k)
    return _image_operands(spec, x, y, of(*spec.weight))


def _depthwise(spec: DepthwiseSpec) -> OperandTypes:
    of = _types_of(spec.dtype)
    x, y = of(spec.n, spec.h, spec.w, spec.c), of(spec.n, spec.oh, spec.ow, spec.c)
    return _image_operands(spec, x, y, of(*spec.kernel, spec.c))


def _image_operands(spec: ConvSpec | DepthwiseSpec, x: TensorType, y: TensorType, w: TensorType) -> OperandTypes:
    of = _types_of(spec.dtype)
    inputs, output = {"forward": ((x, w), y), "input_grad": ((y, w), x), "weight_grad": ((x, y), w)}[spec.kind]
    sums = (of(y.shape[-1]),) if spec.sums else ()
    return OperandTypes(inputs + _types(spec.epilogue_inputs), (output, *sums))


def _pool(spec: PoolSpec) -> OperandTypes:
    of = _types_of(spec.dtype)
    x, y = of(spec.n, spec.h, spec.w, spec.c), of(spec.n, spec.oh, spec.ow, spec.c)
    words = TensorType("i32", (spec.n, words_of_sample((spec.oh, spec.ow), spec.c)))
    operands: dict[str, tuple[tuple[TensorType, ...], tuple[TensorType, ...]]] = {
        "max": ((x,), (y,)),
        "max_grad": ((x, y), (x,)),
        "average": ((x,), (y,)),
        "average_grad": ((y,), (x,)),
        "max_places": ((x,), (y, words)),
        "places_grad": ((words, y), (x,)),
    }
    inputs, outputs = operands[spec.kind]
    return OperandTypes(inputs + _types(spec.epilogue_inputs), outputs)


def _gather(spec: GatherSpec) -> OperandTypes:
    table = TensorType(spec.dtype, (spec.outer, spec.rows, spec.inner))
    index = TensorType(spec.index_dtype, (spec.count,))
    picked = TensorType(spec.dtype, (spec.outer, spec.count, spec.inner))
    if spec.kind == "gather":
        return OperandTypes((table, index), (picked,))
    return OperandTypes((index, picked, *_types(spec.epilogue_inputs)), (table,) * (1 + len(spec.extra_outputs)))


def _attention(spec: AttentionSpec) -> OperandTypes:
    of = _types_of(spec.dtype)
    q = of(spec.batch, spec.queries, spec.heads, spec.width)
    k = of(spec.batch, spec.keys, spec.groups, spec.width)
    v = of(spec.batch, spec.keys, spec.groups, spec.value_width)
    y = of(spec.batch, spec.queries, spec.heads, spec.value_width)
    stats = TensorType(ELEMENT_TYPES[spec.dtype].sums_in, (spec.batch, spec.heads, 2, spec.queries))
    mask = () if spec.mask is None else (of(*spec.mask),)
    if spec.kind == "forward":
        return OperandTypes((q, k, v, *mask), (y, stats))
    outputs = tuple(operand for operand, is_wanted in zip((q, k, v), spec.wanted, strict=True) if is_wanted)
    return OperandTypes((q, k, v, y, stats, y, *mask), outputs)


def _norm_grad(spec: NormGradSpec) -> OperandTypes:
    of = _types_of(spec.dtype)
    x, weight = of(spec.rows, spec.width), of(spec.width)
    outputs = tuple(operand for operand, is_wanted in zip((x, weight, weight), spec.wanted, strict=True) if is_wanted)
    return OperandTypes((x, weight, x, *_types(spec.epilogue_inputs)), outputs)


def _recurrence(spec: RecurrenceSpec) -> OperandTypes:
    of, cell = _types_of(spec.dtype), CELLS[spec.cell]
    x, r = of(spec.steps, spec.batch, cell.gates * spec.width), of(cell.gates * spec.width, spec.width)
    y, start = of(spec.steps, spec.batch, cell.states * spec.width), of(spec.batch, cell.states * spec.width)
    saved = (of(spec.steps, spec.batch, cell.saved * spec.width),) if cell.saved else ()
    if spec.kind == "forward":
        return OperandTypes((x, r, start, *((of(spec.width),) if cell.has_bias else ())), (y, *saved))
    return OperandTypes((r, start, y, *saved, y), (x, start, *((x,) if cell.has_bias else ())))


def _movement(spec: MovementSpec) -> OperandTypes:
    """Tensors of `rows` along the axis, and of `count` (but for a scan, which has one extent)."""
    x = TensorType(spec.dtype, (spec.outer, spec.rows, spec.inner))
    if isinstance(spec, ScanSpec):
        return OperandTypes((x,) if spec.kind == "sum" else (x, x), (x,))
    if isinstance(spec, SelectSpec):
        return OperandTypes((x,), (TensorType("i64", (spec.outer, spec.count, spec.inner)),))
    y = TensorType(spec.dtype, (spec.outer, spec.count, spec.inner))
    if isinstance(spec, ResampleSpec):
        tables = TensorType(spec.index_dtype, (spec.taps, spec.count)), TensorType(spec.dtype, (spec.taps, spec.count))
        return OperandTypes((x if spec.kind == "forward" else y, *tables), (y if spec.kind == "forward" else x,))
    return _elements(spec, x, y)


def _elements(spec: ElementsSpec, x: TensorType, y: TensorType) -> OperandTypes:
    outer, inner = spec.outer if spec.per_outer else 1, spec.inner if spec.per_inner else 1
    index = TensorType(spec.index_dtype, (outer, spec.count, inner))
    match spec.kind:
        case "gather":
            return OperandTypes((x, index), (y,))
        case "add":
            return OperandTypes((index, y), (x,))
        case "last":
            return OperandTypes((index,), (TensorType("i64", (outer, spec.rows, inner)),))
    return OperandTypes((x, index, y), (x,))
