"""A target of kind `opencl` or `cuda`: an accelerator that runs groups of items, and the host that drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from compiler.targets.costs import MachineCosts
from compiler.targets.cpu import CpuTarget

Space = Literal["device", "unified"]
"""The memory of a step: the device's own, or the host's, which both reach."""
_TENSOR_CORES_SINCE = 80
"""The first generation whose tensor cores have all of these."""
_OF_TENSOR_CORES = ("tf32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class GridTarget:
    """An engine of a board (or a class of machine) beside its CPU.

    `host` is the target of the program that drives it; that program is linked against glibc and loads the driver when
    it runs. `items` is the most items of a group, `shared_bytes` what they share. `memory_bytes`, `reserved_bytes`
    and `cache_bytes` are the engine's. `required_features` are the agent's names that a device must report, the
    host's included. `sources` says where each figure is from.
    """

    name: str
    kind: Literal["opencl", "cuda"]
    title: str
    device_class: str
    host: CpuTarget
    required_features: tuple[str, ...]
    space: Space
    items: int
    shared_bytes: int
    cache_bytes: int
    memory_bytes: int
    reserved_bytes: int
    costs: MachineCosts
    sources: Mapping[str, str]
    capability: str = ""
    """The generation that code is made for, as `sm_87`, for kind `cuda`."""

    @classmethod
    def reader(cls, host_of: Callable[[str], CpuTarget]) -> Callable[[str, Mapping[str, Any]], GridTarget]:
        """Returns a function that reads a TOML table; `host_of` finds the host by its name. It raises TypeError for odd
        fields.
        """

        def read(name: str, table: Mapping[str, Any]) -> GridTarget:
            host = host_of(table["host"]) if isinstance(table.get("host"), str) else None
            if host is None:
                raise TypeError("missing field 'host'")
            features = (*host.required_features, *table.get("required_features", ()))
            costs = MachineCosts(**table.get("costs", {}))
            return cls(**{**table, "name": name, "host": host, "required_features": features, "costs": costs})

        return read

    @property
    def engine(self) -> str:
        """Returns the engine that runs the kernels."""
        return self.kind

    @property
    def architecture(self) -> str:
        """`x86_64` or `aarch64`: the host's."""
        return self.host.architecture

    @property
    def core_columns(self) -> tuple[str, str]:
        """Cores, and bits of a vector, for a table of targets: a CPU's."""
        return "-", "-"

    @property
    def cores(self) -> int:
        """Threads of the host that a step uses: one, which starts kernels."""
        return 1

    @property
    def has_bf16(self) -> bool:
        """Whether the kernels use instructions for bfloat16: not yet."""
        return False

    def multiplies(self, dtype: str) -> bool:
        """Whether products are made in a type: those that tensor cores have; none of eight bits."""
        return dtype in _OF_TENSOR_CORES and self.kind == "cuda" and self._generation >= _TENSOR_CORES_SINCE

    @property
    def _generation(self) -> int:
        """Returns the number of the generation, for kind `cuda`: 87 of `sm_87`."""
        return int(self.capability.removeprefix("sm_"))

    @property
    def zig_triple(self) -> str:
        """The linker's: a program that loads a driver needs the C library of the system."""
        return self.host.library_triple

    @property
    def library_triple(self) -> str:
        """The linker's, for a shared library."""
        return self.host.library_triple

    @property
    def budget_bytes(self) -> int:
        """Most bytes of a training step, unless its spec says another limit; never under half of the memory."""
        return max(self.memory_bytes - self.reserved_bytes, self.memory_bytes // 2)

    @property
    def code_key(self) -> tuple[object, ...]:
        """Returns everything that the text of a kernel depends on: no vendor, only what every device of this kind must
        offer.
        """
        return (self.kind, self.capability, self.items, self.shared_bytes)
