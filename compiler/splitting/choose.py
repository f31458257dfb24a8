"""Chooses which chains run strip by strip, and in how many strips: as few as it takes to lower the peak of live bytes.

No split lowers what is alive outside chains, nor what is alive in a chain beside its hidden channels. The higher
of the two over all programs is the aim: a chain that needs more is cut into the fewest strips that reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compiler.kernels.alignment import aligned
from compiler.kernels.spec import MapSpec, MatmulSpec
from compiler.program.lower_peak import live_bytes
from compiler.program.program import KernelCall, Program, ProgramName
from compiler.splitting.chains import Chain, find_chains, hidden_operands
from compiler.splitting.rewrite import Split, strip_of
from compiler.values import Value

STRIPS = (2, 4, 8, 16)
GAIN = 0.02
"""The part of the peak that splits must save."""

Workspace = Callable[[KernelCall], int]
"""Scratch bytes of a call."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The splits of each program, and the most bytes that are alive with them."""

    by_program: Mapping[ProgramName, tuple[Split, ...]]
    peak_bytes: int

    @property
    def count(self) -> int:
        """Returns the number of splits of all programs."""
        return sum(map(len, self.by_program.values()))


def choose_splits(
    programs: Sequence[Program], workspace: Workspace, narrowest: int, below: int | None = None
) -> Splits | None:
    """The splits of each program into strips of a multiple of `narrowest` channels.

    None if they would not lower the peak, or get it well below so many bytes.
    """
    peaks = [_Peaks.of(program, workspace, narrowest) for program in programs]
    aim, now = max(peak.least() for peak in peaks), max(peak.highest() for peak in peaks)
    if aim > (1 - GAIN) * (now if below is None else below):
        return None
    return Splits({peak.program.name: tuple(peak.splits(aim)) for peak in peaks}, aim)


@dataclass(slots=True)
class _Peaks:
    """Bytes alive in a program: in each chain, whole and in strips, and elsewhere."""

    program: Program
    workspace: Workspace
    narrowest: int
    live: list[int]
    """The bytes alive while each call runs, without scratch; `during`: with it."""
    during: list[int]
    last_use: dict[Value, int] = field(default_factory=dict)
    strip_bytes: dict[Chain, Mapping[int, int]] = field(default_factory=dict)
    """Bytes of a chain by its number of strips."""

    @classmethod
    def of(cls, program: Program, workspace: Workspace, narrowest: int) -> _Peaks:
        updated = frozenset(map(program.root, program.updates))
        stored = frozenset(program.state) - updated  # frozen weights are packed: products need no scratch for them
        live = live_bytes(program)
        during = [
            size + (0 if _reads_stored(program, call, stored) else aligned(workspace(call)))
            for size, call in zip(live, program.calls, strict=True)
        ]
        peaks = cls(program, workspace, narrowest, live, during)
        for position, call in enumerate(program.calls):
            for name in call.inputs:
                peaks.last_use[program.root(name)] = position
        peaks.strip_bytes = dict(_disjoint({chain: dict(peaks._sizes(chain)) for chain in peaks._at_peaks()}))
        return peaks

    def highest(self) -> int:
        """The peak as it is."""
        return max(self.during, default=0)

    def least(self) -> int:
        """The peak where every chain is in the strips that take least."""
        inside = {position for chain in self.strip_bytes for position in chain.positions}
        outside = (size for position, size in enumerate(self.during) if position not in inside)
        return max((*outside, *(min(sizes.values()) for sizes in self.strip_bytes.values())), default=0)

    def splits(self, aim: int) -> Iterator[Split]:
        """The fewest strips of each chain that take no more than `aim`."""
        for chain, sizes in self.strip_bytes.items():
            strips = min(count for count, size in sizes.items() if size <= aim)
            if strips > 1:
                yield Split(chain, strips)

    def _at_peaks(self) -> Iterator[Chain]:
        """The chains in which more is alive than anywhere outside chains: no others matter."""
        chains = find_chains(self.program)
        inside = {position for chain in chains for position in chain.positions}
        outside = max((size for position, size in enumerate(self.during) if position not in inside), default=0)
        for chain in chains:
            if max(self.during[position] for position in chain.positions) > outside:
                yield chain

    def _sizes(self, chain: Chain) -> Iterator[tuple[int, int]]:
        yield 1, max(self.during[position] for position in chain.positions)
        for strips in STRIPS:
            if chain.channels % (strips * self.narrowest) == 0:
                yield strips, self._in_strips(chain, strips)

    def _in_strips(self, chain: Chain, strips: int) -> int:
        """The most bytes alive while strips run: what is alive beside them, the sums, and one strip's own."""
        types, calls = self.program.types, [self.program.calls[position] for position in chain.positions]
        hidden = [aligned(types[call.outputs[0]].size_bytes) for call in calls[:-1]]
        sums = aligned(types[calls[-1].outputs[0]].size_bytes)
        produced = {self.program.root(call.outputs[0]) for call in calls}
        read = {self.program.root(name) for call in calls for name in call.inputs} - produced - set(self.program.state)
        read_bytes = sum(aligned(types[root].size_bytes) for root in read if self.last_use[root] < chain.last)
        other_bytes = self.live[chain.last] - hidden[-1] - sums + read_bytes
        return (
            other_bytes
            + sums
            + max(self._strip_bytes(calls, hidden, place, chain, strips) for place in range(len(calls)))
        )

    def _strip_bytes(
        self, calls: Sequence[KernelCall], hidden: Sequence[int], place: int, chain: Chain, strips: int
    ) -> int:
        """Returns the bytes that one call of a strip reads and writes of hidden channels, copies, and its scratch."""
        call, size = calls[place], chain.channels // strips
        inside = hidden_operands(self.program, calls[place - 1], call) if place else ()
        strip = strip_of(call, inside, place == len(calls) - 1, chain.channels, size, (False, True))
        ranges = zip(call.inputs, strip.ranges, strict=False)
        copies = sum(
            aligned(self.program.types[name].size_bytes // strips) for name, part in ranges if part is not None
        )
        first = place if isinstance(call.spec, MapSpec) else max(place - 1, 0)  # a map writes over what it reads
        around = sum(hidden[first : place + 1]) // strips
        return around + copies + aligned(self.workspace(replace(call, spec=strip.spec)))


def _disjoint(strip_bytes: Mapping[Chain, Mapping[int, int]]) -> Iterator[tuple[Chain, Mapping[int, int]]]:
    """The chains that strips help, the one that they help most first, and no call in two of them."""
    used: set[int] = set()
    for chain, sizes in sorted(
        strip_bytes.items(), key=lambda item: (min(item[1].values()) - item[1][1], item[0].last)
    ):
        if min(sizes.values()) < sizes[1] and used.isdisjoint(chain.positions):
            used.update(chain.positions)
            yield chain, sizes


def _reads_stored(program: Program, call: KernelCall, stored: frozenset[Value]) -> bool:
    return isinstance(call.spec, MatmulSpec) and program.root(call.inputs[1]) in stored
