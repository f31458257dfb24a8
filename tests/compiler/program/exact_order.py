"""The order of a program's calls with the least peak of live bytes, found exactly; and random programs to order.

What is alive depends only on the set of calls that have run, so orders are paths through sets. The path with the least
peak is found as a shortest one would be. Of two facts, each kept by a test, the search makes use: a call that frees
what it takes, at no higher peak, may run at once; and a set is worth looking at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from compiler.graph import TensorType
from compiler.kernels.access import identity
from compiler.kernels.affine import is_identity
from compiler.kernels.alignment import aligned
from compiler.kernels.expressions import Ref
from compiler.kernels.spec import MapSpec, MatmulSpec
from compiler.program.memory import plan_memory
from compiler.program.program import KernelCall, Program, StateTensor
from compiler.program.schedule import dependencies
from compiler.values import Value

ENOUGH = 20_000
"""Sets after which the search gives up."""


def peak_of(program: Program, state: Sequence[StateTensor], order: Sequence[int] | None = None) -> int:
    """Live bytes at the peak, by the memory planner: of the program as it stands, or in another order."""
    calls = program.calls if order is None else tuple(program.calls[i] for i in order)
    return plan_memory((replace(program, calls=calls),), state, lambda call: 0)[1].bound_bytes


class Orders:
    """A program's calls as bits of sets, and what runs cost."""

    def __init__(self, program: Program, state: Sequence[StateTensor]) -> None:
        self.program = program
        self.count = len(program.calls)
        self.before = [sum(1 << i for i in needed) for needed in dependencies(program)]
        self.fixed = {tensor.value for tensor in state}
        self.kept = {program.root(name) for name in program.outputs} | self.fixed
        self.readers, self.touching = self._bits()
        self.sizes = {value: self._size(value) for value in self.touching if value not in self.fixed}

    def _size(self, value: Value) -> int:
        return aligned(max(self.program.types[value].size_bytes, 1))

    def _bits(self) -> tuple[dict[Value, int], dict[Value, int]]:
        root = self.program.root
        readers: dict[Value, int] = {}
        touching = dict.fromkeys(map(root, self.program.inputs), 0)
        for i, call in enumerate(self.program.calls):
            for value in map(root, call.inputs):
                readers[value] = readers.get(value, 0) | 1 << i
            for value in map(root, (*call.inputs, *call.outputs)):
                touching[value] = touching.get(value, 0) | 1 << i
        return readers, touching

    def alive(self, done: int) -> int:
        """Bytes alive between calls, after a set of them."""
        given = set(map(self.program.root, self.program.inputs))
        return sum(
            size
            for value, size in self.sizes.items()
            if (self.touching[value] & done or value in given)
            and (value in self.kept or self.touching[value] & ~done or not self.touching[value])
        )

    def during(self, number: int, done: int) -> int:
        """Bytes alive while a call runs: those before, and what it writes, unless that takes another's place."""
        call, root = self.program.calls[number], self.program.root
        made = sum(self.sizes[name] for name in call.outputs if root(name) == name and name in self.sizes)
        return self.alive(done) + (0 if self._in_place(number, done) else made)

    def _in_place(self, number: int, done: int) -> bool:
        call, root = self.program.calls[number], self.program.root
        spec = call.spec
        if not isinstance(spec, MapSpec) or len(call.outputs) != 1 or call.outputs[0] in self.program.aliases:
            return False
        if call.outputs[0] in self.kept or not is_identity(spec.outputs[0], spec.extents):
            return False
        roots = [root(name) for name in call.inputs]
        return any(
            access.type.size_bytes == spec.outputs[0].type.size_bytes
            and value not in self.kept
            and value not in self.program.inputs
            and not self.readers[value] & ~(done | 1 << number)
            and roots.count(value) == 1
            and is_identity(access, spec.extents)
            for value, access in zip(roots, spec.inputs, strict=True)
        )

    def ready(self, done: int) -> Iterator[int]:
        """Calls that can run next."""
        return (i for i in range(self.count) if not done >> i & 1 and not self.before[i] & ~done)

    def peak(self, order: Sequence[int]) -> int:
        """Of an order, by the same counting as the search's."""
        done, most = 0, 0
        for number in order:
            most = max(most, self.during(number, done))
            done |= 1 << number
        return most

    def least_peak(self) -> int | None:
        """Of all orders; None if too many sets would have to be looked at."""
        heap, seen = [(0, 0)], set[int]()
        while heap and len(seen) < ENOUGH:
            peak, done = heappop(heap)
            done = self._at_once(peak, done)
            if done.bit_count() == self.count:
                return peak
            if done in seen:
                continue
            seen.add(done)
            for number in self.ready(done):
                heappush(heap, (max(peak, self.during(number, done)), done | 1 << number))
        return None

    def _at_once(self, peak: int, done: int) -> int:
        while True:
            alive = self.alive(done)
            free = (i for i in self.ready(done) if self.during(i, done) <= peak and self.alive(done | 1 << i) <= alive)
            found = next(free, None)
            if found is None:
                return done
            done |= 1 << found


def random_program(rng: random.Random, calls: int) -> Program:
    """Calls over values of several sizes; some are maps, which may write over what they read."""
    product = MatmulSpec(1, 1, 1, 1, dtype="f32")
    types = {Value(0): TensorType("f32", (64,))}
    made: list[KernelCall] = []
    for _ in range(calls):
        read = tuple(dict.fromkeys(rng.choice(list(types)[-8:]) for _ in range(rng.choice((1, 1, 2, 2, 3)))))
        tensor = types[read[0]]
        if rng.random() < 0.4:
            read = tuple(value for value in read if types[value] == tensor)
            spec: MapSpec | MatmulSpec = MapSpec(
                tensor.shape, tuple(identity(tensor) for _ in read), (identity(tensor),), (Ref(0),)
            )
            written = [tensor]
        else:
            spec = product
            written = [TensorType("f32", (16 << rng.randrange(6),)) for _ in range(rng.choice((1, 1, 1, 2)))]
        results = tuple(Value(len(types) + i) for i in range(len(written)))
        types.update(zip(results, written, strict=True))
        made.append(KernelCall(spec, read, results, "layer", "forward", 1, 1, 1))
    return Program("train", tuple(made), types, (Value(0),), tuple(types)[-3:])
