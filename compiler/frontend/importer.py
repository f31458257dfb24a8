"""ONNX bytes -> typed graph: binds input shapes, folds what is known, applies one import row per remaining node.

Outputs that no loss reads: what they alone need and the import cannot do is left out, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from compiler.element_types import holds_reals
from compiler.errors import CompileError, ModelError, UnsupportedOperator
from compiler.external import NO_EXTERNAL, External
from compiler.frontend.call import Call, Result, closest
from compiler.frontend.expansion.control import CONTROL, Run
from compiler.frontend.expansion.selected import read_selected, refuse_selected
from compiler.frontend.expansion.stand_ins import define, stands_in
from compiler.frontend.exporters.readings import readings_of
from compiler.frontend.exporters.unrecorded import PYTORCH
from compiler.frontend.file.parse import parse_model
from compiler.frontend.file.prescan import DEFAULT_LIMITS, ModelLimits, prescan
from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.frontend.file.torch_record import UNOPTIMIZED
from compiler.frontend.fixed_numbers import with_fixed_numbers
from compiler.frontend.folding import fold, refuse_unread
from compiler.frontend.folds import FOLDS
from compiler.frontend.input_axes import BatchAxis
from compiler.frontend.input_types import bind_inputs
from compiler.frontend.modes import in_evaluation
from compiler.frontend.remarks import remark
from compiler.frontend.rows import ROWS
from compiler.frontend.scope import BatchNormMode, DropoutMode, KnownOperand, Operand, Scope
from compiler.frontend.source_passes import FOREIGN, NO_WISHES, Source, Wishes, prepared
from compiler.graph import Graph, Unlearnable
from compiler.origins import Origins, Reading
from compiler.rewriting.passes import Trace
from compiler.values import Value
from compiler.warnings import few_of

SHOWN_OUTPUTS = 16
"""The most outputs among which an error looks for one that does without what is refused."""


class SpareOutputs:
    """The values that the outputs which losses read need; of the others, those that are missing."""

    def __init__(self, source: SourceModel, read: Collection[str]) -> None:
        """`read` are the outputs that losses read; none of them named: the first."""
        requested = {*read} & {*source.outputs}
        self.read = requested or {*source.outputs[:1]}
        self._source, self._is_assumed = source, not requested
        self._needed = _needed(source, self.read)
        self._missing: set[str] = set()
        self._problem: CompileError | None = None

    def attempt_output(self, name: str, work: Callable[[], None]) -> None:
        """Attempts an output itself, as `attempt` does: another may read it, and need it less."""
        self.attempt([name], [name], work, is_needed=name in self.read)

    def attempt(
        self, makes: Sequence[str], reads: Sequence[str], work: Callable[[], None], *, is_needed: bool | None = None
    ) -> None:
        """Does what makes some values of others, unless one of those is missing.

        Raises: what the work raises, if a loss needs it.
        """
        if is_needed is None:
            is_needed = not self._needed.isdisjoint(makes)
        if not self._missing.isdisjoint(reads):
            self._missing.update(makes)
            return
        try:
            work()
        except (ModelError, UnsupportedOperator) as problem:
            if is_needed:
                outputs = self._source.outputs[:SHOWN_OUTPUTS]
                other = next((name for name in outputs if self._does_without(name, makes)), "")
                if other:
                    line = f"name an output that does without it, as in loss: {{output: {other}}}"
                    problem.hint = f"{problem.hint}; or {line}" if problem.hint else line
                raise
            self._problem = self._problem or problem
            self._missing.update(makes)

    def _does_without(self, output: str, values: Collection[str]) -> bool:
        return self._is_assumed and _needed(self._source, {output}).isdisjoint(values)

    def warn(self, scope: Scope, outputs: Sequence[str]) -> None:
        """Warns of the outputs that are missing, and says why the first of them is."""
        missing = [name for name in outputs if name in self._missing]
        if missing and self._problem is not None:
            why = f"{self._problem.where}: {self._problem.message}" if self._problem.where else self._problem.message
            scope.warn("model.outputs_left_out", f"not computed, and no loss reads it: {why}", where=few_of(missing))


def _needed(source: SourceModel, outputs: Collection[str]) -> set[str]:
    needed = set(outputs)
    for node in reversed(source.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            needed.update(node.outputs)
    return needed


def import_model(
    model: bytes,
    *,
    input_shapes: Mapping[str, tuple[int, ...]],
    batch: int,
    batch_norm: BatchNormMode,
    dropout: DropoutMode = "ignore",
    batch_axes: Mapping[str, BatchAxis] | None = None,
    wishes: Wishes = NO_WISHES,
    outputs: Collection[str] = (),
    limits: ModelLimits = DEFAULT_LIMITS,
    external: External = NO_EXTERNAL,
) -> Graph:
    """Imports an ONNX model (opsets 13 to 28, float32) as a graph with static shapes.

    `input_shapes` binds dimensions that the model leaves open, by input name; an open first axis is the batch, unless
    `batch_axes` or the model's own words say otherwise.
    The author's parameters become parameters (`wishes` may overrule which of them are one); only what depends on none
    is folded. `external` holds data files.

    Raises: as `read_source` and `import_source`.
    """
    source = read_source(model, wishes, limits=limits, external=external)
    return import_source(
        source,
        input_shapes=input_shapes,
        batch=batch,
        batch_norm=batch_norm,
        dropout=dropout,
        batch_axes=batch_axes,
        outputs=outputs,
        limits=limits,
    )


def read_source(
    model: bytes,
    wishes: Wishes = NO_WISHES,
    *,
    limits: ModelLimits = DEFAULT_LIMITS,
    external: External = NO_EXTERNAL,
    trace: Trace | None = None,
) -> Source:
    """An ONNX file as its author meant it, before anything is known of shapes; `trace` hears of every pass.

    Raises: ModelError and its kinds, LimitExceeded; SpecError (tied, untied), PlanError (biases).
    """
    prescan(model, limits, {location: memoryview(data).nbytes for location, data in external.items()})
    return prepared(parse_model(model, external), wishes, limits, trace)


def import_source(
    source: Source,
    *,
    input_shapes: Mapping[str, tuple[int, ...]],
    batch: int,
    batch_norm: BatchNormMode,
    dropout: DropoutMode = "ignore",
    batch_axes: Mapping[str, BatchAxis] | None = None,
    outputs: Collection[str] = (),
    limits: ModelLimits = DEFAULT_LIMITS,
) -> Graph:
    """A graph with static shapes of what `read_source` gives; arguments as for `import_model`.

    `outputs` are those that losses read, by default the first; what only others need may be left out, with a warning.

    Raises: ModelError and its kinds, LimitExceeded.
    """
    model = source.intended
    scope = _open_scope(model, limits, batch_norm)
    scope.dropout, scope.stored, scope.evaluated = dropout, model.initializers, in_evaluation(model)
    inputs = scope.inputs
    bound = bind_inputs(model.inputs, input_shapes, batch, limits, batch_axes or {})
    scope.warnings |= dict.fromkeys(bound.warnings)
    for name, tensor in bound.types.items():
        value = scope.builder.fresh()
        scope.builder.types[value] = tensor
        scope.operands[name] = inputs[name] = value
    spare = SpareOutputs(model, outputs)
    for node in model.nodes:
        spare.attempt(node.outputs, node.inputs, partial(_guarded, scope, node, model.opset))
    ends: dict[str, Value] = {}
    for name in model.outputs:
        spare.attempt_output(name, partial(_add_output, scope, name, ends))
    spare.warn(scope, model.outputs)
    remark(scope, model)
    graph = _finish(scope, model, ends, readings_of(source.stored, model, scope.own_names))
    if model.record is None:
        graph = with_fixed_numbers(graph, stores_literals=model.producer != PYTORCH)
    return replace(graph, batch_axes={inputs[name]: axis for name, axis in bound.axes.items() if axis != 0})


def _open_scope(source: SourceModel, limits: ModelLimits, batch_norm: BatchNormMode) -> Scope:
    def replay(scope: Scope, node: SourceNode) -> None:
        _assign(scope, node, _apply_row(scope, node, source.opset))

    scope = Scope(
        limits,
        replay,
        readers=source.readers(with_outputs=True),
        batch_norm=batch_norm,
        used_names=source.value_names(),
        bias_suffix=_bias_suffix(source),
        record=source.record,
        created=source.created,
        producer=source.producer,
    )
    scope.warnings |= dict.fromkeys(source.warnings)
    for name, array in source.initializers.items():
        trainable = holds_reals(array) and name not in source.constants
        scope.operands[name] = KnownOperand(name, array, source=name if trainable else "")
    return scope


def _bias_suffix(source: SourceModel) -> str:
    """Returns how this model's exporter names the bias of `conv.weight`: `conv.weight_bias` (folded norms) or
    `conv.bias`.
    """
    convolutions = [node for node in source.nodes if node.op_type == "Conv" and len(node.inputs) == 3]
    return "_bias" if any(node.inputs[2] == f"{node.inputs[1]}_bias" for node in convolutions) else ".bias"


def _guarded(scope: Scope, node: SourceNode, opset: int) -> None:
    """Imports one node; every failure names it."""
    scope.builder.layer = node.name
    try:
        _import_node(scope, node, node.opset or opset)
    except CompileError as problem:
        if problem.where in ("", node.name):
            problem.where = node.where
        raise
    except FOREIGN as problem:
        raise ModelError(
            f"its operands do not fit its definition: {problem}", where=node.where, hint="run onnx.checker on the model"
        ) from None


_ADVICE = {
    "ai.onnx.ml": "train the part of the model before it: trees and the like do not learn by gradients",
    "com.microsoft": "bring the file as it was exported, before ONNX Runtime's optimizer joined its nodes",
}
"""Domain -> what to do about an operator of it."""


def _import_node(scope: Scope, node: SourceNode, opset: int) -> None:
    if node.domain:
        raise UnsupportedOperator(
            f"operator {node.op_type} of domain {node.domain!r} is not part of the ONNX standard",
            where=node.where,
            hint=_ADVICE.get(node.domain, "export with standard ONNX operators only"),
        )

    def run(nodes: Sequence[SourceNode]) -> None:
        scope.count_nodes(nodes, node.where)
        for inner in nodes:
            _guarded(scope, inner, opset)

    if node.op_type in CONTROL:
        refuse_selected(scope, node.inputs, node.where)
        CONTROL[node.op_type](scope, node, run)
        return
    listed = next((name for name in node.inputs if name in scope.sequences), "")
    if listed:
        raise UnsupportedOperator(f"reads {listed!r}, a sequence of tensors", where=node.where)
    if not read_selected(scope, node, opset, lambda inner: _import_known_or_not(scope, inner, opset, run)):
        _import_known_or_not(scope, node, opset, run)


def _import_known_or_not(scope: Scope, node: SourceNode, opset: int, run: Run) -> None:
    results = fold(scope, node, opset)
    if results:
        _assign(scope, node, results)
        return
    try:
        if node.op_type in ROWS or not define(scope, node, opset, _guarded):
            _assign(scope, node, _apply_row(scope, node, opset))
    except UnsupportedOperator:
        if node.op_type not in ROWS or not stands_in(scope, node, opset, run, _guarded):
            raise


def _apply_row(scope: Scope, node: SourceNode, opset: int) -> tuple[Operand | None, ...]:
    opset = node.opset or opset
    if node.op_type not in ROWS:
        reason = " on values that are only known at run time" if node.op_type in FOLDS else ""
        raise UnsupportedOperator(
            f"ONNX operator {node.op_type} is not supported{reason}{closest(node.op_type, ROWS)}",
            where=node.where,
            hint="bind the input shapes, or rewrite the model without it (in place of x[mask]: torch.where)"
            if reason
            else f"rewrite the model with others of the {len(ROWS)} operators in docs/operators.md",
        )
    call = Call(scope, node, opset)
    result = ROWS[node.op_type](call)
    refuse_unread(call)
    return _as_tuple(result)


def _as_tuple(result: Result) -> tuple[Operand | None, ...]:
    return (result,) if isinstance(result, KnownOperand | Value) else result  # a value is a tuple too


def _assign(scope: Scope, node: SourceNode, results: Sequence[Operand | None]) -> None:
    for name, result in zip(node.outputs, results, strict=False):
        if name and result is not None:
            scope.operands[name] = result


# --------------------------------------------------------------------------------------------------------- finishing


def _finish(scope: Scope, source: SourceModel, outputs: Mapping[str, Value], readings: tuple[Reading, ...]) -> Graph:
    inputs = scope.inputs
    unlearnable = {name: Unlearnable(why, UNOPTIMIZED) for name, why in source.unlearnable.items()} | _baked(scope)
    return Graph(
        nodes=tuple(scope.builder.nodes),
        inputs=(*inputs.values(), *scope.random_inputs.values()),
        outputs=tuple(outputs.values()),
        types=dict(scope.builder.types),
        arrays=dict(scope.builder.arrays),
        parameters={scope.parameter_values[name]: parameter for name, parameter in scope.parameters.items()},
        names=_names(scope, source, {**inputs, **outputs}),
        next_number=scope.builder.next_number,
        unlearnable=unlearnable,
        warnings=tuple(scope.warnings),
        origins=Origins(tuple(scope.parameters), readings, tuple(dict.fromkeys(scope.norms)), (), source.new_biases),
    )


def _baked(scope: Scope) -> dict[str, Unlearnable]:
    """Parameters whose elements some node needs fixed: those that the file calls so, or that others read at run time.

    Any other float initializer that only gives bounds, exponents or scales is no parameter.
    """
    remedy = "rewrite the model so that no node needs their elements"
    baked = {
        name: Unlearnable(f"{where} needs its elements at compile time", remedy)
        for name, where in scope.baked.items()
        if name in scope.recorded or name in scope.parameters
    }
    if baked:
        scope.warn(
            "model.fixed_parameters",
            "cannot learn: a node needs their elements at compile time",
            where=few_of(sorted(baked)),
            hint=f"{remedy}, or leave them frozen",
        )
    return baked


def _add_output(scope: Scope, name: str, outputs: dict[str, Value]) -> None:
    """The graph value behind a model output joins `outputs`; an input or another output gets an identity node.

    Raises: ModelError if no node computes it from the inputs, or it is another output too.
    """
    refuse_selected(scope, [name], f"output {name!r}")
    value = scope.operands.get(name)
    if value is None or isinstance(value, KnownOperand) or name in scope.inputs:
        raise ModelError(
            "no node computes it from the inputs", where=f"output {name!r}", hint="remove this output from the model"
        )
    other = next((other for other, output in outputs.items() if output == value), None)
    if other is not None:
        raise ModelError(
            f"is the same value as output {other!r}",
            where=f"output {name!r}",
            hint="remove one of them from the model",
        )
    scope.builder.layer = f"output {name}"
    outputs[name] = scope.emit("identity", value) if value in scope.inputs.values() else value


def _names(scope: Scope, source: SourceModel, ends: Mapping[str, Value]) -> dict[Value, str]:
    """Returns the model's names for its values: of several names of one value, an input's or output's, else the
    first.
    """
    names = {value: name for name, value in ends.items()}
    names.update((value, name) for name, value in scope.parameter_values.items())
    for name in (output for node in source.nodes for output in node.outputs if output):
        operand = scope.operands.get(name)
        if isinstance(operand, Value) and name not in ends:
            names.setdefault(operand, name)
    return names
