"""The state of an import while it runs: the graph under construction, its parameters, and every ONNX value so far.

An operand is either `KnownOperand` (its elements are fixed at compile time) or a `Value` of the graph, which only
exists at run time. Both are found by what ONNX calls them, and so are parameters until the graph is finished. Known
operands become constants or parameters at the moment a run-time node reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from compiler.element_types import emitted_of_numpy
from compiler.errors import LimitExceeded, ModelError, ModelShapeError, UnsupportedOperator
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.file.source import SourceNode
from compiler.frontend.file.torch_record import TorchRecord
from compiler.graph import Array, AttrValue, Parameter, TensorType
from compiler.origins import FoldedNorm
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value
from compiler.warnings import CompileWarning


@dataclass(frozen=True, slots=True)
class KnownOperand:
    """A tensor whose elements are known at compile time.

    `source` names the parameter it is (seen through `perm`: operand = initializer.transpose(perm)).
    `recipe` is the ONNX node that computed it from parameters; it is replayed in the graph if a run-time node reads
    the value, so that they can learn, and no checkpoint is overruled. Both empty: an ordinary constant.
    `behind` are the parameters that it depends on, `depth` the number of recipes in a row.
    """

    name: str
    array: Array
    source: str = ""
    perm: tuple[int, ...] = ()
    recipe: SourceNode | None = None
    behind: frozenset[str] = frozenset()
    depth: int = 0

    @property
    def trainable(self) -> bool:
        """Whether a parameter stands behind it."""
        return bool(self.source) or self.recipe is not None


@dataclass(frozen=True, slots=True)
class Selected:
    """A tensor whose `axis` runs over rows of which only those of `mask` [rows] are there; None: their number."""

    mask: Value
    axis: int | None


Operand = KnownOperand | Value
DropoutMode = Literal["ignore", "train"]
RandomInput = Literal["random_seed", "random_step"]
BatchNormMode = Literal["fold", "frozen", "train"]
Replay = Callable[["Scope", SourceNode], None]


class Scope:
    """The graph under construction, and what the ONNX file calls its values."""

    def __init__(
        self,
        limits: ModelLimits,
        replay: Replay,
        *,
        readers: dict[str, list[SourceNode]],
        batch_norm: BatchNormMode,
        used_names: Collection[str],
        bias_suffix: str,
        record: TorchRecord | None,
        created: Collection[str],
        producer: str,
    ) -> None:
        self.builder = GraphBuilder()
        self.used_names = set(used_names)
        """The file's names for its values; names that we make up join them."""
        self.limits = limits
        self.readers = readers
        self.producer = producer
        """The producer that the file names."""
        self.created = created
        """Tensors that the file does not hold: dropped by an exporter, or asked for by a plan."""
        self.recorded: Collection[str] = record.parameters if record is not None else ()
        """Parameters that the file itself calls so; of others we only know that they are float initializers."""
        self.inside: Collection[str] = record.inside if record is not None else ()
        """Operators of PyTorch's that bound whose slope on a bound is that inside, as far as the file says."""
        self.batch_norm = batch_norm
        self.dropout: DropoutMode = "ignore"
        self.evaluated: Collection[str] = ()
        """First outputs of norms and dropouts that stay in evaluation mode whatever the spec says."""
        self.absorbed: set[str] = set()
        """Outputs of nodes that an earlier node already computes (a BatchNormalization folded into its Conv)."""
        self.inputs: dict[str, Value] = {}
        self.operands: dict[str, Operand] = {}
        self.sequences: dict[str, tuple[str, ...]] = {}
        """ONNX sequence -> the names of its tensors."""
        self.selected: dict[str, Selected] = {}
        """Tensor name in the file -> how a condition selects its rows."""
        self.masks: dict[Value, Value] = {}
        """A condition -> its elements, flat and bool."""
        self.spread: dict[tuple[Value, int], Value] = {}
        """(such elements, how often) -> each that often in a row."""
        self.parameters: dict[str, Parameter] = {}
        self.parameter_values: dict[str, Value] = {}
        """Parameter -> the value that holds it."""
        self.buffer_of: dict[tuple[str, ...], Value] = {}
        """The key of a norm -> a running statistic of its own."""
        self.stored: Collection[str] = ()
        """The tensors that the file holds."""
        self.bias_of: dict[Value, str] = {}
        """Output of a contraction that has no bias yet -> name of its ONNX node: an Add onto it is its bias."""
        self.random_inputs: dict[RandomInput, Value] = {}
        """Inputs that a model with random generators is fed beside its data."""
        self.random_nodes = 0
        self.folded_bytes = 0
        self._imported = 0
        self.warnings: dict[CompileWarning, None] = {}
        """The warnings in order and without duplicates."""
        self.baked: dict[str, str] = {}
        """Parameters whose elements were used while importing -> the node that needs them fixed."""
        self.own_names: dict[tuple[str, int], str] = {}
        """(first output of a node, input) -> what it reads there as its own, of a tensor that it shares."""
        self.norms: list[FoldedNorm] = []
        """Norms that are folded into parameters."""
        self._orders: dict[str, tuple[int, ...]] = {}
        self._replay = replay
        self._replayed: set[str] = set()
        self._bias_suffix = bias_suffix

    def warn(self, code: str, message: str, *, where: str = "", hint: str = "") -> None:
        """Adds a warning beside the result, once; what concerns many nodes goes into one warning that names a few."""
        self.warnings[CompileWarning(code, where, message, hint)] = None

    # ------------------------------------------------------------------------------------------------------- values

    def emit(self, op: str, *inputs: Value, **attrs: AttrValue) -> Value:
        """Appends a node and returns its output. Raises: LimitExceeded or ModelShapeError for an absurd output."""
        output = self.builder.emit(op, *inputs, output=self.builder.fresh(), **attrs)
        self._check(self.builder.types[output])
        return output

    def _check(self, tensor: TensorType) -> None:
        where = self.builder.layer
        if len(tensor.shape) > self.limits.rank:
            raise LimitExceeded(f"rank {len(tensor.shape)}, the limit is {self.limits.rank}", where=where)
        if tensor.size > self.limits.tensor_elements:
            raise LimitExceeded(
                f"{tensor} has {tensor.size:,} elements, the limit is {self.limits.tensor_elements:,}", where=where
            )
        if tensor.size == 0:
            raise ModelShapeError(f"{tensor} is empty", where=where, hint="a run-time tensor needs at least 1 element")

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """Shape of an operand."""
        return operand.array.shape if isinstance(operand, KnownOperand) else self.builder.types[operand].shape

    def dtype(self, operand: Operand) -> str:
        """Element type of an operand: f32, i64, i32, bool, or NumPy's name for one that only folding may use."""
        if isinstance(operand, Value):
            return self.builder.types[operand].dtype
        element = emitted_of_numpy(operand.array.dtype)
        return operand.array.dtype.name if element is None else element.name

    def value(self, operand: Operand) -> Value:
        """The graph value of an operand; a known one becomes a parameter or a constant now."""
        if isinstance(operand, Value):
            return operand
        if operand.recipe is not None:
            return self._replayed_value(operand)
        if operand.source:
            order = tuple(range(operand.array.ndim))
            return self.parameter(operand, order, kind="weight")
        return self.constant(operand.array)

    def random_input(self, kind: RandomInput) -> Value:
        """The run's seed or the number of its step, whole numbers that are fed to every run of the graph."""
        if kind not in self.random_inputs:
            random_value = self.random_inputs[kind] = self.builder.fresh("hyper", kind)
            self.builder.types[random_value] = TensorType("i64", ())
        return self.random_inputs[kind]

    def bake(self, operand: KnownOperand, where: str) -> None:
        """Records that the import reads an operand's elements: the parameters behind it cannot learn through there."""
        for name in (operand.source, *sorted(operand.behind)):
            if name:
                self.baked.setdefault(name, where)

    def constant(self, array: Array) -> Value:
        """A constant of the graph. Raises: UnsupportedOperator for an element type the graph has not."""
        element = emitted_of_numpy(array.dtype)
        if element is None:
            raise UnsupportedOperator(
                f"a constant of type {array.dtype} is used at run time",
                where=self.builder.layer,
                hint="export the model in float32",
            )
        self._check(TensorType(element.name, array.shape))
        return self.builder.constant(array)

    def _replayed_value(self, operand: KnownOperand) -> Value:
        """Replay the node that computed a known value, so that gradients reach the parameters behind it."""
        node = operand.recipe
        assert node is not None
        if operand.name not in self._replayed:
            outer, self.builder.layer = self.builder.layer, node.name
            self._replay(self, node)
            self.builder.layer = outer
            self._replayed.update(node.outputs)
        replayed = self.operands[operand.name]
        if replayed is operand:
            raise UnsupportedOperator(
                f"its output {operand.name!r} cannot be computed from parameters", where=node.where
            )
        return self.value(replayed)

    # --------------------------------------------------------------------------------------------------- parameters

    def parameter(
        self,
        operand: KnownOperand,
        order: Sequence[int],
        *,
        kind: Literal["weight", "bias"],
        channel_axis: int | None = None,
    ) -> Value:
        """The parameter behind `operand`, as a graph value whose axes are its axes in `order` (unit axes may drop).

        A second reading in another order gets a transpose of the first: it stays one parameter (tied weights). What
        no parameter stands behind is a constant.
        """
        name = operand.source
        if operand.recipe is not None:
            return self._reordered(self._replayed_value(operand), operand.array.shape, order)
        if not operand.source:
            dropped = [axis for axis in range(operand.array.ndim) if axis not in order]
            turned = operand.array.transpose([*order, *dropped])
            return self.constant(turned.reshape(turned.shape[: len(order)]))
        if not _is_finite(operand.array):
            raise ModelError(
                "holds NaN or Inf", where=f"parameter {name!r}", hint="the weights of the file are damaged"
            )
        source_perm = operand.perm or tuple(range(operand.array.ndim))
        file_order = tuple(source_perm[axis] for axis in order)
        if name in self.parameters:
            return self._shared(name, file_order)
        file_shape = _unpermuted(operand.array.shape, source_perm)
        view_axes = sorted(file_order)
        parameter = Parameter(
            name=name,
            file_shape=file_shape,
            view_shape=tuple(file_shape[axis] for axis in view_axes),
            perm=tuple(view_axes.index(axis) for axis in file_order),
            kind=kind,
            layer=self.builder.layer,
            channel_axis=channel_axis,
            created=name in self.created,
        )
        file_array = operand.array.transpose(np.argsort(source_perm)) if operand.perm else operand.array
        return self._add(parameter, file_array, file_order)

    def created_bias(self, name: str, array: Array) -> Value:
        """A bias that the file does not hold: born of a folded norm."""
        shape = array.shape
        parameter = Parameter(name, shape, shape, (0,), "bias", self.builder.layer, created=True)
        return self._add(parameter, array, (0,))

    def buffer(self, name: str, array: Array) -> Value:
        """A tensor that the step updates and that does not learn. Raises: ModelError for NaN or infinity."""
        if name in self.parameter_values:
            return self.parameter_values[name]
        if not _is_finite(array):
            raise ModelError(
                "holds NaN or Inf", where=f"buffer {name!r}", hint="the statistics of the file are damaged"
            )
        axes = tuple(range(array.ndim))
        parameter = Parameter(name, array.shape, array.shape, axes, "buffer", self.builder.layer)
        return self._add(parameter, array, axes)

    def bias_name(self, weight: str) -> str:
        """A free name for the bias that belongs to a weight, in the style of the model's exporter."""
        stem = weight.removesuffix(".weight") if self._bias_suffix == ".bias" else weight
        base_name = stem + self._bias_suffix
        numbered = (f"{base_name}.{number}" for number in itertools.count(1))
        free = (name for name in itertools.chain([base_name], numbered) if name not in self.used_names)
        return next(name for name in free if name not in self.parameters)

    def matrix(self, operand: KnownOperand, order: tuple[int, int]) -> tuple[Value, bool]:
        """A weight matrix [inputs, outputs] from `operand`'s two axes in `order`, and whether it is stored transposed.

        Only a matrix that an earlier node already reads the other way round (a tied embedding) is.
        """
        name = operand.source
        if operand.recipe is None and name in self.parameters:
            source_perm = operand.perm or (0, 1)
            if self._orders[name] == (source_perm[order[1]], source_perm[order[0]]):
                return self._shared(name, self._orders[name]), True
        return self.parameter(operand, order, kind="weight", channel_axis=0), False

    def _add(self, parameter: Parameter, file_array: Array, file_order: tuple[int, ...]) -> Value:
        self._orders[parameter.name] = file_order
        self.parameters[parameter.name] = parameter
        value = self.builder.array_value(parameter.to_inside(file_array))
        self.parameter_values[parameter.name] = value
        return value

    def _shared(self, name: str, file_order: tuple[int, ...]) -> Value:
        existing, value = self.parameters[name], self.parameter_values[name]
        # Two readers may see different channels through it, so a ratio cannot slice it any more.
        self.parameters[name] = replace(existing, channel_axis=None)
        if self._orders[name] == file_order:
            return value
        file_view = self.emit("transpose", value, perm=tuple(int(axis) for axis in np.argsort(existing.perm)))
        whole = self.emit("reshape", file_view, shape=existing.file_shape)
        return self._reordered(whole, existing.file_shape, file_order)

    def _reordered(self, value: Value, shape: tuple[int, ...], order: Sequence[int]) -> Value:
        """Transposes to `order`, dropping the unit axes that `order` leaves out."""
        remaining = sorted(order)
        if len(remaining) < len(shape):
            value = self.emit("reshape", value, shape=tuple(shape[axis] for axis in remaining))
        perm = tuple(remaining.index(axis) for axis in order)
        return value if perm == tuple(range(len(perm))) else self.emit("transpose", value, perm=perm)

    def count_nodes(self, nodes: Sequence[SourceNode], where: str) -> None:
        """Charges nodes that stand in for others, and notes who reads what. Raises: LimitExceeded."""
        self.charge(max(len(nodes), 1), where)
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)

    def charge(self, nodes: int, where: str) -> None:
        """Charges so many nodes that stand in for others. Raises: LimitExceeded."""
        self._imported += nodes
        if self._imported > self.limits.nodes:
            raise LimitExceeded(
                f"more than {self.limits.nodes:,} nodes once operators are defined by others and loops unrolled",
                where=where,
                hint="shorten the loop, or split the model",
            )

    def same(self, name: str, other: str) -> None:
        """Makes `name` mean what `other` means, from now on."""
        if other in self.sequences:
            self.sequences[name] = self.sequences[other]
        else:
            self.operands[name] = self.operands[other]

    def require_foldable(self, size_bytes: int, where: str) -> None:
        """Raises: LimitExceeded if one constant of this size is more than may be computed at compile time."""
        if size_bytes > self.limits.folded_bytes:
            raise LimitExceeded(
                f"would compute {size_bytes:,} bytes at compile time, the limit is {self.limits.folded_bytes:,}",
                where=where,
            )

    def count_folded(self, arrays: Sequence[Array], where: str) -> None:
        """Charges arrays that folding made against the limit."""
        self.folded_bytes += sum(array.nbytes for array in arrays)
        if self.folded_bytes > self.limits.folded_bytes:
            raise LimitExceeded(
                f"constants computed at compile time take {self.folded_bytes:,} bytes, "
                f"the limit is {self.limits.folded_bytes:,}",
                where=where,
            )


def _unpermuted(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[perm.index(axis)] for axis in range(len(shape)))


def _is_finite(array: Array) -> bool:
    """Whether an array is without NaN and infinity; makes no array of answers, which a large tensor has no room for."""
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(array.min(initial=0)) and np.isfinite(array.max(initial=0)))
