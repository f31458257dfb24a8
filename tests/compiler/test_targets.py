"""Targets: the figures hang together, and LLVM makes nothing that a board's feature list does not cover."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from functools import cache

import pytest

from compiler import targets
from compiler.errors import TargetError
from compiler.program.cost import Machine
from compiler.targets import FOLDER, KINDS, MachineCosts

NAMES = targets.names("cpu")
ENGINES = tuple(name for name in targets.names() if name not in NAMES)

LLVM_TO_CPUINFO = {
    "neon": "asimd",
    "fp-armv8": "fp",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "rdm": "asimdrdm",
    "lse": "atomics",
    "crc": "crc32",
    "rcpc": "lrcpc",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "f16c": "f16c",
    "movbe": "movbe",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512bf16": "avx512_bf16",
    "avx512vnni": "avx512_vnni",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
}
"""LLVM's names of instruction sets that code for dense arithmetic may use, and the kernel's names of them."""

IMPLIED = {"avx512f": {"avx", "bmi1", "bmi2", "f16c", "movbe"}}
"""What every CPU with the key has too (x86-64 psABI levels)."""


@pytest.mark.parametrize("name", NAMES)
def test_figures_hang_together(name: str) -> None:
    target = targets.load_cpu(name)
    assert target.vector_bits in (128, 256, 512)
    assert target.l1_bytes < target.l2_bytes <= target.l3_bytes < target.memory_bytes
    assert target.zig_triple == f"{target.architecture}-linux-musl"
    assert {"cores", "caches", "features", "memory", "reserved"} <= set(target.sources)
    assert {field.name for field in fields(MachineCosts)} <= set(target.sources)
    assert 0 < target.budget_bytes < target.memory_bytes
    assert 0 < target.costs.cache_share <= 1
    assert target.costs.cache_gb_per_s > target.costs.memory_gb_per_s
    assert target.costs.product_gflop_per_s > target.costs.other_gflop_per_s
    assert all(len(source) > 10 for source in target.sources.values())


@pytest.mark.parametrize("name", ENGINES)
def test_figures_of_an_engine_hang_together(name: str) -> None:
    target = targets.load(name)
    assert isinstance(target, targets.GridTarget)
    board, engine = name.split("/")
    assert (target.host.name, target.engine) == (board, engine)
    assert target.items & (target.items - 1) == 0
    assert target.zig_triple == target.library_triple == f"{target.architecture}-linux-gnu.2.31"
    assert set(target.host.required_features) < set(target.required_features)
    assert {"items", "shared", "caches", "memory", "reserved"} <= set(target.sources)
    assert {field.name for field in fields(MachineCosts)} <= set(target.sources)
    assert target.shared_bytes < target.cache_bytes < target.budget_bytes < target.memory_bytes
    assert all(len(source) > 10 for source in target.sources.values())


def test_a_boards_name_means_its_cpu() -> None:
    assert targets.load("x86-64-v3").engine == "cpu"
    assert targets.load("x86-64-v3/opencl").engine == "opencl"
    with pytest.raises(TargetError, match="is a target of kind opencl, no CPU"):
        targets.load_cpu("x86-64-v3/opencl")


@cache
def llvm_features() -> dict[str, set[str]]:
    """What LLVM switches on for each target, asked in a process of its own (TVM is heavy)."""
    program = (
        "import sys, tvm; from compiler import targets; from compiler.codegen.tir.compile import llvm_target\n"
        "for name in sys.argv[1:]:\n"
        "    features = tvm.get_global_func('target.llvm_get_cpu_features')(llvm_target(targets.load(name)))\n"
        "    print(*sorted(map(str, features)))"
    )
    done = subprocess.run([sys.executable, "-c", program, *NAMES], capture_output=True, text=True, check=True)
    return {name: set(line.split()) for name, line in zip(NAMES, done.stdout.splitlines(), strict=True)}


@pytest.mark.xdist_group("llvm features")
@pytest.mark.parametrize("name", NAMES)
def test_a_device_must_report_what_the_code_may_use(name: str) -> None:
    required = set(targets.load(name).required_features)
    for feature in list(required):
        required |= IMPLIED.get(feature, set())
    used = {LLVM_TO_CPUINFO[feature] for feature in llvm_features()[name] if feature in LLVM_TO_CPUINFO}
    assert used, "the table above knows none of them"
    assert used <= required


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(TargetError, match="raspberry-pi-4") as caught:
        targets.load("raspberry-pi-9")
    assert caught.value.code == "target.invalid"


def test_a_path_is_no_target_name() -> None:
    with pytest.raises(TargetError):
        targets.load("../targets/x86-64-v3")


def test_a_kind_that_nothing_describes_is_refused() -> None:
    text = (FOLDER / "raspberry-pi-4.toml").read_text()
    for wrong in (text.replace('kind = "cpu"', 'kind = "gpu"'), text.replace('kind = "cpu"', ""), "kind = 7"):
        with pytest.raises(TargetError, match=r"^target new: no kind ") as caught:
            targets.parse("new", wrong)
        assert all(kind in caught.value.hint for kind in KINDS)
    with pytest.raises(TargetError, match=r"^target new: .* 'cpu'.* 'cores'"):
        targets.parse("new", text.replace("cores = 4\n", "", 1))
    with pytest.raises(TargetError, match="not TOML"):
        targets.parse("new", "kind = ")


def test_x86_64_costs_what_was_measured_on_zen_4() -> None:
    """In bytes of memory traffic, the model's unit: programs of these targets are chosen by these ratios."""
    for name in ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx"):
        costs = targets.load(name).costs
        ratios = (costs.cache_speed, costs.product_flop_per_byte, costs.other_flop_per_byte, costs.launch_bytes)
        assert ratios == (4.0, 8.0, 3.0, 125_000.0)
        assert (costs.cache_share, costs.packing_passes, costs.kept_passes) == (0.25, 2.0, 1.5)
    assert Machine.of(targets.load("x86-64-v4")).cache_bytes == 4 << 20
