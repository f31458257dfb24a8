"""A target of kind `cpu`: cores under Linux that share one memory, and run a static executable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from compiler.targets.costs import MachineCosts

OLDEST_GLIBC = "2.31"
"""The oldest glibc that a shared library runs with.

Source: of the systems that the boards' makers still ship, Ubuntu 20.04 (JetPack 5) and Debian 11 (Raspberry Pi OS 11)
have the oldest C library, both 2.31.
"""


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A board (or a class of machine) whose CPU we build for.

    `triple`, `cpu` and `features` are LLVM's; `zig_triple` is the linker's. Vector and cache sizes drive schedules.
    `cores` is the number of cores a training step uses by default. `required_features` are the agent's names (as in
    /proc/cpuinfo) that a device must report before it gets this binary. `sources` says where each figure is from.
    """

    name: str
    kind: Literal["cpu"]
    title: str
    device_class: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    required_features: tuple[str, ...]
    zig_triple: str
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    memory_bytes: int
    """Main memory of the machine."""
    reserved_bytes: int
    """The part of the memory that the system, the agent and the pages of the binary itself need."""
    costs: MachineCosts
    sources: Mapping[str, str]

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> CpuTarget:
        """The target of a TOML table. Raises: TypeError for missing or unknown fields."""
        lists = {field: tuple(table.get(field, ())) for field in ("features", "required_features")}
        return cls(**{**table, **lists, "name": name, "costs": MachineCosts(**table.get("costs", {}))})

    @property
    def space(self) -> Literal["host"]:
        """Returns the memory that its kernels run in."""
        return "host"

    @property
    def engine(self) -> str:
        """Returns the engine that runs the kernels."""
        return self.kind

    @property
    def core_columns(self) -> tuple[str, str]:
        """Cores, and bits of a vector, for a table of targets."""
        return str(self.cores), str(self.vector_bits)

    @property
    def cache_bytes(self) -> int:
        """Returns the bytes of the last cache."""
        return self.l3_bytes or self.l2_bytes

    @property
    def code_key(self) -> tuple[object, ...]:
        """Returns everything that the object of a kernel depends on."""
        return (
            self.triple,
            self.cpu,
            self.features,
            self.vector_bits,
            self.vector_registers,
            self.l1_bytes,
            self.l2_bytes,
            self.l3_bytes,
            self.cores,
        )

    @property
    def architecture(self) -> str:
        """`x86_64` or `aarch64`."""
        return self.triple.split("-", 1)[0]

    @property
    def has_bf16(self) -> bool:
        """Whether instructions round f32 to bfloat16, and multiply pairs of them into f32."""
        return not {"+avx512bf16", "+bf16"}.isdisjoint(self.features)

    @property
    def has_tiles(self) -> bool:
        """Whether products of bfloat16 are made in tile registers (x86's AMX)."""
        return "+amx-bf16" in self.features

    def multiplies(self, dtype: str) -> bool:
        """Whether products are made in a type of sixteen bits, or of eight; none is made in TF32."""
        needed = {"f16": {"asimdhp"}, "i8": {"asimddp", "avx512_vnni"}}
        if dtype == "bf16":
            return self.has_bf16 or self.has_tiles
        return bool(needed.get(dtype, set()) & set(self.required_features))

    @property
    def byte_shift(self) -> int:
        """Returns the number that is added to the bytes of a product's left side, where its instruction takes numbers
        from 0 to 255.
        """
        return 128 if self.architecture == "x86_64" else 0

    @property
    def library_triple(self) -> str:
        """The linker's, for a shared library: an app's C library is glibc, as on every board's own Linux."""
        return f"{self.architecture}-linux-gnu.{OLDEST_GLIBC}"

    @property
    def budget_bytes(self) -> int:
        """Most bytes of a training step, unless its spec says another limit; never under half of the memory."""
        return max(self.memory_bytes - self.reserved_bytes, self.memory_bytes // 2)
