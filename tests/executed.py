"""Which targets ran where: `python -m tests.executed > docs/targets.md` writes the page from the one table here.

Each row names a test that runs such binaries, and `tests/docs/test_targets_page.py` holds it to that: the file is there
and names the target. What ran on no device of its kind is said to be so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from compiler import targets

Where = Literal["itself", "PoCL", "qemu", "shim", "functions", "generated"]
WORDS: dict[Where, str] = {
    "itself": "a machine of its kind",
    "PoCL": "PoCL, by which a CPU plays the device",
    "qemu": "qemu, which plays the CPU",
    "shim": "a shim, by which the CPU runs the kernels' text as C++",
    "functions": "the CPU, with functions in place of the instructions that it lacks",
    "generated": "nothing: its code was generated and looked at",
}
STEPS, KERNELS, SMALL = (
    "whole training steps",
    "kernels of every family, one by one",
    "whole training steps of small models",
)
GUESTS, STUBBED = (
    "its kernels in a training step of a small model, driven by an x86-64 program",
    "its program, with a stub for the driver that computes nothing",
)
AGREEMENT = "tests/compiler/agreement"
THOROUGH = "tests/thorough/compiler/agreement"


@dataclass(frozen=True)
class Row:
    """Something of a target that was executed, by what, and which test does it."""

    target: str
    where: Where
    what: str
    test: str


EXECUTED = (
    Row("x86-64-v3", "itself", STEPS, f"{AGREEMENT}/step_binary.py"),
    Row("x86-64-v3/cuda", "shim", STEPS, f"{THOROUGH}/test_cuda.py"),
    Row("x86-64-v3/cuda", "shim", f"{STEPS} in float16 and bfloat16", f"{AGREEMENT}/test_half_precision.py"),
    Row("x86-64-v3/cuda", "shim", f"{STEPS} in TF32", f"{AGREEMENT}/test_tensor_cores.py"),
    Row("x86-64-v3/opencl", "PoCL", STEPS, f"{AGREEMENT}/test_opencl.py"),
    Row("x86-64-v3/opencl", "PoCL", f"{STEPS} in float16 and bfloat16", f"{AGREEMENT}/test_half_precision.py"),
    Row("x86-64-v3/opencl", "PoCL", KERNELS, "tests/compiler/codegen/grid/test_attention.py"),
    Row("x86-64-v4", "itself", STEPS, f"{AGREEMENT}/step_binary.py"),
    Row(
        "x86-64-v4-vnni",
        "itself",
        f"{STEPS}, products of bytes, on machines that have them",
        f"{THOROUGH}/test_byte_products.py",
    ),
    Row(
        "x86-64-v4-bf16",
        "itself",
        f"{STEPS} in bfloat16, on machines that have it",
        f"{AGREEMENT}/test_half_precision.py",
    ),
    Row("x86-64-v4-amx", "functions", f"{STEPS} in bfloat16", "tests/compiler/codegen/tile_emulation.py"),
    Row("aarch64", "qemu", SMALL, f"{AGREEMENT}/test_agreement.py"),
    Row("aarch64/opencl", "PoCL", GUESTS, f"{AGREEMENT}/test_opencl.py"),
    Row("aarch64/opencl", "qemu", STUBBED, "tests/compiler/runtime/test_opencl.py"),
    Row("raspberry-pi-3", "qemu", SMALL, f"{AGREEMENT}/test_agreement.py"),
    Row("raspberry-pi-4", "qemu", SMALL, f"{THOROUGH}/test_emulated_models.py"),
    Row("raspberry-pi-5", "qemu", SMALL, f"{THOROUGH}/test_emulated_models.py"),
    Row("jetson-orin-nano/cuda", "shim", KERNELS, "tests/compiler/codegen/grid/by_cuda.py"),
    Row("jetson-orin-nano", "qemu", SMALL, f"{THOROUGH}/test_emulated_models.py"),
    Row("snapdragon-8-gen-2", "qemu", SMALL, f"{THOROUGH}/test_emulated_models.py"),
    Row("snapdragon-8-gen-2/opencl", "PoCL", GUESTS, f"{AGREEMENT}/test_opencl.py"),
    Row("snapdragon-8-gen-2/opencl", "qemu", STUBBED, "tests/compiler/runtime/test_opencl.py"),
)
"""Targets that no row names were only generated."""

HEAD = """# What was executed where

No board and no GPU has been at hand: code is generated for all targets, and this is what of it ran, on what. Nothing
that never ran on its own device is called working here. `python -m tests.executed > docs/targets.md` writes this page
from the table in `tests/executed.py`, whose rows name the tests that run such binaries.

| target | engine | what ran | on | test |
|---|---|---|---|---|
"""


def rows() -> Iterator[Row]:
    """Every target, in order, with all that was executed of it."""
    for name in targets.names():
        found = [row for row in EXECUTED if row.target == name]
        yield from found or [Row(name, "generated", "-", "tests/compiler/test_targets.py")]


def document() -> str:
    """The page."""
    lines = [
        f"| `{row.target}` | {targets.load(row.target).engine} | {row.what} | {WORDS[row.where]} | `{row.test}` |"
        for row in rows()
    ]
    return HEAD + "\n".join(lines) + "\n"


if set(WORDS) != set(get_args(Where)):
    raise SystemExit("every place has its words")

if __name__ == "__main__":
    print(document(), end="")
