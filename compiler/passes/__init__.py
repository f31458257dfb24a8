"""Graph passes in the order they run. A pass is a pure function from `Graph` to `PassResult[Graph]`.

Adding one: a file here, and a line in a list below that says why it stands where it stands.
"""

from __future__ import annotations

from compiler.graph import Graph
from compiler.passes.activations import name_activations
from compiler.passes.attention import fuse_attention
from compiler.passes.eliminate_common import eliminate_common
from compiler.passes.eliminate_dead import eliminate_dead
from compiler.passes.fold_constants import fold_constants
from compiler.passes.guarded_softmax import unguard_softmax
from compiler.passes.layout import sink_transposes
from compiler.passes.narrow_gradients import narrow_gradients
from compiler.passes.normalization import join_norms
from compiler.passes.save_argmax_indices import save_argmax_indices
from compiler.passes.save_masks import save_masks
from compiler.passes.simplify import simplify
from compiler.passes.singular import separate_singular
from compiler.rewriting.passes import Pass, Passes, Trace, run, until_stable
from compiler.rewriting.verify import find_problem

CLEAN_UP: tuple[Pass[Graph], ...] = (
    fold_constants,  # first: what is constant needs no rule of its own
    simplify,  # then equal things look equal
    eliminate_common,  # before the dead ones go: their inputs were read twice
    eliminate_dead,  # last: everything above leaves some behind
)
FORWARD_PASSES: Passes[Graph] = (
    until_stable(CLEAN_UP),  # importers write plainly and rely on this
    name_activations,  # before whatever looks for a softmax or a sigmoid
    sink_transposes,  # on few shapes of the same thing, and before patterns are looked for between transposes
    until_stable(CLEAN_UP),  # what sank now cancels
    unguard_softmax,  # before attention: a guard between softmax and product would hide it
    until_stable(CLEAN_UP),  # guards and masks that nothing reads any more would count as readers
    fuse_attention,  # before norms: it reads its scaling off products that a norm's spelling resembles
    join_norms,  # on the forward graph, so that the backward pass has one gradient for all
    separate_singular,  # after norms, whose roots it would take; before gradients are written by the chain rule
    until_stable(CLEAN_UP),  # attention's own transposes cancel against the model's
)
TRAINING_PASSES: Passes[Graph] = (
    until_stable(CLEAN_UP),  # gradient rules recompute freely; a slice must lie right behind the gradient that it cuts
    narrow_gradients,  # only now is there a gradient to narrow
    until_stable(CLEAN_UP),  # whole gradients that were narrowed are dead
    save_argmax_indices,  # before masks: what a pool's gradient read is then perhaps only compared
    save_masks,  # now it shows what the backward pass reads of each value
    until_stable(CLEAN_UP),  # comparisons that are read from bits
)


def run_passes(graph: Graph, passes: Passes[Graph], trace: Trace | None = None, of: str = "graph") -> Graph:
    """Applies passes in order, with a check that the graph stays valid.

    Raises: InternalError naming the pass that broke it and those that ran before.
    """
    return run(graph, passes, find_problem, trace, of)


__all__ = ["CLEAN_UP", "FORWARD_PASSES", "TRAINING_PASSES", "find_problem", "run_passes"]
