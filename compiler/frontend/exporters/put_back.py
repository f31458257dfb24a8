"""Computes again in the step what PyTorch's exporter computed from parameters alone, where the file tells what that is.

The record names the operators that a folded initializer came through, not their operands. That is enough where

* an operator has an inverse and no other operand (`exp(s)`, `-exp(a)`): the parameter is computed back,
* a Linear of parameters that the file still holds gives its bias in every row: it was called on zeros, as the first
  step of a recurrent cell is,
* a sum of squares equals that of a parameter that the file still holds.

Ensures: what the step computes equals what was stored, to float32's rounding. What was computed back is said.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.frontend.exporters.folded import operators_behind
from compiler.frontend.exporters.restoration import (
    Read,
    Restoration,
    argument_of,
    constant_copy,
    fresh,
    give_view,
    hold,
    see,
)
from compiler.frontend.file.source import SourceNode
from compiler.graph import Array
from compiler.warnings import CompileWarning, few_of

_LARGEST_START = 1 << 14
"""Elements of a weight whose rank is looked at; the exporter computes with at most half as many."""
_SPREAD = 1e-6
"""The largest distance of two numbers that give neighbours in float32."""
_NOTHING = np.zeros(0, np.float32)
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class _Inverse:
    """An operator of one operand: the ONNX node, its meaning, and its inverse."""

    op_type: str
    forward: Callable[[Array], Array]
    backward: Callable[[Array], Array]


_INVERSES = {
    "exp": _Inverse("Exp", np.exp, np.log),
    "neg": _Inverse("Neg", np.negative, np.negative),
    "log": _Inverse("Log", np.log, np.exp),
    "tanh": _Inverse("Tanh", np.tanh, np.arctanh),
    "sigmoid": _Inverse("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), lambda y: np.log(y) - np.log1p(-y)),
    "reciprocal": _Inverse("Reciprocal", np.reciprocal, np.reciprocal),
}


def put_back(work: Restoration, name: str, reads: Sequence[Read], *, in_one_piece: bool) -> bool:
    """Lets `reads` of the folded initializer `name` see what computes it. Returns False if the file does not tell what
    does.
    """
    if all(argument_of(work, read) == name for read in reads):
        is_restored = _started(work, name, reads) or _squared(work, name, reads)
        is_restored = is_restored or (in_one_piece and _inverted(work, name, reads))
    else:
        silent = all(not work.source.nodes[read.node].call.result for read in reads)
        is_restored = silent and _started(work, name, reads, alone=True)
    return is_restored


# ---------------------------------------------------------------------------------------------------- from an inverse


def _inverted(work: Restoration, name: str, reads: Sequence[Read]) -> bool:
    parameters, array = work.record.origins(name), work.source.initializers[name]
    chain = _chain(work, name)
    if len(parameters) != 1 or not chain:
        return False
    original = _computed_back(array, chain)
    stored = work.initializers.get(parameters[0])
    if original is None or not (
        _gives(stored, chain, array) if stored is not None else hold(work, parameters[0], original)
    ):
        return False
    if stored is None:
        work.computed_back.append(parameters[0])
    node, value = work.source.nodes[reads[0].node], parameters[0]
    for step in chain:
        output = fresh(work, f"{value}:{step.op_type.lower()}")
        work.prologue.append(SourceNode(node.name, step.op_type, (value,), (output,), {}, node.module, node.torch_op))
        value = output
    see(work, reads, value)
    return True


def _chain(work: Restoration, name: str) -> list[_Inverse]:
    """The operators that made an initializer, first to last; empty if their order is unknown, or one has no inverse."""
    operators, plain = operators_behind(name, work.record)
    if not plain or len(operators) > 2 or any(operator not in _INVERSES for operator in operators):
        return []
    return [_INVERSES[operator] for operator in operators]


def _computed_back(array: Array, chain: Sequence[_Inverse]) -> Array | None:
    """The operand, or None if float32's rounding leaves it open."""
    with np.errstate(all="ignore"):
        below, exact, above = (
            _backward(edge.astype(np.float64), chain)
            for edge in (
                np.nextafter(array, array.dtype.type(-np.inf)),
                array,
                np.nextafter(array, array.dtype.type(np.inf)),
            )
        )
        is_narrow = bool((np.abs(above - below) <= _SPREAD * (1 + np.abs(exact))).all())
    return np.asarray(exact.astype(array.dtype)) if is_narrow and bool(np.isfinite(exact).all()) else None


def _gives(operand: Array, chain: Sequence[_Inverse], array: Array) -> bool:
    """Whether the operators make the array of an operand that the file holds."""
    with np.errstate(all="ignore"):
        for step in chain:
            operand = step.forward(operand)
    return operand.shape == array.shape and bool(np.allclose(operand, array, rtol=_ROUNDING, atol=0))


def _backward(array: Array, chain: Sequence[_Inverse]) -> Array:
    for step in reversed(chain):
        array = step.backward(array)
    return array


# ------------------------------------------------------------------------------------------------- from what it equals


def _started(work: Restoration, name: str, reads: Sequence[Read], *, alone: bool = False) -> bool:
    """A Linear on zeros: its bias in every row, or zeros without one.

    `alone`: only if no other parameter has the elements of the bias; a node that tells of no call may mean that one.
    """
    tensors = [work.initializers.get(parameter) for parameter in work.record.origins(name)]
    array = work.source.initializers[name]
    if (
        operators_behind(name, work.record)[0][-1:] != ["linear"]
        or not tensors
        or any(tensor is None for tensor in tensors)
    ):
        return False
    weights = [tensor for tensor in tensors if tensor is not None and tensor.ndim == 2]
    biases = [parameter for parameter in work.record.origins(name) if work.initializers[parameter].ndim == 1]
    if (
        len(weights) != 1
        or len(tensors) != 1 + len(biases)
        or len(biases) > 1
        or not _shows_its_input(weights[0], array)
    ):
        return False
    bias = work.initializers[biases[0]] if biases else np.zeros(array.shape[-1], array.dtype)
    if bias.shape != array.shape[-1:] or not np.array_equal(np.broadcast_to(bias, array.shape), array):
        return False
    if (
        alone
        and sum(
            np.array_equal(bias, work.initializers.get(candidate, _NOTHING)) for candidate in work.record.parameters
        )
        > 1
    ):
        return False
    for read in reads:
        if biases:
            give_view(work, read, biases[0], bias, "Expand", {})
        else:
            work.inputs[read.node][read.index] = constant_copy(work, name)
    return True


def _shows_its_input(weight: Array, array: Array) -> bool:
    """Whether a Linear with this weight gives zeros for no input but zeros."""
    if array.ndim < 1 or weight.shape[0] != array.shape[-1] or weight.size > _LARGEST_START:
        return False
    return bool(np.isfinite(weight).all()) and int(np.linalg.matrix_rank(weight.astype(np.float64))) == weight.shape[1]


def _squared(work: Restoration, name: str, reads: Sequence[Read]) -> bool:
    """The sum of a parameter's squares along one axis, as of the rows of a codebook; the file holds the parameter."""
    parameters, array = work.record.origins(name), work.source.initializers[name]
    stored = work.initializers.get(parameters[0]) if len(parameters) == 1 else None
    if stored is None or operators_behind(name, work.record)[0] != ["pow", "sum"] or stored.ndim < 2:
        return False
    for axis, keeps in itertools.product(range(stored.ndim), (False, True)):
        squares = np.square(stored.astype(np.float64)).sum(axis, keepdims=keeps)
        if squares.shape == array.shape and np.allclose(squares, array, rtol=_ROUNDING, atol=0) and np.ptp(array) > 0:
            node, member = work.source.nodes[reads[0].node], parameters[0]
            square, axes, output = (fresh(work, f"{member}:{what}") for what in ("square", "axes", "sum"))
            work.initializers[axes] = np.asarray([axis], np.int64)
            origin = (node.module, node.torch_op)
            work.prologue += [
                SourceNode(node.name, "Mul", (member, member), (square,), {}, *origin),
                SourceNode(node.name, "ReduceSum", (square, axes), (output,), {"keepdims": int(keeps)}, *origin),
            ]
            see(work, reads, output)
            return True
    return False


def tell_of_computed_back(work: Restoration) -> None:
    """Adds one warning about all parameters whose elements are known to rounding only."""
    if work.computed_back:
        work.warnings.append(
            CompileWarning(
                "model.recovered_parameters",
                few_of(sorted(work.computed_back)),
                "the file holds only what PyTorch's exporter computed from them; their elements were computed back from"
                " that, and are right to its rounding",
                "export with optimize=False to have them exactly",
            )
        )
