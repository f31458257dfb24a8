"""The call passes in the order they run. A pass is a pure function from `Program` to `PassResult[Program]`.

What a pass must know beside the program is bound here; what is decided for all programs of a binary at once is bound in
`compiler.placement`, whose passes come after these. Adding one: a file, and a line in a list that says why it stands
where it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from compiler.codegen.family import can_hold, can_update
from compiler.fusion.fuse import fuse_epilogues, fuse_readers
from compiler.fusion.sums import merge_sums
from compiler.fusion.updates import fuse_updates
from compiler.program.forbid_winograd import forbid_winograd
from compiler.program.hold_halves import hold_halves
from compiler.program.hold_integers import hold_integers
from compiler.program.multiply_bytes import multiply_bytes
from compiler.program.multiply_halves import multiply_halves
from compiler.program.multiply_on_tensor_cores import multiply_on_tensor_cores
from compiler.program.note_gradients import note_gradients
from compiler.program.program import Program
from compiler.program.schedule import schedule
from compiler.program.verify import find_problem
from compiler.rematerialisation.widened import widen_again
from compiler.rewriting.passes import Passes, Trace, run, until_stable
from compiler.spec.precision import Compute
from compiler.targets import GridTarget, Target
from compiler.values import Value


def fusion_passes(target: Target) -> Passes[Program]:
    """Returns the passes that merge calls, in graph order."""
    holds, updated = partial(can_hold, target=target), partial(can_update, target=target)
    return (
        until_stable((fuse_readers,)),  # first: a map that its reader computes is never written
        until_stable((partial(fuse_epilogues, can_hold=holds),)),  # what no reader took, at the end of what makes it
        until_stable((fuse_readers,)),  # an epilogue that took one of several readers leaves the others alone with it
        until_stable((partial(fuse_epilogues, can_hold=holds),)),
        merge_sums,  # once no epilogue can sit between a sum and what it sums
        partial(fuse_updates, can_update=updated),  # last: a product that holds an update takes nothing else
    )


def order_passes(
    target: Target,
    *,
    direct: bool = False,
    activations: Compute = "f32",
    pinned: Collection[Value] = (),
    in_bytes: bool = False,
    in_tf32: bool = False,
) -> Passes[Program]:
    """Returns the passes that run on the calls that are left; `direct`: no convolution by Winograd's algorithm;
    `activations`: the type in which they lie between calls; `held`: frozen weights in whole numbers; `in_bytes`:
    multiplied as such; `in_tf32`: all other products on tensor cores, where there are any.
    """
    return (
        *_integers(pinned),  # before products are made in sixteen bits
        *_halves(target, activations),  # first: an order is chosen by bytes
        *((multiply_bytes,) if in_bytes and target.multiplies("i8") else ()),  # what was to be in halves too
        # What has no type of products yet:
        *((multiply_on_tensor_cores,) if in_tf32 and target.multiplies("tf32") else ()),
        schedule,  # before all that asks what is alive together
        note_gradients,  # where each gradient is made is known now
        *((forbid_winograd,) if direct else ()),  # before schedules are chosen and workspaces planned
    )


def _integers(held: Collection[Value]) -> Passes[Program]:
    """Returns the passes that widen weights stored as whole numbers and then hold them as bytes."""
    return (partial(widen_again, held=held), partial(hold_integers, held=held)) if held else ()


def _halves(target: Target, activations: Compute) -> Passes[Program]:
    """Returns the passes that hold activations in sixteen bits and then multiply them so."""
    if activations == "f32":
        return ()
    hold_pass = partial(hold_halves, dtype=activations)
    if not target.multiplies(activations):
        return (hold_pass,)
    if isinstance(target, GridTarget):
        return (hold_pass, partial(multiply_on_tensor_cores, factors=activations))
    return (hold_pass, partial(multiply_halves, dtype=activations))


def call_passes(target: Target, *, direct: bool = False) -> Passes[Program]:
    """Returns all passes that run on each program by itself."""
    return (*fusion_passes(target), *order_passes(target, direct=direct))


def run_call_passes(
    program: Program, passes: Passes[Program], trace: Trace | None = None, *, at_end: bool = True
) -> Program:
    """Applies passes in order, with a check that the program stays valid (see `compiler.rewriting.passes.run`).

    Raises: InternalError naming the pass that broke it and those that ran before.
    """
    return run(program, passes, find_problem, trace, program.name, at_end=at_end)
