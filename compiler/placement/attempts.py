"""Ways to run a step's programs: the fastest first, then ways that need less memory and more time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, takewhile

from compiler.call_passes import run_call_passes
from compiler.codegen.api import workspace_bytes
from compiler.codegen.family import frugal_choice
from compiler.kernels.spec import KernelSpec
from compiler.program.cost import Machine
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.rematerialisation.choose import Repeat, lowering_peak, rank_repeats
from compiler.rematerialisation.rewrite import repeat_calls, repeat_forward
from compiler.rewriting.passes import Passes
from compiler.slicing.choose import choose_groups
from compiler.slicing.flow import Group
from compiler.slicing.rewrite import slice_batch
from compiler.splitting.choose import Workspace, choose_splits
from compiler.splitting.rewrite import split_hidden
from compiler.targets import Target

Positions = Mapping[ProgramName, tuple[int, ...]]
Groups = Mapping[ProgramName, tuple[Group, ...]]
FINER = (1, 4, 16)
"""Divisors of the cache's size for the attempts: the smaller the cache seems, the more calls run in more parts."""
NARROWEST = (4, 2)
"""Channels of the narrowest strips: the narrowest vectors, then less, which is slow."""
SHARES = (0.25, 0.5, 0.75, 1.0)
"""The shares of the memory that repeats can save, at a cost in time, that are tried one after the other."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way to run the programs: passes whose results compute the same as all other attempts' do.

    `name` says what is special about it, for a message. `finer` are attempts that differ in finer slices alone.
    `frugal`: kernels whose scratch would be at the peak are scheduled with less of it.
    """

    name: str
    passes: Passes[Program]
    frugal: bool = False
    finer: Callable[[], Iterator[Attempt]] = lambda: iter(())


def attempts(programs: Sequence[Program], batch: int, target: Target, threads: int = 1) -> Iterator[Attempt]:
    """The fastest way for `target`, then ever more repeated calls and finer slices of the batch.

    Each comes once more with chains of calls split by their hidden channels and frugal kernels, if that takes less.
    """
    machine = Machine.of(target)
    least = partial(_least_scratch, target=target, threads=threads, least_sizes={})
    ranked = [rank_repeats(program, machine) for program in programs]
    tried: list[Positions] = []
    for share in (0.0, *SHARES):
        chosen = [
            lowering_peak(program, _cheapest(repeats, share)) for program, repeats in zip(programs, ranked, strict=True)
        ]
        positions = {
            program.name: tuple(repeat.position for repeat in repeats)
            for program, repeats in zip(programs, chosen, strict=True)
        }
        if positions not in tried:
            tried.append(positions)
            way = next(_sliced(programs, positions, batch, machine))
            yield way
            yield from _split(programs, way, least)


def _split(programs: Sequence[Program], way: Attempt, least: Workspace) -> Iterator[Attempt]:
    """Yields the same way with as few bytes alive as splits and frugal kernels reach; none if that is no fewer."""
    run = [run_call_passes(program, way.passes, at_end=False) for program in programs]
    reached: int | None = None
    for channels in NARROWEST:
        splits = choose_splits(run, least, channels, reached)
        if splits is not None:
            reached = splits.peak_bytes
            name = f"{way.name}, {splits.count} chains split into strips of {channels} hidden channels or more"
            yield Attempt(name, (*way.passes, partial(split_hidden, splits=splits.by_program)), frugal=True)


def _least_scratch(call: KernelCall, target: Target, threads: int, least_sizes: dict[KernelSpec, int]) -> int:
    spec = call.spec
    if spec not in least_sizes:
        size = workspace_bytes(spec, target, threads)
        least_sizes[spec] = size and workspace_bytes(spec, target, threads, frugal_choice(spec, target, threads))
    return least_sizes[spec]


def _sliced(programs: Sequence[Program], positions: Positions, batch: int, machine: Machine) -> Iterator[Attempt]:
    """The attempt with those calls repeated, which knows of the same with finer slices."""
    repeated = [repeat_calls(program, positions[program.name]) for program in programs]
    count = sum(map(len, positions.values()))

    def attempts() -> Iterator[Attempt]:
        tried: list[Groups] = []
        for finer in FINER:
            groups = {
                program.name: choose_groups(program, batch, machine.with_cache_over(finer)) for program in repeated
            }
            if groups not in tried:
                tried.append(groups)
                runs = sum(map(len, groups.values()))
                yield Attempt(
                    f"{count} forward kernels repeated in the backward pass, {runs} runs cut by the batch",
                    (
                        partial(repeat_forward, positions=positions),  # whole calls, so that repeats are cut too
                        partial(slice_batch, groups=groups),
                    ),
                )

    ways = attempts()
    yield replace(next(ways), finer=lambda: ways)


def _cheapest(repeats: Sequence[Repeat], share: float) -> Sequence[Repeat]:
    """Repeats that gain time, then as many of the others as save `share` of what those could."""
    free = sum(1 for _ in takewhile(lambda repeat: repeat.gains, repeats))
    saved = list(accumulate(repeat.saved_bytes for repeat in repeats[free:]))
    wanted_bytes = share * saved[-1] if saved else 0.0
    return repeats[: free + sum(before < wanted_bytes for before in [0, *saved[:-1]])]
