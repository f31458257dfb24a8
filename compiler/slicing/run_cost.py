"""Costs of a run of calls that goes part by part of the batch (see `compiler.program.cost`)."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.program.cost import Cache, CostedCall
from compiler.slicing.cut import Part
from compiler.targets import MachineCosts


@dataclass(slots=True)
class RunCost:
    """The cost of a growing run of calls in parts, followed through one part that begins with a cold cache."""

    parts: int
    cache: Cache
    costs: MachineCosts
    part_cost: float = 0.0
    idle: float = 0.0
    """Time of one part in which memory has nothing to do, so that changed values can be written."""
    sums_cost: float = 0.0
    """Terms of sums over the batch, and their adding up."""

    def add(self, call: CostedCall, part: Part) -> None:
        """The next call that runs in parts."""
        traffic, touched = 0.0, 0
        for operand, cut in zip(call.inputs, part.cut, strict=False):
            size_bytes = operand.size_bytes // self.parts if cut else operand.size_bytes
            missed = self.cache.read(operand, size_bytes)
            traffic += missed if cut else missed / self.parts
            touched += size_bytes
        for operand in call.outputs:
            if part.sums:
                self.sums_cost += 3 * operand.size_bytes * self.parts
            else:
                traffic += self.cache.write(operand, operand.size_bytes // self.parts)
                touched += operand.size_bytes // self.parts
        for root in call.dying:
            self.cache.drop(root)
        time = max(traffic, touched / self.costs.cache_speed, call.arithmetic / self.parts)
        self.idle += time - traffic
        self.part_cost += time + self.costs.launch_bytes + call.packing

    def total(self) -> float:
        """The cost if the run ends here: what later calls read must have been written."""
        return self.parts * (self.part_cost + max(0.0, self.cache.changed_bytes - self.idle)) + self.sums_cost
