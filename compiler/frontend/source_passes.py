"""Passes over a model's file (`SourceModel`) before any of its nodes is imported, in order.

A pass is a pure function from a model to a model. Adding one: a file in `exporters` or `expansion`, and a line in a
list below that says why it stands where it stands. `pockfarm build --stop-after source --print` shows what they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps

from compiler.errors import ModelError
from compiler.frontend.expansion.bodies import inline_functions
from compiler.frontend.expansion.bound_values import bind_values
from compiler.frontend.expansion.integer_types import read_as_int32
from compiler.frontend.expansion.older_opsets import upgrade
from compiler.frontend.expansion.real_types import read_as_float32
from compiler.frontend.expansion.sample_axes import add_sample_axes
from compiler.frontend.exporters.constant_weights import Quantized, lift_weights, settle_eight_bits
from compiler.frontend.exporters.embedding_bags import reduce_bags
from compiler.frontend.exporters.label_smoothing import smooth_labels
from compiler.frontend.exporters.masked_writes import select_masked_writes
from compiler.frontend.exporters.module_paths import name_modules
from compiler.frontend.exporters.new_biases import create_biases
from compiler.frontend.exporters.restore import restore_parameters
from compiler.frontend.exporters.sharing import tie_and_untie
from compiler.frontend.exporters.torch_recurrent import restore_recurrent
from compiler.frontend.exporters.unrecorded import tell_parameters_apart
from compiler.frontend.file.form import check_form, form_problem
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.file.source import SourceModel
from compiler.rewriting.passes import Pass, Passes, PassResult, Trace, run

# What NumPy and Python raise when a model's attributes or shapes make no sense; translated once, at each door.
FOREIGN = (ValueError, TypeError, IndexError, KeyError, ArithmeticError, MemoryError, AssertionError)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of spec and plan about a file: values and new axes of inputs, tensors that are one, layers with new
    biases.
    """

    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sample_axes: Sequence[str] = ()
    tied: Sequence[Sequence[str]] = ()
    untied: Sequence[str] = ()
    create_biases: Sequence[str] = ()
    quantized: Quantized = "frozen"


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class Source:
    """A model as the file has it, with functions and sub-graphs' tensors in place, and as its author meant it."""

    stored: SourceModel
    intended: SourceModel
    changed_by: tuple[str, ...] = ()
    """The passes that changed something, in order."""


def prepared(parsed: SourceModel, wishes: Wishes, limits: ModelLimits, trace: Trace | None = None) -> Source:
    """Runs all passes over a parsed model. Raises: ModelError and its kinds, LimitExceeded, SpecError, PlanError."""
    steps = Trace()
    stored = check_form(run(check_form(parsed), file_passes(limits, wishes.quantized), form_problem, steps, "file"))
    try:
        intended = run(stored, author_passes(stored, wishes), form_problem, steps, "source")
    except FOREIGN as problem:
        raise ModelError(
            f"what its exporter says of its parameters does not fit it: {problem}",
            where="model",
            hint="is the file damaged, or edited after the export?",
        ) from None
    if trace is not None:
        trace.steps += steps.steps
    return Source(stored, intended, tuple(step.name for step in steps.steps if step.modified))


def file_passes(limits: ModelLimits, quantized: Quantized) -> Passes[SourceModel]:
    """Returns the passes that replace the format's own notations by what they stand for."""
    return (
        as_pass(partial(inline_functions, limits=limits)),  # first: all others see nodes of the standard only
        as_pass(upgrade),  # one version of the standard from here on
        as_pass(read_as_float32),  # before anything asks what holds real numbers
        as_pass(read_as_int32),  # after float16 and its kin: casts lead to the types that remain
        as_pass(partial(settle_eight_bits, quantized=quantized)),  # says which Constants are no weights
        as_pass(lift_weights),  # what is read from a Constant is then read as from an initializer, by all others
    )


def author_passes(stored: SourceModel, wishes: Wishes) -> Passes[SourceModel]:
    """Returns the passes that apply the user's decisions on inputs, then undo what exporters did, then apply the user's
    other wishes.
    """
    return (
        as_pass(partial(bind_values, values=wishes.values)),  # what they decide is known to all others
        as_pass(partial(add_sample_axes, names=wishes.sample_axes)),  # likewise
        as_pass(name_modules),  # before parameters are looked for: the others ask of which module a node is
        as_pass(restore_recurrent),  # before parameters are told apart: a cell's tensors are pieces of several
        as_pass(restore_parameters),  # files with PyTorch's record: it says which parameter each reader reads
        as_pass(partial(tell_parameters_apart, untied=wishes.untied)),  # files without: known habits, and guesses
        as_pass(partial(tie_and_untie, tied=wishes.tied, untied=wishes.untied)),  # the user knows better than both
        as_pass(reduce_bags),  # before the import unrolls loops
        as_pass(smooth_labels),  # needs the calls' own words, which later passes may drop
        as_pass(select_masked_writes),  # looks for chains of nodes as the exporter wrote them
        as_pass(partial(drop_replaced, stored=stored)),  # after all that make readers read something else
        as_pass(partial(create_biases, targets=wishes.create_biases)),  # last: sees which layers have a bias by now
    )


def as_pass(rewrite: Callable[[SourceModel], SourceModel]) -> Pass[SourceModel]:
    """A rewrite as the runner of passes takes it: called as it is, and saying whether it changed anything."""

    @wraps(rewrite.func if isinstance(rewrite, partial) else rewrite)
    def apply(source: SourceModel) -> PassResult[SourceModel]:
        after = rewrite(source)
        return PassResult(after, after is not source and _shape(after) != _shape(source))

    return apply


def _shape(source: SourceModel) -> tuple[object, ...]:
    """Returns what passes change, without elements."""
    nodes = [(node.op_type, node.inputs, node.outputs, node.module, *node.attributes) for node in source.nodes]
    tensors = (list(source.initializers), source.constants, source.created, source.unlearnable)
    return nodes, tensors, source.outputs, source.warnings


def drop_replaced(source: SourceModel, stored: SourceModel) -> SourceModel:
    """The model without initializers that no node reads, unless none did in the file either."""
    read = {name for node in source.nodes for name in node.inputs} | set(source.outputs)
    spare = set(stored.initializers) - {name for node in stored.nodes for name in node.inputs}
    remaining = {name: array for name, array in source.initializers.items() if name in read | spare}
    return replace(source, initializers=remaining)
