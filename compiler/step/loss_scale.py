"""The factor by which gradients are scaled on their way through float16, which is all that the range of float16 needs.

A number of the compile, not of the run: updates come as soon as their gradients are there, so that a step whose
gradients turn out too large could not be left out. What is too large for float16 is held as the largest that it has
(`compiler.codegen.tir.halves`), so nothing becomes infinite by it, and no step has to be.
"""

from __future__ import annotations

import math

from compiler.errors import SpecError
from compiler.graph import Graph
from compiler.spec.precision import PrecisionSpec
from compiler.step.training import Term, TrainingGraph

TOP = 2.0**10
"""About what the largest gradient of an answer is made: 64 times less than float16's largest number, 2^34 times more
than its smallest."""
MOST = 2.0**24


def loss_scale(step: TrainingGraph, precision: PrecisionSpec) -> float:
    """A power of two, or what is asked for; 1 where nothing is float16.

    The gradient of a mean over n is a share of 1/n of what is measured: n times `TOP` makes up for that.
    Raises: SpecError for a scale where nothing is float16.
    """
    if precision.compute != "f16":
        if precision.loss_scale is not None:
            raise SpecError(
                "no loss is scaled where nothing is float16",
                where="spec.precision.loss_scale",
                hint="say compute: f16, or leave the scale out",
            )
        return 1.0
    if precision.loss_scale is not None:
        return precision.loss_scale
    largest = max(term.weight / _counted(step.graph, term) for term in step.terms)
    return min(2.0 ** math.floor(math.log2(TOP / largest)), MOST) if largest else 1.0


def _counted(graph: Graph, term: Term) -> int:
    """Returns the number of elements of which a term is the mean, as far as is known: for a loss that the model
    computes, the samples.
    """
    if term.is_sum:
        return 1
    if term.labels is None:
        return graph.batch()
    return graph.types[term.labels if term.classifies else term.output].size
