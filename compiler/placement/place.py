"""The search for the fastest way to run a step that fits: one attempt after the other, with its memory planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain

from compiler.call_passes import run_call_passes
from compiler.codegen.api import workspace_bytes
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.family import choices_of, frugal_choice, stored_panel_width
from compiler.errors import InternalError, TuningError
from compiler.identity import compiler_identity
from compiler.kernels.alignment import aligned
from compiler.kernels.spec import KernelSpec, MatmulSpec, signature
from compiler.placement.attempts import Attempt
from compiler.placement.limits import fits, refusal_of
from compiler.placement.packed_weights import pack_weights, plan_packing
from compiler.program.lower_peak import live_bytes
from compiler.program.memory import plan_memory
from compiler.program.program import KernelCall, MemoryPlan, Program, StateTensor
from compiler.program.verify import find_problem
from compiler.rewriting.passes import VERIFY, Trace
from compiler.settings import BuildSettings
from compiler.targets import Target
from compiler.tuning.table import TuningTable


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
    """Those that are not scheduled by default as they were measured, and to take less scratch."""
    ways: Callable[[], tuple[Way, ...]] = tuple
    """All that were tried, the last of them this one; then, planned when somebody asks, the less hungry ones."""

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
        """Each is asked once."""
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
