"""Control flow and sequences that the file, with its shapes bound, decides: branches taken, loops unrolled.

A sub-graph's nodes are imported in place of the node that holds it, once per iteration, so gradients go through them
like through any others. What only run-time values decide is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np

from compiler.errors import ModelError, UnsupportedOperator
from compiler.frontend.expansion.bodies import place
from compiler.frontend.expansion.lists import LISTS
from compiler.frontend.file.references import advice
from compiler.frontend.file.source import Body, SourceNode, free_name
from compiler.frontend.scope import KnownOperand, Scope
from compiler.values import Value

Run = Callable[[Sequence[SourceNode]], None]
"""Imports nodes."""
_RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


def _if(scope: Scope, node: SourceNode, run: Run) -> None:
    """The nodes of the branch that the condition takes; where data decides, both, and a choice of results."""
    branches = [_body(node, "then_branch"), _body(node, "else_branch")]
    condition = scope.operands.get(node.operand(0))
    if isinstance(condition, Value):
        _select(scope, node, condition, branches, run)
        return
    is_true = _truth(scope, node, node.operand(0), "the condition")
    outputs = _run_body(scope, node, branches[0 if is_true else 1], (), node.outputs, run)
    _bind(scope, node.outputs, outputs)


def _select(scope: Scope, node: SourceNode, condition: Value, branches: Sequence[Body], run: Run) -> None:
    """Computes both branches and picks, for each output, the one that the condition means.

    Raises: UnsupportedOperator where the branches give other shapes, or draw random numbers.
    """
    shape = scope.shape(condition)
    if math.prod(shape) != 1:
        raise ModelError(f"its condition must be one element, has shape {list(shape)}", where=node.where)
    drawing = next((inner for body in branches for inner in _nodes_in(body) if inner.op_type in _RANDOM), None)
    if drawing is not None:
        _refuse_decided(scope, node, condition, f"whether {drawing.where} draws random numbers")
    results = [_run_body(scope, node, body, (), (), run) for body in branches]
    single = free_name(f"{node.name}/condition", scope.used_names)
    run(
        [
            SourceNode(
                node.name, "Reshape", (node.operand(0), _add_constant(scope, node, np.zeros(0, np.int64))), (single,)
            )
        ]
    )
    for name, when_true, when_false in zip(node.outputs, *results, strict=False):
        if not name:
            continue
        kinds = [
            (_shape(scope, node, result), scope.dtype(scope.operands[result])) for result in (when_true, when_false)
        ]
        if kinds[0] != kinds[1]:
            shapes = " or ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds)
            _refuse_decided(scope, node, condition, f"whether output {name!r} is {shapes}")
        run([SourceNode(node.name, "Where", (single, when_true, when_false), (name,))])


def _nodes_in(body: Body) -> Iterator[SourceNode]:
    for node in body.nodes:
        yield node
        for value in node.attributes.values():
            if isinstance(value, Body):
                yield from _nodes_in(value)


def _inputs_behind(scope: Scope, value: Value) -> list[str]:
    """Names of the inputs that a value follows from."""
    makers = {output: node for node in scope.builder.nodes for output in node.outputs}
    reached, pending = {value}, [value]
    while pending:
        maker = makers.get(pending.pop())
        for operand in maker.inputs if maker is not None else ():
            if operand not in reached:
                reached.add(operand)
                pending.append(operand)
    return [name for name, operand in scope.inputs.items() if operand in reached]


def _refuse_decided(scope: Scope, node: SourceNode, value: Value, what: str) -> NoReturn:
    """Raises: UnsupportedOperator that names the inputs behind a value which decides."""
    names = _inputs_behind(scope, value)
    inputs = f"input {' and '.join(map(repr, names[:3]))}" if names else "data"
    line = (
        f"if it is a setting of the model, give its value, as in inputs: {{{names[0]}: {{value: 1}}}}; "
        if names
        else ""
    )
    raise UnsupportedOperator(
        f"{inputs} decides {what}", where=node.where, hint=line + advice("decided", scope.producer)
    )


def _loop(scope: Scope, node: SourceNode, run: Run) -> None:
    """The body as often as the trip count and the condition say, both known; scan outputs are stacked."""
    body = _body(node, "body")
    loop_state = list(node.inputs[2 : len(body.inputs)])
    if len(body.inputs) < 2 or len(loop_state) != len(body.inputs) - 2 or len(body.outputs) <= len(loop_state):
        raise ModelError("its body does not fit its inputs", where=node.where)
    count = _number(scope, node, node.operand(0), "the trip count") if node.operand(0) else None
    goes_on = _truth(scope, node, node.operand(1), "the condition") if node.operand(1) else True
    scanned: list[list[str]] = [[] for _ in body.outputs[1 + len(loop_state) :]]
    at = 0
    while goes_on and (count is None or at < count):
        index, condition = _add_constant(scope, node, np.asarray(at)), _add_constant(scope, node, np.asarray(True))
        outputs = _run_body(scope, node, body, (index, condition, *loop_state), (), run)
        goes_on = _truth(scope, node, outputs[0], "the condition after an iteration")
        loop_state = list(outputs[1 : 1 + len(loop_state)])
        for pieces, name in zip(scanned, outputs[1 + len(loop_state) :], strict=True):
            pieces.append(name)
        at += 1
    _bind(scope, node.outputs, loop_state)
    for name, pieces in zip(node.outputs[len(loop_state) :], scanned, strict=False):
        _stack(scope, node, name, pieces, 0, run)


def _scan(scope: Scope, node: SourceNode, run: Run) -> None:
    """The body once per slice of the scanned inputs; source: ONNX Scan, opset 9 and later."""
    body = _body(node, "body")
    slices = _integer(node, "num_scan_inputs")
    states = len(body.inputs) - slices
    if slices < 1 or states < 0 or len(body.outputs) < states or len(node.inputs) < len(body.inputs):
        raise ModelError("its body does not fit its inputs", where=node.where)
    loop_state, scanned = list(node.inputs[:states]), node.inputs[states : len(body.inputs)]
    results: list[list[str]] = [[] for _ in body.outputs[states:]]
    axes = [
        _axis(scope, node, name, axis)
        for name, axis in zip(scanned, _integers(node, "scan_input_axes", slices), strict=True)
    ]
    backward = _integers(node, "scan_input_directions", slices)
    lengths = {_shape(scope, node, name)[axis] for name, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise ModelError(f"scans over axes of {sorted(lengths)} elements", where=node.where)
    (length,) = lengths
    for at in range(length):
        places = [length - 1 - at if turned else at for turned in backward]
        pieces = [_piece(scope, node, *piece, run) for piece in zip(scanned, axes, places, strict=True)]
        outputs = _run_body(scope, node, body, (*loop_state, *pieces), (), run)
        loop_state = list(outputs[:states])
        for result, name in zip(results, outputs[states:], strict=True):
            result.append(name)
    _bind(scope, node.outputs, loop_state)
    onto = zip(
        node.outputs[states:],
        results,
        _integers(node, "scan_output_axes", len(results)),
        _integers(node, "scan_output_directions", len(results)),
        strict=False,
    )
    for name, result, axis, turned in onto:
        _stack(scope, node, name, result[::-1] if turned else result, axis, run)


# ---------------------------------------------------------------------------------------------------------------- parts


def _run_body(
    scope: Scope, node: SourceNode, body: Body, inputs: Sequence[str], results: Sequence[str], run: Run
) -> tuple[str, ...]:
    actual = dict(zip(body.inputs, inputs, strict=True))
    actual |= {name: node.inputs[position] for name, position in body.captured.items()}
    nodes, outputs = place(body, actual, results, node.name, scope.used_names)
    run(nodes)
    return outputs


def _bind(scope: Scope, names: Sequence[str], values: Sequence[str]) -> None:
    for name, value in zip(names, values, strict=False):
        if name and name != value:
            scope.same(name, value)


def _piece(scope: Scope, node: SourceNode, name: str, axis: int, at: int, run: Run) -> str:
    """Adds one slice of a scanned input, without the axis, and returns its name."""
    output = free_name(f"{name}[{at}]", scope.used_names)
    run(
        [SourceNode(node.name, "Gather", (name, _add_constant(scope, node, np.asarray(at))), (output,), {"axis": axis})]
    )
    return output


def _stack(scope: Scope, node: SourceNode, name: str, pieces: Sequence[str], axis: int, run: Run) -> None:
    """The pieces side by side along a new axis."""
    if not name:
        return
    if not pieces:
        if name in scope.readers:
            _refuse(scope, node, f"output {name!r} is empty: the loop has no iteration")
        return
    where = _add_constant(scope, node, np.asarray([axis]))
    single = [free_name(f"{name}[{at}]", scope.used_names) for at in range(len(pieces))]
    widened = [
        SourceNode(node.name, "Unsqueeze", (piece, where), (output,))
        for piece, output in zip(pieces, single, strict=True)
    ]
    run([*widened, SourceNode(node.name, "Concat", tuple(single), (name,), {"axis": axis})])


def _add_constant(scope: Scope, node: SourceNode, array: np.ndarray) -> str:
    """The name of a constant."""
    name = free_name(f"{node.name}/constant", scope.used_names)
    scope.operands[name] = KnownOperand(name, array)
    return name


def _body(node: SourceNode, attribute: str) -> Body:
    body = node.attributes.get(attribute)
    if not isinstance(body, Body) or len(body.outputs) < len(node.outputs):
        raise ModelError(f"attribute {attribute!r} must be a graph of {len(node.outputs)} outputs", where=node.where)
    return body


def _elements(scope: Scope, node: SourceNode, name: str, what: str) -> np.ndarray:
    operand = scope.operands.get(name)
    if isinstance(operand, Value):
        _refuse_decided(scope, node, operand, what)
    if operand is None:
        _refuse(scope, node, f"{what} ({name!r}) is no tensor")
    scope.bake(operand, node.where)
    if operand.array.size != 1:
        raise ModelError(f"{what} must be one element, has {operand.array.size}", where=node.where)
    return operand.array.reshape(())


def _truth(scope: Scope, node: SourceNode, name: str, what: str) -> bool:
    return bool(_elements(scope, node, name, what))


def _number(scope: Scope, node: SourceNode, name: str, what: str) -> int:
    return int(_elements(scope, node, name, what))


def _shape(scope: Scope, node: SourceNode, name: str) -> tuple[int, ...]:
    if name not in scope.operands:
        _refuse(scope, node, f"reads {name!r}, which is no tensor")
    return scope.shape(scope.operands[name])


def _axis(scope: Scope, node: SourceNode, name: str, axis: int) -> int:
    rank = len(_shape(scope, node, name))
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} of a tensor of rank {rank}", where=node.where)
    return axis % rank


def _integer(node: SourceNode, name: str) -> int:
    value = node.attributes.get(name, 0)
    if not isinstance(value, int):
        raise ModelError(f"attribute {name!r} must be an integer", where=node.where)
    return value


def _integers(node: SourceNode, name: str, count: int) -> tuple[int, ...]:
    value = node.attributes.get(name, (0,) * count)
    if not isinstance(value, tuple) or len(value) != count:
        raise ModelError(f"attribute {name!r} must be {count} integers", where=node.where)
    return tuple(int(item) for item in value)


def _refuse(scope: Scope, node: SourceNode, problem: str) -> NoReturn:
    raise UnsupportedOperator(problem, where=node.where, hint=advice("decided", scope.producer))


CONTROL: Mapping[str, Callable[[Scope, SourceNode, Run], None]] = {"If": _if, "Loop": _loop, "Scan": _scan, **LISTS}
