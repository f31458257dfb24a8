"""The description of a bundle's kernels, so that they can be measured and tuned without the model: `kernels.json`.

From a spec's canonical text (`kernel_spec.canonical`) back to the spec, so that a bundle can carry kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compiler.codegen.family import VECTORS, choices_of
from compiler.errors import TuningError
from compiler.kernels.canonical import canonical
from compiler.kernels.spec import KernelSpec, signature
from compiler.kernels.text import read
from compiler.program.program import KernelCall
from compiler.program.state import label_of
from compiler.targets import MachineCosts, Target

MAX_CHARACTERS = 1_000_000
_SHOWN = 80


def parse_spec(text: str) -> KernelSpec:
    """The spec whose canonical text this is. Raises: TuningError if there is none."""
    try:
        spec = read(text[: MAX_CHARACTERS + 1])
        is_spec = type(spec) in VECTORS and len(text) <= MAX_CHARACTERS and canonical(spec) == text
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError) as problem:
        raise TuningError(f"not a kernel's text: {text[:_SHOWN]!r} ({problem})", where="kernels") from None
    if not is_spec:
        raise TuningError(f"not a kernel's text: {text[:_SHOWN]!r}", where="kernels")
    return spec  # type: ignore[return-value]


SCHEMA = "pockfarm.kernels/1"


@dataclass(frozen=True, slots=True)
class CatalogueKernel:
    """A kernel that can be scheduled in several ways, with what all its calls in a step do together."""

    spec: KernelSpec
    name: str
    """The name of its first call."""
    calls: int
    flops: int
    bytes_moved: int

    def cost(self, costs: MachineCosts) -> float:
        """Grows with the time that a step spends in it on a machine."""
        return self.flops + costs.product_flop_per_byte * self.bytes_moved


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A step's kernels that can be scheduled in several ways, the costliest first.

    `version` is the compiler's identity (`compiler.identity`).
    """

    version: str
    threads: int
    kernels: tuple[CatalogueKernel, ...]

    def to_json(self) -> bytes:
        """The file. Same catalogue, same bytes."""
        rows = [
            {
                "spec": canonical(kernel.spec),
                "name": kernel.name,
                "calls": kernel.calls,
                "flops": kernel.flops,
                "bytes_moved": kernel.bytes_moved,
            }
            for kernel in self.kernels
        ]
        body = {"schema": SCHEMA, "version": self.version, "threads": self.threads, "kernels": rows}
        return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Catalogue:
        """The catalogue in a file. Raises: TuningError."""
        try:
            body = json.loads(data)
            rows = [(row, parse_spec(row["spec"])) for row in body["kernels"]]
            kernels = tuple(
                CatalogueKernel(spec, str(row["name"]), int(row["calls"]), int(row["flops"]), int(row["bytes_moved"]))
                for row, spec in rows
            )
            if body["schema"] != SCHEMA:
                raise ValueError(f"schema {body['schema']!r:.60}")
            return cls(str(body["version"]), int(body["threads"]), kernels)
        except (ValueError, TypeError, KeyError, RecursionError) as problem:
            raise TuningError(f"not a list of kernels: {problem!r:.200}", where="kernels.json") from None


def catalogue_of(calls: Iterable[KernelCall], target: Target, *, threads: int, version: str) -> Catalogue:
    """The kernels of a step that can be scheduled in several ways."""
    kernels: dict[str, CatalogueKernel] = {}
    for call in calls:
        name, moved = signature(call.spec), call.bytes_read + call.bytes_written
        earlier = kernels.get(name)
        if earlier is None:
            kernels[name] = CatalogueKernel(call.spec, label_of(call), 1, call.flops, moved)
        else:
            kernels[name] = replace(
                earlier,
                calls=earlier.calls + 1,
                flops=earlier.flops + call.flops,
                bytes_moved=earlier.bytes_moved + moved,
            )
    return Catalogue(version, threads, heaviest_first(_with_choices(kernels, target, threads), target.costs))


def heaviest_first(kernels: Mapping[str, CatalogueKernel], costs: MachineCosts) -> tuple[CatalogueKernel, ...]:
    """Returns the kernels by cost, the heaviest first, then by signature."""
    return tuple(kernels[name] for name in sorted(kernels, key=lambda name: (-kernels[name].cost(costs), name)))


def _with_choices(kernels: Mapping[str, CatalogueKernel], target: Target, threads: int) -> dict[str, CatalogueKernel]:
    return {name: kernel for name, kernel in kernels.items() if len(choices_of(kernel.spec, target, threads)) > 1}
