"""BatchNormalization: folded into the convolution before it, kept with frozen statistics, or with those of each batch.

Forward: y = (x - mean) * scale / sqrt(var + epsilon) + bias, per channel (axis 1).
Source: ONNX BatchNormalization, opset 14 and 15. Whether a model was exported in training mode does not matter: the
spec's `batch_norm` decides; but `train` leaves those in evaluation mode alone where others train
(`compiler.frontend.modes`), and a node that no running statistics feed, or whose own are read, does as ONNX says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.element_types import REAL
from compiler.errors import ModelError
from compiler.frontend.call import Call, Result
from compiler.frontend.file.source import SourceNode
from compiler.frontend.scope import KnownOperand, Operand, Scope
from compiler.graph import Array
from compiler.origins import FoldedNorm, as_stored, outputs_first
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Affine:
    """y = x * factor + shift per channel, in float64: what a frozen BatchNormalization computes."""

    factor: NDArray[np.float64]
    shift: NDArray[np.float64]


def foldable(scope: Scope, output: str) -> SourceNode | None:
    """The BatchNormalization that is the only reader of `output` and may be folded, or None."""
    readers = scope.readers.get(output, ())
    if scope.batch_norm != "fold" or len(readers) != 1 or readers[0].op_type != "BatchNormalization":
        return None
    node = readers[0]
    if _running_is_read(scope, node):
        return None
    is_stored = len(node.inputs) == 5 and all(_is_stored(scope.operands.get(name)) for name in node.inputs[1:])
    # In a file with a record, norms that share their scale are one module: it learns as one.
    is_own = not scope.recorded or not any(_is_shared(scope, node, index) for index in (1, 2))
    return node if is_stored and is_own and node.inputs[0] == output else None


def _is_shared(scope: Scope, node: SourceNode, index: int) -> bool:
    """Whether another node reads this input too."""
    return len(scope.readers.get(node.inputs[index], ())) > 1


def _is_repeated(scope: Scope, name: str) -> bool:
    """Whether a node makes a value by repeating stored elements."""
    makers = (node for readers in scope.readers.values() for node in readers if name in node.outputs)
    return any(node.op_type in ("Expand", "Tile") for node in makers)


def _is_stored(operand: Operand | None) -> bool:
    """Known, and not computed from parameters: those would have to learn through the norm."""
    return isinstance(operand, KnownOperand) and operand.recipe is None


def affine_of(scope: Scope, node: SourceNode) -> Affine:
    """The affine map of a BatchNormalization whose four vectors are known.

    Raises: ModelError if the variance leaves no number to divide by.
    """
    scale, bias, mean, variance = (_vector(scope.operands[name]) for name in node.inputs[1:])
    epsilon = node.attributes.get("epsilon", 1e-5)
    spread = variance + (epsilon if isinstance(epsilon, float) else 1e-5)
    if not (spread > 0).all():
        raise ModelError("its variance is not positive everywhere", where=node.where, hint="export the model again")
    factor = scale / np.sqrt(spread)
    return Affine(factor, bias - mean * factor)


def _vector(operand: Operand) -> NDArray[np.float64]:
    assert isinstance(operand, KnownOperand)
    return operand.array.reshape(-1).astype(np.float64)


def fold_weight(weight: KnownOperand, affine: Affine, *, transposed_groups: int = 0) -> KnownOperand:
    """The convolution weight [O, ...] with each output channel scaled.

    `transposed_groups`: not 0 for a ConvTranspose, whose weight is [I, O / groups, ...], a group one run of I.
    """
    first = outputs_first(weight.array, transposed_groups)
    scaled = first * affine.factor.reshape(-1, *[1] * (first.ndim - 1))
    return replace(weight, array=as_stored(scaled, transposed_groups).astype(np.float32))


def batch_normalization(call: Call) -> Result:
    """The import row; a folded one has nothing left to do."""
    call.attributes.ignore("spatial")
    epsilon, momentum = call.attributes.number("epsilon", 1e-5), call.attributes.number("momentum", 0.9)
    training = bool(call.attributes.integer("training_mode", 0))
    if call.node.outputs[0] in call.scope.absorbed:
        return call.operand(0)
    call.require_dtype(0, REAL)
    x = call.value(0)
    axis = 1 if call.rank(0) > 1 else 0
    channels = call.shape(0)[axis]
    if any(call.shape(i) != (channels,) for i in range(1, 5)):
        call.fail(f"its scale, bias, mean and variance must have shape [{channels}]")
    moved = call.to_last(x, axis)
    if _running_is_read(call.scope, call.node) or not all(isinstance(call.operand(i), KnownOperand) for i in (3, 4)):
        y, *running = _as_written(call, moved, epsilon, momentum, training=training)
        return (call.from_last(y, axis), *running)
    if call.scope.batch_norm == "train" and call.node.outputs[0] not in call.scope.evaluated:
        return call.from_last(_of_batch(call, moved, epsilon, momentum), axis)
    if call.scope.batch_norm == "fold" and all(_is_stored(call.operand(i)) for i in range(1, 5)) and _is_one(call):
        return call.from_last(_folded(call, moved), axis)
    return call.from_last(_frozen(call, moved, epsilon), axis)


def _is_one(call: Call) -> bool:
    """Whether whatever reads the norm's scale and shift is this norm, perhaps called again."""
    readers = [reader for index in (1, 2) for reader in call.scope.readers.get(call.node.inputs[index], ())]
    return all(
        reader.op_type == "BatchNormalization" and reader.inputs[1:] == call.node.inputs[1:] for reader in readers
    )


def _running_is_read(scope: Scope, node: SourceNode) -> bool:
    return any(name and scope.readers.get(name) for name in node.outputs[1:])


def _folded(call: Call, x: Value) -> Value:
    """No convolution to fold into: x * factor + shift, both parameters under the names of scale and bias."""
    affine = affine_of(call.scope, call.node)
    values: list[Value] = []
    for index, array in ((1, affine.factor), (2, affine.shift)):
        constant = call.known_operand(index)
        assert constant is not None
        merged = replace(constant, array=array.astype(np.float32))
        kind = "weight" if index == 1 else "bias"
        values.append(call.scope.parameter(merged, (0,), kind=kind))  # type: ignore[arg-type]
    scale, shift = (call.known_operand(index) for index in (1, 2))
    if scale is not None and shift is not None and (scale.source or shift.source):
        folded_into(call.scope, call.node, weight=scale.source, bias=shift.source, alone=True)
    return call.emit("add", call.emit("mul", x, values[0]), values[1])


def folded_into(
    scope: Scope,
    node: SourceNode,
    *,
    weight: str,
    bias: str,
    layer_bias: KnownOperand | None = None,
    transposed_groups: int = 0,
    alone: bool = False,
) -> None:
    """Records which parameters hold what a norm computes; `layer_bias` is the bias of the layer before it."""
    vectors = [scope.operands[name] for name in node.inputs[1:]]
    scale, shift, mean, variance = (
        vector.source or vector.name for vector in vectors if isinstance(vector, KnownOperand)
    )
    epsilon = node.attributes.get("epsilon", 1e-5)
    if not alone and shift and any(shift == norm.shift or scale == norm.scale for norm in scope.norms):
        scale, shift = (_told_apart(scope, node, index) for index in (1, 2))
    scope.norms.append(
        FoldedNorm(
            weight=weight,
            bias=bias,
            own_bias=""
            if layer_bias is None or (not layer_bias.array.any() and not layer_bias.source)
            else layer_bias.source or layer_bias.name,
            scale=scale,
            shift=shift,
            mean=mean,
            variance=variance,
            epsilon=epsilon if isinstance(epsilon, float) else 1e-5,
            takes_bias=shift if learning_shift(scope, node) else layer_bias.source if layer_bias is not None else "",
            transposed_groups=transposed_groups,
            alone=alone,
        )
    )


def _told_apart(scope: Scope, node: SourceNode, index: int) -> str:
    """A name for a norm's own scale or shift where the exporter stored equal ones of several norms once."""
    name = f"{node.inputs[index]}@{node.name}"
    scope.own_names[node.outputs[0], index] = name
    return name


def learning_shift(scope: Scope, node: SourceNode) -> str:
    """The parameter that a norm adds; empty if it adds constants (a norm without scale and shift of its own)."""
    shift = scope.operands[node.inputs[2]]
    return shift.source if isinstance(shift, KnownOperand) else ""


def _frozen(call: Call, x: Value, epsilon: float) -> Value:
    """(x - mean) * (scale * rsqrt(var + epsilon)) + bias; scale and bias learn, the statistics are constants.

    The mean is subtracted first: multiplying out would lose digits in the gradient of the scale.
    """
    scale, bias = call.parameter_input(1, "weight"), call.parameter_input(2, "bias")
    mean = call.constant(call.array(3, "the running mean"))
    spread = _checked(call, call.array(4, "the running variance"), epsilon)
    rsqrt = call.constant((1 / np.sqrt(spread)).astype(np.float32))
    centred = call.emit("sub", x, mean)
    return call.emit("add", call.emit("mul", centred, call.emit("mul", scale, rsqrt)), bias)


def _of_batch(call: Call, x: Value, epsilon: float, momentum: float) -> Value:
    """The statistics of the batch while training, the running ones otherwise; these are buffers under their own names.

    Whether a step trains is not known here: `statistic` nodes stand for either (`compiler.step.batch_statistics`).
    """
    if not 0 <= momentum <= 1:
        call.fail(f"its momentum is {momentum:g}; it must be from 0 to 1")
    repeated = [name for name in call.node.inputs[3:5] if _is_repeated(call.scope, name)]
    if repeated:
        call.unsupported(
            f"its running statistics {repeated[0]!r} repeat those of a layer for every sample, as PyTorch writes an "
            "InstanceNorm with running statistics; a step cannot update them",
            "say batch_norm: frozen; or give the InstanceNorm track_running_stats=False, for each sample's own",
        )
    # First what learns: a tensor that is both, because its exporter stored equal ones once, learns.
    affine = _affine_values(call)
    mean, variance = (
        call.emit("statistic", _buffer(call, index), x, kind=kind, momentum=momentum)
        for index, kind in ((3, "mean"), (4, "variance"))
    )
    return _normed(call, x, (mean, variance), affine, epsilon)


def _normed(
    call: Call, x: Value, statistics: tuple[Value, Value], affine: tuple[Value, Value], epsilon: float
) -> Value:
    mean, variance = statistics
    rsqrt = call.emit("rsqrt", call.emit("add", variance, call.scalar(epsilon, variance)))
    return call.emit("batch_norm", x, mean, call.emit("mul", affine[0], rsqrt), affine[1])


def _checked(call: Call, variance: Array, epsilon: float) -> NDArray[np.float64]:
    """Returns the divisor, squared. Raises: ModelError if that is no positive number everywhere."""
    spread = variance.astype(np.float64) + epsilon
    if not (spread > 0).all():
        call.fail("its variance is not positive everywhere", "export the model again")
    return spread


def _affine_values(call: Call) -> tuple[Value, Value]:
    """Scale and shift."""
    return call.parameter_input(1, "weight"), call.parameter_input(2, "bias")


def _buffer(call: Call, index: int) -> Value:
    """A running statistic under the name that the file gives it; where norms share one, under a name of its norm's.

    Exporters store equal tensors once, and fresh statistics are equal; norms that share scale and shift are one norm,
    which PyTorch's exporter, in training mode, gives copies of its statistics from the second call on.
    """
    constant, scope = call.known_operand(index), call.scope
    assert constant is not None
    name_in_file, owner = call.node.inputs[index], _owner(call, index)
    earlier = scope.buffer_of.get(owner)
    if earlier is not None and np.array_equal(scope.builder.arrays[earlier], constant.array):
        return earlier
    if index == 4:
        _checked(call, constant.array, call.attributes.number("epsilon", 1e-5))
    stands = any(reader.outputs[0] in scope.evaluated for reader in scope.readers[name_in_file])
    for name in (*((name_in_file,) if name_in_file in scope.stored and not stands else ()), _own_name(call, index)):
        if name in scope.parameter_values:
            continue
        if name != name_in_file:
            scope.warn(
                "model.untied",
                "stored once because their elements are equal; they are kept apart",
                where=f"running statistics {name_in_file!r}",
                hint="export each norm with its own",
            )
        buffer = scope.buffer_of[owner] = scope.buffer(name, constant.array)
        return buffer
    return call.unsupported(
        f"its running statistics {name_in_file!r} are something else too",
        "export the model in evaluation mode, each norm with its own",
    )


def _owner(call: Call, index: int) -> tuple[str, ...]:
    """Returns what distinguishes a norm from another: its scale and shift; without them, the name of its statistics."""
    scale, name_in_file = call.known_operand(1), call.node.inputs[index]
    names = call.node.inputs[1:3] if scale is not None and scale.source else (name_in_file,)
    return (*names, str(index))


def _own_name(call: Call, index: int) -> str:
    scale = call.known_operand(1)
    stem = scale.source.rpartition(".")[0] if scale is not None else ""
    return f"{stem or call.node.module or call.node.name}.{'running_mean' if index == 3 else 'running_var'}"


def _as_written(call: Call, x: Value, epsilon: float, momentum: float, *, training: bool) -> tuple[Value, ...]:
    """Just what ONNX says of this node: its statistics are its operands or, in training mode, those of its input.

    Without running statistics (PyTorch's `track_running_stats=False`) exporters compute the batch's own before it.
    """
    if not training:
        if _running_is_read(call.scope, call.node):
            call.fail("its running statistics are read, which only training_mode=1 gives")
        return (_normed(call, x, (call.value(3), call.value(4)), _affine_values(call), epsilon),)
    shape = call.shape_of(x)
    rows = tuple(range(len(shape) - 1))
    mean = call.emit("reduce_mean", x, axes=rows, keepdims=False)
    centred = call.emit("sub", x, mean)
    variance = call.emit("reduce_mean", call.emit("mul", centred, centred), axes=rows, keepdims=False)
    y = _normed(call, x, (mean, variance), _affine_values(call), epsilon)
    if not _running_is_read(call.scope, call.node):
        return (y,)
    return (y, _blend(call, 3, mean, momentum), _blend(call, 4, variance, momentum))


def _blend(call: Call, index: int, batch: Value, momentum: float) -> Value:
    constant = call.known_operand(index)
    running = call.value(index) if constant is None else call.constant(constant.array)
    decayed = call.emit("mul", running, call.scalar(momentum, batch))
    return call.emit("add", decayed, call.emit("mul", batch, call.scalar(1 - momentum, batch)))
