"""The search for the fastest way to run a step that fits: one attempt after the other, with its memory planned.

Refuses a step that needs more memory than its user, or its board, has: where the most is held, and the ways out.

Frozen weights are stored in the order in which matrix products read them, so that no step packs them.

Rewrites: a product whose B is a whole frozen weight -> the same product of B in panels (`MatmulSpec.b_panel`).
Requires: programs as they will run (a call that is cut into parts reads the same weight in each).
Ensures: every product multiplies the same numbers; checkpoints hold what they held.
Why: packing costs up to a fifth of a product of few rows, in every step and for every part of a batch.

Packing is a layout and no computation: `StateTensor.view_shape` and `perm` say it, the loader makes it, a checkpoint
undoes it. A weight that is read in several orders is stored in each of them: the first takes the place of the weight if
nothing reads it as it was, the others are copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate, chain
from math import prod

from compiler.call_passes import run_call_passes
from compiler.codegen.api import workspace_bytes
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.family import choices_of, frugal_choice, stored_panel_width
from compiler.errors import DoesNotFit, InternalError, TuningError
from compiler.graph import TensorType
from compiler.identity import compiler_identity
from compiler.kernels.alignment import aligned
from compiler.kernels.spec import KernelSpec, MatmulSpec, signature
from compiler.placement.attempts import Attempt
from compiler.program.aliases import storage_of
from compiler.program.lower_peak import live_bytes
from compiler.program.memory import plan_memory
from compiler.program.program import KernelCall, MemoryPlan, Program, StateTensor, ViewOrder
from compiler.program.state import label_of
from compiler.program.verify import find_problem
from compiler.rewriting.passes import VERIFY, Declined, PassResult, Reason, Trace
from compiler.settings import BuildSettings
from compiler.spec.documents import TrainingSpec
from compiler.targets import Target
from compiler.tuning.table import TuningTable
from compiler.values import Value

AS_IT_IS = Reason(
    "packing.as_it_is", "a weight that divides into panels, is faster so, and has room for a copy if others read it too"
)

PanelWidth = Callable[[MatmulSpec], int]
"""Columns of the panels in which a product reads a B that never changes best; 0: as it is."""
MAX_RANK = 8


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which a product reads a weight: the weight's axes are (k, n), or (n, k) if `transposed`."""

    weight: Value
    transposed: bool


Stored = Mapping[Order, StateTensor]
"""The packed tensor of each order that has one."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The weights that are stored packed, decided for all programs of a binary at once."""

    frozen: Mapping[Value, StateTensor]
    stored: Stored
    state: tuple[StateTensor, ...]
    """The whole state, with packed weights beside or in place of the others."""


def plan_packing(
    programs: Sequence[Program], state: Sequence[StateTensor], panel_width: PanelWidth, *, may_copy: bool
) -> Packing:
    """The packed weights that pay, and the state that holds them; copies only if `may_copy`."""
    frozen = {tensor.value: tensor for tensor in state if _never_changes(tensor)}
    packed_by_order = {
        order: packed
        for order, spec in _costliest(programs, frozen).items()
        if (width := panel_width(spec))
        and (packed := packed_state(frozen[order.weight], spec, order.transposed, width)) is not None
    }
    stored, replaced = _stored(programs, frozen, packed_by_order, may_copy=may_copy)
    unpacked = [tensor for tensor in state if tensor.value not in replaced]
    return Packing(frozen, stored, (*unpacked, *stored.values()))


def pack_weights(program: Program, *, packing: Packing) -> PassResult[Program]:
    """The program with packed operands, and their types."""
    calls: list[KernelCall] = []
    declined: list[Declined] = []
    for call in program.calls:
        order = _order(program, call, packing.frozen)
        packed = packing.stored.get(order) if order is not None else None
        if packed is not None and isinstance(call.spec, MatmulSpec):
            width = packed.type.shape[-1]
            spec = replace(call.spec, b_transposed=False, b_batched=False, b_panel=width)
            call = replace(call, spec=spec, inputs=(call.inputs[0], packed.value, *call.inputs[2:]))
        elif order is not None:
            declined.append(AS_IT_IS.at(call.layer))
        calls.append(call)
    types = {tensor.value: tensor.type for tensor in packing.stored.values()}
    state = tuple(dict.fromkeys((*program.state, *types)))
    rewritten = replace(program, calls=tuple(calls), types={**program.types, **types}, state=state)
    return PassResult(rewritten, rewritten.calls != program.calls, tuple(declined))


def _never_changes(tensor: StateTensor) -> bool:
    return tensor.role in ("parameter", "constant") and not tensor.trained and tensor.type.element.is_real


def _order(program: Program, call: KernelCall, frozen: Mapping[Value, StateTensor]) -> Order | None:
    """Returns how a call reads a frozen weight as its B; None if it does not, or not the whole weight."""
    spec = call.spec
    if not isinstance(spec, MatmulSpec) or spec.b_panel or (spec.b_batched and spec.batch > 1):
        return None
    home = storage_of(program.aliases, call.inputs[1])
    tensor = frozen.get(home.value)
    if tensor is None or home.offset_bytes or tensor.type.size != spec.k * spec.n:
        return None
    return Order(tensor.value, spec.b_transposed)


def _costliest(programs: Sequence[Program], frozen: Mapping[Value, StateTensor]) -> dict[Order, MatmulSpec]:
    """The product that decides each order's panels: of the first program that has one, the largest."""
    products: dict[Order, MatmulSpec] = {}
    for program in programs:
        costliest_calls: dict[Order, KernelCall] = {}
        for call in program.calls:
            order = _order(program, call, frozen)
            if order is not None and (order not in costliest_calls or call.flops > costliest_calls[order].flops):
                costliest_calls[order] = call
        products = {
            order: call.spec for order, call in costliest_calls.items() if isinstance(call.spec, MatmulSpec)
        } | products
    return products


def packed_state(tensor: StateTensor, spec: MatmulSpec, transposed: bool, width: int) -> StateTensor | None:
    """The weight as [n / width, k, width] for this product; None if its axes do not divide into n, k and panels."""
    view = [extent for extent in tensor.view_shape if extent > 1]
    number = {axis: sum(extent > 1 for extent in tensor.view_shape[:axis]) for axis in tensor.perm}
    inside = [number[axis] for axis in tensor.perm if tensor.view_shape[axis] > 1]
    extents = [view[axis] for axis in inside]
    outer = spec.n if transposed else spec.k
    cut = next((i for i in range(len(extents) + 1) if prod(extents[:i]) == outer), None)
    if cut is None:
        return None
    rows, columns = (inside[cut:], inside[:cut]) if transposed else (inside[:cut], inside[cut:])
    if not columns or view[columns[-1]] % width or len(view) + 1 > MAX_RANK:
        return None
    last = columns[-1]
    view[last : last + 1] = [view[last] // width, width]
    panels, steps = ([axis + (axis > last) for axis in axes] for axes in (columns, rows))
    perm = (*panels, *steps, last + 1)
    kind = TensorType(tensor.type.dtype, tuple(view[axis] for axis in perm))
    orders = tuple(_order_inside(order, tensor.view_shape, last) for order in tensor.orders)
    return replace(tensor, type=kind, view_shape=tuple(view), perm=perm, orders=orders, packed=True)


def _order_inside(order: ViewOrder, view_shape: tuple[int, ...], cut: int) -> ViewOrder:
    """The order where axes of extent 1 are left out and axis `cut` of the others is two."""
    axis = sum(extent > 1 for extent in view_shape[: order.axis])
    return replace(order, axis=axis + (axis > cut), count=order.count + (axis == cut))


def _stored(
    programs: Sequence[Program], frozen: Mapping[Value, StateTensor], packed_by_order: Stored, *, may_copy: bool
) -> tuple[Stored, set[Value]]:
    """The packed tensors to keep, by order, and the weights whose place they take."""
    plain = set(_read_plainly(programs, frozen, packed_by_order))
    orders = Counter(order.weight for order in packed_by_order)
    stored: dict[Order, StateTensor] = {}
    replaced: set[Value] = set()
    for order, packed in packed_by_order.items():
        room = may_copy and not packed.lies_in_file
        if order.weight not in plain | replaced and (room or orders[order.weight] == 1):
            stored[order] = packed
            replaced.add(order.weight)
        elif room:
            value = order.weight.packed(transposed=order.transposed)
            stored[order] = replace(packed, value=value, copy_of=order.weight)
    return stored, replaced


def _read_plainly(
    programs: Sequence[Program], frozen: Mapping[Value, StateTensor], packed_by_order: Stored
) -> Iterator[Value]:
    """Frozen weights that something reads as they are: another kernel, or an operand other than B."""
    for program in programs:
        yield from (program.root(name) for name in program.outputs if program.root(name) in frozen)
        for call in program.calls:
            order = _order(program, call, frozen)
            for position, name in enumerate(call.inputs):
                if program.root(name) in frozen and not (position == 1 and order in packed_by_order):
                    yield program.root(name)


_NAMED = 3
"""The number of values held at the peak that are named, the largest first."""


def fits(plan: MemoryPlan, settings: BuildSettings) -> bool:
    """Whether a planned way to run a step keeps the spec's limit, or without one that of the board."""
    return plan.needed_bytes <= _limit(settings)


def refusal_of(programs: Sequence[Program], plan: MemoryPlan, settings: BuildSettings, how: str) -> DoesNotFit:
    """Returns the error for programs that do not fit; `how` is what was tried, if there was a choice."""
    spec, target, limit_bytes = settings.spec, settings.target, _limit(settings)
    parts = f"arena {plan.arena_bytes:,}, weights {plan.weights_bytes:,}, optimizer {plan.optimizer_bytes:,}"
    parts = f"{parts}; {_peak(programs, plan, spec)}"
    ways = _ways(spec)
    if spec.memory_limit_bytes is not None:
        advice = f"{parts}; {', or '.join(ways)}; {how}"
        return DoesNotFit(plan.needed_bytes, limit_bytes, advice, where="spec.memory_limit_bytes")
    advice = (
        f"{parts}; {target.title} has {target.memory_bytes:,} bytes, of which "
        f"{target.memory_bytes - limit_bytes:,} are left to its system. Set the spec's memory_limit_bytes to "
        f"{limit_bytes:,}, and forward kernels are repeated rather than their results kept, as far as that helps; "
        f"{'; '.join(ways)}; on a device with more memory, set memory_limit_bytes to what is free there"
    )
    return DoesNotFit(plan.needed_bytes, limit_bytes, advice)


def _limit(settings: BuildSettings) -> int:
    limit_bytes = settings.spec.memory_limit_bytes
    return settings.target.budget_bytes if limit_bytes is None else limit_bytes


def _ways(spec: TrainingSpec) -> Sequence[str]:
    """Returns the settings that a user may ask for instead."""
    lower = () if spec.batch == 1 else ("lower the batch",)
    return (*lower, "train fewer or later layers")


def _peak(programs: Sequence[Program], plan: MemoryPlan, spec: TrainingSpec) -> str:
    """The call during which most of the arena is alive, and the largest values then."""
    peaks = (_most_alive(program, plan) for program in programs if program.calls)
    _, position, program = max(peaks, key=lambda peak: peak[0])
    alive = {
        value: plan.placements[program.name, value].size_bytes
        for (name, value), (first, last) in plan.live.items()
        if name == program.name and first <= position <= last
    }
    largest = sorted(alive, key=lambda value: -alive[value])[:_NAMED]
    values = ", ".join(f"{_described(program, value, spec)} {alive[value]:,}" for value in largest)
    return f"most is alive at {label_of(program.calls[position])}: {values}"


def _most_alive(program: Program, plan: MemoryPlan) -> tuple[int, int, Program]:
    """The most bytes of values that are alive during one call, which call that is, and of which program."""
    changes = [0] * (len(program.calls) + 2)
    for (name, value), (first, last) in plan.live.items():
        if name == program.name:
            size_bytes = plan.placements[name, value].size_bytes
            changes[max(first, 0)] += size_bytes
            changes[last + 1] -= size_bytes
    alive = list(accumulate(changes[: len(program.calls)]))
    position = max(range(len(alive)), key=alive.__getitem__)
    return alive[position], position, program


def _described(program: Program, value: Value, spec: TrainingSpec) -> str:
    """A value as people know it; of what a loss reads or makes that is said."""
    calls = [call for call in program.calls if value in map(program.root, (*call.inputs, *call.outputs))]
    maker = next((call for call in calls if value in map(program.root, call.outputs)), None)
    has_name = value in program.names or maker is None
    name = program.name_of(value) if has_name or maker is None else f"what {label_of(maker)} makes"
    kinds = " + ".join(term.kind for term in spec.loss.each)
    return f"{name} (for the loss {kinds})" if any(call.layer == "loss" for call in calls) else name


@dataclass(frozen=True, slots=True)
class Way:
    """A point of the curve of bytes against arithmetic: a way to run the programs, and what it takes."""

    name: str
    memory: MemoryPlan
    flops: int
    """Floating-point operations of the training program, repeated calls counted."""
    again_flops: int
    """Floating-point operations of repeated calls alone."""

    @property
    def flops_ratio(self) -> float:
        """Arithmetic, by that of the same way without the repeated calls."""
        once = self.flops - self.again_flops
        return self.flops / once if once else 1.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Programs as they will run, where their values live, and which kernels are not scheduled by default."""

    attempt: str
    programs: tuple[Program, ...]
    state: tuple[StateTensor, ...]
    memory: MemoryPlan
    measured: Mapping[str, Choice]
    frugal: Mapping[str, Choice] = field(default_factory=dict)
    """The schedules that are neither the default nor the measured ones, and are there to take less scratch."""
    ways: Callable[[], tuple[Way, ...]] = tuple
    """The ways that were tried, the last of them this one; then, planned only on demand, the less hungry ones."""

    @property
    def choices(self) -> Mapping[str, Choice]:
        """Returns the choices of all kernels that are not scheduled by default."""
        return {**self.measured, **self.frugal}


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The answers of families about kernels on a target; all ways to run a step have most of them in common."""

    scratch_bytes: Callable[[KernelSpec, Choice], int]
    panel_width: Callable[[MatmulSpec], int]
    """Columns of the panels in which a frozen B is stored best."""

    @classmethod
    def of(cls, target: Target, threads: int) -> _Kernels:
        """Returns kernels' figures for a target, each computed once."""
        return cls(
            cache(lambda spec, choice: workspace_bytes(spec, target, threads, choice)),
            cache(partial(stored_panel_width, target=target, threads=threads)),
        )


def place_programs(
    programs: Sequence[Program],
    state: Sequence[StateTensor],
    attempts: Iterable[Attempt],
    settings: BuildSettings,
    trace: Trace | None = None,
) -> Placed:
    """Memory and schedules of the first of several equivalent ways to run the programs that fits in the spec's limit.

    Frozen weights are packed; a limit on memory leaves no room for copies of them. Without a limit the first way is
    taken, and what the target's memory does not hold is refused.

    Raises: DoesNotFit, of the attempt that needs least, if none fits; TuningError as `measured_choices`.
    """
    kernels = _Kernels.of(settings.target, settings.threads)
    ways: list[Way] = []
    smallest: Placed | None = None
    remaining = iter(attempts)
    for first in remaining:
        for attempt in chain((first,), first.finer()):
            placed = _placed(programs, state, attempt, settings, kernels, trace)
            ways.append(_way(placed))
            if fits(placed.memory, settings):
                _check(placed.programs)
                return replace(placed, ways=cache(partial(_curve, ways, programs, state, remaining, settings, kernels)))
            if settings.spec.memory_limit_bytes is None:
                raise refusal_of(placed.programs, placed.memory, settings, "")
            if smallest is None or placed.memory.needed_bytes < smallest.memory.needed_bytes:
                smallest = placed
    if smallest is None:
        raise InternalError("there are no programs to place", where="memory")
    tried = "the only way to run it" if len(ways) == 1 else f"the smallest of {len(ways)} ways that were tried"
    raise refusal_of(smallest.programs, smallest.memory, settings, f"this is {tried}, with {smallest.attempt}")


def _curve(
    tried: Sequence[Way],
    programs: Sequence[Program],
    state: Sequence[StateTensor],
    untried: Iterable[Attempt],
    settings: BuildSettings,
    kernels: _Kernels,
) -> tuple[Way, ...]:
    """The ways that were tried, then those that were not needed, without finer slices."""
    others = (_way(_placed(programs, state, attempt, settings, kernels, None)) for attempt in untried)
    return (*tried, *others)


def _placed(
    programs: Sequence[Program],
    state: Sequence[StateTensor],
    attempt: Attempt,
    settings: BuildSettings,
    kernels: _Kernels,
    trace: Trace | None,
) -> Placed:
    """The programs run one way, whatever memory that takes."""
    target, threads, may_copy = settings.target, settings.threads, settings.spec.memory_limit_bytes is None
    tried = [run_call_passes(program, attempt.passes, trace, at_end=False) for program in programs]
    packing = plan_packing(tried, state, kernels.panel_width, may_copy=may_copy)
    pack = (partial(pack_weights, packing=packing),)  # last: what a product reads in parts, it reads packed in each
    packed = [run_call_passes(program, pack, trace, at_end=False) for program in tried]
    measured = measured_choices(packed, settings.tuning, target, threads)
    frugal = frugal_choices(packed, measured, target, threads) if attempt.frugal else {}
    choices = {**measured, **frugal}

    def scratch_bytes(call: KernelCall) -> int:
        choice = choices.get(signature(call.spec), DEFAULT) if choices else DEFAULT  # a signature takes its time
        return kernels.scratch_bytes(call.spec, choice)

    placed, memory = plan_memory(packed, packing.state, scratch_bytes)
    return Placed(attempt.name, placed, packing.state, memory.moved(target.space), measured, frugal)


def _way(placed: Placed) -> Way:
    calls = [call for program in placed.programs if program.name == "train" for call in program.calls]
    again_flops = sum(call.flops for call in calls if call.again)
    return Way(placed.attempt, placed.memory, sum(call.flops for call in calls), again_flops)


def _check(programs: Iterable[Program]) -> None:
    """The end of all passes, and of what the planner wrote in place. Raises: InternalError."""
    for program in programs:
        problem = find_problem(program)
        if problem:
            hint = f"with {VERIFY}=each-pass in the environment, the pass to blame is named"
            raise InternalError(f"{program.name}: {problem}", where="memory", hint=hint)


def frugal_choices(
    programs: Sequence[Program], measured: Mapping[str, Choice], target: Target, threads: int
) -> Mapping[str, Choice]:
    """Schedules with less scratch, by signature, for kernels that else would set the peak of live bytes."""
    candidates: list[tuple[int, int, str, Choice]] = []
    for program in programs:
        for live, call in zip(live_bytes(program), program.calls, strict=True):
            name = signature(call.spec)
            current, other = measured.get(name, DEFAULT), frugal_choice(call.spec, target, threads)
            sizes = [workspace_bytes(call.spec, target, threads, choice) for choice in (current, other)]
            candidates.append((live + aligned(sizes[0]), live + aligned(min(sizes)), name, other))
    aim = max((least for _, least, _, _ in candidates), default=0)
    return {name: choice for size, least, name, choice in candidates if size > aim and least < size}


def measured_choices(
    programs: Iterable[Program], tuning: TuningTable, target: Target, threads: int
) -> Mapping[str, Choice]:
    """The schedules that measurements chose for kernels of these programs, by signature.

    Raises: TuningError if a kernel cannot be scheduled as the table says.
    """
    decided = tuning.choices(target=target.name, version=compiler_identity(), threads=threads)
    specs = {signature(call.spec): call.spec for program in programs for call in program.calls} if decided else {}
    chosen = {name: decided[name] for name in specs if name in decided}
    for name, choice in chosen.items():
        if choice not in choices_of(specs[name], target, threads):
            raise TuningError(
                f"kernel {name[:16]} has no schedule {choice.text!r}", where="tuning", hint="measure again"
            )
    return chosen
